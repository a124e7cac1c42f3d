"""``speedup``: how much faster a candidate is than a baseline, measured in one process, one after the other in turn."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testkit._loaded import loaded
from testkit.errors import KernelsError
from testkit.kernels._cuda_graph import captured

__tracebackhide__ = True  # pytest shows the line that called us, not ours

RESAMPLES = 2_000
WARM_UP = 3
"""Calls before the first round, for compilers, tuners and caches."""
CPU_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
"""The size of the last-level cache on Linux, such as ``32768K``."""
USUAL_CACHE, LARGEST_FLUSH = 32 * 2**20, 128 * 2**20
"""Bytes: taken for a cache whose size is not known, and flushed at most between calls on the CPU."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Speedup:
    """``ratio``: the baseline's median over the candidate's; above 1 the candidate is faster. It lies between ``low``
    and ``high`` with ``confidence``. ``baseline`` and ``candidate``: medians in seconds, of ``rounds`` calls each, of
    use beside each other only. ``mode`` ("eager", "graph"), ``caches`` and ``clock`` say how it was measured.
    """

    ratio: float
    low: float
    high: float
    confidence: float
    baseline: float
    candidate: float
    rounds: int
    mode: str
    caches: str
    clock: str

    def __str__(self) -> str:
        medians = f"{self.baseline * 1e6:.1f} us and {self.candidate * 1e6:.1f} us"
        return (
            f"{self.ratio:.3f}x ({self.confidence:.0%} interval {self.low:.3f} to {self.high:.3f}): medians {medians} "
            f"of {self.rounds} interleaved rounds, {self.mode}, {self.caches}, {self.clock}"
        )


def speedup(
    baseline: Callable[..., object],
    candidate: Callable[..., object],
    *,
    inputs: Sequence[Sequence[Any]] | None = None,
    graph: bool = False,
    rounds: int = 100,
    confidence: float = 0.95,
    seed: int = 0,
) -> Speedup:
    """The ratio of the medians of ``baseline`` and ``candidate``, with an interval. It asserts nothing::

        found = speedup(old, new)
        assert found.low > 1.1, found

    In each of ``rounds`` rounds (10 or more) both are called once, in random order, so that drift of clocks and
    temperature meets both. Without ``inputs`` both take no arguments, and the last-level cache is overwritten before
    each call. ``inputs``: sets of arguments, 2 or more, that are given in turn instead (rotated buffers); together
    they should be larger than the cache. ``graph``: each call (with each set) is captured in a CUDA graph, and
    replays are timed; otherwise the calls as they are, launch included.

    Clock: CUDA events if the functions have started CUDA in this process, else ``time.perf_counter``. The interval is
    the bootstrap's percentile interval over ``rounds``, which are drawn as pairs (B. Efron and R. J. Tibshirani, "An
    Introduction to the Bootstrap", 1993, chapter 13), 2,000 resamples from ``seed``. It covers the noise within this
    run, not the difference between machines.

    Raises ``KernelsError`` for arguments that cannot be used, ``graph`` without CUDA, and calls too short to time.
    """
    _check(inputs, rounds, confidence)
    sets = [()] if inputs is None else [tuple(one) for one in inputs]
    calls = [[_bound(fn, one) for one in sets] for fn in (baseline, candidate)]
    for call in (call for each in calls for call in each):
        for _ in range(WARM_UP):
            call()
    torch = loaded("torch")
    on_cuda = torch is not None and torch.cuda.is_initialized()
    if graph:
        if not on_cuda:
            fix = "leave graph out on the CPU"
            raise KernelsError("graph=True, and the functions have not started CUDA", "argument of speedup", fix)
        calls = [[_replays(call) for call in each] for each in calls]
    flush, caches = _flusher(on_cuda) if inputs is None else (None, f"{len(sets)} rotated sets of inputs")
    times = (_times_by_events if on_cuda else _times_by_clock)(calls, rounds, flush, random.Random(seed))
    before, after = (statistics.median(some) for some in times)
    if not min(before, after) > 0:
        fix = "let one call do more work"
        raise KernelsError(f"medians of {before:g} s and {after:g} s are too short to time", "speedup", fix)
    low, high = _interval(*times, confidence, random.Random(seed))
    clock = "CUDA events" if on_cuda else "perf_counter"
    mode = "graph" if graph else "eager"
    return Speedup(before / after, low, high, confidence, before, after, rounds, mode, caches, clock)


def _check(inputs: Sequence[Sequence[Any]] | None, rounds: int, confidence: float) -> None:
    where = "argument of speedup"
    if inputs is not None and len(inputs) < 2:
        raise KernelsError(f"inputs has {len(inputs)} sets", where, "give 2 or more, or leave inputs out")
    if rounds < 10:
        raise KernelsError(f"rounds is {rounds}", where, "give 10 or more: an interval needs some")
    if not 0 < confidence < 1:
        raise KernelsError(f"confidence is {confidence}", where, "give a share, such as 0.95")


def _bound(fn: Callable[..., object], arguments: tuple[Any, ...]) -> Call:
    return lambda: fn(*arguments)


def _replays(call: Call) -> Call:
    """A replay of ``call``, which has been warmed up."""
    graph, _ = captured(call, "the function", "let it keep off the host while it is captured, or leave graph out")
    return lambda: graph.replay()


def _flusher(on_cuda: bool) -> tuple[Call, str]:
    """What pushes everything else out of the last-level cache, and what to say of it."""
    if on_cuda:
        import torch

        size = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size or USUAL_CACHE
        buffer = torch.empty(2 * size, dtype=torch.uint8, device="cuda")
        return buffer.zero_, f"L2 of {size / 2**20:.0f} MiB flushed"
    size = min(_cpu_cache(), LARGEST_FLUSH)
    source, target = bytes(size), bytearray(size)

    def copy() -> None:
        target[:] = source

    return copy, f"{size / 2**20:.0f} MiB of cache flushed"


def _cpu_cache() -> int:
    try:
        return int(CPU_CACHE.read_text().strip().removesuffix("K")) * 1024
    except (OSError, ValueError):
        return USUAL_CACHE


def _turns(calls: list[list[Call]], rounds: int, chance: random.Random) -> list[tuple[int, Call]]:
    """Which function is called when: both in each round, in random order, with the same set of inputs."""
    turns = []
    for number in range(rounds):
        order = [0, 1]
        chance.shuffle(order)
        turns += [(which, calls[which][number % len(calls[which])]) for which in order]
    return turns


def _times_by_clock(
    calls: list[list[Call]], rounds: int, flush: Call | None, chance: random.Random
) -> tuple[list[float], list[float]]:
    """Seconds of each call."""
    times: tuple[list[float], list[float]] = ([], [])
    for which, call in _turns(calls, rounds, chance):
        if flush is not None:
            flush()
        began = time.perf_counter()
        call()
        times[which].append(time.perf_counter() - began)
    return times


def _times_by_events(
    calls: list[list[Call]], rounds: int, flush: Call | None, chance: random.Random
) -> tuple[list[float], list[float]]:
    """Seconds of each call on the device. All is started before anything is read: the host waits for nothing."""
    import torch

    marks = []
    torch.cuda.synchronize()
    for which, call in _turns(calls, rounds, chance):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
        if flush is not None:
            flush()
        begin.record()
        call()
        end.record()
        marks.append((which, begin, end))
    torch.cuda.synchronize()
    times: tuple[list[float], list[float]] = ([], [])
    for which, begin, end in marks:
        times[which].append(begin.elapsed_time(end) / 1000)
    return times


def _interval(
    baseline: Sequence[float], candidate: Sequence[float], confidence: float, chance: random.Random
) -> tuple[float, float]:
    """The percentile interval of the ratio of medians; rounds are drawn as pairs."""
    pairs = list(zip(baseline, candidate, strict=True))
    ratios = []
    for _ in range(RESAMPLES):
        drawn = chance.choices(pairs, k=len(pairs))
        below = statistics.median(pair[1] for pair in drawn)
        ratios.append(statistics.median(pair[0] for pair in drawn) / below if below > 0 else float("inf"))
    ratios.sort()
    tail = int(RESAMPLES * (1 - confidence) / 2)
    return ratios[tail], ratios[-1 - tail]
