"""A server for the time of a test: started by us, ready by its own word, surely ours, and gone with all it started."""

from __future__ import annotations

import json as json_
import os
import re
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

from testkit.errors import ProcessesError
from testkit.processes import _guardian
from testkit.processes._family import TAG, carriers
from testkit.processes._ladder import Ended, signal_name, stop
from testkit.processes._output import Output, ServerError
from testkit.processes._port import HOST, Answer, NoAnswer, ask, bound, describe, holds, listeners, strangers

LOOK_EVERY = 0.05
"""Seconds between two looks at a server that is not there yet."""
TAIL = 40
"""Lines of output that a failure shows."""
FAIR = 0.25
"""A probe that the end of our waiting cut to fewer seconds than this says nothing about the server."""
LAST_BREATH = 0.5
"""Seconds that a server has to be seen dead after its connection broke, or after it lost its port."""
PORT_TAKEN = re.compile(r"address (is )?already in use|EADDRINUSE", re.IGNORECASE)

Ready = str | re.Pattern[str] | Callable[["Server"], bool]


class Server:
    """Run ``argv`` as a server while a ``with`` block lasts.

    ``{fd}`` in ``argv`` or ``env`` becomes the number of an inherited listening socket, the way without a race;
    ``{port}`` becomes a port that was free just before the start (should somebody take it meanwhile, the start is
    tried once more with another); without either the server prints its port, or ``port`` names it.

    ``ready``: a path that is answered with a status of 200 to 299; or a compiled pattern that is found in a line of
    output (its group ``port``, if it has one, is the port); or a function of the server. In addition whoever listens
    on the port has to be the server or a process that it started. A path's probes last ``probe_timeout`` seconds at
    most, all of it ``startup_timeout``; a function has to limit itself.

    ``env`` is added to this process's environment, PYTHONUNBUFFERED=1 and a run tag too. Output goes to the file
    ``log`` (None: a temporary one), input is empty. ``ladder``: the seconds that the server has for ending by
    itself, after SIGTERM, after SIGKILL.

    Entering raises ``ServerError`` if the server ends, with whatever code, is not ready in time, or is not what
    answers; ``ProcessesError`` for arguments that cannot be used.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        ready: Ready,
        log: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        port: int | None = None,
        startup_timeout: float = 30.0,
        probe_timeout: float = 2.0,
        ladder: tuple[float, float, float] = (0.0, 5.0, 5.0),
    ) -> None:
        self._argv, self._env = _checked_argv(argv), {name: str(word) for name, word in (env or {}).items()}
        words = [*self._argv, *self._env.values()]
        self._inherits = any("{fd}" in word for word in words)
        self._picks = not self._inherits and port is None and any("{port}" in word for word in words)
        self._ready, self._cwd, self._fixed, self._ladder = ready, cwd, port, ladder
        self._check(ready, {"startup_timeout": startup_timeout, "probe_timeout": probe_timeout}, ladder)
        self.startup_timeout, self.probe_timeout = startup_timeout, probe_timeout
        self._output = Output(None if log is None else Path(log))
        self._process: subprocess.Popen[bytes] | None = None
        self._began, self._seen, self._verified, self._line, self._robbed = 0.0, "", False, False, False
        self._port = port
        self.tag = ""
        self.ended: list[Ended] = []

    def _check(self, ready: Ready, limits: dict[str, float], ladder: Sequence[float]) -> None:
        by_path, said = isinstance(ready, str), isinstance(ready, re.Pattern)
        nowhere = not (self._inherits or self._picks or self._fixed or said)
        refusals = [
            (
                not (str(ready).startswith("/") if by_path else said or callable(ready)),
                f"ready is {ready!r}",
                'give a path like "/health", a compiled pattern, or a function',
            ),
            (nowhere, "nothing says the server's port", 'put "{port}" or "{fd}" into argv, or give port'),
            (self._inherits and os.name != "posix", "no socket is inherited on this platform", 'use "{port}"'),
            (
                len(ladder) != 3 or not all(s >= 0 for s in ladder),
                f"ladder is {ladder!r}",
                "give three times, in seconds",
            ),
            *((not s > 0, f"{name} is {s!r}", "give seconds, more than 0") for name, s in limits.items()),
        ]
        for refused, problem, fix in refusals:
            if refused:
                raise ProcessesError(problem, "argument of Server", fix)

    def __enter__(self) -> Server:
        try:
            self._start()
        except BaseException:
            self._output.forget()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self.stop()
            if isinstance(error, Exception) and not isinstance(error, ServerError) and hasattr(error, "add_note"):
                error.add_note(f"the last lines of the server:\n{self.log_tail()}")
        finally:
            self._output.forget()

    # What it is

    @property
    def pid(self) -> int:
        """The server's pid; raises ``ServerError`` if none was started."""
        return self._running().pid

    @property
    def port(self) -> int:
        """The port that it listens on; raises ``ServerError`` while nobody knows."""
        if self._port is None:
            raise self._failure("the server's port is not known", "give ready a pattern with a group named port")
        return self._port

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    def log_tail(self, lines: int = TAIL) -> str:
        """The last ``lines`` that it wrote since its last start; also after the block."""
        return "\n".join(self._output.tail(lines))

    # What it is asked

    def get(self, path: str, *, timeout: float = 10.0) -> Answer:
        """``GET path``; raises ``ServerError`` without an answer in ``timeout`` seconds, or when the server ended."""
        return self._request("GET", path, None, {}, timeout)

    def post(self, path: str, *, json: Any = None, data: bytes | str | None = None, timeout: float = 10.0) -> Answer:
        """``POST path`` with a JSON value or with raw ``data``; fails as ``get`` does."""
        if json is not None and data is not None:
            raise ProcessesError("json and data are both given", "argument of Server.post", "give one of them")
        if json is not None:
            body = json_.dumps(json).encode()
            return self._request("POST", path, body, {"Content-Type": "application/json"}, timeout)
        body = data.encode() if isinstance(data, str) else (data or b"")
        return self._request("POST", path, body, {}, timeout)

    def wait_for(self, what: str | Callable[[Server], Any], expected: Any, *, timeout: float = 30.0) -> Any:
        """Ask until the answer is as ``expected``, and return it.

        ``what``: a path, or a function of the server. ``expected``: a function of the answer; or, for a path, an int
        (the status), a dict (its items are in the JSON object) or a str (the stripped text); or the function's value.
        Raises ``ServerError`` with the last answer after ``timeout`` seconds, and at once when the server ended. An
        answer that ``expected`` raises LookupError, TypeError or ValueError for is not yet the one.
        """
        name = str(what if isinstance(what, str) else getattr(what, "__name__", what))
        deadline, last = time.monotonic() + timeout, "none"
        while True:
            try:
                seconds = min(self.probe_timeout, max(0.01, deadline - time.monotonic()))
                answer = self.get(what, timeout=seconds) if isinstance(what, str) else what(self)
                last = f"status {answer.status}, {answer.text[:500]!r}" if isinstance(answer, Answer) else repr(answer)
                if holds(answer, expected):
                    return answer
            except (LookupError, TypeError, ValueError) as error:
                last += f" ({type(error).__name__}: {error})"
            except ServerError as error:
                last = error.problem if seconds >= min(FAIR, self.probe_timeout) or last == "none" else last
            self._check_alive(f"while {name} was waited for; last answer: {last}")
            if time.monotonic() >= deadline:
                wanted = getattr(expected, "__name__", repr(expected))
                problem = f"{name} was not {wanted} in {timeout:.1f} s; last answer: {last}"
                raise self._failure(problem, "read the output above, or give wait_for a longer timeout")
            time.sleep(LOOK_EVERY)

    def _request(self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float) -> Answer:
        if not timeout > 0:
            raise ProcessesError(f"timeout is {timeout!r}", f"{method} {path}", "give seconds, more than 0")
        self._check_alive(f"before {method} {path}")
        doing = f"during {method} {path}"
        try:
            return ask(
                self.port,
                method,
                path,
                timeout=timeout,
                body=body,
                headers=headers,
                watch=partial(self._check_alive, doing),
            )
        except NoAnswer as none:
            with suppress(subprocess.TimeoutExpired):
                self._running().wait(0 if none.late else LAST_BREATH)
            self._check_alive(doing)
            raise self._failure(str(none), "read the output above, or give a longer timeout") from None

    # How it starts and ends

    def stop(self) -> list[Ended]:
        """End it and all that it started, by the ladder; what ended how is added to ``ended``, and returned."""
        return self._end(self._ladder[0])

    def restart(self) -> None:
        """End it by the ladder and start it again, on the same port if that can be had; fails as entering does."""
        self.stop()
        self._start()

    def _end(self, join: float) -> list[Ended]:
        process, self._process = self._process, None
        if process is None:
            _guardian.forget_tag(self.tag)
            return []
        # Its tag cannot be read from it any more once it has ended, so that those who carry it are given by us.
        orphans = carriers(self.tag) if process.poll() is not None else []
        ended = stop([process, *orphans], join=join, terminate=self._ladder[1], kill=self._ladder[2])
        self.ended += ended
        _guardian.forget_tag(self.tag)
        return ended

    def _start(self) -> None:
        try:
            self._try_to_start(self._fixed or self._port or 0)
        except ServerError:
            if not (self._picks and (self._robbed or PORT_TAKEN.search(self.log_tail()))):
                raise
            self._try_to_start(0)

    def _try_to_start(self, port: int) -> None:
        self._seen, self._verified, self._line, self._robbed = "nothing was seen of it", False, False, False
        try:
            self._launch(port)
            self._await_ready()
        except BaseException:
            self._end(join=0.0)
            raise

    def _launch(self, port: int) -> None:
        """Start the process, which inherits nothing but its log and, for ``{fd}``, the socket."""
        holder = self._take(port) if self._inherits or self._picks or self._fixed else None
        self._port = holder.getsockname()[1] if holder else None
        number = holder.fileno() if holder and self._inherits else None
        if holder and number is None:
            holder.close()
        elif holder:
            holder.listen(128)
        values = {"{port}": str(self._port), "{fd}": str(number)}
        fill = partial(re.sub, r"\{(port|fd)\}", lambda found: values[found[0]])
        self.tag = f"server-{uuid.uuid4().hex}"
        _guardian.guard_tag(self.tag)  # if this process is killed, the server ends too
        env = {"PYTHONUNBUFFERED": "1", **os.environ, **{name: fill(word) for name, word in self._env.items()}}
        try:
            with self._output.opened() as out:
                self._process = subprocess.Popen(
                    [fill(word) for word in self._argv],
                    stdin=subprocess.DEVNULL,
                    stdout=out,  # a file: a pipe that nobody reads stops its writer
                    stderr=subprocess.STDOUT,
                    cwd=self._cwd,
                    env={**env, TAG: self.tag},
                    start_new_session=True,  # all of it can be found and ended
                    pass_fds=() if number is None else (number,),
                )
        except OSError as error:
            raise self._failure(f"the server could not be started: {error}", "correct argv, cwd or log") from error
        finally:
            if holder:
                holder.close()  # ours would go on accepting when the server is gone
        self._began = time.monotonic()

    def _take(self, port: int) -> Any:
        try:
            return bound(port)
        except OSError as error:
            if not self._fixed:
                return bound(0)
            held = ", ".join(map(describe, listeners(port) or ())) or str(error)
            raise self._failure(f"port {port} is in use by {held}", "end it, or let the port be chosen") from None

    # When it is ready

    def _await_ready(self) -> None:
        deadline = time.monotonic() + self.startup_timeout
        while True:
            self._check_alive("before it was ready")
            left = deadline - time.monotonic()
            if left <= 0:
                problem = f"the server was not ready in {self.startup_timeout:.1f} s: {self._seen}"
                raise self._failure(problem, "read its output above, or give a longer startup_timeout")
            if self._says_ready(min(left, self.probe_timeout)) and self._is_ours():
                self._check_alive("before it was ready")
                return
            time.sleep(LOOK_EVERY)

    def _says_ready(self, seconds: float) -> bool:
        """One look; what it saw stays in ``_seen`` for the failure."""
        if isinstance(self._ready, re.Pattern):
            return self._line or self._finds_line(self._ready)
        if not isinstance(self._ready, str):
            self._seen = "ready says no"
            try:
                return bool(self._ready(self))
            except (ProcessesError, OSError, HTTPException) as error:
                self._seen = f"ready raised {type(error).__name__}: {str(error).splitlines()[:1]}"
            return False
        watch = partial(self._check_alive, "before it was ready")
        try:
            answer = ask(self.port, "GET", self._ready, timeout=seconds, watch=watch)
        except NoAnswer as none:
            if not none.late or seconds >= min(FAIR, self.probe_timeout):
                self._seen = str(none)
            if none.connected:
                self._is_ours()
            return False
        self._seen = f"GET {self._ready} is answered with status {answer.status}"
        if not 200 <= answer.status < 300:
            self._is_ours()
            return False
        return True

    def _finds_line(self, pattern: re.Pattern[str]) -> bool:
        self._seen = f"no line of its output matches {pattern.pattern!r}"
        for line in self._output.new_lines():
            if found := pattern.search(line):
                self._line = True
                if "port" in pattern.groupindex:
                    self._port = int(found["port"])
                return True
        return False

    def _is_ours(self) -> bool:
        """Does the server, or a process that it started, listen on the port? Raises if anybody else does."""
        if self._verified or self._inherits or self._port is None:
            return True
        others = strangers(self._port, self.pid)
        if others is None:
            self._seen = f"nothing listens on port {self._port}"
            return False
        if others:
            self._robbed = True
            with suppress(subprocess.TimeoutExpired):
                self._running().wait(LAST_BREATH)
            held = ", ".join(map(describe, sorted(others, key=str)))
            problem = f"another process answers on the server's port {self._port}: {held}; ours: {self._fate()}"
            raise self._failure(problem, "end that process, or let the port be chosen")
        self._verified = True
        return True

    # How it fails

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise self._failure("the server is not running", "use it inside its with block, before stop")
        return self._process

    def _check_alive(self, when: str) -> None:
        if self._running().poll() is not None:
            problem = f"the server ended by itself {when}: {self._fate()}"
            raise self._failure(problem, "read the end of its output above")

    def _fate(self) -> str:
        code, seconds = self._running().poll(), time.monotonic() - self._began
        return "it runs" if code is None else f"{signal_name(code) or f'exit {code}'}, {seconds:.1f} s after its start"

    def _failure(self, problem: str, fix: str) -> ServerError:
        command = " ".join(shlex.join(self._argv).split())
        where = f"Server {command if len(command) <= 80 else command[:77] + '...'}"
        tail = self._output.tail(TAIL)
        evidence = [f"  its last {len(tail)} lines:", *(f"    {line}" for line in tail)] if tail else []
        evidence += ["  it wrote nothing"] * (not tail and self._began > 0)
        return ServerError(problem, where, fix, "\n".join(evidence))


def _checked_argv(argv: Any) -> list[str]:
    if isinstance(argv, (str, bytes)) or not isinstance(argv, Sequence) or not argv:
        raise ProcessesError(f"argv is {argv!r}", "argument of Server", "give a list: the program and its arguments")
    return [str(word) for word in argv]
