"""Which file lock a hanging process waits for, who holds it and how old it is: the stale-lock watch.

Two kinds: locks that the kernel keeps (flock, fcntl), and files whose existence is the lock, which outlive a builder
that was killed and then hang every later run (pytorch/pytorch issue 189245). Reads /proc and a bounded number of
names; on systems other than Linux there is nothing to say.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

KINDS = {"FLOCK": "flock", "POSIX": "fcntl lock", "OFDLCK": "fcntl lock"}

SYSTEM_CALLS = {"x86_64": (73, 72), "aarch64": (32, 25)}
"""Numbers of flock and fcntl by machine."""

SETLKW, OFD_SETLKW = 7, 38
"""The two commands of fcntl that wait for a lock."""

MOST_NAMES = 2_000
"""Names below one folder that are looked at in the search for lock files."""

MOST_OPEN_FILES = 20_000
"""Open files, over all processes, that are looked at in the search for who has a lock file open."""

MOST_SHOWN = 5
"""Lock files that are named; the oldest first."""


def waits_on(pid: int) -> list[str]:
    """One text for each file lock that process ``pid`` is blocked on: path, age, who holds it.

    Empty if it waits for no lock, has ended, or cannot be looked into.
    """
    if sys.platform != "linux":
        return []
    table = _parse(_text(PROC / "locks"))
    waiting = [lock for lock in table if lock.waiting and lock.pid == pid]
    # The kernel's table leaves out who waits for a lock whose owner has ended, so the system call is asked first.
    calls = _blocking_calls(pid)
    seen = {}
    for fd, path in _links(pid) if calls or waiting else ():
        file = _file(pid, fd, path) if fd in calls or not calls else None
        # by inode alone: on overlayfs and btrfs the table's device is not the one that stat reports
        kind = calls.get(fd) or next((lock.kind for lock in waiting if file and lock.inode == file.inode), None)
        if file and kind:
            seen[file] = kind
    texts = [
        f"waits for the {kind} of {file.path} (last written {age(time.time() - file.written)} ago), "
        + _holders(table, kind, file, pid)
        for file, kind in seen.items()
    ]
    if not texts:  # another user's process, say
        texts = [f"waits for the {lock.kind} of a file with inode {lock.inode}" for lock in waiting]
    return texts


def polled(stack_text: str, environ: Mapping[str, str], now: float) -> list[str]:
    """One text for each lock file that a process may be polling for: path, age, whether anybody has it open.

    ``stack_text``: the process's Python stacks as faulthandler writes them; without a frame that waits for a lock
    file there is nothing to say. ``environ``: the process's environment, which says where its tools keep lock files.
    ``now``: seconds since the epoch.
    """
    if sys.platform != "linux":
        return []
    frames = re.findall(r'File "(.+?)", line \d+ in (\S+)', stack_text)
    texts = []
    if any(path.endswith("/file_baton.py") and function == "wait" for path, function in frames):
        texts += _batons([path for path, _ in frames], environ, now)
    if any("/filelock/" in path for path, _ in frames):
        texts += [*_held_now(now), *_soft_locks(environ, now)]
    return texts


def age(seconds: float) -> str:
    """``12 s``, ``3 min``, ``2.5 h``, ``4.0 days``; a file from the future counts as new."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


@dataclass(frozen=True)
class _Lock:
    """A line of /proc/locks; ``pid`` is -1 for locks of an open file description."""

    kind: str
    pid: int
    inode: int
    waiting: bool


@dataclass(frozen=True)
class _File:
    path: str
    inode: int
    written: float


def _parse(table: str) -> list[_Lock]:
    locks = []
    for line in table.splitlines():
        words = line.split()[1:]
        waiting = words[:1] == ["->"]
        kind, _, _, pid, where, *_ = (*words[waiting:], "", "", "", "", "")
        if kind in KINDS:
            locks.append(_Lock(KINDS[kind], int(pid), int(where.split(":")[2]), waiting))
    return locks


def _blocking_calls(pid: int) -> dict[int, str]:
    """File descriptors whose lock a thread of the process is waiting for right now, with the kind of lock."""
    flock, fcntl = SYSTEM_CALLS.get(os.uname().machine, (-1, -1))
    waits = {}
    for task in _listed(PROC / str(pid) / "task"):
        words = _text(PROC / str(pid) / "task" / task / "syscall").split()
        if len(words) < 3 or not words[0].isdigit():
            continue
        call, fd, argument = int(words[0]), int(words[1], 16), int(words[2], 16)
        if call == flock:
            waits[fd] = KINDS["FLOCK"]
        elif call == fcntl and argument in (SETLKW, OFD_SETLKW):
            waits[fd] = KINDS["POSIX"]
    return waits


def _file(pid: int, fd: int, path: str) -> _File | None:
    try:
        status = os.stat(PROC / str(pid) / "fd" / str(fd))  # not the path: that may be gone, or another file by now
    except OSError:
        return None
    return _File(path, status.st_ino, status.st_mtime)


def _holders(table: list[_Lock], kind: str, file: _File, waiter: int) -> str:
    pids = {lock.pid for lock in table if not lock.waiting and lock.kind == kind and lock.inode == file.inode}
    if kind != KINDS["FLOCK"]:
        pids.discard(waiter)  # ranges that it holds itself; they never block it
    named = [_named(pid) for pid in sorted(pids) if _runs(pid) and pid != waiter]
    if waiter in pids:
        named.append("this process itself, through another opening of the file")
    if named:
        return f"held by {', '.join(named)}"
    others = [pid for pid in _having_open(file.path) if not _blocking_calls(pid)]  # those would only wait as well
    left = f"; still open in {', '.join(_named(pid) for pid in others)}" if others else ""
    return f"its holder is gone or not visible here{left}"


def _batons(frames: list[str], environ: Mapping[str, str], now: float) -> list[str]:
    """Lock files of builders that use a FileBaton: torch's extensions, and aiter's kernels where it is on the stack."""
    cache = environ.get("XDG_CACHE_HOME") or f"{_home(environ)}/.cache"
    places: dict[str, Callable[[str], bool]] = {}
    places[environ.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions"] = lambda name: name == "lock"
    aiter = {found[1] for path in frames if (found := re.match(r"(.*/aiter/jit)/", path))}
    if aiter:
        for root in (environ.get("AITER_JIT_DIR"), *sorted(aiter), f"{_home(environ)}/.aiter/jit"):
            if root:
                places[f"{root}/build"] = lambda name: name.startswith("lock_")
    files = [path for root, fits in places.items() for path in _below(root, 2, fits)]
    texts = []
    for path, written in _oldest_first(files):
        users = ", ".join(_named(pid) for pid in _having_open(path))
        who = f"open in {users}" if users else "open in no process here; remove it if no other build runs"
        texts.append(f"polls {path}, a file that is the lock (last written {age(now - written)} ago), {who}")
    where = " and ".join(places)
    return texts or [f"polls a lock file, none found below {where}; look for one in the extension's build_directory"]


def _held_now(now: float) -> list[str]:
    """Held flocks that filelock may be polling for. It tries again and again, so the kernel lists nobody who waits."""
    texts = []
    for lock in _parse(_text(PROC / "locks")):
        if lock.kind != KINDS["FLOCK"] or lock.waiting:
            continue
        for fd, path in _links(lock.pid):
            file = _file(lock.pid, fd, path) if path.endswith(".lock") else None
            if file and file.inode == lock.inode:
                when = age(now - file.written)
                texts.append(
                    f"may poll for the flock of {file.path} (last written {when} ago), held by {_named(lock.pid)}"
                )
                break
    return texts[:MOST_SHOWN]


def _soft_locks(environ: Mapping[str, str], now: float) -> list[str]:
    """Lock files of filelock's SoftFileLock, told from flock files that nobody holds by the pid and host in them."""
    hub = environ.get("HF_HUB_CACHE") or f"{environ.get('HF_HOME') or _home(environ) + '/.cache/huggingface'}/hub"
    temporary = environ.get("TMPDIR") or "/tmp"
    roots = {f"{hub}/.locks": 1, temporary: 0}
    if environ.get("TORCHINDUCTOR_CACHE_DIR"):
        roots[f"{environ['TORCHINDUCTOR_CACHE_DIR']}/locks"] = 0
    files = [path for root, depth in roots.items() for path in _below(root, depth, lambda name: name.endswith(".lock"))]
    texts = []
    for path, written in _oldest_first([path for path in files if _record(path)]):
        pid, host = _record(path) or (0, "")
        if host != socket.gethostname():
            who = f"held by pid {pid} on {host}"
        elif _runs(pid):
            who = f"held by {_named(pid)}"
        else:
            who = f"its holder, pid {pid}, does not run here; remove it if no other build runs"
        texts.append(f"may poll {path}, a file that is the lock (last written {age(now - written)} ago), {who}")
    return texts


def _record(path: str) -> tuple[int, str] | None:
    lines = _text(Path(path)).splitlines()
    return (int(lines[0]), lines[1]) if len(lines) > 1 and lines[0].isdigit() else None


def _below(root: str, depth: int, fits: Callable[[str], bool]) -> list[str]:
    """Files with a fitting name in ``root`` or at most ``depth`` folders below it, the nearest first."""
    found, todo, left = [], [(root, 0)], MOST_NAMES
    while todo and left > 0:
        folder, level = todo.pop(0)
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    break
                if entry.is_dir(follow_symlinks=False):
                    if level < depth:
                        todo.append((entry.path, level + 1))
                elif fits(entry.name):
                    found.append(entry.path)
    return found


def _oldest_first(paths: list[str]) -> list[tuple[str, float]]:
    times = []
    for path in paths:
        with suppress(OSError):  # removed meanwhile
            times.append((os.stat(path).st_mtime, path))
    return [(path, written) for written, path in sorted(times)[:MOST_SHOWN]]


def _having_open(path: str) -> list[int]:
    """Processes, of those that may be looked into, that have ``path`` open."""
    pids: list[int] = []
    left = MOST_OPEN_FILES
    for pid in (int(name) for name in _listed(PROC) if name.isdigit()):
        for _, target in _links(pid):
            left -= 1
            if target == path and pid not in pids:
                pids.append(pid)
        if left <= 0:
            break
    return pids


def _links(pid: int) -> Iterator[tuple[int, str]]:
    folder = PROC / str(pid) / "fd"
    for name in _listed(folder):
        with suppress(OSError):
            target = os.readlink(folder / name)  # unlike stat it cannot hang on a file server that is gone
            if target.startswith("/"):
                yield int(name), target


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""


def _runs(pid: int) -> bool:
    return pid > 0 and (PROC / str(pid)).exists()


def _named(pid: int) -> str:
    words = _text(PROC / str(pid) / "cmdline").replace("\0", " ").split()
    command = " ".join(words) or _text(PROC / str(pid) / "comm").strip()
    return f"pid {pid} ({command[:77] + '...' if len(command) > 80 else command})"


def _home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")
