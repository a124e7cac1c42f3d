"""The timing plugin in inner runs: what lands in the run file, and what the run's reader sees."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.timing._read import read_folder
from testkit.timing._run import MAIN, Run, Timed

Inner = Callable[..., pytest.RunResult]

XDIST = ("testkit.timing.plugin", "xdist.plugin")
RERUNS = ("testkit.timing.plugin", "pytest_rerunfailures")

# Time goes on only where a test or fixture says so: figures are exact and nothing waits.
HANDS = """
from testkit.timing._clock import Clock

TIME = [100.0]


def spend(seconds):
    TIME[0] += seconds


Clock.now = staticmethod(lambda: TIME[0])
"""

OUTCOMES = """
import pytest

def test_passes():
    pass

def test_fails():
    assert 0

@pytest.mark.skip(reason="planted")
def test_skip_mark():
    pass

def test_skips():
    pytest.skip("planted")

@pytest.mark.xfail
def test_xfails():
    assert 0

@pytest.mark.xfail(run=False)
def test_xfail_norun():
    pass

@pytest.mark.xfail(strict=False)
def test_xpasses():
    pass

@pytest.fixture
def bad_setup():
    raise ValueError("planted")

def test_bad_setup(bad_setup):
    pass

@pytest.fixture
def bad_teardown():
    yield
    raise ValueError("planted")

def test_bad_teardown(bad_teardown):
    pass

def test_bad_twice(bad_teardown):
    assert 0
"""

PHASES = {
    "test_passes": "ppp",
    "test_fails": "pfp",
    "test_skip_mark": "s-p",
    "test_skips": "psp",
    "test_xfails": "pxp",
    "test_xfail_norun": "x-p",
    "test_xpasses": "pXp",
    "test_bad_setup": "f-p",
    "test_bad_teardown": "ppf",
    "test_bad_twice": "pff",
}


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inner:
    """Run pytest in its own process with our plugin and those that are named, outside of any CI system."""
    for name in ("GITHUB_RUN_ID", "CI_PIPELINE_ID", "BUILDKITE_BUILD_ID", "CIRCLE_WORKFLOW_ID", "TESTKIT_RUN_ID"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setenv("COLUMNS", "300")  # pytest cuts its lines to that

    def run(*args: str, plugins: tuple[str, ...] = ("testkit.timing.plugin",)) -> pytest.RunResult:
        named = [part for plugin in plugins for part in ("-p", plugin)]
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *named, *args, timeout=120)

    return run


@pytest.fixture
def hands(pytester: pytest.Pytester) -> None:
    """The module ``hands``, whose clock the inner run goes by."""
    pytester.makepyfile(hands=HANDS)
    pytester.makeconftest("import hands")
    pytester.makeini("[pytest]\npythonpath = .")


def recorded(pytester: pytest.Pytester, folder: str = "rec") -> Run:
    (found,) = read_folder(pytester.path / folder)
    return found


def phases(found: Run) -> dict[str, str]:
    return {name_of(test): test.phases for test in found.tests}


def name_of(test: Timed) -> str:
    return test.id.partition("::")[2]


def comparable(result: pytest.RunResult) -> list[str]:
    return [re.sub(r"\d+\.\d\ds", "seconds", line) for line in result.outlines if not line.startswith("plugins:")]


# Installed and not asked for


def test_not_asked_for_it_does_nothing(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makeconftest(
        """
        def pytest_unconfigure(config):
            named = [name for name, _ in config.pluginmanager.list_name_plugin() if name]
            print("ours:", [name for name in named if name.startswith("testkit.timing.")])
            print("announced:", config.hook.pytest_testkit_record(kind="any", nodeid="", data=None))
        """
    )
    pytester.makepyfile(OUTCOMES)
    ours = run()
    ours.stdout.fnmatch_lines(["ours: ['testkit.timing.plugin']", "announced: []"])
    without = [line for line in comparable(run(plugins=())) if not line.startswith(("ours", "announced"))]
    assert [line for line in comparable(ours) if not line.startswith(("ours", "announced"))] == without


@pytest.mark.parametrize("option", ["--collect-only", "--setup-plan", "--setup-only", "--fixtures", "--help"])
def test_what_runs_no_test_records_nothing(pytester: pytest.Pytester, run: Inner, option: str) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = run("--timing-dir=rec", "--timing-slow=1", "--timing-budget=run=1ms", option)
    assert result.ret == 0
    assert not (pytester.path / "rec").exists()


# The run file


@pytest.mark.parametrize(("plugins", "args"), [(("testkit.timing.plugin",), ()), (XDIST, ("-n2",))], ids=["", "n2"])
def test_every_outcome_is_recorded_by_phase(
    pytester: pytest.Pytester, run: Inner, plugins: tuple[str, ...], args: tuple[str, ...]
) -> None:
    pytester.makepyfile(OUTCOMES)
    result = run("--timing-dir=rec", *args, plugins=plugins)
    found = recorded(pytester)
    assert phases(found) == PHASES
    assert found.complete
    assert found.exit_status == result.ret == 1
    assert found.whole is not None
    assert found.whole.count == len(PHASES)
    assert [nodeid.partition("::")[2] for nodeid in found.selected or ()] == list(PHASES)
    assert found.header.pytest == pytest.__version__
    assert "--timing-dir=rec" in found.header.argv
    assert found.header.started > 1.7e9
    assert all(test.rss > 1 << 20 for test in found.tests)


def test_the_last_line_says_where_the_file_is_and_three_facts(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile("import time\ntime.sleep(0.1)\ndef test_it(): pass")
    result = run("--timing-dir=rec/of/today")
    line = r"timing: 1 test in \d+ ms, largest waste: imports \d+ ms; recorded in rec/of/today/\S+\.1\.timing\.jsonl"
    result.stdout.re_match_lines([line])
    assert recorded(pytester).tests


def test_a_run_without_tests_says_so(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile("")
    result = run("--timing-dir=rec")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["timing: no test ran; recorded in rec/*"])
    assert recorded(pytester).exit_status == 5


def test_the_ini_key_names_a_folder_beside_its_file(
    pytester: pytest.Pytester, run: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\ntiming_dir = rec")
    pytester.makepyfile(**{"sub/test_it": "def test_it(): pass"})
    monkeypatch.chdir(pytester.path / "sub")
    result = run("-c../tox.ini")
    result.stdout.fnmatch_lines([f"timing: 1 test in *; recorded in {pytester.path}/rec/*"])
    assert len(recorded(pytester).tests) == 1


def test_a_folder_that_cannot_be_written_is_a_usage_error_at_once(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile("def test_it(): pass")
    (pytester.path / "rec").touch()
    for plugins, args in ((("testkit.timing.plugin",), ()), (XDIST, ("-n2",))):
        result = run("--timing-dir=rec", *args, plugins=plugins)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: timing: cannot write in *rec: *", "next: name another folder"])
        assert "test_it" not in result.stdout.str()


def test_an_empty_folder_name_is_a_usage_error(run: Inner) -> None:
    result = run("--timing-dir=")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: timing: no folder is named (from --timing-dir)"])


def test_a_full_disk_is_said_and_fails_nothing(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makeconftest(
        """
        from testkit.timing import _write
        real = _write._os_write

        def pytest_collection_finish():
            def write(file, data):
                if b'"test"' in bytes(data) or b'"end"' in bytes(data):
                    raise OSError(28, "No space left on device")
                return real(file, data)
            _write._os_write = write
        """
    )
    pytester.makepyfile("def test_it(): pass")
    result = run("--timing-dir=rec")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["timing: 1 test in *; the record is not whole: *No space left on device"])
    assert not recorded(pytester).complete


def test_what_a_suite_replaces_or_breaks_fails_nothing_and_is_recorded(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        """
        import json, os, resource, sys
        from unittest import mock
        import pytest

        class Lazy:
            def __getattr__(self, name):
                raise KeyError(name)

        @pytest.fixture(params=[Lazy()], ids=lambda _: "lazy")
        def lazy(request):
            return request.param

        def test_parameter(lazy):
            pass

        @pytest.fixture
        def patched(monkeypatch):
            with mock.patch("json.dumps"), mock.patch("json.JSONEncoder.encode"), mock.patch("os.write"):
                with mock.patch("os.close"), mock.patch("resource.getrusage"), mock.patch("os.getpid"):
                    monkeypatch.setattr(sys, "platform", "win32")
                    monkeypatch.setitem(sys.modules, "torch", mock.MagicMock())
                    yield

        @pytest.fixture(autouse=True, scope="module")
        def slow_file():
            patches = [mock.patch("json.dumps"), mock.patch("resource.getrusage"), mock.patch("os.getpid")]
            for patch in patches:
                patch.start()
            yield
            for patch in patches:
                patch.stop()

        @pytest.mark.xfail
        def test_patched(patched):
            assert 0
        """
    )
    result = run("--timing-dir=rec")
    result.assert_outcomes(passed=1, xfailed=1)
    result.stdout.fnmatch_lines(["timing: 2 tests in *; recorded in rec/*"])
    found = recorded(pytester)
    assert phases(found) == {"test_parameter[lazy]": "ppp", "test_patched": "pxp"}
    assert all(test.rss > 1 << 20 for test in found.tests)
    assert found.complete


@pytest.mark.parametrize(("plugins", "args"), [(("testkit.timing.plugin",), ()), (XDIST, ("-n1",))], ids=["", "n1"])
def test_what_goes_wrong_while_measuring_is_said_and_breaks_no_run(
    pytester: pytest.Pytester, run: Inner, plugins: tuple[str, ...], args: tuple[str, ...]
) -> None:
    pytester.makeconftest(
        """
        from testkit.timing._fixture_clock import FixtureClock

        def set_up(self, *args):
            raise LookupError("planted")

        FixtureClock.set_up = set_up
        """
    )
    pytester.makepyfile("def test_it(tmp_path): pass")
    result = run("--timing-dir=rec", *args, plugins=plugins)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["timing: 1 test in *; the record is not whole: *: LookupError: planted"])
    found = recorded(pytester)
    assert [(record.kind, record.data) for record in found.records] == [
        ("not recorded", {"problem": "LookupError: planted"})
    ]
    assert not found.complete
    over = run("--timing-budget=test=1h", *args, plugins=plugins)
    assert over.ret == 1
    over.stdout.fnmatch_lines(["timing: budgets of tests and files could not be watched: *: LookupError: planted*"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_a_test_that_comes_back_does_not_touch_the_run_file(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        """
        import os, sys

        def test_before():
            pass

        def test_fork():
            child = os.fork()
            if not child:
                sys.exit(3)
            os.waitpid(child, 0)
        """
    )
    result = run("--timing-dir=rec")
    assert result.ret == 0
    found = recorded(pytester)
    assert phases(found) == {"test_before": "ppp", "test_fork": "ppp"}
    assert (found.complete, found.exit_status) == (True, 0)


def test_ci_names_the_run_and_a_second_one_in_the_same_job_is_another(
    pytester: pytest.Pytester, run: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test_it(): pass")
    monkeypatch.setenv("GITHUB_RUN_ID", "77")
    monkeypatch.setenv("GITHUB_JOB", "gpu")
    monkeypatch.setenv("GITHUB_RUN_ATTEMPT", "2")
    run("--timing-dir=rec")
    run("--timing-dir=rec")
    headers = [found.header for found in read_folder(pytester.path / "rec")]
    assert {(header.run, header.attempt) for header in headers} == {("77-gpu", 2), ("77-gpu-2", 2)}


# Fixtures, collection, what is announced


@pytest.mark.usefixtures("hands")
def test_a_module_fixture_of_four_short_tests_is_reported_as_exactly_that(
    pytester: pytest.Pytester, run: Inner
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from hands import spend

        @pytest.fixture(scope="session", autouse=True)
        def whole_run():
            spend(5)
            yield
            spend(2)

        @pytest.fixture(scope="module")
        def engine(whole_run):
            spend(0.6)
            yield
            spend(0.3)

        @pytest.mark.parametrize("i", range(4))
        def test_short(engine, i):
            spend(0.05)
        """
    )
    run("--timing-dir=rec")
    found = recorded(pytester)
    assert {(test.setup, test.call, test.teardown) for test in found.tests} == {(0.0, 0.05, 0.0)}
    rows = {row.name: row for row in found.fixtures}
    assert set(rows) == {"engine", "whole_run"}
    assert (rows["engine"].scope, rows["engine"].setup, rows["engine"].teardown) == ("module", 0.6, 0.3)
    assert rows["engine"].node == found.tests[0].id.partition("::")[0]
    assert (rows["whole_run"].scope, rows["whole_run"].setup, rows["whole_run"].teardown) == ("session", 5.0, 2.0)
    # Tests and shared fixtures are all that the worker spent, one after another.
    spans = sorted(
        [(test.start, test.seconds) for test in found.tests]
        + [(row.start, row.setup) for row in found.fixtures]
        + [(row.teardown_start or 0.0, row.teardown) for row in found.fixtures]
    )
    begin = found.workers[MAIN].ready or 0.0
    for start, seconds in spans:
        assert start == pytest.approx(begin, abs=1e-5)
        begin += seconds
    assert found.seconds == pytest.approx(begin)


@pytest.mark.usefixtures("hands")
def test_a_fixture_is_billed_for_itself_alone(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        """
        import pytest
        from hands import spend

        @pytest.fixture(scope="module", params=["fp16", "bf16"])
        def inner(request):
            spend(1)
            yield
            spend(2)

        @pytest.fixture(scope="class")
        def middle(inner):
            spend(10)
            yield
            spend(20)

        @pytest.fixture
        def outer(request):
            spend(100)
            request.getfixturevalue("middle")
            yield
            spend(200)

        @pytest.mark.usefixtures("inner")
        class TestAll:
            def test_one(self, outer):
                spend(1000)

            def test_late(self, request):
                request.getfixturevalue("outer")
                spend(1000)
        """
    )
    assert run("--timing-dir=rec").ret == 0
    found = recorded(pytester)
    spent = {(row.name, row.scope, row.param, row.setup, row.teardown) for row in found.fixtures}
    assert spent == {
        ("inner", "module", "fp16", 1, 2),
        ("inner", "module", "bf16", 1, 2),
        ("middle", "class", "", 10, 20),
        ("outer", "function", "", 100, 200),
    }
    assert {row.node.partition("::")[2] for row in found.fixtures if row.name == "middle"} == {"TestAll"}
    # What a function's own fixtures take is its own; what it shares is not, wherever it was asked for.
    times = {name_of(test).partition("[")[0]: (test.setup, test.call, test.teardown) for test in found.tests}
    assert times == {"TestAll::test_one": (100, 1000, 200), "TestAll::test_late": (0, 1100, 200)}
    shared = sum(row.setup + row.teardown for row in found.fixtures if row.scope != "function")
    assert sum(test.seconds for test in found.tests) + shared == found.seconds


@pytest.mark.usefixtures("hands")
def test_fixtures_that_fail_are_timed_too(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        """
        import pytest
        from hands import spend

        @pytest.fixture(scope="module")
        def breaks():
            spend(3)
            raise ValueError("planted")

        @pytest.fixture(scope="module")
        def breaks_later():
            spend(4)
            yield
            spend(5)
            raise ValueError("planted")

        def test_one(breaks):
            pass

        def test_two(breaks):
            pass

        def test_three(breaks_later):
            pass
        """
    )
    run("--timing-dir=rec")
    found = recorded(pytester)
    assert [(row.name, row.setup, row.teardown) for row in found.fixtures] == [("breaks_later", 4, 5), ("breaks", 3, 0)]
    assert phases(found) == {"test_one": "f-p", "test_two": "f-p", "test_three": "ppf"}
    assert all(test.seconds == 0 for test in found.tests)


@pytest.mark.usefixtures("hands")
def test_unittest_and_xunit_set_up_are_recorded(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        """
        import unittest
        from hands import spend

        def setup_module():
            spend(7)

        class TestOld(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                spend(5)

            @classmethod
            def tearDownClass(cls):
                spend(6)

            def setUp(self):
                spend(1)

            def test_old(self):
                spend(3)

            @unittest.skip("planted")
            def test_left_out(self):
                spend(100)
        """
    )
    run("--timing-dir=rec")
    found = recorded(pytester)
    by_name = {name_of(test): (test.phases, test.call) for test in found.tests}
    assert by_name["TestOld::test_old"] == ("ppp", 4)
    assert by_name["TestOld::test_left_out"] in [("psp", 0), ("s-p", 0)]
    rows = {row.scope: (row.setup, row.teardown) for row in found.fixtures if row.setup}
    assert rows == {"module": (7, 0), "class": (5, 6)}


@pytest.mark.usefixtures("hands")
def test_a_doctest_is_a_test(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        """
        from hands import spend

        def add(a, b):
            '''
            >>> add(1, 2)
            3
            '''
            spend(2)
            return a + b
        """
    )
    run("--timing-dir=rec", "--doctest-modules", "-k", "add")
    found = recorded(pytester)
    assert [(test.id.rpartition(".")[2], test.phases, test.call) for test in found.tests] == [("add", "ppp", 2)]


@pytest.mark.usefixtures("hands")
def test_collection_and_imports_are_recorded_by_file(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        **{
            "sub/conftest": "from hands import spend\nspend(16)",
            "sub/test_a": """
                import pytest
                from hands import spend
                spend(4)

                def pytest_generate_tests(metafunc):
                    spend(1)

                class TestIt:
                    def test_it(self):
                        pass
                """,
            "sub/test_skipped": "import pytest, hands\nhands.spend(2)\npytest.skip('planted', allow_module_level=True)",
            "sub/test_broken": "import hands\nhands.spend(3)\nraise ValueError('planted')",
        }
    )
    run("--timing-dir=rec", "--continue-on-collection-errors", "sub")
    found = recorded(pytester)
    assert {row.module: row.seconds for row in found.imports} == {
        "sub/test_a.py": 4,
        "sub/test_skipped.py": 2,
        "sub/test_broken.py": 3,
    }
    collected = {row.file: row.seconds for row in found.collection}
    assert collected.pop("sub", 16) == 16  # pytest loads a named folder's conftest before it collects
    assert collected == {"sub/test_a.py": 5, "sub/test_skipped.py": 2, "sub/test_broken.py": 3}
    assert phases(found) == {"TestIt::test_it": "ppp"}


@pytest.mark.parametrize(("plugins", "args"), [(("testkit.timing.plugin",), ()), (XDIST, ("-n2",))], ids=["", "n2"])
def test_what_is_announced_is_kept_from_any_process(
    pytester: pytest.Pytester, run: Inner, plugins: tuple[str, ...], args: tuple[str, ...]
) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def step(request):
            yield
            data = {"step": "gc", "seconds": 0.001, "odd": ("\\ud800", {1})}
            request.config.hook.pytest_testkit_record(kind="cleanup", nodeid=request.node.nodeid, data=data)

        def pytest_sessionfinish(session):
            session.config.hook.pytest_testkit_record(kind="end", nodeid="", data=None)
        """
    )
    pytester.makepyfile("import pytest\n@pytest.mark.parametrize('i', range(4))\ndef test_it(i): pass")
    run("--timing-dir=rec", *args, plugins=plugins)
    found = recorded(pytester)
    steps = [record for record in found.records if record.kind == "cleanup"]
    assert {record.nodeid for record in steps} == {test.id for test in found.tests}
    assert steps[0].data == {"step": "gc", "seconds": 0.001, "odd": ["\ud800", "{1}"]}
    tests = {test.id: test for test in found.tests}
    for record in steps:
        assert record.worker == tests[record.nodeid].worker
        assert 0 < record.start < (found.seconds or 0)
    ends = [record.worker for record in found.records if record.kind == "end"]
    assert sorted(ends) == sorted({test.worker for test in found.tests} | {MAIN})


def test_a_failed_step_of_clean_up_is_a_failed_teardown(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makeini("[pytest]\npythonpath = .\ncleanup_steps = steps:broken")
    pytester.makepyfile(steps="def broken(): raise ValueError('planted')", test_it="def test_it(): pass")
    run("--timing-dir=rec", plugins=("testkit.timing.plugin", "testkit.cleanup.plugin"))
    assert phases(recorded(pytester)) == {"test_it": "ppf"}


# Clocks


FROZEN = """
import sys
import time
from pathlib import Path

def freeze():
    real = {name: getattr(time, name) for name in ("time", "perf_counter", "monotonic", "time_ns")}
    for module in list(sys.modules.values()):
        for key, value in list(vars(module).items()) if hasattr(module, "__dict__") else ():
            for name, function in real.items():
                if value is function:
                    setattr(module, key, lambda: 0.0)

def test_frozen():
    before = time.perf_counter
    freeze()
    assert time.perf_counter is not before
    assert time.time() == 0.0
    for _ in range(1000):
        Path(__file__).read_text()
"""


def test_a_clock_that_is_patched_everywhere_does_not_reach_the_record(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(FROZEN)
    run("--timing-dir=rec")
    found = recorded(pytester)
    (test,) = found.tests
    assert 0 < test.call < 60
    assert 0 < test.start < 60
    assert found.seconds is not None
    assert test.start + test.seconds <= found.seconds + 1e-5


def test_frozen_time_does_not_reach_the_record(pytester: pytest.Pytester, run: Inner) -> None:
    pytest.importorskip("freezegun")
    pytester.makepyfile(
        """
        import freezegun, pytest
        from pathlib import Path

        @pytest.fixture
        def frozen():
            with freezegun.freeze_time("2001-01-01"):
                yield

        def test_frozen(frozen):
            for _ in range(1000):
                Path(__file__).read_text()
        """
    )
    run("--timing-dir=rec")
    (test,) = recorded(pytester).tests
    assert 0 < test.call < 60


def test_a_worker_with_another_clock_is_aligned(
    pytester: pytest.Pytester, run: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another host: the clock of the processes that execnet starts is 1,000 s ahead."""
    pytester.makepyfile(
        sitecustomize="""
        import sys, time

        if "-c" in sys.orig_argv:
            real = time.perf_counter
            time.perf_counter = lambda: real() + 1000
        """,
        test_it="import pytest\n@pytest.mark.parametrize('i', range(4))\ndef test_it(i): pass",
    )
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    run("--timing-dir=rec", "-n2", plugins=XDIST)
    found = recorded(pytester)
    assert sorted(found.workers) == ["gw0", "gw1"]
    for worker in found.workers.values():
        assert worker.offset == pytest.approx(-1000, abs=1)
    for test in found.tests:
        worker = found.workers[test.worker]
        assert worker.ready is not None
        assert worker.ready - 1 < test.start < (found.seconds or 0) + 1


# Other plugins


def test_each_attempt_of_a_test_that_is_run_again_is_recorded(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        """
        import pytest
        CALLS = []

        @pytest.fixture
        def sometimes():
            CALLS.append("setup")
            assert len(CALLS) != 4

        def test_steady(sometimes):
            pass

        @pytest.mark.flaky(reruns=3)
        def test_flaky(sometimes):
            CALLS.append("call")
            assert len(CALLS) > 5
        """
    )
    result = run("--timing-dir=rec", plugins=RERUNS)
    result.assert_outcomes(passed=2)
    tests = recorded(pytester).tests
    assert [(name_of(test), test.phases, test.attempt) for test in tests] == [
        ("test_steady", "ppp", 1),
        ("test_flaky", "prp", 1),
        ("test_flaky", "r-p", 2),
        ("test_flaky", "ppp", 3),
    ]


def test_reruns_on_workers_are_recorded(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("i", range(6))
        def test_fails(i):
            assert i % 3
        """
    )
    run("--timing-dir=rec", "-n2", "--reruns=1", plugins=(*XDIST, "pytest_rerunfailures"))
    tests = recorded(pytester).tests
    found = sorted((name_of(test), test.attempt, test.phases) for test in tests)
    expected = [(f"test_fails[{i}]", 1, "ppp") for i in (1, 2, 4, 5)]
    expected += [(f"test_fails[{i}]", attempt, "prp" if attempt == 1 else "pfp") for i in (0, 3) for attempt in (1, 2)]
    assert found == sorted(expected)


@pytest.mark.parametrize("dist", ["load", "loadscope", "loadgroup", "worksteal"])
def test_rows_of_all_workers_are_complete(pytester: pytest.Pytester, run: Inner, dist: str) -> None:
    source = """
        import pytest

        @pytest.fixture(scope="module")
        def engine():
            yield

        @pytest.mark.xdist_group("one@home")
        @pytest.mark.parametrize("i", ["a@b", 1, 2, 3, 4])
        def test_it(engine, i, tmp_path):
            pass

        def test_alone(engine):
            pass
        """
    pytester.makepyfile(test_a=source, test_b=source)
    result = run("--timing-dir=rec", "-n2", f"--dist={dist}", plugins=XDIST)
    result.assert_outcomes(passed=12)
    found = recorded(pytester)
    ids = [f"test_{file}.py::test_it[{i}]" for file in "ab" for i in ("a@b", 1, 2, 3, 4)]
    ids += [f"test_{file}.py::test_alone" for file in "ab"]
    assert sorted(test.id for test in found.tests) == sorted(ids)
    assert sorted(found.selected or ()) == sorted(ids)
    assert sorted(found.workers) == ["gw0", "gw1"]
    for worker in found.workers.values():
        assert worker.host
        assert worker.pid
        assert worker.machine["cpus"]
        assert worker.offset == 0.0
        assert worker.started is not None
        assert worker.ready is not None
        assert worker.started < worker.ready
    for name in found.workers:
        files = {row.file for row in found.collection if row.worker == name}
        # A folder has a row too where it takes long.
        assert {file for file in files if file.endswith(".py")} == {"test_a.py", "test_b.py"}
        assert {row.module for row in found.imports if row.worker == name} == {"test_a.py", "test_b.py"}
        used = {test.id.partition("::")[0] for test in found.tests if test.worker == name}
        engines = [row for row in found.fixtures if row.worker == name and row.name == "engine"]
        assert {row.node for row in engines} == used
        assert all(row.teardown_start is not None for row in engines)
    assert sum(row.count for row in found.fixtures if row.name == "tmp_path") == 10


def test_a_crash_of_a_worker_loses_nothing_but_the_rest_of_its_test(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        """
        import os, pytest

        @pytest.fixture(scope="module")
        def engine():
            yield

        @pytest.mark.parametrize("i", range(10))
        def test_it(engine, i):
            if i == 5:
                os._exit(3)
        """
    )
    run("--timing-dir=rec", "-n2", plugins=XDIST)
    found = recorded(pytester)
    assert sorted(test.id for test in found.tests) == sorted(found.selected or ())
    assert {name_of(test): test.phases for test in found.tests if test.phases != "ppp"} == {"test_it[5]": "pf-"}
    (crash,) = [record for record in found.records if record.kind == "crash"]
    assert crash.nodeid.endswith("test_it[5]")
    assert crash.data["phase"] == "call"
    died = crash.worker
    assert sorted(found.workers) == ["gw0", "gw1", "gw2"]
    assert [row.teardown_start for row in found.fixtures if row.worker == died and row.name == "engine"] == [None]


def test_a_test_that_crashes_and_is_run_again_says_both(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(
        """
        import os
        from pathlib import Path

        def test_it():
            mark = Path(__file__).with_name("mark")
            if not mark.exists():
                mark.touch()
                os._exit(3)

        def test_other():
            pass
        """
    )
    # It reports an attempt when that is over, so nothing is known of the phase; and it knows xdist by that name.
    run("--timing-dir=rec", "-n1", "--reruns=1", plugins=(XDIST[0], "xdist", "pytest_rerunfailures"))
    tests = [test for test in recorded(pytester).tests if name_of(test) == "test_it"]
    assert [(test.phases, test.attempt) for test in tests] == [("r--", 1), ("ppp", 2)]


INTERRUPTED = """
import pytest

@pytest.fixture(scope="session")
def engine():
    yield

def test_before(engine):
    pass

def test_interrupted():
    raise KeyboardInterrupt

def test_after():
    pass
"""


def test_an_interrupted_run_has_all_but_the_interrupted_test(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(INTERRUPTED)
    result = run("--timing-dir=rec")
    found = recorded(pytester)
    assert found.complete
    assert result.ret == found.exit_status == 2
    assert phases(found) == {"test_before": "ppp"}
    assert [record.kind for record in found.records if record.nodeid.endswith("test_interrupted")] == ["interrupted"]
    assert [row.name for row in found.fixtures if row.teardown_start is not None] == ["engine"]
    result.stdout.fnmatch_lines(["timing: 1 test in *; recorded in rec/*"])


def test_an_interrupted_worker_has_crashed_to_xdist_and_to_us(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(INTERRUPTED)
    result = run("--timing-dir=rec", "-n1", plugins=XDIST)
    found = recorded(pytester)
    assert found.complete
    assert result.ret == found.exit_status == 2
    assert phases(found) == {"test_before": "ppp", "test_interrupted": "pf-"}


@pytest.mark.parametrize("option", ["-x", "--maxfail=1"])
def test_a_run_that_stops_early_has_what_ran(pytester: pytest.Pytester, run: Inner, option: str) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="module", autouse=True)
        def engine():
            yield

        def test_before(): pass
        def test_fails(): assert 0
        def test_after(): pass
        """
    )
    run("--timing-dir=rec", option)
    found = recorded(pytester)
    assert phases(found) == {"test_before": "ppp", "test_fails": "pfp"}
    assert len(found.selected or ()) == 3
    assert [row.teardown_start is not None for row in found.fixtures] == [True]


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_test_that_times_out_is_recorded_as_far_as_the_process_lives(
    pytester: pytest.Pytester, run: Inner, method: str
) -> None:
    pytest.importorskip("pytest_timeout")
    pytester.makepyfile(
        """
        import threading

        def test_before():
            pass

        def test_hangs():
            threading.Event().wait(60)
        """
    )
    run("--timing-dir=rec", "--timeout=1", f"--timeout-method={method}", plugins=(RERUNS[0], "pytest_timeout"))
    found = recorded(pytester)
    if method == "signal":
        assert phases(found) == {"test_before": "ppp", "test_hangs": "pfp"}
        assert found.complete
    else:  # that ends the process at once
        assert not found.complete
        assert [nodeid.partition("::")[2] for nodeid in found.selected or ()] == ["test_before", "test_hangs"]


def test_subtests_are_parts_of_their_test(pytester: pytest.Pytester, run: Inner) -> None:
    if pytest.version_tuple < (9,):
        pytest.skip("subtests came with pytest 9.0")
    pytester.makepyfile(
        """
        def test_it(subtests):
            for i in range(3):
                with subtests.test(i=i):
                    assert i != 1
        """
    )
    run("--timing-dir=rec")
    assert phases(recorded(pytester)) == {"test_it": "pfp"}


def test_other_plugins_see_reports_as_they_always_were(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makeconftest(
        """
        def pytest_runtest_logreport(report):
            print("ours:", [name for name in vars(report) if "testkit" in name])
        """
    )
    pytester.makepyfile("def test_it(): pass")
    result = run("--timing-dir=rec", "-n1", "-s", plugins=XDIST)
    assert re.findall(r"ours: \[.*?\]", result.stdout.str()) == ["ours: []"] * 3


# Budgets


SPENDING = """
import pytest
from hands import spend

@pytest.fixture(scope="module")
def engine():
    spend(100)
    yield
    spend(100)

@pytest.fixture
def value(engine):
    spend(2)
    yield
    spend(50)

def test_within(value):
    spend(3)

def test_over(value):
    spend(4)

@pytest.mark.xfail
def test_known():
    spend(50)
    assert 0

def test_failing():
    spend(50)
    assert 0
"""


@pytest.mark.usefixtures("hands")
def test_a_test_over_its_budget_finishes_and_fails_with_both_figures(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile(SPENDING)
    result = run("--timing-budget=test=5s")
    result.assert_outcomes(passed=1, failed=2, xfailed=1)
    took = "timing: *::test_over took 6 s, its budget is 5 s (from --timing-budget)"
    result.stdout.fnmatch_lines([took, "next: make it faster, or raise test=5 s"])
    result.stdout.fnmatch_lines([f"FAILED *::test_over - *{took[8:]}"])
    assert "test_failing took" not in result.stdout.str()
    assert "recorded" not in result.stdout.str()


@pytest.mark.usefixtures("hands")
def test_a_file_and_the_run_over_their_budgets_fail_the_run(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makeini("[pytest]\npythonpath = .\ntiming_budget =\n    file=100s\n    run=5m")
    pytester.makepyfile(test_it=SPENDING.partition("@pytest.mark.xfail")[0], test_quick="def test_quick(): pass")
    result = run("--timing-dir=rec")
    result.assert_outcomes(passed=3)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "timing: test_it.py took 111 s, its budget is 100 s (from ini timing_budget)",
            "next: make it faster, or raise file=100 s",
            "timing: the run took 311 s, its budget is 300 s (from ini timing_budget)",
        ]
    )
    assert "test_quick.py took" not in result.stdout.str()
    assert recorded(pytester).exit_status == 1


def test_budgets_hold_on_workers(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile("import time, pytest\n@pytest.mark.parametrize('i', [0, 1])\ndef test_it(i): time.sleep(0.02)")
    result = run("-n2", "--timing-budget=test=10ms", "--timing-budget=file=1ms", plugins=XDIST)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*test_it?0? took 0.* s, its budget is 0.01 s (from --timing-budget)"])
    result.stdout.fnmatch_lines(["timing: test_*.py took 0.* s, its budget is 0.001 s (from --timing-budget)"])


def test_a_run_within_its_budget_says_nothing(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = run("--timing-budget=test=1h,file=1h,run=1h")
    assert result.ret == 0
    assert "timing:" not in result.stdout.str()


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("--timing-budget=suite=3s", "budget 'suite=3s' is not known (from --timing-budget)"),
        ("--timing-budget=", "no budget in * (from --timing-budget)"),
        ("--timing-slow=soon", "'soon' is no time (from --timing-slow)"),
        ("--timing-slow=0", "'0' is no time (from --timing-slow)"),
    ],
)
def test_a_value_that_makes_no_sense_is_a_usage_error(run: Inner, argument: str, problem: str) -> None:
    result = run(argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: timing: {problem}"])


# Slow tests


# The test ends when it has been named twice, so nothing rests on how fast this machine is.
SLOW = """
import time

def test_quick():
    pass

def test_slow():
    print("captured")
    limit = time.monotonic() + 60
    while open("terminal.txt").read().count("SLOW") < 2:
        assert time.monotonic() < limit
        time.sleep(0.02)

def test_last():
    pass
"""


@pytest.mark.parametrize(("plugins", "args"), [(("testkit.timing.plugin",), ()), (XDIST, ("-n2",))], ids=["", "n2"])
def test_a_slow_test_is_named_while_it_runs(
    pytester: pytest.Pytester, run: Inner, plugins: tuple[str, ...], args: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_it=SLOW)
    named = [part for plugin in plugins for part in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:terminalprogress", *named, *args]
    text = " ".join([*command, "--timing-slow=0.2", "> terminal.txt"])
    assert pytester.run("sh", "-c", text, timeout=120).ret == 0
    lines = (pytester.path / "terminal.txt").read_text().splitlines()
    slow = [line for line in lines if line.startswith("SLOW")]
    assert len(slow) >= 2
    assert all(re.fullmatch(r"SLOW \[> \d+(\.\d)? s\] test_it\.py::test_slow", line) for line in slow)
    assert "captured" not in "".join(lines)
    assert lines[-1].endswith(" ==") or "3 passed" in lines[-1]


def test_slow_alone_records_nothing(pytester: pytest.Pytester, run: Inner) -> None:
    pytester.makepyfile("def test_it(): pass")
    pytester.makeconftest(
        """
        def pytest_unconfigure(config):
            named = [name for name, _ in config.pluginmanager.list_name_plugin() if name]
            print("ours:", [name for name in named if name.startswith("testkit.timing.")])
        """
    )
    result = run("--timing-slow=60")
    result.stdout.fnmatch_lines(["ours: ['testkit.timing.plugin', 'testkit.timing.slow']"])
    assert sorted(path.name for path in Path(pytester.path).iterdir() if path.suffix == ".jsonl") == []
