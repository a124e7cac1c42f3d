"""The next case to run so that the values behind a failure are found soonest: adaptive group testing.

Hypotheses are the combinations of a failing case's values; one that a passing case holds is refuted, one that not every
failing case holds is unlikely. The next case keeps some values of the failing one and changes the others to values that
passed beside them, so that by the weight of the hypotheses it fails about as likely as not (one bit a case, as in a
bisection). When nothing is left to split, the first case in product order that holds the likeliest one confirms it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import combinations, islice
from operator import or_
from random import Random
from typing import Any

from testkit.pairwise._model import Model, Row
from testkit.pairwise._suspects import group_sizes

SHARE_OF_SIZE = (0.15, 0.4, 0.4, 0.05)
"""How likely a fault needs 1, 2, 3 or 4 values: most need few (D. Kuhn, D. Wallace, A. Gallo, Software fault
interactions and implications for software testing, IEEE Transactions on Software Engineering 30, 2004)."""

ANOTHER_FAULT = 1 / 20
"""How likely a failing case that does not hold the combination fails for another reason."""

CERTAIN = 0.02
"""A case whose outcome is as sure as this tells nothing."""

COMPARED = 40
"""So many failing cases are compared with the one whose values are looked for."""

AIMED_AT = 20
"""So many hypotheses are told apart from the likeliest one by aim, where the search leaves them together."""

RESTARTS = 6
TRIED = 16


def next_case(model: Model, passed: Sequence[Row], failed: Sequence[Row], tried: Sequence[Row] = ()) -> Row | None:
    """The case to run next, or None when there is none that would tell more.

    ``passed`` and ``failed`` are complete allowed cases that ran, ``tried`` others that are not to be chosen again
    (skipped ones). Only values that a case in ``passed`` or ``failed`` holds are used. The same arguments give the same
    case in every process.
    """
    if not passed:
        return None
    left = [row for row in failed if model.space.allows(row)]
    search = _Search(model, passed, failed, tried)
    while left:
        hypotheses = _Hypotheses(left[0], passed, left[:COMPARED])
        found = search.splitting(hypotheses) or search.confirming(hypotheses)
        if found:
            return found
        likeliest = hypotheses.likeliest()
        left = [row for row in left[1:] if not likeliest or any(row[axis] != left[0][axis] for axis in likeliest)]
    return None


class _Hypotheses:
    """What may be behind the failure of the case ``target``: groups of its axes, as bitsets over all groups."""

    def __init__(self, target: Row, passed: Iterable[Row], failed: Iterable[Row]) -> None:
        self.target = target
        self.groups, self.of_axis, self.of_size = _groups(len(target))
        alive = (1 << len(self.groups)) - 1
        for row in passed:
            alive &= self._broken_by(self._differing(row))
        self.weights = list(self._weighted(alive, failed))
        self.total = sum(weight * bits.bit_count() for weight, bits in self.weights)

    def _differing(self, row: Row) -> list[int]:
        return [axis for axis, (one, other) in enumerate(zip(row, self.target, strict=True)) if one != other]

    def _broken_by(self, axes: Iterable[int]) -> int:
        """The groups that a case does not hold if it differs on these axes."""
        return reduce(or_, [self.of_axis[axis] for axis in axes], 0)

    def _weighted(self, alive: int, failed: Iterable[Row]) -> Iterator[tuple[float, int]]:
        """Groups of the same weight together: by size, and by how many failing cases hold them."""
        at_least = [alive]
        for row in failed:
            held = alive & ~self._broken_by(self._differing(row))
            at_least.append(0)
            for times in range(len(at_least) - 1, 0, -1):
                at_least[times] |= at_least[times - 1] & held
        while not at_least[-1] and len(at_least) > 1:
            at_least.pop()
        most = len(at_least) - 1
        for times, bits in enumerate(at_least):
            exactly = bits & ~(at_least[times + 1] if times < most else 0)
            for size, of_size in enumerate(self.of_size):
                if exactly & of_size:
                    share = SHARE_OF_SIZE[size] / of_size.bit_count()
                    yield share * ANOTHER_FAULT ** (most - times), exactly & of_size

    def failing(self, changed: Iterable[int]) -> float:
        """How likely the target still fails with these axes changed."""
        broken = self._broken_by(changed)
        return sum(weight * (bits & ~broken).bit_count() for weight, bits in self.weights) / self.total

    def ranked(self) -> Iterator[tuple[int, ...]]:
        """The groups of axes that are not refuted, the likeliest first."""
        for _, bits in sorted(self.weights, key=lambda pair: -pair[0]):
            while bits:
                low = bits & -bits
                bits ^= low
                yield self.groups[low.bit_length() - 1]

    def likeliest(self) -> tuple[int, ...]:
        """The likeliest group of axes; () when all are refuted."""
        return next(self.ranked(), ())


@lru_cache(maxsize=4)
def _groups(axes: int) -> tuple[list[tuple[int, ...]], list[int], list[int]]:
    """All groups of axes that are looked at; for each axis the set of those with it; for each size the set of its."""
    groups = [group for size in group_sizes(axes) for group in combinations(range(axes), size)]
    length = len(groups) // 8 + 1
    of_axis = [bytearray(length) for _ in range(axes)]
    of_size = [bytearray(length) for _ in group_sizes(axes)]
    for number, group in enumerate(groups):
        for buffer in (of_size[len(group) - 1], *[of_axis[axis] for axis in group]):
            buffer[number >> 3] |= 1 << (number & 7)
    return groups, _as_integers(of_axis), _as_integers(of_size)


def _as_integers(buffers: Iterable[bytearray]) -> list[int]:
    return [int.from_bytes(buffer, "little") for buffer in buffers]


class _Search:
    """Looks for cases among those that the model allows and that have not run."""

    def __init__(self, model: Model, passed: Sequence[Row], failed: Sequence[Row], tried: Sequence[Row]) -> None:
        self.space = model.space
        self.done = {tuple(row) for rows in (passed, failed, tried) for row in rows}
        self.usable = [sorted({row[axis] for row in (*passed, *failed)}) for axis in range(len(model.levels))]
        self.passing_pairs = {
            (axis, row[axis], other, row[other])
            for row in passed
            for axis in range(len(row))
            for other in range(len(row))
            if axis < other
        }
        self.random = Random(0)

    def splitting(self, hypotheses: _Hypotheses) -> Row | None:
        """The case whose outcome is least certain, of those that hold few pairs of values that have not passed."""
        if not hypotheses.weights:
            return None
        for changes in (self._changes(hypotheses), self._between_two(hypotheses)):
            best: tuple[float, Row] | None = None
            for changed in changes:
                row = self._changed(hypotheses.target, changed)
                if row is None or tuple(row) in self.done:
                    continue
                differing = [axis for axis, value in enumerate(row) if value != hypotheses.target[axis]]
                chance = hypotheses.failing(differing)
                score = chance * (1 - chance) - 0.003 * self._new_pairs(row, differing)
                if CERTAIN < chance < 1 - CERTAIN and (best is None or score > best[0]):
                    best = score, row
            if best:
                return best[1]
        return None

    def _changes(self, hypotheses: _Hypotheses) -> list[tuple[int, ...]]:
        """Sets of axes to change, those first that split the hypotheses best: greedy from different starts."""
        axes = [axis for axis, values in enumerate(self.usable) if len(values) > 1]
        seen: dict[tuple[int, ...], float] = {}
        for start in range(RESTARTS):
            changed = self.random.sample(axes, min(len(axes), start))
            off = abs(hypotheses.failing(changed) - 0.5)
            while True:
                steps = []
                for axis in axes:
                    step = [other for other in changed if other != axis] if axis in changed else [*changed, axis]
                    key = tuple(sorted(step))
                    if key and key not in seen:
                        seen[key] = abs(hypotheses.failing(key) - 0.5)
                    steps.append((seen.get(key, 0.5), step))
                nearest, changed_now = min(steps, default=(off, changed), key=lambda pair: pair[0])
                if nearest >= off:
                    break
                off, changed = nearest, changed_now
        nearest_first = sorted(seen, key=lambda key: (seen[key], key))[:TRIED]
        return [tuple(self.random.sample(changed, len(changed))) for changed in nearest_first]

    def _between_two(self, hypotheses: _Hypotheses) -> Iterator[tuple[int, ...]]:
        """All axes but those of one hypothesis, beginning with one of another: what predicates tie needs aim."""
        likeliest, *others = islice(hypotheses.ranked(), 1 + AIMED_AT)
        axes = [axis for axis, values in enumerate(self.usable) if len(values) > 1]
        for other in others:
            for kept, broken in ((likeliest, other), (other, likeliest)):
                for axis in broken:
                    if axis not in kept:
                        rest = [one for one in axes if one != axis and one not in kept]
                        yield (axis, *self.random.sample(rest, len(rest)))

    def _changed(self, target: Row, changed: Sequence[int]) -> Row | None:
        """The target with these axes changed in turn, as far as is allowed, to values that passed beside the rest."""
        partial = {axis: value for axis, value in enumerate(target) if axis not in changed}
        states = self.space.states(partial)
        if states is None:
            return None
        for axis in changed:
            values = [value for value in self.space.values(states, axis) if value in self.usable[axis]]
            others = [value for value in values if value != target[axis]] or values
            if not others:
                return None
            self.random.shuffle(others)
            value = min(others, key=lambda value: self._unknown(axis, value, partial))
            self._fix(states, axis, value)
            partial[axis] = value
        return [partial[axis] for axis in range(len(target))]

    def _fix(self, states: list[Any], axis: int, value: int) -> None:
        number = self.space.component_of[axis]
        if number is not None:
            states[number] = self.space.components[number].narrow(states[number], axis, value)

    def _unknown(self, axis: int, value: int, beside: dict[int, int]) -> int:
        """How many of the pairs of this value with those beside it no passing case holds."""
        pairs = [(a, v, axis, value) if a < axis else (axis, value, a, v) for a, v in beside.items()]
        return sum(pair not in self.passing_pairs for pair in pairs)

    def _new_pairs(self, row: Row, differing: Sequence[int]) -> int:
        return sum(self._unknown(axis, row[axis], {a: v for a, v in enumerate(row) if a != axis}) for axis in differing)

    def confirming(self, hypotheses: _Hypotheses) -> Row | None:
        """The first case in product order that holds the likeliest group's values; None if it has run."""
        partial = {axis: hypotheses.target[axis] for axis in hypotheses.likeliest()}
        states = self.space.states(partial)
        if not partial or states is None:
            return None
        for axis in range(len(self.usable)):
            if axis not in partial:
                values = [value for value in self.space.values(states, axis) if value in self.usable[axis]]
                if not values:
                    return None
                partial[axis] = values[0]
                self._fix(states, axis, values[0])
        row = [partial[axis] for axis in range(len(self.usable))]
        return None if tuple(row) in self.done else row
