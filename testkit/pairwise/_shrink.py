"""Fewer rows at the same strength-2 coverage: drop a row, then move single values until every owed pair is back.

A tabu search in the manner of Torres-Jimenez and Walker-Colbourn (Tabu search for covering arrays using permutation
vectors, J. Stat. Plan. Inference 139, 2009), on bitsets: for each value the pairs that no row and that exactly one
row holds are integers, so a move's price is two ANDs and two bit counts. Where predicates tie axes together, a move
changes the other cells of their component to the nearest allowed combination. A search that no longer gets closer
begins again from the first array with other choices. The budget counts moves, never seconds.
"""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import Any

from testkit.pairwise._model import OPEN, Grown, Model, Row

STARTS = 4
"""A search gives way to another start after this part of the moves without coming closer."""

TENURE = 2
"""A cell stays as it was moved for this many steps, plus up to as many again."""


def shrink(model: Model, grown: Grown, moves: int, seed: int) -> Grown:
    """A smaller array that covers the same pairs and keeps the pinned cells; ``grown`` if ``moves`` do not find one.

    A move counts each cell whose change is looked at.
    """
    best, spent, start = grown, 0, 0
    while len(best.rows) > model.floor and spent < moves:
        search = _Search(model, grown, seed * STARTS + start, spent)
        while len(best.rows) > model.floor:
            if not search.drop():
                return best
            if not search.repair(moves, moves // STARTS):
                break
            if len(search.alive) < len(best.rows):
                best = search.result()
        spent, start = search.moves, start + 1
    return best


class _Search:
    """The rows as symbols (one number for each value of each axis) and the pairs they hold once or not at all."""

    def __init__(self, model: Model, grown: Grown, seed: int, moves: int = 0) -> None:
        self.space = model.space
        levels = self.space.levels
        self.first = [0, *accumulate(levels)][:-1]
        self.axis_of = [axis for axis, n in enumerate(levels) for _ in range(n)]
        self.random = Random(seed).random
        self.moves, self.steps = moves, 0
        self.pinned = [*grown.pinned, *[frozenset[int]()] * (len(grown.rows) - len(grown.pinned))]
        self.alive = list(range(len(grown.rows)))
        self.rows: list[Row] = [[OPEN] * len(levels) for _ in grown.rows]
        self.masks = [0] * len(grown.rows)
        self.holders = [0] * len(self.axis_of)
        self.missing = self._owed()
        self.once = [0] * len(self.axis_of)
        self.short = sum(pairs.bit_count() for pairs in self.missing) // 2
        self.live = sum(1 << symbol for symbol, pairs in enumerate(self.missing) if pairs)
        self.tabu: dict[tuple[int, int], int] = {}
        self._changes: dict[tuple[Any, ...], dict[int, int] | None] = {}
        for row, cells in enumerate(grown.rows):
            for axis, value in enumerate(cells):
                self._place(row, axis, self.first[axis] + value)

    def _owed(self) -> list[int]:
        """For each symbol the symbols that some allowed case holds beside it."""
        space = self.space
        owed = []
        for symbol, axis in enumerate(self.axis_of):
            states = space.states({axis: symbol - self.first[axis]})
            partners = 0
            if states is not None:
                for other in range(len(space.levels)):
                    for value in space.values(states, other) if other != axis else ():
                        partners |= 1 << (self.first[other] + value)
            owed.append(partners)
        return owed

    def result(self) -> Grown:
        rows = [[symbol - first for symbol, first in zip(self.rows[r], self.first, strict=True)] for r in self.alive]
        return Grown(rows, [self.pinned[r] for r in self.alive])

    # ---------------------------------------------------------------- single cells

    def _place(self, row: int, axis: int, symbol: int) -> None:
        """Put ``symbol`` into an open cell and count the pairs it makes there."""
        cells, bit, holders = self.rows[row], 1 << symbol, self.holders
        missing, once = self.missing, self.once
        own = holders[symbol]
        for other in cells:
            if other < 0:
                continue
            before = own & holders[other]
            if not before:
                there = 1 << other
                missing[symbol] &= ~there
                once[symbol] |= there
                missing[other] &= ~bit
                once[other] |= bit
                self.short -= 1
                if not missing[other]:
                    self.live &= ~there
            elif not before & (before - 1):
                once[symbol] &= ~(1 << other)
                once[other] &= ~bit
        if not missing[symbol]:
            self.live &= ~bit
        holders[symbol] = own | 1 << row
        cells[axis] = symbol
        self.masks[row] |= bit

    def _lift(self, row: int, axis: int) -> None:
        """Open a cell and uncount its pairs."""
        cells, holders = self.rows[row], self.holders
        missing, once = self.missing, self.once
        symbol = cells[axis]
        bit = 1 << symbol
        cells[axis] = OPEN
        self.masks[row] &= ~bit
        holders[symbol] &= ~(1 << row)
        own = holders[symbol]
        for other in cells:
            if other < 0:
                continue
            left = own & holders[other]
            there = 1 << other
            if not left:
                missing[symbol] |= there
                once[symbol] &= ~there
                missing[other] |= bit
                once[other] &= ~bit
                self.short += 1
                self.live |= there | bit
            elif not left & (left - 1):
                once[symbol] |= there
                once[other] |= bit

    # ---------------------------------------------------------------- the search

    def drop(self) -> bool:
        """Remove the row whose absence costs fewest pairs; False if all rows are pinned."""
        once, masks = self.once, self.masks
        prices = [
            (sum([(once[symbol] & masks[row]).bit_count() for symbol in self.rows[row]]), row)
            for row in self.alive
            if not self.pinned[row]
        ]
        if not prices:
            return False
        _, row = min(prices)
        self.alive.remove(row)
        for axis in range(len(self.first)):
            self._lift(row, axis)
        self.tabu.clear()
        return True

    def repair(self, limit: int, patience: int) -> bool:
        """Move cells until no owed pair is missing.

        False when ``limit`` moves are used up before, or ``patience`` moves since fewer pairs than ever were missing.
        """
        fewest, since = self.short, self.moves
        while self.short:
            if self.moves >= limit or self.moves - since > patience:
                return False
            self.steps += 1
            self.moves += 1
            move = self._best_move(*self._missing_pair(), fewest)
            if move is not None:
                row, axis, changes = move
                for changed in changes:
                    self._lift(row, changed)
                for changed, symbol in changes.items():
                    self._place(row, changed, symbol)
                self.tabu[row, axis] = self.steps + TENURE + int(self.random() * TENURE)
                if self.short < fewest:
                    fewest, since = self.short, self.moves
        return True

    def _missing_pair(self) -> tuple[int, int]:
        start = int(self.random() * len(self.axis_of))
        later = self.live >> start << start
        mask = later or self.live
        one = (mask & -mask).bit_length() - 1
        pairs = self.missing[one]
        for _ in range(int(self.random() * pairs.bit_count())):
            pairs &= pairs - 1
        return one, (pairs & -pairs).bit_length() - 1

    def _best_move(self, one: int, other: int, fewest: int) -> tuple[int, int, dict[int, int]] | None:
        """The cheapest move that brings the pair into a row which holds half of it; None if all are tabu."""
        best: tuple[int, int, dict[int, int]] | None = None
        lowest, ties = 0, 0
        masks, once, tabu, steps = self.masks, self.once, self.tabu, self.steps
        for held, symbol in ((one, other), (other, one)):
            axis = self.axis_of[symbol]
            tied = self.space.component_of[axis] is not None
            wanted = self.missing[symbol]
            holders = self.holders[held]
            while holders:
                low = holders & -holders
                holders ^= low
                row = low.bit_length() - 1
                if axis in self.pinned[row]:
                    continue
                if tied:
                    changes = self._tied_changes(row, axis, symbol, held)
                    self.moves += len(changes) if changes else 1
                    if changes is None:
                        continue
                    price = self._price(row, changes)
                else:
                    self.moves += 1
                    changes = {axis: symbol}
                    mask = masks[row]
                    price = (once[self.rows[row][axis]] & mask).bit_count() - (wanted & mask).bit_count()
                if tabu.get((row, axis), -1) >= steps and self.short + price >= fewest:
                    continue
                if best is None or price < lowest:
                    best, lowest, ties = (row, axis, changes), price, 1
                elif price == lowest:
                    ties += 1
                    if self.random() * ties < 1:
                        best = (row, axis, changes)
        return best

    def _price(self, row: int, changes: dict[int, int]) -> int:
        """Pairs lost minus missing pairs gained if these cells of the row change together."""
        cells, mask, once, missing = self.rows[row], self.masks[row], self.once, self.missing
        price = 0
        for axis in changes:
            symbol = cells[axis]
            price += (once[symbol] & mask).bit_count()
            mask ^= 1 << symbol
        for symbol in changes.values():
            price -= (missing[symbol] & mask).bit_count()
            mask |= 1 << symbol
        return price

    def _tied_changes(self, row: int, axis: int, symbol: int, held: int) -> dict[int, int] | None:
        """Cells of the axis's component to change so that the row stays allowed with ``symbol`` beside ``held``.

        None if no change does.
        """
        number = self.space.component_of[axis]
        assert number is not None, "asked only of tied axes"
        component = self.space.components[number]
        cells = self.rows[row]
        fixed = self.pinned[row]
        partner = self.axis_of[held]
        key = (number, tuple([cells[a] for a in component.axes]), symbol, held, fixed)
        if key not in self._changes:
            state = component.narrow(component.start, axis, symbol - self.first[axis])
            for other in component.axes:
                if state and (other == partner or other in fixed):
                    state = component.narrow(state, other, cells[other] - self.first[other])
            wanted = {a: cells[a] - self.first[a] for a in component.axes}
            nearest = component.nearest(state, wanted).items() if state else ()
            self._changes[key] = {a: self.first[a] + value for a, value in nearest if value != wanted[a]} or None
        return self._changes[key]
