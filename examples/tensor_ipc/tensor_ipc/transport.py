"""The transport of a serving engine in miniature: the line between the processes carries handles, never tensors.

The line is whatever has ``put`` and ``get``: a queue or a socket in an engine, ``channel`` in its tests.
FAULTS are planted mistakes; the environment variable TENSOR_IPC_FAULT activates one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Protocol

import torch

VARIABLE = "TENSOR_IPC_FAULT"
FAULTS = {
    "never-sent": "the encoder forgets the message",
    "never-released": "the decoder leaves the segment behind",
    "released-early": "the decoder reads memory that it has given back",
    "strides-ignored": "the encoder copies a view's storage in place of its elements",
    "type-lost": "the decoder takes 2-byte elements for float16",
}
ALIGNMENT = 64
"""Bytes: a tensor's place in its segment is a multiple."""


class Line(Protocol):
    def put(self, value: Any) -> None: ...
    def get(self) -> Any: ...


@dataclass(frozen=True)
class Handle:
    """Where one tensor lies: its segment's name, its place and size there in bytes, and what the bytes mean."""

    segment: str
    offset: int
    size: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def send(line: Line, *tensors: torch.Tensor) -> None:
    """Copy one tensor or more into one new segment, and put their handles on the line as one message.

    The segment is the receiver's from then on.
    """
    fault = _fault()
    places = [0]
    for tensor in tensors:
        places.append(places[-1] + -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT)
    segment = SharedMemory(create=True, size=max(1, places[-1]))  # of no bytes there is none
    handles = []
    for tensor, offset in zip(tensors, places, strict=False):
        handle = Handle(segment.name, offset, tensor.nbytes, tuple(tensor.shape), tensor.dtype)
        handles.append(handle)
        if fault == "strides-ignored":
            tensor = tensor.as_strided(tensor.shape, torch.empty(tensor.shape).stride())
        _view(segment, handle).copy_(tensor)
    segment.close()
    if fault != "never-sent":
        line.put(handles)


@contextmanager
def received(line: Line) -> Iterator[list[torch.Tensor]]:
    """The tensors of the next message, read where they lie; clone what is to outlive the block.

    At its end the segment is unlinked, whatever happened in it: a tensor that still looks there is a fault of memory.
    """
    fault = _fault()
    handles: list[Handle] = line.get()
    segment = SharedMemory(handles[0].segment)
    try:
        tensors = [_view(segment, handle) for handle in handles]
        if fault == "released-early":
            segment.close()
        if fault == "type-lost":
            tensors = [t.view(torch.float16) if t.itemsize == 2 else t for t in tensors]
        yield tensors
    finally:
        segment.close()
        if fault != "never-released":
            segment.unlink()


def lend(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    """A CUDA tensor as a function and its arguments: called in another process they give a tensor of the same memory.

    Nothing is copied. Keep ``tensor`` until the other process has dropped its own.
    """
    from torch.multiprocessing.reductions import reduce_tensor

    rebuild, arguments = reduce_tensor(tensor)
    return rebuild, arguments


def _view(segment: SharedMemory, handle: Handle) -> torch.Tensor:
    if not handle.size:  # torch makes no tensor of an empty part of a buffer
        return torch.empty(handle.shape, dtype=handle.dtype)
    count = handle.size // handle.dtype.itemsize
    return torch.frombuffer(segment.buf, dtype=handle.dtype, count=count, offset=handle.offset).view(handle.shape)


def _fault() -> str:
    active = os.environ.get(VARIABLE, "")
    if active and active not in FAULTS:
        raise ValueError(f"{active} is no planted fault; these are: {', '.join(FAULTS)}")
    return active
