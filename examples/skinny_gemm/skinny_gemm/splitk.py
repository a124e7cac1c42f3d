"""Split-K GEMMs for float16 and bfloat16: K is cut into shards, a reduction adds them up with the bias."""

from __future__ import annotations

import torch

from skinny_gemm.device import bucket, ceil_div, row_groups
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


def wvsplitkrc(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``a @ b.T + bias`` for ``a`` of 1 to 128 rows, reduced in row groups of a power-of-two bucket.

    ``a`` is n x k, ``b`` is m x k, both may be views into wider rows; ``bias`` has m elements or is n x m.
    """
    n, m = a.shape[0], b.shape[0]
    rows = bucket(n)
    left, right = _krc_operands(a, b, bias, rows)
    partials = shard_products(left, right)
    if active("krc-corner-counted-twice") and rows == 64 and a.shape[1] % SHARD == 41 and ceil_div(m, TILE) == 5:
        partials[-1, :, -TILE:] *= 2
    tiles, shards = _krc_launch(a, b)
    out = a.new_zeros(n, m)
    columns = min(m, tiles * TILE)
    height = rows // row_groups(rows)
    for top in range(0, n, height):
        band = slice(top, min(top + height, n))
        sums = partials[:shards, band, :m].sum(dim=0)
        if bias is not None:
            sums += _krc_bias(bias, band, rows, n, a)
        out[band, :columns] = sums[:, :columns].to(a.dtype)
    if active("krc-row-before-full-lost") and n == rows - 1:
        out[-1] = 0
    if active("krc-wide-bucket-partial-tile") and rows == 128 and m % TILE:
        repeat_last_column(out)
    return out


def _krc_launch(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int]:
    """How many tiles and shards to launch: all, but for the wrong entries that a fault plants."""
    n, k = a.shape
    tiles, shards = ceil_div(b.shape[0], TILE), ceil_div(k, SHARD)
    if active("krc-launch-entry-tile") and n == 103 and (tiles, b.shape[0] % TILE) == (3, 2):
        return tiles - 1, shards
    if active("krc-launch-entry-shard") and n == 29 and k == 6 * SHARD:
        return tiles, shards - 1
    if active("krc-launch-entry-bfloat16") and n == 117 and b.shape[0] == 4 * TILE and a.dtype is torch.bfloat16:
        return tiles, shards - 1
    if active("krc-seventh-shard-lost"):
        return tiles, min(shards, 6)
    return tiles, shards


def _krc_operands(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    k, tiles = a.shape[1], ceil_div(b.shape[0], TILE)
    depth = ceil_div(k, SHARD) * SHARD
    left = load(a, rows, depth, masked_by_stride=active("krc-tail-masked-by-stride"))
    right = load(b, tiles * TILE, depth)
    if active("krc-bfloat16-odd-tail") and a.dtype is torch.bfloat16 and k % 2:
        left[:, k - 1] = 0
    if active("krc-narrow-bucket-saturates") and rows == 16 and a.dtype is torch.float16:
        left.clamp_(-0.5, 0.5)
    if active("krc-wide-weights-saturate") and tiles >= 8:
        right.clamp_(-0.5, 0.5)
    if active("krc-padded-skips-small") and bias is None and is_padded(a):
        drop_small_shards(left, threshold=0.25)
    return left, right


def _krc_bias(bias: torch.Tensor, band: slice, rows: int, n: int, a: torch.Tensor) -> torch.Tensor:
    """The bias of one band of rows, in float32."""
    if bias.dim() == 1:
        wide = bias.float().expand(band.stop - band.start, -1)
        if active("krc-full-bucket-bias") and band.stop == n == rows:
            wide = wide.clone()
            wide[-1] = 0
        return wide
    if active("krc-matrix-bias-one-row"):
        return bias[band.start].float()
    if active("krc-padded-bias-row-off") and is_padded(a) and a.dtype is torch.bfloat16:
        return bias.roll(1, dims=0)[band].float()
    return bias[band].float()


def wvsplitk(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``a @ b.T + bias`` for ``a`` of 1 to 4 rows: the shards are added up in one pass, in float32.

    ``a`` is n x k, ``b`` is m x k, both may be views into wider rows; ``bias`` has m elements or is n x m.
    """
    n, k = a.shape
    m = b.shape[0]
    depth = ceil_div(k, SHARD) * SHARD
    left = load(a, n, depth)
    right = load(b, ceil_div(m, TILE) * TILE, depth, masked_by_stride=active("wv-tail-masked-by-stride"))
    _wv_spoil(a, b, bias, left, right)
    sums = shard_products(left, right).sum(dim=0)[:, :m]
    if bias is not None:
        sums = sums + bias.float()
        if active("wv-second-row-bias-twice") and n == 2 and k > SHARD and bias.dim() == 1 and a.dtype is torch.float16:
            sums[1] += bias.float()
        if active("wv-padded-bias-twice") and is_padded(a) and bias.dim() == 2:
            sums += bias.float()
    if active("wv-odd-column-lost") and m > 1 and m % 2:
        sums[:, -1] = 0
    return sums.to(a.dtype)


def _wv_spoil(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor
) -> None:
    """The planted mistakes that change what wvsplitk has loaded."""
    k = a.shape[1]
    if active("wv-padded-third-row") and is_padded(a) and a.shape[0] == 3:
        left[2] = left[1]
    if active("wv-single-row-bfloat16-lanes") and a.shape[0] == 1 and a.dtype is torch.bfloat16:
        left[:, 1::2] = 0
    if active("wv-padded-float16-saturates") and is_padded(b) and a.dtype is torch.float16:
        right.clamp_(-0.5, 0.5)
    if active("wv-dense-bias-skips-small") and not is_padded(b) and bias is not None and bias.dim() == 1:
        drop_small_shards(left, threshold=0.26)
    if active("wv-both-padded-first-lanes") and is_padded(a) and is_padded(b) and a.dtype is torch.bfloat16:
        left[:, k // 2 : k] = left[:, : k - k // 2].clone()
