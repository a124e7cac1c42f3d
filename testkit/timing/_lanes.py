"""What each worker did at each moment: all of its time, cut into kinds that add up to the whole.

A *lane* is one worker of one run file. Its time is start-up, collection, the wait until its first test, tests, shared
fixtures, clean-up and other announced steps, what lies between them, and the rest after the last of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from testkit.timing._run import MAIN, Record, Run, Timed, split_id

KINDS = ("start", "collect", "wait", "test", "fixture", "step", "between", "end")
"""All kinds of time, in the order in which a worker meets them."""

BAD = ("failed", "error", "rerun")
"""Outcomes of attempts that did not go well."""

CRASH, INTERRUPTED = "crash", "interrupted"
"""Kinds of records that the recorder itself makes, of tests that did not end."""

ROUNDING = 5e-6
"""Seconds by which pieces may overlap because their parts were rounded one by one."""


class Span(NamedTuple):
    """Seconds ``begin`` to ``end`` of one kind; ``what`` is a file, a fixture's name, or the kind of a record."""

    kind: str
    begin: float
    end: float
    what: str = ""
    tests: int = 0
    bad: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(slots=True)
class Lane:
    """One worker from ``begin`` to ``end``, in seconds since its run began.

    ``spans`` are in order and do not overlap; ``parts`` has the seconds of each of ``KINDS`` and adds up to ``total``.
    """

    job: str
    worker: str
    host: str
    begin: float
    end: float
    spans: list[Span] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    tests: int = 0
    rss: int = 0
    gpu: int = 0

    @property
    def total(self) -> float:
        return self.end - self.begin

    @property
    def name(self) -> str:
        return f"{self.job} {self.worker}" if self.job else self.worker

    @property
    def idle(self) -> float:
        """Seconds in which it ran nothing, after it was ready."""
        return self.parts["wait"] + self.parts["between"] + self.parts["end"]


def seconds_of(record: Record) -> float:
    """What an announced step took: the number ``seconds`` of its data, 0 where there is none.

    Also 0 for a crash: its seconds are those of the test that it hit, which has a row.
    """
    seconds = record.data.get("seconds") if isinstance(record.data, dict) else None
    if record.kind == CRASH or isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return 0.0
    return float(seconds) if 0 <= seconds < math.inf else 0.0


def _step(record: Record) -> Span:
    """A step is announced when it is over; a test that was interrupted is recorded with its begin."""
    seconds = seconds_of(record)
    begin = record.start if record.kind == INTERRUPTED else record.start - seconds
    return Span("step", begin, begin + seconds, record.kind)


def lanes_of(run: Run, job: str = "") -> list[Lane]:
    """A lane for each worker of ``run``; under xdist the controller, which runs no test, has none."""
    names = dict.fromkeys([*run.workers, *(timed.worker for timed in run.tests)])
    busy = {timed.worker for timed in run.tests}
    if len(names) > 1 and MAIN not in busy:
        names.pop(MAIN, None)
    pieces = {name: _pieces(run, name) for name in names}
    last = max([piece.end for found in pieces.values() for piece in found], default=0.0)
    end = max(run.seconds or 0.0, last)
    return [_lane(run, job, name, found, end) for name, found in pieces.items()]


def _lane(run: Run, job: str, name: str, pieces: list[Span], end: float) -> Lane:
    worker = run.workers.get(name)
    begin = worker.started if worker and worker.started is not None else 0.0
    first = pieces[0].begin if pieces else end
    ready = worker.ready if worker and worker.ready is not None else first
    begin, ready = min(begin, first), min(ready, first)
    lane = Lane(job, name, (worker and worker.host) or run.header.host, begin, end)
    # What was not collecting before the worker was ready is its start: the interpreter, plugins, conftest files.
    collecting = min(sum(row.seconds for row in run.collection if row.worker == name), max(0.0, ready - begin))
    before = [Span("start", begin, ready - collecting), Span("collect", ready - collecting, ready)]
    lane.spans = [span for span in before if span.seconds > 0] + pieces
    lane.parts = dict.fromkeys(KINDS, 0.0)
    for span in lane.spans:
        lane.parts[span.kind] += span.seconds
    # A worker that never got anything to do was idle until the end.
    lane.parts["wait"] = first - ready if pieces else 0.0
    lane.parts["end"] = end - (pieces[-1].end if pieces else ready)
    lane.parts["between"] = max(0.0, lane.total - math.fsum(lane.parts.values()))
    mine = [timed for timed in run.tests if timed.worker == name]
    lane.tests = sum(map(_counts, mine))
    lane.rss = max((timed.rss for timed in mine), default=0)
    lane.gpu = max((timed.gpu for timed in mine), default=0)
    return lane


def _counts(timed: Timed) -> int:
    """1, or 0 for an attempt that was followed by another."""
    return int(timed.outcome != "rerun")


def _pieces(run: Run, worker: str) -> list[Span]:
    """Tests, shared fixtures and steps of a worker, one after another."""
    tests = [
        Span(
            "test",
            timed.start,
            timed.start + timed.seconds,
            split_id(timed.id)[0],
            _counts(timed),
            timed.outcome in BAD,
        )
        for timed in run.tests
        if timed.worker == worker
    ]
    shared = []
    for row in run.fixtures:
        # What a function's fixtures take is in its test's set-up and teardown; sums of several lie nowhere.
        if row.worker == worker and row.scope != "function" and row.count == 1:
            shared.append(Span("fixture", row.start, row.start + row.setup, row.name))
            if row.teardown_start is not None:
                shared.append(Span("fixture", row.teardown_start, row.teardown_start + row.teardown, row.name))
    steps = [_step(record) for record in run.records if record.worker == worker and seconds_of(record)]
    return _fill(_unnested([*tests, *shared]), steps)


def _unnested(spans: Iterable[Span]) -> list[Span]:
    """The spans without overlap: one that begins within another interrupts it.

    A test's seconds leave out the shared fixtures that were set up for it, and a fixture's those that it asked for, so
    that what is interrupted goes on after it and each keeps its seconds.
    """
    found: list[Span] = []
    interrupted: list[Span] = []
    now = 0.0
    for span in [*sorted(spans, key=lambda span: (span.begin, span.kind != "test")), Span("", math.inf, math.inf)]:
        while interrupted and now < span.begin:
            top = interrupted.pop()
            until = min(now + top.seconds, span.begin)
            found.append(top._replace(begin=now, end=until))
            # The rest of a test is no second test.
            left = top._replace(begin=until, end=until + top.seconds - (until - now), tests=0, bad=False)
            if left.seconds > ROUNDING:
                interrupted.append(left)
            now = until
        now = max(now, span.begin)
        interrupted.append(span)
    return found


def _fill(spans: list[Span], steps: Iterable[Span]) -> list[Span]:
    """``spans``, and of each step what lies between them; in order."""
    found, place, now = [], 0, 0.0
    for step in sorted(steps, key=lambda step: step.begin):
        begin = max(step.begin, now)
        while place < len(spans) and spans[place].begin < step.end:
            if spans[place].begin > begin:
                found.append(step._replace(begin=begin, end=spans[place].begin))
            found.append(spans[place])
            begin = max(begin, spans[place].end)
            place += 1
        if step.end > begin:
            found.append(step._replace(begin=begin))
        now = max(begin, step.end)
    return found + spans[place:]
