"""What a run covered: the cases of one thinned function, what became of each, and the owed tuples that ran.

A tally is plain numbers and texts, so that a worker process can send it. Coverage needs no predicates: the chosen
cases hold every owed tuple, so what did not run is what only cases that did not run hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from testkit._settings import Setting
from testkit._text import counted, table
from testkit.errors import PairwiseError
from testkit.pairwise import _proof
from testkit.pairwise._ids import value_text
from testkit.pairwise._model import owed_groups
from testkit.pairwise._plan import Plan, Positions

RAN = "ran"
STARTED = "never finished"
PENDING = "not reached"
DESELECTED = "deselected"


@dataclass
class Tally:
    """One thinned function.

    ``total`` cases of the full product, ``owed`` tuples, ``chosen`` cases and ``named`` ones outside the sample;
    ``axes`` are (name, text of each level); ``cases`` the levels of each different case, ``refused`` the numbers of
    those that the predicates refuse; ``strength`` and ``crossed`` as in the model; ``capped`` tells of a strength
    above the number of axes. ``tests`` are (node id, case) of what was collected, ``strays`` how many tests of the
    function hold none of the cases, ``fates`` what became of each node id, ``ran`` how many owed tuples ran.
    ``seconds`` that the chosen cases are expected to take, if durations are known. With a history: how many owed
    tuples are ``planned`` (cases that are expected to run hold them), how many cases are ``skipping`` or ``failing`` in
    the last runs, and how many of the chosen ones are ``kept`` because they failed.
    """

    nodeid: str
    total: int
    owed: int
    chosen: int
    named: int
    strength: int
    crossed: list[int]
    axes: list[tuple[str, list[str]]]
    cases: list[list[int]]
    refused: list[int]
    notes: list[str]
    capped: str
    tests: list[tuple[str, int]] = field(default_factory=list)
    strays: int = 0
    fates: dict[str, str] = field(default_factory=dict)
    ran: int = 0
    seconds: float | None = None
    planned: int | None = None
    skipping: int = 0
    failing: int = 0
    kept: int = 0

    @classmethod
    def of(
        cls,
        nodeid: str,
        plan: Plan,
        asked: Setting[int],
        cases: Sequence[Positions],
        chosen: int,
        named: int,
        notes: Iterable[str],
    ) -> Tally:
        """The tally of a function as it was thinned, before collection ended; ``asked`` is the strength wanted."""
        used, capped = plan.model.strength, ""
        if asked.value > used and asked.source != "default":
            capped = f"strength {asked.value} ({asked.source}) is above its {counted(len(plan.axes), 'axis', 'axes')}"
            capped += f", so {used} is used"
        return cls(
            nodeid=nodeid,
            total=plan.total,
            owed=plan.owed,
            chosen=chosen,
            named=named,
            strength=used,
            crossed=list(plan.model.crossed) if plan.model.wide else [],
            axes=[
                (axis.name, [value_text(axis.values[position]) for position in axis.first_positions])
                for axis in plan.axes
            ],
            cases=[list(levels) for levels in cases],
            refused=[number for number, levels in enumerate(cases) if not plan.model.space.allows(levels)],
            notes=list(notes),
            capped=capped,
            seconds=plan.seconds,
            planned=plan.planned,
            skipping=len(plan.lessons.skipping) if plan.lessons else 0,
            failing=len(plan.lessons.failing) if plan.lessons else 0,
            kept=plan.kept,
        )

    def to_text(self) -> str:
        """For the wire: plain text, whatever the values are."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Tally:
        return cls(**json.loads(text))

    def collect(self, nodeid: str, case: int | None) -> None:
        """A test of the function was collected, and holds this case; None if it holds none of them."""
        if case is None:
            self.strays += 1
        else:
            self.tests.append((nodeid, case))
            self.fates[nodeid] = PENDING

    def settle(self, reports: Iterable[tuple[str, str]]) -> None:
        """Take in (node id, fate) of all reports. A case that ran once ran.

        A node id that several cases share ran only if none of its reports says otherwise.
        """
        case_of: dict[str, set[int]] = {}
        for nodeid, case in self.tests:
            case_of.setdefault(nodeid, set()).add(case)
        for nodeid, fate in reports:
            shared = len(case_of[nodeid]) > 1
            if _weight(fate, shared) >= _weight(self.fates[nodeid], shared):
                self.fates[nodeid] = fate
        groups = owed_groups(len(self.axes), self.strength, self.crossed)
        rows = [self.cases[case] for case, fates in self._fates_of_cases().items() if RAN in fates]
        self.ran = sum(held for _, held in _proof.held_counts(rows, groups))

    def take_in(self, other: Tally) -> None:
        """What became of the same function's cases in another run, such as another shard."""
        known = {(nodeid, case) for nodeid, case in self.tests}
        self.tests += [(nodeid, case) for nodeid, case in other.tests if (nodeid, case) not in known]
        self.strays += other.strays
        for nodeid, fate in other.fates.items():
            if RAN not in (fate, self.fates.get(nodeid, PENDING)) and nodeid in self.fates:
                continue
            self.fates[nodeid] = RAN if RAN in (fate, self.fates.get(nodeid)) else fate

    def planned_here(self) -> int:
        """How many owed tuples the collected cases hold."""
        groups = owed_groups(len(self.axes), self.strength, self.crossed)
        rows = [self.cases[case] for case in sorted({case for _, case in self.tests} - set(self.refused))]
        return sum(held for _, held in _proof.held_counts(rows, groups))

    def shard_line(self) -> str:
        """The line of a run that is one shard of many: what is planned here, of what is owed in all."""
        here = len({case for _, case in self.tests})
        planned = self.planned_here()
        ran = "all ran" if self.ran == planned else f"{self.ran:,} ran"
        return (
            f"{self.nodeid}: {self.total:,} -> {counted(self.chosen, 'case')}, {here:,} here; {self.noun}s planned here"
            f" / owed in all: {planned:,} / {self.owed:,}, {ran}"
        )

    def _fates_of_cases(self) -> dict[int, list[str]]:
        """What became of the tests of each case that the predicates allow."""
        refused = set(self.refused)
        fates: dict[int, list[str]] = {case: [] for case in range(len(self.cases)) if case not in refused}
        for nodeid, case in self.tests:
            if case in fates:
                fates[case].append(self.fates[nodeid])
        return fates

    @property
    def selected(self) -> bool:
        """Was any case to run at all?"""
        return bool(self.tests or self.strays)

    def line(self, *, ran: bool) -> str:
        """One line: cases before and after, owed tuples, and the share that ran (if any was to run)."""
        cases = counted(self.chosen, "case")
        extra = f" + {self.named:,} named" if self.named else ""
        share = f"{percent(self.ran, self.owed)} ran" if ran else "only collected"
        owed = counted(self.owed, f"owed {self.noun}")
        if self.planned is not None and self.planned < self.owed:
            owed += f" ({self.planned:,} planned)"
        expected = "" if self.seconds is None else f" (about {_rounded(self.seconds)} s)"
        return f"{self.nodeid}: {self.total:,} -> {cases}{extra}{expected}, {owed}, {share}"

    @property
    def noun(self) -> str:
        """What an owed tuple is called here."""
        if self.crossed:
            return "tuple"
        return {1: "value", 2: "pair", 3: "triple"}.get(self.strength, f"{self.strength}-tuple")

    def stray_note(self) -> str:
        return f"{counted(self.strays, 'test')} of it hold other values than were planned: what ran is not known"

    def not_run(self) -> list[tuple[str, str]]:
        """The owed tuples that did not run, as text, each with what became of the cases that hold it."""
        missing: list[tuple[str, str]] = []
        fates_of_cases = self._fates_of_cases()
        for group in owed_groups(len(self.axes), self.strength, self.crossed):
            fates: dict[tuple[int, ...], list[str]] = {}
            for case, what in fates_of_cases.items():
                held = tuple([self.cases[case][axis] for axis in group])
                fates.setdefault(held, []).extend(what or [DESELECTED])
            for held, what in sorted(fates.items()):
                if RAN not in what:
                    text = ", ".join(
                        f"{self.axes[axis][0]}={self.axes[axis][1][level]}"
                        for axis, level in zip(group, held, strict=True)
                    )
                    missing.append((text, "; ".join(dict.fromkeys(what))))
        return missing


def _rounded(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def _weight(fate: str, shared: bool) -> int:
    if fate in (PENDING, STARTED):
        return (PENDING, STARTED).index(fate)
    return 2 if (fate == RAN) == shared else 3


def percent(part: int, whole: int) -> str:
    """``100 %`` only when nothing is missing."""
    if part == whole:
        return "100 %"
    return f"{min(99.9, 100 * part / whole):.1f} %"


def summary_lines(tallies: Iterable[Tally], *, ran: bool, missing: bool, hint: bool, shard: bool = False) -> list[str]:
    """What the terminal shows: a line a function, what was noticed, and if asked for, what did not run.

    ``ran`` is False when tests were only collected; ``hint`` offers the list of what did not run; ``shard``: the rest
    runs elsewhere.
    """
    shown: list[Tally] = []
    hidden: list[Tally] = []
    for tally in tallies:
        (shown if tally.selected else hidden).append(tally)
    lines = [tally.shard_line() if shard and ran else tally.line(ran=ran) for tally in shown]
    if hidden and shard:
        lines.append(f"{counted(len(hidden), 'thinned function')} not here, but on other shards")
    elif hidden:
        names = ", ".join(tally.nodeid.rpartition("::")[2] for tally in hidden[:5]) + (", ..." if hidden[5:] else "")
        lines.append(f"{counted(len(hidden), 'thinned function')} deselected whole and not counted: {names}")
    capped: dict[str, list[str]] = {}
    for tally in shown:
        if tally.capped:
            capped.setdefault(tally.capped, []).append(tally.nodeid)
    for text, nodeids in capped.items():
        lines.append(f"{nodeids[0] if len(nodeids) == 1 else counted(len(nodeids), 'function')}: {text}")
    lines += [f"{tally.nodeid}: {note}" for tally in shown for note in tally.notes]
    lines += [f"{tally.nodeid}: {tally.stray_note()}" for tally in shown if tally.strays]
    short = [tally for tally in shown if ran and tally.ran < (tally.planned_here() if shard else tally.owed)]
    if short and hint and not missing:
        lines.append("next: --pairwise-report lists the owed tuples that did not run, with the reason")
    for tally in short if missing else ():
        not_run = tally.not_run()
        lines.append(f"{tally.nodeid}: {len(not_run):,} of {counted(tally.owed, f'owed {tally.noun}')} did not run")
        lines += table(not_run)
    return lines


def shortfall(tallies: Iterable[Tally], limit: float, source: str, lister: str = "--pairwise-report") -> str:
    """The refusal if less than ``limit`` percent of all owed tuples ran, or none were owed; else "".

    ``lister`` is the option that lists what did not run.
    """
    shown = [tally for tally in tallies if tally.selected]
    owed, ran = sum(tally.owed for tally in shown), sum(tally.ran for tally in shown)
    if not owed:
        return str(
            PairwiseError(
                f"no thinned function ran, so the limit of {limit:g} % had nothing to hold",
                source,
                "leave the limit out of runs without thinned functions",
            )
        )
    for tally in shown:
        if tally.strays:
            return str(
                PairwiseError(
                    f"{tally.nodeid}: {tally.stray_note()}",
                    source,
                    "leave the limit out, or the plugin that changes values",
                )
            )
    if 100 * ran >= limit * owed:
        return ""
    problem = f"{percent(ran, owed)} of {counted(owed, 'owed tuple')} ran, less than {limit:g} %"
    return str(PairwiseError(problem, source, f"see {lister} for what did not run and why"))
