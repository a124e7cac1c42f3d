"""Which owed tuples a list of cases holds: counted and listed apart from the engine that made the cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from testkit.errors import PairwiseError
from testkit.pairwise._model import Model

Levels = tuple[int, ...]


def prove(model: Model, rows: Sequence[Sequence[int]]) -> None:
    """Raise unless every row is allowed, every kept case is in and every owed tuple is held by some row.

    An allowed row holds owed tuples only, so a group is covered when it shows as many tuples as are owed.
    """
    if not rows:
        raise _broken("there are no rows")
    if len(_allowed(model, rows)) != len(rows):
        raise _broken("a row is not allowed")
    for kept in model.kept:
        if not any(all(row[axis] == level for axis, level in kept.items()) for row in rows):
            raise _broken(f"the kept case {dict(kept)} is not in")
    columns = list(zip(*rows, strict=True))
    for group, owed in model.owed_counts.items():
        if held(columns, group) != owed:
            raise _broken(f"tuples of axes {group} are missing")


def _broken(what: str) -> PairwiseError:
    return PairwiseError(
        f"the engine made a list that does not hold what it must: {what}",
        fix="please report this as a bug of testkit, with the axes; meanwhile run with --no-pairwise",
    )


def _allowed(model: Model, rows: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    return [row for row in rows if model.space.allows(row)] if model.space.rules else rows


def held(columns: Sequence[Sequence[int]], group: Sequence[int]) -> int:
    """How many different value tuples the axes ``group`` show."""
    return len(set(zip(*[columns[axis] for axis in group], strict=True)))


def covered(model: Model, rows: Sequence[Sequence[int]]) -> int:
    """How many owed tuples the allowed ones among ``rows`` hold."""
    columns = list(zip(*_allowed(model, rows), strict=True))
    return sum(held(columns, group) for group in model.owed_counts) if columns else 0


def missing(model: Model, rows: Sequence[Sequence[int]]) -> Iterator[tuple[tuple[int, ...], Levels]]:
    """The owed tuples that no allowed row holds: (axes, levels), in order."""
    allowed = _allowed(model, rows)
    for group, owed in model.owed_counts.items():
        held = {tuple([row[axis] for axis in group]) for row in allowed}
        if len(held) < owed:
            for levels in _owed_tuples(model, group):
                if levels not in held:
                    yield group, levels


def _owed_tuples(model: Model, group: tuple[int, ...]) -> Iterator[Levels]:
    space = model.space
    places = {axis: place for place, axis in enumerate(group)}
    parts = space.split(group)
    choices = [
        [(level,) for level in range(space.levels[part[0]])]
        if space.component_of[part[0]] is None
        else sorted(space.tuples(part))
        for part in parts
    ]
    found = []
    for chosen in product(*choices):
        levels = [0] * len(group)
        for part, values in zip(parts, chosen, strict=True):
            for axis, value in zip(part, values, strict=True):
                levels[places[axis]] = value
        found.append(tuple(levels))
    return iter(sorted(found))
