"""The guardian: one small process beside ours that ends what we registered when we end, however we end.

Nothing of ours runs when we get SIGKILL, and the kernel's parent-death signal follows the starting *thread* and is not
inherited by a child's child. So the guardian reads a pipe whose write end only we hold: end of file means that we are
gone. It runs this file as a script without site-packages, so at module level only the standard library is imported.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from contextlib import suppress

LIMIT = 2.0
"""Seconds that the guardian looks for what is left; by then each has had SIGKILL, and the guardian goes."""

START_LIMIT = 15.0
"""Seconds that the guardian may take to start; usually 0.03."""

LOOK = 0.01
"""Seconds between two looks: at what is left, or for the guardian's end."""

SUPPORTED = sys.platform.startswith("linux")

Process = tuple[bool, int, int]
"""Has it ended (a zombie has), its session, its start time in clock ticks since boot."""


class _Link:
    """Our end of the pipe: its descriptor, what that must still refer to, and who reads it."""

    def __init__(self, fd: int, guardian: int) -> None:
        self.fd = fd
        self.identity = os.fstat(fd)
        self.guardian = guardian
        self.start = found[2] if (found := _read(guardian)) else None

    def is_ours(self) -> bool:
        """A test may have closed all descriptors; the number is then free, or somebody else's."""
        with suppress(OSError):
            return os.path.samestat(os.fstat(self.fd), self.identity)
        return False

    def close(self) -> None:
        if self.is_ours():
            os.close(self.fd)


_lock = threading.RLock()  # the same thread may come again: from a signal handler, or when it forks
_link: _Link | None = None
_known: dict[int | str, str] = {}
"""What is registered, a pid or a tag, and the line that says so."""


def guard_session(pid: int) -> None:
    """End process ``pid`` and the session that it leads (or will lead) when we end.

    A process that has ended and been waited for is not registered. Raises ``ProcessesError`` for pid 1, for ourselves
    and our own session, and if the guardian does not start. Does nothing where there is no /proc (not Linux).
    """
    if not SUPPORTED:
        return
    if pid <= 1 or pid in (os.getpid(), os.getsid(0)):
        raise _refusal(f"pid {pid} cannot be guarded", "argument of guard_session", "give a child's pid, not our own")
    with _lock:
        if found := _read(pid):
            _known[pid] = f"session {pid} {found[2]}"
            _tell(_known[pid])


def guard_tag(tag: str) -> None:
    """End whatever was started with this run tag in its environment when we end.

    Raises ``ProcessesError`` for a tag that is no word of ASCII, for the tag that we were started with ourselves (its
    other carriers are not ours to end), and if the guardian does not start. Does nothing where there is no /proc.
    """
    from testkit.processes._family import TAG

    if not SUPPORTED:
        return
    if not (tag.isascii() and tag.isprintable() and " " not in tag and 0 < len(tag) <= 200):
        raise _refusal(
            f"run tag {tag!r} cannot be guarded", "argument of guard_tag", "give one ASCII word, at most 200"
        )
    if _carries(os.getpid(), {f"{TAG}={tag}".encode()}):
        raise _refusal(f"run tag {tag!r} is our own", f"{TAG} of this process", "make a new tag for what you start")
    with _lock:
        _known[tag] = f"tag {tag}"
        _tell(_known[tag])


def guard_folder(path: str) -> None:
    """Remove this folder of a group of ranks, and what its ledger says was left in /dev/shm, when we end."""
    if SUPPORTED:
        with _lock:
            _known[path] = f"folder {os.fsencode(path).hex()}"
            _tell(_known[path])


def forget_session(pid: int) -> None:
    """Leave this session alone when we end; one that is not registered is no error."""
    _forget(pid)


def forget_tag(tag: str) -> None:
    """Leave the carriers of this tag alone when we end; one that is not registered is no error."""
    _forget(tag)


def forget_folder(path: str) -> None:
    """Leave this folder alone when we end; one that is not registered is no error."""
    _forget(path)


def _forget(key: int | str) -> None:
    with _lock:
        if line := _known.pop(key, ""):
            _tell(f"forget {line}")


def close() -> None:
    """End the guardian as if we had ended: it ends what is still registered, and we wait until it is gone.

    Called at exit. A later ``guard_...`` starts a new guardian, which knows nothing of before.
    """
    global _link
    with _lock:
        link, _link = _link, None
        _known.clear()
        if link is None:
            return
        link.close()
        deadline = time.monotonic() + LIMIT + 2.0  # it gives itself at most one second more than LIMIT
        while _is(link.guardian, link.start) and time.monotonic() < deadline:
            time.sleep(LOOK / 4)
        _kill(link.guardian, link.start)


def _tell(line: str) -> None:
    """Send one line; a guardian that is not there, or does not take it, is replaced by one that is told everything."""
    global _link
    if _link is not None:
        if _sent(_link, line):
            return
        # Before the pipe is closed: a guardian that is only stopped would take that for our end.
        _kill(_link.guardian, _link.start)
        _link.close()
        _link = None
    _link = link = _start()
    if not all(_sent(link, known) for known in _known.values()):
        raise _refusal(f"the guardian (pid {link.guardian}) ended at once", "", "look for what kills it, and run again")


def _sent(link: _Link, line: str) -> bool:
    # Looked at first, since a write to a dead guardian is SIGPIPE, which a test may have set to end us.
    if not (link.is_ours() and _is(link.guardian, link.start)):
        return False
    with suppress(BrokenPipeError, BlockingIOError):
        return os.write(link.fd, f"{line}\n".encode()) > 0  # whole: far below PIPE_BUF
    return False


def _start() -> _Link:
    import subprocess

    from testkit.processes._family import TAG

    # -I: no PYTHON... variable and no folder of the user's can change what it imports. -S: no site-packages, no .pth.
    command = [sys.executable, "-I", "-S", os.path.abspath(__file__), TAG]
    source, fix = f"sys.executable {sys.executable}", f"see what this prints: {' '.join(command)} < /dev/null"
    reading, writing = os.pipe()  # both close-on-exec: no child of ours keeps the pipe open
    try:
        os.set_blocking(writing, False)  # a guardian that was stopped must not stop us
        done = subprocess.run(
            command,
            stdin=reading,
            stdout=subprocess.PIPE,  # it says its pid there, and then lets go of it
            stderr=subprocess.STDOUT,
            timeout=START_LIMIT,
            start_new_session=True,  # what is sent to our group or terminal does not reach it
            cwd="/",  # it keeps no folder busy
            # It must not be taken for a process of the run that it watches, or of one around ours.
            env={name: value for name, value in os.environ.items() if name != TAG},
        )
        said = done.stdout.decode(errors="replace").strip()
        if not said.isdecimal():
            last = said.splitlines()[-1] if said else "nothing"
            raise _refusal(f"the guardian did not start: exit {done.returncode}, it said {last}", source, fix)
        return _Link(writing, int(said))
    except BaseException as error:
        os.close(writing)
        if isinstance(error, (OSError, ValueError, subprocess.SubprocessError)):
            raise _refusal(f"the guardian did not start: {error}", source, fix) from None
        raise
    finally:
        os.close(reading)


def _after_fork() -> None:
    """A forked child lets go of the pipe, or our end would go unnoticed; what it registers is its own guardian's."""
    global _link, _lock
    _lock = threading.RLock()
    if _link is not None:
        _link.close()
    _link = None
    _known.clear()


def _refusal(problem: str, where: str, fix: str) -> Exception:
    from testkit.errors import ProcessesError  # not at module level: the guardian has no testkit on its path

    return ProcessesError(problem, where, fix)


def watch(variable: str) -> None:
    """The guardian's side: read lines until stdin ends, then end what they name; ``variable`` is the tags' name."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    # A fork, so that we are no child of the pytest process: a test may wait for, list or end its children.
    if child := os.fork():
        os.write(1, f"{child}\n".encode())
        os._exit(0)
    with open(os.devnull, "wb") as null:  # whoever reads our starter's output sees its end without waiting for us
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
    known: dict[tuple[str, str], str] = {}
    with open(0, encoding="ascii") as lines:
        for line in lines:  # "session PID START", "tag TAG", "folder HEX", "forget ..."
            words = line.split()
            if words[0] == "forget":
                known.pop((words[1], words[2]), None)
            else:
                known[words[0], words[1]] = words[-1]
    if known:
        sessions = {int(pid): int(start) for (kind, pid), start in known.items() if kind == "session"}
        end_all(sessions, {f"{variable}={tag}".encode() for kind, tag in known if kind == "tag"})
    for kind, word in known:
        if kind == "folder":
            clear(os.fsdecode(bytes.fromhex(word)))
    os._exit(0)


def clear(folder: str) -> None:
    """Remove a group's folder, and before that what its ledger names."""
    import importlib
    import shutil

    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # testkit itself is not on our path
    with suppress(Exception):  # nobody hears us any more, and the folder goes whatever happens
        importlib.import_module("_leaks").Tracker(os.path.join(folder, "tracker")).remove()
    shutil.rmtree(folder, ignore_errors=True)


def end_all(sessions: dict[int, int], entries: set[bytes]) -> None:
    """SIGKILL to all of them, again for what was forked meanwhile, until two looks found nothing or LIMIT is over."""
    # Reading the environment of a process that is stuck in the kernel can block; only a fatal signal ends that wait.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, LIMIT + 1.0)
    deadline, quiet = time.monotonic() + LIMIT, 0
    while quiet < 2 and time.monotonic() < deadline:
        table = {int(name): seen for name in os.listdir("/proc") if name.isdecimal() and (seen := _read(int(name)))}
        spared = {1, os.getpid()}
        found = members(table, sessions, spared)
        for pid in found:  # before any environment is read
            _kill(pid, table[pid][2])
        for pid in table.keys() - found - spared if entries else ():
            if not table[pid][0] and _carries(pid, entries):
                found.add(pid)
                _kill(pid, table[pid][2])
        quiet = 0 if found else quiet + 1
        time.sleep(LOOK)


def members(table: dict[int, Process], sessions: dict[int, int], spared: set[int]) -> set[int]:
    """Who in ``table`` runs and belongs to ``sessions`` (pid and start time of each first process).

    A pid with another start time was given out again, and so is not ours, nor is its session. If the pid is gone,
    the session is still ours: the kernel gives out no pid that names a session.
    """
    ours = {pid for pid, start in sessions.items() if pid not in table or table[pid][2] == start} - spared
    return {
        pid
        for pid, (ended, session, start) in table.items()
        if not ended and pid not in spared and (pid in ours or (session in ours and start >= sessions[session]))
    }


def _read(pid: int) -> Process | None:
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
        # Threads can outlive the first one, which then is a zombie already.
        return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1, int(fields[3]), int(fields[19])
    return None


def _is(pid: int, start: int | None) -> bool:
    """Does this very process still run?"""
    return (found := _read(pid)) is not None and not found[0] and found[2] == start


def _carries(pid: int, entries: set[bytes]) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return not entries.isdisjoint(file.read().split(b"\0"))
    return False


def _kill(pid: int, start: int | None) -> None:
    if _is(pid, start):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(sys.argv[1])
elif hasattr(os, "register_at_fork"):
    # No fork while a guardian is being started: the child would hold ends of the pipe that it knows nothing of.
    os.register_at_fork(
        before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_after_fork
    )
    atexit.register(close)
