"""What recorded runs tell of the cases of a function: which skip themselves, which failed, which ran.

Cases are known by the values that a thinned run recorded, and in other runs by what stands in the brackets of their
node ids, where ``dtype0`` means another case when a value was put before it. Nothing here hides a tuple: cases that
skip are left for last, so that others cover what they hold, and what no other holds is run with them all the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal

from testkit.errors import PairwiseError, TimingError
from testkit.pairwise._axes import Axis
from testkit.pairwise._ids import value_text
from testkit.pairwise._model import OPEN
from testkit.pairwise._space import TABLE_ROWS, Rule, Space

WINDOW = 10
"""The last so many runs of a function count. What skipped and is not chosen is no longer among them after that, and is
tried again."""

PASSES = 3
"""A case that failed is kept until it has run so often since and not failed."""

MOST_KEPT = 100
"""At most so many failed cases of a function are kept, spread over all: where most of it fails, what failed is the full
product, and any choice of cases shows it."""

MOST_AXES = 12
"""With more axes that cases skip by, or more than TABLE_ROWS combinations of their values, nothing is learned."""

Fate = Literal["ran", "failed", "skipped"]
Case = tuple[int, ...]
"""A level for each axis."""

KIND = "pairwise"
"""Kind of the records that hold the tallies of a run, and in them the reasons of skips."""


@dataclass(frozen=True)
class Recorded:
    """One run of a function: what became of each case, by brackets; and its values (axis -> text) if it was thinned."""

    fates: Mapping[str, Fate]
    values: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """The recorded runs of each function (node id without brackets), oldest first.

    ``files`` were read; ``newest``: when the newest run started, in seconds since the epoch, None without runs.
    ``reasons``: the commonest reason of skips, by function, where it was recorded.
    """

    source: str
    files: tuple[str, ...]
    runs: int
    newest: float | None
    functions: Mapping[str, Sequence[Recorded]]
    reasons: Mapping[str, str]

    def of(self, nodeid: str) -> Sequence[Recorded]:
        """The last runs of one function, oldest first. A run in which all of it skipped says nothing of its cases."""
        told = [run for run in self.functions.get(nodeid, ()) if set(run.fates.values()) != {"skipped"}]
        return told[-WINDOW:]


def read_history(path: str | Path, files: Sequence[str] | None = None) -> History:
    """The runs in a folder of run files that came to their end; shards and attempts of one CI run are one run.

    ``files`` of it are read, or all that are there. An empty folder is a history without runs (the first run of a
    pipeline). Raises ``PairwiseError`` for a folder that is not there, or that holds something else or damaged files.
    """
    from testkit.timing import read, read_folder

    path = Path(path)
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        fix = f"restore the run files there; before there are any, make an empty folder: mkdir -p {path}"
        raise PairwiseError(f"{path} {what}", fix=fix)
    try:
        if files is not None:
            found = [read(file) for file in files]
        else:
            # such as .gitkeep
            holds = any(one.is_file() and one.name[0] != "." for one in path.rglob("*"))
            found = read_folder(path) if holds else []
    except TimingError as error:
        fix = error.fix or "name a folder of run files, as --timing-dir writes them"
        raise PairwiseError(f"no history in {path}: {error.problem}", fix=fix) from error
    whole = [run for run in found if run.complete and not run.cut]
    runs: dict[str, list[Any]] = defaultdict(list)
    for run in sorted(whole, key=lambda run: (run.header.started, run.header.attempt, run.path)):
        runs[run.header.run].append(run)
    functions: dict[str, list[Recorded]] = defaultdict(list)
    for parts in runs.values():
        values = _values(parts)
        for function, fates in _fates(parts).items():
            functions[function].append(Recorded(fates, values.get(function, {})))
    return History(
        str(path),
        tuple(run.path for run in whole),
        len(runs),
        max((run.header.started for run in whole), default=None),
        dict(functions),
        _reasons(whole),
    )


def _fates(parts: Iterable[Any]) -> dict[str, dict[str, Fate]]:
    """What became of the cases of each function in one CI run: failed if any attempt did, else the last one counts."""
    fates: dict[str, dict[str, Fate]] = defaultdict(dict)
    for part in parts:
        for timed in sorted(part.tests, key=lambda timed: timed.attempt):
            function, text = _parts(timed.id)
            fate = _fate(timed)
            if text and fate and fates[function].get(text) != "failed":
                fates[function][text] = fate
    return {function: own for function, own in fates.items() if own}


def _fate(timed: Any) -> Fate | None:
    if timed.phases[0] == "x":  # xfail(run=False): a mark, which is seen without any history
        return None
    if timed.outcome in ("failed", "error", "rerun"):
        return "failed"
    return "skipped" if timed.outcome == "skipped" else "ran"


def _parts(nodeid: str) -> tuple[str, str]:
    """The function, and what stands in the brackets; xdist may have put a group behind them."""
    function, _, rest = nodeid.partition("[")
    return function, rest.rpartition("]")[0]


def _tallies(runs: Iterable[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for record in (record for run in runs for record in run.records if record.kind == KIND):
        if isinstance(record.data, dict):
            yield record.nodeid, record.data


def _values(parts: Iterable[Any]) -> dict[str, dict[str, list[Mapping[str, str]]]]:
    """The values of the cases of thinned functions, by what stands in the brackets."""
    found: dict[str, dict[str, list[Mapping[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for function, tally in _tallies(parts):
        axes, cases = tally["axes"], tally["cases"]
        for nodeid, case in tally["tests"]:
            values = {name: texts[level] for (name, texts), level in zip(axes, cases[case], strict=True)}
            if values not in found[function][_parts(nodeid)[1]]:
                found[function][_parts(nodeid)[1]].append(values)
    return found


def _reasons(runs: Iterable[Any]) -> dict[str, str]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for function, tally in _tallies(runs):
        for fate in tally["fates"].values():
            if fate.startswith("skipped: "):
                counts[function][fate.removeprefix("skipped: ")] += 1
    return {function: min(own, key=lambda reason: (-own[reason], reason)) for function, own in counts.items()}


@dataclass(frozen=True)
class Lessons:
    """What the last ``runs`` of a function say of its cases of now, oldest first. ``levels`` of each axis.

    A case that ran before an axis was added is OPEN there; it tells only of failures.
    """

    levels: tuple[int, ...]
    runs: tuple[Mapping[Case, Fate], ...]
    reason: str = ""

    def within(self, space: Space) -> Lessons:
        """Without the cases that predicates refuse now: what is a predicate already need not be learned."""
        if not space.rules:
            return self
        runs = [{case: fate for case, fate in run.items() if OPEN in case or space.allows(case)} for run in self.runs]
        return replace(self, runs=tuple(runs))

    @cached_property
    def last(self) -> dict[Case, Fate]:
        """What became of each case when it was last seen."""
        return {case: fate for run in self.runs for case, fate in run.items() if OPEN not in case}

    @cached_property
    def skipping(self) -> frozenset[Case]:
        """Cases that skipped when they were last seen."""
        return frozenset(case for case, fate in self.last.items() if fate == "skipped")

    @cached_property
    def ran(self) -> frozenset[Case]:
        """Cases whose body came to its end in any of the runs, passed or failed."""
        ran = (case for run in self.runs for case, fate in run.items() if fate != "skipped")
        return frozenset(case for case in ran if OPEN not in case)

    @cached_property
    def seen(self) -> list[list[Case]]:
        """For each run the cases that ran."""
        return [[case for case, fate in run.items() if fate != "skipped" and OPEN not in case] for run in self.runs]

    @cached_property
    def failing(self) -> tuple[Case, ...]:
        """Cases that failed, and have run fewer than PASSES times since then, in order."""
        since: dict[Case, int] = {}
        for run in self.runs:
            for case in since:
                since[case] += any(fate == "ran" and _holds(other, case) for other, fate in run.items())
            since |= {case: 0 for case, fate in run.items() if fate == "failed"}
        return tuple(sorted(case for case, passes in since.items() if passes < PASSES))

    @property
    def kept(self) -> tuple[Case, ...]:
        """The ``failing`` ones that are to be in, all of them unless they are more than MOST_KEPT."""
        return self.failing[:: -(-len(self.failing) // MOST_KEPT) or 1]

    def kept_in(self, space: Space) -> list[dict[int, int]]:
        """The ``kept`` ones as axis -> level, as far as they are allowed now."""
        cases = [{axis: level for axis, level in enumerate(case) if level != OPEN} for case in self.kept]
        return [case for case in cases if space.states(case) is not None]

    @cached_property
    def new(self) -> list[frozenset[int]]:
        """For each axis the levels that no case of these runs holds; none where nothing is recorded."""
        if not self.last:
            return [frozenset() for _ in self.levels]
        seen = zip(*self.last, strict=True)
        return [frozenset(range(n)) - frozenset(own) for n, own in zip(self.levels, seen, strict=True)]

    def is_new(self, case: Sequence[int]) -> bool:
        """Does the case hold a value that no recorded case holds?"""
        return any(level in new for level, new in zip(case, self.new, strict=True))

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The fewest axes found whose values tell the cases that skip from those that run; none if nothing skips."""
        if not self.skipping:
            return ()
        return telling(len(self.levels), self.skipping, [case for case in self.last if case not in self.skipping])

    @cached_property
    def skipped_values(self) -> frozenset[Case]:
        """The combinations of values of ``axes`` with which cases skip."""
        return frozenset(tuple([case[axis] for axis in self.axes]) for case in self.skipping)

    @cached_property
    def rule(self) -> Rule | None:
        """Allows all cases but those that are expected to skip; None if none is, or it would be too large a table."""
        sizes = [self.levels[axis] for axis in self.axes]
        if not self.axes or len(self.axes) > MOST_AXES or prod(sizes) > TABLE_ROWS:
            return None
        table = frozenset(product(*map(range, sizes))) - self.skipped_values
        return Rule("skips in the history", self.axes, table.__contains__, table)


def lessons(
    runs: Sequence[Recorded],
    axes: Sequence[Axis],
    cases_of: Callable[[Iterable[str]], Mapping[str, Sequence[Case]]],
    reason: str = "",
) -> Lessons:
    """The recorded ``runs`` of a function by its cases of now. ``cases_of`` finds the cases of bracketed texts.

    What has no case now, because a value is gone, is left out.
    """
    tables = [{value_text(axis.values[at]): level for level, at in enumerate(axis.first_positions)} for axis in axes]
    levels = tuple(len(axis.first_positions) for axis in axes)
    # Values that have no text of their own are known by their ids alone.
    by_value = levels == tuple(map(len, tables))
    by_id = cases_of({text: None for run in runs for text in run.fates if not (by_value and text in run.values)})
    found = []
    for run in runs:
        fates: dict[Case, Fate] = {}
        for text, fate in run.fates.items():
            cases: Iterable[Case | None] = by_id.get(text, ())
            if by_value and text in run.values:
                cases = [_case(values, axes, tables) for values in run.values[text]]
            for case in cases:
                if case is not None and fates.get(case) != "failed":
                    fates[case] = fate
        found.append(fates)
    return Lessons(levels, tuple(found), reason)


def _case(values: Mapping[str, str], axes: Sequence[Axis], tables: Sequence[Mapping[str, int]]) -> Case | None:
    """The case with these values, OPEN where an axis is new; None if a value is gone, or nothing is left."""
    case = [
        table.get(values[axis.name]) if axis.name in values else OPEN for axis, table in zip(axes, tables, strict=True)
    ]
    whole = tuple([level for level in case if level is not None])
    return whole if len(whole) == len(case) and any(level != OPEN for level in whole) else None


def _holds(case: Case, part: Case) -> bool:
    return all(wanted in (OPEN, level) for level, wanted in zip(case, part, strict=True))


def telling(axes: int, ones: Iterable[Case], others: Iterable[Case]) -> tuple[int, ...]:
    """Few axes on whose values no case of ``ones`` agrees with one of ``others``, ascending; the two share no case.

    Axes are added while pairs of cases are not told apart, the one that separates most of them first; then those that
    turned out not to be needed go. That finds the fewest mostly, not always.
    """
    sides = list(ones), list(others)
    chosen: list[int] = []
    while _alike(sides, chosen):
        left = [axis for axis in range(axes) if axis not in chosen]
        if not left:
            break
        chosen.append(min(left, key=lambda axis: (_alike(sides, [*chosen, axis]), axis)))
    for axis in list(chosen):
        fewer = [other for other in chosen if other != axis]
        if not _alike(sides, fewer):
            chosen = fewer
    return tuple(sorted(chosen))


def _alike(sides: tuple[Sequence[Case], Sequence[Case]], axes: Sequence[int]) -> int:
    """How many pairs of a case of each side have the same values on these axes."""
    ones, others = (Counter(tuple([case[axis] for axis in axes]) for case in side) for side in sides)
    return sum(number * others[key] for key, number in ones.items())
