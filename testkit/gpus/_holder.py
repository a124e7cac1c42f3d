"""The folder of a ledger: records as files under one lock, whole after a SIGKILL at any point; and who still lives.

One file a record, written by its owner alone: in a folder with the sticky bit several users can share it without
being able to change what is another's. The lock is a flock of the folder itself, which nobody can replace.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testkit.errors import GpusError
from testkit.gpus._grant import Process, Record, parsed, written

LOCK_LIMIT = 20.0
"""Seconds to wait for the folder's lock; it is held for milliseconds, unless its holder was stopped."""

LOOK = 0.005
"""Seconds between two tries to get it."""

MOST_BYTES = 65_536
"""Of a file that are read; a record has some hundred."""

MODE = 0o1777

VARIABLE = "TESTKIT_GPUS_LEDGER"
"""Environment variable that names another folder: for containers that share cards and not /tmp, say."""


class Machine:
    """The processes of this machine, as they can be seen from here. Tests put another in its place."""

    def host(self) -> str:
        """Where a pid means the same: the boot and the pid namespace."""
        with suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return f"{boot} {os.readlink('/proc/self/ns/pid')}"
        return sys.platform

    def ours(self) -> Process:
        """The process that asks."""
        return self.process(os.getpid()) or (os.getpid(), 0)

    def process(self, pid: int) -> Process | None:
        """The process with this pid; None if it has ended (a zombie has), or cannot be seen."""
        with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
            # Threads can outlive the first one, which then is a zombie already.
            ended = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
            return None if ended else (pid, int(fields[19]))
        return None

    def runs(self, record: Record) -> bool | None:
        """Whether one of the record's processes lives; None where that cannot be seen from here."""
        boot, ours = record.host.split(" ")[0], self.host()
        if record.host != ours:
            return None if boot == ours.split(" ")[0] else False
        hidden = False
        for pid, start in record.processes:
            if self.process(pid) == (pid, start):
                return True
            hidden = hidden or self.hides(pid)
        return None if hidden else False

    def stopped(self, record: Record) -> bool:
        """Whether whoever asked is stopped, by Ctrl-Z say, and so will not take what is its turn."""
        pid, start = record.processes[0]
        with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            return record.host == self.host() and fields[0] in (b"T", b"t") and int(fields[19]) == start
        return False

    def hides(self, pid: int) -> bool:
        """Whether there is a process with this pid that is not in /proc: it may hide those of other users."""
        if os.path.exists(f"/proc/{pid}"):
            return False
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        except (OSError, OverflowError):
            return False
        return True


class Folder:
    """The ledger's folder while its lock is held."""

    def __init__(self, fd: int, machine: Machine) -> None:
        self._fd = fd
        self._machine = machine

    def living(self) -> dict[str, Record]:
        """All records whose holders live, by name; the files of others are removed where we may."""
        found = {}
        for name in sorted(os.listdir(self._fd)):
            if name.startswith("."):
                self._clear(name)
            elif seen := self._read(name):
                record, lives = seen
                if lives:
                    found[name] = record
                else:
                    self.remove(name)
        return found

    def write(self, name: str, record: Record) -> int:
        """Put a record there, or another in its place. Returns a descriptor that holds a lock while we live."""
        import fcntl

        draft = f".{name}.{secrets.token_hex(4)}"
        fd = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644, dir_fd=self._fd)
        try:
            os.fchmod(fd, 0o644)  # whatever the umask: other users must read it
            data = written(record)
            while data:
                data = data[os.write(fd, data) :]
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before it has its name: nobody sees it unlocked
            os.rename(draft, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def remove(self, name: str) -> None:
        """Remove a record; one that is gone, or another user's, is no error."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    def _read(self, name: str) -> tuple[Record, bool] | None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=self._fd)
        except OSError:  # removed meanwhile, or no record of ours
            return None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            record = parsed(os.read(fd, MOST_BYTES))
            if record is None:
                return None
            lives = self._machine.runs(record)
            return record, _is_locked(fd) if lives is None else lives
        finally:
            os.close(fd)

    def _clear(self, draft: str) -> None:
        """Drafts are written under the lock, so one that is there now was left by a process that was killed."""
        with suppress(OSError):
            if os.stat(draft, dir_fd=self._fd, follow_symlinks=False).st_uid == os.geteuid():
                os.unlink(draft, dir_fd=self._fd)


@contextmanager
def opened(path: Path, machine: Machine) -> Iterator[Folder]:
    """The folder with its lock held; made if it is not there.

    Raises ``GpusError`` if it is no folder that this user may write to, or if the lock is not to be had.
    """
    try:
        fd = _open(path)
        try:
            _lock(fd, path)
            try:
                yield Folder(fd, machine)
            finally:
                _unlock(fd)
        finally:
            os.close(fd)
    except OSError as error:
        fix = f"have its owner remove it or give it mode 1777, or name a local folder with {VARIABLE}"
        raise GpusError(f"the ledger {path} cannot be used: {error.strerror or error}", "", fix) from None


def _open(path: Path) -> int:
    with suppress(FileExistsError):
        os.mkdir(path, MODE)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(fd)
    # mkdir heeds the umask; whoever was killed right after it comes again, or its user does
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != MODE:
        os.fchmod(fd, MODE)
    return fd


def _lock(fd: int, path: Path) -> None:
    import fcntl

    deadline = time.monotonic() + LOCK_LIMIT
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() > deadline:
            fix = "see who holds it (lsof), and continue or end that process"
            raise GpusError(f"the ledger's lock was held for {LOCK_LIMIT:.0f} s", f"{path}", fix)
        time.sleep(LOOK)


def _unlock(fd: int) -> None:
    """Not by closing alone: a child that another thread forked meanwhile has the descriptor too."""
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_UN)


def _is_locked(fd: int) -> bool:
    """Whether somebody holds the record's lock: the kernel takes it from a process that ends, wherever that runs."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


_kept: dict[int, os.stat_result] = {}
"""Descriptors that hold records' locks, and what each referred to when it was opened."""


def keep(fd: int) -> int:
    """Hold on to a descriptor from ``write``; a forked child lets go of it."""
    _kept[fd] = os.fstat(fd)
    return fd


def let_go(fd: int) -> None:
    """Close a descriptor from ``keep``, unless a test closed it and the number is now another's."""
    status = _kept.pop(fd, None)
    with suppress(OSError):
        if status is not None and os.path.samestat(os.fstat(fd), status):
            os.close(fd)


def _after_fork() -> None:
    for fd in list(_kept):
        let_go(fd)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
