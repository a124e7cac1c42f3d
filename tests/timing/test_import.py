"""Foreign reports as runs: each test once with its outcome and seconds, whatever the file's tool did to it."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from testkit.errors import TimingError
from testkit.timing import read_folder
from testkit.timing._importers import read_foreign
from testkit.timing._merge import inventory
from testkit.timing._run import Run, joined
from testkit.timing._write import write

DATA = Path(__file__).parent.parent / "data" / "timing"


def read_text(folder: Path, text: str | bytes, name: str = "report") -> Run:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    (run,) = read_foreign(path)
    return run


def junit(*cases: str) -> str:
    return f'<testsuites name="pytest tests"><testsuite name="pytest">{"".join(cases)}</testsuite></testsuites>'


def verdicts(run: Run) -> dict[str, tuple[str, str]]:
    return {nodeid: (test.verdict, test.final.phases) for nodeid, test in joined([run]).items()}


def seconds(run: Run) -> dict[str, float]:
    return {nodeid: round(test.final.seconds, 6) for nodeid, test in joined([run]).items()}


# Durations.


def test_both_shapes_of_pytest_split_are_read(tmp_path: Path) -> None:
    (pairs,) = read_foreign(DATA / "pytest_split_pairs.json")
    expected = {"tests/test_gemm.py::test_tile[64]": 1.5, "tests/test_gemm.py::test_tile[128]": 0.25}
    assert seconds(pairs) == {**expected, "tests/test_norm.py::test_rms": 0.0}
    assert seconds(read_text(tmp_path, json.dumps(expected, indent=4), ".test_durations")) == expected
    assert [timed.start for timed in pairs.tests] == [0.0, 1.5, 1.75]
    assert (pairs.header.origin, pairs.complete) == ("pytest-split", True)
    assert pairs.header.run.startswith("pytest_split_pairs-")


def test_pytorch_test_times_are_a_run_for_each_job_and_configuration() -> None:
    runs = read_foreign(DATA / "pytorch_test_times.json")
    assert [run.header.run.rsplit("-", 2)[0] for run in runs] == [
        "pytorch_test_times-linux-cuda13-default",
        "pytorch_test_times-linux-cuda13-slow",
        "pytorch_test_times-linux-rocm-default",
    ]
    assert seconds(runs[0]) == {"test_matmul": 61.5, "inductor/test_gemm": 5280.25}
    assert [seconds(run)["test_matmul"] for run in runs] == [61.5, 610.0, 0.0]


def test_reports_of_one_name_and_time_stay_different_runs(tmp_path: Path) -> None:
    for folder, took in (("a", 1.0), ("b", 2.0), ("copy", 2.0)):
        path = tmp_path / folder / ".test_durations"
        path.parent.mkdir()
        path.write_text(json.dumps({"test_a.py::test": took}))
        os.utime(path, (1000, 1000))
        write(tmp_path / "runs", *read_foreign(path))
    found = inventory(read_folder(tmp_path / "runs"))
    assert sorted((seconds(one.newest[1])["test_a.py::test"], len(one.copies)) for one in found) == [(1.0, 0), (2.0, 1)]


# pytest-reportlog.


def test_a_report_log_gives_phases_attempts_and_start_times() -> None:
    (run,) = read_foreign(DATA / "reportlog.jsonl")
    assert verdicts(run) == {
        "test_phases.py::test_pass_then_teardown_error": ("error", "ppf"),
        "test_phases.py::test_fail_then_teardown_error": ("failed", "pff"),
        "test_phases.py::test_skip_then_teardown_error": ("error", "psf"),
        "test_phases.py::test_plain": ("passed", "ppp"),
        "test_x.py::test_settles": ("flaky", "ppp"),
        "test_x.py::test_known": ("xfailed", "pxp"),
        "test_x.py::test_not_run": ("xfailed", "x-p"),
        "test_x.py::test_surprise": ("xpassed", "pXp"),
        "test_x.py::test_skipped": ("skipped", "s-p"),
        "test_x.py::test_setup": ("error", "f-p"),
    }
    assert [timed.outcome for timed in run.tests if timed.id.endswith("settles")] == ["rerun", "passed"]
    assert run.tests[0].start == 0.0
    assert all(0 < timed.start < 1 and timed.setup > 0 for timed in run.tests[1:])
    assert (run.exit_status, run.complete, run.cut, run.header.pytest) == (1, True, False, "9.2.0")


def test_a_report_log_of_workers_and_of_a_crash(tmp_path: Path) -> None:
    report = {"$report_type": "TestReport", "outcome": "passed", "duration": 0.5}
    lines = [
        report | {"nodeid": "a", "when": "setup", "worker_id": "gw1", "start": 10.0},
        report | {"nodeid": "b", "when": "setup", "worker_id": "gw0", "start": 9.5},
        report | {"nodeid": "a", "when": "call", "worker_id": "gw1", "start": 10.5, "outcome": "failed"},
        report | {"nodeid": "b", "when": "call", "worker_id": "gw0", "start": 10.0, "wasxfail": ""},
        report | {"nodeid": "c", "when": "???", "outcome": "failed", "duration": 0},
        {"$report_type": "Weather"},
    ]
    run = read_text(tmp_path, "".join(json.dumps(line) + "\n" for line in lines) + '{"$report_type": "Te')
    assert [(timed.id, timed.worker, timed.start, timed.phases) for timed in run.tests] == [
        ("a", "gw1", 0.5, "pf-"),
        ("b", "gw0", 0.0, "pX-"),
        ("c", "main", 2.0, "-f-"),
    ]
    assert list(run.workers) == ["gw1", "gw0", "main"]
    assert (run.complete, run.cut) == (False, True)


# JUnit XML of several tools.


def test_gotestsum_is_read() -> None:
    (run,) = read_foreign(DATA / "gotestsum.xml")
    assert verdicts(run) == {
        "example.org/kernels/gemm::TestTiles/64x64": ("passed", "ppp"),
        "example.org/kernels/gemm::TestTiles": ("failed", "pfp"),
        "example.org/kernels/gemm::TestFP8": ("skipped", "psp"),
        "example.org/kernels/norm::TestMain": ("passed", "ppp"),
    }
    assert seconds(run)["example.org/kernels/gemm::TestTiles"] == 0.75
    assert run.header.started == 1796029200.0


def test_nextest_is_read_with_its_attempts_and_start_times() -> None:
    (run,) = read_foreign(DATA / "nextest.xml")
    rows = [(timed.id.rpartition("::")[2], timed.attempt, timed.outcome, timed.seconds) for timed in run.tests]
    assert rows == [
        ("small", 1, "passed", 0.125),
        ("settles", 1, "rerun", 0.75),
        ("settles", 2, "passed", 0.5),
        ("broken", 1, "rerun", 0.25),
        ("broken", 2, "failed", 0.375),
        ("slow", 1, "passed", 1000.5),
    ]
    assert verdicts(run)["kernels::gemm::tiles::settles"][0] == "flaky"
    assert [timed.start for timed in run.tests][:3] == [0.5, 2.0, 2.0]


PYTEST_CASES = [
    ("a.b.test_c", "test_d", "a/b/test_c.py", "a/b/test_c.py::test_d"),
    (
        "a.b.test_c.TestX.TestY",
        "test_d[p/q.py::z-1.5]",
        "a/b/test_c.py",
        "a/b/test_c.py::TestX::TestY::test_d[p/q.py::z-1.5]",
    ),
    ("v1.2.test_c", "test_d", "v1.2/test_c.py", "v1.2/test_c.py::test_d"),
    ("a.test_c", "test_d", "a\\test_c.py", "a/test_c.py::test_d"),
    ("a.b.test_c.TestX", "test_d", None, "a/b/test_c.py::TestX::test_d"),
    ("test_c", "test_d", None, "test_c.py::test_d"),
    ("a.test_child.TestChild", "test_inherited", "a/base.py", "a/test_child.py::TestChild::test_inherited"),
    ("", "a/test_broken.py", None, "a/test_broken.py"),
]


@pytest.mark.parametrize(("classname", "name", "file", "nodeid"), PYTEST_CASES)
def test_pytest_s_node_ids_are_put_together_again(
    classname: str, name: str, file: str | None, nodeid: str, tmp_path: Path
) -> None:
    place = "" if file is None else f' file="{file}"'
    run = read_text(tmp_path, junit(f'<testcase classname="{classname}" name="{name}"{place} time="0.5"/>'))
    assert seconds(run) == {nodeid: 0.5}
    assert any("guessed" in note for note in run.notes) == (file is None)


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_one_test_with_two_entries_is_one_test(family: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_phases=(DATA / "call_and_teardown.py.txt").read_text())
    pytester.runpytest_inprocess("--junitxml=report.xml", "-o", f"junit_family={family}")
    assert (pytester.path / "report.xml").read_text().count("<testcase ") == 5
    (run,) = read_foreign(pytester.path / "report.xml")
    assert verdicts(run) == {
        "test_phases.py::test_pass_then_teardown_error": ("error", "ppf"),
        "test_phases.py::test_fail_then_teardown_error": ("failed", "pff"),
        "test_phases.py::test_skip_then_teardown_error": ("error", "psf"),
        "test_phases.py::test_plain": ("passed", "ppp"),
    }
    assert len(run.tests) == 4


def test_the_two_entries_of_a_test_add_up(tmp_path: Path) -> None:
    failed = '<testcase classname="t" name="a" time="1.5"><failure message="no"/></testcase>'
    broken = '<testcase classname="t" name="a" time="0.25"><error message="failed on teardown with x"/></testcase>'
    run = read_text(tmp_path, junit(failed, '<testcase classname="t" name="b" time="1"/>', broken))
    assert seconds(run) == {"t.py::a": 1.75, "t.py::b": 1.0}
    assert run.tests[0].teardown == 0.25


def test_entries_of_repeated_attempts_are_attempts_and_a_later_pass_makes_it_flaky(tmp_path: Path) -> None:
    bad, good = (
        '<testcase classname="t" name="a" time="1"><failure/></testcase>',
        '<testcase classname="t" name="a" time="2"/>',
    )
    run = read_text(tmp_path, junit(bad, bad, good))
    assert verdicts(run) == {"t.py::a": ("flaky", "ppp")}
    assert [(timed.attempt, timed.outcome) for timed in run.tests] == [(1, "rerun"), (2, "rerun"), (3, "passed")]
    assert seconds(run) == {"t.py::a": 2.0}
    assert verdicts(read_text(tmp_path, junit(good, bad))) == {"t.py::a": ("failed", "pfp")}
    assert run.notes[-1] == "1 test with several attempts: the last one counts"


# Characters, sizes, encodings.


def test_a_report_with_control_characters_loses_no_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_bytes=(DATA / "control_characters.py.txt").read_text(encoding="utf-8"))
    pytester.runpytest_inprocess("--junitxml=report.xml", "-W", "ignore::pytest.PytestWarning")
    path = pytester.path / "report.xml"
    if b"\x0b" not in path.read_bytes():  # a pytest that escapes the names of properties as well
        path.write_bytes(path.read_bytes().replace(b"tail ", b"tail \x0b "))
    (run,) = read_foreign(path)
    assert [test for test, _ in verdicts(run).values()] == ["failed", "failed", "skipped", *["passed"] * 4]
    assert "1 character that XML forbids written out" in run.notes


def test_forbidden_characters_and_references_are_written_out_and_counted(tmp_path: Path) -> None:
    names = ["\x00", "\x1b[0m", "\ufffe", "\ud800", "&#27;", "&#x1b;", "&#xD800;", "&#0;", "&#x110000;"]
    cases = [f'<testcase classname="t" name="{number}{name}"/>' for number, name in enumerate(names)]
    legal = '<testcase classname="t" name="&#9;&#x1F600;é&lt;"/><system-out><![CDATA[&#x1b; \x07]]></system-out>'
    run = read_text(tmp_path, junit(*cases, legal))
    texts = ["\\x00", "\\x1b[0m", "\\ufffe", None, "\\x1b", "\\x1b", "\\ud800", "\\x00", "\\U00110000"]
    ids = [timed.id for timed in run.tests]
    assert [nodeid for nodeid, text in zip(ids, texts, strict=False) if text] == [
        f"t.py::{number}{text}" for number, text in enumerate(texts) if text
    ]
    # A surrogate is three bytes that are no UTF-8.
    assert ids[3] == "t.py::3\\xed\\xa0\\x80"
    assert ids[-1] == "t.py::\t😀é<"
    assert run.notes[0] == "13 characters that XML forbids written out"


@pytest.mark.parametrize("size", range(65_460, 65_540, 3))
def test_a_reference_may_lie_across_two_parts_of_the_file(size: int, tmp_path: Path) -> None:
    start = junit("@").partition("@")[0] + "<!--"
    filled = start + "x" * (size - len(start)) + "-->"
    text = filled + '<testcase classname="t" name="&#x0000001b;&amp;&lt;"/></testsuite></testsuites>'
    assert [timed.id for timed in read_text(tmp_path, text).tests] == ["t.py::\\x1b&<"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1"])
def test_the_file_s_own_encoding_is_used(encoding: str, tmp_path: Path) -> None:
    text = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>' + junit(
        '<testcase classname="t" name="é"/>'
    )
    assert [timed.id for timed in read_text(tmp_path, text.encode(encoding)).tests] == ["t.py::é"]


def test_output_of_any_size_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    start, end = junit("@").split("@")
    megabyte = "x" * (1 << 20)
    with path.open("w") as file:
        file.write(start + '<testcase classname="t" name="a" time="1"><failure message="')
        file.write(megabyte[: 1 << 18])
        file.write('"/></testcase><testcase classname="t" name="b" time="2"/><system-out>')
        file.writelines([megabyte] * 20)
        file.write("</system-out>" + end)
    tracemalloc.start()
    try:
        (run,) = read_foreign(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds(run) == {"t.py::a": 1.0, "t.py::b": 2.0}
    assert peak < 4 << 20


def test_times_that_are_missing_or_no_times_are_said(tmp_path: Path) -> None:
    times = ["", "x", "nan", "-1", "inf"]
    cases = [f'<testcase classname="t" name="{number}" time="{time}"/>' for number, time in enumerate(times)]
    run = read_text(tmp_path, junit(*cases, '<testcase classname="t" name="none"/>'))
    assert set(seconds(run).values()) == {0.0}
    assert run.notes[-1] == "6 entries without a usable time count as 0 s"


# What is refused.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("{}", "is JSON of no known report: nothing in it"),
        ("[]", "is JSON of no known report: nothing in it"),
        ('{"a": 1.5, "b"', "is not whole JSON"),
        ('{"created": 1.5, "tests": []}', "no known report: an object with 'created', 'tests'"),
        ('{"a": {"b": 1.5}}', "no known report: an object with 'a'"),
        ('{"job": {"default": {"file": {"class": 1.5}}}}', "no known report: an object with 'job'"),
        ('{"job": {"default": {}}}', "no known report: an object with 'job'"),
        ('[["a", 1.5], ["b"]]', r"no known report: a list that begins with \"\['a', 1.5\]\""),
        ('{"a": 1.5, "b": "2"}', "has '2' as seconds of b"),
        ('{"a": NaN}', "has nan as seconds of a"),
        ('{"a": -1}', "has -1 as seconds of a"),
        ('{"a": true}', "has True as seconds of a"),
        ('{"job": {"default": {"file": null}}}', "has None as seconds of file"),
        ("[" * 100_000, "is not whole JSON"),
        ("<html><body/></html>", "is XML with the root <html>, not a JUnit report"),
        ("<testsuites/>", "is a JUnit report without a test"),
        (junit('<testcase name="a"/>')[:-14], "is not well-formed XML"),
        ('<testsuite><testcase name="a"/>', "is not well-formed XML"),
        ('<?xml version="1.0" encoding="klingon"?><testsuite/>', "in klingon, which is no known encoding"),
        ('{"$report_type": "SessionStart"}\n', "is a report log without a test"),
        ('{"$report_type": "SessionStart"}\noops\n', "line 2 of .* is no JSON object"),
        ('{"$report_type": "TestReport", "nodeid": "a"}\n', "lacks or misuses a field: KeyError"),
        ('{"$report_type": "TestReport", "nodeid": "a", "when": "later", "duration": 1}\n', "lacks or misuses a field"),
        ("\x1f\x8b\x08", "is gzip-compressed"),
        ("id,seconds\na,1\n", "is something that begins with b'id,seconds"),
        ('{"testkit_timing": 1}\n', "is a run file already"),
    ],
    ids=lambda value: value[:30] if value.isprintable() else ascii(value[:10]),
)
def test_what_is_no_known_report_is_refused_with_what_was_seen(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(TimingError, match=says):
        read_text(tmp_path, text.encode("latin-1"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TimingError, match=r"cannot read .*gone"):
        read_foreign(tmp_path / "gone")
