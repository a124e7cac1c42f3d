"""Triton kernels with planted faults. Imported by tests on a GPU only: torch's dispatcher does not see them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 16


@triton.jit  # type: ignore[untyped-decorator]
def _double(x, out, count, extra, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads annotations
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=3.0)
    tl.store(out + at, value * 2, mask=at < count + extra)


def double(x: torch.Tensor, out: torch.Tensor, extra: int = 0) -> None:
    """``out = 2 * x``; ``extra`` elements more than there are, or, if negative, fewer, as by a wrong mask."""
    _double[(triton.cdiv(x.numel() + max(extra, 0), BLOCK),)](x, out, x.numel(), extra, BLOCK=BLOCK)
