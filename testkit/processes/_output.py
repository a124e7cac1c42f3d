"""What a process writes, in a file, so that nothing has to be read for it to go on, and the failure that shows it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from testkit.errors import ProcessesError

END = 64 * 1024
"""So many bytes at the end are read for the last lines."""


class ServerError(ProcessesError):
    """A server that did not start, ended, or did not answer as it should; ``evidence`` shows its last lines."""

    def __init__(self, problem: str, where: str = "", fix: str = "", evidence: str = "") -> None:
        super().__init__(problem, where, fix)
        self.evidence = evidence

    def __str__(self) -> str:
        lines = [self.headline, self.evidence, f"next: {self.fix}" if self.fix else ""]
        return "\n".join(line for line in lines if line)


class Output:
    """A file for one process after another; what is read of it begins with the last ``opened``.

    ``path`` None: a temporary file, which ``forget`` removes. Another file is emptied by the first ``opened``.
    """

    def __init__(self, path: Path | None) -> None:
        self._given, self.path = path, path
        self._fresh, self._start, self._read = True, 0, 0
        self._kept: list[str] | None = None

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
        if self.path is None:
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._read += len(whole) + 1
        return whole.decode("utf-8", "replace").splitlines()

    def tail(self, lines: int) -> list[str]:
        """At most ``lines`` at the end, out of the last 64 KiB; also after ``forget``."""
        kept = self._kept
        if kept is None:
            kept = []
            if self.path is not None and not self._fresh:
                with self.path.open("rb") as file:
                    file.seek(max(self._start, file.seek(0, os.SEEK_END) - END))
                    kept = file.read().decode("utf-8", "replace").splitlines()
        return kept[-lines:] if lines > 0 else []

    def forget(self) -> None:
        """Remove the file if it is a temporary one; ``tail`` goes on knowing its end."""
        if self._fresh or self.path is None or self._given is not None:
            return
        self._kept = self.tail(END)
        self.path.unlink(missing_ok=True)
        self.path, self._fresh = None, True
