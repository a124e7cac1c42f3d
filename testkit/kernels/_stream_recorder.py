"""What each operation of a block reads and writes, on which stream, and what events order, told to a ``History``.

The streams may be CUDA's or stand-ins: the recorder listens at ``torch.cuda.Event`` and ``torch.cuda.Stream``, whatever
classes these are, and at torch's operations.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testkit.kernels._dispatch import inputs, is_custom, memory_id, name_of, outputs, waits_for_the_device, watching
from testkit.kernels._fake_streams import are_fake, replaced
from testkit.kernels._happens_before import Access, Block, History, Memory, Stream
from testkit.kernels._poison import MAKERS
from testkit.kernels._tensors import tensors

if TYPE_CHECKING:
    from torch import Tensor

OURS = os.path.dirname(__file__) + os.sep


@dataclass(frozen=True)
class Storage:
    """Memory that torch holds as one, from address ``start`` to before ``end``; the ``number``-th that was seen."""

    reference: Any
    start: int
    end: int
    block: Block
    number: int


class Recorder:
    """Listens within ``call()``. ``history`` says what was heard."""

    def __init__(self) -> None:
        import torch

        self.history = History(key_of(torch.cuda.current_stream()))
        self._device = "cpu" if are_fake() else "cuda"
        self._storages: dict[int, Storage] = {}
        """By the address of its C++ object."""
        self._count = 0
        self._streams: dict[Stream, Any] = {}
        self._sees(torch.cuda.current_stream())
        self._kept: list[Any] = []
        """Events that were recorded: another one must not get the same id."""
        self._skip = (OURS, os.path.dirname(torch.__file__) + os.sep)

    @contextmanager
    def call(self) -> Iterator[None]:
        self.history.begins()
        with ExitStack() as stack:
            self._listen(stack)
            stack.enter_context(watching(self._handle))
            yield

    def caller_reads(self, returned: Any) -> None:
        """The results are read on the stream of the caller, after the call."""
        for name, tensor in tensors(returned, "output"):
            self._ran(self.history.origin, f"{name} after the call", "the caller", self._watched([tensor]), [])

    def streams(self) -> dict[Stream, Any]:
        """torch's objects for the streams on which something happened, the caller's first.

        With CUDA a stream counts that was only entered: kernels that Python starts directly are not seen.
        """
        used = self.history.operations
        return {key: one for key, one in self._streams.items() if key in used or self._device == "cuda"}

    def _sees(self, stream: Any) -> None:
        if stream is not None:
            self._streams.setdefault(key_of(stream), stream)

    def _handle(self, func: Any, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        import torch

        current = torch.cuda.current_stream()
        name, stream, place = name_of(func), key_of(current), self._place()
        self._sees(current)
        given = self._watched(inputs(args, kwargs))
        reads, writes = (self._watched(some) for some in _touched(func, name, args, kwargs))
        # What Python has just made, from a list say, is no tensor from before the call.
        for tensor in given if not name.startswith("lift_fresh") else ():
            self._block_of(tensor)
        if is_custom(func):  # what it does inside is told next, and happens after its inputs are there
            self._ran(stream, place, name, reads, [])
            reads = []
        known = self._count
        result = call()
        made = [tensor for tensor in self._watched(outputs(result)) if self._number(tensor) > known]
        for tensor in made:
            self._allocate(tensor, Access(stream, 0, True, _memory(tensor), name, place))
        if func.is_view and not made:
            reads = []  # a view looks at no memory
        self._ran(stream, place, name, reads, writes + (made if name not in MAKERS else []))
        if reason := waits_for_the_device(func, args) or _copies_to_the_host(given, result, args, kwargs):
            self.history.host_waits_for(stream, f"{name}, {place}: {reason}")
        return result

    def _ran(self, stream: Stream, place: str, name: str, reads: list[Tensor], writes: list[Tensor]) -> None:
        """One operation that touches memory; none if it touches nothing."""
        if not reads and not writes:
            return
        time = self.history.runs(stream, place)
        for some, writing in ((reads, False), (writes, True)):
            for tensor in some:
                access = Access(stream, time, writing, _memory(tensor), name, place)
                self.history.touches(self._block_of(tensor), access)

    def _watched(self, some: list[Tensor]) -> list[Tensor]:
        """Those with memory on the device of the streams: with CUDA's, the host's tensors belong to none."""
        import torch

        here = [tensor for tensor in some if tensor.device.type == self._device and tensor.layout == torch.strided]
        return [tensor for tensor in here if tensor.numel()]

    def _number(self, tensor: Tensor) -> float:
        """How many storages were known before that of ``tensor``; infinite if it is not known."""
        known = self._storages.get(memory_id(tensor))
        return math.inf if known is None else known.number

    def _allocate(self, tensor: Tensor, access: Access) -> None:
        if memory_id(tensor) not in self._storages:
            self._look_for_freed()
            self.history.allocates(access)
            self._add(tensor, Block(access.stream))

    def _block_of(self, tensor: Tensor) -> Block:
        """The block of a tensor's memory. One that is new here was there before: the caller's stream wrote it."""
        known = self._storages.get(memory_id(tensor))
        if known is not None:
            return known.block
        origin = self.history.origin
        storage = self._add(tensor, Block(origin))
        if not storage.block.accesses:
            whole = Memory(storage.start, (storage.end - storage.start,), (1,), 1)
            self.history.touches(storage.block, Access(origin, 1, True, whole, "the caller", "it before the call"))
        return storage.block

    def _add(self, tensor: Tensor, block: Block) -> Storage:
        """Note a storage, in ``block`` or in that of another one at the same address: numpy and DLPack share memory."""
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        self._look_for_freed()
        for other in self._storages.values():
            if start < other.end and other.start < end:
                block = other.block
        self._count += 1
        # The weak reference keeps the C++ object, and so its address, from being given out again.
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch's
        found = self._storages[memory_id(tensor)] = Storage(reference, start, end, block, self._count)
        return found

    def _look_for_freed(self) -> None:
        gone = [key for key, storage in self._storages.items() if storage.reference.expired()]
        lost = {id(block): block for block in (self._storages.pop(key).block for key in gone)}
        held = {id(storage.block) for storage in self._storages.values()}
        for key, block in lost.items():
            if key not in held:
                self.history.frees(block)

    def _place(self) -> str:
        """The line of the tested code that is being run."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(self._skip):
            frame = frame.f_back
        return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"

    def _listen(self, stack: ExitStack) -> None:
        import torch

        history, place, kept = self.history, self._place, self._kept
        event, stream_type = torch.cuda.Event, torch.cuda.Stream
        old = {name: getattr(event, name) for name in ("record", "wait", "synchronize", "query")}
        of_stream = {name: getattr(stream_type, name) for name in ("synchronize", "query")}
        set_stream: Any = torch.cuda.set_stream
        all_streams, record_stream = torch.cuda.synchronize, torch.Tensor.record_stream

        def enters(stream: Any) -> None:
            set_stream(stream)
            self._sees(stream)

        def record(self: Any, stream: Any = None) -> None:
            old["record"](self, stream)
            kept.append(self)
            history.records(id(self), key_of(stream or torch.cuda.current_stream()))

        def wait(self: Any, stream: Any = None) -> None:
            old["wait"](self, stream)
            history.waits(key_of(stream or torch.cuda.current_stream()), id(self), place())

        def host(name: str) -> Callable[[Any], Any]:
            def of_event(self: Any) -> Any:
                result = old[name](self)
                if result is not False:  # a query that was too early orders nothing
                    history.host_waits_for_event(id(self), f"Event.{name}(), {place()}")
                return result

            return of_event

        def host_stream(name: str) -> Callable[[Any], Any]:
            def whole(self: Any) -> Any:
                result = of_stream[name](self)
                if result is not False:
                    history.host_waits_for(key_of(self), f"Stream.{name}(), {place()}")
                return result

            return whole

        def synchronize(device: Any = None) -> None:
            all_streams(device)
            history.host_waits_for(None, f"torch.cuda.synchronize(), {place()}")

        def shares(tensor: Any, stream: Any) -> None:
            record_stream(tensor, stream)
            self._block_of(tensor).shared.add(key_of(stream))

        names = {name: host(name) for name in ("synchronize", "query")}
        stack.enter_context(replaced(event, record=record, wait=wait, **names))
        stack.enter_context(replaced(stream_type, **{name: host_stream(name) for name in of_stream}))
        stack.enter_context(replaced(torch.cuda, synchronize=synchronize, set_stream=enters))
        stack.enter_context(replaced(torch.Tensor, record_stream=shares))


def key_of(stream: Any) -> Stream:
    """What tells streams apart: torch makes a new object whenever one asks for the current stream."""
    return (stream.device.index, stream.cuda_stream)


def _memory(tensor: Tensor) -> Memory:
    width = tensor.element_size()
    # A dimension of stride 0 shows the same bytes again.
    steps = [(size, step) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and step]
    return Memory(tensor.data_ptr(), tuple(size for size, _ in steps), tuple(step * width for _, step in steps), width)


def _touched(func: Any, name: str, args: Any, kwargs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors among its arguments that an operator reads, and those that it writes, by its schema."""
    import torch

    reads: list[Tensor] = []
    writes: list[Tensor] = []
    if torch.Tag.inplace_view in func.tags or name == "record_stream":
        return reads, writes  # about the tensor object, not its memory
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        changed = argument.alias_info is not None and argument.alias_info.is_write
        (writes if changed else reads).extend(outputs(value))
    # These take sizes and dtype from a tensor, not values.
    return ([] if name.startswith("new_") or name.endswith("_like") else reads), writes


def _copies_to_the_host(given: list[Tensor], result: Any, args: Any, kwargs: Any) -> str:
    """Why a copy from the device makes the host wait; "" if it is none, or does not."""
    there = any(tensor.device.type != "cpu" for tensor in given)
    back = there and any(tensor.device.type == "cpu" for tensor in outputs(result))
    behind = kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True)  # copy_(self, source, non_blocking)
    return "it copies from the device" if back and not behind else ""
