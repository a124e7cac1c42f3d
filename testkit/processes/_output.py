"""What a process writes, in a file, so that nothing has to be read for it to go on, and the failure that shows it."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from testkit._evidence import Shown
from testkit._text import counted
from testkit.errors import ProcessesError

__tracebackhide__ = True  # pytest shows the line that called us, not ours

END = 64 * 1024
"""So many bytes at the end are read for the last lines."""
TAIL = 40
"""Lines of output that a failure shows."""
QUIET = 0.5
"""Seconds after which half a line, if nothing was written since, is taken for a prompt, which has no end."""


class ServerError(Shown, ProcessesError):
    """A server that did not start, ended, or did not answer as it should; ``evidence`` shows its last lines."""


class Output:
    """A file for one process after another; what is read of it begins with the last ``opened``.

    ``path`` None: a temporary file, which ``forget`` removes. Another file is emptied by the first ``opened``.
    ``writer`` is who writes, for failures.
    """

    def __init__(self, path: Path | None, writer: str) -> None:
        self.path, self.writer = path and path.absolute(), writer  # a test may change the working directory
        self._given = path is not None
        self._fresh, self._start, self._read = True, 0, 0
        self._half, self._since = b"", 0.0
        self._kept: list[str] | None = None
        self.shown = False
        """Has a failure shown its end?"""
        self.probes: set[str] = set()
        """Our looks at a server, such as ``GET /health``."""

    def opened(self) -> BinaryIO:
        """The file, for a process to append to; raises ``OSError`` if it cannot be made."""
        if self.path is None:
            number, name = tempfile.mkstemp(prefix="testkit-", suffix=".log")
            os.close(number)
            self.path = Path(name)
        file = self.path.open("ab")
        if self._fresh:
            file.truncate(0)
        self._start = self._read = file.seek(0, os.SEEK_END)
        self._fresh, self._kept = False, None
        return file

    def new_lines(self) -> list[str]:
        """The whole lines that were written since the last call; half a line waits for its end."""
        whole, _, half = self._from(self._read).rpartition(b"\n")
        self._read += len(whole) + 1 if whole else 0
        if half != self._half:
            self._half, self._since = half, time.monotonic()
        return whole.decode("utf-8", "replace").splitlines()

    def prompt(self) -> str:
        """Half a line, if it was the last already in ``new_lines`` calls that lie ``QUIET`` seconds apart; else ""."""
        stood = time.monotonic() - self._since >= QUIET
        return self._half.decode("utf-8", "replace") if stood else ""

    def _without_probes(self, lines: list[str]) -> list[str]:
        """Of what a server says of our own looks, one after the other, the last stays, with their number."""
        kept: list[str] = []
        more = 0
        for line in lines:
            ours = any(probe in line for probe in self.probes)
            more = more + 1 if ours else 0
            if more > 1:
                kept.pop()
            kept.append(f"{line}  (and {more - 1} more like it before)" if more > 1 else line)
        return kept

    def tail(self, lines: int) -> list[str]:
        """At most ``lines`` at the end, out of the last 64 KiB; also after ``forget``."""
        kept = self._kept
        if kept is None:
            kept = [] if self._fresh else self._from(-END).decode("utf-8", "replace").splitlines()
        return kept[-lines:] if lines > 0 else []

    def _from(self, place: int) -> bytes:
        """The file from ``place`` on, from the last ``opened`` at most; nothing if somebody removed it."""
        with suppress(OSError):
            if self.path is not None:
                with self.path.open("rb") as file:
                    end = file.seek(0, os.SEEK_END)
                    file.seek(max(self._start, end + place if place < 0 else place))
                    return file.read()
        return b""

    def forget(self) -> None:
        """Remove the file if it is a temporary one; ``tail`` goes on knowing its end."""
        if self._fresh or self.path is None or self._given:
            return
        self._kept = self.tail(END)
        self.path.unlink(missing_ok=True)
        self.path, self._fresh = None, True

    def failure(self, problem: str, fix: str) -> ServerError:
        """An error of its writer, with the last lines as evidence."""
        tail = self._without_probes(self.tail(END))[-TAIL:]
        evidence = [f"  its last {counted(len(tail), 'line')}:", *(f"    {line}" for line in tail)] if tail else []
        self.shown = True
        if not tail and not self._fresh:
            evidence = ["  it wrote nothing"]
        return ServerError(problem, self.writer, fix, "\n".join(evidence))
