"""Few jobs in place of a product: a covering array of the axes, with GitHub's ``exclude`` and ``include`` kept."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from keyword import iskeyword
from math import prod
from typing import Any

from testkit.errors import MatrixError, PairwiseError
from testkit.matrix._expand import Matrix, finished, matches
from testkit.matrix._values import Job, key_of

TUPLES = {1: "value", 2: "pair", 3: "triple"}


def tuple_noun(strength: int) -> str:
    """``pair`` for 2."""
    return TUPLES.get(strength, f"{strength}-tuple")


@dataclass(frozen=True)
class Thinned:
    """The chosen ``jobs``; how many tuples they had to hold (``owed``) at which ``strength``; a ``floor`` that no list
    with all of them goes below; ``total`` combinations of the axes, before ``exclude``."""

    jobs: list[Job]
    owed: int
    strength: int
    floor: int
    total: int


def thin(matrix: Matrix, strength: int | None = None) -> Thinned:
    """Jobs that hold every ``strength``-tuple of axis values that some combination allowed by ``exclude`` holds.

    ``strength``: None for 2, or 1 where there is one axis. ``include`` is applied to what was chosen: an entry that
    adds to combinations of the full matrix adds to at least one here, and entries that are combinations of their own
    stay. Raises ``MatrixError`` for a strength above the number of axes, and what ``pairwise.sample`` raises.
    """
    from testkit.pairwise import sample

    if not matrix.axes:
        return Thinned(finished(matrix, []), 0, 0, 0, 0)
    model = Model(matrix)
    strength = check_strength(matrix, strength)
    keep = [case for entry in matrix.include if (case := model.case_of(entry, strength))]
    try:
        chosen = sample(model.positions(), strength=strength, where=model.predicates(), keep=keep)
    except PairwiseError as error:
        if "no case" not in error.problem:
            raise
        names = error.problem.partition(" allow")[0]
        problem, fix = f"no combination is left by {names}", "loosen an entry of exclude"
        raise MatrixError(problem, matrix.where, fix) from None
    total = prod(len(values) for values in matrix.axes.values())
    jobs = finished(matrix, map(model.job, chosen.rows))
    return Thinned(jobs, chosen.owed, strength, chosen.floor + len(jobs) - len(chosen.rows), total)


def check_strength(matrix: Matrix, strength: int | None) -> int:
    """The strength to use; None asks for pairs, or for single values where there is one axis."""
    if strength is None:
        return min(2, len(matrix.axes))
    if not 1 <= strength <= len(matrix.axes):
        axes = ", ".join(matrix.axes)
        problem = f"strength {strength} is not within 1 and {len(matrix.axes)}, the number of axes ({axes})"
        raise MatrixError(problem, matrix.where, f"use 1 to {len(matrix.axes)}")
    return strength


class Model:
    """A matrix for ``testkit.pairwise``, which knows argument names and not ``python-version``: each axis goes by an
    identifier, each value by the position where it stands first."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.names = _identifiers(matrix)
        self.values = {axis: _different(values) for axis, values in matrix.axes.items()}

    def positions(self) -> dict[str, list[int]]:
        """The axes for ``sample`` and ``coverage``."""
        return {self.names[axis]: list(range(len(values))) for axis, values in self.values.items()}

    def job(self, row: Mapping[str, int]) -> Job:
        """The values that a row, or a part of one, stands for."""
        return {axis: self.values[axis][row[name]] for axis, name in self.names.items() if name in row}

    def predicates(self) -> list[Callable[..., bool]]:
        """One for each entry of ``exclude``."""
        return [self._predicate(entry, f"exclude[{place}]") for place, entry in enumerate(self.matrix.exclude)]

    def _predicate(self, entry: Job, called: str) -> Callable[..., bool]:
        matched = list(self._matched(entry).values())

        def allowed(*positions: int) -> bool:
            return not all(position in found for position, found in zip(positions, matched, strict=True))

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(self.names[axis], kind) for axis in entry]
        allowed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
        allowed.__qualname__ = called
        return allowed

    def _matched(self, entry: Job) -> dict[str, list[int]]:
        """For each axis of an entry the positions of the values that match it."""
        return {
            axis: [place for place, value in enumerate(self.values[axis]) if matches(wanted, value)]
            for axis, wanted in entry.items()
            if axis in self.values
        }

    def case_of(self, entry: Job, strength: int) -> dict[str, int] | None:
        """A partial case to keep, so that what an ``include`` entry adds runs somewhere.

        None where the covering array holds one anyway, and where the entry matches no allowed combination.
        """
        matched = self._matched(entry)
        if len(matched) <= strength:
            return None
        excluded = [self._matched(other) for other in self.matrix.exclude]
        for row in self._rows(matched):
            if not any(all(row[axis] in found for axis, found in other.items()) for other in excluded):
                return {self.names[axis]: row[axis] for axis in matched}
        return None

    def _rows(self, matched: Mapping[str, list[int]]) -> Iterator[dict[str, int]]:
        choices: list[Any] = [matched.get(axis, range(len(values))) for axis, values in self.values.items()]
        return (dict(zip(self.values, row, strict=True)) for row in product(*choices))


def _identifiers(matrix: Matrix) -> dict[str, str]:
    """For each axis a name that Python takes for an argument, much like its own."""
    names: dict[str, str] = {}
    for axis in matrix.axes:
        name = re.sub(r"\W", "_", axis)
        if not name.isidentifier():
            name = f"axis_{name}"
        while iskeyword(name) or name in names.values():
            name += "_"
        names[axis] = name
    return names


def _different(values: list[Any]) -> list[Any]:
    found: dict[str, Any] = {}
    for value in values:
        found.setdefault(key_of(value), value)
    return list(found.values())
