"""The markers ``ranks`` and ``fresh_process`` in inner runs that name their plugins, alone and beside other plugins."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions and /proc are Linux's")

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run ``suite`` in a process of its own; no more than our plugin is loaded besides ``plugins``."""

    def inner(suite: str, *words: str, plugins: tuple[str, ...] = ()) -> pytest.RunResult:
        pytester.makepyfile(test_suite=suite)
        loading = [word for name in ("testkit.processes.plugin", *plugins) for word in ("-p", name)]
        return pytester.runpytest_subprocess(*loading, "-ra", "-W", "error", *words)

    return inner


BOTH = pytest.mark.parametrize("start", ["spawn", "preload"])

SUITE = """
import os
import pytest

@pytest.fixture(scope="module")
def parent():
    return os.getpid()

@pytest.fixture
def numbers(tmp_path):
    return [1, 2, 3]

@pytest.mark.ranks(2)
@pytest.mark.parametrize("factor", [1, 10])
def test_runs_in_every_rank(rank, world_size, rendezvous, channel, parent, numbers, factor, tmp_path):
    (tmp_path / f"{rank}").touch()
    assert os.getpid() != parent
    assert (world_size, os.environ["RANK"]) == (2, str(rank))
    assert sum(numbers) * factor in (6, 60)
    channel.barrier()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1"]

@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 3])
def test_the_world_size_may_be_a_parameter(world_size):
    assert int(os.environ["WORLD_SIZE"]) == world_size

class TestMethods:
    factor = 2

    @pytest.mark.ranks(world_size=2, timeout=30, env={"EXTRA": "x"})
    def test_a_method(self, rank, numbers):
        assert self.factor * len(numbers) == 6
        assert os.environ["EXTRA"] == "x"

@pytest.mark.fresh_process
def test_in_a_fresh_process(parent, numbers):
    assert os.getpid() != parent
    assert "RANK" not in os.environ

def test_unmarked(parent):
    assert os.getpid() == parent
"""


@BOTH
def test_marked_tests_run_in_processes_of_their_own_and_fixtures_once_in_pytest(run: Run, start: str) -> None:
    run(SUITE, f"--ranks-start={start}").assert_outcomes(passed=7)


def test_marked_tests_run_under_xdist(run: Run) -> None:
    run(SUITE, "-n", "2", plugins=("xdist.plugin",)).assert_outcomes(passed=7)


FAILING = """
import pytest

@pytest.fixture
def offset():
    return 1

@pytest.mark.ranks(2)
def test_fails(rank, offset):
    values = [rank, offset]
    assert values == [0, 1]

@pytest.mark.fresh_process
def test_fails_alone(offset):
    assert offset == 2

@pytest.mark.ranks(2)
def test_skips(rank):
    pytest.skip("no such card")

@pytest.mark.ranks(2)
def test_one_skips(rank):
    if rank == 1:
        pytest.skip("no such card")

@pytest.mark.ranks(2)
def test_xfails():
    pytest.xfail("known")

@pytest.mark.xfail(reason="known", strict=True)
@pytest.mark.ranks(2)
def test_marked_xfail():
    assert False

@pytest.mark.ranks(2)
def test_raises():
    with pytest.raises(ValueError, match="planted"):
        raise ValueError("planted")
"""


@BOTH
def test_a_failure_names_the_rank_and_explains_the_assertion(run: Run, start: str) -> None:
    result = run(FAILING, f"--ranks-start={start}")
    result.assert_outcomes(passed=1, failed=3, skipped=1, xfailed=2)
    text = result.stdout.str()
    assert "processes: rank 1 of 2 raised AssertionError: assert [1, 1] == [0, 1]" in text
    assert "E       assert [1, 1] == [0, 1]" not in text  # nothing of pytest's own frames
    assert re.search(r'File ".*test_suite\.py", line 10, in test_fails\n +assert values == \[0, 1\]', text)
    assert "processes: the process raised AssertionError: assert 1 == 2" in text
    assert "processes: rank 1 of 2 called skip and the others did not" in text
    assert "SKIPPED [1] test_suite.py:16: no such card" in text
    assert "testkit/processes" not in text, "frames of ours say nothing"
    summary = [line for line in text.splitlines() if line.startswith("FAILED test_suite.py::test_fails ")]
    assert "processes: rank 1 of 2 raised" in summary[0]


SETTINGS = """
import time
import pytest

@pytest.mark.ranks(2, ladder=(1, 1, 1))
def test_hangs(rank):
    if rank == 1:
        time.sleep(60)
"""


def test_the_time_limit_comes_from_the_option_the_ini_key_or_the_marker(run: Run, pytester: pytest.Pytester) -> None:
    limit = "rank 1 of 2 did not finish in {} s"
    assert limit.format("0.5") in run(SETTINGS, "--ranks-timeout=0.5").stdout.str()
    pytester.makeini("[pytest]\nranks_timeout = 0.6")
    assert limit.format("0.6") in run(SETTINGS).stdout.str()
    marked = SETTINGS.replace("ladder=", "timeout=0.7, ladder=")
    assert limit.format("0.7") in run(marked, "--ranks-timeout=60").stdout.str()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--ranks-timeout=soon", "processes: timeout is 'soon' (from --ranks-timeout)"),
        ("--ranks-timeout=-1", "processes: timeout is '-1' (from --ranks-timeout)"),
        ("--ranks-start=fork", "processes: 'fork' is not known (from --ranks-start)"),
        ("--ranks-leaks=no", "processes: 'no' is not known (from --ranks-leaks)"),
        ("ranks_preload=a b", "processes: 'a b' is no name of a module (from ini ranks_preload)"),
    ],
)
def test_a_bad_setting_is_a_usage_error(run: Run, word: str, message: str) -> None:
    result = run("def test(): pass", *([word] if word.startswith("--") else ["-o", word]))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message.replace('[', '[[]')}", "next: *"])


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("ranks", "no world size is given (from marker ranks)"),
        ("ranks(0)", "world_size is 0, not a whole number from 1 up (from marker ranks)"),
        ("ranks(2, 3)", "the world size is given more than once: 2, 3 (from marker ranks)"),
        ("ranks(2, timeout=-1)", "timeout is -1 (from marker ranks)"),
        ("ranks(2, timout=1)", "timout is not known (from marker ranks)"),
        ("ranks(2, start='fork')", "start is 'fork' (from marker ranks)"),
        ("ranks(2, env=3)", "env is 3 (from marker ranks)"),
        ("ranks(2, ladder=5)", "ladder is 5 (from marker ranks)"),
        ("fresh_process(3)", "(3,) was given (from marker fresh_process)"),
        ("fresh_process(start='spawn')", "start is not known (from marker fresh_process)"),
    ],
)
def test_a_bad_marker_is_an_error_of_its_test_alone(run: Run, mark: str, message: str) -> None:
    result = run(f"import pytest\n\n@pytest.mark.{mark}\ndef test_it(): pass\n\ndef test_other(): pass\n")
    result.assert_outcomes(errors=1, passed=1)
    text = result.stdout.str()
    assert f"processes: {message}\n" in text
    assert "next: " in text
    assert "Traceback" not in text
    assert "testkit/processes" not in text


def test_what_cannot_be_a_ranks_test_is_refused(run: Run) -> None:
    suite = """
    import unittest
    import pytest

    @pytest.mark.ranks(2)
    @pytest.mark.fresh_process
    def test_both(): pass

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("rank", [1])
    def test_rank_as_an_axis(rank): pass

    @pytest.mark.ranks(2)
    async def test_async(): pass

    class TestOfUnittest(unittest.TestCase):
        @pytest.mark.ranks(2)
        def test_method(self): pass
    """
    result = run(suite)
    result.assert_outcomes(errors=4)
    text = result.stdout.str()
    assert "processes: the test is marked ranks and fresh_process (markers)" in text
    assert "processes: rank is parametrized, and each rank has its own (from marker ranks)" in text
    assert "processes: marker ranks is on an async function (from marker ranks)" in text
    assert "processes: marker ranks is on a method of a TestCase (from marker ranks)" in text


def test_a_fixture_that_cannot_travel_is_named_before_any_rank_starts(run: Run) -> None:
    suite = """
    import threading
    import pytest

    @pytest.fixture
    def guard():
        return threading.Lock()

    @pytest.mark.ranks(2)
    def test_it(rank, guard): pass
    """
    result = run(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["processes: fixture 'guard', a lock, cannot be sent: TypeError: *"])


def test_a_test_that_another_plugin_runs_here_does_not_pass(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        def pytest_collection_modifyitems(items):
            for item in items:
                item.runtest = lambda: None
        """
    )
    result = run("import pytest\n\n@pytest.mark.ranks(2)\ndef test_it(): assert False\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["processes: test_suite.py::test_it is a ranks test, and something else ran it*"])


LEAVING = """
import subprocess
import sys
import pytest

@pytest.mark.ranks(2)
def test_leaves(rank):
    if rank == 1:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

def test_next():
    pass
"""


def test_what_passing_ranks_left_is_a_warning_a_failure_or_nothing(run: Run) -> None:
    result = run(LEAVING, "-W", "default")
    result.assert_outcomes(passed=2, warnings=1)
    text = "left behind by ranks that passed: process"
    result.stdout.fnmatch_lines([f"*KitWarning: processes: {text} * ended by SIGTERM"])
    result = run(LEAVING, "--ranks-leaks=fail")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["processes: left behind by ranks that passed: process *(--ranks-leaks=fail)"])
    run(LEAVING, "--ranks-leaks=off").assert_outcomes(passed=2)


@pytest.mark.parametrize("mode", ["prepend", "append", "importlib"])
@BOTH
def test_helpers_conftests_and_packages_travel_in_every_import_mode(
    run: Run, pytester: pytest.Pytester, mode: str, start: str
) -> None:
    pytester.makeconftest(
        """
        import pytest

        class Shape:
            def __init__(self, n): self.n = n
            def area(self): return self.n * self.n

        @pytest.fixture
        def shape():
            return Shape(3)
        """
    )
    pytester.makepyfile(helper_module="def double(n): return 2 * n")
    suite = """
    import pytest
    import helper_module
    from helper_module import double

    def local(n):
        return double(n) + helper_module.double(1)

    @pytest.mark.ranks(2)
    def test_it(rank, shape):
        assert local(rank) == 2 * rank + 2
        assert shape.area() == 9
    """
    pytester.makeini("[pytest]\npythonpath = .")
    words = ("--import-mode", mode, f"--ranks-start={start}")
    run(suite, *words).assert_outcomes(passed=1)


HANGING = """
import os
import time
from pathlib import Path
import pytest

@pytest.mark.ranks(2)
def test_hangs(rank):
    Path(__file__).with_name(f"pid-{rank}").write_text(str(os.getpid()))
    time.sleep(60)
"""


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_ranks_end_when_pytest_timeout_ends_the_test(run: Run, pytester: pytest.Pytester, method: str) -> None:
    pytest.importorskip("pytest_timeout", reason="pytest-timeout is not installed")
    result = run(HANGING, "--timeout=3", f"--timeout-method={method}", plugins=("pytest_timeout",))
    assert result.ret != 0
    pids = [int(file.read_text()) for file in pytester.path.glob("pid-*")]
    assert len(pids) == 2
    _wait_until_gone(pids)


def _wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        assert time.monotonic() < deadline, "ranks outlive pytest"
        time.sleep(0.02)


def test_an_attempt_of_a_rerun_plugin_is_named(run: Run) -> None:
    suite = "import pytest\n\n@pytest.mark.ranks(2)\ndef test_fails(rank):\n    assert rank == 0\n"
    result = run(suite, "--reruns=1", plugins=("pytest_rerunfailures",))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["processes: rank 1 of 2 raised AssertionError: assert 1 == 0 (attempt 2)"])


def test_coverage_of_a_body_is_saved_although_the_rank_is_killed_later(run: Run, pytester: pytest.Pytester) -> None:
    pytest.importorskip("coverage", reason="coverage is not installed")
    pytester.makefile(".ini", coverage=f"[run]\nparallel = true\ndata_file = {pytester.path / 'measured'}\n")
    suite = """
    import threading
    import time
    import coverage
    import pytest

    @pytest.mark.ranks(2, ladder=(0.2, 0.2, 1), env={"COVERAGE_PROCESS_START": "coverage.ini"})
    def test_it(rank):
        coverage.process_startup()
        threading.Thread(target=time.sleep, args=(60,)).start()
    """
    run(suite, "--ranks-leaks=off").assert_outcomes(passed=1)
    assert len(list(pytester.path.glob("measured*"))) == 2


def test_a_breakpoint_without_a_terminal_fails_instead_of_hanging(run: Run) -> None:
    result = run("import pytest\n\n@pytest.mark.ranks(2)\ndef test_it(rank):\n    breakpoint()\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*breakpoint() in a rank needs a terminal, and this run has none*"])


DEBUGGED = """
import pytest

@pytest.mark.ranks(2, timeout=1.0)
def test_it(rank, channel):
    if rank == 1:
        breakpoint()
        channel.put("on we go")
    else:
        assert channel.get() == "on we go"
"""


@pytest.mark.parametrize("start", ["spawn", "preload"])
def test_a_breakpoint_opens_pdb_on_the_terminal_with_the_time_limit_off(pytester: pytest.Pytester, start: str) -> None:
    pytester.makepyfile(test_suite=DEBUGGED)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest", "-p", "testkit.processes.plugin", "-q", f"--ranks-start={start}"]
    # setsid -c: the terminal is the controlling one of the run, as it is for a person
    with subprocess.Popen(["setsid", "-c", *command], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        try:
            assert "(rank 1) " in _read_until(ours, "(rank 1) ")
            assert "x" not in _read_until(ours, "x", 1.5)  # the limit is over, and nothing is written
            os.write(ours, b"p rank\nc\n")
            assert "1 passed" in _read_until(ours, "1 passed")
        finally:
            process.kill()
            os.close(theirs)
            os.close(ours)


def _read_until(terminal: int, word: str, seconds: float = 60.0) -> str:
    text, deadline = "", time.monotonic() + seconds
    while word not in text and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            text += os.read(terminal, 4096).decode()
    return text


@BOTH
def test_filters_skips_and_module_level_objects_are_as_in_a_plain_test(run: Run, start: str) -> None:
    suite = """
    import functools
    import threading
    import warnings
    import pytest

    GUARD = threading.Lock()  # cannot be sent, so the rank imports this module

    @functools.lru_cache
    def cached(n):
        return n + 1

    def double(n):
        return 2 * n

    @pytest.mark.ranks(2)
    def test_cached(rank):
        assert cached(rank) == rank + 1

    @pytest.mark.ranks(2)
    def test_a_lock_of_the_module(rank):
        with GUARD:
            assert double(rank) == 2 * rank

    @pytest.mark.filterwarnings("error")
    @pytest.mark.ranks(1)
    def test_a_warning_is_an_error():
        with pytest.raises(DeprecationWarning, match="old"):
            warnings.warn("old", DeprecationWarning)

    @pytest.mark.skip(reason="planted")
    @pytest.mark.ranks("no number")
    def test_skipped(): pass

    @pytest.fixture
    def channel(): return 3

    @pytest.mark.ranks(2)
    def test_own_channel(channel): pass
    """
    result = run(suite, f"--ranks-start={start}", "-W", "default")
    result.assert_outcomes(passed=3, skipped=1, errors=1)
    assert "processes: channel is a fixture of this suite, and each rank has its own" in result.stdout.str()


@BOTH
def test_packages_with_relative_imports_work_in_every_import_mode(
    run: Run, pytester: pytest.Pytester, start: str
) -> None:
    package = pytester.mkpydir("pk")
    (package / "helper.py").write_text("def double(n): return 2 * n\n")
    sub = package / "sub"
    sub.mkdir()
    (sub / "__init__.py").touch()
    (sub / "test_relative.py").write_text(
        "import pytest\nfrom ..helper import double\n\n"
        "@pytest.mark.ranks(2)\ndef test_it(rank): assert double(rank) == 2 * rank\n"
    )
    for mode in ("prepend", "append", "importlib"):
        result = run("", f"--import-mode={mode}", f"--ranks-start={start}", "pk")
        result.assert_outcomes(passed=1)
