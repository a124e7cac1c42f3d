"""``testkit syncs diff``: what fails a comparison, what is printed, and which files are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testkit.__main__ import main
from testkit.syncs import _report
from testkit.syncs._sites import Site

Write = Callable[..., str]


def site(function: str = "build", line: int = 10, count: int = 1, **changes: Any) -> Site:
    known: dict[str, Any] = {
        "operator": "Tensor.item (aten._local_scalar_dense)",
        "where": f"engine/step.py:{line}",
        "function": function,
        "test": None,
        "kind": "read",
        "detail": "",
        "count": count,
        "bytes": 4,
        "direction": "D2H",
        "threads": ("MainThread",),
        "fix": "derive the number",
    }
    return Site(**{**known, **changes})


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, sites: list[Site], tests: dict[str, list[Site]] | None = None) -> str:
        path = tmp_path / name
        path.write_text(_report.dumps(_report.document(sites, tmp_path, tests)))
        return str(path)

    return write


def diff(base: str, head: str) -> int:
    return main(["syncs", "diff", base, head])


def test_equal_censuses_pass(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(write("base", [site()]), write("head", [site()])) == 0
    assert capsys.readouterr().out == "syncs: 0 sites new or worse, over two censuses\n"


def test_a_new_site_fails_with_its_line_and_fix(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(write("base", []), write("head", [site(line=42)])) == 1
    assert capsys.readouterr().out.splitlines() == [
        "syncs: 1 site new or worse, over two censuses",
        "  new  0 -> 1  engine/step.py in build: Tensor.item (aten._local_scalar_dense)",
        "    at engine/step.py:42",
        "    fix: derive the number",
    ]


def test_a_higher_count_fails(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(write("base", [site(count=2)]), write("head", [site(count=3)])) == 1
    assert "  more  2 -> 3  engine/step.py in build" in capsys.readouterr().out


def test_what_went_away_or_became_less_is_printed_and_passes(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    base = write("base", [site("build", count=5), site("sample")])
    assert diff(base, write("head", [site("build", count=2)])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["less", "gone"]


def test_an_edit_above_does_not_make_a_site_new(write: Write) -> None:
    assert diff(write("base", [site(line=10)]), write("head", [site(line=99)])) == 0


def test_another_operator_function_or_file_is_a_new_site(write: Write) -> None:
    base = write("base", [site()])
    for other in (site(operator="Tensor.cpu (aten.copy_)"), site("sample"), site(where="engine/run.py:10")):
        assert diff(base, write("head", [site(), other])) == 1


def test_two_lines_of_one_function_add_up(write: Write) -> None:
    base = write("base", [site(line=10), site(line=11)])
    assert diff(base, write("head", [site(line=10, count=2)])) == 0
    assert diff(base, write("head", [site(line=10, count=2), site(line=11)])) == 1


def test_allowed_waits_do_not_count_and_taking_the_allowance_away_does(write: Write) -> None:
    allowed = write("allowed", [site(allowed="metrics")])
    assert diff(write("base", []), allowed) == 0
    assert diff(allowed, write("head", [site()])) == 1


def test_a_new_test_does_not_make_a_known_site_worse(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    base = write("base", [site()], {"t.py::one": [site()]})
    head = write("head", [site(count=9)], {"t.py::one": [site()], "t.py::two": [site(count=8)]})
    assert diff(base, head) == 0
    assert capsys.readouterr().out == "syncs: 0 sites new or worse, over 1 test\n"


def test_a_new_site_that_only_a_new_test_reaches_fails(write: Write) -> None:
    base = write("base", [site()], {"t.py::one": [site()]})
    head = write("head", [site(), site("sample")], {"t.py::one": [site()], "t.py::two": [site("sample")]})
    assert diff(base, head) == 1


def test_more_waits_in_a_common_test_fail_though_the_whole_run_has_less(write: Write) -> None:
    base = write("base", [site(count=9)], {"t.py::one": [site()], "t.py::two": [site(count=8)]})
    assert diff(base, write("head", [site(count=2)], {"t.py::one": [site(count=2)]})) == 1


def test_tests_that_did_not_run_are_said(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    base = write("base", [site()], {"t.py::one": [site()], "t.py::two": []})
    assert diff(base, write("head", [], {"t.py::one": []})) == 0
    assert "  1 test of the base did not run in the head and are not compared" in capsys.readouterr().out


# --- what is refused: exit 2, a problem and where it came from, then what to do


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["syncs", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("syncs: ")
    assert lines[1].startswith("next: ")
    return lines[0]


def test_censuses_without_a_common_test_are_refused(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = write("base", [], {"t.py::one": []}), write("head", [], {"t.py::two": []})
    assert "no test is in both censuses" in refused(capsys, "diff", base, head)
    assert "no test is in both censuses" in refused(capsys, "diff", base, write("empty", [], {}))


def test_a_run_and_a_block_are_not_compared(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "diff", write("base", [], {"t.py::one": []}), write("head", []))
    assert "one census is of a pytest run and the other is not" in line


GOOD = _report.document([site()], "", {"t.py::one": [site()]})
DAMAGED = {
    "empty": "",
    "cut": json.dumps(GOOD)[:-20],
    "a list": "[]",
    "another tool's": '{"version": 1}',
    "of the future": json.dumps({**GOOD, "testkit_syncs": 2}),
    "without sites": json.dumps({"testkit_syncs": 1}),
    "a site is a number": json.dumps({**GOOD, "sites": [3]}),
    "a field is gone": json.dumps({**GOOD, "sites": [{"operator": "x"}]}),
    "a count of 0": json.dumps({**GOOD, "sites": [{**GOOD["sites"][0], "count": 0}]}),
    "a count is true": json.dumps({**GOOD, "sites": [{**GOOD["sites"][0], "count": True}]}),
    "a line is a number": json.dumps({**GOOD, "sites": [{**GOOD["sites"][0], "where": 3}]}),
    "bytes are text": json.dumps({**GOOD, "sites": [{**GOOD["sites"][0], "bytes": "4"}]}),
    "seconds are text": json.dumps({**GOOD, "sites": [{**GOOD["sites"][0], "seconds": "4"}]}),
    "it does not say what it saw": json.dumps({name: GOOD[name] for name in ("testkit_syncs", "sites")}),
    "no threads": json.dumps({**GOOD, "sites": [{**GOOD["sites"][0], "threads": None}]}),
    "tests are a list": json.dumps({**GOOD, "tests": ["t.py::one"]}),
    "a test has text": json.dumps({**GOOD, "tests": {"t.py::one": {"x": "1"}}}),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_or_foreign_file_is_refused_by_name(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(text)
    line = refused(capsys, "diff", write("base", []), str(path))
    assert "this is not a whole census: " in line
    assert line.endswith(f"(in {path})")


def test_a_census_that_could_see_nothing_is_refused(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "blind.json"
    path.write_text(_report.dumps(_report.document([], tmp_path, blind="torch is not imported")))
    line = refused(capsys, "diff", write("base", [site()]), str(path))
    assert line == f"syncs: nothing could be seen when this was taken: torch is not imported (in {path})"


def test_a_missing_file_is_refused_by_name(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot read no.json: No such file" in refused(capsys, "diff", write("base", []), "no.json")


def test_a_file_that_is_no_text_is_refused(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    assert f"cannot read {path}: " in refused(capsys, "diff", write("base", []), str(path))


def test_a_wrong_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice" in refused(capsys, "merge")
    assert "required" in refused(capsys, "diff", "one.json")


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["syncs", "diff", "--help"]) == 0
    assert "BASE" in capsys.readouterr().out
