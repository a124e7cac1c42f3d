"""One start of a server: its process, its port, how it lived and how it ended."""

from __future__ import annotations

import socket
import subprocess
import time
import uuid
from collections.abc import Sequence

from testkit.processes import _guardian
from testkit.processes._family import carriers
from testkit.processes._ladder import Ended, signal_name, stop
from testkit.processes._output import Output, ServerError
from testkit.processes._port import bound, describe, listeners
from testkit.processes._server_program import Program

__tracebackhide__ = True  # pytest shows the line that called us, not ours


class Run:
    """A server that was started. ``tag`` is in its environment; ``port`` is None while nobody knows it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int | None, inherits: bool, tag: str, output: Output):
        self.process, self.port, self.inherits, self.tag, self._output = process, port, inherits, tag, output
        self._began = time.monotonic()
        self._lived: float | None = None
        self.over = False
        """Did we end it, or take note that it has ended?"""
        self.robbed = False
        """Was somebody else seen on its port?"""

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_ended(self) -> bool:
        if self.process.poll() is not None and self._lived is None:
            self._lived = time.monotonic() - self._began
        return self._lived is not None

    def fate(self) -> str:
        """How it ended, and how long after its start that was noticed."""
        if not self.has_ended():
            return "it runs"
        code = self.process.poll()
        return f"{signal_name(code) or f'exit {code}'}, {self._lived:.1f} s after its start"

    def death(self, when: str) -> ServerError:
        """The failure for one that has ended by itself. One that went to the background is told apart."""
        problem, fix = f"the server ended by itself {when}: {self.fate()}", "read the end of its output above"
        if self.process.poll() == 0 and (left := carriers(self.tag)):
            problem += f"; {describe(left[0].pid)}, which it started, runs on"
            fix = "keep it in the foreground: leave out its daemon option, or wait in it for what it starts"
        return self._output.failure(problem, fix)

    def check_alive(self, when: str) -> None:
        """Raises ``ServerError`` if it has ended by itself."""
        if self.has_ended():
            raise self.death(when)

    def wait(self, seconds: float) -> None:
        """Give it so many seconds to be seen dead."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def end(self, ladder: Sequence[float]) -> list[Ended]:
        """End it and all that it started; a second time there is nothing left to do."""
        if self.over:
            return []
        self.over = True
        # Its tag cannot be read from it any more once it has ended, so that those who carry it are given by us.
        orphans = carriers(self.tag) if self.has_ended() else []
        ended = stop([self.process, *orphans], join=ladder[0], terminate=ladder[1], kill=ladder[2])
        _guardian.forget_tag(self.tag)
        return ended


def launch(program: Program, output: Output, port: int | None, fixed: bool) -> Run:
    """Start ``program`` on ``port``: 0 for any free one, None for one that it finds itself; ``fixed``: on no other.

    Raises ``ServerError`` if the port is taken, or the program cannot be started.
    """
    holder = None if port is None else _take(port, fixed, program.inherits, output)
    number = holder.fileno() if holder and program.inherits else None
    known = holder.getsockname()[1] if holder else None
    if holder and number is None:
        holder.close()
    tag = f"server-{uuid.uuid4().hex}"
    try:
        _guardian.guard_tag(tag)  # if this process is killed, the server ends too
        with output.opened() as out:
            process = program.launch(known, number, out, tag)
    except BaseException as error:
        stop(carriers(tag), join=0)  # Ctrl-C may have come just after it was started
        _guardian.forget_tag(tag)
        if not isinstance(error, OSError):
            raise
        problem = f"the server could not be started: {error}"
        raise ServerError(problem, output.writer, "correct the program, cwd or log") from None
    finally:
        if holder:
            holder.close()  # ours would go on accepting when the server is gone
    return Run(process, known, program.inherits, tag, output)


def _take(port: int, fixed: bool, listen: bool, output: Output) -> socket.socket:
    """A socket on ``port`` or, if that is taken and not ``fixed``, on another."""
    try:
        return _bound(port, listen)
    except OSError as error:
        if not fixed:
            return _bound(0, listen)
        held = ", ".join(map(describe, listeners(port) or ())) or str(error)
        raise output.failure(f"port {port} is in use by {held}", "end it, or let the port be chosen") from None


def _bound(port: int, listen: bool) -> socket.socket:
    holder = bound(port)
    try:
        if listen:
            holder.listen(128)
    except OSError:
        holder.close()
        raise
    return holder
