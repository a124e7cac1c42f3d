"""How long each test will take, from several past runs: robust, on one machine's scale, with a figure for new tests.

A test's own figure is a quantile of its last values, each divided by the speed of the run it comes from. Values of
runs in which the test did not pass (skipped, failed, cut off by a limit) count only if there are no others, and
values three times off the middle are left out while they are few. A new test borrows the mean of the nearest
parametrizations of its function, then of its function, its module, all tests: means and not medians, since a shard
takes the sum of its tests, and most of a suite's seconds are in few of them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Literal

from testkit._text import counted
from testkit.errors import TimingError
from testkit.timing._run import split_id

Origin = Literal["own", "parametrization", "function", "module", "suite", "default"]

DEFAULT = 1.0
"""Seconds of every test when there is no history at all."""
FAR = 3.0
"""A value so many times above or below the middle of its test is far off."""
AUDIBLE = 0.01
"""Seconds below which a test says more about the clock than about the machine."""
FROZEN_FROM = 0.1
"""Seconds from which values that never change are suspicious; smaller ones may be equal by rounding."""
COMMON = 20
"""Tests that two runs must share before their machines are compared."""

_NUMBER = re.compile(r"(\D*)(\d+(?:\.\d+)?)(\D*)")
PASSED = frozenset({"passed", "xfailed", "xpassed"})
"""Outcomes of tests that ran as they always do."""


@dataclass(frozen=True, slots=True)
class Past:
    """One past run, or one shard of it.

    ``seconds`` by id (None: no figure); ``date`` in seconds since the epoch; ``outcomes`` by id where they are known (a
    test without one passed); ``speed``: how many times longer its machine takes than a usual one, if somebody knows.
    """

    seconds: Mapping[str, float | None]
    date: float
    outcomes: Mapping[str, str] = field(default_factory=dict)
    speed: float | None = None


@dataclass(frozen=True, slots=True)
class Estimates:
    """Seconds for each id, and what they rest on."""

    seconds: dict[str, float]
    origin: dict[str, Origin]
    """Where each figure is from; ``own`` is the test's history."""
    speeds: list[float]
    """For each run in the order given: how many times longer it took than the usual run; 1 where that is unknown."""
    frozen: list[str]
    """Tests of 0.1 s and more with three values or more that never changed: nobody measured them again."""
    measured: int
    """Tests with three values or more, of 0.1 s and more."""
    newest: float | None
    """Date of the newest run with one of the ids."""

    @property
    def new(self) -> list[str]:
        """Ids without a value of their own."""
        return [name for name, origin in self.origin.items() if origin != "own"]

    @property
    def matched(self) -> float:
        """Share of the ids that have a value of their own, 0 to 1."""
        return 1 - len(self.new) / len(self.seconds)

    def age_days(self, now: float) -> float | None:
        """Days from the newest run to ``now``, in seconds since the epoch."""
        return None if self.newest is None else (now - self.newest) / 86_400

    def notes(self, now: float) -> list[str]:
        """What a reader should know before the figures are trusted; nothing is often the answer."""
        found, new = [], self.new
        if self.newest is None:
            return [f"no test has a recorded time: each counts as {next(iter(self.seconds.values())):g} s"]
        if new:
            origins = Counter(self.origin[name] for name in new)
            by = ", ".join(f"{number:,} by {origin}" for origin, number in origins.most_common())
            found.append(f"{counted(len(new), 'new test')} of {len(self.seconds):,}, estimated: {by}")
        if self.matched < 0.8:
            found.append(f"only {self.matched:.0%} of the tests have a recorded time: is it the history of this suite?")
        age = self.age_days(now) or 0.0
        if age > 7:
            found.append(f"the newest recorded times are {age:.0f} days old: plans get worse by the month")
        if 10 * len(self.frozen) >= self.measured > 0:
            found.append(
                f"{counted(len(self.frozen), 'test')} of {self.measured:,} never changed by a microsecond: "
                "the feed of their times is frozen"
            )
        same, number = self._most_common()
        if number >= 3 and 5 * same * number >= math.fsum(self.seconds.values()):
            found.append(f"{number:,} tests have the same {same:g} s: placeholders, not measured")
        return found

    def _most_common(self) -> tuple[float, int]:
        """The estimate from 1 s that most tests with values of their own share."""
        own = Counter(self.seconds[name] for name, origin in self.origin.items() if origin == "own")
        number, same = max(((number, same) for same, number in own.items() if same >= 1), default=(0, 0.0))
        return same, number


def estimate(
    ids: Iterable[str], runs: Sequence[Past], *, quantile: float = 0.5, last: int = 7, default: float | None = None
) -> Estimates:
    """Estimate each id's seconds from its ``last`` values; ``quantile=0.9`` for a cautious figure.

    ``default`` is for tests of which not even the module is known: seconds, or None for the mean of all tests. The
    result is a function of its arguments and of nothing else: no clock, no hash seed. TimingError: no ids, a value
    that is no time, a quantile outside 0 to 1.
    """
    names = list(dict.fromkeys(ids))
    if not names:
        raise TimingError("no test to estimate", "estimate(ids=...)", "give at least one id")
    if not 0 <= quantile <= 1:
        raise TimingError(f"quantile is {quantile!r}", "estimate(quantile=...)", "give 0.5 for the median, 0.9 for p90")
    if default is not None and not 0 <= default < math.inf:
        raise TimingError(f"default is {default!r}", "estimate(default=...)", "give seconds, or None")
    if last < 1:
        raise TimingError(f"last is {last!r}", "estimate(last=...)", "give the number of values to use, from 1")
    history = _history(runs, last)
    speeds = _speeds(runs, history)
    known = {
        name: _quantile(_without_strays([value / speeds[run] for value, run in values]), quantile)
        for name, values in history.items()
    }
    lender = _Lender(known, default)
    figures: dict[str, tuple[float, Origin]] = {
        name: (known[name], "own") if name in known else lender.lend(name) for name in names
    }
    values = {name: [value for value, _ in history[name]] for name in names if name in history}
    measured = [name for name, own in values.items() if len(own) >= 3 and max(own) >= FROZEN_FROM]
    dates = [runs[run].date for name in values for _, run in history[name]]
    return Estimates(
        seconds={name: seconds for name, (seconds, _) in figures.items()},
        origin={name: origin for name, (_, origin) in figures.items()},
        speeds=speeds,
        frozen=[name for name in measured if len(set(values[name])) == 1],
        measured=len(measured),
        newest=max(dates, default=None),
    )


Values = list[tuple[float, int]]
"""(seconds, number of the run), the newest first."""


def _history(runs: Sequence[Past], last: int) -> dict[str, Values]:
    """The last values of every test: of runs where it passed, or of all runs if it passed in none."""
    passed: dict[str, Values] = {}
    others: dict[str, Values] = {}
    for number in sorted(range(len(runs)), key=lambda number: (-runs[number].date, number)):
        run = runs[number]
        for name, seconds in run.seconds.items():
            if seconds is None:
                continue
            if not (isinstance(seconds, (int, float)) and math.isfinite(seconds) and seconds >= 0):
                fix = "leave it out, or give a finite number of seconds from 0"
                raise TimingError(f"{name} took {seconds!r}", f"run {number} of estimate(runs=...)", fix)
            where = passed if run.outcomes.get(name, "passed") in PASSED else others
            values = where.setdefault(name, [])
            if len(values) < last:
                values.append((seconds, number))
    return {**others, **passed}


def _speeds(runs: Sequence[Past], history: Mapping[str, Values]) -> list[float]:
    """How many times longer each run took than the usual one: the middle ratio over the tests that runs share.

    Each test's usual value and each run's speed are the middle of the other in turn, as in Tukey's median polish
    (Exploratory Data Analysis, 1977), three times: a test that only slow runs have does not look slow.
    """
    speeds = [1.0 if run.speed is None else run.speed for run in runs]
    wrong = [number for number, speed in enumerate(speeds) if not 0 < speed < math.inf]
    if wrong:
        where = f"run {wrong[0]} of estimate(runs=...)"
        raise TimingError(f"speed is {speeds[wrong[0]]!r}", where, "give a factor above 0, or None")
    shared = [values for values in history.values() if len(values) > 1 and min(values)[0] >= AUDIBLE]
    for _ in range(3):
        ratios: list[list[float]] = [[] for _ in runs]
        for values in shared:
            usual = median([value / speeds[run] for value, run in values])
            for value, run in values:
                ratios[run].append(value / usual)
        for number, found in enumerate(ratios):
            if runs[number].speed is None and len(found) >= COMMON:
                speeds[number] = median(found)
    return speeds


def _without_strays(values: list[float]) -> list[float]:
    """Leave out what is far from the middle, while that is at most a third; more of them are how the test is."""
    middle = median(values)
    near = [value for value in values if middle / FAR <= value <= middle * FAR]
    return near if 3 * (len(values) - len(near)) <= len(values) else values


def _quantile(values: list[float], quantile: float) -> float:
    """With straight lines between the sorted values, the first being 0 and the last 1."""
    ordered = sorted(values)
    place = quantile * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class _Lender:
    """Figures for tests without one, from the nearest that have one."""

    def __init__(self, known: Mapping[str, float], default: float | None) -> None:
        self.functions: dict[tuple[str, str], list[tuple[str, float]]] = {}
        self.modules: dict[str, list[float]] = {}
        for name, seconds in known.items():
            module, function, params = split_id(name)
            self.functions.setdefault((module, function or ""), []).append((params or "", seconds))
            self.modules.setdefault(module, []).append(seconds)
        self.last_resort: tuple[float, Origin] = (DEFAULT if default is None else default, "default")
        if default is None and known:
            self.last_resort = (fmean(known.values()), "suite")
        self._shapes: dict[tuple[str, str], _Shapes] = {}

    def lend(self, name: str) -> tuple[float, Origin]:
        module, function, params = split_id(name)
        key = (module, function or "")
        cases = self.functions.get(key)
        if cases:
            if key not in self._shapes:
                self._shapes[key] = _shapes(cases)
            near = _nearest(self._shapes[key], params or "")
            return (fmean(near), "parametrization") if near else (fmean(s for _, s in cases), "function")
        if module in self.modules:
            return fmean(self.modules[module]), "module"
        return self.last_resort


_Shapes = dict[tuple[int, tuple[str, ...]], list[tuple[str, float]]]
"""Parametrizations with one part left out -> what was in its place, and the seconds."""


def _shapes(cases: Iterable[tuple[str, float]]) -> _Shapes:
    shapes: _Shapes = {}
    for params, seconds in cases:
        parts = tuple(params.split("-"))
        for place, part in enumerate(parts):
            shapes.setdefault((place, parts[:place] + parts[place + 1 :]), []).append((part, seconds))
    return shapes


def _nearest(shapes: _Shapes, params: str) -> list[float]:
    """Seconds of the cases that differ in one part and least in it; several where they are equally near."""
    parts = tuple(params.split("-"))
    best = math.inf
    found: list[float] = []
    for place, part in enumerate(parts):
        for other, seconds in shapes.get((place, parts[:place] + parts[place + 1 :]), ()):
            distance = _distance(part, other)
            if distance < best:
                best, found = distance, []
            if distance == best:
                found.append(seconds)
    return found


def _distance(part: str, other: str) -> float:
    """Numbers with the same text around them: how many times one is the other, counted from 1. Words: 4."""
    one, two = _NUMBER.fullmatch(part), _NUMBER.fullmatch(other)
    if one is None or two is None or (one[1], one[3]) != (two[1], two[3]):
        return 4.0
    low, high = sorted((float(one[2]), float(two[2])))
    return (high + 1) / (low + 1)
