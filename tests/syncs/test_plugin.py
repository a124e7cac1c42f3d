"""The marker ``no_gpu_sync``, ``--syncs`` and the census of a run, in inner runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., pytest.RunResult]

# `wait` stands for a torch call; waits are planted, since no machine of this suite needs a GPU.
PLANT = """
import pytest
from testkit.syncs import allow, forbid
from testkit.syncs._region import notice
from testkit.syncs._seen import Seen


def wait(times=1):
    for _ in range(times):
        notice(Seen("aten._local_scalar_dense", "read", "", 8, "D2H"))

"""
SUITE = (
    PLANT
    + """
@pytest.mark.no_gpu_sync
def test_waits():
    wait()

@pytest.mark.no_gpu_sync(at_most=2)
def test_within():
    wait(2)

@pytest.mark.no_gpu_sync(at_most=2)
def test_over():
    wait(2)
    wait()

def test_unmarked():
    wait(5)
"""
)
WATCH = """
def pytest_terminal_summary(terminalreporter, config):
    there = config.pluginmanager.has_plugin("testkit.syncs.per_test")
    terminalreporter.write_line(f"per-test hook: {there}")
"""
OURS = "testkit.syncs.plugin"


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run pytest in its own process with our plugin; others are named by ``plugins``."""
    pytester.makeconftest(WATCH)

    def run(*args: str, plugins: tuple[str, ...] = (OURS,), suite: str = SUITE) -> pytest.RunResult:
        pytester.makepyfile(test_step=suite)
        named = [part for name in plugins for part in ("-p", name)]
        return pytester.runpytest_subprocess("--strict-markers", *named, *args, timeout=120)

    return run


def census_of(pytester: pytest.Pytester, path: str = ".pytest_cache/d/testkit/syncs.json") -> Any:
    return json.loads((pytester.path / path).read_text())


def torch_version() -> tuple[int, ...]:
    """Without an import: pytester takes modules out again, and torch does not survive a second import."""
    try:
        return tuple(int(part) for part in version("torch").split(".")[:2])
    except PackageNotFoundError:
        return (0, 0)


needs_simulation = pytest.mark.skipif(torch_version() < (2, 9), reason="needs torch 2.9 or later")


# --- inert, marker, budgets


def test_without_marker_and_option_no_hook_runs_per_test(run: Run) -> None:
    result = run(suite=PLANT + "def test_one(): wait()")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["per-test hook: False"])
    result.stdout.no_fnmatch_line("*syncs:*")


def test_a_marked_test_that_waits_fails_with_each_site_and_its_fix(run: Run) -> None:
    result = run()
    result.assert_outcomes(passed=2, failed=2)
    out = result.stdout.str()
    for line in (
        "syncs: the host waited 1 time at 1 site, no wait is allowed (from marker no_gpu_sync)",
        "  1 x aten._local_scalar_dense  test_step.py:9 in wait",
        "    fix: derive the number from what the host knows exactly",
        "next: do as the fixes say, or put a wait that must be into allow(reason)",
        "syncs: the host waited 3 times at 1 site, 2 waits allowed (from marker no_gpu_sync)",
        "per-test hook: True",
    ):
        assert line in out
    assert "Traceback" not in out
    assert "_watch.py" not in out


def test_the_closest_marker_counts(run: Run) -> None:
    suite = PLANT + (
        "pytestmark = pytest.mark.no_gpu_sync\n"
        "@pytest.mark.no_gpu_sync(at_most=1)\n"
        "def test_own(): wait()\n"
        "def test_of_the_module(): wait()\n"
    )
    run(suite=suite).assert_outcomes(passed=1, failed=1)


def test_allowed_waits_and_those_of_fixtures_do_not_count(run: Run) -> None:
    suite = PLANT + (
        "@pytest.fixture\n"
        "def loaded():\n    wait()\n    yield\n    wait()\n"
        "@pytest.mark.no_gpu_sync\n"
        "def test_one(loaded):\n    with allow('metrics'):\n        wait()\n"
    )
    run(suite=suite).assert_outcomes(passed=1)


def test_what_a_region_inside_tolerates_counts_for_the_marker(run: Run) -> None:
    suite = PLANT + (
        "@pytest.mark.no_gpu_sync\n"
        "def test_budget():\n    with forbid(at_most=3):\n        wait()\n"
        "@pytest.mark.no_gpu_sync\n"
        "def test_warned():\n    with forbid('warn'):\n        wait()\n"
        "@pytest.mark.no_gpu_sync\n"
        "def test_allowed():\n    with allow('metrics'), forbid(at_most=3):\n        wait()\n"
    )
    run(suite=suite).assert_outcomes(failed=2, passed=1, warnings=1)


def test_a_test_that_fails_by_itself_shows_its_own_failure(run: Run) -> None:
    suite = PLANT + "@pytest.mark.no_gpu_sync\ndef test_one():\n    wait()\n    assert 1 == 2\n"
    result = run(suite=suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2"])


def test_unittest_methods_async_bodies_and_threads_are_judged_alike(run: Run) -> None:
    suite = PLANT + (
        "import asyncio, threading, unittest\n"
        "class TestCase(unittest.TestCase):\n"
        "    @pytest.mark.no_gpu_sync\n"
        "    def test_method(self): wait()\n"
        "@pytest.mark.no_gpu_sync\n"
        "def test_loop():\n"
        "    async def body(): wait()\n"
        "    asyncio.run(body())\n"
        "@pytest.mark.no_gpu_sync\n"
        "def test_thread():\n"
        "    thread = threading.Thread(target=wait)\n"
        "    thread.start()\n    thread.join(30)\n"
    )
    run(suite=suite).assert_outcomes(failed=2, passed=1)


def test_an_async_test_that_another_plugin_runs_in_its_own_context_is_judged(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        other_runner="""
        import asyncio, contextvars, inspect, pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(pyfuncitem):
            if inspect.iscoroutinefunction(pyfuncitem.obj):
                contextvars.Context().run(asyncio.run, pyfuncitem.obj())
                return True
        """
    )
    pytester.syspathinsert()
    suite = PLANT + "@pytest.mark.no_gpu_sync\nasync def test_one(): wait()\n"
    result = run(suite=suite, plugins=(OURS, "other_runner"))
    result.assert_outcomes(failed=1)
    assert "the host waited 1 time at 1 site" in result.stdout.str()


def test_a_marked_test_that_something_else_ran_unwatched_fails(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        other_runner="import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem): return True\n"
    )
    pytester.syspathinsert()
    result = run(plugins=(OURS, "other_runner"))
    assert "syncs: something else ran test_step.py::test_waits, and nobody watched it" in result.stdout.str()


def test_a_fresh_process_is_judged_there(run: Run) -> None:
    suite = PLANT + "@pytest.mark.fresh_process\n@pytest.mark.no_gpu_sync\ndef test_one(): wait()\n"
    result = run(suite=suite, plugins=(OURS, "testkit.processes.plugin"))
    result.assert_outcomes(failed=1)
    assert "syncs: the host waited 1 time at 1 site, no wait is allowed" in result.stdout.str()


def test_a_census_reaches_ranks_and_adds_them_up(run: Run, pytester: pytest.Pytester) -> None:
    suite = PLANT + "@pytest.mark.ranks(2)\ndef test_one(rank): wait(rank + 1)\n"
    result = run("--syncs=census", suite=suite, plugins=(OURS, "testkit.processes.plugin"))
    result.assert_outcomes(passed=1)
    assert [row["count"] for row in census_of(pytester)["sites"]] == [3]


# --- bad markers and options


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("True", "at_most is True"),
        ("-1", "at_most is -1"),
        ("at_most=1.5", "at_most is 1.5"),
        ("at_most='2'", "at_most is '2'"),
        ("at_most=None", "at_most is None"),
        ("often=1", "there is no argument 'often'"),
        ("1, 2", "at_most is given 2 times: [1, 2]"),
    ],
)
def test_a_marker_that_cannot_be_used_fails_its_test_in_two_lines(run: Run, arguments: str, problem: str) -> None:
    result = run("--syncs=off", suite=PLANT + f"@pytest.mark.no_gpu_sync({arguments})\ndef test_one(): pass\n")
    result.assert_outcomes(errors=1)
    lines = result.stdout.lines
    start = lines.index(f"syncs: {problem} (from marker no_gpu_sync)")
    assert lines[start + 1] == "next: write no_gpu_sync(at_most=N) with a whole number from 0 on"
    assert lines[start + 2].startswith("per-test hook")  # nothing follows the two lines


@pytest.mark.parametrize(
    ("arguments", "ini", "line"),
    [
        (["--syncs=loud"], "", "syncs: 'loud' is not known (from --syncs)"),
        (["--syncs=True"], "", "syncs: 'True' is not known (from --syncs)"),
        ([], "syncs = maybe", "syncs: 'maybe' is not known (from ini syncs)"),
        (["--syncs-json=x.json"], "", "syncs: x.json would hold nothing (from --syncs-json)"),
        (["--syncs=census", "--syncs-json=."], "", "syncs: '.' is a folder (from --syncs-json)"),
    ],
)
def test_a_bad_setting_ends_the_run_with_one_message(
    run: Run, pytester: pytest.Pytester, arguments: list[str], ini: str, line: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {line}" in result.stderr.lines
    result.stderr.no_fnmatch_line("*Traceback*")


def test_an_option_that_contradicts_the_environment_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTKIT_SYNCS", "off")
    result = run("--syncs=census")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: syncs: --syncs=census contradicts TESTKIT_SYNCS=off (from --syncs; the environment)" in (
        result.stderr.lines
    )


# --- off, warn, error


def test_off_judges_nothing_and_says_so(run: Run) -> None:
    suite = SUITE + "\ndef test_guarded():\n    with forbid():\n        wait()\n"
    result = run("--syncs=off", suite=suite)
    result.assert_outcomes(passed=5)
    assert "syncs: 3 tests marked no_gpu_sync not judged: all is off (from --syncs)" in result.stdout.lines


def test_off_holds_in_processes_that_tests_start(run: Run) -> None:
    suite = PLANT + "@pytest.mark.fresh_process\ndef test_one():\n    with forbid():\n        wait()\n"
    run("--syncs=off", suite=suite, plugins=(OURS, "testkit.processes.plugin")).assert_outcomes(passed=1)


def test_off_by_the_environment_is_said_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTKIT_SYNCS", "off")
    result = run()
    result.assert_outcomes(passed=4)
    assert "syncs: 3 tests marked no_gpu_sync not judged: all is off (TESTKIT_SYNCS=off)" in result.stdout.lines


def test_warn_turns_failures_into_warnings(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nsyncs = warn\n")
    result = run()
    result.assert_outcomes(passed=4, warnings=2)
    assert "KitWarning: syncs: the host waited 3 times at 1 site, 2 waits allowed" in result.stdout.str()


def test_warn_reaches_tests_in_other_processes(run: Run) -> None:
    suite = PLANT + "@pytest.mark.fresh_process\n@pytest.mark.no_gpu_sync\ndef test_one(): wait()\n"
    result = run("--syncs=warn", suite=suite, plugins=(OURS, "testkit.processes.plugin"))
    result.assert_outcomes(passed=1, warnings=1)


BLIND = PLANT + "@pytest.mark.no_gpu_sync\ndef test_one(): pass\n"


def test_where_nothing_can_be_seen_the_summary_says_that_nothing_was_verified(run: Run) -> None:
    result = run(suite=BLIND)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["syncs: 1 test marked no_gpu_sync verified nothing: torch is not imported: *"])


@pytest.mark.parametrize("source", ["--syncs=error", "ini"])
def test_where_nothing_can_be_seen_an_explicit_error_fails(run: Run, pytester: pytest.Pytester, source: str) -> None:
    pytester.makeini("[pytest]\n" + ("syncs = error\n" if source == "ini" else ""))
    result = run(*([] if source == "ini" else [source]), suite=BLIND)
    result.assert_outcomes(failed=1)
    assert "syncs: nothing was verified: torch is not imported" in result.stdout.str()


@needs_simulation
def test_a_test_on_the_simulated_device_has_verified_something(run: Run) -> None:
    suite = PLANT + (
        "from testkit.syncs import simulated\n"
        "@pytest.mark.no_gpu_sync\n"
        "def test_one():\n"
        "    with simulated() as device:\n"
        "        import torch\n"
        "        torch.ones(3, device=device) + 1\n"
        "@pytest.mark.no_gpu_sync\n"
        "def test_two():\n"
        "    with simulated() as device:\n"
        "        import torch\n"
        "        torch.ones(3, device=device).sum().item()\n"
    )
    result = run("--syncs=error", "-p", "no:cacheprovider", suite=suite)
    result.assert_outcomes(passed=1, failed=1)
    assert "aten._local_scalar_dense  test_step.py:21 in test_two" in result.stdout.str()


STEP = """
import pytest
from testkit.syncs import allow, simulated

def step(device):
    import torch
    lens = torch.tensor([3, 5, 2], device=device)
    longest = lens.max().item()
    return torch.arange(longest, device=device)

@pytest.mark.fresh_process
@pytest.mark.no_gpu_sync(at_most=2)
def test_within():
    with simulated() as device:
        step(device)

@pytest.mark.fresh_process
@pytest.mark.no_gpu_sync(at_most=2)
def test_over():
    with simulated() as device:
        positions = step(device)
        for _ in range(3):
            positions.sum().item()
        with allow("the test looks"):
            assert positions.tolist() == [0, 1, 2, 3, 4]

@pytest.mark.fresh_process
@pytest.mark.no_gpu_sync(at_most=2)
def test_over_and_wrong():
    with simulated() as device:
        for _ in range(3):
            step(device)
        assert device is None
"""
PROCESSES = (OURS, "testkit.processes.plugin")


@needs_simulation
def test_a_step_is_judged_on_the_simulated_device_of_a_fresh_process(run: Run) -> None:
    result = run("--syncs=error", plugins=PROCESSES, suite=STEP)
    result.assert_outcomes(passed=1, failed=2)
    lines = result.stdout.lines
    start = lines.index("syncs: the host waited 5 times at 3 sites, 2 waits allowed (from marker no_gpu_sync)")
    assert "test_over ___" in lines[start - 1]  # nothing about the process comes before it
    told = lines[start + 1 : start + 13]
    assert [line for line in told if " x " in line] == [
        "  3 x aten._local_scalar_dense  test_step.py:22 in test_over",
        "  1 x aten.copy_  test_step.py:6 in step",
        "  1 x aten._local_scalar_dense  test_step.py:7 in step",
    ]
    assert sum(line.startswith("    fix: ") for line in told) == 3
    assert told[-1] == "next: do as the fixes say, or put a wait that must be into allow(reason)"
    result.stdout.fnmatch_lines(["*assert device(type='cuda', index=0) is None*"])  # a failure of its own is shown


@needs_simulation
def test_a_census_names_operators_of_a_torch_that_the_body_imports(run: Run, pytester: pytest.Pytester) -> None:
    result = run("--syncs=census", plugins=PROCESSES, suite=STEP)
    result.assert_outcomes(passed=1, failed=2)
    assert list(census_of(pytester)["tests"]) == ["test_step.py::test_over", "test_step.py::test_within"]
    assert census_of(pytester)["tests"]["test_step.py::test_within"] == {
        "test_step.py in step: torch.tensor": 1,
        "test_step.py in step: Tensor.item (aten._local_scalar_dense)": 1,
    }


# --- the census of a run


def test_census_lists_all_tests_and_changes_no_verdict(run: Run, pytester: pytest.Pytester) -> None:
    result = run("--syncs=census")
    result.assert_outcomes(passed=2, failed=2)
    out = result.stdout.str()
    assert "= syncs census =" in out
    assert "syncs: the host waited 11 times at 1 site, sorted by count, then bytes" in out
    assert "  11 x aten._local_scalar_dense  test_step.py:9 in wait" in out
    found = census_of(pytester)
    name = "test_step.py in wait: aten._local_scalar_dense"
    counts = {"test_waits": 1, "test_within": 2, "test_over": 3, "test_unmarked": 5}
    assert found["tests"] == {f"test_step.py::{test}": {name: count} for test, count in counts.items()}


def test_a_body_that_did_not_finish_is_listed_and_compared_with_nothing(run: Run, pytester: pytest.Pytester) -> None:
    suite = PLANT + (
        "def test_skips():\n    wait()\n    pytest.skip('later')\n"
        "@pytest.mark.no_gpu_sync\ndef test_nothing():\n    pytest.skip('no data')\n"
        "def test_ends(): wait()\n"
    )
    result = run("--syncs=census", suite=suite)
    result.assert_outcomes(passed=1, skipped=2)
    found = census_of(pytester)
    assert list(found["tests"]) == ["test_step.py::test_ends"]
    assert [row["count"] for row in found["sites"]] == [2]
    result.stdout.fnmatch_lines(["syncs: 2 tests did not finish, or not in sight; what was seen of *"])
    result.stdout.no_fnmatch_line("*verified nothing*")


def test_a_run_that_only_collects_takes_no_census(run: Run, pytester: pytest.Pytester) -> None:
    result = run("--syncs=census", "--collect-only")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*syncs:*")
    assert not (pytester.path / ".pytest_cache" / "d" / "testkit").exists()


def test_hypothesis_and_reruns_are_watched_each_time(run: Run, pytester: pytest.Pytester) -> None:
    pytest.importorskip("hypothesis")
    pytest.importorskip("pytest_rerunfailures")
    suite = PLANT + (
        "from hypothesis import given, settings, strategies\n"
        "@pytest.mark.no_gpu_sync(at_most=3)\n"
        "@settings(max_examples=3, database=None)\n"
        "@given(strategies.integers())\n"
        "def test_given(number): wait()\n"
        "tries = []\n"
        "@pytest.mark.flaky(reruns=1)\n"
        "@pytest.mark.no_gpu_sync\n"
        "def test_again():\n"
        "    tries.append(1)\n"
        "    if len(tries) == 1:\n"
        "        wait()\n"
    )
    result = run("--syncs=census", plugins=(OURS, "_hypothesis_pytestplugin", "pytest_rerunfailures"), suite=suite)
    result.assert_outcomes(passed=2)
    assert list(census_of(pytester)["tests"]) == ["test_step.py::test_given"]  # the second try saw nothing


def test_the_json_goes_where_it_is_told(run: Run, pytester: pytest.Pytester) -> None:
    path = pytester.path / "out" / "base.json"
    result = run("--syncs=census", f"--syncs-json={path}", "-p", "no:cacheprovider")
    assert len(census_of(pytester, "out/base.json")["tests"]) == 4
    assert f"syncs: 4 tests listed, written to {path} (from --syncs)" in result.stdout.lines


def test_without_a_cache_the_summary_says_that_nothing_was_written(run: Run) -> None:
    result = run("--syncs=census", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["syncs: 4 tests listed, written nowhere: no cache, and no --syncs-json *"])


def test_a_file_that_cannot_be_written_fails_the_run(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "file").write_text("")
    suite = PLANT + "def test_one(): wait()"
    result = run("--syncs=census", "--syncs-json=file/base.json", suite=suite)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "file/base.json cannot be written: " in result.stdout.str()


def test_a_census_that_could_see_nothing_fails_the_run(run: Run) -> None:
    result = run("--syncs=census", suite="def test_one(): pass\ndef test_two(): pass\n")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "syncs: no test of 2 ran where a wait could be seen" in result.stdout.lines


def test_workers_are_joined_in_the_summary_and_the_file(run: Run, pytester: pytest.Pytester) -> None:
    result = run("--syncs=census", "-n", "2", plugins=(OURS, "xdist.plugin"))
    result.assert_outcomes(passed=2, failed=2)
    assert "  11 x aten._local_scalar_dense  test_step.py:9 in wait" in result.stdout.lines
    assert len(census_of(pytester)["tests"]) == 4


def test_what_workers_could_not_verify_is_said_by_the_controller(run: Run) -> None:
    result = run("-n", "1", plugins=(OURS, "xdist.plugin"), suite=BLIND)
    result.stdout.fnmatch_lines(["syncs: 1 test marked no_gpu_sync verified nothing: *"])
    result = run("-n", "1", "--syncs=off", plugins=(OURS, "xdist.plugin"), suite=BLIND)
    result.stdout.fnmatch_lines(["syncs: 1 test marked no_gpu_sync not judged: all is off *"])


def test_a_worker_that_crashed_is_said_to_be_missing(run: Run) -> None:
    suite = PLANT + "import os\ndef test_one(): wait()\ndef test_two(): os._exit(3)\n"
    result = run("--syncs=census", "-n", "1", "--max-worker-restart=0", plugins=(OURS, "xdist.plugin"), suite=suite)
    result.stdout.fnmatch_lines(["syncs: gw0 did not report, and their tests are not in this"])


def test_waits_are_announced_for_the_record_of_the_run(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "class Hooks:\n"
        "    def pytest_testkit_record(self, kind, nodeid, data): ...\n"
        "def pytest_addhooks(pluginmanager): pluginmanager.add_hookspecs(Hooks)\n"
        "def pytest_testkit_record(kind, nodeid, data): print(f'RECORD {kind} {nodeid} {data[\"waits\"]}')\n"
    )
    result = run("-s")
    for name, number in (("test_waits", 1), ("test_within", 2), ("test_over", 3)):
        assert f"RECORD syncs test_step.py::{name} {number}" in result.stdout.str()


def test_two_censuses_of_runs_can_be_compared(run: Run, pytester: pytest.Pytester) -> None:
    from testkit.__main__ import main

    for name, times in (("base", 1), ("head", 2)):
        run("--syncs=census", f"--syncs-json={name}.json", suite=PLANT + f"def test_one(): wait({times})\n")
    paths = [str(Path(pytester.path) / f"{name}.json") for name in ("base", "head")]
    assert main(["syncs", "diff", *paths]) == 1
    assert main(["syncs", "diff", *reversed(paths)]) == 0


def test_the_marker_is_explained(run: Run) -> None:
    result = run("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.no_gpu_sync(at_most=0): the test fails if the host waits *"])
