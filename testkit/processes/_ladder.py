"""The ladder: wait for processes to end, then ask them to, then make them; each rung one deadline for all together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from testkit.errors import ProcessesError
from testkit.processes._family import Family, runs

__tracebackhide__ = True  # pytest shows the line that called us, not ours

Rung = Literal["join", "terminate", "kill", "none"]

FIRST_LOOK, LONGEST_LOOK = 0.002, 0.05
"""Seconds between two looks at what still runs: short at first, then longer."""

COMMAND = 80
"""Characters of a descendant's command line that are kept."""
SENT = {"terminate": "SIGTERM", "kill": "SIGKILL"}
"""What ends a process on a rung, as far as anybody but its parent can know."""


@dataclass(frozen=True)
class Ended:
    """How one process ended.

    ``exit_code`` is None where only the parent could know it (a descendant, a psutil process that is no child of
    ours); ``signal`` the name of the signal that ended it, or, where the exit code is None, of the one that we sent
    last; ``rung`` the rung that it ended on, "none" if it still runs; ``seconds`` since ``stop`` was called;
    ``descendant``: nobody named it, it was found below the others, and ``command`` says what it was; ``ignored``: the
    seconds for which it ignored SIGTERM until SIGKILL was sent.
    """

    pid: int
    exit_code: int | None
    signal: str | None
    rung: Rung
    seconds: float
    descendant: bool = False
    command: str = ""
    ignored: float = 0.0


def stop(processes: Iterable[Any], *, join: float = 5.0, terminate: float = 5.0, kill: float = 5.0) -> list[Ended]:
    """End processes and all that they started, in at most ``join + terminate + kill`` seconds and a little.

    ``processes``: any mix of ``multiprocessing`` (every start method), ``subprocess.Popen`` and ``psutil.Process``.
    For ``join`` seconds they may end by themselves; then SIGTERM and ``terminate`` seconds; then SIGKILL and ``kill``
    seconds, after which what still runs is reported with rung "none" and not waited for. A limit of 0 skips the
    waiting of that rung. Descendants are ended too: found through the tree, through sessions that a given process
    leads, and through the run tag in their environment. Processes are told apart by pid and start time, so a pid
    that was given out again is never signalled.

    One ``Ended`` for each given process, in order, then one for each descendant that had to be ended. Raises
    ``ProcessesError`` for something that is no process or was never started, and for a negative limit. If waiting is
    interrupted, everything is killed before the exception goes on.
    """
    for name, seconds in (("join", join), ("terminate", terminate), ("kill", kill)):
        if not seconds >= 0:
            raise ProcessesError(f"{name} is {seconds!r}", "argument of stop", "give seconds, 0 or more")
    climb = _Climb([_root(process) for process in processes])
    try:
        climb.wait("join", join, lambda: climb.open_roots() > 0)
        climb.signal_all("terminate")
        climb.wait("terminate", terminate, climb.anything_runs)
        climb.signal_all("kill")
        climb.wait("kill", kill, climb.anything_runs)
    except BaseException:
        climb.signal_all("kill")
        raise
    return climb.result()


@dataclass
class _Root:
    """A given process: its pid, and how to learn whether it ended and with which code."""

    pid: int
    ended: Callable[[], bool]
    exit_code: Callable[[], int | None]
    send: Callable[[str], None]
    command: str = ""
    fate: Ended | None = None


class _Climb:
    def __init__(self, roots: list[_Root]) -> None:
        self.roots = roots
        self.began = time.monotonic()
        over = [root.ended() for root in roots]
        self.family = Family(
            [root.pid for root, ended in zip(roots, over, strict=True) if not ended],
            [root.pid for root, ended in zip(roots, over, strict=True) if ended],
        )
        self.signalled: dict[Any, Rung] = {}
        self.commands: dict[Any, str] = {}
        self.sent: dict[Rung, float] = {}
        self.kin: dict[Any, Ended] = {}
        self.rung: Rung = "join"

    def wait(self, rung: Rung, seconds: float, unfinished: Callable[[], bool]) -> None:
        """Look until nothing is ``unfinished`` or the rung's time is over; what ended meanwhile ended on it."""
        self.rung = rung
        deadline, pause = time.monotonic() + seconds, FIRST_LOOK
        self.note()
        while unfinished() and time.monotonic() < deadline:
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(LONGEST_LOOK, pause * 1.5)
            self.note()

    def note(self) -> None:
        """Write down who has ended since the last look."""
        seconds = time.monotonic() - self.began
        for root in self.roots:
            if root.fate is None and root.ended():
                code = root.exit_code()
                name = signal_name(code) if code is not None else SENT.get(self.rung)
                ignored = self.ignored() if self.rung == "kill" else 0.0
                root.fate = Ended(root.pid, code, name, self.rung, seconds, False, root.command, ignored)
        for process, rung in self.signalled.items():
            if process not in self.kin and not runs(process):
                self.kin[process] = self.kin_ended(process, SENT[rung], rung, seconds)

    def kin_ended(self, process: Any, name: str | None, rung: Rung, seconds: float) -> Ended:
        ignored = self.ignored() if rung == "kill" else 0.0
        return Ended(process.pid, None, name, rung, seconds, True, self.commands.get(process, ""), ignored)

    def ignored(self) -> float:
        """Seconds between the two signals."""
        return self.sent["kill"] - self.sent["terminate"] if len(self.sent) == 2 else 0.0

    def open_roots(self) -> int:
        return sum(root.fate is None for root in self.roots)

    def anything_runs(self) -> bool:
        if self.rung == "kill":  # somebody may have forked since the last look
            self.family.gather()
            for process in self.family.alive():
                if process not in self.signalled or self.signalled[process] != "kill":
                    self._signal(process, "kill")
        return self.open_roots() > 0 or bool(self.family.alive())

    def signal_all(self, rung: Literal["terminate", "kill"]) -> None:
        """Send the rung's signal to whatever still runs, descendants included."""
        self.sent[rung] = time.monotonic()
        self.family.gather()
        for root in self.roots:
            if root.fate is None:
                root.send(rung)
        for process in self.family.alive():
            self._signal(process, rung)

    def _signal(self, process: Any, rung: Literal["terminate", "kill"]) -> None:
        import psutil

        self.signalled[process] = rung
        if process not in self.commands:
            self.commands[process] = _command(process)
        with suppress(psutil.Error):
            getattr(process, rung)()  # psutil makes sure that the pid is still this process

    def result(self) -> list[Ended]:
        self.note()
        seconds = time.monotonic() - self.began
        given = [root.fate or Ended(root.pid, None, None, "none", seconds) for root in self.roots]
        left = [self.kin_ended(process, None, "none", seconds) for process in self.signalled if process not in self.kin]
        return [*given, *self.kin.values(), *left]


def _command(process: Any) -> str:
    """What a psutil process runs, in short; "" if that cannot be read."""
    import psutil

    with suppress(psutil.Error):
        words = process.cmdline() or [process.name()]
        text = " ".join(" ".join([os.path.basename(words[0]), *words[1:]]).split())
        return text if len(text) <= COMMAND else f"{text[: COMMAND - 3]}..."
    return ""


def _root(process: Any) -> _Root:
    import subprocess
    from multiprocessing.process import BaseProcess

    import psutil

    from testkit.processes._preload import Forked

    if isinstance(process, (BaseProcess, Forked)):
        pid = None if getattr(process, "_closed", False) else process.pid
        if pid is None:
            problem = f"{process!r} was never started, or is closed"
            raise ProcessesError(problem, "argument of stop", "start it first, or leave it out")
        return _Root(
            pid,
            ended=lambda: process.exitcode is not None,
            exit_code=lambda: process.exitcode,
            send=lambda rung: getattr(process, rung)(),
        )
    if isinstance(process, subprocess.Popen):
        return _Root(
            process.pid,
            ended=lambda: process.poll() is not None,
            exit_code=process.poll,
            send=lambda rung: getattr(process, rung)(),
        )
    if isinstance(process, psutil.Process):
        return _Root(
            process.pid,
            ended=lambda: not runs(process),
            exit_code=lambda: _code_of_child(process),
            send=lambda rung: _send(process, rung),
            command=_command(process),
        )
    raise ProcessesError(
        f"{process!r} is no process that stop knows",
        "argument of stop",
        "give multiprocessing processes, subprocess.Popen or psutil.Process",
    )


def _send(process: Any, rung: str) -> None:
    import psutil

    with suppress(psutil.NoSuchProcess):
        getattr(process, rung)()


def _code_of_child(process: Any) -> int | None:
    """The exit code that psutil can learn (of a child of ours); reaps it."""
    import psutil

    try:
        code = process.wait(timeout=0)
    except psutil.Error:
        return None
    return None if code is None else int(code)


def signal_name(code: int | None) -> str | None:
    """The name of the signal that a negative exit code stands for; None for any other code."""
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
