"""Runs as a Chrome trace, which Perfetto and other viewers of timelines open."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from testkit.timing._junit import visible
from testkit.timing._run import Fixture, Run, Timed, split_id

Event: TypeAlias = dict[str, Any]

ROUNDING = 3
"""Microseconds by which spans may overlap because their parts were rounded one by one; they are moved or cut."""


def to_trace(runs: Sequence[Run]) -> str:
    """A trace in the JSON object form: a process for each shard and host, a thread for each worker, microseconds.

    Tests hold their phases, and a fixture lies in the phase in which it was set up or torn down. Viewers drop spans
    that overlap without one lying in the other, so such a one goes to a further thread of the same worker.
    """
    origin = min(run.header.started for run in runs)
    events: list[Event] = []
    processes: dict[tuple[str, str, str], int] = {}
    threads: dict[int, int] = {}
    for run in runs:
        shift = run.header.started - origin
        for name in dict.fromkeys([*run.workers, *(timed.worker for timed in run.tests)]):
            worker = run.workers.get(name)
            host = (worker and worker.host) or run.header.host
            key = (run.header.run, run.header.name, host)
            if key not in processes:
                processes[key] = len(processes) + 1
                label = f"{run.header.run} {run.header.name}" + (f" on {host}" if host else "")
                events.append(_meta("process_name", processes[key], 0, label))
            pid = processes[key]
            lanes = _lanes(
                [timed for timed in run.tests if timed.worker == name],
                [row for row in run.fixtures if row.worker == name],
                shift,
            )
            for number, lane in enumerate(lanes, 1):
                threads[pid] = tid = threads.get(pid, 0) + 1
                events.append(_meta("thread_name", pid, tid, name if number == 1 else f"{name} ({number})"))
                events += [span | {"pid": pid, "tid": tid} for span in lane.spans]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")) + "\n"


class _Lane:
    """Spans that follow or hold each other."""

    def __init__(self) -> None:
        self.spans: list[Event] = []
        self.end_of_tests = -(1 << 62)
        # The phases of its tests, one after another: a fixture lies in one of them, or between.
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._open_fixtures: list[int] = []

    def take_test(self, timed: Timed, shift: float) -> bool:
        """False if another test is still running; they come in the order of their begin."""
        begin = round((timed.start + shift) * 1e6)
        if begin < self.end_of_tests - ROUNDING:
            return False
        at = max(begin, self.end_of_tests)
        test = _span(_label(timed), "test", at, at, _facts(timed))
        self.spans.append(test)
        for phase in ("setup", "call", "teardown"):
            end = at + round(getattr(timed, phase) * 1e6)
            if end > at:
                self.spans.append(_span(phase, "phase", at, end, {}))
                self._begins.append(at)
                self._ends.append(end)
            at = end
        test["dur"] = at - test["ts"]
        self.end_of_tests = at
        return True

    def take_fixture(self, name: str, begin: int, end: int, args: Event) -> bool:
        """False if it does not fit; they come in the order of their begin, the longer ones first."""
        at = bisect_right(self._begins, begin) - 1
        after = self._begins[at + 1] if at + 1 < len(self._begins) else end
        if after - begin <= ROUNDING and after < end:
            at, begin = at + 1, after
            after = self._begins[at + 1] if at + 1 < len(self._begins) else end
        while self._open_fixtures and self._open_fixtures[-1] <= begin:
            self._open_fixtures.pop()
        limit = self._ends[at] if at >= 0 and begin < self._ends[at] else max(after, begin)
        limit = min([limit, *self._open_fixtures[-1:]])
        if end > limit + ROUNDING:
            return False
        end = min(end, limit)
        self._open_fixtures.append(end)
        self.spans.append(_span(name, "fixture", begin, end, args))
        return True


def _lanes(tests: Iterable[Timed], fixtures: Iterable[Fixture], shift: float) -> list[_Lane]:
    """The spans of one worker; more than one lane only where they would overlap."""
    lanes = [_Lane()]
    for timed in sorted(tests, key=lambda timed: timed.start):
        if not any(lane.take_test(timed, shift) for lane in lanes):
            lanes.append(_Lane())
            lanes[-1].take_test(timed, shift)
    spans = [span for row in fixtures for span in _fixture_spans(row, shift)]
    for name, begin, end, args in sorted(spans, key=lambda span: (span[1], -span[2])):
        if not any(lane.take_fixture(name, begin, end, args) for lane in lanes):
            lanes.append(_Lane())
            lanes[-1].take_fixture(name, begin, end, args)
    return lanes


def _label(timed: Timed) -> str:
    _, name, params = split_id(timed.id)
    return (name or timed.id) + ("" if params is None else f"[{params}]")


def _facts(timed: Timed) -> Event:
    args: Event = {"id": visible(timed.id), "outcome": timed.outcome, "attempt": timed.attempt}
    args |= {name: value for name in ("rss", "gc", "gpu") if (value := getattr(timed, name))}
    if timed.jit is not None:
        args["jit"] = f"{timed.jit.count} compiled in {timed.jit.seconds:.6f} s, {timed.jit.hits} from a cache"
    return args


def _fixture_spans(row: Fixture, shift: float) -> Iterator[tuple[str, int, int, Event]]:
    if row.count > 1:
        return  # added up, so they lie nowhere
    args: Event = {"scope": row.scope, "node": visible(row.node)}
    if row.param:
        args["param"] = visible(row.param)
    parts = [("set-up", row.start, row.setup)]
    if row.teardown_start is not None:
        parts.append(("teardown", row.teardown_start, row.teardown))
    for what, start, seconds in parts:
        begin = round((start + shift) * 1e6)
        yield f"{row.name} {what}", begin, begin + round(seconds * 1e6), args


def _span(name: str, kind: str, begin: int, end: int, args: Event) -> Event:
    return {"ph": "X", "name": visible(name), "cat": kind, "ts": begin, "dur": end - begin, "args": args}


def _meta(name: str, pid: int, tid: int, text: str) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": {"name": visible(text)}}
