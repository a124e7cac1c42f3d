"""What a covering array has to cover, in numbers: levels, strength, crossed axes, allowed cases, kept cases."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from math import comb, prod

from testkit.pairwise._space import Space

OPEN = -1
"""A cell that no owed tuple has claimed yet."""

Row = list[int]
"""One case: a level for each axis, or OPEN while an array is being built."""


@dataclass(frozen=True)
class Model:
    """A covering-array problem over axes ``0 .. k-1`` whose values are levels ``0 .. levels[a]-1``.

    ``strength`` is t >= 1; all of ``crossed`` (axes, ascending) stay fully crossed with each other; ``kept`` are
    partial cases (axis -> level) that must be in. Owed are the value tuples of each group of axes in ``groups``
    that some allowed case holds.
    """

    space: Space
    strength: int
    crossed: tuple[int, ...] = ()
    kept: tuple[Mapping[int, int], ...] = ()

    @property
    def levels(self) -> tuple[int, ...]:
        return self.space.levels

    @property
    def wide(self) -> bool:
        """Are more axes crossed than the strength covers anyway?"""
        return len(self.crossed) > self.strength

    def keeping(self, rows: Iterable[Row]) -> Model:
        """The same model with these complete rows among its kept cases."""
        return replace(self, kept=(*self.kept, *(dict(enumerate(row)) for row in rows)))

    def groups(self) -> Iterator[tuple[int, ...]]:
        """The groups of axes whose tuples are owed."""
        return owed_groups(len(self.levels), self.strength, self.crossed)

    @cached_property
    def owed_counts(self) -> dict[tuple[int, ...], int]:
        """For each group the number of owed tuples."""
        if not self.space.components:
            levels = self.levels
            return {group: prod([levels[a] for a in group]) for group in self.groups()}
        return {group: self.space.count(group) for group in self.groups()}

    @cached_property
    def owed(self) -> int:
        """How many tuples are owed in all."""
        return sum(self.owed_counts.values())

    @cached_property
    def floor(self) -> int:
        """No array can have fewer rows: the largest group's tuples, or the Kleitman-Spencer bound for pairs.

        D. Kleitman and J. Spencer, Families of k-independent sets, Discrete Mathematics 6 (1973): n rows hold at
        most ``comb(n - 1, ceil(n / 2))`` pairwise covered two-valued columns.
        """
        floor = max(self.owed_counts.values(), default=1)
        if self.strength == 2:
            free = sum(self.space.component_of[a] is None and n > 1 for a, n in enumerate(self.levels))
            while floor >= 4 and comb(floor - 1, (floor + 1) // 2) < free:
                floor += 1
        return floor


@dataclass
class Grown:
    """Complete rows; the first ``len(pinned)`` of them must keep their cells on the axes that ``pinned`` names."""

    rows: list[Row]
    pinned: list[frozenset[int]] = field(default_factory=list)


def owed_groups(axes: int, strength: int, crossed: Collection[int]) -> Iterator[tuple[int, ...]]:
    """Groups of ``strength`` axes, and the ``crossed`` ones as one; a group that lies inside another is left out."""
    together = frozenset(crossed if len(crossed) > strength else ())
    for group in combinations(range(axes), strength):
        if not together.issuperset(group):
            yield group
    if together:
        yield tuple(crossed)
