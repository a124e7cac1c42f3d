"""Inputs, float64 references and error bounds for the tests: one problem for each parameter combination."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from skinny_gemm.device import DEVICE_SHARD, DEVICE_TILE, ceil_div, scaled
from skinny_gemm.tiles import SHARD, TILE

SCALE_A, SCALE_B = 1 / 64, 1 / 128  # what one float8 step of the activations and of the weights is worth
PAD_A, PAD_B = 8, 16  # elements between the rows of a padded input
FLOAT32_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class Problem:
    """What a kernel is called with, the exact answer, and how far from it a right kernel may be."""

    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None
    reference: torch.Tensor
    bound: torch.Tensor


def problem(
    n: int,
    k: int,
    m: int,
    dtype: torch.dtype,
    *,
    padded_a: bool = False,
    padded_b: bool = False,
    bias_mode: int = 0,
    xnorm: bool = False,
    fp8: bool = False,
    tile: int = TILE,
) -> Problem:
    """The problem of the original sizes n, k, m, scaled down; ``dtype`` is that of the output and the bias.

    ``bias_mode`` 0 is no bias, 1 a vector of m, 2 a matrix of n x m. ``xnorm`` scales both inputs by
    sqrt(2 / k); raw inputs lie in -1 to 1. Padding is NaN.
    """
    depth, width = scaled(k, DEVICE_SHARD, SHARD), scaled(m, DEVICE_TILE, tile)
    size = math.sqrt(2 / k) if xnorm else 1.0
    scale_a, scale_b = (SCALE_A, SCALE_B) if fp8 else (1.0, 1.0)
    kept = torch.float8_e4m3fn if fp8 else dtype
    a = _matrix(_values(0, n, depth) * (size / scale_a), kept, PAD_A * padded_a)
    b = _matrix(_values(1, width, depth) * (size / scale_b), kept, PAD_B * padded_b)
    bias = None
    if bias_mode:
        bias = _values(2, n, width).to(dtype) if bias_mode == 2 else _values(2, 1, width)[0].to(dtype)
    reference, bound = _exact(a, b, bias, scale_a * scale_b, dtype)
    return Problem(a, b, bias, reference, bound)


def assert_within_bound(actual: torch.Tensor, expected: Problem) -> None:
    """Fail unless every element of ``actual`` is as near to the reference as rounding alone explains."""
    excess = (actual.double() - expected.reference).abs() / expected.bound
    wrong = ~(excess <= 1)  # not `excess > 1`: NaN must count as wrong
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} elements are outside the error bound, "
            f"the first at [{row}, {column}]: got {actual[row, column].item():.6g}, "
            f"want {expected.reference[row, column].item():.6g} "
            f"within {expected.bound[row, column].item():.2g}"
        )


def _exact(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The float64 answer and the bound on a kernel that accumulates in float32 and rounds once to ``dtype``.

    With u = 2**-24 and t roundings on the way of a product into the sum (k products and sums, one addition
    a shard, two for the scales, one for the bias), a float32 sum in any order is off by at most
    ``t*u/(1 - t*u)`` times the sum of the magnitudes. The rounding to the output type adds half a unit in the
    last place of the result, or half the smallest subnormal.
    """
    left, right = a.to(torch.float64), b.to(torch.float64)
    reference = left @ right.T * scale
    magnitude = left.abs() @ right.abs().T * scale
    if bias is not None:
        reference = reference + bias.double()
        magnitude = magnitude + bias.double().abs()
    k = a.shape[1]
    roundings = (k + ceil_div(k, SHARD) + 3) * FLOAT32_ROUNDING
    summing = magnitude * (roundings / (1 - roundings))
    last_place = torch.finfo(dtype).eps / 2
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2
    return reference, summing + last_place * (reference.abs() + summing) + smallest


@functools.cache
def _pool(which: int) -> torch.Tensor:
    """Half a million values in -1 to 1, the same in every process.

    The seed was chosen so that a wrong product shows in the shapes with one or two outputs as well: with
    seed 11 the bfloat16 rounding of a larger bias covers two planted faults in the shape (1, 64, 8).
    """
    return torch.rand(1 << 19, generator=torch.Generator().manual_seed(12 + which)) * 2 - 1


def _values(which: int, rows: int, columns: int) -> torch.Tensor:
    return _pool(which)[: rows * columns].view(rows, columns)


def _matrix(values: torch.Tensor, dtype: torch.dtype, padding: int) -> torch.Tensor:
    """``values`` in ``dtype``; with ``padding``, as a view into wider rows that end in NaN."""
    if not padding:
        return values.to(dtype)
    rows, columns = values.shape
    wide = torch.full((rows, columns + padding), math.nan)
    wide[:, :columns] = values
    return wide.to(dtype)[:, :columns]
