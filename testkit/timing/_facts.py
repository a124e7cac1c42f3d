"""What a report says about one CI run: its verdict, time, idle workers, waste, rows, and how files went before."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testkit._text import counted
from testkit.errors import TimingError
from testkit.timing._lanes import BAD, KINDS, Lane, lanes_of, seconds_of
from testkit.timing._merge import Inventory, inventory
from testkit.timing._rows import Row, Shared, level_of, rows_by, shared_fixtures
from testkit.timing._run import Header, Imported, Joined, Run, joined
from testkit.timing._say import percent, shown, spent
from testkit.timing._trend import Series, trend, trend_notes

MOST_KINDS = 4
"""Kinds of waste that are named; the others are added up."""

WORTH_A_HINT = 0.05
"""Share of all worker time from which the largest waste gets advice."""


@dataclass(frozen=True, slots=True)
class Waste:
    """Seconds on all workers that ran no test for its own sake; ``hint`` is what to do.

    Kinds do not overlap, unless a step was announced within an attempt that was repeated.
    """

    kind: str
    seconds: float
    detail: str
    hint: str


@dataclass(slots=True)
class Facts:
    """All that reports show of one CI run: its newest run files with their re-runs.

    ``spent`` is the time of all workers in seconds, or where that was not recorded (``timed`` is False), of all
    attempts at tests; ``elapsed`` is that of the longest run file. ``problems`` are why the run is not whole.
    """

    header: Header
    runs: list[Run]
    timed: bool
    lanes: list[Lane]
    elapsed: float
    spent: float
    tests: dict[str, Joined]
    verdicts: Counter[str]
    exit_status: int
    level: str
    top: list[Row]
    rows: list[Row]
    fixtures: list[Shared]
    waste: list[Waste]
    trends: list[Series]
    problems: list[str]
    notes: list[str]

    @property
    def failed(self) -> int:
        return sum(self.verdicts[verdict] for verdict in BAD)

    @property
    def state(self) -> str:
        """``ran no test``, ``failed``, ``incomplete`` or ``passed``; only the last is good news."""
        if self.verdicts.total() == self.verdicts["skipped"]:
            return "ran no test"
        if self.failed or self.exit_status:
            return "failed"
        return "incomplete" if self.problems else "passed"

    @property
    def wasted(self) -> float:
        return math.fsum(one.seconds for one in self.waste)

    @property
    def in_tests(self) -> float:
        """Seconds of all attempts at tests."""
        return math.fsum(timed.seconds for test in self.tests.values() for timed in test.attempts)

    @property
    def idle(self) -> float:
        return math.fsum(lane.idle for lane in self.lanes)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each kind of time on all workers; they add up to ``spent``."""
        return {kind: math.fsum(lane.parts[kind] for lane in self.lanes) for kind in KINDS}

    @property
    def hint(self) -> str:
        """What to do about the largest waste, if it is large."""
        large = self.waste and self.waste[0].seconds >= max(1.0, WORTH_A_HINT * self.spent)
        return self.waste[0].hint if large else ""

    @property
    def slower(self) -> list[Series]:
        return [series for series in self.trends if series.slower]


def facts_of(runs: Iterable[Run], history: Iterable[Run] = ()) -> Facts:
    """Compute everything about the newest CI run in ``runs``; older ones in it, and ``history``, are its past.

    Raises TimingError where there is no run at all, and for files that contradict each other (see ``inventory``).
    """
    own = inventory(runs)
    if not own:
        raise TimingError("no run to report", fix="name run files, or the folder that --timing-dir wrote to")
    reported = own.pop()
    past = inventory([run for run in history if run.header.run != reported.run])
    names = {one.run for one in own}
    before = sorted([*own, *(one for one in past if one.run not in names)], key=_began)
    # In this order `joined` lets a shard's newest attempt count.
    files = sorted([*reported.newest.values(), *reported.older], key=lambda run: run.header.started)
    timed = [run for run in files if not run.header.origin]
    lanes = [lane for run in timed for lane in lanes_of(run, job_of(run, len(files)))]
    tests = joined(files)
    level = level_of(tests)
    rows = rows_by("file", files, tests)
    facts = Facts(
        header=max(reported.newest.values(), key=lambda run: run.header.started).header,
        runs=files,
        timed=len(timed) == len(files),
        lanes=lanes,
        elapsed=max([lane.end for lane in lanes], default=0.0),
        spent=math.fsum(lane.total for lane in lanes),
        tests=tests,
        verdicts=Counter(test.verdict for test in tests.values()),
        exit_status=max([run.exit_status or 0 for run in reported.newest.values()]),
        level=level,
        top=rows if level == "file" else rows_by(level, files, tests),
        rows=rows,
        fixtures=shared_fixtures([fixture for run in files for fixture in run.fixtures]),
        waste=[],
        trends=trend(files, before),
        problems=_problems(reported),
        notes=_notes(files, reported),
    )
    if not facts.timed:
        facts.spent += math.fsum(row.seconds for run in files if run.header.origin for row in run.tests)
    facts.waste = _waste(facts, files)
    without = sum(not lane.tests for lane in lanes)
    if tests and without:
        facts.notes.append(f"{counted(without, 'worker')} ran no test")
    facts.notes += trend_notes(facts.trends, len(before))
    return facts


def _began(one: Inventory) -> float:
    return min(run.header.started for run in one.newest.values())


def job_of(run: Run, files: int) -> str:
    """``shard 2/4 attempt 2``; nothing where there is one run file only."""
    if files == 1:
        return ""
    shard = f"shard {run.header.shard}" if run.header.shard else ""
    attempt = f"attempt {run.header.attempt}" if run.header.attempt > 1 or not shard else ""
    return " ".join(filter(None, [shard, attempt]))


def _problems(one: Inventory) -> list[str]:
    found = [f"shard {shard} has no run file" for shard in one.missing]
    for run in one.newest.values():
        if run.cut:
            found.append(f"{run.header.name} lost the end of its file: {shown(run.path)}")
        elif not run.complete:
            found.append(f"{run.header.name} did not finish: {shown(run.path)}")
        if run.selected is not None:
            selected = set(run.selected)
            left = len(selected - {timed.id for timed in run.tests})
            if left:
                found.append(f"{run.header.name} left {counted(left, 'test')} of {len(selected):,} out")
    return found


def _notes(files: Sequence[Run], reported: Inventory) -> list[str]:
    found = [f"{run.header.name} was run again; its time counts" for run in reported.older]
    found += [f"{shown(run.path)} is a copy, left out" for run in reported.copies]
    found += [
        f"{run.header.name} comes from {shown(run.header.origin, 40)}: idle workers, imports and fixtures are not in it"
        for run in files
        if run.header.origin
    ]
    found += dict.fromkeys(shown(note) for run in files for note in run.notes)
    for run in files:
        if not run.header.origin and not run.tests:
            found.append(f"{run.header.name} ran no test")
    return found


def _waste(facts: Facts, files: Sequence[Run]) -> list[Waste]:
    """All kinds of waste that there are, the largest first."""
    parts = facts.parts
    imports = [row for run in files for row in run.imports]
    importing = math.fsum(row.seconds for row in imports)
    collecting = math.fsum(row.seconds for run in files for row in run.collection)
    finals = [test.final for test in facts.tests.values()]
    jits = [timed.jit for timed in finals if timed.jit]
    repeats = [timed for test in facts.tests.values() for timed in test.attempts[:-1]]
    workers = counted(len(facts.lanes), "worker")
    alone = len(facts.lanes) == len(files)
    last = _last(facts.lanes)
    found = [
        Waste("start-up", parts["start"], f"of {workers}, until they collected", "start fewer workers or shards"),
        Waste(
            "imports", importing, _slowest(imports), "import heavy libraries in the tests and fixtures that need them"
        ),
        # A file's collection holds the import of its module.
        Waste(
            "collection",
            max(0.0, collecting - importing),
            f"on {workers}",
            "collect fewer files: every worker collects",
        ),
        Waste(
            "collection barrier",
            parts["wait"],
            "from being ready until the first test",
            "make collection shorter: the slowest worker holds up all others",
        ),
        Waste("between tests", parts["between"], "pytest, plugins and waiting", "look at hooks that run once a test"),
        Waste(
            "after the last test" if alone else "idle at the end",
            parts["end"],
            last,
            "look at what runs at the end of the session"
            if alone
            else ": ".join(filter(None, ["start the longest tests first, or cut them", last])),
        ),
        Waste(
            "compilation",
            math.fsum(jit.seconds for jit in jits),
            f"{counted(sum(jit.count for jit in jits), 'kernel')}, {sum(jit.hits for jit in jits):,} more from a cache",
            "keep the caches of compiled kernels between runs",
        ),
        Waste(
            "garbage collection",
            math.fsum(timed.gc for timed in finals),
            "by Python, while tests ran",
            "call gc.freeze() once everything is imported, so that less is looked through",
        ),
        Waste(
            "repeated attempts",
            math.fsum(timed.seconds for timed in repeats),
            counted(len(repeats), "attempt"),
            "repair the tests that needed them, or set them apart",
        ),
        *_steps(files),
    ]
    return sorted([one for one in found if one.seconds > 0], key=lambda one: -one.seconds)


def _steps(files: Sequence[Run]) -> list[Waste]:
    """Clean-up, and whatever else was announced with its seconds, by kind."""
    kinds: dict[str, list[float]] = {}
    for run in files:
        for record in run.records:
            if seconds := seconds_of(record):
                kinds.setdefault(record.kind, []).append(seconds)
    clean = "clean up once a module: cleanup_scope = module, or the marker skip_global_cleanup"
    return [
        Waste(
            "clean-up" if kind == "cleanup" else shown(kind, 40),
            math.fsum(seconds),
            counted(len(seconds), "step"),
            clean if kind == "cleanup" else "",
        )
        for kind, seconds in kinds.items()
    ]


def _slowest(imports: Sequence[Imported]) -> str:
    modules: dict[str, float] = {}
    for row in imports:
        modules[row.module] = modules.get(row.module, 0.0) + row.seconds
    if not modules:
        return ""
    module = max(modules, key=lambda module: modules[module])
    return f"of {counted(len(modules), 'module')}; {shown(module, 60)} took {spent(modules[module])}"


def _last(lanes: Sequence[Lane]) -> str:
    """Who held up all others at the end, in the run file with the most idle time there."""
    jobs = _by_job(lanes).values()
    if not jobs:
        return ""
    group = max(jobs, key=lambda group: math.fsum(lane.parts["end"] for lane in group))
    *others, last = sorted(group, key=lambda lane: lane.end - lane.parts["end"])
    if not others:
        return ""
    stopped = others[-1].end - others[-1].parts["end"]
    files: dict[str, float] = {}
    for span in last.spans:
        if span.kind == "test" and span.end > stopped:
            files[span.what] = files.get(span.what, 0.0) + span.end - max(stopped, span.begin)
    if not files:
        return ""
    alone = last.end - last.parts["end"] - stopped
    most = max(files, key=lambda file: files[file])
    mostly = "mostly in" if len(files) > 1 else "in"
    return f"{shown(last.name, 60)} ran on for {spent(alone)} after all others had stopped, {mostly} {shown(most)}"


def headline(facts: Facts) -> str:
    """The verdict in one sentence."""
    total = counted(len(facts.tests), "test")
    others = "".join(f", {facts.verdicts[word]:,} {word}" for word in ("skipped", "flaky") if facts.verdicts[word])
    if facts.state == "ran no test":
        why = [f"{total} skipped"] if facts.tests else facts.problems[:1]
        return ": ".join(["RAN NO TEST", *why])
    if facts.failed:
        found = f"FAILED: {facts.failed:,} of {total}{others}"
    elif facts.exit_status:
        found = f"FAILED: exit status {facts.exit_status} although none of {total} failed{others}"
    else:
        ran = counted(len(facts.tests) - facts.verdicts["skipped"], "test")
        found = f"{'passed' if facts.state == 'passed' else 'INCOMPLETE'}: {ran}{others}"
    took = f"{found}, in {spent(facts.elapsed or facts.spent)}{_where(facts)}"
    if not facts.waste or facts.wasted < 0.01 * facts.spent:
        return took
    whole = "worker time" if facts.timed else "it"
    return f"{took}; {percent(facts.wasted, facts.spent)} of {whole} is waste, most of it {facts.waste[0].kind}"


def _where(facts: Facts) -> str:
    noun = "shard" if all(run.header.shard and run.header.attempt == 1 for run in facts.runs) else "run file"
    shards = f" in {counted(len(facts.runs), noun)}" if len(facts.runs) > 1 else ""
    return f"{shards} on {counted(len(facts.lanes), 'worker')}" if facts.timed else f"{shards} of tests"


def three_facts(facts: Facts) -> list[tuple[str, str, str]]:
    """(name, figure, detail) of time, idle and waste."""
    return [_time(facts), _idle(facts), _wasted(facts)]


def _time(facts: Facts) -> tuple[str, str, str]:
    tests = f"{spent(facts.in_tests)} of tests"
    if not facts.timed:
        return "time", tests, "when and where they ran is not known"
    ends = [max(lane.end for lane in lanes) for lanes in _by_job(facts.lanes).values()]
    if len(ends) > 1:
        uneven = f"; run files took {spent(min(ends))} to {spent(max(ends))}"
    else:
        uneven = ""
    at_once = facts.in_tests / facts.elapsed if facts.elapsed else 0.0
    detail = f"{tests} on {counted(len(facts.lanes), 'worker')}, {at_once:.1f} at a time{uneven}"
    return "time", spent(facts.elapsed), detail


def _idle(facts: Facts) -> tuple[str, str, str]:
    if not facts.timed:
        return "idle", "not known", "recorded with --timing-dir only"
    if not facts.lanes:
        return "idle", "not known", "no worker said anything"
    most = max(facts.lanes, key=lambda lane: lane.idle)
    detail = f"{spent(facts.idle)} of {spent(facts.spent)} of worker time"
    if len(facts.lanes) > 1:
        detail += f"; {shown(most.name, 60)} most, {spent(most.idle)}"
    return "idle", percent(facts.idle, facts.spent), detail


def _wasted(facts: Facts) -> tuple[str, str, str]:
    kinds = [f"{one.kind} {spent(one.seconds)}" for one in facts.waste[:MOST_KINDS]]
    if not kinds:
        return "waste", "none", "nothing but tests and their fixtures" if facts.timed else "none is known"
    left = facts.waste[MOST_KINDS:]
    more = f", {len(left)} more {spent(math.fsum(one.seconds for one in left))}" if left else ""
    return "waste", percent(facts.wasted, facts.spent), ", ".join(kinds) + more


def _by_job(lanes: Sequence[Lane]) -> dict[str, list[Lane]]:
    found: dict[str, list[Lane]] = {}
    for lane in lanes:
        found.setdefault(lane.job, []).append(lane)
    return found
