"""Kernels that need much memory for a short time, on one GPU that many workers share."""

from shared_gpu.device import OutOfMemoryError, buffer

__all__ = ["OutOfMemoryError", "buffer"]
