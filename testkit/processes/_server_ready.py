"""When a server is ready: by its own word, and if what listens on its port is the server."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from testkit.errors import KitError, ProcessesError
from testkit.processes._output import Output, ServerError
from testkit.processes._port import NoAnswer, addresses, ask, checked_path, describe, strangers
from testkit.processes._server_run import Run

__tracebackhide__ = True  # pytest shows the line that called us, not ours

LOOK_EVERY = 0.05
"""Seconds between two looks at a server that is not there yet."""
FAIR = 0.25
"""A probe that the end of our waiting cut to fewer seconds than this says nothing about the server."""
LAST_BREATH = 0.5
"""Seconds that a server has to be seen dead after its connection broke, or after it lost its port."""
BEFORE = "before it was ready"


def checked_ready(ready: Any) -> None:
    """Raises ``ProcessesError`` for what is neither a path, nor a compiled pattern, nor a function of a server."""
    where, fix = "argument of Server", 'give a path like "/health", a compiled pattern, or a function of the server'
    if isinstance(ready, str) and ready.startswith("/"):
        checked_path(ready, f"ready, {where}")
    elif isinstance(ready, re.Pattern) and isinstance(ready.pattern, str):
        return
    elif not callable(ready):
        raise ProcessesError(f"ready is {ready!r}", where, fix)
    else:
        try:
            inspect.signature(ready).bind("server")
        except ValueError:  # a function in C does not say
            return
        except TypeError as error:
            raise ProcessesError(f"ready cannot be called with the server: {error}", where, fix) from None


class Readiness:
    """Looks at one run until it is ready."""

    def __init__(
        self, run: Run, output: Output, ready: str | re.Pattern[str] | Callable[[], bool], probe_timeout: float
    ) -> None:
        self._run, self._output, self._ready, self._probe_timeout = run, output, ready, probe_timeout
        self._seen = "nothing was seen of it"
        self._error: Exception | None = None
        self._line = self._verified = False

    def wait(self, seconds: float) -> None:
        """Raises ``ServerError`` if the server ends, is not ready in time, or is not what answers."""
        deadline = time.monotonic() + seconds
        while True:
            self._run.check_alive(BEFORE)
            left = deadline - time.monotonic()
            if left <= 0:
                problem = f"the server was not ready in {seconds:.1f} s: {self._seen}{self._elsewhere()}"
                fix = "read its output above, or give a longer startup_timeout"
                raise self._output.failure(problem, fix) from self._error
            if self._says_ready(min(left, self._probe_timeout)) and self._is_ours():
                self._run.check_alive(BEFORE)
                return
            time.sleep(LOOK_EVERY)

    def _says_ready(self, seconds: float) -> bool:
        """One look; what it saw stays in ``_seen`` for the failure."""
        if isinstance(self._ready, re.Pattern):
            return self._line or self._finds_line(self._ready)
        if isinstance(self._ready, str):
            return self._answers(self._ready, seconds)
        self._seen, self._error = "ready says no", None
        try:
            return bool(self._ready())
        except Exception as error:  # every library has its own for a server that is not there yet
            if isinstance(error, KitError) and not isinstance(error, ServerError):
                raise
            self._seen = f"ready raised {type(error).__name__}: {''.join(str(error).splitlines()[:1])}"
            self._error = error
        return False

    def _answers(self, path: str, seconds: float) -> bool:
        assert self._run.port is not None
        self._output.probes.add(f"GET {path}")
        try:
            watch = partial(self._run.check_alive, BEFORE)
            answer = ask(self._run.port, "GET", path, timeout=seconds, watch=watch)
        except NoAnswer as none:
            if not none.late or seconds >= min(FAIR, self._probe_timeout):
                self._seen = str(none)
            if none.connected:
                self._is_ours()
            return False
        self._seen = f"GET {path} is answered with status {answer.status}"
        if not 200 <= answer.status < 300:
            self._is_ours()
            return False
        return True

    def _finds_line(self, pattern: re.Pattern[str]) -> bool:
        self._seen = f"no whole line of its output matches {pattern.pattern!r}"
        tells_port = "port" in pattern.groupindex
        lines = self._output.new_lines()
        if not tells_port and (prompt := self._output.prompt()):  # a port could go on
            lines.append(prompt)
        found = next((found for line in lines if (found := pattern.search(line))), None)
        if found and tells_port:
            self._run.port = self._port_in(found["port"])
        self._line = found is not None
        return self._line

    def _port_in(self, text: str | None) -> int:
        if text is None or not text.isdecimal() or not 0 < int(text) < 65536:
            problem = f"the group port of ready matched {text!r}, which is no port"
            raise self._output.failure(problem, "correct the pattern")
        return int(text)

    def _is_ours(self) -> bool:
        """Does the server, or a process that it started, listen on the port? Raises if anybody else does."""
        if self._verified or self._run.inherits or self._run.port is None:
            return True
        others = strangers(self._run.port, self._run.pid)
        if others is None:
            self._seen = f"nothing listens on port {self._run.port}"
            return False
        if others:
            self._run.robbed = True
            self._run.wait(LAST_BREATH)
            held = ", ".join(map(describe, sorted(others, key=str)))
            problem = f"another process answers on the server's port {self._run.port}: {held}; ours: {self._run.fate()}"
            raise self._output.failure(problem, "end that process, or let the port be chosen")
        self._verified = True
        return True

    def _elsewhere(self) -> str:
        """Where the server listens, if nobody was found where it should."""
        if not self._seen.startswith("nothing listens"):
            return ""
        places = addresses(self._run.pid)
        return f"; it listens on {', '.join(places)}" if places else ""
