"""A local port and what is behind it: a free one by binding, who listens on it, one HTTP request with one deadline."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from testkit.errors import ProcessesError
from testkit.processes._family import Family

__tracebackhide__ = True  # pytest shows the line that called us, not ours

HOST = "127.0.0.1"
REACHED = {HOST, "0.0.0.0", "::", "::ffff:127.0.0.1"}
"""Addresses whose listeners answer at ``HOST``."""
LOOKS, SECOND_LOOK = 3, 0.05
"""So often a stranger has to be seen on our port, and the seconds between."""
WATCH_EVERY = 0.2
"""Seconds that one wait for data lasts before ``watch`` is called again."""


class NoAnswer(Exception):
    """A request that got no HTTP response; ``connected``: something took the connection; ``late``: and said nothing."""

    def __init__(self, reason: str, *, connected: bool, late: bool = False) -> None:
        super().__init__(reason)
        self.connected, self.late = connected, late


@dataclass(frozen=True)
class Answer:
    """What a server answered; a status of 404 or 500 is an answer like any other."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8; what is none is replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body's JSON value; raises ``ValueError`` (with the beginning of the body) if it is none."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ValueError(f"status {self.status}, and no JSON: {self.text[:200]!r}") from error


def holds(answer: Any, expected: Any) -> bool:
    """Is this answer the one that ``wait_for`` waits for? Raises what ``expected`` raises."""
    if callable(expected):
        return bool(expected(answer))
    if not isinstance(answer, Answer):
        return bool(answer == expected)
    if isinstance(expected, int):
        return answer.status == expected
    if isinstance(expected, dict):
        return bool(expected.items() <= answer.json().items())
    return bool(answer.text.strip() == expected)


def checked_path(path: str, where: str) -> str:
    """``path`` as it can stand in a request; raises ``ProcessesError`` for any other."""
    if path.startswith("/") and path.isascii() and path.isprintable() and " " not in path:
        return path
    raise ProcessesError(f"path is {path!r}", where, 'begin it with "/", and quote spaces and what is not ASCII')


def bound(port: int = 0) -> socket.socket:
    """A socket bound to ``port`` of this machine's loopback, 0 for a free one; raises ``OSError`` if it is taken."""
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a port rests for a minute after its server
        taken.bind((HOST, port))
    except BaseException:
        taken.close()
        raise
    return taken


def listeners(port: int) -> set[int | None] | None:
    """The pids that listen on ``port``; a pid is None where we may not know it, and all is where nobody may ask."""
    found = _listening()
    return None if found is None else {pid for pid, ip, number in found if number == port and ip in REACHED}


def addresses(pid: int) -> list[str]:
    """Where ``pid`` and its family listen, reached from here or not."""
    ours = _family(pid)
    places = {(number, ip) for owner, ip, number in _listening() or () if owner in ours}
    return [f"[{ip}]:{number}" if ":" in ip else f"{ip}:{number}" for number, ip in sorted(places)]


def _listening() -> list[tuple[int | None, str, int]] | None:
    """Pid, address and port of every TCP listener; None where nobody may ask."""
    import psutil

    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:  # macOS tells this to root only
        return None
    return [(c.pid, c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN and c.laddr]


def _family(pid: int) -> set[int]:
    return {pid, *(process.pid for process in Family([pid], []).alive())}


def strangers(port: int, pid: int) -> set[int | None] | None:
    """Who listens on ``port`` and is neither ``pid`` nor of its family; None if nobody listens at all.

    Where listeners cannot be had, nobody is a stranger. One that begins to listen while we look has no pid at first,
    so that strangers are looked for again.
    """
    found: set[int | None] | None = None
    for look in range(LOOKS):
        time.sleep(SECOND_LOOK if look else 0)
        found = listeners(port)
        if found is None:
            return set()
        if not found:
            return None
        found -= _family(pid)
        if not found:
            break
    return found


def describe(pid: int | None) -> str:
    """A process for a message: its pid and, where they can be read, its first words."""
    import psutil

    if pid is None:
        return "a process of another user"
    try:
        command = " ".join(" ".join(psutil.Process(pid).cmdline()).split())
    except psutil.Error:
        command = ""
    return f"pid {pid} ({command[:120]})" if command else f"pid {pid}"


def ask(
    port: int,
    method: str,
    path: str,
    *,
    timeout: float,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    watch: Callable[[], None] = lambda: None,
) -> Answer:
    """One request, over within ``timeout`` seconds however slowly the server drips; raises ``NoAnswer``.

    ``watch`` is called while we wait, and may end the waiting by raising.
    """
    deadline = time.monotonic() + timeout
    request = f"{method} {path}"
    try:
        raw = socket.create_connection((HOST, port), timeout=timeout)
    except TimeoutError:
        reason = f"port {port} does not accept connections ({timeout:.1f} s)"
        raise NoAnswer(reason, connected=False) from None
    except OSError:
        raise NoAnswer(f"nothing listens on port {port}", connected=False) from None
    with raw:
        if raw.getsockname() == raw.getpeername():  # a port that nobody has can be connected to itself
            raise NoAnswer(f"nothing listens on port {port}", connected=False)
        connection = HTTPConnection(HOST, port)
        connection.sock = _Wire(raw, deadline, watch)
        try:
            connection.request(method, path, body, {"Connection": "close", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.read())
        except TimeoutError:
            reason = f"port {port} accepts connections but does not answer {request} in {timeout:.1f} s"
            raise NoAnswer(reason, connected=True, late=True) from None
        except OSError as error:  # RemoteDisconnected is one too
            reason = f"port {port} hung up on {request} ({type(error).__name__})"
        except HTTPException as error:
            reason = f"what answers {request} on port {port} is not HTTP ({type(error).__name__}: {error})"
        raise NoAnswer(reason, connected=True)


class _Wire:
    """As much of a socket as http.client uses, with one deadline for all its waits together."""

    def __init__(self, raw: socket.socket, deadline: float, watch: Callable[[], None]) -> None:
        self.raw, self.deadline, self.watch = raw, deadline, watch

    def left(self) -> float:
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def sendall(self, data: bytes) -> None:
        self.raw.settimeout(self.left())
        self.raw.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Http.client closes before the body was read; ``ask`` closes at its end."""


class _Reader(io.RawIOBase):
    def __init__(self, wire: _Wire) -> None:
        self.wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            self.wire.raw.settimeout(min(WATCH_EVERY, self.wire.left()))
            try:
                return self.wire.raw.recv_into(buffer)
            except TimeoutError:  # only now: what a server said before it ended is its answer
                self.wire.watch()
