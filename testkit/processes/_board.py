"""The runner's side of ``channel``: what ranks have put and whom they wait for, served from the runner's own loop.

The board never waits: its sockets take turns in a selector that somebody else runs, each for one read and one write.
It never unpickles a value, so that nothing of the ranks' runs here.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import selectors
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

from testkit.errors import ProcessesError
from testkit.processes._channel import CALLS, GAVE_UP, HEAD_LIMIT, NO_SIGNAL, SIZES, TAKEN, Request, packed

PATH_LIMIT = 103
"""Bytes of a socket's path that every platform takes (macOS 103, Linux 107)."""

SHORT = "/tmp"
"""Where a folder for the socket is made if the given one has too long a name."""

PART = 1 << 20
"""Bytes that are read at once from a socket."""


def _absent(ranks: list[int]) -> str:
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers} has not come" if len(ranks) == 1 else f"ranks {numbers} have not come"


class _Malformed(Exception):
    """Not a request of ours."""


class _Caller:
    """One connection: a request that arrives, then waits, then is answered."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.inbox = bytearray()
        self.outbox: list[memoryview] = []
        self.request: Request | None = None
        self.answered = False
        self.since = 0.0
        self.held: tuple[int, bytes] | None = None  # a value, until the caller says that it has it

    def read(self) -> None:
        """Take in what has arrived; raises ``EOFError`` if the caller is gone."""
        with suppress(BlockingIOError):
            part = self.link.recv(PART)
            if not part:
                raise EOFError
            self.inbox += part

    def write(self) -> None:
        """Send as much of the answer as goes now."""
        with suppress(BlockingIOError):
            count = self.link.send(self.outbox[0], NO_SIGNAL)
            self.outbox[0] = self.outbox[0][count:]
            if not self.outbox[0]:
                del self.outbox[0]

    def arrived(self) -> tuple[Request, bytes] | None:
        """The request and its value, once they are whole; raises ``_Malformed``."""
        if len(self.inbox) < SIZES.size:
            return None
        head_size, value_size = SIZES.unpack_from(self.inbox)
        if head_size > HEAD_LIMIT:
            raise _Malformed
        begin, end = SIZES.size + head_size, SIZES.size + head_size + value_size
        if len(self.inbox) < end:
            return None
        with memoryview(self.inbox) as whole:
            head, value = bytes(whole[SIZES.size : begin]), bytes(whole[begin:end])
        del self.inbox[:end]
        return _parsed(head), value


def _parsed(head: bytes) -> Request:
    try:
        request = Request(**json.loads(head))
    except (ValueError, TypeError, RecursionError):
        raise _Malformed from None
    if tuple(map(type, vars(request).values())) != (str, str, int) or request.operation not in CALLS:
        raise _Malformed
    return request


class Board:
    """Queues, barriers and events of one run of ``world_size`` ranks, behind one Unix socket.

    ``address`` is what a ``Channel`` needs; the socket lies in ``folder``, which must be private, or in one of the
    board's own where that path would be too long. The board registers its sockets with ``selector``, whose owner
    calls each key's ``data`` when the key is ready; these calls return True, also after the board has unregistered
    the socket itself. Close the board before the selector.
    """

    SUPPORTED: ClassVar[bool] = hasattr(socket, "AF_UNIX")
    """Has this platform Unix sockets? Without them there is no board; a ``Channel`` says so to a body that asks."""

    def __init__(self, selector: selectors.BaseSelector, folder: Path, world_size: int) -> None:
        self._selector, self._world_size = selector, world_size
        self._callers: dict[_Caller, None] = {}  # in order of their coming
        self._numbers = itertools.count()
        self._queues: dict[str, list[tuple[int, bytes]]] = {}  # heaps: what comes back finds its old place
        self._events: set[str] = set()
        path = folder / "channel"
        self._own_folder: Path | None = None
        if len(os.fsencode(path)) > PATH_LIMIT:
            self._own_folder = Path(tempfile.mkdtemp(prefix=f"testkit-channel-{os.getpid()}-", dir=SHORT))
            path = self._own_folder / "channel"
        self.address = str(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(self.address)
        self._listener.listen(socket.SOMAXCONN)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    # What the runner asks

    def waiting(self) -> dict[int, str]:
        """What each rank waits for now, for a message; the longest wait first where several threads wait."""
        texts: dict[int, list[str]] = {}
        now = time.monotonic()
        for caller, request in sorted(self._waiting(), key=lambda found: found[0].since):
            reason = f": {self._lacks(request)}" if request.operation == "barrier" else ""
            texts.setdefault(request.rank, []).append(f"in {request} for {now - caller.since:.1f} s{reason}")
        return {rank: " and ".join(texts[rank]) for rank in sorted(texts)}

    def unread(self) -> dict[str, int]:
        """How many values of each key nobody took; keys without any are left out."""
        for caller in list(self._callers):  # one that has ended by now may have said before that it has its value
            self._turn(caller)
        left = {key: len(queue) for key, queue in self._queues.items()}
        for caller in self._callers:
            if caller.request is not None and caller.held is not None:
                left[caller.request.name] += 1
        return {key: count for key, count in left.items() if count}

    def close(self) -> None:
        """Hang up on everybody and remove the socket; for when the ranks are gone."""
        self._selector.unregister(self._listener)
        # Shut down, since a forked process may have a copy, which would keep the socket open.
        for link in (self._listener, *(caller.link for caller in self._callers)):
            with suppress(OSError):  # the other side may be gone
                link.shutdown(socket.SHUT_RDWR)
        for caller in list(self._callers):
            self._drop(caller)
        self._listener.close()
        Path(self.address).unlink(missing_ok=True)
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    # Turns

    def _accept(self) -> bool:
        try:
            link, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return True
        except OSError as error:  # no descriptor is left: the loop would come back here for ever
            fix = "raise the limit (ulimit -n), or wait in fewer threads at once"
            raise ProcessesError(f"the runner cannot take a request: {error}", "channel", fix) from error
        link.setblocking(False)
        caller = _Caller(link)
        self._callers[caller] = None
        self._selector.register(link, selectors.EVENT_READ, partial(self._turn, caller))
        return True

    def _turn(self, caller: _Caller) -> bool:
        """Write to one caller, read from it, and act; whatever is wrong with it ends this connection only.

        Answers to other callers are only laid out here and written in their own turns.
        """
        try:
            if caller.outbox:
                caller.write()
                if not caller.outbox:
                    self._selector.modify(caller.link, selectors.EVENT_READ, partial(self._turn, caller))
            caller.read()
            if caller.request is None and (arrived := caller.arrived()) is not None:
                self._begin(caller, *arrived)
            if caller.request is not None:
                self._hear(caller)
        except (OSError, EOFError, _Malformed):
            self._drop(caller)
        return True

    def _drop(self, caller: _Caller) -> None:
        del self._callers[caller]
        self._selector.unregister(caller.link)
        caller.link.close()
        if caller.request is not None and caller.held is not None:
            heapq.heappush(self._queues[caller.request.name], caller.held)
            self._hand_out(caller.request.name)

    def _hear(self, caller: _Caller) -> None:
        """The bytes after a request."""
        for word in caller.inbox:
            if word == TAKEN[0] and caller.held is not None and not caller.outbox:
                caller.held = None
            elif word != GAVE_UP[0]:
                raise _Malformed
            elif not caller.answered and caller.request is not None:
                self._answer(caller, {"late": self._lacks(caller.request)})
        caller.inbox.clear()

    # What ranks ask

    def _begin(self, caller: _Caller, request: Request, value: bytes) -> None:
        name, rank = request.name, request.rank
        if not 0 <= rank < self._world_size:
            raise _Malformed
        caller.request, caller.since = request, time.monotonic()
        if request.operation == "put":
            heapq.heappush(self._queues.setdefault(name, []), (next(self._numbers), value))
            self._answer(caller, {})
            self._hand_out(name)
        elif request.operation == "get":
            self._hand_out(name)
        elif request.operation == "barrier":
            arrived = self._arrived(name)
            if arrived.count(rank) > 1:
                self._answer(caller, {"refused": f"rank {rank} waits in this barrier already"})
            elif len(arrived) == self._world_size:
                self._release("barrier", name)
        elif request.operation == "is_set":
            self._answer(caller, {"set": name in self._events})
        else:
            if request.operation == "set":
                self._events.add(name)
                self._answer(caller, {})
            if name in self._events:
                self._release("wait", name)

    def _hand_out(self, key: str) -> None:
        """Values to those that wait for them, both in order of their coming."""
        queue = self._queues.get(key, [])
        for caller in self._waiting_for("get", key):
            if not queue:
                return
            caller.held = heapq.heappop(queue)
            self._answer(caller, {}, caller.held[1])

    def _release(self, operation: str, name: str) -> None:
        for caller in self._waiting_for(operation, name):
            self._answer(caller, {})

    def _answer(self, caller: _Caller, head: dict[str, object], value: bytes = b"") -> None:
        caller.answered = True
        caller.outbox = [memoryview(part) for part in (packed(head, len(value)), value) if part]
        events = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(caller.link, events, partial(self._turn, caller))

    def _waiting(self) -> Iterator[tuple[_Caller, Request]]:
        for caller in self._callers:
            if caller.request is not None and not caller.answered:
                yield caller, caller.request

    def _waiting_for(self, operation: str, name: str) -> list[_Caller]:
        return [found for found, asked in self._waiting() if (asked.operation, asked.name) == (operation, name)]

    def _arrived(self, name: str) -> list[int]:
        return [asked.rank for _, asked in self._waiting() if (asked.operation, asked.name) == ("barrier", name)]

    def _lacks(self, request: Request) -> str:
        """Why this request cannot be answered yet."""
        if request.operation == "barrier":
            return _absent(sorted({*range(self._world_size)} - {*self._arrived(request.name)}))
        return "nobody put a value" if request.operation == "get" else "nobody set it"
