"""What a group of ranks leaves behind in shared memory: named semaphores and segments, found, removed and named.

multiprocessing tells a tracker, one process for all, of each segment and semaphore that it makes or unlinks, and that
removes the rest when pytest ends. In ranks those messages go to a file of their group instead, the ledger: what is in
it is the group's and nobody else's, however many others make segments meanwhile.

What no tracker is told of (torch, nccl, C) is a new name in /dev/shm and no more; ``strangers`` judges those. All of
this is Linux's; elsewhere ``redirect`` leaves the tracker alone and nothing is found. At module level only the
standard library is imported, so that the guardian can run this file without testkit on its path.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

FOLDER = "/dev/shm"

SUPPORTED = sys.platform.startswith("linux") and os.path.isdir(FOLDER)

_PREFIX = {"shared_memory": "", "semaphore": "sem."}
"""The tracker's kinds of things, and how glibc's file of one begins."""

_CUDA = re.compile(r"cuda\.shm\.[0-9a-f]+\.([0-9a-f]+)\.")
"""What the CUDA driver makes at the first use of CUDA IPC, with the pid, and leaves there (seen with driver 580)."""
_FIRST_NUMBER = re.compile(r"(?<![0-9A-Za-z])\d+(?![0-9A-Za-z])")


class Left(NamedTuple):
    """One thing, as the tracker knows it: its kind, its name (with a slash), and its file's name in /dev/shm."""

    kind: str
    name: str

    @property
    def file(self) -> str:
        return _PREFIX[self.kind] + self.name.lstrip("/")


def snapshot() -> set[str]:
    """The names in /dev/shm; none where there is no such folder."""
    return set(_there())


class Tracker:
    """The runner's side of a group's ledger, in place of multiprocessing's tracker.

    ``path`` is a file that is written now, with what is in /dev/shm already, so before any rank of the group starts;
    one that is there is taken up, as by the guardian when pytest was killed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        if not os.path.exists(path):
            with open(path, "w", encoding="ascii") as file:
                file.write(json.dumps(_there()) + "\n")

    def leftovers(self) -> list[Left]:
        """What the group made and did not unlink, in the order in which it was made; ask when all ranks have ended.

        Not among it: what was there before the group began; what was unregistered as often as registered (who does
        so by hand gives it away); and what some living process maps or has open. With all ranks gone that is somebody
        else's: handed to pytest in a result, or of another process and a rank only attached to it, which registers it
        too. Certain, but for one case: a segment that somebody else made while the group ran, and has closed, and a
        rank attached to.

        Raises ``FileNotFoundError`` if the ledger is gone.
        """
        before, registered, _ = _read(self.path)
        now = _there()
        left = [
            one for one, times in registered.items() if times and now.get(one.file) not in (None, before.get(one.file))
        ]
        held = _held() if left else set()
        return [one for one in left if now[one.file] not in held]

    def remove(self) -> list[str]:
        """Unlink the ``leftovers``; what each was: ``shared memory psm_ab12 (4,096 bytes)``, ``semaphore /mp-x``.

        What could not be unlinked is named with the reason. The tracker of this process forgets what is gone: what
        was removed, and what was there before and a rank unlinked; else it would complain when this process ends.
        """
        texts, gone = [], []
        for one in self.leftovers():
            path = os.path.join(FOLDER, one.file)
            text = f"semaphore {one.name}"
            with suppress(FileNotFoundError):
                if one.kind == "shared_memory":
                    text = f"shared memory {one.name.lstrip('/')} ({os.stat(path).st_size:,} bytes)"
                try:
                    os.unlink(path)
                    gone.append(one)
                except PermissionError as error:
                    text += f", not removed: {error.strerror}"
                texts.append(text)
        before, _, unregistered = _read(self.path)
        now = _there()
        gone += [one for one in unregistered if one.file in before and one.file not in now]
        _forget(gone)
        return texts


def redirect(ledger: str | os.PathLike[str]) -> None:
    """In a rank, spawned or forked: tell ``ledger`` from now on, and let the processes that this one starts do so too.

    Call it before anything of the user's is imported. A file, because a pipe that the runner does not read in time
    would block the rank, and because it is still there when pytest was killed. Lines are appended whole: they are
    far shorter than a block. If the disk is full, multiprocessing starts a tracker of the rank's own, and warns.

    Raises ``FileNotFoundError`` if the group has no ledger.
    """
    if not SUPPORTED:
        return
    _point(ledger)
    # From 3.13.14 and 3.14.5 on, the child of a plain os.fork lets go of the tracker. multiprocessing registered that
    # before we register this, so it comes first.
    os.register_at_fork(after_in_child=lambda: _point_again(ledger))


def strangers(before: Collection[str], pids: Collection[int], held: Collection[int]) -> list[str]:
    """New files in /dev/shm that no ledger knows, as texts; call it after ``Tracker.remove``.

    ``before`` is the ``snapshot`` from before the group began, ``pids`` are those of all its processes, ``held`` is
    what its ranks mapped or had open (``held_here``) when their bodies ended. Only our user's files are looked at, and
    of these only those that no living process maps or has open.

    The group's is a file whose name holds one of ``pids`` as its first number, as torch_PID_..., sem.loky-PID-... and
    __KMP_REGISTERED_LIB_PID_... do, or that was ``held``; it is removed. Any other new file may be another program's,
    of which there are many beside a test run, and is not spoken of.
    """
    new = {name: inode for name, inode in sorted(_there().items()) if name not in before}
    others = _held() if new else set()
    texts = []
    for name, inode in new.items():
        cuda = _CUDA.match(name)
        if cuda is not None and int(cuda[1], 16) in pids and inode not in others:
            with suppress(OSError):
                os.unlink(os.path.join(FOLDER, name))  # without a word: no test could do it
            continue
        number = _FIRST_NUMBER.search(name)
        pid = int(number[0]) if number is not None and int(number[0]) in pids else None
        if inode not in others and (pid is not None or inode in held):
            with suppress(FileNotFoundError):
                texts += _removed(name, pid)
    return texts


def held_here() -> set[int]:
    """The inodes of what this process maps or has open in /dev/shm."""
    return _held([os.getpid()]) if SUPPORTED else set()


def _removed(name: str, pid: int | None) -> list[str]:
    """The text for one file of /dev/shm, which is removed; nothing if it is not our user's.

    ``pid``: the process that its name names. Raises ``FileNotFoundError`` if it has gone.
    """
    path = os.path.join(FOLDER, name)
    status = os.lstat(path)
    if status.st_uid != os.geteuid():
        return []
    if not stat.S_ISREG(status.st_mode):
        return [f"{path} (no plain file), not removed"]
    text = f"file {path} ({status.st_size:,} bytes)"
    if pid is not None and _runs(pid):
        return [f"{text}, not removed: process {pid} still runs"]
    os.unlink(path)
    return [f"{text}, removed"]


def _there() -> dict[str, int]:
    """The names in /dev/shm and their inodes: a name that is used again is another file."""
    if not SUPPORTED:
        return {}
    with os.scandir(FOLDER) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _held(pids: Iterable[int] | None = None) -> set[int]:
    """The inodes of what these processes map or have open in /dev/shm; None: any that lives, of those we may ask.

    Not the names: glibc makes a semaphore under another name and links it, and who made it keeps the first one.
    """
    device = os.stat(FOLDER).st_dev
    mapped = re.compile(rb" %02x:%02x (\d+) " % (os.major(device), os.minor(device)))
    held: set[int] = set()
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if pids is None else pids:
        with suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
            held.update(map(int, mapped.findall(maps.read())))
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):  # closed meanwhile
                    if os.readlink(link := f"/proc/{pid}/fd/{number}").startswith(f"{FOLDER}/"):
                        held.add(os.stat(link).st_ino)
    return held


def _runs(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


def _point(ledger: str | os.PathLike[str]) -> None:
    from multiprocessing import resource_tracker

    tracker: Any = resource_tracker._resource_tracker
    inherited = tracker._fd
    # What multiprocessing itself does in a spawned child, to make it use its parent's tracker. No pid: that would be
    # waited for as our child.
    tracker._fd, tracker._pid = os.open(ledger, os.O_WRONLY | os.O_APPEND), None
    if inherited is not None:
        os.close(inherited)


def _point_again(ledger: str | os.PathLike[str]) -> None:
    from multiprocessing import resource_tracker

    tracker: Any = resource_tracker._resource_tracker
    if tracker._fd is None:
        with suppress(OSError):  # the group has ended and its folder is gone
            _point(ledger)


def _forget(gone: list[Left]) -> None:
    """Make the tracker of this process forget them; registered first, for it complains of what it does not know."""
    tracker: Any = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None and tracker._resource_tracker._fd is not None:  # it knows nothing before it runs
        for one in gone:
            tracker.register(one.name, one.kind)
            tracker.unregister(one.name, one.kind)


def _read(ledger: str | os.PathLike[str]) -> tuple[dict[str, int], Counter[Left], set[Left]]:
    """What was there before, how many registrations of each thing are open, and what was unregistered at all.

    They are counted, where the tracker only keeps a set: it forgets a segment when the first of those who attached
    unregisters it. Raises ``FileNotFoundError`` if the ledger is gone.
    """
    registered: Counter[Left] = Counter()
    unregistered: set[Left] = set()
    with open(ledger, "rb") as lines:
        before: dict[str, int] = json.loads(lines.readline())
        for line in lines:
            command, one = _message(line)
            if one is not None and command == "REGISTER":
                registered[one] += 1
            elif one is not None and command == "UNREGISTER":
                registered[one] = max(0, registered[one] - 1)
                unregistered.add(one)
    return before, registered, unregistered


def _message(line: bytes) -> tuple[str, Left | None]:
    """The command and its thing; None for one that leaves nothing in /dev/shm, and for a line that is none.

    ``COMMAND:name:kind``; 3.14.7 says it in JSON, with the name in base64, if there is a newline in the name.
    """
    with suppress(ValueError, KeyError, TypeError):
        if line.startswith(b"{"):
            said = json.loads(line)
            command, kind = said["cmd"], said["rtype"]
            name = base64.urlsafe_b64decode(said.get("base64_name", "")).decode("utf-8", "surrogateescape")
        else:
            command, rest = line.decode("ascii").rstrip("\n").split(":", 1)
            name, kind = rest.rsplit(":", 1)
        if kind in _PREFIX:
            return command, Left(kind, name)
    return "", None
