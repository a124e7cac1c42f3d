"""What stands in for ``torch.cuda`` while a simulated device is in use: streams, events, graphs, figures, seeds.

Everything on the simulated device happens at once, so streams and events order nothing. They keep what production code
asks of them: which stream is current, what was recorded when, and that ``synchronize`` makes the host wait.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

from testkit.errors import SyncsError
from testkit.syncs._backend import Capture, generator, tell
from testkit.syncs._copies import OURS
from testkit.syncs._seen import Seen

__tracebackhide__ = True  # pytest shows the line that called us, not ours

MEMORY = 80 * 1024**3
"""Bytes that the device says it has; it counts none of them as used."""


class _Current(threading.local):
    """The streams of this thread, the current one last; and the sync debug mode that was asked for."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []


_current = _Current()
_debug_mode = 0
_NUMBERS = count()


def _cuda() -> Any:
    import torch

    return torch.device("cuda", 0)


def tells(function: Any) -> Any:
    """Mark ``function`` as one that tells of its wait itself, so that the guard does not wrap it."""
    setattr(function, OURS, True)
    return function


def waited(operator: str) -> None:
    """The host waits for the device, or for a part of its work."""
    tell([Seen(operator, "synchronize")])


class Stream:
    """Stands in for ``torch.cuda.Stream``; what is queued on it has been done already."""

    def __init__(self, device: Any = None, priority: int = 0, **_unused: Any) -> None:
        self.device = _cuda()
        self.device_index = 0
        self.priority = priority
        self.stream_id = self.cuda_stream = next(_NUMBERS)

    def wait_stream(self, stream: Any) -> None:
        """Nothing is left to wait for."""

    def wait_event(self, event: Any) -> None:
        """Nothing is left to wait for."""

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return Capture.calls is not None

    @tells
    def synchronize(self) -> None:
        waited("Stream.synchronize")

    def __enter__(self) -> Stream:
        _current.streams.append(self)
        return self

    def __exit__(self, *_failure: object) -> None:
        _current.streams.pop()

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.cuda_stream:#x} (simulated)>"


class Event:
    """Stands in for ``torch.cuda.Event``; its times are the host's."""

    def __init__(self, *args: Any, enable_timing: bool = False, **_unused: Any) -> None:
        self.enable_timing = enable_timing
        self.device = _cuda()
        self.stream: Any = None
        self.at: float | None = None

    def record(self, stream: Any = None) -> None:
        self.stream = current_stream() if stream is None else stream
        self.at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing is left to wait for."""

    def query(self) -> bool:
        return True

    @tells
    def synchronize(self) -> None:
        waited("Event.synchronize")

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds of the host between both records."""
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end.at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float((end.at - self.at) * 1e3)


class CUDAGraph:
    """Stands in for ``torch.cuda.CUDAGraph``: keeps the calls of its capture, which run at once, and repeats them."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.calls: list[Callable[[], None]] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if Capture.calls is not None:
            raise SyncsError("a graph is being captured already", "simulated()", "end that capture first")
        Capture.calls = []

    def capture_end(self) -> None:
        self.calls, Capture.calls = Capture.calls or [], None

    def replay(self) -> None:
        for again in self.calls:
            again()

    def reset(self) -> None:
        self.calls = []

    def pool(self) -> tuple[int, int]:
        return (0, id(self))

    def instantiate(self) -> None:
        """A capture is ready as it is."""


class graph:
    """Stands in for ``torch.cuda.graph``."""

    def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, **_unused: Any) -> None:
        self.graph = cuda_graph
        self.stream = Stream() if stream is None else stream

    def __enter__(self) -> None:
        self.stream.__enter__()
        self.graph.capture_begin()

    def __exit__(self, *_failure: object) -> None:
        self.graph.capture_end()
        self.stream.__exit__()


def current_stream(device: Any = None) -> Stream:
    if not _current.streams:
        _current.streams.append(Stream())
    return _current.streams[-1]


def default_stream(device: Any = None) -> Stream:
    current_stream()
    return _current.streams[0]


def set_stream(stream: Any) -> None:
    current_stream()
    _current.streams[-1] = stream


class StreamContext:
    """Stands in for ``torch.cuda.stream(...)``; None keeps the stream that is current."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        current_stream()
        return None if self.stream is None else self.stream.__enter__()

    def __exit__(self, *_failure: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


@tells
def synchronize(device: Any = None) -> None:
    waited("torch.cuda.synchronize")


def begin() -> None:
    """Forget what an earlier use of the device left on this thread; to be called before anything is replaced."""
    global _debug_mode
    from testkit._loaded import loaded

    torch: Any = loaded("torch")
    _current.streams.clear()
    Capture.calls = None
    # Guards set it, and look whether it still is what they set.
    _debug_mode = int(torch.cuda.get_sync_debug_mode()) if torch.cuda.is_initialized() else 0


def _set_debug_mode(mode: int | str) -> None:
    global _debug_mode
    _debug_mode = {"default": 0, "warn": 1, "error": 2}.get(mode, 0) if isinstance(mode, str) else mode


def _seed(seed: int) -> None:
    generator().manual_seed(seed)


def _past_the_redirect(*_args: Any, **_kwargs: Any) -> None:
    raise SyncsError(
        "the device 'cuda' reached torch past the simulated one's redirect",
        "simulated()",
        "use the device that simulated() gives there: another thread, or C++ code, made this call",
    )


class Device:
    """Stands in for ``torch.cuda.device(...)``; there is one device, and it is current."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        """Current already."""

    def __exit__(self, *_failure: object) -> None:
        """Stays current."""


def _properties(*_args: Any, **_kwargs: Any) -> Any:
    return SimpleNamespace(
        name="testkit simulated device",
        major=9,
        minor=0,
        total_memory=MEMORY,
        multi_processor_count=132,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        L2_cache_size=50 * 1024**2,
        is_integrated=False,
        is_multi_gpu_board=False,
    )


def backend_module() -> Any:
    """``torch.simulated``: what torch's Python code asks of a backend that it does not know."""
    import torch

    return SimpleNamespace(
        is_initialized=_always(True),
        is_available=_always(True),
        current_device=_always(0),
        _is_in_bad_fork=_always(False),
        manual_seed_all=_seed,
        device_count=_always(1),
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16, torch.float32],
        get_rng_state=lambda device=None: generator().get_state(),
        set_rng_state=lambda state, device=None: generator().set_state(state),
        current_stream=current_stream,
        synchronize=synchronize,
    )


_FREE = (
    "_sleep",
    "empty_cache",
    "init",
    "ipc_collect",
    "set_per_process_memory_fraction",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "set_device",
)
_NO_BYTES = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")


def _always(value: Any) -> Callable[..., Any]:
    """A function of its own each time: torch's compiler keeps its rules by identity, one name an object."""
    return lambda *_args, **_kwargs: value


def of_cuda() -> dict[str, Any]:
    """What ``torch.cuda`` has while the simulated device is in use, by name."""
    return {
        **_figures(),
        **_random(),
        "_lazy_init": _past_the_redirect,
        "device": Device,
        "device_of": type("device_of", (Device,), {}),
        "Stream": Stream,
        "ExternalStream": type("ExternalStream", (Stream,), {}),
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": lambda stream: StreamContext(stream),
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "synchronize": synchronize,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "graph_pool_handle": _always((0, 0)),
        "is_current_stream_capturing": lambda: Capture.calls is not None,
        "make_graphed_callables": lambda callables, *_args, **_kwargs: callables,
    }


def _figures() -> dict[str, Any]:
    return {
        "_is_in_bad_fork": _always(False),
        "is_available": _always(True),
        "is_initialized": _always(True),
        "is_bf16_supported": _always(True),
        "device_count": _always(1),
        "current_device": _always(0),
        "get_device_name": lambda device=None: _properties().name,
        "get_device_capability": _always((9, 0)),
        "get_device_properties": _properties,
        "get_arch_list": lambda: ["sm_90"],
        "can_device_access_peer": _always(False),
        "mem_get_info": _always((MEMORY, MEMORY)),
        "memory_stats": lambda device=None: defaultdict(int),
        "memory_summary": _always("no memory is counted on the simulated device"),
        "utilization": _always(0),
        "get_sync_debug_mode": lambda: _debug_mode,
        "set_sync_debug_mode": _set_debug_mode,
        **{name: _always(0) for name in _NO_BYTES},
        **{name: _always(None) for name in _FREE},
    }


def _random() -> dict[str, Any]:
    return {
        "manual_seed": lambda seed: _seed(seed),
        "manual_seed_all": lambda seed: _seed(seed),
        "seed": lambda: generator().seed(),
        "initial_seed": lambda: generator().initial_seed(),
        "get_rng_state": lambda device=None: generator().get_state(),
        "set_rng_state": lambda state, device=None: generator().set_state(state),
        "get_rng_state_all": lambda: [generator().get_state()],
        "set_rng_state_all": lambda states: generator().set_state(states[0]),
    }


def of_accelerator() -> dict[str, Any]:
    """What ``torch.accelerator`` has."""
    return {
        "current_accelerator": lambda check_available=False: _type(),
        "is_available": _always(True),
        "device_count": _always(1),
        "current_device_index": _always(0),
        "current_device_idx": _always(0),
        "set_device_index": _always(None),
        "set_device_idx": _always(None),
        "current_stream": lambda device=None: current_stream(),
        "set_stream": lambda stream: set_stream(stream),
        "synchronize": tells(lambda device=None: waited("torch.accelerator.synchronize")),
        "empty_cache": _always(None),
        "reset_peak_memory_stats": _always(None),
        **{name: _always(0) for name in _NO_BYTES},
    }


def of_nvtx() -> dict[str, Any]:
    """What ``torch.cuda.nvtx`` has; there is no profiler that would read it."""
    return {name: _always(0) for name in ("mark", "range_push", "range_pop", "range_start", "range_end")}


def _type() -> Any:
    import torch

    return torch.device("cuda")
