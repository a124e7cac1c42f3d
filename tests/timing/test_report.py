"""Reports: every figure of a small run by hand, what is said of runs that are not whole, and limits that hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testkit.errors import TimingError
from testkit.timing._annotations import annotations
from testkit.timing._facts import facts_of, headline
from testkit.timing._lanes import KINDS, lanes_of
from testkit.timing._report_markdown import markdown_report
from testkit.timing._report_text import text_report
from testkit.timing._rows import Row, half_of, level_of, rows_by
from testkit.timing._run import Collected, Fixture, Header, Imported, Jit, Record, Run, Timed, Worker, joined
from testkit.timing._say import percent, shown, size, spent
from testkit.timing._trend import band_of

A, B = "tests/test_a.py", "tests/test_b.py"


def known() -> Run:
    """Twenty seconds on two workers in which every figure is known, see the tables below."""
    return Run(
        Header("nightly-17", started=1_796_000_000.0, host="box"),
        {
            "main": Worker("main"),
            "gw0": Worker("gw0", started=0.5, ready=3.0),
            "gw1": Worker("gw1", "box2", 0, 0, 1, 4),
        },
        [
            Timed(f"{A}::test_1", "gw0", 5.0, 0.25, 1.0, 0.25, 1 << 30),
            Timed(f"{A}::test_2", "gw0", 7.5, 0.25, 1.5, 0.25, 2 << 30),
            Timed(f"{B}::test_3", "gw1", 5.0, 0.5, 2.0, 0.5, phases="prp"),
            Timed(f"{B}::test_3", "gw1", 8.0, 0.5, 2.0, 0.5, attempt=2, gc=0.25, jit=Jit(1.0, 2, 1)),
            Timed(f"{B}::test_4", "gw1", 12.0, 0.5, 4.0, 0.5, phases="pfp", gpu=3 << 30),
        ],
        [
            Fixture("engine", "module", "", A, "gw0", 4.5, 0.5, 0.5, 9.5),
            Fixture("value", "function", "", A, "gw0", 5.0, 0.1, 0.1, None, 2),
        ],
        [Collected(A, "gw0", 1.0), Collected(B, "gw0", 0.5), Collected(A, "gw1", 1.5), Collected(B, "gw1", 0.5)],
        [Imported(A, "gw0", 0.75), Imported(B, "gw0", 0.25), Imported(A, "gw1", 1.0), Imported(B, "gw1", 0.5)],
        [Record("cleanup", f"{A}::test_1", {"seconds": 0.5}, "gw0", 7.0), Record("pairwise", A, {"rows": 3}, "gw0", 3)],
        exit_status=1,
        seconds=20.0,
        complete=True,
    )


def test_the_report_of_a_known_run() -> None:
    assert [re.sub("  +", "  ", line) for line in text_report([known()]).splitlines()] == [
        "FAILED: 1 of 4 tests, 1 flaky, in 20.0 s on 2 workers; "
        "71 % of worker time is waste, most of it idle at the end",
        "  time  20.0 s  14.5 s of tests on 2 workers, 0.7 at a time",
        "  idle  44 %  17.0 s of 38.5 s of worker time; gw0 most, 12.0 s",
        "  waste  71 %  idle at the end 13.0 s, repeated attempts 3.00 s, imports 2.50 s, collection barrier 2.50 s, "
        "6 more 6.25 s",
        "next: start the longest tests first, or cut them: "
        "gw1 ran on for 7.00 s after all others had stopped, in tests/test_b.py",
        "",
        "most time, by function",
        "  6.00 s  16 %  tests/test_b.py::test_3  50 % repeated attempts",
        "  5.00 s  13 %  tests/test_b.py::test_4  1 failed; 20 % set-up and teardown",
        "  2.50 s  6 %  collection of tests/test_a.py",
        "  2.00 s  5 %  tests/test_a.py::test_1  25 % clean-up",
        "  2.00 s  5 %  tests/test_a.py::test_2  25 % set-up and teardown",
        "  1.00 s  3 %  collection of tests/test_b.py",
        "  1.00 s  3 %  fixture engine (module), tests/test_a.py",
    ]


def test_all_time_of_a_worker_is_cut_into_kinds_that_add_up() -> None:
    gw0, gw1 = lanes_of(known())
    assert [gw0.parts[kind] for kind in KINDS] == [1.0, 1.5, 1.5, 3.5, 1.0, 0.5, 0.5, 10.0]
    assert [gw1.parts[kind] for kind in KINDS] == [1.0, 2.0, 1.0, 11.0, 0.0, 0.0, 1.0, 3.0]
    assert (gw0.total, gw0.idle, gw0.tests, gw0.rss, gw0.host) == (19.5, 12.0, 2, 2 << 30, "box")
    assert (gw1.total, gw1.idle, gw1.tests, gw1.gpu, gw1.host) == (19.0, 5.0, 2, 3 << 30, "box2")


def test_every_kind_of_waste_is_a_known_sum() -> None:
    facts = facts_of([known()])
    assert {one.kind: one.seconds for one in facts.waste} == {
        "idle at the end": 13.0,
        "repeated attempts": 3.0,
        "imports": 2.5,
        "collection barrier": 2.5,
        "start-up": 2.0,
        "between tests": 1.5,
        "collection": 1.0,
        "compilation": 1.0,
        "clean-up": 0.5,
        "garbage collection": 0.25,
    }
    details = {one.kind: one.detail for one in facts.waste}
    assert details["compilation"] == "2 kernels, 1 more from a cache"
    assert details["imports"] == "of 2 modules; tests/test_a.py took 1.75 s"
    assert (facts.spent, facts.elapsed, facts.in_tests, facts.idle, facts.wasted) == (38.5, 20.0, 14.5, 17.0, 27.25)


def test_a_file_is_its_tests_fixtures_steps_and_collection() -> None:
    b, a = facts_of([known()]).rows
    assert (a.name, a.tests, a.bad, a.setup, a.call, a.teardown) == (A, 2, 0, 0.5, 2.5, 0.5)
    assert (a.shared, a.steps, a.collecting, a.seconds) == (1.0, 0.5, 2.5, 7.5)
    assert (b.name, b.tests, b.bad, b.setup, b.call, b.teardown) == (B, 2, 1, 1.5, 8.0, 1.5)
    assert (b.repeated, b.compiling, b.collecting, b.seconds) == (3.0, 1.0, 1.0, 12.0)
    assert (b.longest, b.longest_seconds) == (f"{B}::test_3", 6.0)


@pytest.mark.parametrize("level", ["file", "function", "test"])
def test_rows_of_every_level_hold_the_same_seconds(level: str) -> None:
    run = known()
    run.fixtures.append(Fixture("server", "session", "", "", "gw0", 4.0, 0.25))
    run.records.append(Record("cleanup", "", {"seconds": 0.25}, "gw0", 11.0))
    rows = rows_by(level, [run], joined([run]))
    assert sum(row.seconds for row in rows) == 20.0
    assert [row.seconds for row in rows if "whole run" in row.name] == [0.5] if level == "file" else [0.25, 0.25]


def test_rows_are_files_where_there_are_ten_functions_where_there_are_three_else_tests() -> None:
    assert level_of([f"test_{file}.py::test_x" for file in range(10)]) == "file"
    assert level_of([f"test_a.py::test_{name}[{n}]" for name in range(3) for n in range(30)]) == "function"
    assert level_of([f"test_{n % 9}.py::test_x[{n}]" for n in range(1000)]) == "function"
    assert level_of([f"test_a.py::test_x[{n}]" for n in range(1000)]) == "test"


def test_whoever_ran_on_alone_is_named_with_what_took_most_of_that() -> None:
    run = Run(Header("r"), {"gw0": Worker("gw0", ready=0.0), "gw1": Worker("gw1", ready=0.0)}, seconds=20.0)
    run.tests = [
        Timed("a.py::t", "gw0", 0.0, call=10.0),
        Timed("a.py::u", "gw1", 0.0, call=4.0),
        Timed("b.py::t", "gw0", 10.0, call=8.0),
        Timed("c.py::t", "gw0", 18.0, call=1.0),
    ]
    assert "gw0 ran on for 15.0 s after all others had stopped, mostly in b.py" in text_report([run])


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (Row("f", 4, call=4.0), ""),
        (Row("f", 4, call=4.0, collecting=2.0), "33 % collection and imports"),
        (Row("f", 4, call=4.0, shared=2.0, compiling=3.0), "50 % kernel compilation"),
        (Row("f", 4, call=4.0, longest="f::test_x[1]", longest_seconds=3.0), "75 % its longest test, test_x[1]"),
        (Row("f", 1, call=4.0, longest="f", longest_seconds=4.0), ""),
        (Row("fixture", shared=4.0), ""),
    ],
)
def test_the_largest_part_of_a_row_is_named_from_a_fifth_on(row: Row, cause: str) -> None:
    assert row.cause() == cause


def test_half_of_the_time_is_in_so_many_rows() -> None:
    rows = [Row("", call=seconds) for seconds in (5.0, 1.0, 1.0, 3.0)]
    assert (half_of(rows), half_of(rows[1:3]), half_of([]), half_of([Row("")])) == (1, 1, 0, 0)


# Workers


def test_a_fixture_that_is_set_up_within_a_test_interrupts_it() -> None:
    """``request.getfixturevalue``: the test's own second is before and after the three of the module's fixture."""
    run = Run(Header("r"), tests=[Timed("a.py::t", start=1.0, call=1.0)], seconds=5.0)
    run.fixtures = [
        Fixture("outer", "module", "", "a.py", start=1.5, setup=1.0),
        Fixture("inner", "session", "", "", start=1.75, setup=2.0),
    ]
    (lane,) = lanes_of(run)
    assert [(span.kind, span.what, span.begin, span.end) for span in lane.spans if span.begin >= 1] == [
        ("test", "a.py", 1.0, 1.5),
        ("fixture", "outer", 1.5, 1.75),
        ("fixture", "inner", 1.75, 3.75),
        ("fixture", "outer", 3.75, 4.5),
        ("test", "a.py", 4.5, 5.0),
    ]
    assert [lane.parts[kind] for kind in ("test", "fixture", "end")] == [1.0, 3.0, 0.0]


def test_a_step_counts_where_no_test_runs() -> None:
    """A clean-up ends when it is announced; a wait within a test's set-up is in the test already."""
    run = Run(Header("r"), tests=[Timed("a.py::t", start=1.0, setup=2.0), Timed("a.py::u", start=4.0, call=1.0)])
    run.records = [
        Record("cleanup", "a.py::t", {"seconds": 0.5}, start=3.5),
        Record("gpus", "", {"seconds": 1}, start=2.0),
    ]
    (lane,) = lanes_of(run)
    assert [lane.parts[kind] for kind in ("start", "test", "step", "between")] == [1.0, 3.0, 0.5, 0.5]
    assert {one.kind: one.seconds for one in facts_of([run]).waste if one.kind in ("clean-up", "gpus")} == {
        "clean-up": 0.5,
        "gpus": 1.0,
    }


@pytest.mark.parametrize(
    "data", [None, [], {"seconds": "3"}, {"seconds": -1}, {"seconds": float("nan")}, {"seconds": True}]
)
def test_a_record_without_usable_seconds_takes_no_time(data: Any) -> None:
    run = known()
    run.records = [Record("plan", A, data, "gw0", 7.0)]
    assert text_report([run]).count("plan") == 0


def test_an_interrupted_test_is_time_from_its_begin_and_a_crash_is_its_tests_time() -> None:
    run = Run(Header("r"), tests=[Timed("a.py::t", start=0.0, call=1.0, phases="pf-")], seconds=5.0)
    run.records = [
        Record("crash", "a.py::t", {"seconds": 1.0}, start=0.0),
        Record("interrupted", "a.py::u", {"seconds": 2.0}, start=2.0),
    ]
    (lane,) = lanes_of(run)
    assert [lane.parts[kind] for kind in ("test", "between", "step", "end")] == [1.0, 1.0, 2.0, 1.0]


def test_a_worker_that_got_no_test_was_idle_and_the_controller_is_no_worker() -> None:
    run = known()
    run.workers["gw2"] = Worker("gw2", started=1.0, ready=2.0)
    *_, gw2 = lanes_of(run)
    assert [lane.worker for lane in lanes_of(run)] == ["gw0", "gw1", "gw2"]
    assert text_report([run]).endswith("note: 1 worker ran no test")
    assert (gw2.parts["start"], gw2.parts["end"], gw2.idle, gw2.total) == (1.0, 18.0, 18.0, 19.0)


def test_without_workers_the_time_before_the_first_test_is_start_and_collection() -> None:
    run = Run(Header("r"), tests=[Timed("a.py::t", start=3.0, call=1.0)], collection=[Collected("a.py", seconds=1.0)])
    (lane,) = lanes_of(run)
    assert [lane.parts[kind] for kind in ("start", "collect", "wait", "test", "end")] == [2.0, 1.0, 0.0, 1.0, 0.0]
    assert "start the longest tests first" not in text_report([run])


moments = st.floats(0, 100, allow_nan=False)
lengths = st.floats(0, 10, allow_nan=False)


@given(
    tests=st.lists(st.tuples(moments, lengths), max_size=8),
    fixtures=st.lists(st.tuples(moments, lengths, moments, lengths), max_size=5),
    steps=st.lists(st.tuples(moments, lengths), max_size=5),
    ready=st.none() | moments,
)
def test_kinds_add_up_and_spans_never_overlap_whatever_was_recorded(
    tests: list[Any], fixtures: list[Any], steps: list[Any], ready: float | None
) -> None:
    run = Run(Header("r"), {"main": Worker("main", ready=ready)}, collection=[Collected("a.py", seconds=3.0)])
    run.tests = [Timed(f"a.py::t{n}", start=start, call=call) for n, (start, call) in enumerate(tests)]
    run.fixtures = [Fixture("f", "module", "", "a.py", "main", a, b, d, c) for a, b, c, d in fixtures]
    run.records = [Record("cleanup", "", {"seconds": seconds}, start=start) for start, seconds in steps]
    (lane,) = lanes_of(run)
    assert sum(lane.parts.values()) == pytest.approx(lane.total)
    assert all(seconds >= -1e-9 for seconds in lane.parts.values())
    assert lane.parts["test"] == pytest.approx(sum(call for _, call in tests), abs=1e-4)
    for one, two in zip(lane.spans, lane.spans[1:], strict=False):
        assert one.begin <= one.end <= two.begin + 1e-9


# Runs that are not whole


def said(*runs: Run) -> str:
    return text_report(runs)


def test_a_partial_file_ends_where_it_ends_and_is_no_pass() -> None:
    run = replace(known(), seconds=None, exit_status=None, complete=False, path="r.timing.jsonl.partial")
    run.tests = run.tests[:2]
    assert facts_of([run]).elapsed == 10.0
    assert said(run).startswith("INCOMPLETE: 2 tests, in 10.0 s on 2 workers")
    assert "note: the run, attempt 1 did not finish: r.timing.jsonl.partial" in said(run)
    assert "note: the run, attempt 1 lost the end of its file" in said(replace(run, cut=True))


def test_a_run_that_ran_no_test_says_so() -> None:
    nothing = Run(Header("r"), {"main": Worker("main")}, exit_status=5, seconds=1.0, complete=True)
    assert said(nothing).startswith("RAN NO TEST\n")
    assert "RAN NO TEST" in markdown_report([nothing])
    assert annotations([nothing])[0] == "::error title=Where the time went::RAN NO TEST"
    skipped = replace(nothing, tests=[Timed("a.py::t", phases="s-p"), Timed("a.py::u", phases="s-p")])
    assert said(skipped).startswith("RAN NO TEST: 2 tests skipped\n")


def test_an_exit_status_without_a_failure_is_no_pass() -> None:
    run = replace(known(), exit_status=3)
    run.tests = run.tests[:2]
    assert said(run).startswith("FAILED: exit status 3 although none of 2 tests failed, in 20.0 s")


def test_tests_that_were_selected_and_not_run_are_counted() -> None:
    run = replace(known(), exit_status=0, selected=[*(timed.id for timed in known().tests), "x::y", "x::z"])
    run.tests = [timed for timed in run.tests if timed.outcome != "failed"]
    assert said(run).startswith("INCOMPLETE: 3 tests, 1 flaky, in")
    assert "note: the run, attempt 1 left 3 tests of 6 out" in said(run)


def shard(number: int, of: int = 3, attempt: int = 1, **fields: Any) -> Run:
    run = known()
    run.header = Header("ci-9", f"{number}/{of}", attempt, 1_796_000_000.0 + attempt, "box")
    run.tests = [replace(timed, id=f"{timed.id}[{number}]") for timed in run.tests]
    return replace(run, **fields)


def test_shards_are_one_run_and_a_missing_one_is_named() -> None:
    two = [shard(1), shard(3, seconds=30.0)]
    facts = facts_of(two)
    assert [lane.name for lane in facts.lanes] == ["shard 1/3 gw0", "shard 1/3 gw1", "shard 3/3 gw0", "shard 3/3 gw1"]
    assert (facts.elapsed, facts.spent, len(facts.tests)) == (30.0, 38.5 + 58.5, 8)
    assert "in 30.0 s in 2 shards on 4 workers" in headline(facts)
    assert "1.0 at a time; run files took 20.0 s to 30.0 s" in said(*two)
    assert "note: shard 2/3 has no run file" in said(*two)
    assert "::error title=Where the time went::shard 2/3 has no run file" in annotations(two)


def test_a_shard_that_was_run_again_counts_with_its_newest_results_and_all_its_time() -> None:
    again = shard(2, attempt=2, exit_status=0)
    again.tests = [replace(timed, phases="ppp") for timed in again.tests]
    facts = facts_of([again, shard(1, exit_status=0), shard(2), shard(3, exit_status=0)])
    # test_4 failed in shards 1 and 3; in shard 2 it passed when it was run again.
    assert facts.verdicts == {"failed": 2, "flaky": 4, "passed": 6}
    assert facts.spent == 4 * 38.5
    assert {one.kind: one.seconds for one in facts.waste}["repeated attempts"] == 2 * 3.0 + (1.5 + 2.0 + 9.0 + 5.0)
    assert "note: shard 2/3, attempt 1 was run again; its time counts" in said(again, shard(1), shard(2), shard(3))


def test_an_imported_run_says_what_is_not_known() -> None:
    run = Run(Header("report-1", started=1.0, origin="junit"), {"main": Worker("main")}, complete=True)
    run.tests = [Timed("a.py::t", call=1.0), Timed("a.py::u", start=1.0, call=3.0, phases="pfp")]
    run.notes = ["durations without outcomes: all are taken as passed"]
    assert said(run).splitlines() == [
        "FAILED: 1 of 2 tests, in 4.00 s of tests",
        "  time   4.00 s of tests  when and where they ran is not known",
        "  idle   not known        recorded with --timing-dir only",
        "  waste  none             none is known",
        "",
        "most time, by test",
        "  3.00 s  75 %  a.py::u  1 failed",
        "  1.00 s  25 %  a.py::t",
        "  note: the run, attempt 1 comes from junit: idle workers, imports and fixtures are not in it",
        "  note: durations without outcomes: all are taken as passed",
    ]


def test_no_run_at_all_is_refused() -> None:
    with pytest.raises(TimingError, match="no run to report"):
        text_report([])


# Past runs


def past(seconds: list[float], **fields: Any) -> list[Run]:
    """One run a day, of two files: one takes so many seconds, of which one is its fixture's, the other one second."""
    runs = []
    for day, took in enumerate(seconds):
        run = Run(Header(f"day-{day}", started=day * 86_400.0), seconds=100.0, exit_status=0, complete=True, **fields)
        run.tests = [Timed("a.py::t", start=1.0, call=took - 1), Timed("b.py::t", start=90.0, call=1.0)]
        run.fixtures = [Fixture("engine", "module", "", "a.py", "main", 0.0, 0.75, 0.25, 89.0)]
        runs.append(run)
    return runs


def test_the_band_is_four_robust_deviations_around_the_median_of_fourteen() -> None:
    values = [1000.0, 10.0, 11.0, 9.0, 10.0, 12.0, 8.0, 10.0]
    assert band_of(values[1:]) == pytest.approx((10 - 4 * 1.4826, 10.0, 10 + 4 * 1.4826))
    assert band_of([1000.0] + [10.0] * 14) == (9.5, 10.0, 10.5)
    assert band_of([10.0, 10.0]) is None


def test_a_file_above_its_band_is_named_with_what_is_usual() -> None:
    runs = past([40.0, 41.0, 39.0, 40.0, 60.0])
    assert said(*runs).splitlines()[-4:] == [
        "slower than in the runs before",
        "  1 min 00 s  a.py  usually 37.0 s to 43.0 s",
        "  note: 4 earlier runs for comparison",
        "  note: the middle file took 1.25 times its usual seconds: another machine, or a cause that all files share",
    ]
    assert facts_of(runs[-1:], runs).trends == facts_of(runs).trends
    assert "::warning file=a.py,title=Where the time went::a.py took 1 min 00 s" in "\n".join(annotations(runs))
    assert "Slower than in the runs before" in markdown_report(runs)


def test_a_file_within_its_band_or_a_few_seconds_off_is_no_news() -> None:
    assert "slower" not in said(*past([40.0, 41.0, 39.0, 40.0, 42.0]))
    assert "slower" not in said(*past([2.0, 2.0, 2.0, 2.0, 6.5]))


def test_runs_that_are_not_whole_are_no_history() -> None:
    runs = past([40.0, 1.0, 1.0, 40.0, 40.0, 40.0, 60.0])
    runs[1].complete = False
    runs[2].header.shard = "1/2"
    assert facts_of(runs).trends[0].values == [40.0, 40.0, 40.0, 40.0, 60.0]
    few = said(*past([40.0, 60.0]))
    assert few.endswith("note: 1 earlier run for comparison, too few whole ones for a band: 3 are needed")


# Markdown and annotations


def many(tests: int, name: Callable[[int], str]) -> Run:
    run = Run(Header("r"), {"main": Worker("main")}, seconds=float(tests), exit_status=0, complete=True)
    run.tests = [Timed(name(n), start=float(n), call=0.5 + n / 1e5) for n in range(tests)]
    return run


def test_markdown_folds_all_but_the_first_table() -> None:
    text = markdown_report([many(30, lambda n: f"tests/test_{n}.py::test_x")])
    assert text.startswith("### passed: 30 tests, in 30.0 s on 1 worker; ")
    assert text.index("**Most time, by file**") < text.index("<details>")
    assert text.count("<details>") == text.count("</details>") == 3
    assert "The rest of the rows" in text
    assert "left out" not in text


@pytest.mark.parametrize("limit", [1 << 20, 65_536, 4_000, 1_000, 300])
def test_markdown_stays_below_its_limit_in_whole_rows_and_counts_the_others(limit: int) -> None:
    text = markdown_report([many(10_000, lambda n: f"tests/test_{n % 700}.py::test_x[{'é|`' * 20}-{n}]")], limit)
    assert len(text.encode()) < limit
    assert text.startswith("### passed: 10" if limit > 300 else "passed: 10")
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith("|")
    if limit >= 4_000:
        left = int(re.findall(r"([\d,]+) rows left out\.", text)[-1].replace(",", ""))
        slowest = text[text.index("Slowest tests") :].count("| passed |")
        assert left + slowest == 10_000


CODE = re.compile(r"(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)")


@pytest.mark.parametrize(
    "name", ["a|b", "`", "``x`", "*b* _i_ [l](u) <b> &amp; @me #1 ~~s~~", "a\\", "a\\|b", "x\ny", "\x1b[2J"]
)
def test_markdown_shows_any_name_as_it_is(name: str) -> None:
    text = markdown_report([many(1, lambda n: f"a.py::test[{name}]")])
    row = next(line for line in text.splitlines() if line.startswith("| ") and "a.py" in line.replace("&#46;", "."))
    bare = CODE.sub("", row)
    assert bare.count("|") == 5, "the row's own bars"
    assert ("|" in name) == ("<code>" in bare)
    if "<code>" in bare:
        inside = bare[bare.index("<code>") + 6 : bare.index("</code>")]
        assert not re.search(r"[*_`|\[\]\\<>]", inside.replace("<span>", "").replace("</span>", ""))
    else:
        assert shown(f"a.py::test[{name}]") in CODE.search(row)[2]  # type: ignore[index]


def test_annotations_keep_to_ten_of_a_kind_and_say_what_they_left_out() -> None:
    run = replace(many(25, lambda n: f"tests/test_{n}.py::test_x"), exit_status=1)
    for timed in run.tests:
        timed.phases = "pfp"
    lines = annotations([run])
    errors = [line for line in lines if line.startswith("::error ")]
    assert len(errors) == 10
    assert errors[0] == (
        "::error file=tests/test_0.py,title=Where the time went::tests/test_0.py::test_x: failed in call after 500 ms"
    )
    assert errors[-1] == "::error title=Where the time went::and 16 more errors"
    assert lines[-1].startswith("::notice title=Where the time went::FAILED: 25 of 25 tests, in 25.0 s")
    assert len(lines) <= 21


def test_annotations_of_the_known_run_name_its_failure_and_its_large_waste() -> None:
    assert annotations([known()])[:2] == [
        "::error file=tests/test_b.py,title=Where the time went::tests/test_b.py::test_4: failed in call after 5.00 s",
        "::warning title=Where the time went::idle at the end: 13.0 s, 34 %25; start the longest tests first, "
        "or cut them: gw1 ran on for 7.00 s after all others had stopped, in tests/test_b.py",
    ]


def test_an_annotation_is_one_line_and_ends_no_property_early() -> None:
    run = replace(many(1, lambda n: "a,b:c%.py::test[x\r\n::error::y%0A]"), exit_status=1)
    run.tests[0].phases = "pfp"
    line = annotations([run])[0]
    assert "\n" not in line
    assert "\r" not in line
    assert line.startswith(
        "::error file=a%2Cb%3Ac%25.py,title=Where the time went::a,b:c%25.py::test[x\\r\\n::error::y%250A]"
    )


# Words


@pytest.mark.parametrize("make", [text_report, markdown_report, lambda runs: "\n".join(annotations(runs))])
def test_no_report_lets_a_control_character_through(make: Callable[[list[Run]], str]) -> None:
    odd = "".join(map(chr, [*range(32), *range(127, 160), 0x202E, 0x2028, 0xD800, 0xFFFE]))
    run = replace(many(3, lambda n: f"a{odd}.py::t{odd}[{n}{odd}]"), exit_status=1, notes=[odd], path=odd)
    run.header.run = odd
    run.workers["main"].host = odd
    run.tests[0].phases = "pfp"
    run.fixtures = [Fixture(odd, "module", odd, f"{odd}.py", "main", 0.0, 1.0)]
    run.records = [Record(odd, odd, {"seconds": 1.0}, "main", 2.0)]
    text = make([run])
    assert {char for char in text if not char.isprintable()} <= {"\n"}
    text.encode()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.00035, "350 µs"),
        (0.0042, "4.2 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (9.996, "10.0 s"),
        (59.96, "1 min 00 s"),
        (723, "12 min 03 s"),
        (3599.6, "1 h 00 min"),
        (3_600_060, "1,000 h 01 min"),
    ],
)
def test_seconds_have_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert spent(seconds) == text


def test_shares_sizes_and_long_names() -> None:
    assert [percent(*pair) for pair in [(0, 1), (1, 1000), (1, 3), (999, 1000), (3, 3), (1, 0)]] == [
        "0 %",
        "<1 %",
        "33 %",
        ">99 %",
        "100 %",
        "0 %",
    ]
    assert [size(0), size(512 << 20), size(3 << 29)] == ["", "512 MiB", "1.5 GiB"]
    long = shown("x" * 10_000 + "[end]", 90)
    assert (len(long), long[:3], long[-5:]) == (90, "xxx", "[end]")
