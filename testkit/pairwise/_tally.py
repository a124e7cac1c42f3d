"""What a run covered: the cases of one thinned function, what became of each, and the owed tuples that ran.

A tally is plain numbers and texts, so that a worker process can send it. Coverage needs no predicates: the chosen
cases hold every owed tuple, so what did not run is what only cases that did not run hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from testkit._settings import Setting
from testkit._text import counted, table
from testkit.errors import PairwiseError
from testkit.pairwise import _proof
from testkit.pairwise._ids import value_text
from testkit.pairwise._model import owed_groups
from testkit.pairwise._plan import Plan, Positions, level_of_position

RAN = "ran"
PENDING = "not reached"
DESELECTED = "deselected"

Levels = tuple[int, ...]


@dataclass
class Tally:
    """One thinned function.

    ``total`` cases of the full product, ``owed`` tuples; ``axes`` are (name, text of each level); ``cases`` are
    (node id, levels); ``named`` cases were asked for by node id and stand outside the sample, ``allowed`` says
    which cases the predicates allow; ``strength`` and ``crossed`` as in the model; ``capped`` tells of a strength
    above the number of axes. ``fate`` says for each node id what became of it.
    """

    nodeid: str
    total: int
    owed: int
    strength: int
    crossed: list[int]
    axes: list[tuple[str, list[str]]]
    cases: list[tuple[str, list[int]]]
    named: list[str]
    refused: list[str]
    notes: list[str]
    capped: str
    fate: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        nodeid: str,
        plan: Plan,
        asked: Setting[int],
        cases: Iterable[tuple[str, Positions]],
        named: Iterable[str],
        notes: Iterable[str],
    ) -> Tally:
        """The tally of a function as it was thinned, before anything ran; ``asked`` is the strength wanted."""
        numbers = [level_of_position(axis) for axis in plan.axes]
        leveled = [
            (case, [number[position] for number, position in zip(numbers, row, strict=True)]) for case, row in cases
        ]
        used, capped = plan.model.strength, ""
        if asked.value > used and asked.source != "default":
            capped = f"strength {asked.value} ({asked.source}) is above its {counted(len(plan.axes), 'axis', 'axes')}"
            capped += f", so {used} is used"
        return cls(
            nodeid=nodeid,
            total=plan.total,
            owed=plan.owed,
            strength=used,
            crossed=list(plan.model.crossed) if plan.model.wide else [],
            axes=[
                (axis.name, [value_text(axis.values[position]) for position in axis.first_positions])
                for axis in plan.axes
            ],
            cases=leveled,
            named=sorted(named),
            refused=[case for case, levels in leveled if not plan.model.space.allows(levels)],
            notes=list(notes),
            capped=capped,
            fate=dict.fromkeys((case for case, _ in leveled), PENDING),
        )

    def to_data(self) -> dict[str, Any]:
        """For the wire: only what every serializer knows."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Tally:
        return cls(**data)

    def select(self, collected: Iterable[str]) -> None:
        """Cases that are not among the collected node ids were deselected."""
        kept = set(collected)
        for nodeid in self.fate:
            if nodeid not in kept:
                self.fate[nodeid] = DESELECTED

    def settle(self, nodeid: str, fate: str) -> None:
        """A case came to an end; once it ran, nothing changes that."""
        if self.fate[nodeid] != RAN:
            self.fate[nodeid] = fate

    @property
    def selected(self) -> bool:
        """Was any case to run at all?"""
        return any(fate != DESELECTED for fate in self.fate.values())

    def _rows(self, *, only_ran: bool) -> list[Levels]:
        refused = set(self.refused)
        return [
            tuple(levels)
            for nodeid, levels in self.cases
            if nodeid not in refused and (not only_ran or self.fate[nodeid] == RAN)
        ]

    @property
    def ran(self) -> int:
        """How many owed tuples some case that ran holds."""
        groups = owed_groups(len(self.axes), self.strength, self.crossed)
        return sum(held for _, held in _proof.held_counts(self._rows(only_ran=True), groups))

    def line(self, *, ran: bool) -> str:
        """One line: cases before and after, owed tuples, and the share that ran (if any was to run)."""
        cases = counted(len(self.cases) - len(self.named), "case")
        extra = f" + {len(self.named):,} named" if self.named else ""
        share = f"{percent(self.ran, self.owed)} ran" if ran else "only collected"
        owed = counted(self.owed, f"owed {self.noun}")
        return f"{self.nodeid}: {self.total:,} -> {cases}{extra}, {owed}, {share}"

    @property
    def noun(self) -> str:
        """What an owed tuple is called here."""
        if self.crossed:
            return "tuple"
        return {1: "value", 2: "pair", 3: "triple"}.get(self.strength, f"{self.strength}-tuple")

    def not_run(self) -> list[tuple[str, str]]:
        """The owed tuples that did not run, as text, each with what became of the cases that hold it."""
        refused = set(self.refused)
        missing: list[tuple[str, str]] = []
        for group in owed_groups(len(self.axes), self.strength, self.crossed):
            fates: dict[Levels, list[str]] = {}
            for nodeid, levels in self.cases:
                if nodeid not in refused:
                    fates.setdefault(tuple([levels[axis] for axis in group]), []).append(self.fate[nodeid])
            for held, what in sorted(fates.items()):
                if RAN not in what:
                    text = ", ".join(
                        f"{self.axes[axis][0]}={self.axes[axis][1][level]}"
                        for axis, level in zip(group, held, strict=True)
                    )
                    missing.append((text, "; ".join(dict.fromkeys(what))))
        return missing


def percent(part: int, whole: int) -> str:
    """``100 %`` only when nothing is missing."""
    if part == whole:
        return "100 %"
    return f"{min(99.9, 100 * part / whole):.1f} %"


def summary_lines(tallies: Iterable[Tally], *, ran: bool, missing: bool, hint: bool) -> list[str]:
    """What the terminal shows: a line a function, what was noticed, and if asked for, what did not run.

    ``ran`` is False when tests were only collected; ``hint`` offers the list of what did not run.
    """
    shown: list[Tally] = []
    hidden: list[Tally] = []
    for tally in tallies:
        (shown if tally.selected else hidden).append(tally)
    lines = [tally.line(ran=ran) for tally in shown]
    if hidden:
        names = ", ".join(tally.nodeid.rpartition("::")[2] for tally in hidden[:5]) + (", ..." if hidden[5:] else "")
        lines.append(f"{counted(len(hidden), 'thinned function')} deselected whole and not counted: {names}")
    capped: dict[str, list[str]] = {}
    for tally in shown:
        if tally.capped:
            capped.setdefault(tally.capped, []).append(tally.nodeid)
    for text, nodeids in capped.items():
        lines.append(f"{nodeids[0] if len(nodeids) == 1 else counted(len(nodeids), 'function')}: {text}")
    lines += [f"{tally.nodeid}: {note}" for tally in shown for note in tally.notes]
    short = [tally for tally in shown if ran and tally.ran < tally.owed]
    if short and hint and not missing:
        lines.append("next: --pairwise-report lists the owed tuples that did not run, with the reason")
    for tally in short if missing else ():
        not_run = tally.not_run()
        lines.append(f"{tally.nodeid}: {len(not_run):,} of {counted(tally.owed, f'owed {tally.noun}')} did not run")
        lines += table(not_run)
    return lines


def shortfall(tallies: Iterable[Tally], limit: float, source: str) -> str:
    """The refusal if less than ``limit`` percent of all owed tuples ran, or none were owed; else ""."""
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
    if 100 * ran >= limit * owed:
        return ""
    problem = f"{percent(ran, owed)} of {counted(owed, 'owed tuple')} ran, less than {limit:g} %"
    return str(PairwiseError(problem, source, "see --pairwise-report for what did not run and why"))
