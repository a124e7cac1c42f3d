"""A suite's own clean-up, put off without an edit: fixtures and callables of a conftest, refusals, clean starts."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testkit.cleanup import _asked, _steps, _wrap
from testkit.errors import CleanupError

Run = Callable[..., pytest.RunResult]

XDIST = ("testkit.cleanup.plugin", "xdist.plugin")
RERUNS = ("testkit.cleanup.plugin", "pytest_rerunfailures")

# Each process writes what happens into its own lines of one file.
TRACE = """
import os
from pathlib import Path

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")


def trace(line):
    with Path(__file__).with_name("trace.txt").open("a") as file:
        file.write(f"{WORKER} {line}\\n")
"""

# What vLLM's conftest does, in miniature (shape as of vLLM 0.33.0, tests/conftest.py): a decision fixture that looks
# at the marker, and an autouse fixture that cleans up after the test if the decision says so.
CONFTEST = """
import pytest
from trace_file import trace


def cleanup_dist_env_and_memory(shutdown_ray=False):
    trace(f"clean-up{' and ray' if shutdown_ray else ''}")


@pytest.fixture()
def should_do_global_cleanup_after_test(request) -> bool:
    return request.node.get_closest_marker("skip_global_cleanup") is None


@pytest.fixture(autouse=True)
def cleanup_fixture(should_do_global_cleanup_after_test):
    yield
    if should_do_global_cleanup_after_test:
        cleanup_dist_env_and_memory()


@pytest.fixture
def dist_init():
    yield
    cleanup_dist_env_and_memory()


@pytest.fixture(autouse=True)
def default_device():
    trace("device set")
    yield
    trace("device reset")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid):
    trace(nodeid.rpartition("::")[2])
"""

DIST_INIT = """
def dist_init():
    yield
    cleanup_dist_env_and_memory()
"""
FIXTURE = "cleanup_wrap = cleanup_fixture"
CALLABLE = "cleanup_wrap = cleanup_dist_env_and_memory"
BOTH = pytest.mark.parametrize("wrap", [FIXTURE, CALLABLE], ids=["fixture", "callable"])

THREE = "def test_1(): pass\ndef test_2(): pass\ndef test_3(): pass\n"
MARK = "import pytest\npytestmark = pytest.mark.skip_global_cleanup\n"
DECIDES_NO = """
import pytest

@pytest.fixture
def should_do_global_cleanup_after_test():
    return False

"""


class Suite:
    """A suite with the conftest above, and what its last run wrote: test names and clean-ups, in order."""

    def __init__(self, pytester: pytest.Pytester, run: Run) -> None:
        self.pytester = pytester
        self._run = run
        pytester.makepyfile(trace_file=TRACE)
        self.conftest(CONFTEST)

    def conftest(self, source: str) -> None:
        self.pytester.makeconftest(source)

    def run(self, *lines: str, args: tuple[str, ...] = (), **more: Any) -> pytest.RunResult:
        self.pytester.makeini("\n".join(["[pytest]", "pythonpath = .", *lines]))
        self.path.unlink(missing_ok=True)
        return self._run(*args, **more)

    @property
    def path(self) -> Path:
        return self.pytester.path / "trace.txt"

    def lines(self, *, device: bool = False) -> list[str]:
        lines = [line.partition(" ")[2] for line in self.path.read_text().splitlines()]
        return [line for line in lines if device or not line.startswith("device")]

    def cleanups(self) -> int:
        return sum("clean-up" in line for line in self.lines())


@pytest.fixture
def suite(pytester: pytest.Pytester, run: Run) -> Suite:
    return Suite(pytester, run)


# The conftest of vLLM


def test_as_it_is_the_suite_cleans_up_after_every_test(suite: Suite) -> None:
    suite.pytester.makepyfile(test_a=THREE, test_b=THREE)
    suite.run().assert_outcomes(passed=6)
    assert suite.cleanups() == 6


@BOTH
def test_the_clean_up_of_a_suite_runs_once_when_a_module_ends(suite: Suite, wrap: str) -> None:
    suite.pytester.makepyfile(test_a=THREE, test_b=THREE)
    result = suite.run(wrap)
    result.assert_outcomes(passed=6)
    module = ["test_1", "test_2", "test_3", "clean-up"]
    assert suite.lines() == module * 2
    name = wrap.partition(" = ")[2]
    result.stdout.fnmatch_lines([f"cleanup: 2 clean-ups (module) in * s: {name} * s"])


@BOTH
def test_other_fixtures_still_restore_their_state_after_each_test(suite: Suite, wrap: str) -> None:
    suite.pytester.makepyfile(test_a="def test_1(): pass\ndef test_2(): pass")
    suite.run(wrap).assert_outcomes(passed=2)
    one = ["device set", "device reset"]
    assert suite.lines(device=True) == ["test_1", *one, "test_2", *one, "clean-up"]


@BOTH
@pytest.mark.parametrize("source", [MARK, DECIDES_NO], ids=["marker", "decision"])
def test_a_module_that_wants_no_clean_up_gets_none(suite: Suite, wrap: str, source: str) -> None:
    suite.pytester.makepyfile(test_a=source + THREE, test_b=THREE)
    suite.run(wrap, "addopts = --strict-markers").assert_outcomes(passed=6)
    assert suite.lines() == ["test_1", "test_2", "test_3"] * 2 + ["clean-up"]


@BOTH
def test_one_test_that_wants_it_is_enough_whatever_comes_after(suite: Suite, wrap: str) -> None:
    suite.pytester.makepyfile(
        test_a="import pytest\nskip = pytest.mark.skip_global_cleanup\n"
        "@skip\ndef test_1(): pass\ndef test_2(): pass\n@skip\ndef test_3(): pass"
    )
    suite.run(wrap).assert_outcomes(passed=3)
    assert suite.lines() == ["test_1", "test_2", "test_3", "clean-up"]


@BOTH
def test_failing_tests_are_cleaned_after_too(suite: Suite, wrap: str) -> None:
    suite.pytester.makepyfile(
        test_a="import pytest\n@pytest.fixture\ndef bad(): assert 0\n@pytest.fixture\ndef late(): yield; assert 0\n"
        "def test_1(): assert 0\ndef test_2(bad): pass\ndef test_3(late): pass"
    )
    suite.run(wrap).assert_outcomes(passed=1, failed=1, errors=2)
    assert suite.lines() == ["test_1", "test_2", "test_3", "clean-up"]


@BOTH
def test_classes_of_both_kinds_are_cleaned_after_once(suite: Suite, wrap: str) -> None:
    suite.pytester.makepyfile(
        test_a="""
        import unittest

        class TestPlain:
            def test_1(self): pass
            def test_2(self): pass

        class TestCase(unittest.TestCase):
            def test_3(self): pass
            def test_4(self): self.fail("planted")
        """
    )
    suite.run(wrap).assert_outcomes(passed=3, failed=1)
    assert suite.lines() == ["test_1", "test_2", "test_3", "test_4", "clean-up"]


@BOTH
@pytest.mark.parametrize("args", [("-x",), ("--maxfail=1",)], ids=" ".join)
def test_a_run_that_is_cut_short_is_cleaned_after(suite: Suite, wrap: str, args: tuple[str, ...]) -> None:
    suite.pytester.makepyfile(test_a="def test_1(): pass\ndef test_2(): assert 0\ndef test_3(): pass")
    suite.run(wrap, args=args).assert_outcomes(passed=1, failed=1)
    assert suite.lines() == ["test_1", "test_2", "clean-up"]


@pytest.mark.parametrize("kind", ["fixture", "callable"])
def test_what_ends_with_the_session_of_a_run_cut_short_is_not_lost(suite: Suite, kind: str) -> None:
    suite.conftest(
        """
        import pytest
        from trace_file import trace

        def clean():
            trace("clean-up")

        @pytest.fixture(scope="session", autouse=True)
        def outer():
            yield
            clean()

        @pytest.fixture(scope="session", autouse=True)
        def inner(outer):
            yield
            trace("engine stopped")

        @pytest.fixture(scope="session", autouse=True)
        def first():
            yield
            trace("last tear-down")
        """
    )
    suite.pytester.makepyfile(test_a="def test_1(): assert 0", test_b="def test_2(): pass")
    suite.run(f"cleanup_wrap = {'outer' if kind == 'fixture' else 'clean'}", args=("-x",)).assert_outcomes(failed=1)
    assert sorted(suite.lines()[:2]) == ["engine stopped", "last tear-down"]
    assert suite.lines()[2:] == ["clean-up"]


@BOTH
def test_ctrl_c_in_a_test_is_cleaned_after(suite: Suite, wrap: str) -> None:
    suite.pytester.makepyfile(test_a="def test_1(): pass\ndef test_2(): raise KeyboardInterrupt")
    assert suite.run(wrap).ret == pytest.ExitCode.INTERRUPTED
    assert suite.lines() == ["test_1", "test_2", "clean-up"]


@BOTH
def test_tests_that_are_run_again_are_cleaned_after_once(suite: Suite, wrap: str) -> None:
    suite.pytester.makepyfile(test_a="def test_1(): pass\ndef test_2(): assert 0")
    suite.run(wrap, args=("--reruns=2",), plugins=RERUNS).assert_outcomes(passed=1, failed=1)
    assert suite.cleanups() == 1


@BOTH
def test_each_worker_puts_off_its_own(suite: Suite, wrap: str) -> None:
    suite.pytester.makepyfile(test_a=THREE, test_b=THREE, test_c=THREE)
    result = suite.run(wrap, args=("-n2", "--dist=loadfile"), plugins=XDIST)
    result.assert_outcomes(passed=9)
    assert suite.cleanups() == 3
    assert "main clean-up" not in suite.path.read_text()
    result.stdout.fnmatch_lines(["cleanup: 3 clean-ups (module) in *"])


@BOTH
def test_a_test_that_skips_before_its_body_owes_no_clean_up(suite: Suite, wrap: str) -> None:
    suite.pytester.makepyfile(
        test_a="import pytest\n@pytest.mark.skip\ndef test_1(): pass\n",
        test_b="import pytest\n@pytest.fixture\ndef absent(cleanup_fixture): pytest.skip('planted')\n"
        "def test_1(absent): pass\n",
    )
    result = suite.run(wrap)
    result.assert_outcomes(skipped=2)
    assert suite.cleanups() == 0
    result.stdout.fnmatch_lines(["cleanup: no clean-up (module), since no test ran"])


@pytest.mark.parametrize("kind", ["fixture", "callable"])
@pytest.mark.parametrize("scope", ["module", "package", "session"])
def test_what_a_skipped_test_ends_is_cleaned_after_if_tests_ran_before_it(suite: Suite, scope: str, kind: str) -> None:
    suite.conftest(
        f"""
        import pytest
        from trace_file import trace

        def clean():
            trace("clean-up")

        @pytest.fixture(scope="{scope}", autouse=True)
        def outer():
            yield
            clean()

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logstart(nodeid):
            trace(nodeid.rpartition("::")[2])
        """
    )
    skipped = "import pytest\n@pytest.mark.skip\ndef test_{}(): pass\n"
    suite.pytester.makepyfile(test_a="def test_1(): pass\n" + skipped.format(2), test_b=skipped.format(3))
    wrap = f"cleanup_wrap = {'outer' if kind == 'fixture' else 'clean'}"
    result = suite.run(wrap, "cleanup_scope = function")
    result.assert_outcomes(passed=1, skipped=2)
    order = (
        ["test_1", "test_2", "clean-up", "test_3"] if scope == "module" else ["test_1", "test_2", "test_3", "clean-up"]
    )
    late = sorted(order, key="clean-up".__eq__)  # a call is made when the run ends, at the latest
    assert suite.lines() in ([order] if kind == "fixture" else [order, late])
    result.stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in * s: *"])


@pytest.mark.parametrize(("scope", "number"), [("function", 6), ("module", 2), ("session", 1)])
@BOTH
def test_the_scope_decides_for_how_long_it_is_put_off(suite: Suite, wrap: str, scope: str, number: int) -> None:
    suite.pytester.makepyfile(test_a=THREE, test_b=THREE)
    suite.run(wrap, f"cleanup_scope = {scope}").assert_outcomes(passed=6)
    assert suite.cleanups() == number


def test_steps_follow_what_was_put_off(suite: Suite) -> None:
    suite.pytester.makepyfile(steps="from trace_file import trace\ndef last(): trace('step')", test_a=THREE)
    result = suite.run(FIXTURE, "cleanup_steps = steps:last")
    assert suite.lines()[-2:] == ["clean-up", "step"]
    result.stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in * s: cleanup_fixture * s, steps:last * s"])


def test_nothing_of_the_tests_is_alive_when_it_runs(pytester: pytest.Pytester, run: Run, witness: None) -> None:
    with (pytester.path / "conftest.py").open("a") as file:
        file.write(
            "\n\n@pytest.fixture(autouse=True)\ndef cleanup_fixture(request):\n    yield\n"
            "    import gc\n    gc.collect()\n    witness.look()\n"
        )
    pytester.makeini("[pytest]\npythonpath = .\ncleanup_wrap = cleanup_fixture")
    pytester.makepyfile(
        test_a="""
        from witness import build

        class TestIt:
            def test_1(self, engine):
                self.own = build()

        def test_2(engine):
            mine = build()
            assert 0
        """,
        test_b="def test_next_module(): pass",
    )
    run("-p", "no:warnings").stdout.fnmatch_lines(["clean-up: 3 built, 0 alive", "next set-up: 3 built, 0 alive"])


# Which fixture


@pytest.mark.parametrize("scope", ["class", "module", "package", "session"])
def test_a_fixture_of_any_scope_is_put_off_until_the_module_ended(suite: Suite, scope: str) -> None:
    suite.conftest(
        f"""
        import pytest
        from trace_file import trace

        @pytest.fixture(scope="{scope}", autouse=True)
        def cleanup_fixture():
            yield
            trace("clean-up")

        @pytest.fixture(scope="module", autouse=True)
        def engine(cleanup_fixture):
            yield
            trace("engine stopped")
        """
        if scope not in ("class",)
        else """
        import pytest
        from trace_file import trace

        @pytest.fixture(scope="module", autouse=True)
        def engine():
            yield
            trace("engine stopped")

        @pytest.fixture(scope="class", autouse=True)
        def cleanup_fixture():
            yield
            trace("clean-up")
        """
    )
    suite.pytester.makepyfile(
        test_a="class TestOne:\n def test_1(self): pass\nclass TestTwo:\n def test_2(self): pass", test_b=THREE
    )
    suite.run(FIXTURE).assert_outcomes(passed=5)
    once = ["engine stopped", "clean-up"]
    both = scope in ("class", "module")
    assert suite.lines() == (once * 2 if both else [*once[:1], *once])


def test_a_fixture_of_a_package_is_put_off_there_alone(suite: Suite) -> None:
    package = suite.pytester.mkpydir("kernels")
    (package / "conftest.py").write_text(CONFTEST)
    suite.conftest("")
    for name in ("test_a.py", "test_b.py"):
        (package / name).write_text(THREE)
    suite.pytester.makepyfile(test_c=THREE)
    suite.run(FIXTURE).assert_outcomes(passed=9)
    assert suite.cleanups() == 2


@pytest.mark.parametrize(("module", "number"), [("kernels.conftest:", 4), ("conftest:", 2), ("", 2)])
def test_a_module_before_the_name_says_which_one(suite: Suite, module: str, number: int) -> None:
    package = suite.pytester.mkpydir("kernels")
    (package / "conftest.py").write_text(CONFTEST)
    (package / "test_a.py").write_text(THREE)
    suite.pytester.makepyfile(test_c=THREE)
    suite.run(f"cleanup_wrap = {module}cleanup_fixture").assert_outcomes(passed=6)
    assert suite.cleanups() == number


def test_a_fixture_that_replaces_another_and_asks_for_it_is_put_off_with_it(suite: Suite) -> None:
    suite.pytester.makepyfile(
        test_a="""
        import pytest
        from trace_file import trace

        @pytest.fixture(autouse=True)
        def cleanup_fixture(cleanup_fixture):
            yield
            trace("its own clean-up")

        def test_1(): pass
        def test_2(): pass
        """,
        test_b="import pytest\n@pytest.fixture(autouse=True)\ndef cleanup_fixture(): pass\ndef test_3(): pass",
    )
    suite.run(FIXTURE).assert_outcomes(passed=3)
    assert suite.lines() == ["test_1", "test_2", "its own clean-up", "clean-up", "test_3"]


def test_a_fixture_that_is_a_method_is_put_off(suite: Suite) -> None:
    suite.conftest("")
    suite.pytester.makepyfile(
        """
        import pytest
        from trace_file import trace

        class TestIt:
            @pytest.fixture(autouse=True)
            def cleanup_fixture(self):
                yield
                trace(\'\'\'clean-up
            \'\'\'.strip())

            def test_1(self): trace("1")
            def test_2(self): trace("2")
        """
    )
    suite.run(FIXTURE).assert_outcomes(passed=2)
    assert suite.lines() == ["1", "2", "clean-up"]


# Which callable


def test_a_call_that_is_no_tear_down_is_made_at_once(suite: Suite) -> None:
    hook = "\n\ndef pytest_runtest_setup(item):\n    cleanup_dist_env_and_memory()\n"
    suite.conftest(CONFTEST.partition("@pytest.fixture()")[0] + hook)
    suite.pytester.makepyfile(THREE)
    suite.run(CALLABLE).assert_outcomes(passed=3)
    assert suite.cleanups() == 3


def test_each_kind_of_call_is_made_once(suite: Suite) -> None:
    source = CONFTEST.replace("    if should_do_global_cleanup_after_test:\n    ", "").replace(
        "memory()", "memory(shutdown_ray=not should_do_global_cleanup_after_test)"
    )
    suite.conftest(source)
    suite.pytester.makepyfile("import pytest\n@pytest.mark.skip_global_cleanup\ndef test_0(): pass\n" + THREE)
    suite.run(CALLABLE).assert_outcomes(passed=4)
    assert suite.lines()[-2:] == ["clean-up and ray", "clean-up"]


def test_the_conftest_has_its_function_again_after_the_run(suite: Suite) -> None:
    suite.conftest(
        CONFTEST + "\n\nmine = cleanup_dist_env_and_memory\n\n\ndef pytest_unconfigure():\n"
        "    import atexit\n    atexit.register(lambda: trace(cleanup_dist_env_and_memory is mine))\n"
    )
    suite.pytester.makepyfile("def test_1():\n    import conftest\n    assert conftest.mine.__name__\n")
    suite.run(CALLABLE).assert_outcomes(passed=1)
    assert suite.lines()[-1] == "True"


# Failures


@BOTH
def test_a_clean_up_that_fails_is_an_error_of_the_last_test(suite: Suite, wrap: str) -> None:
    suite.conftest(CONFTEST.replace('trace(f"clean-up', 'raise RuntimeError(f"planted'))
    suite.pytester.makepyfile(test_a=THREE, test_b="def test_4(): pass")
    result = suite.run(wrap)
    result.assert_outcomes(passed=4, errors=2)
    name = wrap.partition(" = ")[2]
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_3*",
            f"cleanup: step {name} raised RuntimeError: planted (from ini cleanup_wrap)",
            "  1 of 1 steps failed after test_a.py::test_3",
            "next: repair the step, or take it out of cleanup_wrap",
        ]
    )


def test_a_fixture_that_yields_twice_is_an_error(suite: Suite) -> None:
    suite.conftest(CONFTEST.replace("    if should", "    yield\n    if should"))
    suite.pytester.makepyfile(THREE)
    result = suite.run(FIXTURE)
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["cleanup: step cleanup_fixture raised *: cleanup_fixture yields more than once *"])


@BOTH
def test_a_worker_that_crashes_in_the_clean_up_is_named(suite: Suite, wrap: str) -> None:
    suite.conftest(CONFTEST.replace("    trace(f", "    import os; os._exit(3)\n    trace(f"))
    suite.pytester.makepyfile(test_a="def test_1(): pass")
    result = suite.run(wrap, args=("-n1",), plugins=XDIST)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["cleanup: figures of gw0 are missing (not finished)"])


# Refusals

GONE = "which is gone by then (from ini cleanup_wrap)"
FIXTURES = {
    "try": (
        "def cleanup_fixture():\n    try:\n        yield\n    finally:\n        pass",
        "yields inside a try block*",
    ),
    "with": ("def cleanup_fixture():\n    with open(__file__):\n        yield", "yields inside a with block*"),
    "from": ("def cleanup_fixture():\n    yield from [1]", "yields from another generator*"),
    "tmp_path": (
        "def cleanup_fixture(tmp_path):\n    yield",
        f"takes the function-scoped tmp_path (PosixPath), {GONE}",
    ),
    "class": (
        "def cleanup_fixture(own):\n    yield\n@pytest.fixture(scope='class')\ndef own(): return object()",
        f"takes the class-scoped own (object), {GONE}",
    ),
    "session": (
        "def cleanup_fixture(own):\n    yield\n@pytest.fixture(scope='session')\ndef own(): yield object()",
        f"takes the session-scoped own (object), {GONE}",
    ),
}


@pytest.mark.parametrize("what", FIXTURES)
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["", "xdist"])
def test_a_fixture_that_cannot_be_put_off_is_refused(suite: Suite, what: str, workers: tuple[str, ...]) -> None:
    source, problem = FIXTURES[what]
    suite.conftest(f"import pytest\n@pytest.fixture(autouse=True)\n{source}\n")
    suite.pytester.makepyfile("def test_1(): pass\ndef test_2(): pass")
    result = suite.run(FIXTURE, args=workers, plugins=XDIST if workers else XDIST[:1])
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        [f"cleanup: cleanup_fixture {problem}", "next: name the callable that it calls instead of the fixture"]
    )
    assert "During handling" not in result.stdout.str()
    assert "AssertionError" not in result.stdout.str()


@pytest.mark.parametrize(
    "source",
    [
        "def cleanup_fixture(request, pytestconfig):\n    yield\n    assert request.node.name == 'test_1'",
        "def cleanup_fixture(own):\n    yield\n@pytest.fixture(scope='session')\ndef own(): return object()",
        "def cleanup_fixture():\n    try:\n        pass\n    finally:\n        yield_ = 1\n    yield",
        "def cleanup_fixture():\n    def inner():\n        with 1: yield\n    yield",
        "def cleanup_fixture(own):\n    yield\n@pytest.fixture(params=['x'])\ndef own(request): return request.param",
    ],
)
def test_a_fixture_whose_arguments_outlive_the_test_is_not_refused(suite: Suite, source: str) -> None:
    suite.conftest(f"import pytest\n@pytest.fixture(autouse=True)\n{source}\n")
    suite.pytester.makepyfile("def test_1(): pass")
    result = suite.run(FIXTURE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in * s: cleanup_fixture * s"])


@pytest.mark.parametrize(
    ("line", "problem", "fix"),
    [
        (
            "cleanup_wrap = cleanup_fixtur",
            "cleanup_fixtur is no fixture, and no callable of*",
            "*mean cleanup_fixture?",
        ),
        ("cleanup_wrap = other:cleanup_fixture", "other:cleanup_fixture is no fixture*", "*mean cleanup_fixture?"),
        ("cleanup_wrap = zzzz", "zzzz is no fixture*", "name a fixture of the suite"),
        ("cleanup_wrap = should_do_global_cleanup_after_test", "*is a fixture without a yield*", "name the callable*"),
        ("cleanup_wrap = WORKER", "WORKER is no function (*", "name a fixture, or a function*"),
        ("cleanup_wrap = Path", "Path is no function (*", "name a fixture, or a function*"),
        ("cleanup_wrap = _named", "_named is a fixture under another name, so no test calls it (*", "name shown"),
        ("cleanup_wrap = later", "later is a coroutine or generator function*", "name the callable*"),
        (f"{FIXTURE}\ncleanup_before = dist_ini", "dist_ini is no fixture*before)", "did you mean dist_init?"),
    ],
)
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["", "xdist"])
def test_a_name_that_is_nothing_fails_every_test(
    suite: Suite, line: str, problem: str, fix: str, workers: tuple[str, ...]
) -> None:
    suite.conftest(
        CONFTEST + "\nfrom trace_file import Path, WORKER\n\nasync def later(): pass\n"
        "@pytest.fixture(name='shown')\ndef _named(): yield\n"
    )
    suite.pytester.makepyfile("def test_1(dist_init): pass\ndef test_2(): pass")
    result = suite.run(line, args=workers, plugins=XDIST if workers else XDIST[:1])
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines([f"cleanup: {problem}", f"next: {fix}"])


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["", "xdist"])
def test_where_paths_are_given_a_name_may_be_of_another_folder(suite: Suite, workers: tuple[str, ...]) -> None:
    suite.pytester.makepyfile(test_a=THREE)
    args = ("test_a.py", *workers)
    result = suite.run("cleanup_wrap = elsewhere", args=args, plugins=XDIST if workers else XDIST[:1])
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["cleanup: elsewhere is no fixture, and no callable of a conftest of this run (from ini cleanup_wrap)"]
    )


def test_a_name_of_deselected_tests_alone_fails_nothing(suite: Suite) -> None:
    suite.conftest("")
    suite.pytester.makepyfile(
        test_a=THREE,
        test_b="import pytest\n@pytest.fixture(autouse=True)\ndef cleanup_fixture(): yield\n"
        "@pytest.fixture\ndef own(): pass\ndef test_4(own): pass\n",
    )
    suite.run(FIXTURE, "cleanup_before = own", args=("-k", "not test_4")).assert_outcomes(passed=3, deselected=1)


def test_a_file_pattern_that_matches_nothing_is_told_unless_paths_are_given(suite: Suite) -> None:
    suite.pytester.makepyfile(test_a=THREE)
    lines = (FIXTURE, "cleanup_before = test_dist_*.py")
    result = suite.run(*lines)
    result.assert_outcomes(passed=3)
    told = "cleanup: test_dist_*.py matches no file of this run (from ini cleanup_before)"
    assert told in result.outlines
    assert told not in suite.run(*lines, args=("test_a.py",)).outlines


def test_a_call_with_an_object_is_refused(suite: Suite) -> None:
    suite.conftest(CONFTEST.replace("memory()", "memory([1])"))
    suite.pytester.makepyfile("def test_1(): pass")
    result = suite.run(CALLABLE)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*cleanup_dist_env_and_memory is called with list, which may be gone by then*"])


@pytest.mark.parametrize(
    ("line", "problem", "fix"),
    [
        ("cleanup_wrap = a b", "'a b' is no name of a fixture or callable (from ini cleanup_wrap)", "write name or *"),
        ("cleanup_wrap = a:b:c", "'a:b:c' is no name*", "write name or *"),
        ("cleanup_before = x", "nothing says what a clean start is (from ini cleanup_before)", "set cleanup_steps, *"),
    ],
)
def test_a_setting_that_cannot_be_used_stops_the_run(suite: Suite, line: str, problem: str, fix: str) -> None:
    suite.pytester.makepyfile("def test_1(): pass")
    result = suite.run(line)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: cleanup: {problem}", f"next: {fix}"])


# Clean starts


@BOTH
def test_a_test_whose_fixture_needs_a_clean_start_gets_one(suite: Suite, wrap: str) -> None:
    suite.pytester.makepyfile(
        test_a="import pytest\ndef test_1(): pass\n@pytest.mark.skip\ndef test_2(dist_init): pass\n"
        "def test_3(dist_init): pass\ndef test_4(): pass",
        test_b="def test_5(dist_init): pass",
    )
    suite.conftest(
        CONFTEST.replace("def dist_init():\n    yield\n    cleanup_dist_env_and_memory()", "def dist_init(): pass")
    )
    result = suite.run(wrap, "cleanup_before = dist_init")
    result.assert_outcomes(passed=4, skipped=1)
    assert suite.lines() == ["test_1", "test_2", "test_3", "clean-up", "test_4", "clean-up", "test_5", "clean-up"]
    result.stdout.fnmatch_lines(["cleanup: 3 clean-ups (1 entry, 2 module) in *"])


@pytest.mark.parametrize("line", ["test_b.py", "sub/test_?.py", "*test_b*"])
def test_a_file_that_needs_a_clean_start_gets_one_on_entry(suite: Suite, line: str) -> None:
    folder = suite.pytester.mkdir("sub")
    (folder / "test_a.py").write_text(DECIDES_NO + THREE)
    (folder / "test_b.py").write_text("import pytest\n@pytest.mark.skip\ndef test_0(): pass\n" + DECIDES_NO + THREE)
    suite.run(CALLABLE, f"cleanup_before = {line}").assert_outcomes(passed=6, skipped=1)
    three = ["test_1", "test_2", "test_3"]
    assert suite.lines() == [*three, "test_0", "test_1", "clean-up", "test_2", "test_3"]


def test_a_clean_start_of_a_fixture_that_decides_against_it_runs_the_default_steps(suite: Suite) -> None:
    suite.pytester.makepyfile(test_a=DECIDES_NO + THREE, test_b=DECIDES_NO + THREE)
    result = suite.run(FIXTURE, "cleanup_before = test_b.py")
    result.stdout.fnmatch_lines(["cleanup: 3 clean-ups (2 module, 1 entry) in * s: *gc * s, torch * s*"])


def test_a_clean_start_that_fails_is_an_error_of_the_test_it_was_for(suite: Suite) -> None:
    suite.pytester.makepyfile(
        steps="def broken(): raise ValueError('planted')", test_a="def test_1(): pass\ndef test_2(dist_init): pass"
    )
    result = suite.run("cleanup_steps = steps:broken", "cleanup_scope = session", "cleanup_before = dist_init")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_2*",
            "cleanup: step steps:broken raised ValueError: planted (from ini cleanup_steps)",
            "  1 of 1 steps failed before test_a.py::test_2",
        ]
    )


def test_ctrl_c_in_a_clean_start_leaves_it_owed_to_the_end_of_the_run(suite: Suite) -> None:
    suite.pytester.makepyfile(
        steps="from trace_file import trace\nCALLS = []\ndef once():\n    CALLS.append(1)\n    trace('step')\n"
        "    if len(CALLS) == 1: raise KeyboardInterrupt",
        test_a="def test_1(): pass\ndef test_2(dist_init): pass",
    )
    result = suite.run("cleanup_steps = steps:once", "cleanup_scope = module", "cleanup_before = dist_init")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["cleanup: 2 clean-ups (1 entry, 1 module) in *", "*was interrupted in 1 of 2 clean-ups"]
    )


def test_a_fixture_may_add_finalizers_of_its_own(suite: Suite) -> None:
    own = "    from functools import partial\n    request.addfinalizer(partial(trace, (x for x in 'own')))\n    yield"
    suite.conftest(CONFTEST.replace("after_test):\n    yield", f"after_test, request):\n{own}"))
    suite.pytester.makepyfile("def test_1(): pass\ndef test_2(): pass")
    suite.run(FIXTURE).assert_outcomes(passed=2)
    assert [line.partition(" ")[0] for line in suite.lines()] == [
        "test_1",
        "<generator",
        "test_2",
        "<generator",
        "clean-up",
    ]


@pytest.mark.parametrize("args", ["--setup-plan", "--setup-only", "--collect-only"])
def test_where_no_test_runs_by_request_nothing_is_put_off(suite: Suite, args: str) -> None:
    suite.pytester.makepyfile("def test_1(): pass")
    assert suite.run(FIXTURE, args=(args,)).ret == 0


# The core without a runner

TARGET = _wrap.parse("cleanup_fixture", "from ini cleanup_wrap")
CALLS: list[str] = []


def tail(name: str) -> Generator[None, None, None]:
    yield
    CALLS.append(name)


def waiting(name: str) -> Generator[None, None, None]:
    generator = tail(name)
    next(generator)
    return generator


@pytest.mark.parametrize(
    ("held", "resumed"),
    [
        (["a yes", "b yes"], "b"),
        (["a yes", "b no"], "a"),
        (["a no", "b no"], "b"),
        (["a no", "b yes", "c no"], "b"),
        (["a yes", "b yes", "c no", "d no"], "b"),
    ],
)
def test_the_newest_that_is_wanted_is_resumed_and_the_others_are_closed(held: list[str], resumed: str) -> None:
    CALLS.clear()
    wraps = _wrap.Wraps(TARGET)
    generators = []
    for text in held:
        name, wanted = text.split()
        generators.append(waiting(name))
        wraps.hold("fixture", generators[-1], wanted == "yes")
    assert wraps.wanted() == any("yes" in text for text in held)
    assert _steps.problem(_steps.run(wraps.steps())) is None
    assert [resumed] == CALLS
    assert all(generator.gi_frame is None for generator in generators)
    assert wraps.steps() == []


def test_what_nobody_resumes_is_closed_without_its_code() -> None:
    CALLS.clear()
    wraps = _wrap.Wraps(TARGET)
    generator = waiting("a")
    wraps.hold("fixture", generator, True)
    wraps.drop()
    assert (CALLS, generator.gi_frame, wraps.steps()) == ([], None, [])


def test_a_runner_that_ends_fixtures_in_another_way_is_refused() -> None:
    wraps = _wrap.Wraps(TARGET)
    with pytest.raises(CleanupError, match=r"^cleanup: cleanup_fixture is ended by this pytest in a way"):
        wraps.take("fixture", [print, partial(print, 1)], True)


def test_a_fixture_without_source_is_refused() -> None:
    scope: dict[str, Any] = {}
    exec("def cleanup_fixture():\n    yield", scope)
    with pytest.raises(CleanupError, match=r"has no source to read, so what surrounds its yield is unknown"):
        _wrap.check_function(scope["cleanup_fixture"], TARGET)


@pytest.mark.parametrize(
    ("line", "entering", "expected"),
    [
        ("dist_init", False, True),
        ("dist", False, False),
        ("test_moe.py", True, True),
        ("test_moe.py", False, False),
        ("moe.py", True, False),
        ("kernels/*", True, True),
        ("tests/kernels/test_moe.py", True, True),
    ],
)
def test_a_clean_start_is_needed(line: str, entering: bool, expected: bool) -> None:
    class Item:
        nodeid = "tests/kernels/test_moe.py::test_it[1]"
        fixturenames = ("dist_init", "request")

    assert _asked.needs_clean_start(Item(), [line], entering) is expected
