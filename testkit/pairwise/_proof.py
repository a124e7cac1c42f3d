"""Which owed tuples a list of cases holds: counted and listed apart from the engine that made the cases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from operator import add

from testkit.errors import PairwiseError
from testkit.pairwise._model import Model

Levels = Sequence[int]


def prove(model: Model, rows: Sequence[Levels]) -> None:
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
    for group, held in held_counts(rows, model.owed_counts):
        if held != model.owed_counts[group]:
            raise _broken(f"tuples of axes {group} are missing")


def _broken(what: str) -> PairwiseError:
    return PairwiseError(
        f"the engine made a list that does not hold what it must: {what}",
        fix="please report this as a bug of testkit, with the axes; meanwhile run with --no-pairwise",
    )


def _allowed(model: Model, rows: Sequence[Levels]) -> Sequence[Levels]:
    return [row for row in rows if model.space.allows(row)] if model.space.rules else rows


def held_counts(rows: Sequence[Levels], groups: Iterable[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], int]]:
    """For each group of axes how many different value tuples ``rows`` show there."""
    columns = list(zip(*rows, strict=True))
    scale = 1 + max(map(max, columns), default=0)
    scaled = [[level * scale for level in column] for column in columns]
    for group in groups:
        if not columns:
            yield group, 0
        elif len(group) == 2:  # the common case: one number a pair is quicker than one tuple
            yield group, len(set(map(add, scaled[group[0]], columns[group[1]])))
        else:
            yield group, len(set(zip(*[columns[axis] for axis in group], strict=True)))


def missing(model: Model, rows: Sequence[Levels]) -> Iterator[tuple[tuple[int, ...], Levels]]:
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
