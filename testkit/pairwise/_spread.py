"""What nobody owes, spread over runs: as many rows, all owed tuples, and tuples one axis wider that recent runs lacked.

An array of strength t must hold some (t+1)-tuples and may choose which; in a small array that choice is about half of
what a fault of t+1 axes needs to be seen. By chance alone two runs choose alike as often as not. So single values are
changed, or exchanged between two rows, wherever no owed tuple is lost and the wider tuples held are worth more: each
is worth the less, the more recent runs held it. The budget counts moves, never seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import comb, prod
from random import Random

from testkit.pairwise._model import Model, Row

Run = Iterable[Sequence[int]]
"""The cases that ran, as a level for each axis."""

MOVES_PER_CELL = 10

MOST_MOVES = 8_000

MOST_LOOKS = 150_000
"""At most this many moves times the wider tuples that a changed value is part of: 0.1 to 0.2 s."""

MOST_TUPLES = 1_000_000
"""With more wider tuples than this, or MOST_GROUPS groups of axes that hold them, rows are left as they are."""

MOST_GROUPS = 500

WORTH = (256, 64, 16, 4, 1)
"""Of a wider tuple, by how many of the recent runs held it; the last also for more."""


class _Tuples:
    """Tuples of some groups of axes as numbers without gaps, and how many rows hold each."""

    def __init__(self, levels: Sequence[int], groups: Iterable[tuple[int, ...]]) -> None:
        self.by_axis: list[list[tuple[int, list[tuple[int, int]], int]]] = [[] for _ in levels]
        self.groups: list[tuple[int, list[tuple[int, int]]]] = []
        begin = 0
        for group in groups:
            strides = [prod(levels[a] for a in group[place + 1 :]) for place in range(len(group))]
            terms = list(zip(group, strides, strict=True))
            self.groups.append((begin, terms))
            for axis, stride in terms:
                self.by_axis[axis].append((begin, terms, stride))
            begin += prod(levels[a] for a in group)
        self.held = [0] * begin

    def of(self, row: Sequence[int]) -> list[int]:
        """The numbers of all tuples of a row."""
        return [begin + sum([row[a] * stride for a, stride in terms]) for begin, terms in self.groups]

    def change(self, row: Row, axis: int, value: int) -> tuple[list[int], list[int]]:
        """The row's tuples that go and that come if its value of ``axis`` becomes ``value``."""
        step = value - row[axis]
        old = [begin + sum([row[a] * stride for a, stride in terms]) for begin, terms, _ in self.by_axis[axis]]
        new = [key + step * stride for key, (_, _, stride) in zip(old, self.by_axis[axis], strict=True)]
        return old, new


def spread(model: Model, rows: Sequence[Row], seen: Sequence[Run], seed: int) -> list[Row]:
    """As many rows as given, that hold the same owed tuples and kept cases, and more wider tuples seldom ``seen``.

    ``seen``: the recent runs. The rows as given where there are no wider tuples, or too many of them.
    """
    axes, wider = len(model.levels), model.strength + 1
    if wider > axes or comb(axes, wider) > MOST_GROUPS:
        return list(rows)
    groups = list(combinations(range(axes), wider))
    if sum(prod([model.levels[a] for a in group]) for group in groups) > MOST_TUPLES:
        return list(rows)
    search = _Spread(model, rows, _Tuples(model.levels, groups), seen, seed)
    moves = min(MOVES_PER_CELL * len(rows) * axes, MOST_MOVES, MOST_LOOKS // comb(axes - 1, wider - 1))
    for _ in range(moves):
        search.move()
    return search.rows


class _Spread:
    def __init__(self, model: Model, rows: Sequence[Row], wider: _Tuples, seen: Sequence[Run], seed: int) -> None:
        self.space = model.space
        self.levels = model.levels
        self.largest = max(range(len(model.levels)), key=model.levels.__getitem__)
        self.random = Random(seed).random
        self.rows = [list(row) for row in rows]
        self.pinned = _pinned(model, rows)
        self.owed = _Tuples(model.levels, model.groups())
        self.wider = wider
        times = [0] * len(wider.held)
        for run in seen:
            for key in {key for case in run for key in wider.of(case)}:
                times[key] += 1
        self.worth = [WORTH[min(number, len(WORTH) - 1)] for number in times]
        for row in self.rows:
            for tuples in (self.owed, wider):
                for key in tuples.of(row):
                    tuples.held[key] += 1

    def move(self) -> None:
        """Try to exchange a value with another row, or to change it.

        Every other exchange is with a row that has the same value on the largest axis. In a small array such an axis
        has few rows for each value, and what they hold of the others can only be exchanged among them.
        """
        rows, random = self.rows, self.random
        one, axis = int(random() * len(rows)), int(random() * len(self.levels))
        near, place = self.largest, rows[one][self.largest]
        if axis != near and random() < 0.5:
            alike = [row for row, cells in enumerate(rows) if cells[near] == place]
            other = alike[int(random() * len(alike))]
        else:
            other = int(random() * (len(rows) + 1))
        if other < len(rows):
            value = rows[other][axis]
            places = [(one, value), (other, rows[one][axis])]
        else:
            value = int(random() * self.levels[axis])
            places = [(one, value)]
        if value != rows[one][axis] and not any(axis in self.pinned[row] for row, _ in places):
            self._try(axis, places)

    def _try(self, axis: int, places: Sequence[tuple[int, int]]) -> None:
        """Put these values on ``axis`` if no owed tuple is lost and the wider ones held are not worth less."""
        rows = self.rows
        if self.space.component_of[axis] is not None:
            for row, value in places:
                if not self.space.allows([*rows[row][:axis], value, *rows[row][axis + 1 :]]):
                    return
        owed, held = self._changes(self.owed, axis, places), self.owed.held
        if any(number < 0 and held[key] + number <= 0 for key, number in owed.items()):
            return
        wider, held = self._changes(self.wider, axis, places), self.wider.held
        worth = self.worth
        gain = sum([worth[key] * ((held[key] + number > 0) - (held[key] > 0)) for key, number in wider.items()])
        if gain < 0:
            return
        for tuples, changes in ((self.owed, owed), (self.wider, wider)):
            for key, number in changes.items():
                tuples.held[key] += number
        for row, value in places:
            rows[row][axis] = value

    def _changes(self, tuples: _Tuples, axis: int, places: Iterable[tuple[int, int]]) -> dict[int, int]:
        """How many rows more or fewer would hold each tuple."""
        changes: dict[int, int] = {}
        for row, value in places:
            old, new = tuples.change(self.rows[row], axis, value)
            for key in old:
                changes[key] = changes.get(key, 0) - 1
            for key in new:
                changes[key] = changes.get(key, 0) + 1
        return changes


def _pinned(model: Model, rows: Sequence[Row]) -> list[set[int]]:
    """For each row the axes on which it holds a kept case, of which the first row that holds it counts."""
    pinned: list[set[int]] = [set() for _ in rows]
    for kept in model.kept:
        for row, axes in zip(rows, pinned, strict=True):
            if all(row[axis] == level for axis, level in kept.items()):
                axes.update(kept)
                break
    return pinned
