"""The options that name files: the lock file, durations, and the folder in pytest's cache for rows of high effort."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

SUITE = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("c", [1, 2, 3])
@pytest.mark.parametrize("b", [1, 2, 3])
@pytest.mark.parametrize("a", [1, 2, 3, 4])
def test_product(a, b, c):
    pass
"""
ID = r"test_product\[[\d-]+\]"
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    def run(*arguments: str, suite: str = SUITE) -> pytest.RunResult:
        pytester.makepyfile(test_m=suite)
        return pytester.runpytest_subprocess("-p", "testkit.pairwise.plugin", *arguments)

    return run


def ids(result: pytest.RunResult) -> list[str]:
    return sorted(set(re.findall(ID, str(result.stdout))))


def locked(pytester: pytest.Pytester) -> list[str]:
    return (pytester.path / "lock").read_text().splitlines()[1:]


# ------------------------------------------------------------------ --pairwise-lock


def test_the_first_run_writes_the_chosen_cases_and_the_next_leaves_the_file_alone(
    run: Run, pytester: pytest.Pytester
) -> None:
    run("--pairwise-lock=lock").stdout.fnmatch_lines(["*36 -> 12 cases*", "lock was written: commit it, *"])
    before = locked(pytester)
    assert len(before) == 12
    assert json.loads(before[0])[0] == "test_m.py::test_product"
    run("--pairwise-lock=lock").stdout.no_fnmatch_line("*was written*")
    assert locked(pytester) == before


def test_a_new_value_leaves_the_locked_cases_in(run: Run, pytester: pytest.Pytester) -> None:
    first = ids(run("--pairwise-lock=lock", "-v"))
    grown = run("--pairwise-lock=lock", "-v", suite=SUITE.replace('"b", [1, 2, 3]', '"b", [1, 2, 3, 9]'))
    assert len(set(first) & set(ids(grown))) >= 11
    assert len(locked(pytester)) == len(ids(grown)) == 16


def test_locked_cases_stay_whatever_the_seed(run: Run) -> None:
    first = ids(run("--pairwise-lock=lock", "-v"))
    assert ids(run("--pairwise-seed=5", "-v")) != first
    assert ids(run("--pairwise-lock=lock", "--pairwise-seed=5", "-v")) == first


def test_xdist_workers_leave_the_writing_to_the_controller(run: Run, pytester: pytest.Pytester) -> None:
    there = run("-p", "xdist", "-n2", "-v", "--pairwise-lock=lock")
    there.stdout.fnmatch_lines(["lock was written: *"])
    written = locked(pytester)
    assert len(written) == 12
    here = run("-v", "--pairwise-lock=lock")
    assert ids(here) == ids(there)
    here.stdout.no_fnmatch_line("*was written*")


@pytest.mark.parametrize("option", ["--collect-only", "--no-pairwise"])
def test_a_run_that_chooses_or_runs_nothing_writes_no_lock(run: Run, pytester: pytest.Pytester, option: str) -> None:
    run("--pairwise-lock=lock", option)
    assert not (pytester.path / "lock").exists()


def test_a_lock_that_cannot_be_written_fails_the_run(run: Run) -> None:
    result = run("--pairwise-lock=nowhere/lock")
    result.assert_outcomes(passed=12)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["pairwise: cannot write *lock: * (from --pairwise-lock)", "next: check the folder"])


def test_a_damaged_lock_is_a_usage_error(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "lock").write_text("<<<<<<< ours\n")
    result = run("--pairwise-lock=lock")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pairwise: line 1 of *lock is a merge mark (from --pairwise-lock)", "next: *"])


def test_the_lock_comes_from_the_ini_key_beside_the_ini_file(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\npairwise_lock = lock")
    run().stdout.fnmatch_lines(["lock was written: *"])
    assert len(locked(pytester)) == 12


# ------------------------------------------------------------------ --pairwise-costs


def test_the_cheaper_of_equal_choices_is_taken_and_its_seconds_are_said(run: Run, pytester: pytest.Pytester) -> None:
    """Cases with a=1 and b=1 are dear; one is needed, and no more."""
    cases = ids(run("--no-pairwise", "-v"))
    seconds = {f"test_m.py::{name}": 100.0 if name.endswith("-1-1]") else 0.01 for name in cases}
    (pytester.path / "seconds.json").write_text(json.dumps(seconds))
    result = run("-v", "--pairwise-costs=seconds.json")
    result.stdout.fnmatch_lines(["*36 -> 12 cases (about 100 s), 33 owed pairs, 100 % ran"])
    assert sum(name.endswith("-1-1]") for name in ids(result)) == 1


def test_a_folder_without_durations_yet_is_said(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "runs").mkdir()
    result = run("--pairwise-costs=runs")
    result.stdout.fnmatch_lines(["*36 -> 12 cases, 33 owed pairs, 100 % ran", "no durations yet in runs"])


def test_recorded_runs_give_the_durations(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "runs").mkdir()
    run("-p", "testkit.timing.plugin", "--timing-dir=runs", "--pairwise-costs=runs")
    run("--pairwise-costs=runs").stdout.fnmatch_lines(["*36 -> 12 cases (about *s), 33 owed pairs, 100 % ran"])


def test_durations_that_cannot_be_read_are_a_usage_error(run: Run) -> None:
    result = run("--pairwise-costs=nowhere.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pairwise: cannot read durations from *: * (from --pairwise-costs)"])


# ------------------------------------------------------------------ rows of high effort


def stored(pytester: pytest.Pytester) -> list[str]:
    return sorted(path.name for path in pytester.path.rglob("testkit-pairwise/*.json"))


def test_rows_of_high_effort_are_kept_in_the_cache(run: Run, pytester: pytest.Pytester) -> None:
    first = ids(run("-v", "--pairwise-effort=high"))
    files = stored(pytester)
    assert len(files) == 1
    assert ids(run("-v", "--pairwise-effort=high")) == first
    assert stored(pytester) == files


def test_the_marker_asks_for_the_cache_too_and_the_default_effort_does_not(run: Run, pytester: pytest.Pytester) -> None:
    run()
    assert stored(pytester) == []
    run(suite=SUITE.replace("mark.pairwise", "mark.pairwise(effort='high')"))
    assert len(stored(pytester)) == 1


def test_high_effort_goes_without_a_cache(run: Run, pytester: pytest.Pytester) -> None:
    run("-p", "no:cacheprovider", "--pairwise-effort=high").assert_outcomes(passed=12)
    assert stored(pytester) == []


def test_all_files_together_with_xdist(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "runs").mkdir()
    every = (
        "--pairwise-lock=lock",
        "--pairwise-costs=runs",
        "--pairwise-history=runs",
        "--pairwise-effort=high",
        "--timing-dir=runs",
    )
    for _ in range(2):
        result = run("-p", "testkit.timing.plugin", "-p", "xdist", "-n2", *every)
        result.assert_outcomes(passed=12)
    result.stdout.fnmatch_lines(["*36 -> 12 cases (about * s), 33 owed pairs, *", "1 run in runs, * UTC: no case *"])
