"""One stream held up by a spinning kernel before everything that it does, and memory in which nothing right is left."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from testkit.kernels._dispatch import watching
from testkit.kernels._fake_streams import replaced
from testkit.kernels._happens_before import Stream
from testkit.kernels._stream_recorder import key_of

SHORTEST, LONGEST, ALL = 0.001, 0.05, 5.0
"""Seconds: of one delay, at least and at most, and of all delays of a run together."""
PROBE = 5_000_000
"""Cycles of the kernel that tells how many there are in a second."""
SMALL = 2**20
"""torch's CUDA allocator serves requests up to so many bytes from blocks of their own."""


@contextmanager
def delayed(late: Stream, cycles: int) -> Iterator[None]:
    """Within the block the stream ``late`` spins for ``cycles`` before each operation, at each entry, after each event.

    Kernels that are started without torch's dispatcher cannot be preceded one by one: they come after an entry, an
    event, or a buffer that torch made for them.
    """
    import torch

    set_stream: Callable[[Any], None] = torch.cuda.set_stream
    record: Callable[[Any, Any], None] = torch.cuda.Event.record

    def spin() -> None:
        if key_of(torch.cuda.current_stream()) == late:
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch's

    def enters(new: Any) -> None:
        set_stream(new)
        spin()

    def records(self: Any, stream: Any = None) -> None:
        stream = stream or torch.cuda.current_stream()
        record(self, stream)
        if key_of(torch.cuda.current_stream()) == key_of(stream):
            spin()
        elif key_of(stream) == late:
            with torch.cuda.stream(stream):  # the entry spins
                pass

    def handle(func: Any, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        if not func.is_view:
            spin()
        return call()

    with replaced(torch.cuda, set_stream=enters), replaced(torch.cuda.Event, record=records), watching(handle):
        spin()
        yield


def cycles_of(seconds: float) -> int:
    """Cycles of a spinning kernel for so many seconds, from a probe on this device."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    for _ in range(2):  # the first one loads the kernel
        begin.record()
        torch.cuda._sleep(PROBE)  # type: ignore[no-untyped-call]  # torch's
        end.record()
        end.synchronize()
    milliseconds = begin.elapsed_time(end)
    return int(PROBE * seconds * 1000 / max(milliseconds, 0.001))


def length(call_seconds: float, operations: int) -> float:
    """Seconds of one delay: twice the call, so that the other streams are done with it by then, within limits."""
    return min(max(SHORTEST, 2 * call_seconds), LONGEST, ALL / max(operations, 1))


def poison_free_memory(streams: Sequence[Any], needed: int) -> None:
    """What torch hands out on ``streams`` next, up to ``needed`` bytes on each, is NaN in every float format.

    Otherwise a kernel that reads too early finds the right values of the call before, since the allocator gives it the
    same memory. Blocks belong to a stream, and small requests have blocks of their own.
    """
    import torch

    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    large = min(max(needed, 2 * SMALL), free // (2 * len(streams) + 2))
    for stream in streams:
        with torch.cuda.stream(stream):
            held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in [large] + [SMALL] * 16]
            for memory in held:
                memory.fill_(0xFF)
            del held, memory
    torch.cuda.synchronize()
