"""A group of ranks from its start to its verdict.

A rank passes only if it says so itself. The parent waits on message pipes and process sentinels together, so that
a crash is seen at once; nothing that it does can block on a rank.
"""

from __future__ import annotations

import os
import pickle
import selectors
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from testkit import _locks
from testkit._loaded import loaded
from testkit._text import counted
from testkit.errors import ProcessesError
from testkit.processes import _guardian, _leaks, _preload, _session
from testkit.processes import _rank_main as child
from testkit.processes._board import Board
from testkit.processes._family import TAG, carriers
from testkit.processes._ladder import Ended, stop
from testkit.processes._travel import Travelling
from testkit.processes._verdict import SAMPLE, Rank, RanksFailed, look_at, verdict

__tracebackhide__ = True  # pytest shows the line that called us, not ours

GRACE = 1.0
"""Seconds that the other ranks have, after one failed, to say what happened to them."""
LAST_WORDS = 0.2
"""Seconds that the ranks of a group which failed have to end by themselves; most have nothing left to do."""
LATE_STACK = 0.5
"""Seconds after the time limit in which a rank's own clock still writes its stack."""

_environment = threading.Lock()


@dataclass(frozen=True)
class Terms:
    """What was agreed for a group. ``rank_env``: variables of each rank alone; ``alone``: one process, no rank;
    ``started``: is told each rank's pid.
    """

    world_size: int
    timeout: float
    startup_timeout: float
    start: str
    env: Mapping[str, str]
    ladder: tuple[float, float, float]
    rank_env: Sequence[Mapping[str, str]] = ()
    alone: bool = False
    started: Callable[[int], None] | None = None


@dataclass
class Group:
    """One run of a body. ``where`` is named in failures; ``values``: what a keyword argument is to the user."""

    terms: Terms
    body: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    where: str = ""
    values: str = "argument"
    by_value: Sequence[ModuleType] = ()
    ranks: list[Rank] = field(default_factory=list)
    late: str = ""
    unread: list[str] = field(default_factory=list)
    cleared: bool = False

    def run(self) -> list[Any]:
        """What the body returned in each rank; raises ``RanksFailed``."""
        self.preload = self.terms.start == "preload" and _preload.SUPPORTED
        self.payload = Travelling(self.body, self.args, self.kwargs, self.by_value)
        self.payload.try_out(self.where, named=self.values)
        self.tag = f"ranks-{os.getpid()}-{uuid.uuid4().hex}"
        self.before = _leaks.snapshot()
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix=f"testkit-ranks-{os.getpid()}-"))
            self.payload.folder = self.folder
            self.selector = stack.enter_context(selectors.DefaultSelector())
            self.board = Board(self.selector, self.folder, self.terms.world_size) if Board.SUPPORTED else None
            if self.board is not None:
                stack.callback(self.board.close)
            self.tracker = _leaks.Tracker(self.folder / "tracker")
            stack.callback(self._close)
            return self._judge(self._end(join=self._live()))

    def _live(self) -> float:
        """From the start until all have settled, or one failed; the seconds that they have to end by themselves."""
        _guardian.guard_folder(str(self.folder))
        _guardian.guard_tag(self.tag)  # if this process is killed, its ranks end too
        self._start()
        self._until(lambda: all(rank.started for rank in self.ranks), self.terms.startup_timeout, "start")
        if not self._failed():
            for rank in self.ranks:
                rank.go()
            self._until(lambda: all(rank.settled for rank in self.ranks), self.terms.timeout, "finish")
        if self._failed():
            self._until(lambda: all(rank.settled for rank in self.ranks), GRACE, "")
        return min(LAST_WORDS, self.terms.ladder[0]) if self._failed() else max(LAST_WORDS, self.terms.ladder[0])

    def _close(self) -> None:
        """Leave nothing, however we got here. If this is interrupted, the guardian does it when we end."""
        if not self.cleared:
            self._end(join=0, terminate=0)
            self._removed()
        for rank in self.ranks:
            rank.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        _guardian.forget_tag(self.tag)
        _guardian.forget_folder(str(self.folder))

    def _removed(self) -> list[str]:
        """What was left in shared memory, removed by now."""
        try:
            left = self.tracker.remove()
        except FileNotFoundError:
            left = [f"nobody knows what in shared memory: {self.folder} was removed meanwhile"]
        self.cleared = True
        return left

    def _processes(self) -> list[Any]:
        return [rank.process for rank in self.ranks if rank.process.pid is not None]

    def _failed(self) -> bool:
        return bool(self.late) or any(rank.failed for rank in self.ranks)

    # How it starts

    def _start(self) -> None:
        from multiprocessing import get_context, resource_tracker

        context = get_context("spawn")
        resource_tracker.ensure_running()  # else the first rank's start would begin it, and it would carry our tag
        for number in range(self.terms.world_size):
            message, says = context.Pipe(duplex=False)
            hears, word = context.Pipe(duplex=False)
            place = self._place(number)
            try:
                process = self._process(context, place, says, hears)
            finally:
                says.close()
                hears.close()
            os.set_blocking(message.fileno(), False)
            rank = Rank(number, process, message, word, place, self.terms.alone)
            self.ranks.append(rank)
            if self.terms.started is not None:
                self.terms.started(process.pid)
            self.selector.register(message.fileno(), selectors.EVENT_READ, rank.read)
            self.selector.register(process.sentinel, selectors.EVENT_READ, rank.look)

    def _place(self, number: int) -> child.Place:
        terms = self.terms
        names = {} if terms.alone else {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": terms.world_size}
        own = terms.rank_env[number] if terms.rank_env else {}
        return child.Place(
            rank=number,
            world_size=terms.world_size,
            rendezvous=f"file://{self.folder}/rendezvous",
            channel=self.board.address if self.board is not None else "",
            env={**{name: str(value) for name, value in names.items()}, **own, **terms.env},
            output=str(self.folder / f"output-{number}"),
            stack=str(self.folder / f"stack-{number}"),
            tracker=str(self.tracker.path),
            timeout=terms.timeout,
            alone=terms.alone,
            parent=os.getpid(),
        )

    def _process(self, context: Any, place: child.Place, says: Any, hears: Any) -> Any:
        if self.preload:
            environment = {**os.environ, TAG: self.tag}
            pipes, limit = (says.fileno(), hears.fileno()), self.terms.startup_timeout
            return _preload.fork_rank(_session.current.preload, place, self.payload, *pipes, environment, limit=limit)
        process = context.Process(target=child.main, args=(place, self.payload, says, hears), daemon=False)
        with _environment, _spawning(self.tag):
            try:
                process.start()
            except OSError as error:
                problem, fix = f"rank {place.rank} could not be started: {error}", "look at ulimit -a and at the folder"
                raise ProcessesError(problem, self.where, fix) from None
        return process

    # How it goes

    def _until(self, reached: Callable[[], bool], seconds: float, what: str) -> None:
        """Take in messages and deaths until ``reached``, a rank failed, or the time is over (then all is late)."""
        deadline = time.monotonic() + seconds
        failed_before = self._failed()
        while not reached() and (failed_before or not self._failed()):
            left = deadline - time.monotonic()
            if left <= 0 and not any(rank.debugged for rank in self.ranks):
                if what:
                    self._late(what, seconds)
                return
            for key, _ in self.selector.select(min(max(left, 0.01), SAMPLE)):
                if not key.data() and key.fd in self.selector.get_map():
                    self.selector.unregister(key.fileobj)
            for rank in self.ranks:
                rank.sample()
                if rank.ended is None and rank.process.exitcode is not None:
                    rank.look()  # a process that it forked may hold its sentinel open

    def _late(self, what: str, seconds: float) -> None:
        self.late = f"did not {what} in {seconds:.1f} s"
        late = [rank for rank in self.ranks if not (rank.started if what == "start" else rank.settled)]
        waits = self.board.waiting() if self.board is not None else {}
        unread = self.board.unread() if self.board is not None else {}
        self.unread = [f"{counted(number, 'value')} of channel key {key!r}" for key, number in unread.items()]
        for rank in late:
            rank.late = True
            rank.state = look_at(rank.process.pid)  # before any signal, which would change it
            rank.waits = [waits[rank.number]] if rank.number in waits else []
            rank.waits += _locks.waits_on(rank.process.pid)
        deadline = time.monotonic() + LATE_STACK
        while what == "finish" and time.monotonic() < deadline and not all(rank.has_stack() for rank in late):
            time.sleep(0.02)
        for rank in late:
            rank.waits += _locks.polled(rank.stack_text(), {**os.environ, **self.terms.env}, time.time())

    # How it ends

    def _end(self, *, join: float, terminate: float | None = None) -> list[Ended]:
        """End the ranks, then whoever carries their tag: what a rank that has ended by now left in another session."""
        kill = self.terms.ladder[2]
        terminate = self.terms.ladder[1] if terminate is None else terminate
        ended = stop(self._processes(), join=join, terminate=terminate, kill=kill)
        left = carriers(self.tag)
        more = stop(left, join=0, terminate=terminate, kill=kill) if left else []
        return [*ended, *(replace(one, descendant=True) for one in more)]

    def _judge(self, ended: list[Ended]) -> list[Any]:
        for rank in self.ranks:
            rank.read()
        # Rebuilt first: what a result holds of shared memory is held by us then, and so is not left behind.
        results, broken = self._results()
        held = {inode for rank in self.ranks for inode in rank.held}
        left = [
            *(f"process {one.pid} ({one.command}), ended by {one.signal}" for one in ended if one.descendant),
            *(line for rank, one in zip(self.ranks, ended, strict=False) for line in rank.leftovers(one) if results),
            *self._removed(),
            *_leaks.strangers(self.before, [one.pid for one in ended], held),
        ]
        if self._failed():
            raise RanksFailed(*verdict(self.ranks, ended, self.late, [*self.unread, *left], self.where))
        if broken:
            raise RanksFailed(broken, self.where, "return plain values", "")
        self._agree("skipped", "skip")
        self._agree("xfailed", "xfail")
        _session.tell(left, self.where)
        return results

    def _results(self) -> tuple[list[Any], str]:
        """What the ranks returned, and which of it cannot be rebuilt here."""
        results: list[Any] = []
        done = [rank for rank in self.ranks if rank.done and not self._failed()]
        try:
            for rank in done:
                results.append(pickle.loads(rank.result))
        except Exception as error:  # noqa: BLE001 - a foreign class may raise anything
            name = done[len(results)].name
            return [], f"{name} returned what cannot be rebuilt here: {type(error).__name__}: {error}"
        return results, ""

    def _agree(self, kind: str, word: str) -> None:
        """If all ranks called skip (or xfail), so does the test; if only some did, it fails and names them."""
        some = [rank for rank in self.ranks if getattr(rank, kind) is not None]
        pytest = loaded("pytest")
        if some and len(some) == len(self.ranks) and pytest is not None:
            place = {"_use_item_location": True} if word == "skip" else {}  # else it is said to be skipped here
            raise getattr(pytest, word).Exception(getattr(some[0], kind), **place)
        if some:
            names = ", ".join(rank.name for rank in some)
            reason = getattr(some[0], kind)
            problem = f"{names} of {len(self.ranks)} called {word} and the others did not: {reason}"
            raise RanksFailed(problem, self.where, f"let all ranks {word}, or none", "")


@contextmanager
def _spawning(tag: str) -> Iterator[None]:
    """While a rank is spawned: the run's tag is in the environment, and ``__main__`` is hidden from it.

    multiprocessing would import the main module once more in each rank: slow for a test runner, and endless for a
    script without a ``__name__`` guard. What the body needs of it travels by value.
    """
    main = sys.modules["__main__"]
    hidden = {name: vars(main)[name] for name in ("__spec__", "__file__") if name in vars(main)}
    before = os.environ.get(TAG)
    os.environ[TAG] = tag
    for name in hidden:
        setattr(main, name, None) if name == "__spec__" else delattr(main, name)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)
        if before is None:
            del os.environ[TAG]
        else:
            os.environ[TAG] = before
