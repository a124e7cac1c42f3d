"""A split-K GEMM for float8 inputs with one scale a matrix; sums are kept in float32."""

from __future__ import annotations

import torch

from skinny_gemm.device import ceil_div
from skinny_gemm.faults import active
from skinny_gemm.tiles import (
    SHARD,
    TILE,
    drop_small_shards,
    is_padded,
    load,
    repeat_last_column,
    shard_products,
)


def wvsplitk_fp8(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: float,
    scale_b: float,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``(scale_a * a) @ (scale_b * b).T + bias`` in ``dtype`` for float8 ``a`` of 1 to 4 rows.

    ``a`` is n x k, ``b`` is m x k, both may be views into wider rows; ``bias`` has m elements.
    """
    n, k = a.shape
    m = b.shape[0]
    depth = ceil_div(k, SHARD) * SHARD
    left = load(a, n, depth, masked_by_stride=active("fp8-tail-masked-by-stride") and bias is None)
    right = load(b, ceil_div(m, TILE) * TILE, depth)
    if active("fp8-padded-float16-saturates") and is_padded(a) and dtype is torch.float16:
        left.clamp_(-32.0, 32.0)
    if active("fp8-padded-skips-small") and is_padded(b) and dtype is torch.bfloat16:
        drop_small_shards(left, threshold=23.0)
    partials = shard_products(left, right)
    if active("fp8-shard-counter-wraps"):
        partials = partials[:11]
    if active("fp8-single-row-last-shard") and n == 1 and k > SHARD and is_padded(b):
        partials = partials[:-1]
    scale = scale_a * scale_b
    if active("fp8-padded-unbiased-scale") and is_padded(b) and bias is None:
        scale = scale_a
    sums = partials.sum(dim=0)[:, :m] * scale
    if bias is not None:
        wide = bias.float().expand(n, -1)
        if active("fp8-third-row-bias") and n == 3:
            wide = wide.clone()
            wide[2] = 0
        if active("fp8-one-shard-second-row") and n == 2 and k == SHARD and dtype is torch.bfloat16:
            wide = wide.clone()
            wide[1] = 0
        sums = sums + wide
    if active("fp8-bfloat16-partial-tile") and dtype is torch.bfloat16 and m % TILE:
        repeat_last_column(sums)
    return sums.to(dtype)
