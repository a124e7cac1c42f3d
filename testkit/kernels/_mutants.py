"""Wrong outputs made from a right one: what a tolerance must not let pass.

A fault inside a kernel needs that kernel: ``calibrate`` takes such mutants as functions. These here need the output
alone, so that every tolerance can be tried on the data that it is used for. Rows are those of the last dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from testkit.errors import KernelsError
from testkit.kernels._bounds import rounded
from testkit.kernels._compare import Pair

SAMPLE = 1 << 15
"""Elements that a mutant is tried on first; nearly all are caught there."""
TILE = 128
"""Rows, or columns, of a dropped tile at most; an eighth of them if that is less."""


def zeros(values: Any, xp: Any, matrix: int) -> Any:
    return xp.zeros_like(values)


def shuffled_rows(values: Any, xp: Any, matrix: int) -> Any:
    return xp.flip(values, (0,))


def off_by_one_row(values: Any, xp: Any, matrix: int) -> Any:
    return xp.concatenate([values[1:], values[:1]])


def off_by_one_column(values: Any, xp: Any, matrix: int) -> Any:
    return xp.concatenate([values[:, 1:], values[:, :1]], axis=1)


def dropped_last_rows(values: Any, xp: Any, matrix: int) -> Any:
    tile = min(TILE, -(-values.shape[0] // 8))
    kept = values[: values.shape[0] - tile]
    return xp.concatenate([kept, xp.zeros_like(values[:tile])])


def dropped_last_columns(values: Any, xp: Any, matrix: int) -> Any:
    tile = min(TILE, -(-values.shape[1] // 8))
    kept = values[:, : values.shape[1] - tile]
    return xp.concatenate([kept, xp.zeros_like(values[:, :tile])], axis=1)


def dropped_diagonal(values: Any, xp: Any, matrix: int) -> Any:
    place = {"device": values.device} if hasattr(values, "layout") else {}
    row = xp.arange(values.shape[0], **place) % matrix
    diagonal = row.reshape(-1, 1) == xp.arange(values.shape[1], **place).reshape(1, -1)
    return xp.where(diagonal, xp.zeros_like(values), values)


def half_the_reduction(values: Any, xp: Any, matrix: int) -> Any:
    return values / 2


Make = Callable[[Any, Any, int], Any]
"""(rows x columns of float64, numpy or torch, rows of one matrix) -> what is wrong."""

OUTPUT_MUTANTS: dict[str, Make] = {
    "zeros": zeros,
    "shuffled rows": shuffled_rows,
    "off by one row": off_by_one_row,
    "off by one column": off_by_one_column,
    "dropped last rows": dropped_last_rows,
    "dropped last columns": dropped_last_columns,
    "dropped diagonal": dropped_diagonal,
    "half the reduction": half_the_reduction,
}


def mutant(name: str, base: Any, reference: Any, like: Pair, shape: tuple[int, ...], matrix: int) -> Pair | None:
    """Mutant ``name`` of ``base`` beside ``reference``, both flat float64 of ``shape``; ``matrix`` rows make a matrix.

    None if it changes nothing: an output of zeros, or whose rows are alike, cannot tell such a fault from a right
    result, whatever the tolerance. None too for half of an e8m0 scale, which is
    not summed, and whose next value it is.
    """
    if like.form is not None and like.form.mantissa == 0 and name == "half the reduction":
        return None
    rows = base.reshape(-1, shape[-1] if len(shape) > 1 else 1)
    wrong = OUTPUT_MUTANTS[name](rows, like.xp, matrix)
    if not bool((wrong != rows).any()):
        return None
    side = like.actual if like.form is like.actual.form else like.reference
    return Pair(side.of(wrong.reshape(-1), shape), side.of(reference, shape))


def tried(pair: Pair, names: Iterable[str], sees: Callable[[Pair, bool], bool]) -> list[tuple[str, str]]:
    """Each mutant of ``pair``'s reference and what its judge says: caught, passes, or does not apply.

    ``sees(mutant, whole)`` judges a part first, with ``whole`` False, and all of it where that does not settle it.
    """
    shape = pair.shape if len(pair.shape) > 1 else (pair.size, 1)
    columns = shape[-1]
    sizes = sorted({min(pair.size, max(1, SAMPLE // columns) * columns), pair.size})
    made: dict[int, tuple[Any, Any]] = {}
    found = []
    for name in names:
        verdict = ""
        for size in sizes:
            if size not in made:
                made[size] = right_output(pair, size)
            part = shape if size == pair.size else (size // columns, columns)
            wrong = mutant(name, *made[size], pair, part, shape[-2])
            verdict = "does not apply" if wrong is None else "passes"
            if wrong is not None and sees(wrong, size == pair.size):
                verdict = "caught"
                break
        found.append((name, verdict))
    return found


def right_output(pair: Pair, size: int) -> tuple[Any, Any]:
    """The first ``size`` elements of the reference: as a right kernel would write them, and as they are."""
    reference = pair.chunk(0, size).reference
    return (reference if pair.form is None else rounded(reference, pair.form, pair.xp)), reference


def chosen(names: Iterable[str] | None, otherwise: Iterable[str]) -> list[str]:
    """The mutants to try, ``otherwise`` if nobody named any. Raises ``KernelsError`` for a name that none has."""
    wanted = list(otherwise if names is None else [names] if isinstance(names, str) else names)
    for name in wanted:
        if name not in OUTPUT_MUTANTS:
            fix = f"give some of {', '.join(OUTPUT_MUTANTS)}, or () for none"
            raise KernelsError(f"no mutant of an output is called {name!r}", "mutants", fix)
    return wanted
