"""Says in the terminal which tests run longer than they should, while they run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from testkit.timing._budget import shown
from testkit.timing._clock import Clock

LOOKS = 4
"""How many times the watch looks in the time after which a test is slow; a mark comes at most so much late."""


class SlowWatch:
    """Writes a line from its own thread at each multiple of ``seconds`` that a test runs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, say: Callable[[str], None]) -> None:
        self._thread = threading.Thread(target=self._watch, args=(say,), name="testkit-timing-slow", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def begin(self, nodeid: str) -> None:
        with self._lock:
            self._running[nodeid] = (Clock.now(), 0)

    def end(self, nodeid: str) -> None:
        with self._lock:
            self._running.pop(nodeid, None)

    def _watch(self, say: Callable[[str], None]) -> None:
        while not self._over.wait(min(1.0, self._seconds / LOOKS)):
            for line in self._due():
                say(line)

    def _due(self) -> list[str]:
        lines, now = [], Clock.now()
        with self._lock:
            for nodeid, (begin, said) in self._running.items():
                times = int((now - begin) / self._seconds)
                if times > said:
                    self._running[nodeid] = (begin, times)
                    lines.append(f"SLOW [> {shown(times * self._seconds)}] {nodeid}")
        return lines


class PastCapture:
    """Writes lines to the terminal that pytest's ``reporter`` has, also while pytest captures output.

    Make it when pytest captures nothing: what the terminal is at that moment, it stays.
    """

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter
        self._terminal: TextIO = reporter._tw._file
        self._number = -1
        self._left_at = 0
        # What is no file of the system's cannot be put aside either, and is written to as it is.
        with suppress(OSError, ValueError, AttributeError):
            self._number = os.dup(self._terminal.fileno())

    def say(self, line: str) -> None:
        # The reporter does not see what is written here: to it, the line it left goes on.
        column = self._reporter._tw.width_of_current_line
        text = f"{line}\n" if column in (0, self._left_at) else f"\n{line}\n"
        self._left_at = column
        self._reporter.currentfspath = None  # it then names the file of the next test again
        if self._number < 0:
            self._terminal.write(text)
            self._terminal.flush()
        else:
            os.write(self._number, text.encode(self._terminal.encoding, "backslashreplace"))

    def close(self) -> None:
        if self._number >= 0:
            os.close(self._number)
            self._number = -1
