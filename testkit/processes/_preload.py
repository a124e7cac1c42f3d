"""``start="preload"``: ranks that are forked from a helper, which has imported the modules that all of them need.

The import of torch costs 1.5 CPU seconds; a fork of a process that has done it, a few milliseconds. The helper is a
fresh interpreter (``_preload_main``), one for each list of modules, started when it is first needed and kept until
this process ends. Linux only; elsewhere ranks are spawned.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from testkit._evidence import Shown
from testkit.errors import ProcessesError
from testkit.processes import _guardian
from testkit.processes._family import TAG, carriers, runs

if TYPE_CHECKING:
    from testkit.processes._preload_main import Given
    from testkit.processes._rank_main import Place

__tracebackhide__ = True  # pytest shows the line that called us, not ours

SUPPORTED = sys.platform.startswith("linux")

IMPORT_LIMIT = 120.0
"""Seconds that a helper may take to start and to import, if the caller gives no others."""

FORK_LIMIT = 15.0
"""Seconds that a helper may take to answer a request; usually 0.005."""

END_LIMIT = 2.0
"""Seconds that a helper may take to end by itself; and as many after SIGKILL."""

LOG_END = 16 * 1024
"""Bytes at the end of what a helper wrote that a failure shows."""

_THREADS = re.compile(r"(OMP|GOMP|KMP|MKL|OPENBLAS|GOTO)_|\w+_NUM_THREADS$")
"""Variables that a library reads once, when it is loaded."""


class PreloadFailed(Shown, ProcessesError):
    """The helper cannot do its work; ``evidence`` has the end of what it wrote."""


class Forked:
    """A rank that was forked from a helper, to be asked and ended like a process of ``multiprocessing``.

    ``sentinel`` can be read once it has ended. ``exitcode`` is None while it runs, and negative for a signal. If its
    helper ended first, nobody can know the code: the rank gets SIGKILL with its helper, ``exitcode`` is -9 whatever
    happened before, and ``lost`` is True.
    """

    def __init__(self, pid: int, sentinel: int) -> None:
        import psutil

        self.pid, self.sentinel, self.lost = pid, sentinel, False
        self._code: int | None = None
        self._process: Any = None
        self._closing = weakref.finalize(self, os.close, sentinel)
        self._closing.atexit = False
        os.set_blocking(sentinel, False)
        with suppress(psutil.Error):  # it may have ended
            self._process = psutil.Process(pid)

    @property
    def exitcode(self) -> int | None:
        if self._code is None and self._closing.alive:
            with suppress(BlockingIOError):
                code = os.read(self.sentinel, 4)
                self._code = int.from_bytes(code, "big", signed=True) if code else self._end_of_lost()
        return self._code

    def _end_of_lost(self) -> int | None:
        self.lost = True
        deadline = time.monotonic() + END_LIMIT
        while self._process is not None and runs(self._process):
            self._send("kill")
            if time.monotonic() > deadline:
                return None
            time.sleep(0.002)
        return -signal.SIGKILL

    def terminate(self) -> None:
        """SIGTERM, if it still runs."""
        if self.exitcode is None:
            self._send("terminate")

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self.exitcode is None:
            self._send("kill")

    def _send(self, what: str) -> None:
        import psutil

        if self._process is not None:
            with suppress(psutil.Error):
                getattr(self._process, what)()  # psutil makes sure that the pid is still this process

    def close(self) -> None:
        """Let go of the sentinel; what is known of the exit code stays."""
        self._closing()


def fork_rank(
    modules: Sequence[str],
    place: Place,
    payload: Any,
    says: int,
    hears: int,
    environment: Mapping[str, str],
    *,
    limit: float = IMPORT_LIMIT,
) -> Forked:
    """Start a rank in a fork of a helper that has imported ``modules``.

    ``payload`` is pickled as a ``Payload`` while the rank is being started, so that multiprocessing's own objects
    travel. ``says`` and ``hears`` are descriptors: the write end of the rank's message pipe, the read end of the
    parent's word. ``environment`` is the rank's whole environment, run tag included; ``place.env`` comes over it.
    ``limit``: seconds for the imports, if they must be
    done. Threads may call this at once.

    Raises ``PreloadFailed`` if a module cannot be imported, starts a thread or sets up an accelerator, and if the
    helper ends, or does not answer in time.
    """
    with _lock:
        helper = _helper(tuple(modules), {**environment, **place.env}, limit)
        parcel = _Parcel([says, hears])
        with tempfile.TemporaryFile() as file:  # not a pipe: nothing here can block on a rank
            file.write(parcel.packed(place, payload, helper, environment))
            file.seek(0)
            sentinel, writing = os.pipe()
            try:
                pid = helper.fork(environment[TAG], [file.fileno(), writing, *parcel.fds])
            except BaseException:
                os.close(sentinel)
                raise
            finally:
                os.close(writing)
    return Forked(pid, sentinel)


def close() -> None:
    """End all helpers, and ranks of theirs that still run. Called at exit; a later rank starts a new helper."""
    with _lock:
        while _helpers:
            _helpers.popitem()[1].close()


_lock = threading.RLock()
_helpers: dict[object, _Helper] = {}
_ends: set[socket.socket] = set()
"""The ends of sockets that this process holds, for a child of it to close."""


def _helper(modules: tuple[str, ...], environment: Mapping[str, str], limit: float) -> _Helper:
    # Libraries read how many threads they shall have when they are loaded, and can hardly be told later: torch with
    # MKL takes set_num_threads(5) as it is, but makes 2 of OMP_NUM_THREADS=5 on 2 cores. So each setting has a helper.
    threads = {name: value for name, value in environment.items() if _THREADS.match(name)}
    key = modules, tuple(sorted(threads.items()))
    found = _helpers.get(key)
    if found is None or not found.alive():
        if found is not None:
            found.close()
        _helpers[key] = _Helper(modules, {**os.environ, **threads}, limit)
    return _helpers[key]


class _Parcel:
    """What a rank gets, packed while multiprocessing believes that it is spawning: ``fds`` are sent along."""

    def __init__(self, fds: list[int]) -> None:
        self.fds = fds

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(fd)
        return len(self.fds) - 1

    def DupFd(self, number: int) -> Given:  # multiprocessing's name
        from testkit.processes._preload_main import Given

        return Given(number)

    def packed(self, place: Place, payload: Any, helper: _Helper, environment: Mapping[str, str]) -> bytes:
        from multiprocessing import get_context, reduction, spawn
        from multiprocessing.context import set_spawning_popen

        from testkit.processes._preload_main import enter

        args = (place, payload, self.DupFd(0), self.DupFd(1))
        process = get_context("spawn").Process(target=enter, args=args, daemon=False)
        preparation = spawn.get_preparation_data(process.name)
        # The main module is not imported again: what the body needs of it travels by value.
        preparation = {name: value for name, value in preparation.items() if not name.startswith("init_main")}
        preparation["sys_path"] = [*helper.path, *preparation["sys_path"]]
        buffer = io.BytesIO()
        set_spawning_popen(self)  # type: ignore[arg-type]  # it asks for no more than is here
        try:
            for part in (helper.changed(environment), preparation, process):
                reduction.dump(part, buffer)
        finally:
            set_spawning_popen(None)
        return buffer.getvalue()


class _Helper:
    """The parent's side of one helper: started, and with its modules imported, when this returns."""

    def __init__(self, modules: tuple[str, ...], environment: Mapping[str, str], limit: float) -> None:
        # As long as a group's tag, so that the one can be written over the other.
        self.tag = f"start-{os.getpid()}-{uuid.uuid4().hex}"
        self.log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with the helper
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.path: list[str] = []
        """What the imports added to sys.path."""
        self.environ: dict[str, tuple[str | None, str | None]] = {}
        """What the imports changed in os.environ: before and after, None for no variable."""
        _ends.update((self.link, theirs))
        try:
            deadline = time.monotonic() + limit
            try:
                _guardian.guard_tag(self.tag)  # if it does not see that we are gone, it is ended
                self._start(theirs.fileno(), modules, environment, limit)
            finally:
                theirs.close()
                _ends.discard(theirs)
            self._wait(deadline, limit)
        except BaseException:
            self.close()
            raise

    def _start(self, fd: int, modules: tuple[str, ...], environment: Mapping[str, str], limit: float) -> None:
        path = [entry for entry in sys.path if isinstance(entry, str)]
        code = (
            f"import sys; sys.path[:] = {path!r}; "
            f"from testkit.processes._preload_main import serve; serve({fd}, {list(modules)!r})"
        )
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            done = subprocess.run(
                [sys.executable, *flags, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                timeout=limit,
                start_new_session=True,  # what is sent to our group or terminal does not reach it
                pass_fds=[fd],
                # OpenBLAS starts its threads when it is loaded, unless it is told to; ranks tell it anew.
                env={**environment, TAG: self.tag, "OPENBLAS_NUM_THREADS": "1"},
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise self._failed(f"the helper did not start: {error}") from None
        if done.returncode:
            raise self._failed(f"the helper did not start: exit code {done.returncode}")

    def _wait(self, deadline: float, limit: float) -> None:
        doing = "starting"
        while True:
            said = self._hear(deadline - time.monotonic(), doing, f"within {limit:g} s")
            if "problem" in said:
                raise self._failed(said["problem"], said["fix"])
            if "importing" in said:
                doing = f"importing {said['importing']}"
            if "path" in said:
                self.path, self.environ = said["path"], said["environ"]
                return

    def _hear(self, seconds: float, doing: str, limit: str) -> dict[str, Any]:
        try:
            self.link.settimeout(max(seconds, 0.001))
            data = self.link.recv(1 << 18)
        except TimeoutError:
            raise self._failed(f"the helper was not done with {doing} {limit}") from None
        except OSError:
            data = b""
        if not data:
            raise self._failed(f"the helper ended while {doing}")
        said: dict[str, Any] = json.loads(data)
        return said

    def fork(self, tag: str, fds: list[int]) -> int:
        """The pid of a new rank."""
        try:
            self.link.settimeout(FORK_LIMIT)
            try:
                socket.send_fds(self.link, [tag.encode()], fds)
            except OSError as error:
                raise self._failed(f"the helper took no request: {error}") from None
            said = self._hear(FORK_LIMIT, "forking a rank", f"within {FORK_LIMIT:g} s")
        except BaseException:
            self.close()  # its answer may come yet, and would be taken for that to another request
            raise
        if "problem" in said:
            raise self._failed(said["problem"], said["fix"])
        return int(said["pid"])

    def changed(self, environment: Mapping[str, str]) -> dict[str, str]:
        """``environment`` as it is in a process that has imported the modules."""
        result = dict(environment)
        for name, (before, after) in self.environ.items():
            if environment.get(name) != before:
                continue  # what an import does to another value is not known
            if after is None:
                del result[name]
            else:
                result[name] = after
        return result

    def alive(self) -> bool:
        try:
            self.link.settimeout(0)
            return self.link.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """End it, and what its imports started."""
        from testkit.processes._ladder import stop

        _ends.discard(self.link)
        self.link.close()
        stop(carriers(self.tag), join=END_LIMIT, terminate=0, kill=END_LIMIT)
        _guardian.forget_tag(self.tag)
        self.log.close()

    def _failed(self, problem: str, fix: str = 'use start="spawn", or change ranks_preload') -> PreloadFailed:
        size = os.fstat(self.log.fileno()).st_size
        text = os.pread(self.log.fileno(), LOG_END, max(0, size - LOG_END)).decode(errors="replace").rstrip()
        evidence = f"--- the helper: output\n{text}" if text else ""
        return PreloadFailed(problem, "ranks_preload", fix, evidence)


def _after_fork() -> None:
    """A forked child lets go of the sockets, or our end would go unnoticed; it has helpers of its own."""
    global _lock
    _lock = threading.RLock()
    for end in _ends:
        end.close()
    for helper in _helpers.values():
        helper.log.close()
    _ends.clear()
    _helpers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(close)
