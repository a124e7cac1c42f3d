"""All processes that belong to some given ones: descendants, whole sessions, and whoever carries the run's tag.

A walk down the tree misses what was reparented when its parent ended; a session misses what began one of its own;
the tag, an environment variable that children inherit, finds both.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

TAG = "TESTKIT_RUN_TAG"
"""Environment variable that marks the processes of one run; its value is the run's own."""

_TAG_IS = f"{TAG}=".encode()
_PROC = os.path.exists("/proc/self/environ")


class Family:
    """Living relatives of processes: ``gather`` looks for more, and none is forgotten while it lives.

    ``running`` are the pids of given processes that have not ended, so that these pids are certainly theirs;
    ``ended`` those of the others. Whoever asks, and those that it descends from, are never relatives.
    """

    def __init__(self, running: Iterable[int], ended: Iterable[int]) -> None:
        import psutil

        own = psutil.Process()
        self._spared = {own.pid, *(parent.pid for parent in own.parents()), *running}
        self._roots = [process for pid in running if (process := _process(pid)) is not None]
        # A pid is not given out again while it names a session; if it was, its session ended with its leader.
        self._sessions = {root.pid for root in self._roots if _session(root.pid) == root.pid}
        self._sessions |= {pid for pid in ended if not psutil.pid_exists(pid)}
        self._tags = {tag for root in self._roots if (tag := _tag(root.pid))} - {os.environ.get(TAG, "")}
        self._members: dict[Any, None] = {}
        self.gather()

    def gather(self) -> None:
        """Look for relatives that were not there before."""
        table = _table()
        known = {process.pid for process in [*self._roots, *self._members] if runs(process)}
        below = _below(table, known)
        for pid, seen in table.items():
            if pid in self._spared or pid in known:
                continue
            if pid in below or seen.session in self._sessions or (self._tags and _tag(pid) in self._tags):
                process = _process(pid)
                if process is not None:
                    self._members.setdefault(process)

    def alive(self) -> list[Any]:
        """The relatives that still run; a zombie has ended."""
        self._members = {process: None for process in self._members if runs(process)}
        return list(self._members)


class _Seen(NamedTuple):
    parent: int
    session: int | None
    start: float


def _table() -> dict[int, _Seen]:
    """All processes at one look; psutil's own walk reads every one of them again for each parent."""
    import psutil

    found = {}
    if _PROC:
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # the command before it may hold anything
                found[int(name)] = _Seen(int(fields[1]), int(fields[3]), int(fields[19]))
        return found
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found[process.pid] = _Seen(process.ppid(), _session(process.pid), process.create_time())
    return found


def _below(table: dict[int, _Seen], pids: set[int]) -> set[int]:
    """The descendants of ``pids``; who began before its parent has another's pid for a parent."""
    children: dict[int, list[int]] = {}
    for pid, seen in table.items():
        children.setdefault(seen.parent, []).append(pid)
    found: set[int] = set()
    todo = [pid for pid in pids if pid in table]
    while todo:
        parent = todo.pop()
        new = [pid for pid in children.get(parent, ()) if table[pid].start >= table[parent].start and pid not in found]
        found.update(new)
        todo += new
    return found


def carriers(tag: str) -> list[Any]:
    """The psutil processes that were started with this run tag; also when what started them has ended."""
    import psutil

    found = (_process(pid) for pid in psutil.pids() if _tag(pid) == tag)
    return [process for process in found if process is not None]


def runs(process: Any) -> bool:
    """Is this very psutil process (not another with its pid) there and no zombie?"""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _process(pid: int) -> Any:
    import psutil

    with suppress(psutil.Error):
        return psutil.Process(pid)
    return None


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid) if hasattr(os, "getsid") else None
    return None


def _tag(pid: int) -> str:
    """The run tag that a process was started with; "" if it has none or may not be asked."""
    import psutil

    with suppress(OSError, psutil.Error):
        if _PROC:  # every process is asked, so without the detour
            with open(f"/proc/{pid}/environ", "rb") as stream:
                words = [word for word in stream.read().split(b"\0") if word.startswith(_TAG_IS)]
            return words[-1][len(_TAG_IS) :].decode(errors="replace") if words else ""
        return str(psutil.Process(pid).environ().get(TAG, ""))
    return ""
