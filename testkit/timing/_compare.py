"""What became slower and what faster: gates on medians that a recording of 82 days was tried with.

A row (a test, file, fixture or phase; the caller decides) is slower when several of its newest runs are above the
median of the runs before by a share of it *and* by a number of seconds. One gate alone alarms every day: a share on
rows of milliseconds, seconds on rows of hours, a single run on whatever else the machine did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from testkit._text import counted
from testkit.errors import TimingError

Rows = Mapping[str, Sequence[float | None]]
"""Seconds of each row, a place for each run, the oldest first; None where a run does not have the row."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Slower: ``above`` of the last ``head`` runs are more than ``relative`` and ``seconds`` above the base.

    The base is the median of the ``base`` runs before. For faster, the same with base and head in each other's place.
    Rows with fewer runs are judged by what is there.
    """

    relative: float = 0.25
    seconds: float = 45.0
    head: int = 3
    above: int = 2
    base: int = 7

    def __post_init__(self) -> None:
        for name in ("relative", "seconds"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise TimingError(f"{name} is {value!r}", f"Gate({name}=...)", "give a number from 0")
        for name in ("head", "above", "base"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise TimingError(f"{name} is {value!r}", f"Gate({name}=...)", "give a number of runs, from 1")
        if self.above > self.head:
            raise TimingError(f"above is {self.above} of {self.head} runs", "Gate(above=...)", "give at most head")

    def __str__(self) -> str:
        return (
            f"{self.above} of {counted(self.head, 'run')} off the median of {self.base} "
            f"by {self.relative:.0%} and {self.seconds:g} s"
        )

    def passed_by(self, low: float, high: float) -> bool:
        """Is ``high`` so far above ``low``?"""
        return high > low * (1 + self.relative) and high > low + self.seconds


@dataclass(frozen=True, slots=True)
class Change:
    """One row: medians of both sides in seconds, and on how many runs they rest."""

    name: str
    base: float
    head: float
    base_runs: int
    head_runs: int

    @property
    def lost(self) -> float:
        """Seconds lost a run; below 0 they were gained."""
        return self.head - self.base

    @property
    def ratio(self) -> float:
        return self.head / self.base if self.base else math.inf


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows beyond the gate, those that lost or gained most first."""

    gate: Gate
    slower: list[Change]
    faster: list[Change]
    compared: int
    """Rows on both sides."""
    thin: int
    """Rows of these with fewer runs than the gate asks for."""
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    shift: float = 1.0
    """The middle ratio of head to base over rows on both sides: the machine, or a cause that all rows share."""

    @property
    def ok(self) -> bool:
        """Nothing is slower."""
        return not self.slower

    def notes(self) -> list[str]:
        """What weakens the answer."""
        found = []
        if self.thin:
            found.append(
                f"{self.thin:,} of {counted(self.compared, 'row')} have fewer runs than the gate asks for "
                f"({self.gate}): what differs there may be chance"
            )
        if not 0.9 < self.shift < 1.1:
            found.append(
                f"the middle row took {self.shift:.2f} times its base: another machine, or a cause that all rows share"
            )
        return found


def compare(base: Rows, head: Rows, gate: Gate | None = None) -> Comparison:
    """Compare the newest ``gate.head`` values of each row in ``head`` with the newest ``gate.base`` in ``base``.

    Two single runs are two mappings with one value a row: judged, and noted as weak. TimingError: no row on both
    sides, or a value that is no time.
    """
    gate = gate or Gate()
    before = {name: _values(name, row, "base")[-gate.base :] for name, row in base.items()}
    after = {name: _values(name, row, "head")[-gate.head :] for name, row in head.items()}
    both = [name for name, values in after.items() if values and before.get(name)]
    if not both:
        raise TimingError(
            f"nothing to compare: {counted(len(before), 'row')} in the base, {len(after):,} in the head, none in both",
            "compare(base, head)",
            "compare runs of the same suite",
        )
    slower, faster, ratios, thin = [], [], [], 0
    for name in both:
        old, new = before[name], after[name]
        change = Change(name, median(old), median(new), len(old), len(new))
        needed = min(gate.above, len(new))
        if sum(gate.passed_by(change.base, seconds) for seconds in new) >= needed:
            slower.append(change)
        elif sum(gate.passed_by(seconds, change.base) for seconds in new) >= needed:
            faster.append(change)
        if change.base:
            ratios.append(change.ratio)
        thin += len(old) < gate.base or len(new) < gate.head
    return Comparison(
        gate,
        sorted(slower, key=lambda change: (-change.lost, change.name)),
        sorted(faster, key=lambda change: (change.lost, change.name)),
        len(both),
        thin,
        sorted(name for name, values in after.items() if values and not before.get(name)),
        sorted(name for name, values in before.items() if values and not after.get(name)),
        median(ratios) if ratios else 1.0,
    )


def windows(history: Rows, gate: Gate | None = None) -> tuple[Rows, Rows]:
    """Cut one history into base and head: of the values that each row has, the newest ``gate.head`` are its head.

    A row that none of the last ``gate.head`` runs has is removed; its old values are no news.
    """
    head = (gate or Gate()).head
    before, after = {}, {}
    for name, row in history.items():
        values = _values(name, row, "history")
        gone = all(seconds is None for seconds in row[-head:])
        before[name], after[name] = (values, []) if gone else (values[:-head], values[-head:])
    return before, after


def _values(name: str, row: Sequence[float | None], side: str) -> list[float]:
    values = [seconds for seconds in row if seconds is not None]
    wrong = [x for x in values if not (isinstance(x, (int, float)) and 0 <= x < math.inf)]
    if wrong:
        fix = "leave it out, or give a finite number of seconds from 0"
        raise TimingError(f"{name} took {wrong[0]!r}", f"the {side} of a comparison", fix)
    return values
