"""From a model to complete rows: growth, algebra, search; then the proof. Same rows in every process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Literal

from testkit.pairwise._algebra import algebraic
from testkit.pairwise._grow import Ties, grow
from testkit.pairwise._model import Grown, Model, Row
from testkit.pairwise._peer import allpairspy_rows
from testkit.pairwise._proof import prove
from testkit.pairwise._shrink import shrink
from testkit.pairwise._spread import Run, spread
from testkit.pairwise._store import kept_rows

ROWS_VERSION = 1
"""Raised when a model gets other rows than before; what stores hold from other versions is not used."""

Effort = Literal["default", "high"] | int
Engine = Literal["testkit", "allpairspy"]

DEFAULT_MOVES = 60_000
"""At most this many moves at default effort, about 0.1 s; a small array gets MOVES_PER_CELL for each cell."""

MOVES_PER_CELL = 150

HIGH_MOVES = 3_000_000
"""At most this many moves at ``effort="high"``, a few seconds."""

HIGH_CELLS = 120_000_000
"""Moves of a high effort times axes, as a change of a cell takes longer the more others stand beside it."""


def cover(
    model: Model,
    *,
    seed: int,
    effort: Effort,
    engine: Engine,
    store: Path | None = None,
    seen: Sequence[Run] | None = None,
) -> list[Row]:
    """Rows that hold every owed tuple of ``model``, proved, in no particular order.

    ``seed`` chooses among equally valid arrays; ``effort`` bounds the moves of the search for fewer rows and
    depends on nothing but the model. ``store``: a folder where our own rows are looked for first, and kept.
    ``seen``: cases of recent runs, from which the rows are then moved away where nothing owed is lost.
    """

    def found() -> list[Row]:
        if engine == "allpairspy":
            rows = _completed(model, allpairspy_rows(model))
        else:
            rows = _cover(model, seed, effort).rows
        prove(model, rows)
        return rows

    if store is None or engine == "allpairspy":  # whose next version may give other rows
        rows = found()
    else:
        rows = kept_rows(store, model, f"version {ROWS_VERSION}, seed {seed}, effort {effort}", found)
    if seen is not None:
        rows = spread(model, rows, seen, seed)
        prove(model, rows)
    return rows


def _cover(model: Model, seed: int, effort: Effort) -> Grown:
    order, prefer = _orders(model, seed)
    best = grow(model, order, prefer, "chance", seed)
    if len(best.rows) > model.floor and not model.kept and not model.wide and not model.space.components:
        known = algebraic([model.levels[a] for a in order], model.strength, len(best.rows))
        if known:
            best = Grown(_from_algebra(known, order, prefer))
    others: tuple[Ties, ...] = ("least used", "first")
    for ties in others:
        if len(best.rows) > model.floor:
            best = min(best, grow(model, order, prefer, ties, seed), key=lambda grown: len(grown.rows))
    if len(best.rows) > model.floor and model.strength == 2:
        best = shrink(model, best, _moves(effort, len(best.rows), len(order)), seed)
    return best


def _moves(effort: Effort, rows: int, axes: int) -> int:
    if effort == "high":
        return min(HIGH_MOVES, HIGH_CELLS // axes)
    if effort == "default":
        return min(DEFAULT_MOVES, MOVES_PER_CELL * rows * axes)
    return effort


def _orders(model: Model, seed: int) -> tuple[list[int], list[list[int]]]:
    """The order in which axes are added, crossed ones first, then larger ones; and of each axis's values."""
    crossed = set(model.crossed) if model.wide else set()
    axes = range(len(model.levels))
    if seed == 0:
        ties: list[float] = [0.0] * len(model.levels)
        prefer = [list(range(n)) for n in model.levels]
    else:
        random = Random(seed).random
        ties = [random() for _ in axes]
        prefer = []
        for n in model.levels:
            keys = [random() for _ in range(n)]
            prefer.append(sorted(range(n), key=keys.__getitem__))
    order = sorted(axes, key=lambda a: (a not in crossed, -model.levels[a], ties[a], a))
    return order, prefer


def _from_algebra(rows: list[Row], order: list[int], prefer: list[list[int]]) -> list[Row]:
    place = {axis: p for p, axis in enumerate(order)}
    return [[prefer[axis][row[place[axis]]] for axis in range(len(order))] for row in rows]


def _completed(model: Model, rows: list[Row]) -> list[Row]:
    """The allowed ones of another engine's rows, with what they leave out added."""
    allowed = [row for row in rows if model.space.allows(row)]
    order, prefer = _orders(model, 0)
    return grow(model.keeping(allowed), order, prefer, "least used").rows
