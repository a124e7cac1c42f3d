"""``channel``: how ranks talk while they run: values in a queue, barriers and events, through a Unix socket.

Every operation is one short connection to the runner's ``Board``: no thread, lock or socket is kept between two
operations, so that any thread of a rank and any child of it may use the same channel, also right after a fork.

A message is a fixed part (the sizes of head and value), the head (JSON, which the runner reads) and the value (a
pickle, which the runner only passes on). After its request a client may still say one byte: that it has given up, or
that the value that it got is whole.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from testkit.errors import ProcessesError

SIZES = struct.Struct("!IQ")
"""Bytes of the head and of the value."""

HEAD_LIMIT = 1 << 16
"""Bytes that a head may have; a name of ``NAME_LIMIT`` characters fits in however it is escaped."""

NAME_LIMIT = 1_000
"""Characters of a key, a barrier's or an event's name."""

LONGEST = 1_000_000
"""Seconds that a time limit may have; sockets take no more than 24 days."""

ANSWER_LIMIT = 10.0
"""Seconds between two signs of life from the runner, once a client has given up and waits for a last answer."""

TAKEN, GAVE_UP = b"+", b"-"

NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""Flag for sending: no SIGPIPE, which a test may have set to end the process."""

CALLS = {
    "put": "channel.put(key={!r})",
    "get": "channel.get({!r})",
    "barrier": "channel.barrier({!r})",
    "set": "channel.event({!r}).set()",
    "is_set": "channel.event({!r}).is_set()",
    "wait": "channel.event({!r}).wait()",
}
"""Operations, and how a message names them."""


@dataclass(frozen=True)
class Request:
    """What a rank asks for: an operation (of ``CALLS``) on a key, a barrier or an event."""

    operation: str
    name: str
    rank: int

    def __str__(self) -> str:
        return CALLS[self.operation].format(self.name)


def packed(head: object, value_size: int = 0) -> bytes:
    """The beginning of a message; so many bytes of a value follow it."""
    text = json.dumps(head).encode("ascii")
    return SIZES.pack(len(text), value_size) + text


@dataclass(frozen=True)
class Channel:
    """The line between the ranks of one run; a body that names ``channel`` gets its rank's.

    Any thread of the rank may use it, and its children, for which it travels like any value. It works while the
    bodies run: the runner owns the socket. Keys and names are texts; each of ``put``/``get``, ``barrier`` and
    ``event`` has names of its own. A ``timeout`` is in seconds, 0 for one look, None to wait as long as the run lasts.
    All raise ``ProcessesError`` for arguments that cannot be used, and if the runner does not answer any more.
    """

    address: str
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        if not self.address:  # the runner has no board
            fix = "run this on Linux or macOS, or without channel"
            raise ProcessesError("this platform has no Unix sockets, which channel needs", "channel", fix)

    def put(self, value: object, key: str = "") -> None:
        """Append a value to the queue ``key``; returns when the runner has all of it, not when somebody gets it.

        It travels by cloudpickle, as a copy; raises ``ProcessesError`` if it cannot.
        """
        self._ask("put", key, value=_pickled(value, key))

    def get(self, key: str = "", timeout: float | None = None) -> Any:
        """The oldest value of the queue ``key``, which no other ``get`` receives; waits for one.

        Raises ``TimeoutError`` if none came; the queue is then as it was. A value that a client did not receive whole
        (it ended, or gave up) is the next one's.
        """
        import pickle

        _, data = self._ask("get", key, timeout=timeout)
        try:
            return pickle.loads(data)
        except Exception as error:  # a foreign class may raise anything
            problem = f"the value under {key!r} cannot be rebuilt: {type(error).__name__}: {error}"
            raise ProcessesError(problem, f"channel.get in rank {self.rank}", "put plain values") from error

    def barrier(self, name: str = "", timeout: float | None = None) -> None:
        """Wait until every rank has called this; then it begins anew, for any number of rounds.

        Raises ``TimeoutError``, which names the ranks that have not come; the round goes on without this rank, which
        may come again. Raises ``ProcessesError`` at once if another thread or child of this rank waits in it already.
        """
        self._ask("barrier", name, timeout=timeout)

    def event(self, name: str) -> Event:
        """A flag that all ranks see under this name; not set at first."""
        return Event(self, name)

    def _ask(
        self, operation: str, name: str, *, value: bytes = b"", timeout: float | None = None
    ) -> tuple[dict[str, Any], bytearray]:
        """The head of the runner's answer and the value that came with it."""
        request = Request(operation, name, self.rank)
        _check(request, timeout)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                head, data = self._exchange(link, request, value, timeout)
        except (ConnectionError, FileNotFoundError) as error:
            problem = f"the runner does not answer {request}: {type(error).__name__}: {error}"
            fix = "use the channel only while the bodies run"
            raise ProcessesError(problem, f"rank {self.rank}, socket {self.address}", fix) from None
        if "late" in head:
            raise self._late(request, timeout, head["late"])
        if "refused" in head:
            fix = "let each rank come once a round, or give each barrier a name of its own"
            raise ProcessesError(head["refused"], str(request), fix)
        return head, data

    def _exchange(
        self, link: socket.socket, request: Request, value: bytes, timeout: float | None
    ) -> tuple[dict[str, Any], bytearray]:
        deadline = None if timeout is None else time.monotonic() + timeout
        link.connect(self.address)  # without a limit: with one, a full queue would be an error at once
        link.sendall(packed(vars(request), len(value)), NO_SIGNAL)
        link.sendall(value, NO_SIGNAL)
        if not _arrives(link, deadline):
            # The runner decides: it has the only clock that all ranks share, and an answer may be on its way.
            link.sendall(GAVE_UP, NO_SIGNAL)
            link.settimeout(ANSWER_LIMIT)
        try:
            head_size, value_size = SIZES.unpack(_received(link, SIZES.size))
            head, data = json.loads(_received(link, head_size)), _received(link, value_size)
        except TimeoutError:
            raise self._late(request, timeout, f"and the runner has not answered for {ANSWER_LIMIT:g} s") from None
        if request.operation == "get":
            with suppress(OSError):  # the value is here, whoever has gone
                link.sendall(TAKEN, NO_SIGNAL)
        return head, data

    def _late(self, request: Request, timeout: float | None, why: str) -> TimeoutError:
        return TimeoutError(f"rank {self.rank} waited {timeout:g} s in {request}: {why}")


@dataclass(frozen=True)
class Event:
    """A flag that all ranks of a run see; it stays set."""

    channel: Channel
    name: str

    def set(self) -> None:
        """Set it and let all go on that wait for it; again does nothing."""
        self.channel._ask("set", self.name)

    def is_set(self) -> bool:
        """Has any rank set it?"""
        return bool(self.channel._ask("is_set", self.name)[0]["set"])

    def wait(self, timeout: float | None = None) -> None:
        """Return when it is set; raises ``TimeoutError`` if it was not in ``timeout`` seconds."""
        self.channel._ask("wait", self.name, timeout=timeout)


def _check(request: Request, timeout: object) -> None:
    where = f"{CALLS[request.operation].partition('(')[0]} in rank {request.rank}"
    if not isinstance(request.name, str) or len(request.name) > NAME_LIMIT:
        shown = repr(request.name)
        problem = f"the name is {shown if len(shown) <= 80 else shown[:77] + '...'}"
        raise ProcessesError(problem, where, f"give a text of at most {NAME_LIMIT:,} characters")
    if timeout is not None and not (isinstance(timeout, (int, float)) and 0 <= timeout <= LONGEST):
        fix = f"give seconds from 0 to {LONGEST:,}, or None to wait without a limit"
        raise ProcessesError(f"timeout is {timeout!r}", where, fix)


def _pickled(value: object, key: str) -> bytes:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:  # a foreign __reduce__ may raise anything
        kind = type(value).__qualname__
        problem = f"a {kind} put under {key!r} cannot be sent: {type(error).__name__}: {error}"
        raise ProcessesError(problem, "channel.put", "put plain values") from error
    return data


def _arrives(link: socket.socket, deadline: float | None) -> bool:
    """Wait until the answer begins; False if it has not by the deadline."""
    if deadline is not None:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        link.settimeout(left)
    try:
        link.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    link.settimeout(None if deadline is None else ANSWER_LIMIT)
    return True


def _received(link: socket.socket, size: int) -> bytearray:
    """So many bytes; raises ``ConnectionResetError`` if the connection ends before."""
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = link.recv_into(rest)
        if not count:
            raise ConnectionResetError("the connection was closed before the answer")
        rest = rest[count:]
    return data
