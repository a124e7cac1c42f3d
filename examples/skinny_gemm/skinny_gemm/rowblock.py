"""A row-block matrix-vector product: each block owns a few rows of the weights and walks along K."""

from __future__ import annotations

import torch

from skinny_gemm.device import ceil_div
from skinny_gemm.faults import active
from skinny_gemm.tiles import SHARD, load


def llmm1(a: torch.Tensor, b: torch.Tensor, rows_per_block: int) -> torch.Tensor:
    """``a @ b.T`` for ``a`` of one row; ``b`` is m x k and m is a multiple of ``rows_per_block``."""
    m, k = b.shape
    if m % rows_per_block:
        raise ValueError(f"llmm1: {m} rows are no multiple of rows_per_block {rows_per_block}")
    depth = ceil_div(k, SHARD) * SHARD
    vector = load(a, 1, depth)[0]
    blocks = load(b, m, depth).view(m // rows_per_block, rows_per_block, depth)
    sums = torch.zeros(blocks.shape[:2])
    for start in range(0, depth, SHARD):
        span = slice(start, start + SHARD)
        sums += blocks[:, :, span] @ vector[span]
    if active("llmm1-sixteenth-row-lost") and rows_per_block == 16 and a.dtype is torch.bfloat16:
        sums[:, 15] = 0
    if active("llmm1-short-k-rows-swapped") and rows_per_block == 2 and k < SHARD:
        sums = sums.flip(1)
    if active("llmm1-last-block-repeats") and rows_per_block == 4 and depth == 4 * SHARD:
        sums[-1] = sums[-2]
    if active("llmm1-float16-block-order") and rows_per_block == 8 and depth >= 8 * SHARD and a.dtype is torch.float16:
        sums = sums.roll(1, dims=0)
    return sums.view(1, m).to(a.dtype)
