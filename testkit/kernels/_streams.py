"""``assert_stream_safe``: work on several streams gives the bits of the serial one, whichever stream is late."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from testkit._text import counted
from testkit.errors import KernelsError
from testkit.kernels._cuda_graph import captured
from testkit.kernels._delays import cycles_of, delayed, length, poison_free_memory
from testkit.kernels._fake_streams import are_fake, fake_streams
from testkit.kernels._happens_before import Access, History, Race, Stream
from testkit.kernels._poison import fill_memory
from testkit.kernels._stream_recorder import Recorder, key_of
from testkit.kernels._tensors import KernelFailed, Leaves, differences, has_elements, leaves, snapshot, tensors

__tracebackhide__ = True  # pytest shows the line that called us, not ours

CALLS = 2
"""Recorded calls, one directly after the other: the second must not overwrite what the first still reads."""
SHOWN = 5
"""Races that a failure lists."""


@dataclass(frozen=True)
class StreamReport:
    """What ``assert_stream_safe`` saw: ``streams``, how many distinct ones did something in two calls together, the
    caller's included; ``operations`` on all of them; ``delayed``, how many were held up in turn (0 without CUDA), by
    ``delay`` seconds before each operation; ``captured``, whether a CUDA graph was captured and replayed.
    """

    streams: int
    operations: int
    delayed: int = 0
    delay: float = 0.0
    captured: bool = False

    def __str__(self) -> str:
        how = f"each delayed by {self.delay * 1000:.1f} ms" if self.delayed else "order of accesses recorded on the CPU"
        graph = ", captured in a CUDA graph" if self.captured else ""
        return f"{counted(self.streams, 'stream')}, {counted(self.operations, 'operation')}, {how}{graph}"


def assert_stream_safe(
    parallel: Callable[[], Any],
    serial: Callable[[], Any],
    *,
    workspaces: Sequence[Any] = (),
    capture: bool = True,
) -> StreamReport:
    """``parallel()``, which uses several streams, returns the bits of ``serial()``, whichever of its streams is late.

    Both take no arguments and return tensors of any dtype and shape, or containers of some; they may be called many
    times. ``workspaces``: memory that they write and read, as ``poisoned`` takes it; it is filled with NaN before each
    call of ``parallel``, so that nothing right is left in it.

    Everywhere ``parallel`` is called twice under a recorder: what each torch operation reads and writes, by address, so
    that views, slices and storages that share memory count, on which stream, and what events and waits order. Two
    accesses to the same bytes, one of them a write, that nothing orders are a race, and so is memory that is freed
    while another stream may still use it. Tensors from before the call count as written by the caller's stream, on
    which the results are read afterwards. Without CUDA streams are stand-ins (see ``fake_streams``).

    With CUDA each stream in turn is also held up by a spinning kernel before each of its operations, and the results
    must be the serial ones. With ``capture`` streams must be forked and joined by events, as under a CUDA graph, and
    the host must not wait in between; with CUDA the call is captured, and replayed twice.

    Returns a ``StreamReport``. Raises ``KernelFailed`` with both lines of each race, what is missing for a capture, and
    the elements that differ; ``KernelsError`` if only one stream was used, if ``serial`` differs from itself or
    returns no tensor, and if both return the same memory, in which the serial results would already be.
    """
    import torch

    with ExitStack() as stack:
        if not torch.cuda.is_available():
            stack.enter_context(fake_streams())
        real = not are_fake()
        expected, theirs = _serial(serial)
        before = torch.cuda.memory_allocated() if real else 0
        if real:
            torch.cuda.reset_peak_memory_stats()
        history, streams, seconds = _recorded(_apart(parallel, theirs, workspaces), expected, workspaces, capture)
        report = StreamReport(len(streams), sum(history.operations.values()))
        if not real:
            return report
        needed = 2 * (torch.cuda.max_memory_allocated() - before)
        delay = length(seconds, max(history.operations.values(), default=1))
        _delay_each(parallel, expected, workspaces, streams, needed, delay)
        if capture:
            _capture(parallel, expected, workspaces)
        return StreamReport(report.streams, report.operations, len(streams), delay, capture)


def _serial(serial: Callable[[], Any]) -> tuple[Leaves, list[Any]]:
    """A copy of the serial results, and what two calls returned."""
    returned = [serial()]
    expected = snapshot(returned[0], "output")
    if not has_elements(expected):
        raise KernelsError(
            "serial returned no tensor with elements", "argument of assert_stream_safe", "return tensors"
        )
    returned.append(serial())
    if lines := differences(leaves(returned[1], "output"), expected):
        fix = "make it deterministic, and let it start anew each time"
        raise KernelsError(f"serial differs from itself: {lines[0]}", "argument of assert_stream_safe", fix)
    return expected, returned


def _apart(parallel: Callable[[], Any], theirs: list[Any], workspaces: Sequence[Any]) -> Callable[[], Any]:
    """``parallel``, which raises if it returns memory that holds ``theirs``, the serial results, and is no workspace.

    The caller holds ``theirs`` as long as it calls the function, so that no address comes back.
    """
    # A pair (tensor, unused) is a tuple of which only the tensor counts.
    own = {_storage(each[0] if isinstance(each, tuple) and each else each) for each in workspaces}
    taken = {_storage(tensor) for _, tensor in tensors(theirs)} - own - {0}

    def checked() -> Any:
        returned = parallel()
        for name, tensor in tensors(returned, "output"):
            if tensor.numel() and _storage(tensor) in taken:
                problem = f"{name} of parallel lies in memory that serial returned, where the right results are already"
                fix = "name that memory by workspaces=, or let parallel return memory of its own"
                raise KernelsError(problem, "argument of assert_stream_safe", fix)
        return returned

    return checked


def _storage(tensor: Any) -> int:
    """The address of the storage of a dense tensor; 0 if it has none, and for what is no tensor."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (AttributeError, NotImplementedError, RuntimeError):
        return 0


def _recorded(
    parallel: Callable[[], Any], expected: Leaves, workspaces: Sequence[Any], capture: bool
) -> tuple[History, list[Any], float]:
    """The history of two calls, the streams in it, and the seconds of the second call. Raises for what is wrong."""
    import torch

    recorder = Recorder()
    history = recorder.history
    lines: list[str] = []
    unjoined: dict[Stream, str] = {}
    for call in range(CALLS):
        _poison(workspaces)
        torch.cuda.synchronize()
        began = time.perf_counter()
        with recorder.call():
            returned = parallel()
        unjoined |= history.unjoined()
        recorder.caller_reads(returned)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        wrong = differences(leaves(returned, "output"), expected)
        lines = lines or [f"call {call + 1}, {line}" for line in wrong]
        del returned
    streams = recorder.streams()
    if len(streams) < 2:
        fix = "let parallel enter another stream: with torch.cuda.stream(side)"
        raise KernelsError("parallel used one stream only", "argument of assert_stream_safe", fix)
    if not history.operations:
        fix = "give it tensors on CUDA, or call it within fake_streams(always=True)"
        raise KernelsError("parallel did nothing on CUDA", "argument of assert_stream_safe", fix)
    _judge(history, list(streams), unjoined, lines, capture)
    return history, list(streams.values()), seconds


def _judge(
    history: History, streams: Sequence[Stream], unjoined: dict[Stream, str], lines: list[str], capture: bool
) -> None:
    names = {stream: f"stream {number}" for number, stream in enumerate(streams)}
    names[history.origin] = "the caller's stream"
    found: dict[str, tuple[list[str], str]] = {}
    if history.races:
        races = list(history.races.values())
        # Where something is unordered, memory is reused too early as well: that follows, and is not the cause.
        races = [race for race in races if not race.reused] or races
        told = [line for race in races[:SHOWN] for line in _told(race, names)]
        told += [f"and {len(races) - SHOWN} more"] if len(races) > SHOWN else []
        early = dict.fromkeys(history.early_waits)
        told += [f"{place} waits for an event that nothing had recorded yet" for place in early]
        fix = "let the later stream wait for the earlier one: later.wait_stream(earlier), or an event between the lines"
        if all(race.reused for race in races):
            fix = "call tensor.record_stream(stream), or let the owner wait for the stream before the tensor goes"
        found[counted(len(races), "race")] = (told, fix)
    if capture:
        forks, joins = history.unforked.items(), unjoined.items()
        told = [f"{names[stream]} begins without a wait for the caller's: {place}" for stream, place in forks]
        told += [f"{names[stream]} ends, and the caller's does not wait for it: {place}" for stream, place in joins]
        told += [f"the host waits: {what}" for what in dict.fromkeys(history.host_waits)]
        fix = "fork with side.wait_stream(main), join with main.wait_stream(side), or give capture=False"
        if told:
            found["no CUDA graph could capture it"] = (told, fix)
    if lines:
        found["parallel differs from serial"] = (lines, "compute the same in both")
    if found:
        evidence = [line for told, _ in found.values() for line in told]
        raise KernelFailed(", ".join(found), evidence, "; ".join(fix for _, fix in found.values()))


def _told(race: Race, names: dict[Stream, str]) -> list[str]:
    def side(access: Access) -> str:
        verb = "writes" if access.writes else "reads"
        return f"{names[access.stream]}: {access.what} {verb} {access.place}"

    end = "may be given the same memory, which was freed" if race.reused else "and nothing orders them"
    return [side(race.first), f"  {side(race.second)}, {end}"]


def _poison(workspaces: Sequence[Any]) -> None:
    for workspace in workspaces:
        fill_memory(workspace, "nan")


def _delay_each(
    parallel: Callable[[], Any],
    expected: Leaves,
    workspaces: Sequence[Any],
    streams: Sequence[Any],
    needed: int,
    delay: float,
) -> None:
    """Call ``parallel`` once for each of ``streams``, with that one late. Raises if the results differ."""
    import torch

    cycles = cycles_of(delay)
    for number, stream in enumerate(streams):
        poison_free_memory(streams, needed)
        _poison(workspaces)
        torch.cuda.synchronize()
        with delayed(key_of(stream), cycles):
            returned = parallel()
        # Before anybody waits: read too early, on the caller's stream, as the caller would.
        found = snapshot(returned, "output")
        torch.cuda.synchronize()
        if lines := differences(found, expected):
            late = f"stream {number}" if number else "the caller's stream"
            raise KernelFailed(
                f"parallel differs from serial when {late} is late by {delay * 1000:.1f} ms before each operation",
                lines,
                "let the streams that read its results, or overwrite its inputs, wait for it",
            )
        del returned, found


def _capture(parallel: Callable[[], Any], expected: Leaves, workspaces: Sequence[Any]) -> None:
    import torch

    fix = "fork and join streams by events, keep the host out, or give capture=False"
    graph, returned = captured(parallel, "parallel", fix)
    for replay in ("first", "second"):
        _poison(workspaces)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        if lines := differences(leaves(returned, "output"), expected):
            fix = "join every stream before the results are read"
            raise KernelFailed(f"the {replay} replay of the captured call differs from serial", lines, fix)
