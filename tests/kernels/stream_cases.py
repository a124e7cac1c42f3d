"""Work on several streams, healthy and each with one planted fault, for CUDA and for stand-ins.

Each case is a function of a device that returns ``parallel`` and ``serial``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Pair = tuple[Callable[[], Any], Callable[[], Any]]
Case = Callable[[str], Pair]


def rows(device: str) -> Tensor:
    return torch.arange(24.0, device=device).reshape(4, 6)


def forked_and_joined(device: str, *, fork: bool = True, join: bool = True, capturable: bool = True) -> Pair:
    x = rows(device)
    side = torch.cuda.Stream()

    def parallel() -> Any:
        main = torch.cuda.current_stream()
        y = x * 2
        if fork:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            z = y + 1
        w = y * 3
        if join:
            main.wait_stream(side) if capturable else side.synchronize()
        z.record_stream(main)
        y.record_stream(side)
        return {"z": z, "w": w}

    return parallel, lambda: {"z": x * 2 + 1, "w": x * 2 * 3}


def missing_fork(device: str) -> Pair:
    return forked_and_joined(device, fork=False)


def missing_join(device: str) -> Pair:
    return forked_and_joined(device, join=False)


def joined_by_the_host(device: str) -> Pair:
    return forked_and_joined(device, capturable=False)


def by_events(device: str, *, early: bool = False, unrecorded: bool = False) -> Pair:
    """Three streams in a row, each waiting for an event of the one before."""
    x = rows(device)
    second, third = torch.cuda.Stream(), torch.cuda.Stream()

    def parallel() -> Tensor:
        begun, half, done = torch.cuda.Event(), torch.cuda.Event(), torch.cuda.Event()
        begun.record()
        second.wait_event(begun)
        with torch.cuda.stream(second):
            y = x * 2
            if early:
                half.record()
            z = y + 1
            if not early and not unrecorded:
                half.record()
        third.wait_event(half)
        if unrecorded:
            third.wait_event(begun)
            half.record(second)
        with torch.cuda.stream(third):
            out = z * 2
            done.record()
        done.wait()
        out.record_stream(torch.cuda.current_stream())
        return out

    return parallel, lambda: (x * 2 + 1) * 2


def event_too_early(device: str) -> Pair:
    return by_events(device, early=True)


def event_never_recorded(device: str) -> Pair:
    """CUDA lets a wait pass whose event was not recorded yet."""
    return by_events(device, unrecorded=True)


def halves(device: str, *, overlap: int = 0, rejoin: bool = True) -> Pair:
    """Two streams write columns of one output: their addresses interleave, their bytes do not."""
    x, out = rows(device), torch.zeros(4, 6, device=device)
    side = torch.cuda.Stream()

    def parallel() -> Tensor:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            out[:, : 3 + overlap].copy_(x[:, : 3 + overlap] * 2)
        out[:, 3:].copy_(x[:, 3:] * 2)
        main.wait_stream(side)
        return out.clone()

    return parallel, lambda: x * 2


def alias_of_two_streams(device: str) -> Pair:
    """Both streams write the fourth column, each through a view of its own."""
    return halves(device, overlap=1)


def overwritten_while_read(device: str) -> Pair:
    """The caller's stream reuses a workspace that the other one still reads."""
    x, workspace = rows(device), torch.zeros(4, 6, device=device)
    side = torch.cuda.Stream()

    def parallel() -> Any:
        main = torch.cuda.current_stream()
        workspace.copy_(x)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = workspace * 2
        workspace.zero_()
        z = workspace + 1
        main.wait_stream(side)
        y.record_stream(main)
        return y, z

    return parallel, lambda: (x * 2, torch.ones_like(x))


def next_call_overwrites(device: str) -> Pair:
    """Right once; the second call writes what the first one's side stream may still read."""
    x, workspace = rows(device), torch.zeros(4, 6, device=device)
    side, log = torch.cuda.Stream(), torch.zeros(4, 6, device=device)

    def parallel() -> Tensor:
        workspace.copy_(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            log.copy_(workspace)
        return x * 2

    return parallel, lambda: x * 2


def freed_while_read(device: str) -> Pair:
    """A temporary of the caller's stream goes while the other one reads it; the next buffer may be the same memory."""
    x = rows(device)
    side = torch.cuda.Stream()

    def parallel() -> Any:
        main = torch.cuda.current_stream()
        temporary = x * 2
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = temporary + 1
        del temporary
        z = x * 5
        main.wait_stream(side)
        y.record_stream(main)
        return y, z

    return parallel, lambda: (x * 2 + 1, x * 5)


HEALTHY: list[Case] = [forked_and_joined, by_events, halves]
ME, SIDE, LINE = "  the caller's stream: ", "  stream 1: ", r"stream_cases.py:\d+"
UNORDERED = f"{LINE}, and nothing orders them"
FAULTS: dict[Case, str] = {
    missing_fork: rf"{ME}mul writes {LINE}\n  {SIDE}add reads {UNORDERED}",
    missing_join: rf"{SIDE}add writes {LINE}\n  {ME}the caller reads output\['z'\] after the call, and nothing orders",
    event_too_early: rf"{SIDE}add writes {LINE}\n    stream 2: mul reads {UNORDERED}",
    event_never_recorded: rf"(?s){SIDE}add writes .*\n  {LINE} waits for an event that nothing had recorded yet",
    alias_of_two_streams: rf"{SIDE}copy_ writes {LINE}\n  {ME}copy_ writes {UNORDERED}",
    overwritten_while_read: rf"{SIDE}mul reads {LINE}\n  {ME}zero_ writes {UNORDERED}",
    next_call_overwrites: rf"{SIDE}copy_ reads {LINE}\n  {ME}copy_ writes {UNORDERED}",
    freed_while_read: rf"{SIDE}add reads {LINE}\n  {ME}mul writes {LINE}, may be given the same memory",
    joined_by_the_host: rf"no CUDA graph could capture it\n  the host waits: Stream.synchronize\(\), {LINE}\n",
}
