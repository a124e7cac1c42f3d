"""In-parameter-order growth (IPO) of covering arrays of any strength, with constraints, crossed and kept cases.

Lei and Tai, In-parameter-order: a test generation strategy for pairwise testing (HASE 1998), generalised to any
strength as IPOG (Lei et al., ECBS 2007). The tuples of one row are held as integers used as bitsets: for strength
t and a new axis, a row's *context* is the set of (t-1)-tuples of its earlier axes, numbered without gaps, so that
the tuples that a value would newly cover are one AND and one bit count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from random import Random
from typing import Any, Literal

from testkit.pairwise._model import OPEN, Grown, Model, Row

Ties = Literal["chance", "least used", "first"]
"""Which of the values that cover most is taken: the least used and then by chance, so that no two axes run in step
and more of the tuples that nobody owes are held too; the least used; or the first. Each is smallest on some models."""


def grow(model: Model, order: Sequence[int], prefer: Sequence[Sequence[int]], ties: Ties, seed: int = 0) -> Grown:
    """An array for ``model``: axes added in ``order``, values of axis ``a`` tried in the order ``prefer[a]``.

    ``order`` begins with the crossed axes. Cells that no owed tuple needs are filled by chance, from ``seed``.
    """
    growth = _Growth(model, order, prefer, ties, seed)
    pinned = growth.begin()
    for position in range(growth.base, len(order)):
        growth.extend(position)
    growth.fill()
    return Grown(growth.cells, pinned)


class _Growth:
    def __init__(
        self, model: Model, order: Sequence[int], prefer: Sequence[Sequence[int]], ties: Ties, seed: int
    ) -> None:
        self.model = model
        self.space = model.space
        self.order = order
        self.prefer = prefer
        self.ties = ties
        self.random = Random(seed).random
        self.depth = model.strength - 1
        self.base = max(len(model.crossed), model.strength)
        self.cells: list[Row] = []
        self.states: list[list[Any]] = []
        self.contexts: list[list[int]] = [[] for _ in range(self.depth + 1)]
        self.sizes = self._sizes()
        self._known: dict[tuple[object, ...], int] = {}

    def _sizes(self) -> list[list[int]]:
        """``sizes[d][p]``: how many d-tuples the first p axes have; also where those of axis p begin."""
        levels = [self.space.levels[axis] for axis in self.order]
        sizes = [[1] * (len(levels) + 1)]
        for _ in range(self.depth):
            row = [0]
            for position, n in enumerate(levels):
                row.append(row[-1] + n * sizes[-1][position])
            sizes.append(row)
        return sizes

    # ---------------------------------------------------------------- rows to begin with

    def begin(self) -> list[frozenset[int]]:
        """Kept cases, then every allowed combination of the base axes that they do not hold."""
        model = self.model
        crossed = frozenset(model.crossed if model.wide else ())
        if not model.kept and not self.space.components:
            return [crossed] * self._begin_with_product()
        for kept in model.kept:
            self._add(kept.items(), self.space.states(kept) or [])
        pinned = [frozenset(kept) for kept in model.kept]
        base = self.order[: self.base]
        for values, states in self._combinations(0, list(self.space.start)):
            row = self._home(dict(zip(base, values, strict=True)), range(len(model.kept)))
            if row is None:
                self._add(zip(base, values, strict=True), states)
                pinned.append(crossed)
            else:
                pinned[row] |= crossed
        return pinned

    def _begin_with_product(self) -> int:
        """The product of the base axes, where nothing is kept or forbidden; the number of rows."""
        base = self.order[: self.base]
        for values in product(*[self.prefer[axis] for axis in base]):
            cells = [OPEN] * len(self.order)
            for axis, value in zip(base, values, strict=True):
                cells[axis] = value
            self.cells.append(cells)
        rows = len(self.cells)
        self.states = [[]] * rows
        self.contexts = [[0] * rows for _ in range(self.depth + 1)]
        if self.depth == 1:  # pairs, the common case: their contexts are a product too
            begins = self.sizes[1]
            singles = [[1 << begins[p] + value for value in self.prefer[axis]] for p, axis in enumerate(base)]
            self.contexts[1] = [sum(bits) for bits in product(*singles)]
        return rows

    def _combinations(self, position: int, states: list[Any]) -> Iterator[tuple[tuple[int, ...], list[Any]]]:
        """Allowed values of the base axes from ``position`` on, with the states that they leave."""
        if position == self.base:
            yield (), states
            return
        axis = self.order[position]
        number = self.space.component_of[axis]
        allowed = set(self.space.values(states, axis))
        for value in self.prefer[axis]:
            if value in allowed:
                inner = states
                if number is not None:
                    inner = states.copy()
                    inner[number] = self.space.components[number].narrow(states[number], axis, value)
                for rest, reached in self._combinations(position + 1, inner):
                    yield (value, *rest), reached

    def _add(self, wanted: Iterable[tuple[int, int]], states: list[Any]) -> int:
        cells = [OPEN] * len(self.order)
        for axis, value in wanted:
            cells[axis] = value
        self.cells.append(cells)
        self.states.append(states)
        for tuples in self.contexts:
            tuples.append(0)
        return len(self.cells) - 1

    def _home(self, wanted: dict[int, int], rows: Sequence[int]) -> int | None:
        """The first of ``rows`` that takes the partial case ``wanted``, which is put into it."""
        for row in rows:
            cells = self.cells[row]
            for axis, value in wanted.items():
                if cells[axis] != value and cells[axis] != OPEN:
                    break
            else:
                states = self._fits(row, wanted)
                if states is not None:
                    self._put(row, wanted, states)
                    return row
        return None

    def _fits(self, row: int, wanted: dict[int, int]) -> list[Any] | None:
        """The row's states with ``wanted`` added; None if no allowed case holds both."""
        states = self.states[row]
        if not self.space.components:
            return states
        states = states.copy()
        for axis, value in wanted.items():
            number = self.space.component_of[axis]
            if number is not None:
                states[number] = self.space.components[number].narrow(states[number], axis, value)
                if not states[number]:
                    return None
        return states

    def _put(self, row: int, wanted: dict[int, int], states: list[Any]) -> None:
        cells = self.cells[row]
        for axis, value in wanted.items():
            cells[axis] = value
        self.states[row] = states
        for tuples in self.contexts:
            tuples[row] = 0

    def _context(self, row: int, position: int) -> int:
        """The row's (t-1)-tuples among the first ``position`` axes, made when asked for after a change."""
        cells, sizes, contexts = self.cells[row], self.sizes, self.contexts
        if not contexts[-1][row]:
            contexts[0][row] = 1
            for earlier, axis in enumerate(self.order[:position]):
                value = cells[axis]
                if value != OPEN:
                    for d in range(self.depth, 0, -1):
                        contexts[d][row] |= contexts[d - 1][row] << sizes[d][earlier] + value * sizes[d - 1][earlier]
        return contexts[-1][row]

    # ---------------------------------------------------------------- one axis more

    def extend(self, position: int) -> None:
        """Give the axis at ``position`` a value in each row (horizontal growth), then add rows (vertical)."""
        missing = self._owed(position)
        self._horizontal(position, missing)
        self._vertical(position, missing)

    def _owed(self, position: int) -> list[int]:
        """For each level of the new axis the contexts that are owed with it."""
        axis = self.order[position]
        if not self.space.components:
            return [(1 << self.sizes[self.depth][position]) - 1] * self.space.levels[axis]
        allowed = set(self.space.values(self.space.start, axis))
        owed = []
        for value in range(self.space.levels[axis]):
            states = self.space.states({axis: value}) if value in allowed else None
            owed.append(0 if states is None else self._allowed_contexts(tuple(states), self.depth, position))
        return owed

    def _allowed_contexts(self, states: tuple[Any, ...], depth: int, position: int) -> int:
        """The ``depth``-tuples of the first ``position`` axes that some allowed case beside ``states`` holds."""
        if depth == 0:
            return 1
        key = (depth, position, states)
        known = self._known.get(key)
        if known is not None:
            return known
        found = 0
        for earlier in range(position):
            axis = self.order[earlier]
            number = self.space.component_of[axis]
            begin, below = self.sizes[depth][earlier], self.sizes[depth - 1][earlier]
            for value in self.space.values(states, axis):
                inner = states
                if number is not None and depth > 1:
                    narrowed = self.space.components[number].narrow(states[number], axis, value)
                    inner = (*states[:number], narrowed, *states[number + 1 :])
                found |= self._allowed_contexts(inner, depth - 1, earlier) << (begin + value * below)
        self._known[key] = found
        return found

    def _horizontal(self, position: int, missing: list[int]) -> None:
        axis, depth = self.order[position], self.depth
        free = self.space.component_of[axis] is None
        allowed: Sequence[int] = self.prefer[axis]
        # Least used first: how often a value was taken, and with chance a fraction, drawn anew each time, for ties.
        balanced, chance = self.ties != "first", self.random if self.ties == "chance" else None
        used = [chance() if chance else 0.0 for _ in allowed]
        weight = len(self.cells) + 2.0 if balanced else 1.0
        kept = len(self.model.kept)
        contexts, begins = self.contexts, [sizes[position] for sizes in self.sizes]
        contexts_of_depth = contexts[depth]
        for row, cells in enumerate(self.cells):
            tuples = contexts_of_depth[row] or self._context(row, position)
            best = cells[axis]
            if best == OPEN:
                highest = 0.0
                if not free:
                    allowed = self._preferred(row, axis)
                for value in allowed:
                    score = (missing[value] & tuples).bit_count() * weight - used[value]
                    if score > highest:
                        highest, best = score, value
                if best == OPEN:
                    continue
                cells[axis] = best
                if not free:
                    self.states[row] = self._fits(row, {axis: best}) or []
            if balanced:
                used[best] = used[best] // 1.0 + 1.0 + (chance() if chance else 0.0)
            missing[best] &= ~tuples
            if depth == 1:  # pairs, the common case, without the loop
                contexts_of_depth[row] = tuples | 1 << begins[1] + best
            else:
                for d in range(depth, 0, -1):
                    contexts[d][row] |= contexts[d - 1][row] << begins[d] + best * begins[d - 1]
            if not missing[best] and row >= kept:
                if not any(missing):
                    break
                allowed = [value for value in allowed if missing[value]]

    def _preferred(self, row: int, axis: int) -> list[int]:
        allowed = set(self.space.values(self.states[row], axis))
        return [value for value in self.prefer[axis] if value in allowed]

    def _vertical(self, position: int, missing: list[int]) -> None:
        """Put each tuple still missing into a row with open cells that takes it, or into a new row."""
        axis = self.order[position]
        seen = self.order[: position + 1]
        for value in self.prefer[axis]:
            left = missing[value]
            if not left:
                continue
            rows = [
                row
                for row, cells in enumerate(self.cells)
                if cells[axis] in (value, OPEN) and any(cells[a] == OPEN for a in seen)
            ]
            while left:
                wanted = self._decode((left & -left).bit_length() - 1, position)
                wanted[axis] = value
                row = self._home(wanted, rows)
                if row is None:
                    row = self._add(wanted.items(), self.space.states(wanted) or [])
                    rows.append(row)
                left &= ~self._context(row, position + 1)

    def _decode(self, number: int, position: int) -> dict[int, int]:
        """The (t-1)-tuple with that number, as axis -> level."""
        wanted = {}
        for d in range(self.depth, 0, -1):
            position -= 1
            while self.sizes[d][position] > number:
                position -= 1
            below = self.sizes[d - 1][position]
            value, number = divmod(number - self.sizes[d][position], below)
            wanted[self.order[position]] = value
        return wanted

    def fill(self) -> None:
        """Give every open cell an allowed value, by chance."""
        for axis in self.order:
            free = self.space.component_of[axis] is None
            allowed: Sequence[int] = self.prefer[axis]
            for row, cells in enumerate(self.cells):
                if cells[axis] == OPEN:
                    if not free:
                        allowed = self._preferred(row, axis)
                    value = cells[axis] = allowed[int(self.random() * len(allowed))]
                    if not free:
                        self.states[row] = self._fits(row, {axis: value}) or []
