"""Brings together what workers measured and what pytest reported, and writes it down.

A test's row comes from the process that ran it, what became of it from its reports: they say what the whole of pytest
made of it (run again, expected to fail), and they are there when the process is not.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit.errors import TimingError
from testkit.timing._budget import Budget
from testkit.timing._clock import Clock
from testkit.timing._record import BROKEN, INTERRUPTED, machine, safely, said
from testkit.timing._run import MAIN, Fixture, Header, Record, Timed, Whole, Worker
from testkit.timing._run_id import name_run
from testkit.timing._totals import Totals
from testkit.timing._wire import ON_THE_WIRE, Sent, unpack
from testkit.timing._wishes import seen_from
from testkit.timing._write import NameTakenError, Row, Writer

NOT_RUN = "-"
PHASES = ("setup", "call", "teardown")


@dataclass(slots=True)
class _Attempt:
    """What has been reported of a test, until the next one shows that this is all; ``heard`` is when that began."""

    id: str
    heard: float
    letters: list[str] = field(default_factory=lambda: [NOT_RUN] * 3)
    seconds: list[float] = field(default_factory=lambda: [0.0] * 3)


class Gatherer:
    """Takes rows and reports of all processes of a run, which began at ``origin`` on our clock, ``started`` by date.

    Unless a run file is opened, it only keeps to the budget. ``problem`` is the first thing that went wrong here or
    where a process measured; ``notes`` are for the run's reader.
    """

    def __init__(self, origin: float, started: float, budget: Budget) -> None:
        self.origin = origin
        self.started = started
        self.budget = budget
        self.writer: Writer | None = None
        self.totals = Totals()
        self.problem = ""
        self.notes: list[str] = []
        self._whole: Whole | None = None
        self._selected: list[str] | None = None
        self._shifts: dict[str, float] = {}
        self._open: dict[str, _Attempt] = {}
        self._waiting: dict[str, Timed] = {}
        self._up: dict[tuple[object, ...], Fixture] = {}
        self._heard: dict[str, float] = {}
        self._interrupted: set[tuple[str, str]] = set()
        self._file_seconds: dict[str, float] = {}

    def open(self, folder: Path, shard: str, argv: Sequence[str], pytest: str) -> None:
        """Begin a run file. Raises TimingError if the folder cannot be written."""
        python, host = platform.python_version(), platform.node()
        while self.writer is None:
            run, attempt = name_run(os.environ, folder, shard, self.started)
            header = Header(run, shard, attempt, self.started, host, python, pytest, list(argv), machine())
            try:
                # A number that the writer adds would be in the name alone, and both runs have the same attempt.
                self.writer = Writer(folder, header, exact=True)
            except NameTakenError:
                continue  # a run that began at this moment was quicker; its file is seen now

    def broke(self, error: Exception) -> None:
        """Recording went wrong, which is no reason to break the run."""
        self._not_whole(said(error))

    def _not_whole(self, problem: str) -> None:
        self.problem = self.problem or problem
        if self.writer is not None and not self.writer.problem:
            with suppress(Exception):  # it may be the very thing that went wrong
                self.writer.flush()
            self.writer.problem = self.writer.problem or problem

    @safely
    def note(self, worker: str, text: str) -> None:
        """Something about a worker that the run's reader, and the run file's, should know."""
        self.notes.append(text)
        self._write(Record("note", "", {"text": text}, worker, Clock.now() - self.origin))

    # What arrives

    @safely
    def main_is_ready(self) -> None:
        """This process, which runs the tests itself, has collected."""
        self.worker(Worker(MAIN, started=self.origin, ready=Clock.now()))

    def take_from(self, report: Any) -> str:
        """Take the rows that travel with a report, off it; returns the worker that it comes from."""
        node = getattr(report, "node", None)
        worker: str = MAIN if node is None else node.gateway.id
        if text := report.__dict__.pop(ON_THE_WIRE, ""):
            self.take_text(worker, text)
        return worker

    @safely
    def take_text(self, worker: str, text: str) -> None:
        """Rows that ``worker`` packed."""
        self.take(worker, unpack(text))

    @safely
    def worker(self, worker: Worker) -> None:
        """One more fact about a worker; its ``offset`` counts from now on, its times are on our clock."""
        if worker.offset:
            self._shifts[worker.name] = worker.offset - self.origin
        if worker.started is not None:
            worker.started -= self.origin
        if worker.ready is not None:
            worker.ready -= self.origin
            self.totals.ready[worker.name] = worker.ready
        self._write(worker)

    @safely
    def collected(self, ids: Iterable[str], whole: Whole | None, *, whole_follows: bool = False) -> None:
        """What one process is to run, and what that was selected from (None: the same); the first to say so counts.

        ``whole_follows``: it comes as a row of that process, since only there it is known.
        """
        if self._selected is None:
            self._selected = list(ids)
            self._whole = whole or (None if whole_follows else Whole.of(self._selected))
            self._write_collected()

    def _write_collected(self) -> None:
        if self.writer is not None and self._whole is not None:
            self.writer.collected(self._whole, self._selected or ())

    @safely
    def take(self, worker: str, rows: Iterable[Sent]) -> None:
        """Rows as ``worker`` made them."""
        shift = self._shifts.get(worker, -self.origin)
        for row in rows:
            if isinstance(row, Whole):
                if self._whole is None:
                    self._whole = row
                    self._write_collected()
            elif isinstance(row, Timed):
                row.start += shift
                before = self._waiting.pop(worker, None)
                if before is not None:
                    self._settle_unreported(before, again=row.id == before.id)
                self._waiting[worker] = row
            elif isinstance(row, Fixture):
                row.start += shift
                self._fixture(row, shift)
            else:
                if isinstance(row, Record):
                    row.start += shift
                    if row.kind == INTERRUPTED:
                        self._interrupted.add((worker, row.nodeid))
                self._write(row)
                if isinstance(row, Record) and row.kind == BROKEN:
                    self._not_whole(f"{worker}: {row.data['problem']}")

    @safely
    def report(self, worker: str, nodeid: str, report: Any) -> None:
        """What pytest says of one phase of a test."""
        if hasattr(report, "context"):
            return  # one of several subtests; the test's own report follows
        if report.when not in PHASES:  # xdist's, of a test whose worker crashed
            self._crashed(worker, nodeid, letter_of(report))
            return
        now, phase = Clock.now(), PHASES.index(report.when)
        self._heard[worker] = now
        attempt = self._open.get(worker)
        # A step of clean-up that fails after the test is one more report of its teardown.
        if attempt is None or attempt.id != nodeid or (attempt.letters[phase] != NOT_RUN and phase < 2):
            self._settle(worker)
            attempt = self._open[worker] = _Attempt(nodeid, now)
        if attempt.letters[phase] != "f":
            attempt.letters[phase] = letter_of(report)
        attempt.seconds[phase] += report.duration

    @safely
    def begins(self, worker: str) -> None:
        """The next test begins, so all has been reported of the one before; nothing may come for long."""
        self._settle(worker)

    def _crashed(self, worker: str, nodeid: str, letter: str) -> None:
        now = Clock.now()
        begin = self._heard.get(worker, now)
        attempt = self._open.get(worker)
        if attempt is None or attempt.id != nodeid:
            self._settle(worker)
            attempt = self._open[worker] = _Attempt(nodeid, begin)
        phase = attempt.letters.index(NOT_RUN) if NOT_RUN in attempt.letters else 2
        attempt.letters[phase] = letter
        attempt.seconds[phase] = now - begin
        data = {"phase": PHASES[phase], "seconds": now - begin}
        self._write(Record("crash", nodeid, data, worker, begin - self.origin))
        self._settle(worker)

    # The end

    def settle(self) -> list[TimingError]:
        """Nothing more comes: write what is unfinished as far as it is known. Returns what went over its budget.

        A budget that could not be watched, since recording went wrong, is over too.
        """
        self._settle_all()
        self.totals.seconds = Clock.now() - self.origin
        over = [self.budget.over(file, "file", took) for file, took in self._file_seconds.items()]
        over.append(self.budget.over("the run", "run", self.totals.seconds))
        if self.problem and (self.budget.test is not None or self.budget.file is not None):
            problem = f"budgets of tests and files could not be watched: {self.problem}"
            over.append(TimingError(problem, self.budget.source, "run again without what replaces or breaks that"))
        return [error for error in over if error]

    @safely
    def _settle_all(self) -> None:
        for worker, attempt in list(self._open.items()):
            if (worker, attempt.id) not in self._interrupted:
                self._settle(worker)
        for row in self._waiting.values():
            self._timed(row)
        for fixture in self._up.values():
            self._write(fixture)

    @safely
    def close(self, exit_status: int) -> None:
        """The run file is whole."""
        if self.writer is not None:
            self.writer.close(exit_status, self.totals.seconds)

    @safely
    def abandon(self) -> None:
        """Without an end, unless it has one."""
        if self.writer is not None:
            self.writer.abandon()

    def lines(self, folder: Path) -> list[str]:
        """What the run's reader should know; the run file's path as seen from ``folder``."""
        if self.writer is None:
            return []
        notes = [f"timing: {note}" for note in self.notes]
        facts = self.totals.line() if self.totals.tests else "no test ran"
        if self.writer.problem:
            return [*notes, f"timing: {facts}; the record is not whole: {self.writer.problem}"]
        return [*notes, f"timing: {facts}; recorded in {seen_from(folder, self.writer.path)}"]

    # What becomes of it

    def _settle(self, worker: str) -> None:
        """Join the row and the reports of the test that this worker has open."""
        attempt = self._open.pop(worker, None)
        if attempt is None:
            return
        row = self._waiting.get(worker)
        if row is None or row.id != attempt.id:
            # It ran where we do not measure, or died before it could say anything: pytest's own figures are left.
            setup, call, teardown = attempt.seconds
            row = Timed(attempt.id, worker, attempt.heard - setup - self.origin, setup, call, teardown)
            row.phases = NOT_RUN * 3
        else:
            del self._waiting[worker]
        pairs = zip(attempt.letters, row.phases, strict=True)  # not every report of an attempt has to be logged
        row.phases = "".join([letter if letter != NOT_RUN else own for letter, own in pairs])
        self._timed(row)
        if self.writer is not None:
            self.writer.maybe_flush(Clock.now())

    def _settle_unreported(self, row: Timed, *, again: bool) -> None:
        """A test whose last reports did not come before the next row did."""
        attempt = self._open.get(row.worker)
        if attempt is not None and attempt.id == row.id:
            self._waiting[row.worker] = row
            self._settle(row.worker)
            return
        if again:
            row.phases = row.phases.replace("f", "r")
        self._timed(row)

    def _fixture(self, row: Fixture, shift: float) -> None:
        if row.scope != "function":
            key = (row.worker, row.name, row.scope, row.param, row.node, row.start)
            if row.teardown_start is None:
                self._up[key] = row
                if row.scope in ("class", "module"):
                    self._spent(row.node, row.setup)
                return
            self._up.pop(key, None)
        if row.teardown_start is not None:
            row.teardown_start += shift
        self._write(row)

    def _timed(self, row: Timed) -> None:
        self._spent(row.id, row.setup + row.call)
        self._write(row)

    def _spent(self, nodeid: str, seconds: float) -> None:
        if self.budget.file is not None:
            file = nodeid.partition("::")[0]
            self._file_seconds[file] = self._file_seconds.get(file, 0.0) + seconds

    def _write(self, row: Row) -> None:
        self.totals.add(row)
        if self.writer is not None:
            self.writer.add(row)


def letter_of(report: Any) -> str:
    """The letter in ``Timed.phases`` for a report of pytest's."""
    if report.outcome not in ("passed", "failed", "skipped"):
        return "r"  # pytest-rerunfailures
    expected = hasattr(report, "wasxfail")
    if report.passed:
        return "X" if expected else "p"
    return "f" if report.failed else "x" if expected else "s"
