"""The report as one HTML file that needs no network: plots, and tables that sort and filter."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from testkit.errors import TimingError
from testkit.timing._facts import Facts, facts_of, headline, job_of, three_facts
from testkit.timing._lanes import KINDS
from testkit.timing._plots import LABELLED, MOST_LANES, Drawn, curve, ticks, timeline, treemap
from testkit.timing._report_text import about, usually
from testkit.timing._rows import ENOUGH, half_of
from testkit.timing._run import Joined, Run, split_id
from testkit.timing._say import percent, shown, size, spent

if TYPE_CHECKING:
    from jinja2 import Environment

ROOM = 1_200_000
"""Characters of the tests that the page lists, the slowest first: some 20,000, fewer with long ids."""
MOST_ROWS = 1_000
"""Files, fixtures and workers that the page lists."""
CURVES, CURVES_SHOWN = 60, 6
STATIC = 25
"""Tests that can be seen without the script."""

_UNIT = re.compile(r"(?<=\d) (?=(?:%|µs|ms|s|min|h)(?!\w))")

WORDS = {
    "start": "start-up",
    "collect": "collection and imports",
    "wait": "waiting for the first test",
    "test": "tests",
    "fixture": "shared fixtures",
    "step": "clean-up and other steps",
    "between": "between tests",
    "end": "after the last test",
}


def html_report(runs: Iterable[Run], history: Iterable[Run] = ()) -> str:
    """The newest CI run in ``runs`` as a page; older ones in it, and ``history``, are what its files are compared with.

    Nothing in it can be loaded from elsewhere or run besides its own script: a content security policy says so by
    digest, whatever a node id holds. Raises TimingError without jinja2.
    """
    environment = _environment()
    facts = facts_of(runs, history)
    script, style = (_source(environment, name) for name in ("report.js", "report.css"))
    drawn = timeline(facts)
    curves = [curve(series) for series in facts.trends[:CURVES]]
    return environment.get_template("report.html").render(
        facts=facts,
        headline=headline(facts),
        three=three_facts(facts),
        parts=[(kind, WORDS[kind], facts.parts[kind]) for kind in KINDS] if facts.timed else [],
        top=[row for row in facts.top if row.seconds > 0][:ENOUGH],
        half=half_of(facts.rows),
        drawn=drawn,
        ticks=ticks(facts.elapsed) if drawn else [],
        labelled=LABELLED,
        lanes_left=max(0, len(facts.lanes) - MOST_LANES),
        cells=treemap(facts.rows),
        curves=curves[:CURVES_SHOWN],
        more_curves=curves[CURVES_SHOWN:],
        curves_left=len(facts.trends) - len(curves),
        most_rows=MOST_ROWS,
        static=_longest(facts)[:STATIC],
        notes=[*facts.problems, *facts.notes],
        data=_data(facts, drawn),
        script=script,
        style=style,
        policy=f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:",
    )


def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise TimingError("an HTML report needs jinja2", fix="pip install kernel-testkit[report]") from error
    environment = Environment(
        loader=PackageLoader("testkit.timing"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(spent=spent, shown=shown, size=size, about=about, usually=usually, day=_day, tied=_tied)
    environment.globals.update(percent=percent)
    return environment


def _day(started: float) -> str:
    """``2026-11-30 14:36 UTC``; a machine's local time would differ between the shards of one run."""
    return datetime.fromtimestamp(started, tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _tied(text: str) -> str:
    """``text`` with its numbers and their units on one line."""
    return _UNIT.sub("\u00a0", text)


def _source(environment: Environment, name: str) -> Any:
    """Our own script or style as it is, which no template may touch: the policy names its digest."""
    from markupsafe import Markup

    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _longest(facts: Facts) -> list[Joined]:
    return sorted(facts.tests.values(), key=lambda test: (-test.final.seconds, test.final.id))


class _Words:
    """Numbers for texts of several kinds, and the characters that these take together."""

    def __init__(self, *kinds: str) -> None:
        self.tables: dict[str, dict[str, int]] = {kind: {} for kind in kinds}
        self.characters = 0

    def number(self, kind: str, text: str) -> int:
        table, text = self.tables[kind], shown(text)
        if text not in table:
            table[text] = len(table)
            self.characters += len(text)
        return table[text]


def _data(facts: Facts, drawn: Sequence[Drawn]) -> Any:
    """What the script shows, as JSON that no HTML parser can take for markup; times are whole microseconds.

    ``tests``: file, name, parameters, verdict, worker, set-up, call, teardown, attempts, compilation, GPU memory in
    MiB. ``lanes``: the stretches of each: begin, end, file (or -1 for several), tests, failures.
    """
    from markupsafe import Markup

    words = _Words("files", "names", "verdicts", "workers")
    tests = _tests(facts, words)
    lanes = [
        [
            [*_micros(one.begin, one.end), words.number("files", one.file) if one.file else -1, one.tests, one.bad]
            for one in lane.stretches
        ]
        for lane in drawn
    ]
    data: dict[str, Any] = {kind: list(table) for kind, table in words.tables.items()}
    data |= {"tests": tests, "lanes": lanes, "elapsed": round(facts.elapsed * 1e6), "all": len(facts.tests)}
    text = json.dumps(data, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _tests(facts: Facts, words: _Words) -> list[list[Any]]:
    # A test does not know its run file, and each has workers of the same names.
    jobs = {id(timed): job_of(run, len(facts.runs)) for run in facts.runs for timed in run.tests}
    tests: list[list[Any]] = []
    for test in _longest(facts):
        if words.characters > ROOM:
            break
        timed = test.final
        file, name, params = split_id(timed.id)
        params = None if params is None else shown(params)
        row = [
            words.number("files", file),
            -1 if name is None else words.number("names", name),
            params,
            words.number("verdicts", test.verdict),
            words.number("workers", f"{jobs[id(timed)]} {timed.worker}".strip()),
            *_micros(timed.setup, timed.call, timed.teardown),
            len(test.attempts),
            *_micros(timed.jit.seconds if timed.jit else 0.0),
            timed.gpu >> 20,
        ]
        tests.append(row)
        words.characters += 50 + len(params or "")
    return tests


def _micros(*seconds: float) -> list[int]:
    return [round(value * 1e6) for value in seconds]
