"""Cheaper cases with the same tuples held: a search that starts from rows which cover and never stops covering.

Threshold accepting (G. Dueck and T. Scheuer, Journal of Computational Physics 90, 1990): a move is taken if it costs
less than a falling threshold. Unlike annealing it asks for no exponential, whose last bit differs between platforms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import fsum, prod
from random import Random

from testkit.pairwise._costs import CaseCosts
from testkit.pairwise._model import Model, Row
from testkit.pairwise._proof import prove
from testkit.pairwise._space import Rule, Space, TableComponent

MOST_MOVES = 60_000
"""At most this many moves a function, about 0.5 s with 7 axes."""

MOST_LOOKS = 600_000
"""Moves times the groups that an axis stands in, as a move looks at a tuple of each."""

MOVES_PER_CELL = 400

MOVES_PER_SECOND = 100_000
"""So many moves for each second that the rows are expected to take: a search must not cost more than it can save."""

MOST_TUPLES = 2_000_000
"""Rows that hold more tuples together, each row's counted for itself, are left as they are (memory)."""

THRESHOLD = 0.3
"""What a move may cost at first, as a share of the mean seconds of a row; it falls to 0."""

SWAPS = 0.3
"""Share of moves that exchange the values of two rows; the others give one cell another value."""

MOST_KEYS = 256
"""With more kernel keys (each is asked about once, about 1 ms) none is forbidden."""

Factors = list[tuple[int, int]]


def cheapest(
    model: Model,
    costs: CaseCosts,
    choose: Callable[[Model], list[Row]],
    *,
    fixed: Sequence[Mapping[int, int]] = (),
    seed: int = 0,
) -> list[Row]:
    """Rows that ``choose`` makes for ``model``, made cheaper by a search, and proved; never more of them.

    Tried from two beginnings: the model as it is, and with as few kernels as it takes.
    """
    rows = choose(model)
    found = cheaper(model, rows, costs, fixed=fixed, seed=seed)
    lean = fewer_kernels(model, costs, fixed)
    if lean is not None:
        other = cheaper(lean, choose(lean), costs, fixed=fixed, seed=seed)
        if len(other) <= len(rows):
            found = min(found, other, key=costs.expected_seconds)
    prove(model, found)
    return found


def cheaper(
    model: Model, rows: Sequence[Row], costs: CaseCosts, *, fixed: Iterable[Mapping[int, int]] = (), seed: int = 0
) -> list[Row]:
    """Rows that hold every tuple that ``rows`` hold, expected to take no longer, and never more of them.

    ``rows`` are complete and allowed. Cells of the model's kept cases and of the ``fixed`` ones (axis -> level) stay
    in one row each that holds them. The same arguments give the same rows on every platform. Where no duration is
    known, or the rows are too many to count their tuples, they are returned as they are.
    """
    rows = [list(row) for row in rows]
    if not costs.known or len(rows) * sum(1 for _ in model.groups()) > MOST_TUPLES:
        return rows
    search = _Search(model, rows, costs, [*model.kept, *fixed])
    search.drop_spare_rows()
    search.run(search.moves(), seed)
    search.drop_spare_rows()
    return min(search.rows, rows, key=costs.expected_seconds)


def fewer_kernels(model: Model, costs: CaseCosts, fixed: Iterable[Mapping[int, int]] = ()) -> Model | None:
    """``model`` with the dearest kernel keys forbidden of those that no owed tuple and no given case needs.

    What is owed stays the same. A search by single cells does not find this: a key costs nothing less until its last
    case has gone. None if no key can go, there are more than MOST_KEYS of them, or the allowed combinations of their
    axes are too many to be listed.
    """
    axes, levels = costs.key_axes, model.levels
    if not axes or prod([levels[axis] for axis in axes]) > MOST_KEYS:
        return None
    cases = [case for case in (*model.kept, *fixed) if model.space.states(case) is not None]
    allowed = set(product(*[range(levels[axis]) for axis in axes]))
    best: Model | None = None
    for key in sorted(allowed, key=lambda key: (-costs.compiling(key), key)):
        table = frozenset(allowed - {key})
        rule = Rule("kernels", axes, table.__contains__, table)
        tried = replace(model, space=Space(levels, (*model.space.rules, rule)))
        if not all(isinstance(component, TableComponent) for component in tried.space.components):
            return best  # a search may give up, and durations must not make an error of a model that works
        if (
            tried.space.satisfiable
            and tried.owed_counts == model.owed_counts
            and all(tried.space.states(case) is not None for case in cases)
        ):
            allowed.remove(key)
            best = tried
    return best


class _Search:
    def __init__(self, model: Model, rows: list[Row], costs: CaseCosts, fixed: Iterable[Mapping[int, int]]) -> None:
        self.model = model
        self.costs = costs
        self.rows = [list(row) for row in rows]
        self.pinned = _pins(self.rows, fixed)
        self._groups: list[tuple[int, Factors]] = []
        self._of_axis: list[list[tuple[int, int, Factors]]] = [[] for _ in model.levels]
        self._number_groups()
        self._held: Counter[int] = Counter()
        for row in self.rows:
            self._held.update(self._tuples(row))
        self._keys = Counter(costs.key(row) for row in self.rows)

    def _number_groups(self) -> None:
        """Each owed tuple is a number: where its group begins, and its levels as digits."""
        begin = 0
        for group in self.model.groups():
            factors, size = [], 1
            for axis in group:
                factors.append((axis, size))
                size *= self.model.levels[axis]
            self._groups.append((begin, factors))
            for axis, factor in factors:
                self._of_axis[axis].append((begin, factor, [other for other in factors if other[0] != axis]))
            begin += size

    def _tuples(self, row: Row) -> list[int]:
        return [begin + sum([row[axis] * factor for axis, factor in factors]) for begin, factors in self._groups]

    def drop_spare_rows(self) -> None:
        """Leave out rows that hold nothing alone, the dearest first; a row with pinned cells stays."""
        gone: set[int] = set()
        for number in sorted(range(len(self.rows)), key=lambda n: (-self.costs.run(self.rows[n]), n)):
            tuples = self._tuples(self.rows[number])
            if not self.pinned[number] and all(self._held[one] > 1 for one in tuples):
                gone.add(number)
                self._held.subtract(tuples)
                self._keys[self.costs.key(self.rows[number])] -= 1
        self.rows = [row for number, row in enumerate(self.rows) if number not in gone]
        self.pinned = [pins for number, pins in enumerate(self.pinned) if number not in gone]

    def moves(self) -> int:
        """How many are worth trying: a number that the arguments alone decide."""
        cells = len(self.rows) * len(self.model.levels) - sum(map(len, self.pinned))
        seconds = self.costs.expected_seconds(self.rows)
        looks = max(1, max(map(len, self._of_axis)))
        return min(MOST_MOVES, MOST_LOOKS // looks, MOVES_PER_CELL * cells, int(MOVES_PER_SECOND * seconds))

    def run(self, moves: int, seed: int) -> None:
        """Try so many moves; keep the cheapest rows that were seen."""
        chance = Random(seed).random
        axes = [axis for axis, n in enumerate(self.model.levels) if n > 1]
        if not moves or not axes:
            return
        first = THRESHOLD * self.costs.expected_seconds(self.rows) / len(self.rows)
        total = lowest = 0.0
        best = [list(row) for row in self.rows]
        for move in range(moves):
            axis = axes[int(chance() * len(axes))]
            row = int(chance() * len(self.rows))
            if axis in self.pinned[row]:
                continue
            threshold = first * (moves - move) / moves
            try_ = self._swap if chance() < SWAPS else self._change
            total += try_(row, axis, threshold, chance)
            if total < lowest:
                lowest, best = total, [list(row) for row in self.rows]
        self._settle(best)

    def _settle(self, best: list[Row]) -> None:
        self.rows = best
        self._held = Counter()
        for row in best:
            self._held.update(self._tuples(row))
        self._keys = Counter(self.costs.key(row) for row in best)

    # ---------------------------------------------------------------- moves: the seconds added, 0.0 if not made

    def _change(self, number: int, axis: int, threshold: float, chance: Callable[[], float]) -> float:
        """Another value in one cell, if all that the row held with the old one is held elsewhere."""
        row = self.rows[number]
        old = row[axis]
        new = int(chance() * (self.model.levels[axis] - 1))
        new += new >= old
        begins = [(begin + sum([row[a] * f for a, f in rest]), factor) for begin, factor, rest in self._of_axis[axis]]
        held = self._held
        if any(held[begin + old * factor] < 2 for begin, factor in begins):
            return 0.0
        added = self._exchange([(row, new)], axis, threshold)
        if added is None:
            return 0.0
        for begin, factor in begins:
            held[begin + old * factor] -= 1
            held[begin + new * factor] += 1
        return added

    def _swap(self, number: int, axis: int, threshold: float, chance: Callable[[], float]) -> float:
        """Two rows exchange their values of one axis, if each tuple is still held afterwards."""
        other = int(chance() * len(self.rows))
        row, beside = self.rows[number], self.rows[other]
        old, new = row[axis], beside[axis]
        if old == new or axis in self.pinned[other]:
            return 0.0
        lost, won = [], []
        for begin, factor, rest in self._of_axis[axis]:
            here = begin + sum([row[a] * f for a, f in rest])
            there = begin + sum([beside[a] * f for a, f in rest])
            if here != there:
                lost += [here + old * factor, there + new * factor]
                won += [here + new * factor, there + old * factor]
        held = self._held
        if any(held[one] < 2 for one in lost):
            return 0.0
        added = self._exchange([(row, new), (beside, old)], axis, threshold)
        if added is None:
            return 0.0
        held.update(won)
        held.subtract(lost)
        return added

    def _exchange(self, cells: Sequence[tuple[Row, int]], axis: int, threshold: float) -> float | None:
        """Put the values in, and say what that adds; None, with nothing done, if it adds too much or is not allowed."""
        costs = self.costs
        before = fsum([costs.run(row) for row, _ in cells])
        old = [row[axis] for row, _ in cells]
        left = [costs.key(row) for row, _ in cells]
        for row, new in cells:
            row[axis] = new
        added = fsum([costs.run(row) for row, _ in cells]) - before
        if axis in costs.key_axes:
            added += self._rekeyed(left, [costs.key(row) for row, _ in cells])
        if added < threshold and (not self.model.space.rules or all(self.model.space.allows(row) for row, _ in cells)):
            return added
        if axis in costs.key_axes:
            self._rekeyed([costs.key(row) for row, _ in cells], left)
        for (row, _), value in zip(cells, old, strict=True):
            row[axis] = value
        return None

    def _rekeyed(self, left: Sequence[tuple[int, ...]], entered: Sequence[tuple[int, ...]]) -> float:
        """Count rows under other keys; the seconds of compilation that this adds."""
        added = 0.0
        for key in entered:
            added += 0.0 if self._keys[key] else self.costs.compiling(key)
            self._keys[key] += 1
        for key in left:
            self._keys[key] -= 1
            added -= 0.0 if self._keys[key] else self.costs.compiling(key)
        return added


def _pins(rows: Sequence[Row], fixed: Iterable[Mapping[int, int]]) -> list[frozenset[int]]:
    """For each row the axes whose cells stay: of each case the first row that holds it."""
    pinned = [frozenset[int]()] * len(rows)
    for case in fixed:
        for number, row in enumerate(rows):
            if all(row[axis] == level for axis, level in case.items()):
                pinned[number] |= frozenset(case)
                break
    return pinned
