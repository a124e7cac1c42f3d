"""What one process measures: its tests, fixtures, collection and imports, as rows on their way to the run file.

Rows hold times on this process's clock; whoever gathers them moves them to the run's.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial, wraps
from typing import Any, ParamSpec

from testkit.timing._clock import Clock, Nested
from testkit.timing._fixture_clock import FixtureClock
from testkit.timing._lanes import seconds_of
from testkit.timing._libraries import Libraries, gpu_peak
from testkit.timing._run import Collected, Imported, Record, Timed, Whole, Worker, plain
from testkit.timing._wire import Sent, pack

# Held here since tests replace both the function and the name of the platform.
_usage: Callable[[], Any] | None = None
_USAGE_SHIFT = 0 if sys.platform == "darwin" else 10  # KiB elsewhere
if sys.platform != "win32":
    import resource

    _usage = partial(resource.getrusage, resource.RUSAGE_SELF)

P = ParamSpec("P")

SETUP, CALL, TEARDOWN = 0, 1, 2

INTERRUPTED = "interrupted"
"""The kind of a record about a test whose teardown never ran; it counts as not run."""

BROKEN = "not recorded"
"""The kind of a record of what went wrong here while a process measured; the run file is not whole then."""

SHORT_FOLDER = 0.001
"""Seconds below which collecting a folder, which has no test of its own, is not worth a row."""


def safely(method: Callable[P, None]) -> Callable[P, None]:
    """A method of something that has ``broke``, which gets what is raised: to record must never fail a run."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the suite's own objects are looked at, and the tests' patches are met
            this: Any = args[0]
            this.broke(error)

    return call


def said(error: Exception) -> str:
    """One line about it."""
    return " ".join(f"{type(error).__name__}: {plain(error)}".split())


class Recorder:
    """Measures, and keeps rows in ``outbox`` until somebody takes them with ``drain``.

    ``current`` is the test that runs. Its phases leave out the fixtures that it shares with others. ``elsewhere``: it
    runs on another host than the one that writes, and says what machine that is.
    """

    def __init__(self, worker: str, *, elsewhere: bool = False) -> None:
        self.worker, self.elsewhere = worker, elsewhere
        self.outbox: list[Sent] = []
        self.current: Timed | None = None
        self.fixtures = FixtureClock(worker, self.outbox.append)
        self.broken = False
        self._now = Clock.now
        self._libraries = Libraries()
        self._letters = ["-", "-", "-"]
        self._begin = 0.0
        self._shared = 0.0
        self._gc_seconds = self._gc_begin = self._gc_before = 0.0
        self._last = ("", 0)
        self._collecting = Nested()
        self._files: dict[str, float] = {}
        self._imports: dict[str, float] = {}

    def start(self) -> None:
        """Begin to listen to the garbage collector."""
        gc.callbacks.append(self._on_gc)

    def drain(self) -> list[Sent]:
        """The rows so far, which are then forgotten here."""
        rows = list(self.outbox)
        self.outbox.clear()
        return rows

    def packed(self) -> str:
        """The same as a text that travels."""
        try:
            return pack(self.drain())
        except Exception as error:  # noqa: BLE001 - see ``safely``
            self.broke(error)
            return pack(self.drain())

    def broke(self, error: Exception) -> None:
        """Say the first thing that went wrong, on the way that rows go."""
        if not self.broken:
            self.broken = True
            self.outbox.append(Record(BROKEN, "", {"problem": said(error)}, self.worker, self._now()))

    # Tests

    @safely
    def begin_test(self, nodeid: str, attempt: int) -> None:
        """``attempt`` is what other plugins say; the same test twice in a row counts as run again in any case."""
        self._end_unfinished()
        last, count = self._last
        attempt = max(attempt, count + 1 if nodeid == last else 1)
        self._last = (nodeid, attempt)
        self.fixtures.at_file(nodeid.partition("::")[0])
        self._libraries.look()
        self.current = Timed(nodeid, self.worker, attempt=attempt)
        self._letters = ["-", "-", "-"]
        self._gc_before = self._gc_seconds

    @safely
    def begin_phase(self) -> None:
        self._shared = self.fixtures.shared
        self._begin = self._now()

    @safely
    def end_phase(self, phase: int, letter: str) -> None:
        """``letter`` is what this process knows of its outcome (see ``Timed.phases``); its report is heard later."""
        end, test = self._now(), self.current
        if test is None:
            return
        shared = self.fixtures.shared - self._shared
        spent = max(0.0, end - self._begin - shared)
        self._letters[phase] = letter
        if phase == SETUP:
            test.setup, test.start = spent, self._begin + shared
            self._libraries.look()
        elif phase == CALL:
            test.call = spent
            self._libraries.look()
        else:
            test.teardown = spent
            self._end_test(test)

    def _end_test(self, test: Timed) -> None:
        test.phases = "".join(self._letters)
        test.gc = self._gc_seconds - self._gc_before
        test.rss = peak_memory()
        test.gpu = gpu_peak()
        test.jit = self._libraries.take()
        self.outbox.append(test)
        self.current = None

    def _end_unfinished(self) -> None:
        """A test whose teardown never ran, as in an interrupted run: it did not run, but should not go unmentioned."""
        test, self.current = self.current, None
        if test is not None:
            data = {"seconds": self._now() - self._begin + test.setup + test.call}
            self.outbox.append(Record(INTERRUPTED, test.id, plain(data), self.worker, test.start or self._begin))

    # Fixtures, as pytest's FixtureDef

    @safely
    def fixture_is_up(self, fixture: Any, depth: int, request: Any, node: str) -> None:
        """Its set-up, which ``fixtures.enter`` began, is over."""
        self.fixtures.set_up(fixture, depth, request, node)
        # Finalizers run last in, first out: those of fixtures that ask for this one come later, so they run before
        # ours, and its own ran in its set-up, so they come after.
        fixture.addfinalizer(partial(self.fixture_ends, fixture))

    @safely
    def fixture_ends(self, fixture: Any) -> None:
        self.fixtures.tear_down(fixture)

    @safely
    def fixture_is_down(self, fixture: Any) -> None:
        self.fixtures.torn_down(fixture)

    # Everything else

    @safely
    def announce(self, kind: str, nodeid: str, data: Any) -> None:
        """Of something with ``seconds`` in its ``data``, ``start`` is its begin: it ends now.

        Several that are announced together ran one after another.
        """
        record = Record(str(kind), str(nodeid), plain(data), self.worker, self._now())
        record.start = begin = record.start - seconds_of(record)
        for before in reversed(self.outbox):
            if not isinstance(before, Record) or before.start + seconds_of(before) <= begin:
                break
            before.start = begin = begin - seconds_of(before)
        self.outbox.append(record)

    def begin_collecting(self) -> int:
        return self._collecting.enter()

    @safely
    def end_collecting(self, depth: int, file: str) -> None:
        """Folders and files hold each other in some versions of pytest; each gets its own seconds."""
        _, own = self._collecting.leave(depth)
        self._files[file] = self._files.get(file, 0.0) + own

    def importing(self, file: str, get: Callable[[], Any]) -> Callable[[], Any]:
        """``get``, which imports a test module, with a clock around it."""

        def timed() -> Any:
            begin = self._now()
            try:
                return get()
            finally:
                self._imports[file] = self._imports.get(file, 0.0) + self._now() - begin

        return timed

    @safely
    def collected(self, folders: Iterable[str], whole: Whole | None) -> None:
        """Collection is over; ``folders`` are the ids that are no files, "" that of the session."""
        self.outbox.append(Worker(self.worker, platform.node(), os.getpid(), machine=machine(whole=self.elsewhere)))
        short = {folder for folder in folders if not folder or self._files.get(folder, 0.0) < SHORT_FOLDER}
        self.outbox += [Collected(file, self.worker, own) for file, own in self._files.items() if file not in short]
        self.outbox += [Imported(file, self.worker, own) for file, own in self._imports.items()]
        self._files, self._imports = {}, {}
        if whole is not None:
            self.outbox.append(whole)

    @safely
    def finish(self) -> None:
        """Put what is left into the outbox and listen no more."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
        self._end_unfinished()
        self.fixtures.finish()
        self._libraries.close()

    def _on_gc(self, phase: str, _: object) -> None:
        if phase == "start":
            self._gc_begin = self._now()
        else:
            self._gc_seconds += self._now() - self._gc_begin


@cache
def machine(*, whole: bool = True) -> dict[str, Any]:
    """What the process runs on; ``whole``: with the environment's snapshot, not only what costs nothing."""
    from testkit.environment import snapshot

    facts = {name: fact.value for name, fact in snapshot().items() if fact.value is not None} if whole else {}
    return {
        **({"environment": facts} if whole else {}),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
    }


def peak_memory() -> int:
    """Bytes: the most that this process has had in memory so far; 0 on Windows, where none is known."""
    return int(_usage().ru_maxrss) << _USAGE_SHIFT if _usage else 0
