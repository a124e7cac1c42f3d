"""A server for the time of a test: started by us, ready by its own word, surely ours, and gone with all it started."""

from __future__ import annotations

import json as json_
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from testkit.errors import KitError, ProcessesError
from testkit.processes import _gpu_memory
from testkit.processes._ladder import Ended
from testkit.processes._output import TAIL, Output, ServerError
from testkit.processes._port import HOST, Answer, NoAnswer, ask, checked_path, holds
from testkit.processes._server_program import Program
from testkit.processes._server_ready import FAIR, LAST_BREATH, LOOK_EVERY, Readiness, checked_ready
from testkit.processes._server_run import Run, launch

__tracebackhide__ = True  # pytest shows the line that called us, not ours

PORT_TAKEN = re.compile(r"address (is )?already in use|EADDRINUSE", re.IGNORECASE)

Ready = str | re.Pattern[str] | Callable[["Server"], Any]

LAST_LOOK = 0.02
"""Seconds that a server which crashed just now has to be seen dead before we end it."""


class Server:
    """Run ``program`` as a server while a ``with`` block lasts.

    ``program``: a list, the command and its arguments, in which (or in ``env``) ``{fd}`` becomes the number of an
    inherited listening socket, the way without a race, and ``{port}`` a port that was free just before the start
    (should somebody take it meanwhile, the start is tried once more with another). Or a function, which travels by
    value, as it is now, to a fresh interpreter with our ``sys.path``, and gets by name what it asks for: ``sock``, the
    listening socket, or ``port``. Without any of these the server prints its port, or ``port`` names it.

    ``ready``: a path that is answered with a status of 200 to 299; or a compiled pattern that is found in a line of
    output (its group ``port``, if it has one, is the port); or a function of the server, for which any exception
    means not yet. In addition whoever listens on the port has to be the server or a process that it started. A path's
    probes last ``probe_timeout`` seconds at most, all of it ``startup_timeout``; a function has to limit itself.

    ``env`` is added to this process's environment, PYTHONUNBUFFERED=1 and a run tag too. Output goes to the file
    ``log`` (None: a temporary one), input is empty. ``ladder``: the seconds that the server has for ending by
    itself, after SIGTERM, after SIGKILL. Then the memory of the GPUs that its environment allows has 10 seconds to be
    back within 256 MiB of before; if it is not, ``KitWarning`` gives the figures.

    Entering raises ``ServerError`` if the server ends, with whatever code, is not ready in time, or is not what
    answers; ``ProcessesError`` for arguments that cannot be used. Leaving raises ``ServerError`` if the server had
    ended by itself, with whatever code; where another exception is on its way, that gets a note (Python 3.11 on).
    """

    def __init__(
        self,
        program: Sequence[str] | Callable[..., Any],
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
        self._program = Program(program, env or {}, cwd)
        self._ready, self._fixed, self._ladder = ready, port, ladder
        self.startup_timeout, self.probe_timeout = startup_timeout, probe_timeout
        self._check()
        self._output = Output(None if log is None else Path(log), self.name)
        self._run: Run | None = None
        self._gpus: dict[str, int] = {}
        self.ended: list[Ended] = []

    def _check(self) -> None:
        checked_ready(self._ready)
        program, fixed, ladder = self._program, self._fixed, self._ladder
        tells = program.inherits or program.wants_port or fixed or isinstance(self._ready, re.Pattern)
        limits = {"startup_timeout": self.startup_timeout, "probe_timeout": self.probe_timeout}
        refusals = [
            (fixed is not None and not 0 < fixed < 65536, f"port is {fixed!r}", "give 1 to 65535, or leave it out"),
            (not tells, "nothing says the server's port", program.advice),
            (program.inherits and os.name != "posix", "no socket is inherited on this platform", "ask for a port"),
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
        if self._run is not None and not self._run.over:
            raise ProcessesError("the server runs already", self.name, "enter it once; restart() starts it anew")
        try:
            self._start()
        except BaseException:
            self._output.forget()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        run = self._run
        if run and not run.over:
            run.wait(LAST_LOOK)
        dead = self._death("inside the block")
        try:
            self.stop()
        except Exception as problem:  # a warning may be an error here
            if dead and error is None:
                raise dead from problem
            raise
        finally:
            if isinstance(error, Exception) and hasattr(error, "add_note"):
                if dead and run and run.fate() not in str(error):
                    error.add_note(dead.headline)
                if not isinstance(error, ServerError):
                    error.add_note(f"the last lines of the server:\n{self.log_tail()}")
            self._output.forget()
        if dead and error is None:
            raise dead

    # What it is

    @property
    def name(self) -> str:
        """What failures call it: the command line, shortened, or the function's name."""
        return f"Server {self._program.name}"

    @property
    def pid(self) -> int:
        """The server's pid; raises ``ServerError`` if it was not started, or was stopped."""
        return self._running().pid

    @property
    def tag(self) -> str:
        """The run tag of its last start, in the environment of all that it starts; "" before that."""
        return self._run.tag if self._run else ""

    @property
    def port(self) -> int:
        """The port that it listens on; raises ``ServerError`` while nobody knows."""
        if self._run is None or self._run.port is None:
            raise self._output.failure("the server's port is not known", "give ready a pattern with a group named port")
        return self._run.port

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    @property
    def told(self) -> bool:
        """Has a failure shown its last lines?"""
        return self._output.shown

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
        answer for which a function of yours raises, or which is no JSON, is not yet the one.
        """
        _check_timeout(timeout, "argument of Server.wait_for")
        name = str(what if isinstance(what, str) else getattr(what, "__name__", what))
        self._output.probes |= {f"GET {what}"} if isinstance(what, str) else set()
        deadline, last, cause = time.monotonic() + timeout, "none", None
        while True:
            try:
                seconds = min(self.probe_timeout, max(0.01, deadline - time.monotonic()))
                answer = self.get(what, timeout=seconds) if isinstance(what, str) else what(self)
                last, cause = (
                    f"status {answer.status}, {answer.text[:500]!r}" if isinstance(answer, Answer) else repr(answer),
                    None,
                )
                if holds(answer, expected):
                    return answer
            except ServerError as error:
                last = error.problem if seconds >= min(FAIR, self.probe_timeout) or last == "none" else last
            except KitError:
                raise
            except Exception as error:  # noqa: BLE001 - every library has its own for a server that is not there yet
                last, cause = f"{last} ({type(error).__name__}: {error})", error
            self._running().check_alive(f"while {name} was waited for; last answer: {last}")
            if time.monotonic() >= deadline:
                wanted = getattr(expected, "__name__", repr(expected))
                problem = f"{name} was not {wanted} in {timeout:.1f} s; last answer: {last}"
                fix = "read the output above, or give wait_for a longer timeout"
                raise self._output.failure(problem, fix) from cause
            time.sleep(LOOK_EVERY)

    def _request(self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float) -> Answer:
        request = f"{method} {path}"
        checked_path(path, f"argument of Server.{method.lower()}")
        _check_timeout(timeout, request)
        run = self._running()
        run.check_alive(f"before {request}")
        watch = partial(run.check_alive, f"during {request}")
        try:
            return ask(self.port, method, path, timeout=timeout, body=body, headers=headers, watch=watch)
        except NoAnswer as none:
            run.wait(0 if none.late else LAST_BREATH)
            watch()
            raise self._output.failure(str(none), "read the output above, or give a longer timeout") from None

    def _running(self) -> Run:
        if self._run is None or self._run.over:
            raise self._output.failure("the server is not running", "use it inside its with block, before stop")
        return self._run

    # How it starts and ends

    def stop(self) -> list[Ended]:
        """End it and all that it started, by the ladder; what ended how is added to ``ended``, and returned.

        Also how a test says that it wanted the server to end: one that is stopped may have ended by itself.
        """
        ended = self._end(self._ladder)
        gpus, self._gpus = self._gpus, {}
        _gpu_memory.await_back(gpus, self.name)
        return ended

    def restart(self) -> None:
        """End it by the ladder and start it again, on the same port if that can be had; fails as entering does.

        Raises ``ServerError`` if it had ended by itself; a test that wanted that calls ``stop`` first.
        """
        dead = self._death("before its restart")
        self.stop()
        if dead:
            raise dead
        self._start()

    def _death(self, when: str) -> ServerError | None:
        """What to raise if it has ended by itself and nobody has stopped it since."""
        run = self._run
        dead = run.death(when) if run and not run.over and run.has_ended() else None
        if dead:
            dead.fix += "; if the test wanted it to end, call stop() first"
        return dead

    def _end(self, ladder: Sequence[float]) -> list[Ended]:
        ended = self._run.end(ladder) if self._run else []
        self.ended += ended
        return ended

    def _start(self) -> None:
        program, known = self._program, self._run.port if self._run else None
        self._gpus = _gpu_memory.used(program.environ())
        try:
            self._try_to_start(self._fixed or known or 0)
        except ServerError:
            picks = program.wants_port and not program.inherits and not self._fixed
            robbed = self._run is not None and self._run.robbed
            if not (picks and (robbed or PORT_TAKEN.search(self.log_tail()))):
                raise
            self._try_to_start(0)

    def _try_to_start(self, port: int) -> None:
        told = self._program.inherits or self._program.wants_port or self._fixed
        self._run = run = launch(self._program, self._output, port if told else None, fixed=bool(self._fixed))
        _gpu_memory.shared_with(run.pid)
        ready = self._ready if isinstance(self._ready, (str, re.Pattern)) else partial(self._ready, self)
        try:
            Readiness(run, self._output, ready, self.probe_timeout).wait(self.startup_timeout)
        except BaseException:
            self._end((0.0, *self._ladder[1:]))
            raise


def _check_timeout(timeout: float, where: str) -> None:
    if not 0 < timeout < math.inf:
        raise ProcessesError(f"timeout is {timeout!r}", where, "give seconds, more than 0")
