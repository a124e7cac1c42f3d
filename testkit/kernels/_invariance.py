"""The same bits twice, and the same bits for a row whatever rows are beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testkit.errors import KernelsError
from testkit.kernels._poison import FILLS, poisoning
from testkit.kernels._tensors import KernelFailed, Leaves, differences, has_elements, is_array, leaves, snapshot

__tracebackhide__ = True  # pytest shows the line that called us, not ours

ROWS = 32
"""At most so many rows are computed alone."""


def assert_deterministic(fn: Callable[[], Any], *workspaces: Any, runs: int = 2) -> None:
    """``fn()`` returns the same bits each time, whatever was in memory that it does not own.

    Before each of ``runs`` calls (2 or more) ``workspaces`` (as ``poisoned`` takes them) are filled with poison, and
    buffers that ``fn`` makes begin as poison too, another kind each time: NaN, the lowest, the highest value, so that
    what it fails to write, or reads before it writes, differs. Without that, torch hands out the memory of the call
    before, with the right results in it. ``fn`` returns tensors of any dtype and shape, or containers of some; it must
    not change its inputs.

    Raises ``KernelFailed`` with the number of elements that differ and the first one, ``KernelsError`` if ``fn``
    returns no tensor with elements.
    """
    if runs < 2:
        raise KernelsError(f"runs is {runs}", "argument of assert_deterministic", "give 2 or more")
    expected = None
    for run in range(runs):
        with poisoning(workspaces, FILLS[run % len(FILLS)]):
            found = fn()
        if expected is None:
            expected = snapshot(found, "output")
            _check_found(expected)
        elif lines := differences(leaves(found, "output"), expected):
            raise KernelFailed(
                f"call {run + 1} gives other bits than the first",
                lines,
                "look for atomics, for elements that are not written, and for memory that is read before it is",
            )


def assert_batch_invariant(fn: Callable[..., Any], *batched: Any) -> None:
    """Each row of ``fn(*batched)`` has the bits that it has when the row is computed alone.

    ``batched``: tensors with the same number of rows, 2 or more, along dimension 0; what is no batch (weights) belongs
    into ``fn``. It returns tensors, or containers of some, with that many rows along dimension 0. Alone, ``fn`` gets
    contiguous copies with one row; of more than 32 rows, 32 are tried, evenly spaced, the first and last among them.

    Raises ``KernelFailed`` with the first row that differs, ``KernelsError`` for arguments and outputs without rows.
    """
    import torch

    sizes = {tuple(tensor.shape[:1]) for tensor in batched if isinstance(tensor, torch.Tensor)}
    if len(sizes) != 1 or not all(isinstance(tensor, torch.Tensor) for tensor in batched) or min(sizes) < (2,):
        shapes = ", ".join(str(tuple(getattr(tensor, "shape", ()))) for tensor in batched) or "nothing"
        fix = "give tensors with the same number of rows, 2 or more"
        raise KernelsError(f"batched has no rows in common: {shapes}", "argument of assert_batch_invariant", fix)
    ((rows,),) = sizes
    together = snapshot(fn(*(tensor.clone() for tensor in batched)), "output")
    _check_found(together)
    for name, leaf in together:
        if _has_rows(leaf) and leaf.shape[:1] != (rows,):
            fix = "return tensors with the rows along dimension 0"
            raise KernelsError(f"{name} has shape {tuple(leaf.shape)}, not {rows} rows", "result of fn", fix)
    chosen = sorted({round(place * (rows - 1) / (ROWS - 1)) for place in range(ROWS)}) if rows > ROWS else range(rows)
    for row in chosen:
        alone = leaves(fn(*(tensor[row : row + 1].clone() for tensor in batched)), "output")
        expected = [(name, leaf[row : row + 1] if _has_rows(leaf) else leaf) for name, leaf in together]
        if lines := differences(alone, expected):
            raise KernelFailed(
                f"row {row} alone differs from row {row} in a batch of {rows}",
                lines,
                "let tile sizes and the order of sums depend on the row's own size only",
            )


def _has_rows(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, torch.Tensor) or is_array(leaf)


def _check_found(found: Leaves) -> None:
    if not has_elements(found):
        raise KernelsError("fn returned no tensor with elements", "", "return what it computes")
