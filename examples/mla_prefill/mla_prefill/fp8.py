"""Quantisation to fp8 (e4m3): a Triton kernel where a GPU has that format, torch elsewhere, with the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_prefill.faults import planted

LARGEST = 448.0  # of e4m3


def quantise(x: Tensor, scale: float, out: Tensor) -> Tensor:
    """``x / scale``, float32, as the nearest values of ``out``, float8_e4m3fn and of the same shape; NaN stays NaN.

    ``scale`` is a power of two, so that its inverse is exact. ``out`` is contiguous.
    """
    largest = 240.0 if planted("range-of-fnuz") else LARGEST
    if x.is_cuda and not torch.version.hip and torch.cuda.get_device_capability(x.device) >= (8, 9):
        from mla_prefill.triton_fp8 import launch

        launch(x, scale, out, largest)
    else:
        out.copy_((x / scale).clamp(-largest, largest))
    return out
