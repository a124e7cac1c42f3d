"""Where Triton, Inductor and extension builds keep what they compiled: shared by all, a worker's own, or the run's."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testkit import _locks
from testkit.gpus._asked import MODES

SHARED, WORKER, FRESH = MODES

EXTENSIONS = "TORCH_EXTENSIONS_DIR"
VARIABLES = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", EXTENSIONS: "extensions"}
"""What the libraries read, and a folder's name for each."""

STALE = 60.0
"""Seconds since a lock file was written from which it is named: a build that runs has it open, or writes soon."""


class Caches:
    """The folders of one run, registered as a plugin only where asked for: hooks here need no marks of pytest's.

    ``mode`` is one of ``_asked.MODES``; with ``shared`` nothing is set.
    """

    def __init__(self, mode: str, environ: Mapping[str, str]) -> None:
        self.mode = mode
        self._environ = environ
        self._own: str | None = None

    def variables(self, worker: str) -> dict[str, str]:
        """What a worker (``gw0``, or ``main``) should have in its environment.

        ``worker``: folders of its name, below those that the user named, else below the user's cache; they stay, so
        that the next run is warm. ``fresh``: empty ones for this run, which its workers share.
        """
        if self.mode == SHARED:
            return {}
        if self.mode == FRESH:
            self._own = self._own or tempfile.mkdtemp(prefix="testkit-caches-")
            return {name: str(Path(self._own) / folder) for name, folder in VARIABLES.items()}
        found = {}
        for name, folder in VARIABLES.items():
            found[name] = str(Path(self._environ.get(name) or self._home() / "testkit" / folder) / worker)
        return found

    def pytest_report_header(self) -> list[str]:
        """Where caches are, and lock files that nobody holds, for which a build would wait for ever."""
        said = {
            WORKER: "gpus: each worker has its own caches of compiled kernels",
            FRESH: "gpus: caches of compiled kernels are empty, and gone after this run",
        }
        return [said[self.mode]] if self.mode in said else left_locks(self._environ, time.time())

    def close(self) -> None:
        """Remove what was for this run alone."""
        own, self._own = self._own, None
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)

    def _home(self) -> Path:
        cache = self._environ.get("XDG_CACHE_HOME")
        return Path(cache) if cache else Path(_locks._home(self._environ)) / ".cache"


class OfWorkers:
    """Gives xdist's workers on this host their folders. Registered where xdist is."""

    def __init__(self, config: Any, caches: Caches) -> None:
        self._config, self._caches = config, caches

    def pytest_xdist_setupnodes(self, specs: list[Any]) -> None:
        from testkit.gpus._pinning import here

        for spec in here(self._config, specs):
            variables = self._caches.variables(spec.id)
            spec.env.update({name: value for name, value in variables.items() if name not in spec.env})


def left_locks(environ: Mapping[str, str], now: float) -> list[str]:
    """One line for each lock file of an extension build that no process has open, and that is old.

    torch makes the file to take the lock and removes it to give it back: of a build that was killed it stays, and
    every later one waits. ``now``: seconds since the epoch.
    """
    cache = environ.get("XDG_CACHE_HOME") or f"{_locks._home(environ)}/.cache"
    root = environ.get(EXTENSIONS) or f"{cache}/torch_extensions"
    lines = []
    for path, written in _locks._oldest_first(_locks._below(root, 2, lambda name: name == "lock")):
        if now - written > STALE and not _locks._having_open(path):
            age = _locks.age(now - written)
            lines.append(f"gpus: {path} is a lock that no process holds ({age} old); remove it if no build runs")
    return lines
