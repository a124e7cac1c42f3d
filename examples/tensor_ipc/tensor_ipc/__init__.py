"""Tensors from an encoder process to a decoder process: through shared memory, or as CUDA memory where it lies."""

from tensor_ipc.transport import FAULTS, VARIABLE, Handle, lend, received, send

__all__ = ["FAULTS", "VARIABLE", "Handle", "lend", "received", "send"]
