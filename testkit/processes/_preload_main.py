"""The helper of ``start="preload"``: it imports modules once, then forks a rank for each request.

It runs in a fresh interpreter beside pytest, without a thread and without an accelerator: both would be broken in a
fork. Packets go over one socket; its end of file means that the parent is gone, however it ended. A rank is begun as
multiprocessing begins a spawned process, so that both starts agree in all but the import.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, spawn
from typing import Any, NoReturn

from testkit._loaded import loaded
from testkit._text import counted
from testkit.processes import _rank_main
from testkit.processes._family import TAG

MOST_FDS = 253
"""So many descriptors travel in one packet (SCM_MAX_FD in the kernel's scm.h)."""

LINGER = 0.5
"""Seconds that a thread which an import has joined may take to be gone from /proc."""

PR_SET_PDEATHSIG = 1
"""From the kernel's prctl.h: the signal that a process gets when the thread that started it ends."""

_DEVICE = re.compile(r"/dev/(nvidia|kfd$|dri/render)")

_given: list[int] = []


class Given:
    """A descriptor that came with the request, for multiprocessing's pickles: what ``DupFd`` becomes in the rank."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return _given[self._number]

    detach = fileno  # multiprocessing's word


def serve(fd: int, modules: Sequence[str]) -> None:
    """Import ``modules``, fork at each request on socket ``fd``; in a fork this ends with the rank's exit code."""
    # A fork, so that the helper is no child of the pytest process: a test may wait for, list or end its children.
    if os.fork():
        os._exit(0)
    faulthandler.enable()  # a module that crashes leaves its stack in the log
    link = socket.socket(fileno=fd)
    environ, path = dict(os.environ), list(sys.path)
    import cloudpickle  # noqa: F401 - every rank needs it

    for name in modules:
        _say(link, importing=name)
        if refusal := _imported(name):
            _say(link, **refusal)
            sys.exit(1)
    names = {*environ, *os.environ}
    changes = {name: (environ.get(name), os.environ.get(name)) for name in names}
    _say(
        link,
        environ={name: values for name, values in changes.items() if values[0] != values[1]},
        path=[entry for entry in sys.path if entry not in path],
    )
    gc.collect()
    gc.freeze()  # no collection in a rank touches, and so copies, what the imports have made
    start = _Helper(link).loop()
    _end(0 if start is None else start.run())


def _end(code: int) -> NoReturn:
    """End as far as Python code can see it: exit hooks, finalizers, output; threads were waited for before.

    Modules and C's exit handlers are left alone, as multiprocessing leaves them in a forked child: to take torch apart
    costs 0.2 CPU seconds (0.5 without ``gc.freeze``), and a fork of it 0.006.
    """
    atexit._run_exitfuncs()
    gc.collect()  # what only itself refers to: the body's globals, and files that are open in them
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _say(link: socket.socket, **words: object) -> None:
    link.send(json.dumps(words).encode())


def _imported(name: str) -> dict[str, str]:
    """Import a module; why it cannot be preloaded, if so."""
    drop = f'drop {name} from ranks_preload, or use start="spawn"'
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - an import may raise anything, SystemExit too
        traceback.print_exc()
        text = traceback.format_exception_only(type(error), error)[-1].strip()
        return {"problem": f"module {name} cannot be imported: {text[:2000]}", "fix": drop}
    if threads := _other_threads():
        what = f"importing {name} started {counted(len(threads), 'thread')}, which no fork has: {', '.join(threads)}"
        return {"problem": what, "fix": drop}
    if device := _device(f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")):
        return {"problem": f"importing {name} set up an accelerator, which no fork can use: {device}", "fix": drop}
    return {}


def _other_threads() -> list[str]:
    """All threads but this one: Python's name where it has one, and the kernel's."""
    deadline = time.monotonic() + LINGER
    while (tasks := set(os.listdir("/proc/self/task")) - {str(os.getpid())}) and time.monotonic() < deadline:
        time.sleep(0.01)
    names = {str(thread.native_id): f"{thread.name}, " for thread in threading.enumerate()}
    texts = []
    for task in sorted(tasks):
        with suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            texts.append(f"{names.get(task, '')}comm {file.read().strip()}")
    return texts


def _device(links: Iterable[str]) -> str:
    """What shows that an accelerator is in use; ``links`` are those of the open descriptors."""
    torch: Any = loaded("torch")
    for kind in ("cuda", "xpu"):
        if torch is not None and hasattr(torch, kind) and getattr(torch, kind).is_initialized():
            return f"torch.{kind} is initialized"
    for link in links:
        try:
            target = os.readlink(link)
        except OSError:
            continue  # the listing's own descriptor
        if _DEVICE.match(target):
            return f"{target} is open"
    return ""


class _Helper:
    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.pid, self.tag = os.getpid(), os.environ[TAG]
        self.libc = ctypes.CDLL(None)
        self.openblas = _openblas()
        self.statuses: dict[int, int] = {}
        """Where to write a rank's exit code, by its pid."""
        self.lifeline = os.pipe()  # its end tells a rank's multiprocessing that we are gone
        self.wake = os.pipe()
        for fd in self.wake:
            os.set_blocking(fd, False)
        self.handler = signal.signal(signal.SIGCHLD, lambda *_: None)
        self.wakeup = signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
        self.mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        sys.stdout.flush()
        sys.stderr.flush()
        self.libc.fflush(None)  # what waits in a buffer would be written by each fork

    def loop(self) -> _Start | None:
        """Serve until the parent is gone (None), or until this is a fork, which has to start."""
        while True:
            ready = connection.wait([self.link, self.wake[0]])
            if self.wake[0] in ready:
                self._reap()
            if self.link in ready:
                tag, fds, _, _ = socket.recv_fds(self.link, 4096, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
                if not tag:
                    return None
                start = self._fork(tag.decode(), fds)
                if start is not None:
                    return start

    def _reap(self) -> None:
        os.read(self.wake[0], 4096)
        for pid in list(self.statuses):  # by pid, so that what a module started stays its own
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                fd = self.statuses.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                with suppress(BrokenPipeError):  # nobody wants to know
                    os.write(fd, code.to_bytes(4, "big", signed=True))
                os.close(fd)

    def _fork(self, tag: str, fds: list[int]) -> _Start | None:
        data, status, *given = fds
        try:
            # Here, not in the fork: it carries its tag from its first instant, and never ours.
            _retag(self.tag, tag)
            try:
                pid = os.fork()
            except OSError:
                _retag(tag, self.tag)
                raise
        except (OSError, ValueError) as error:
            for fd in fds:
                os.close(fd)
            _say(self.link, problem=f"no rank could be forked: {error}", fix='use start="spawn"')
            return None
        if pid == 0:
            return self._become(data, status, given)
        _retag(tag, self.tag)
        self.statuses[pid] = status
        for fd in (data, *given):
            os.close(fd)
        _say(self.link, pid=pid)
        return None

    def _become(self, data: int, status: int, given: list[int]) -> _Start:
        """In the fork: nothing of the helper's is left, and it ends if the helper does."""
        self.libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != self.pid:
            os._exit(1)  # the helper ended before that was set
        signal.set_wakeup_fd(self.wakeup)
        signal.signal(signal.SIGCHLD, self.handler or signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        self.link.close()
        for fd in (status, *self.statuses.values(), *self.wake, self.lifeline[1]):
            os.close(fd)
        for finalizer in list(vars(weakref.finalize)["_registry"]):
            finalizer.atexit = False  # what the imports made is the helper's to clean up; the next rank needs it too
        atexit._clear()
        atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]  # for those of the rank
        if logging := loaded("logging"):
            atexit.register(logging.shutdown)
        _given[:] = given
        return _Start(data, self.lifeline[0], self.openblas)


def _retag(old: str, new: str) -> None:
    """Change the run tag that others read in /proc/PID/environ, of this process and of what it forks.

    That file shows the memory in which the kernel put the environment when the program began (proc(5), environ, and
    env_start in stat). Raises ``ValueError`` if the tag is not there, or has another length.
    """
    with open("/proc/self/stat", "rb") as file:
        start = int(file.read().rpartition(b")")[2].split()[47])
    with open("/proc/self/environ", "rb") as file:
        at = file.read().find(f"{TAG}={old}\0".encode())
    if not start or at < 0:
        raise ValueError("its run tag is not in /proc/self/environ, where a module may have written")
    if len(old) != len(new):
        raise ValueError(f"run tag {new!r} has not the {len(old)} characters of the helper's")
    ctypes.memmove(start + at + len(TAG) + 1, new.encode(), len(new))


@dataclass
class _Start:
    """What is left to do in a fork, once it is out of the helper's loop."""

    data: int
    lifeline: int
    openblas: list[tuple[Any, int]]

    def run(self) -> int:
        """Be the rank; its exit code."""
        with open(self.data, "rb", closefd=False) as file:
            environment = pickle.load(file)
            os.lseek(self.data, file.tell(), os.SEEK_SET)
        os.environ.clear()
        os.environ.update(environment)
        importlib.invalidate_caches()  # folders have changed since the helper looked
        for set_threads, processors in self.openblas:
            set_threads(_openblas_threads(environment, processors))
        numpy_random: Any = loaded("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()  # Python's own random does so itself after a fork
        return spawn._main(self.data, self.lifeline)


def enter(place: _rank_main.Place, payload: _rank_main.Payload, says: Given, hears: Given) -> None:
    """The rank's first function."""
    _rank_main.main(place, payload, says, hears)


def _openblas() -> list[tuple[Any, int]]:
    """Of each OpenBLAS that is loaded: its function that sets the number of threads, and the processors it sees.

    It was told to start no threads while it was loaded. numpy's and scipy's wheels rename its functions.
    """
    with open("/proc/self/maps") as file:
        fields = [line.rstrip("\n").split(maxsplit=5) for line in file if "openblas" in line]
    found = []
    for path in sorted({parts[5] for parts in fields if len(parts) == 6}):
        library = ctypes.CDLL(path)
        for name in ("openblas_{}", "openblas_{}64_", "scipy_openblas_{}", "scipy_openblas_{}64_"):
            count, set_threads = (name.format(what) for what in ("get_num_procs", "set_num_threads"))
            if hasattr(library, count) and hasattr(library, set_threads):
                found.append((getattr(library, set_threads), getattr(library, count)()))
                break
    return found


def _openblas_threads(environment: dict[str, str], processors: int) -> int:
    """How many threads OpenBLAS begins with (blas_get_cpu_number in its driver/others/memory.c)."""
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        number = re.match(r"\s*\d+", environment.get(name, ""))  # as C's atoi
        if number and int(number[0]) > 0:
            return min(int(number[0]), processors)
    return processors
