"""Runs in the formats of other tools, by name: pytest-split's durations, JUnit, a Chrome trace, CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from testkit.errors import TimingError
from testkit.timing._junit import to_junit, visible
from testkit.timing._run import Run, joined, split_id
from testkit.timing._trace import to_trace

COLUMNS = (
    "run,shard,run_attempt,host,worker,id,file,outcome,phases,attempt,"
    "start,setup,call,teardown,rss,gc,gpu,jit_seconds,jit_count,jit_hits"
)


def export(runs: Sequence[Run], form: str) -> str:
    """The text of ``runs`` in one of ``FORMATS``, which any encoding of Unicode can hold.

    Raises TimingError if there is no test to write, or no such format.
    """
    if form not in FORMATS:
        raise TimingError(f"no format {form!r} to export to", fix=f"name one of: {', '.join(FORMATS)}")
    if not any(run.tests for run in runs):
        raise TimingError("no test to export", fix="name run files with tests in them")
    return FORMATS[form](runs)


def to_pytest_split(runs: Sequence[Run]) -> str:
    """Seconds by id, all three phases, of each test's last attempt; pytest-split and fsplit read it."""
    seconds = {nodeid: round(test.final.seconds, 6) for nodeid, test in joined(runs).items()}
    return json.dumps(seconds, sort_keys=True, indent=4) + "\n"


def to_csv(runs: Sequence[Run]) -> str:
    """A row for each attempt at a test: seconds, bytes, counts; control characters are written out."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS.split(","))
    for run in runs:
        header = run.header
        for timed in run.tests:
            worker = run.workers.get(timed.worker)
            host = (worker and worker.host) or header.host
            jit = [timed.jit.seconds, timed.jit.count, timed.jit.hits] if timed.jit else ["", "", ""]
            times = [f"{seconds:.6f}" for seconds in (timed.start, timed.setup, timed.call, timed.teardown)]
            row: list[Any] = [header.run, header.shard, header.attempt, host, timed.worker, timed.id]
            row += [split_id(timed.id)[0], timed.outcome, timed.phases, timed.attempt, *times]
            row += [timed.rss, f"{timed.gc:.6f}", timed.gpu, *jit]
            rows.writerow([visible(cell) if isinstance(cell, str) else cell for cell in row])
    return text.getvalue()


FORMATS: dict[str, Callable[[Sequence[Run]], str]] = {
    "pytest-split": to_pytest_split,
    "junit": to_junit,
    "junit-xunit2": partial(to_junit, family="xunit2"),
    "trace": to_trace,
    "csv": to_csv,
}
"""What ``export`` writes."""
