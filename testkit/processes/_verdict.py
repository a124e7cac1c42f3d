"""What became of each rank, and how to say it: the first failure first, then the state of all."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from testkit._evidence import Shown
from testkit._text import counted, table
from testkit.errors import ProcessesError
from testkit.processes import _rank_main as child
from testkit.processes._ladder import Ended

OURS = f'File "{child.__file__}", line'
SAMPLE = 0.5
"""Seconds between two looks at a rank's memory, for the verdict if it is killed."""
HEARSAY = 0.05
"""A peer's error within so many seconds of a rank's end follows from it: its message may be read before that end."""
HEADLINE, CELL = 200, 60
"""Characters of an error's first line that the headline and a row show; all of it is in the traceback."""
TAIL = 8_000
"""Bytes of a rank's output that are shown, from its end."""


class RanksFailed(Shown, ProcessesError):
    """Some rank failed. ``evidence`` has the state of all ranks, tracebacks, output and stacks."""


class Rank:
    """One rank as its parent sees it."""

    def __init__(self, number: int, process: Any, message: Any, word: Any, place: child.Place, alone: bool) -> None:
        self.number, self.process, self.alone = number, process, alone
        self.name = "the process" if alone else f"rank {number}"
        self.output, self.stack = Path(place.output), Path(place.stack)
        self._message, self._word = message, word
        self._buffer = bytearray()
        self.began = time.monotonic()
        self.ended: float | None = None
        self.started = self.late = False
        self.result: bytes = b""
        self.done = False
        self.failure: tuple[str, str] | None = None
        self.failed_at = self.said_at = 0.0
        self.skipped: str | None = None
        self.xfailed: str | None = None
        self.state = ""
        self.waits: list[str] = []
        self.threads: list[str] = []
        self.held: list[int] = []
        self.debugged = False
        self.memory = 0
        self._sampled = self.began

    def go(self) -> None:
        """Let the body begin."""
        try:
            os.write(self._word.fileno(), b"g")
        except BrokenPipeError:
            self.look()

    def close(self) -> None:
        self._message.close()
        self._word.close()

    def has_stack(self) -> bool:
        return self.stack.exists() and self.stack.stat().st_size > 0

    def stack_text(self) -> str:
        """The stack at the limit, without the frames below the body, which are ours."""
        if not self.has_stack():
            return ""
        lines, ours = [], False
        for line in self.stack.read_text(errors="replace").rstrip().splitlines():
            if line.startswith("Timeout ("):  # faulthandler's own headline
                continue
            ours = line.startswith("  ") and (ours or OURS in line)
            lines += [] if ours else [line]
        return "\n".join(lines)

    def sample(self) -> None:
        """Note its memory now and then: once it is killed, nobody knows."""
        now = time.monotonic()
        if self.ended is None and now - self._sampled >= SAMPLE:
            self._sampled = now
            self.memory = _resident(self.process.pid) or self.memory

    def leftovers(self, ended: Ended) -> Iterator[str]:
        """What remained of a rank that had said how it went."""
        if ended.rung not in ("join", "none") and self.said:
            held = f" by {counted(len(self.threads), 'thread')} ({', '.join(self.threads)})" if self.threads else ""
            yield f"{self.name} itself, kept from ending{held}"
        elif self.said and ended.exit_code:
            how = f"by {ended.signal}" if ended.signal else f"with exit code {ended.exit_code}"
            yield f"{self.name} ended {how} after it was done"

    @property
    def said(self) -> bool:
        """Has it said how it went?"""
        return self.done or self.failure is not None or self.skipped is not None or self.xfailed is not None

    @property
    def settled(self) -> bool:
        return self.said or self.ended is not None

    @property
    def failed(self) -> bool:
        return self.failure is not None or (self.ended is not None and not self.said)

    def look(self) -> bool:
        """The process ended: take in its last words. False, since there is no more to see."""
        self.read()
        if self.ended is None:
            self.ended = time.monotonic()
            self.failed_at = self.failed_at or self.ended
        return False

    def read(self) -> bool:
        """Take in what has arrived, without waiting; False at the pipe's end."""
        while True:
            try:
                part = os.read(self._message.fileno(), 1 << 20)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not part:
                if not self.said and not self.failed_at:  # it is ending; what it does to others was heard of later
                    self.failed_at = time.monotonic() - HEARSAY
                return False
            self._buffer += part
            self._take()

    def _take(self) -> None:
        size = child.HEADER.size
        while len(self._buffer) >= size:
            kind, length = child.HEADER.unpack_from(self._buffer)
            if len(self._buffer) < size + length:
                return
            data = bytes(self._buffer[size : size + length])
            del self._buffer[: size + length]
            self._hear(kind, data)

    def _hear(self, kind: bytes, data: bytes) -> None:
        if kind in (child.DONE, child.FAILED, child.SKIPPED, child.XFAILED):
            self.said_at = time.monotonic()
        if kind == child.STARTED:
            self.started = True
        elif kind == child.DONE:
            self.done, self.result = True, data
        elif kind == child.THREADS:
            self.threads = data.decode().splitlines()
        elif kind == child.HELD:
            self.held = [int(inode) for inode in data.split()]
        elif kind == child.DEBUGGED:
            self.debugged = True
        elif kind == child.SKIPPED:
            self.started, self.skipped = True, data.decode()
        elif kind == child.XFAILED:
            self.started, self.xfailed = True, data.decode()
        else:
            headline, _, trace = data.decode().partition("\0")
            self.started, self.failure, self.failed_at = True, (headline, trace), time.monotonic()

    @property
    def sending(self) -> bool:
        """Did it end in the middle of a message?"""
        return bool(self._buffer)


def look_at(pid: int) -> str:
    """A process's state, CPU share of its life and memory, before anyone disturbs it."""
    import psutil

    try:
        process = psutil.Process(pid)
        times, lived = process.cpu_times(), max(0.001, time.time() - process.create_time())
        share = 100 * (times.user + times.system) / lived
        return f"{process.status()}, {share:.0f} % of a core, {process.memory_info().rss / 2**20:.0f} MiB"
    except psutil.Error:
        return "gone"


def _resident(pid: int) -> int:
    """Bytes of memory that it holds; 0 if that cannot be read."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def verdict(
    ranks: Sequence[Rank], ended: Sequence[Ended], late: str, left: Sequence[str], where: str
) -> tuple[str, str, str, str]:
    """Problem, place, advice and evidence of a failed run."""
    fate = {one.pid: one for one in ended if not one.descendant}
    failed = sorted((rank for rank in ranks if rank.failed and not rank.late), key=lambda rank: rank.failed_at)
    stopped = [rank for rank in ranks if rank.late]
    first = failed[0] if failed else stopped[0]
    who = first.name
    if first.late and len(stopped) > 1:
        who = f"ranks {', '.join(str(rank.number) for rank in stopped)}"
    who = who if first.alone else f"{who} of {len(ranks)}"
    problem = f"{who} {_cause(first, fate.get(first.process.pid), late)}"
    fix = f"read the {'traceback' if first.failure is not None else 'output'} of {first.name} above"
    if first.late:
        fix = f"read the {'stacks' if len(stopped) > 1 else 'stack'} above, or give more time"
    elif first.failure is None and not _tail(first.output):
        fix = "look for what ended it: it wrote nothing, and its body did not return"
    rows = [_row(rank, fate.get(rank.process.pid), first, late) for rank in ranks]
    waits = [f"  {rank.name} waits {line}" for rank in ranks for line in rank.waits]
    sections = [section for rank in [*failed, *stopped] for section in _sections(rank)]
    remains = [f"  left behind: {line}" for line in left]
    return problem, where, fix, "\n".join([*table(rows), *waits, *remains, *sections])


def _cause(rank: Rank, ended: Ended | None, late: str) -> str:
    if rank.late:
        return late
    if rank.failure is not None:
        line = f"raised {rank.failure[0]}".splitlines()[0]
        return line if len(line) <= HEADLINE else f"{line[: HEADLINE - 3]}..."
    how = (ended and ended.signal) or f"exit code {ended.exit_code if ended else None}"
    how = "since its helper had ended" if getattr(rank.process, "lost", False) else how
    when = "while sending its result" if rank.sending else "without a result" if rank.started else "before it started"
    return f"ended {when}, {how}"


def _row(rank: Rank, ended: Ended | None, first: Rank, late: str) -> tuple[str, ...]:
    how = "?" if ended is None else ended.signal or f"exit {ended.exit_code}"
    if ended is not None and rank.said and ended.rung == "terminate":
        how = "ended by us"
    if rank.late or rank.failed:
        what = _cause(rank, ended, late)
        what = what if len(what) <= CELL else f"{what[: CELL - 3]}..."
    elif rank.said:
        what = "done" if rank.done else "skipped" if rank.skipped is not None else "xfailed"
    else:
        what = f"stopped because of {first.name}"
    if ended is not None and ended.rung == "kill" and ended.ignored > 0:
        what += f", ignored SIGTERM for {ended.ignored:.1f} s"
    elif ended is not None and ended.rung == "none":
        what += ", cannot be ended"
    state = rank.state
    if rank.failed and rank.failure is None and not rank.late and rank.memory:
        state = f"had {rank.memory / 2**20:.0f} MiB"
    seconds = (rank.said_at or rank.ended or time.monotonic()) - rank.began
    return (rank.name, f"pid {rank.process.pid}", how, f"{seconds:.1f} s", what, state)


def _sections(rank: Rank) -> list[str]:
    parts = []
    if rank.failure is not None:
        parts += [f"--- {rank.name}: traceback", rank.failure[1].rstrip()]
    if rank.late and rank.has_stack():
        parts += [f"--- {rank.name}: stack at the limit", rank.stack_text()]
    output = _tail(rank.output)
    if output:
        parts += [f"--- {rank.name}: output", output]
    return parts


def _tail(file: Path) -> str:
    if not file.exists():
        return ""
    size = file.stat().st_size
    with file.open("rb") as stream:
        stream.seek(max(0, size - TAIL))
        text = stream.read().decode(errors="replace").rstrip()
    return f"({size - TAIL:,} bytes left out)\n{text}" if size > TAIL else text
