"""Masked loads, shard products and stores, shared by the kernels."""

from __future__ import annotations

import torch

from skinny_gemm import workspace
from skinny_gemm.device import ceil_div

SHARD = 64  # K elements a shard loads: 512 on the device
TILE = 8  # output columns a tile holds: 64 on the device


def is_padded(matrix: torch.Tensor) -> bool:
    """Whether rows lie further apart than they are long: a view into a wider buffer."""
    return matrix.stride(0) > matrix.shape[1]


def load(matrix: torch.Tensor, rows: int, columns: int, *, masked_by_stride: bool = False) -> torch.Tensor:
    """``matrix`` as a float32 tile of ``rows`` x ``columns``; what lies outside the matrix reads as zero.

    ``masked_by_stride`` is a planted mistake: the row stride in place of the row length masks the load.
    """
    stride = matrix.stride(0)
    width = min(stride, columns) if masked_by_stride else matrix.shape[1]
    tile = torch.zeros(rows, columns)
    tile[: matrix.shape[0], :width] = matrix.as_strided((matrix.shape[0], width), (stride, 1))
    return tile


def shard_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """One partial product a K shard, in the workspace: shards x rows of ``left`` x rows of ``right``."""
    shards = ceil_div(left.shape[1], SHARD)
    partials = workspace.take(shards, left.shape[0], right.shape[0])
    for shard in range(shards):
        span = slice(shard * SHARD, (shard + 1) * SHARD)
        torch.matmul(left[:, span], right[:, span].T, out=partials[shard])
    return partials


def drop_small_shards(left: torch.Tensor, threshold: float) -> None:
    """A planted mistake: shards whose activations are all below ``threshold`` are taken for padding."""
    for start in range(0, left.shape[1], SHARD):
        shard = left[:, start : start + SHARD]
        if shard.abs().max() < threshold:
            shard.zero_()


def repeat_last_column(out: torch.Tensor) -> None:
    """A planted mistake: the last lane of a partial tile stores its neighbour's column."""
    out[:, -1] = out[:, -2]
