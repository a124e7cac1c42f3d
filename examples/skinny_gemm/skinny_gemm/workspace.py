"""The float32 workspace that split-K partial sums live in: one buffer, kept between calls until it is released."""

from __future__ import annotations

import math

import torch

_kept: list[torch.Tensor] = []


def take(*shape: int) -> torch.Tensor:
    """A workspace of ``shape``; it holds NaN, so that a sum read before it was written is seen."""
    size = math.prod(shape)
    if not _kept or _kept[0].numel() < size:
        _kept[:] = [torch.empty(size)]
    return _kept[0][:size].view(shape).fill_(math.nan)


def held() -> int:
    """Bytes that the kept workspace holds."""
    return sum(buffer.numel() * buffer.element_size() for buffer in _kept)


def release() -> None:
    """Give the kept workspace back to the allocator; the suite's clean-up calls it once a module."""
    _kept.clear()
