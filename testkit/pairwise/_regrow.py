"""Rows for a model that has changed since its last rows were chosen: the old ones stay, what is missing is added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from testkit.pairwise._lockfile import Locked
from testkit.pairwise._model import Model, Row
from testkit.pairwise._proof import missing

SLACK = 10
"""Per cent by which a list may be longer than one that is chosen afresh."""

Choose = Callable[[Model], list[Row]]
"""From a model to proved rows: the engine with its seed and effort."""

Old = Mapping[int, int]
"""A complete or partial case, axis -> level."""


def regrown(model: Model, locked: Locked, choose: Choose) -> list[Row]:
    """Rows that hold every tuple that ``model`` owes, with as many of the ``locked`` cases among them as may stay.

    A case that is not allowed any more is left out. Are they settled (nothing was taken from them, no axis added) and
    hold all that is owed, then they are the answer, without any search. Otherwise rows are added; where that makes
    the list longer than a fresh one and SLACK per cent (a value that is new to a small axis needs as many rows as the
    largest axis has values, and a fresh list none more), cases that others can do without make room. Where a value
    was removed the list may stay as long as it was, so that only the cases of that value go.
    """
    usable = [case for case in locked.cases if model.space.states(case) is not None]
    if locked.settled:
        rows = _complete([*usable, *model.kept], len(model.levels))
        if rows and _holds_kept(model, rows) and next(missing(model, rows), None) is None:
            return rows
    fresh = choose(model)
    limit = len(fresh) * (100 + SLACK) // 100
    if locked.dropped:
        limit = max(limit, len(usable) + locked.dropped)
    rows = choose(replace(model, kept=(*model.kept, *usable)))
    if len(rows) <= limit:
        return rows
    order = _by_strength(model, rows, usable)
    few, many = 0, len(usable)  # so many are too few, and enough, to give up
    best = fresh
    while many - few > 1:
        fewer = (few + many) // 2
        staying = [usable[place] for place in sorted(order[fewer:])]
        rows = choose(replace(model, kept=(*model.kept, *staying)))
        if len(rows) <= limit:
            many, best = fewer, rows
        else:
            few = fewer
    return best


def _complete(cases: Sequence[Old], axes: int) -> list[Row]:
    """The complete ones as different rows."""
    return [
        list(row) for row in dict.fromkeys(tuple(case[a] for a in range(axes)) for case in cases if len(case) == axes)
    ]


def _holds_kept(model: Model, rows: Sequence[Row]) -> bool:
    return all(any(all(row[axis] == level for axis, level in case.items()) for row in rows) for case in model.kept)


def _by_strength(model: Model, rows: Sequence[Row], cases: Sequence[Old]) -> list[int]:
    """Places in ``cases``, in the order in which they can go: next is the one whose row holds fewest tuples alone."""
    groups = list(model.groups())
    tuples = [[(group, tuple([row[axis] for axis in group])) for group in groups] for row in rows]
    held = Counter(one for own in tuples for one in own)
    home = {
        place: next(n for n, row in enumerate(rows) if all(row[axis] == level for axis, level in case.items()))
        for place, case in enumerate(cases)
    }
    order = []
    while home:
        weakest = min(home, key=lambda place: (sum([held[one] == 1 for one in tuples[home[place]]]), -place))
        held.subtract(tuples[home.pop(weakest)])
        order.append(weakest)
    return order
