"""Which accesses to memory are ordered by streams, events and waits of the host, and which are not.

Vector clocks: C. J. Fidge, "Timestamps in Message-Passing Systems That Preserve the Partial Ordering" (1988), with one
entry a stream. Operations of a stream happen in their order; an event carries the clock of its stream when it is
recorded into the streams that wait for it; what the host has waited for is before all that it starts later.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

Stream = Hashable
Clock = dict[Stream, int]


@dataclass(frozen=True)
class Memory:
    """The bytes of a tensor: address of its first element, sizes, strides in bytes, bytes of an element."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    width: int

    @property
    def end(self) -> int:
        """The address after its last byte."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return self.start + last + self.width

    def overlaps(self, other: Memory) -> bool:
        """Do both have a byte in common? Columns of one matrix do not, though their addresses interleave."""
        if self.end <= other.start or other.end <= self.start:
            return False
        import torch

        base, end = min(self.start, other.start), max(self.end, other.end)
        maps = []
        for one in (self, other):
            touched = torch.zeros(end - base, dtype=torch.bool, device="cpu")
            touched.as_strided((*one.shape, one.width), (*one.strides, 1), one.start - base).fill_(True)
            maps.append(touched)
        return bool((maps[0] & maps[1]).any())


@dataclass(frozen=True)
class Access:
    """``stream`` reads or writes ``memory`` at its ``time``; ``what`` and ``place`` say by which line."""

    stream: Stream
    time: int
    writes: bool
    memory: Memory
    what: str
    place: str


@dataclass
class Block:
    """Memory that was allocated as one. ``shared`` are the streams of ``record_stream``."""

    owner: Stream
    accesses: dict[tuple[Stream, bool, Memory], Access] = field(default_factory=dict)
    shared: set[Stream] = field(default_factory=set)


@dataclass(frozen=True)
class Race:
    """Two accesses that nothing orders. ``reused``: the first one's memory was freed, and may be the second one's."""

    first: Access
    second: Access
    reused: bool = False


class History:
    """What happened on which stream, as far as it was reported in the order in which the host started it."""

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.races: dict[tuple[str, ...], Race] = {}
        self.early_waits: list[str] = []
        """Waits for events that nothing had recorded yet: they order nothing."""
        self.host_waits: list[str] = []
        self.unforked: dict[Stream, str] = {}
        """Streams that did something before they had waited for the caller's, and where."""
        self.operations: Clock = {}
        self._clocks: dict[Stream, Clock] = {origin: {origin: 1}}
        self._host: Clock = {}
        self._events: dict[Hashable, Clock] = {}
        self._last: dict[Stream, str] = {}
        self._began = 1
        self._freed: list[Block] = []

    def begins(self) -> None:
        """A call begins: streams have to wait for what the caller's has done so far."""
        self._clocks[self.origin][self.origin] += 1
        self._began = self._clocks[self.origin][self.origin]

    def unjoined(self) -> dict[Stream, str]:
        """Streams for whose work the caller's has not waited, and where their last operation was started."""
        joined = self._clock(self.origin)
        others = (stream for stream in self.operations if stream != self.origin)
        return {other: self._last[other] for other in others if joined.get(other, 0) < self._clocks[other][other]}

    def runs(self, stream: Stream, place: str) -> int:
        """An operation is started on ``stream``; its time."""
        clock = self._clock(stream)
        clock[stream] = clock.get(stream, 0) + 1
        self.operations[stream] = self.operations.get(stream, 0) + 1
        self._last[stream] = place
        if stream != self.origin and clock.get(self.origin, 0) < self._began:
            self.unforked.setdefault(stream, place)
        return clock[stream]

    def touches(self, block: Block, access: Access) -> None:
        """``access`` is to ``block``: note it, and each earlier one that conflicts with it and is not before it."""
        for earlier in block.accesses.values():
            conflict = (access.writes or earlier.writes) and not self._is_before(earlier, access.stream)
            if conflict and access.memory.overlaps(earlier.memory):
                self._note(Race(earlier, access))
        # The latest access of a stream stands for its earlier ones to the same bytes: they are before it.
        block.accesses[access.stream, access.writes, access.memory] = access

    def allocates(self, access: Access) -> None:
        """A new tensor is made on ``access.stream``. Freed memory that the stream had allocated may become its own."""
        for block in list(self._freed):
            if block.owner != access.stream:
                continue
            pending = [one for one in block.accesses.values() if not self._is_before(one, access.stream)]
            for one in pending:
                if one.stream not in block.shared:
                    self._note(Race(one, access, reused=True))
            self._freed.remove(block)

    def frees(self, block: Block) -> None:
        """The last tensor with memory in ``block`` is gone."""
        self._freed.append(block)

    def records(self, event: Hashable, stream: Stream) -> None:
        self._events[event] = dict(self._clock(stream))

    def waits(self, stream: Stream, event: Hashable, place: str) -> None:
        """``stream`` waits for the last recording of ``event``; CUDA lets it pass if there was none."""
        if event in self._events:
            _join(self._clock(stream), self._events[event])
        else:
            self.early_waits.append(place)

    def host_waits_for_event(self, event: Hashable, what: str) -> None:
        self.host_waits.append(what)
        _join(self._host, self._events.get(event, {}))

    def host_waits_for(self, stream: Stream | None, what: str) -> None:
        """The host waits for all that ``stream`` was given so far; None: for all streams."""
        self.host_waits.append(what)
        for one in list(self._clocks) if stream is None else [stream]:
            _join(self._host, self._clock(one))

    def _clock(self, stream: Stream) -> Clock:
        clock = self._clocks.setdefault(stream, {})
        _join(clock, self._host)
        return clock

    def _is_before(self, access: Access, stream: Stream) -> bool:
        return access.stream == stream or self._clock(stream).get(access.stream, 0) >= access.time

    def _note(self, race: Race) -> None:
        one, other = race.first, race.second
        self.races.setdefault((one.what, one.place, other.what, other.place, str(race.reused)), race)


def _join(clock: Clock, other: Clock) -> None:
    for stream, time in other.items():
        clock[stream] = max(clock.get(stream, 0), time)
