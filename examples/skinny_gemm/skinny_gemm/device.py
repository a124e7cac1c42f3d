"""What the device can hold, and how its sizes are scaled down to the CPU with the same remainders."""

from __future__ import annotations

COMPUTE_UNITS = 256
WORKSPACE_FLOATS = 128 * 1024 * 12
DEVICE_SHARD = 512  # K elements that one shard of the device kernel loads
DEVICE_TILE = 64  # output columns of one tile of the device kernel
KEPT_BLOCKS = 8  # up to here the number of whole blocks is kept as it is


def ceil_div(size: int, block: int) -> int:
    """How many blocks hold ``size`` elements."""
    return -(-size // block)


def bucket(n: int) -> int:
    """The power of two, at least 16, that the split-K reduction works with for ``n`` rows."""
    return max(16, 1 << (n - 1).bit_length())


def row_groups(rows: int) -> int:
    """How many groups of rows reduce side by side in a bucket of ``rows``."""
    return min(rows // 16, 4)


def fits_the_device(n: int, k: int, m: int) -> bool:
    """Whether wvsplitkrc can run these (original) sizes: workspace and compute units suffice.

    The rule is that of the upstream suite's run-time skip on a device with 256 compute units
    (vllm-project/vllm pull request 51877).
    """
    rows, shards = bucket(n), ceil_div(k, DEVICE_SHARD)
    workspace = rows * m * shards
    units = ceil_div(m, DEVICE_TILE) * shards * row_groups(rows)
    return workspace <= WORKSPACE_FLOATS and units <= COMPUTE_UNITS


def scaled(size: int, device_block: int, block: int) -> int:
    """``size`` scaled down for blocks of ``block`` elements in place of the device's ``device_block``.

    Up to 8 whole blocks stay as many, 9 to 15 count as 8, and from 16 on each doubling adds one, so that
    long loops stay longer than short ones. The remainder keeps its share of a block and never vanishes:
    3080 = 6 * 512 + 8 becomes 385 = 6 * 64 + 1, and 8193 = 128 * 64 + 1 becomes 97 = 12 * 8 + 1. A size that
    fills no block stays a lone remainder, and a size without remainder stays without.
    """
    blocks, rest = divmod(size, device_block)
    if blocks > KEPT_BLOCKS:
        blocks = KEPT_BLOCKS + blocks.bit_length() - KEPT_BLOCKS.bit_length()
    if rest:
        rest = min(ceil_div(rest * block, device_block), block - 1)
    return blocks * block + rest
