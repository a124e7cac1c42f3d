"""What cases cost: recorded durations, an estimate for cases never run, and kernels that are compiled once a key."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit.errors import PairwiseError, TimingError

SWEEPS = 10
"""Rounds over all axes in which the estimate is fitted; by then it moves by less than durations do."""

UNSAID = frozenset({"skipped", "error", "rerun"})
"""Outcomes of tests whose body did not come to its end: their seconds say nothing about the case."""

FIX = "give a JSON object from node id to seconds, a run file of --timing-dir, or a folder of them"

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """One case: ``seconds`` without compilation (the median of its runs); in the one run that compiled most,
    ``compiling`` seconds of kernels, and the ``turn`` at which the case came."""

    seconds: float
    compiling: float = 0.0
    turn: int = 0


@dataclass(frozen=True)
class Durations:
    """Recorded cases by function (node id without brackets), then by what stands in the brackets."""

    functions: Mapping[str, Mapping[str, Measured]]
    source: str

    def of(self, nodeid: str) -> Mapping[str, Measured]:
        """The recorded cases of one function; empty if it never ran."""
        return self.functions.get(nodeid, {})


def read_durations(path: str | Path) -> Durations:
    """Durations from a JSON object (node id -> seconds), a run file, or a folder of run files.

    Only runs that came to their end count, and of them only tests whose body did: while a run records into the very
    folder, all its processes must read the same. A folder without such a run gives no durations (the first run of a
    pipeline). Raises ``PairwiseError`` for a path that is not there or holds something else.
    """
    path = Path(path)
    if path.is_dir():
        runs = _runs(path)
        return Durations(_of_runs(runs), str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise PairwiseError(f"cannot read durations from {path}: {reason}", fix=FIX) from error
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None  # a run file has one JSON value a line
    if isinstance(parsed, dict) and not any(isinstance(value, (dict, list, str)) for value in parsed.values()):
        return Durations(_of_mapping(parsed, path), str(path))
    runs = _runs(path)
    if not runs:
        raise PairwiseError(f"the run in {path} did not come to its end", fix=FIX)
    return Durations(_of_runs(runs), str(path))


def _runs(path: Path) -> list[Any]:
    from testkit.timing import read_folder

    if path.is_dir() and not any(one.is_file() and one.name[0] != "." for one in path.rglob("*")):
        return []
    try:
        return [run for run in read_folder(path) if run.complete and not run.cut]
    except TimingError as error:
        raise PairwiseError(f"no durations in {path}: {error.problem}", fix=FIX) from error


def _of_mapping(seconds: Mapping[str, Any], path: Path) -> dict[str, dict[str, Measured]]:
    if not seconds:
        raise PairwiseError(f"{path} holds no durations", fix=FIX)
    functions: dict[str, dict[str, Measured]] = defaultdict(dict)
    for turn, (nodeid, value) in enumerate(seconds.items()):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise PairwiseError(f"{path} gives {nodeid} {value!r}, which is no seconds", fix="use numbers from 0 up")
        function, case = _parts(nodeid)
        functions[function][case] = Measured(float(value), 0.0, turn)
    return dict(functions)


def _of_runs(runs: Sequence[Any]) -> dict[str, dict[str, Measured]]:
    """By function: medians over all runs, compilation as in the run that compiled most of that function."""
    from statistics import median  # brings decimal and fractions, which no other run needs

    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    coldest: dict[str, dict[str, tuple[float, int]]] = {}
    most: dict[str, float] = {}
    for run in runs:
        compiled: dict[str, dict[str, tuple[float, int]]] = defaultdict(dict)
        for turn, timed in enumerate(sorted(run.tests, key=lambda timed: (timed.start, timed.id))):
            if timed.outcome in UNSAID:
                continue
            function, case = _parts(timed.id)
            compiling = timed.jit.seconds if timed.jit else 0.0
            seconds[function][case].append(max(0.0, timed.seconds - compiling))
            compiled[function][case] = (compiling, turn)
        for function, cases in compiled.items():
            total = math.fsum(own for own, _ in cases.values())
            if total > most.get(function, -1.0):
                most[function], coldest[function] = total, cases
    return {
        function: {
            case: Measured(median(values), *coldest[function].get(case, (0.0, -1))) for case, values in cases.items()
        }
        for function, cases in seconds.items()
    }


def _parts(nodeid: str) -> tuple[str, str]:
    """The function, and what stands in the brackets; xdist may have put a group behind them."""
    function, _, rest = nodeid.partition("[")
    return function, rest.rpartition("]")[0]


@dataclass
class CaseCosts:
    """What the cases of one function cost, by level: ``recorded`` ones as measured, all others as estimated.

    The estimate is a factor for each value of each axis times the mean, fitted to the recorded sums of each value
    (iterative proportional fitting: W. Deming and F. Stephan, Annals of Mathematical Statistics 11, 1940), with one
    mean case added to each value as a prior, and no more than the longest recorded case.

    A compiled kernel serves all cases with the same *key*, the values of ``key_axes``. These are learned from the
    cases in the order in which they ran: axes are added while they explain better which cases compiled.
    """

    levels: Sequence[int]
    recorded: Mapping[Key, Measured]
    key_axes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        known = list(self.recorded.values())
        self.mean = math.fsum(one.seconds for one in known) / max(1, len(known))
        self.longest = max((one.seconds for one in known), default=0.0)
        self.key_axes = _key_axes(len(self.levels), self.recorded)
        self._compiling = self._compiling_of_key()
        self._usual = math.fsum(self._compiling.values()) / max(1, len(self._compiling))
        self._factors: list[list[float]] | None = None
        self._run: dict[Key, float] = {}

    @property
    def known(self) -> bool:
        """Is there any recorded case?"""
        return bool(self.recorded)

    def run(self, row: Sequence[int]) -> float:
        """Seconds of this case with its kernels compiled."""
        case = tuple(row)
        seconds = self._run.get(case)
        if seconds is None:
            measured = self.recorded.get(case)
            seconds = self._run[case] = measured.seconds if measured else self._estimated(case)
        return seconds

    def key(self, row: Sequence[int]) -> Key:
        """Cases with the same key share their compiled kernels."""
        return tuple([row[axis] for axis in self.key_axes])

    def compiling(self, key: Key) -> float:
        """Seconds that the kernels of a key take to compile; a key that was never seen takes what others take."""
        return self._compiling.get(key, self._usual)

    def expected_seconds(self, rows: Iterable[Sequence[int]]) -> float:
        """Seconds of these cases one after the other, each key compiled once."""
        rows = list(rows)
        runs = [self.run(row) for row in rows]
        return math.fsum([*runs, *map(self.compiling, sorted({self.key(row) for row in rows}))])

    def _estimated(self, case: Key) -> float:
        if self._factors is None:
            self._factors = _fitted(self.levels, self.recorded, self.mean)
        product = self.mean
        for factors, level in zip(self._factors, case, strict=True):
            product *= factors[level]
        return min(product, self.longest)

    def _compiling_of_key(self) -> dict[Key, float]:
        """Mean seconds of the cases that compiled, by key; empty if none did."""
        found: dict[Key, list[float]] = defaultdict(list)
        for case, measured in self.recorded.items():
            if measured.compiling:
                found[self.key(case)].append(measured.compiling)
        return {key: math.fsum(seconds) / len(seconds) for key, seconds in sorted(found.items())}


def _fitted(levels: Sequence[int], recorded: Mapping[Key, Measured], mean: float) -> list[list[float]]:
    """For each axis a factor for each value, so that the products times ``mean`` sum up as recorded."""
    factors = [[1.0] * n for n in levels]
    if not mean:
        return factors
    cases = sorted(recorded)
    seconds = [recorded[case].seconds for case in cases]
    fitted = [mean] * len(cases)
    places: list[list[list[int]]] = [[[] for _ in range(n)] for n in levels]
    for place, case in enumerate(cases):
        for axis, level in enumerate(case):
            places[axis][level].append(place)
    for _ in range(SWEEPS):
        for axis, by_level in enumerate(places):
            for level, own in enumerate(by_level):
                is_, was = math.fsum([seconds[p] for p in own]), math.fsum([fitted[p] for p in own])
                change = (is_ + mean) / (was + mean)
                factors[axis][level] *= change
                for place in own:
                    fitted[place] *= change
    return factors


def _key_axes(axes: int, recorded: Mapping[Key, Measured]) -> tuple[int, ...]:
    """The axes whose values decide which kernels a case needs; none where nothing was compiled."""
    turns = sorted((one.turn, case) for case, one in recorded.items() if one.turn >= 0)
    ran = [(case, recorded[case].compiling > 0) for _, case in turns]
    if not any(compiled for _, compiled in ran):
        return ()
    chosen: list[int] = []
    fewest = _unexplained(ran, chosen)
    while fewest:
        tried = [(_unexplained(ran, [*chosen, axis]), axis) for axis in range(axes) if axis not in chosen]
        left, axis = min(tried, default=(fewest, 0))
        if left >= fewest:
            break
        fewest = left
        chosen.append(axis)
    return tuple(sorted(chosen))


def _unexplained(ran: Sequence[tuple[Key, bool]], axes: Sequence[int]) -> int:
    """Cases that compiled though their key had come before, and such with a new key that did not."""
    seen: set[Key] = set()
    wrong = 0
    for case, compiled in ran:
        key = tuple([case[axis] for axis in axes])
        wrong += compiled == (key in seen)
        seen.add(key)
    return wrong
