"""Skinny GEMMs: a few rows of activations times a wide weight matrix, as split-K and row-block kernels on the CPU."""

from skinny_gemm.device import fits_the_device
from skinny_gemm.fp8 import wvsplitk_fp8
from skinny_gemm.rowblock import llmm1
from skinny_gemm.splitk import wvsplitk, wvsplitkrc

__all__ = ["fits_the_device", "llmm1", "wvsplitk", "wvsplitk_fp8", "wvsplitkrc"]
