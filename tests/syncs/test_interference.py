"""Whatever else a suite does with warnings, a wait in a region is heard, and nothing but a wait in a region is."""

from __future__ import annotations

import pytest

# Stands in for a device operation that reports a wait as torch does, by a plain warning.
FAKE = """
import warnings

TEXT = "called a synchronizing CUDA operation (Triggered internally at somewhere.)"

def item(x):
    warnings.warn(TEXT, UserWarning, stacklevel=2)
    return x
"""

ROWS = """
import threading, warnings
import pytest
from fake_sync import item
from testkit.syncs import allow, forbid

def test_row_plain():
    with forbid():
        item(3)

def test_row_ignored_inside():
    with forbid(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        item(3)

def test_row_recorded_inside():
    with forbid(), warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        item(3)

def test_row_pytest_warns():
    with forbid(), pytest.warns(UserWarning, match="of the test"):
        warnings.warn("of the test", UserWarning)
        item(3)

def test_row_recwarn(recwarn):
    with forbid():
        item(3)

@pytest.mark.filterwarnings("ignore::UserWarning")
def test_row_ignoring_mark():
    with forbid():
        item(3)

@pytest.mark.filterwarnings("error")
def test_row_error_mark():
    with forbid():
        item(3)

def test_row_filters_reset_inside():
    with forbid():
        warnings.resetwarnings()
        warnings.filterwarnings("ignore", message=".*synchronizing.*")
        item(3)

def test_row_hook_replaced_inside(monkeypatch):
    with forbid():
        monkeypatch.setattr(warnings, "showwarning", lambda *a, **k: None)
        monkeypatch.setattr(warnings, "_showwarnmsg", lambda *a, **k: None)
        item(3)

def test_row_thread_leaves_older_catch_warnings():
    entered, armed = threading.Event(), threading.Event()

    def worker():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            entered.set()
            armed.wait(30)

    thread = threading.Thread(target=worker)
    thread.start()
    assert entered.wait(30)
    with forbid():
        armed.set()
        thread.join(30)
        item(3)

def line():
    item(3)

def test_row_allowed_first():
    with warnings.catch_warnings(), forbid():
        warnings.simplefilter("default")
        with allow("first"):
            line()
        line()

def test_row_region_inside_catch_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with forbid():
            with forbid("warn"):
                pass
            item(3)
"""
ROWS_COUNT = ROWS.count("def test_row_")

QUIET = """
import threading, warnings
import pytest
from fake_sync import item
from testkit.syncs import allow, forbid

@pytest.mark.filterwarnings("error")
def test_allowed():
    with forbid(), allow("on purpose"):
        item(3)

@pytest.mark.filterwarnings("error")
def test_worker_waits_on_purpose():
    answers = []

    def worker():
        answers.append(item(3))

    with forbid():
        thread = threading.Thread(target=worker)
        thread.start()
        thread.join(30)
    assert answers == [3]

def test_no_wait():
    with forbid():
        pass
"""

CONFIGURATIONS = [
    pytest.param((), id="plain"),
    pytest.param(("-W", "error"), id="-W error"),
    pytest.param(("-p", "no:warnings"), id="no:warnings"),
]
with_and_without_xdist = pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1")], ids=["", "xdist"])


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(fake_sync=FAKE)
    return pytester


def test_there_are_twelve_rows() -> None:
    assert ROWS_COUNT == 12


@with_and_without_xdist
@pytest.mark.parametrize("options", CONFIGURATIONS)
def test_each_row_is_heard_and_quiet_ones_are_not(
    suite: pytest.Pytester, options: tuple[str, ...], workers: tuple[str, ...]
) -> None:
    suite.makepyfile(test_rows=ROWS, test_quiet=QUIET)
    result = suite.runpytest_subprocess("-q", "-rA", *options, *workers)
    result.assert_outcomes(failed=ROWS_COUNT, passed=3)
    heard = [line for line in result.outlines if line.startswith("E ") and "HostWaits: syncs: the host waits" in line]
    assert len(heard) == ROWS_COUNT, result.stdout.str()


def test_a_naive_hook_is_lost_where_a_region_around_the_test_is_not(suite: pytest.Pytester) -> None:
    """O11: a plain wait, one under an "ignore" inside, one under an ignoring mark, and none."""
    suite.makeconftest(
        """
        import pytest
        from testkit.syncs import forbid

        @pytest.fixture(autouse=True)
        def no_wait():
            with forbid():
                yield
        """
    )
    suite.makepyfile(
        test_sync="""
        import warnings
        import pytest
        from fake_sync import item

        def test_plain_sync_must_fail():
            item(3)

        def test_sync_inside_catch_warnings_must_fail():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                item(3)

        @pytest.mark.filterwarnings("ignore::UserWarning")
        def test_sync_under_ignore_filter_must_fail():
            item(3)

        def test_no_sync_must_pass():
            assert 3
        """
    )
    result = suite.runpytest_subprocess("-q", "-rA")
    result.assert_outcomes(failed=3, passed=1)
    result.stdout.fnmatch_lines(["PASSED *test_no_sync_must_pass*"])
    # The line of the test itself is shown, none of ours.
    result.stdout.fnmatch_lines([">*item(3)"])
    result.stdout.no_fnmatch_line("*_region.py*")


OTHERS = """
import warnings
import pytest
from contextlib import nullcontext

def forbidding():
    {make}

def other(text):
    warnings.warn(text, UserWarning, stacklevel=2)

def test_others():
    for _ in range(3):
        with forbidding():
            other("from one line")
    for _ in range(2):
        other("outside")
    with forbidding():
        warnings.warn("deprecated", DeprecationWarning)
        warnings.warn("again", UserWarning)
    warnings.warn("after", RuntimeWarning)
"""


def test_other_warnings_reach_the_summary_unchanged(suite: pytest.Pytester) -> None:
    def summary(make: str) -> list[str]:
        suite.makepyfile(test_others=OTHERS.format(make=make))
        lines = suite.runpytest_subprocess("-q").outlines
        return lines[lines.index(next(line for line in lines if "warnings summary" in line)) : -1]

    without = summary("return nullcontext(                            )")
    within = summary("from testkit.syncs import forbid; return forbid()")
    assert without == within
    assert sum("Warning:" in line for line in within) == 5


@with_and_without_xdist
def test_waits_that_only_warn_are_counted_once_each_in_the_summary(
    suite: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    suite.makepyfile(
        """
        from fake_sync import item
        from testkit.syncs import forbid

        def test_warned():
            with forbid("warn"):
                for _ in range(3):
                    item(3)
        """
    )
    result = suite.runpytest_subprocess("-q", *workers)
    result.assert_outcomes(passed=1, warnings=3)
    result.stdout.fnmatch_lines(["*KitWarning: syncs: the host waits for the device*"])
    assert "UserWarning: called a synchronizing" not in result.stdout.str()


def test_the_worker_of_o12_is_left_alone_and_main_is_heard() -> None:
    """O12: (a) to (d) in one process, without pytest's help."""
    import subprocess
    import sys

    script = FAKE + (
        """
import threading
from concurrent.futures import ThreadPoolExecutor
from testkit.errors import SyncsError
from testkit.syncs import allow, forbid

def main_is_heard(meanwhile):
    try:
        with forbid():
            meanwhile()
            item(3)
    except SyncsError:
        return True
    return False

def beside(body):
    thread = threading.Thread(target=body)
    thread.start()
    thread.join(30)

with forbid():
    worker = []
    beside(lambda: worker.append(item(3)))
    print("a", worker == [3])
def allowing():
    with allow("mine"):
        worker.append(item(4))
print("b", main_is_heard(lambda: beside(allowing)), worker[-1] == 4)
entered, armed = threading.Event(), threading.Event()
def older():
    with warnings.catch_warnings():
        entered.set()
        armed.wait(30)
thread = threading.Thread(target=older)
thread.start()
entered.wait(30)
print("c", main_is_heard(lambda: (armed.set(), thread.join(30))))
with forbid(), ThreadPoolExecutor(1) as pool:
    print("d", pool.submit(item, 3).result(30) == 3)
"""
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split("\n")[:-1] == ["a True", "b True True", "c True", "d True"], done.stderr
