"""Runs in other tools' formats: valid, with nothing lost on the way out and back in."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import TimingError
from testkit.timing import Run
from testkit.timing._exporters import COLUMNS, FORMATS, export
from testkit.timing._importers import read_foreign
from testkit.timing._run import Fixture, Header, Jit, Timed, Worker, joined

# What junit-10.xsd allows: attributes (those that it requires in capitals) and children.
SCHEMA: dict[str, tuple[str, str]] = {
    "testsuites": ("name time tests failures errors", "testsuite"),
    "testsuite": (
        "NAME TESTS FAILURES ERRORS group time skipped timestamp hostname id package file log url version",
        "testsuite properties testcase system-out system-err",
    ),
    "testcase": ("NAME time classname group", "skipped error failure rerunFailure flakyFailure system-out system-err"),
    "skipped": ("type message", ""),
    "error": ("type message", ""),
    "failure": ("type message", ""),
    "flakyFailure": ("TYPE message", ""),
}
SUITE_TIME = re.compile(r"[0-9]*(\.[0-9]{0,3})?")

ODD_IDS = [
    "test_nn",
    "tests/v1.2/test_a.py::test_b",
    "tests/test_a.py::TestX::TestY::test_z[p/q.py::r-1.5]",
    "tests/test_a.py::test_quotes[\"<&>']]>]",
    "tests/test_a.py::test_lines[\n\t\r]",
    "README.md::README.md",
    "tests/test_a.py::",
    "example.org/kernels::TestTiles/64",
    "kernels::gemm::tiles::small",
]
NASTY = "tests/test_n.py::test_n[\x00\x1b[31m \ufffe \ud800]"


def run_of(*tests: Timed, run: str = "r", shard: str = "", started: float = 1e9, host: str = "box") -> Run:
    return Run(Header(run, shard, started=started, host=host), tests=list(tests))


def random_run(seed: int, workers: int = 2) -> Run:
    chance = random.Random(seed)
    run = run_of(started=1.8e9)
    for worker in range(workers):
        name, now = f"gw{worker}", chance.random()
        run.workers[name] = Worker(name, "box")
        for number in range(40):
            setup, call, teardown = (chance.choice([0.0, 1e-6, 0.0000015, chance.random()]) for _ in range(3))
            start = now
            if chance.random() < 0.5:
                run.fixtures.append(
                    Fixture("outer", "module", "", "a.py", name, start, setup, teardown, start + setup + call)
                )
                run.fixtures.append(Fixture("inner", "function", "p", "a.py", name, start, setup / 3, 0.0))
            run.tests.append(Timed(f"a.py::test_{worker}[{number}]", name, start, setup, call, teardown, 1 << 20))
            now += setup + call + teardown + chance.choice([1e-5, 0.5])
    return run


def seconds(runs: list[Run]) -> dict[str, float]:
    return {nodeid: round(test.final.seconds, 6) for nodeid, test in joined(runs).items()}


def back(runs: list[Run], form: str, folder: Path) -> Run:
    (folder / "export").write_text(export(runs, form), encoding="utf-8", newline="")
    (run,) = read_foreign(folder / "export")
    return run


@pytest.mark.parametrize("form", ["pytest-split", "junit", "junit-xunit2"])
def test_exported_and_imported_the_same_seconds_are_there_for_each_id(form: str, tmp_path: Path) -> None:
    odd = run_of(*(Timed(nodeid, setup=0.000001, call=number + 0.123456) for number, nodeid in enumerate(ODD_IDS)))
    assert seconds([back([odd], form, tmp_path)]) == seconds([odd])
    assert seconds([back([random_run(1)], form, tmp_path)]) == seconds([random_run(1)])


def test_pytest_split_gets_the_last_attempt_of_the_newest_run(tmp_path: Path) -> None:
    old = run_of(Timed("a", call=1.0), Timed("gone", call=2.0), started=1.0, run="monday")
    new = run_of(Timed("a", call=9.0, phases="prp"), Timed("a", call=3.0, attempt=2), started=2.0, run="tuesday")
    assert json.loads(export([new, old], "pytest-split")) == {"a": 3.0, "gone": 2.0}


# JUnit.


def test_outcomes_come_back_from_junit_with_their_phases(tmp_path: Path) -> None:
    phases = ["ppp", "pfp", "pff", "f-p", "f-f", "ppf", "psp", "pxp"]
    run = run_of(*(Timed(f"a.py::{letters}", phases=letters) for letters in phases))
    run.tests += [Timed("a.py::flaky", phases="prr"), Timed("a.py::flaky", attempt=2)]
    tests = joined([back([run], "junit", tmp_path)])
    assert {nodeid: test.final.phases for nodeid, test in tests.items()} == {
        **{f"a.py::{letters}": letters for letters in phases},
        "a.py::flaky": "ppp",
    }
    assert tests["a.py::flaky"].verdict == "flaky"


def test_junit_counts_tests_once_and_as_its_header_says() -> None:
    run = run_of(
        Timed("a.py::broken", phases="pff"),
        Timed("a.py::end", phases="ppf"),
        Timed("a.py::skip", phases="s-p"),
        Timed("a.py::again", phases="prp"),
        Timed("a.py::again", attempt=2),
        Timed("b.py::plain", call=1.5),
    )
    root = ET.fromstring(export([run], "junit"))
    counts = [
        (suite.get("file"), *(suite.get(n) for n in ("tests", "failures", "errors", "skipped"))) for suite in root
    ]
    assert counts == [("a.py", "4", "1", "1", "1"), ("b.py", "1", "0", "0", "0")]
    assert [root.get(name) for name in ("tests", "failures", "errors")] == ["5", "1", "1"]
    assert [case.get("file") for case in root.iter("testcase")] == ["a.py"] * 4 + ["b.py"]
    assert [[result.tag for result in case] for case in root.iter("testcase")] == [
        ["failure"],
        ["error"],
        ["skipped"],
        ["flakyFailure"],
        [],
    ]


def test_shards_and_attempts_of_a_run_are_one_report() -> None:
    one = run_of(Timed("a.py::x", phases="pfp"), Timed("a.py::y"), shard="1/2")
    two = run_of(Timed("b.py::z"), shard="2/2", host="other")
    again = run_of(Timed("a.py::x"), Timed("a.py::y"), shard="1/2", started=2e9)
    root = ET.fromstring(export([again, two, one], "junit"))
    assert (root.get("tests"), root.get("failures"), len(list(root.iter("flakyFailure")))) == ("3", "0", 1)
    assert all("hostname" not in suite.attrib for suite in root)


def test_files_of_several_runs_are_no_junit_report() -> None:
    with pytest.raises(TimingError, match="a JUnit report is of one run, these are 2: r, s"):
        export([run_of(Timed("a")), run_of(Timed("a"), run="s")], "junit")


def test_junit_of_the_strict_family_has_only_what_the_schema_knows() -> None:
    run = random_run(2)
    run.tests += [Timed(nodeid, phases="pff", call=12_345.678901) for nodeid in [*ODD_IDS, NASTY]]
    run.tests += [Timed("a.py::flaky", phases="prp"), Timed("a.py::flaky", attempt=2), Timed("a.py::s", phases="psp")]
    for element in ET.fromstring(export([run], "junit-xunit2")).iter():
        attributes, children = (text.split() for text in SCHEMA[element.tag])
        assert set(element.attrib) <= {name.lower() for name in attributes}
        assert set(element.attrib) >= {name.lower() for name in attributes if name.isupper()}
        assert {child.tag for child in element} <= set(children)
        if element.tag.startswith("testsuite"):
            assert SUITE_TIME.fullmatch(element.get("time", ""))
    suites = ET.fromstring(export([run], "junit"))
    assert {name for case in suites.iter("testcase") for name in case.attrib} == {"name", "classname", "time", "file"}


@pytest.mark.parametrize("form", list(FORMATS))
def test_no_format_holds_what_its_readers_refuse(form: str) -> None:
    run = run_of(Timed(NASTY), Timed("b.py::fine"), run="r\x1b", host="h\x00")
    run.fixtures = [Fixture("f\x1b", "module", NASTY, NASTY)]
    data = export([run], form).encode("utf-8")
    assert not set(data) & (set(range(0x20)) - {9, 10, 13})
    if form.startswith("junit"):
        (name, _) = (case.get("name") for case in ET.fromstring(data).iter("testcase"))
        assert name == "test_n[\\x00\\x1b[31m \\ufffe \\ud800]"


# Chrome trace.


def spans(trace: str) -> dict[tuple[int, int], list[dict[str, Any]]]:
    threads: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in json.loads(trace)["traceEvents"]:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
    return threads


def assert_nested(events: list[dict[str, Any]]) -> None:
    """Each span lies in the one that is open, or begins after it."""
    ends: list[int] = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1], event
        ends.append(end)


def test_a_trace_has_a_process_a_shard_and_host_and_a_thread_a_worker() -> None:
    one = run_of(
        Timed("a.py::T::x[1]", "gw0", 0.5, 0.1, 0.2, 0.3, 1024, gc=0.5, jit=Jit(1.5, 2, 3)), Timed("a.py::y", "gw1")
    )
    one.header.shard, one.workers = "1/2", {"gw0": Worker("gw0", "left"), "gw1": Worker("gw1", "right")}
    two = run_of(Timed("b.py::z"), shard="2/2", started=1e9 + 2)
    events = json.loads(export([one, two], "trace"))["traceEvents"]
    names = [
        (event["name"], event["pid"], event["tid"], event["args"]["name"]) for event in events if event["ph"] == "M"
    ]
    assert names == [
        ("process_name", 1, 0, "r shard 1/2, attempt 1 on left"),
        ("thread_name", 1, 1, "gw0"),
        ("process_name", 2, 0, "r shard 1/2, attempt 1 on right"),
        ("thread_name", 2, 1, "gw1"),
        ("process_name", 3, 0, "r shard 2/2, attempt 1 on box"),
        ("thread_name", 3, 1, "main"),
    ]
    rows = [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert rows == [
        ("T::x[1]", 500_000, 600_000),
        ("setup", 500_000, 100_000),
        ("call", 600_000, 200_000),
        ("teardown", 800_000, 300_000),
        ("y", 0, 0),
        ("z", 2_000_000, 0),
    ]
    (args,) = (event["args"] for event in events if event["name"] == "T::x[1]")
    assert args == {
        "id": "a.py::T::x[1]",
        "outcome": "passed",
        "attempt": 1,
        "rss": 1024,
        "gc": 0.5,
        "jit": "2 compiled in 1.500000 s, 3 from a cache",
    }


@pytest.mark.parametrize("seed", range(8))
def test_fixtures_lie_in_the_phases_of_their_tests(seed: int) -> None:
    run = random_run(seed)
    threads = spans(export([run], "trace"))
    assert sorted(threads) == [(1, 1), (1, 2)]
    for events in threads.values():
        assert_nested(events)
        assert [event["cat"] for event in events].count("test") == 40
    fixtures = sum(1 if row.teardown_start is None else 2 for row in run.fixtures)
    assert sum(event["cat"] == "fixture" for events in threads.values() for event in events) == fixtures


def test_what_overlaps_gets_a_thread_of_its_own() -> None:
    run = run_of(Timed("a", start=0.0, call=2.0), Timed("b", start=1.0, call=2.0), Timed("c", start=2.5, call=1.0))
    run.fixtures = [
        Fixture("across", "module", start=0.5, setup=1.75),
        Fixture("over two", "session", start=3.25, setup=1.0),
        Fixture("after", "session", start=5.0, setup=1.0),
        Fixture("added up", "function", start=0.0, setup=9.0, count=4),
    ]
    threads = spans(export([run], "trace"))
    for events in threads.values():
        assert_nested(events)
    names = {
        tid: [event["name"] for event in events if event["cat"] != "phase"] for (_, tid), events in threads.items()
    }
    assert names == {1: ["a", "c", "after set-up"], 2: ["b", "over two set-up"], 3: ["across set-up"]}


# CSV, and what cannot be exported.


def test_csv_has_a_row_for_each_attempt() -> None:
    run = run_of(
        Timed('a,"b".py::t[\n]', "gw0", 1.0, 0.1, 0.2, 0.3, 2048, "prp", 1, 0.5, 7, Jit(1.5, 2, 3)),
        Timed('a,"b".py::t[\n]', attempt=2),
        shard="2/4",
    )
    rows = list(csv.DictReader(io.StringIO(export([run], "csv"), newline="")))
    assert ",".join(rows[0]) == COLUMNS
    assert [row["outcome"] for row in rows] == ["rerun", "passed"]
    assert rows[0]["id"] == 'a,"b".py::t[\n]'
    assert ",".join(rows[0][name] for name in ("run", "shard", "run_attempt", "host", "worker")) == "r,2/4,1,box,gw0"
    numbers = ["start", "setup", "call", "teardown", "rss", "gc", "gpu", "jit_seconds", "jit_count", "jit_hits"]
    assert [float(rows[0][name]) for name in numbers] == [1.0, 0.1, 0.2, 0.3, 2048, 0.5, 7, 1.5, 2, 3]
    assert rows[1]["jit_seconds"] == ""


@pytest.mark.parametrize("form", list(FORMATS))
def test_runs_without_a_test_are_not_exported(form: str) -> None:
    with pytest.raises(TimingError, match="no test to export"):
        export([run_of()], form)


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TimingError, match="no format 'yaml' to export to") as caught:
        export([run_of(Timed("a"))], "yaml")
    assert caught.value.fix == "name one of: pytest-split, junit, junit-xunit2, trace, csv"
