"""The plugin in inner runs that name their plugins: when clean-ups happen and what the run's reader sees."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]

XDIST = ("testkit.cleanup.plugin", "xdist.plugin")

# Steps that leave a trace in a file, so that workers are seen too.
STEPS = """
import os
from pathlib import Path


def trace():
    with Path(__file__).with_name("trace.txt").open("a") as file:
        file.write(os.environ.get("PYTEST_XDIST_WORKER", "main") + "\\n")


def broken():
    raise ValueError("planted")


CALLS = []


def interrupted(times):
    CALLS.append(1)
    trace()
    if len(CALLS) <= times:
        raise KeyboardInterrupt


def interrupted_once():
    interrupted(1)


def interrupted_twice():
    interrupted(2)


NUMBER = 3
"""

SUITE = """
import pytest

def test_passes():
    pass

def test_fails():
    assert 0

@pytest.mark.skip(reason="planted")
def test_is_skipped():
    pass

@pytest.mark.skip_global_cleanup
def test_is_marked():
    pass
"""


@pytest.fixture
def traces(pytester: pytest.Pytester) -> Callable[[], list[str]]:
    """Write the steps, and return a function that tells which process cleaned up, once a clean-up."""
    pytester.makepyfile(steps=STEPS)
    path = pytester.path / "trace.txt"
    return lambda: path.read_text().split() if path.exists() else []


def ini(pytester: pytest.Pytester, *lines: str) -> None:
    pytester.makeini("\n".join(["[pytest]", "pythonpath = .", *lines]))


TRACE = "cleanup_steps = steps:trace"


def comparable(result: pytest.RunResult) -> list[str]:
    return [re.sub(r"\d+\.\d\ds", "seconds", line) for line in result.outlines if not line.startswith("plugins:")]


# Installed and not asked for


def test_a_suite_that_only_carries_the_marker_is_untouched(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makeconftest(
        """
        def pytest_configure(config):
            config.addinivalue_line("markers", "skip_global_cleanup: the suite's own")

        def pytest_unconfigure(config):
            import sys
            print("per-test hooks:", config.pluginmanager.has_plugin("testkit.cleanup.per_test"))
            print("heavy:", [name for name in ("torch", "numpy") if name in sys.modules])
        """
    )
    pytester.makepyfile(SUITE)
    without, ours = run("--strict-markers", plugins=()), run("--strict-markers")
    assert comparable(ours) == comparable(without)
    assert ours.ret == without.ret
    ours.stdout.fnmatch_lines(["per-test hooks: False", "heavy: []"])


def test_the_marker_is_known_and_explained(run: Run) -> None:
    run("--markers").stdout.fnmatch_lines(
        ["@pytest.mark.skip_global_cleanup: no clean-up after this test; one follows*"]
    )


def test_loading_by_entry_point_and_by_name_is_loading_once(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, TRACE)
    pytester.makepyfile("def test_it(): pass")
    assert run(plugins=("testkit", "testkit.cleanup.plugin", "testkit.cleanup.plugin")).ret == 0
    assert traces() == ["main"]


def test_left_out_by_name_it_leaves_no_option(run: Run) -> None:
    result = run("--help", "-p", "no:testkit.cleanup.plugin", plugins=("testkit",))
    assert "cleanup" not in result.stdout.str()


# Option and ini


def test_three_hundred_small_tests_in_two_modules_cost_two_clean_ups(pytester: pytest.Pytester, run: Run) -> None:
    """The case of https://github.com/vllm-project/vllm/pull/55965: a clean-up cost more than the test before it."""
    source = """
        import pytest

        @pytest.mark.parametrize("i", range(150))
        def test_small(i):
            assert i * 2 == i + i
        """
    pytester.makepyfile(test_small_a=source, test_small_b=source)
    ini(pytester, "cleanup_scope = module", "cleanup_steps = gc")
    result = run()
    result.assert_outcomes(passed=300)
    result.stdout.re_match_lines([r"cleanup: 2 clean-ups \(module\) in \d+\.\d\d s: gc \d+\.\d\d s$"])


@pytest.mark.parametrize(("scope", "number"), [("function", 6), ("module", 2), ("session", 1)])
@pytest.mark.parametrize("way", ["ini", "option"])
def test_the_scope_decides_how_often(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]], scope: str, number: int, way: str
) -> None:
    lines, args = ([f"cleanup_scope = {scope}"], []) if way == "ini" else ([], [f"--cleanup-scope={scope}"])
    ini(pytester, TRACE, *lines)
    pytester.makepyfile(test_a=SUITE, test_b=SUITE.replace("@pytest.mark.skip_global_cleanup", ""))
    result = run(*args)
    result.assert_outcomes(passed=4, failed=2, skipped=2)
    assert len(traces()) == number
    reasons = "5 function, 1 module" if scope == "function" else scope
    result.stdout.fnmatch_lines([f"cleanup: {number} clean-up* ({reasons}) in * s: steps:trace * s"])


def test_the_option_wins_over_the_ini_key(pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]) -> None:
    ini(pytester, TRACE, "cleanup_scope = function")
    pytester.makepyfile("def test_one(): pass\ndef test_two(): pass")
    assert run("--cleanup-scope=session").ret == 0
    assert traces() == ["main"]


def test_a_scope_alone_asks_for_the_steps_gc_and_torch(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("def test_one(): pass\ndef test_two(): pass")
    run("-o", "cleanup_scope=module").stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in *: gc * s, torch * s"])


def test_pyproject_is_read_too(pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]) -> None:
    pytester.makepyprojecttoml(
        """
        [tool.pytest.ini_options]
        pythonpath = ["."]
        cleanup_steps = ["gc", "steps:trace"]
        cleanup_scope = "module"
        """
    )
    pytester.makepyfile("def test_one(): pass\ndef test_two(): pass")
    run().stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in * s: gc * s, steps:trace * s"])
    assert traces() == ["main"]


def test_skipped_tests_cause_none_and_the_summary_says_so(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, TRACE)
    pytester.makepyfile(
        """
        import unittest
        import pytest

        @pytest.fixture
        def unavailable():
            pytest.skip("planted")

        @pytest.mark.skip
        def test_marked(): pass

        @pytest.mark.skipif(True, reason="planted")
        def test_conditional(): pass

        @pytest.mark.xfail(run=False)
        def test_not_run(): pass

        def test_fixture(unavailable): pass

        class TestCase(unittest.TestCase):
            @unittest.skip("planted")
            def test_it(self): pass
        """
    )
    result = run()
    result.assert_outcomes(skipped=4, xfailed=1)
    assert traces() == []
    result.stdout.fnmatch_lines(["cleanup: no clean-up (function), since no test ran"])


def test_a_skip_in_the_body_counts_as_a_test(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, TRACE)
    pytester.makepyfile("import pytest\ndef test_it(): pytest.skip('planted')")
    run().assert_outcomes(skipped=1)
    assert traces() == ["main"]


def test_collecting_alone_says_nothing(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("def test_it(): pass")
    assert "cleanup:" not in run("--collect-only", "--cleanup-scope=module").stdout.str()


@pytest.mark.parametrize("args", ["--setup-plan", "--setup-only"])
@pytest.mark.parametrize("scope", ["function", "module", "session"])
def test_where_no_test_runs_by_request_nothing_is_cleaned(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]], args: str, scope: str
) -> None:
    ini(pytester, TRACE, f"cleanup_scope = {scope}")
    pytester.makepyfile(
        test_a="import pytest\n@pytest.fixture\ndef engine(): pass\ndef test_1(engine): pass\ndef test_2(): pass",
        test_b="from testkit.cleanup import module_cleanup\ndef test_1(): pass",
    )
    result = run(args)
    assert result.ret == 0
    assert traces() == []
    result.stdout.fnmatch_lines([f"cleanup: no clean-up ({scope}), since no test ran"])


@pytest.mark.parametrize("args", ["--setup-plan", "--setup-only"])
def test_where_no_test_runs_by_request_the_imported_fixture_does_nothing(
    pytester: pytest.Pytester, run: Run, args: str
) -> None:
    pytester.makepyfile("from testkit.cleanup import module_cleanup\ndef test_1(): pass")
    result = run(args)
    assert result.ret == 0
    assert "cleanup:" not in result.stdout.str()


def test_showing_set_ups_changes_no_clean_up(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, TRACE)
    pytester.makepyfile("def test_1(): pass\ndef test_2(): pass")
    assert run("--setup-show").ret == 0
    assert traces() == ["main"] * 2


def test_each_leaving_of_a_module_is_cleaned_after(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, TRACE, "cleanup_scope = module")
    pytester.makeconftest("def pytest_collection_modifyitems(items): items.sort(key=lambda item: item.name)")
    source = "def test_1(): pass\ndef test_2(): pass"
    pytester.makepyfile(test_a=source, test_b=source)
    run().assert_outcomes(passed=4)
    assert len(traces()) == 4


def test_files_that_are_not_python_count_as_modules(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, TRACE, "cleanup_scope = module")
    pytester.makeconftest(
        """
        import pytest

        class Line(pytest.Item):
            def runtest(self): pass

        class Lines(pytest.File):
            def collect(self):
                for line in self.path.read_text().split():
                    yield Line.from_parent(self, name=line)

        def pytest_collect_file(file_path, parent):
            if file_path.suffix == ".lines":
                return Lines.from_parent(parent, path=file_path)
        """
    )
    for name in ("one.lines", "two.lines"):
        Path(pytester.path, name).write_text("first\nsecond\n")
    pytester.maketxtfile(test_three=">>> 1 + 1\n2\n")
    run().assert_outcomes(passed=5)
    assert len(traces()) == 3


# Marker


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\n@pytest.mark.skip_global_cleanup\ndef test_1(): pass\n"
        "@pytest.mark.skip_global_cleanup\ndef test_2(): pass",
        "import pytest\n@pytest.mark.skip_global_cleanup\nclass TestIt:\n"
        " def test_1(self): pass\n def test_2(self): pass",
        "import pytest\npytestmark = pytest.mark.skip_global_cleanup\ndef test_1(): pass\ndef test_2(): pass",
    ],
    ids=["function", "class", "module"],
)
def test_marked_tests_are_cleaned_after_once_when_the_run_leaves_the_module(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]], source: str
) -> None:
    ini(pytester, TRACE, "addopts = --strict-markers")
    pytester.makepyfile(test_a=source, test_b=source)
    result = run()
    result.assert_outcomes(passed=4)
    assert len(traces()) == 2
    result.stdout.fnmatch_lines(["cleanup: 2 clean-ups (module) in *"])


# The imported fixture


def test_the_imported_fixture_cleans_after_its_module_only(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        test_a="from testkit.cleanup import module_cleanup\ndef test_1(): pass\ndef test_2(): pass",
        test_b="def test_1(): pass\ndef test_2(): pass",
    )
    result = run()
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in * s: gc * s, torch * s"])


def test_the_imported_fixture_replaces_the_clean_up_after_each_test(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, TRACE)
    pytester.makepyfile(
        test_a="from testkit.cleanup import module_cleanup\ndef test_1(): pass\ndef test_2(): pass",
        test_b="def test_1(): pass\ndef test_2(): pass",
    )
    run().stdout.fnmatch_lines(["cleanup: 3 clean-ups (1 module, 2 function) in * s: steps:trace * s"])
    assert len(traces()) == 3


def test_a_conftest_asks_for_all_modules_below_it(pytester: pytest.Pytester, run: Run) -> None:
    below = pytester.mkdir("below")
    (below / "conftest.py").write_text("from testkit.cleanup import module_cleanup\n")
    for name in ("test_a.py", "test_b.py"):
        (below / name).write_text("def test_1(): pass\ndef test_2(): pass\n")
    pytester.makepyfile(test_c="def test_1(): pass")
    run().stdout.fnmatch_lines(["cleanup: 2 clean-ups (module) in *"])


def test_the_imported_fixture_cleans_when_all_is_released(pytester: pytest.Pytester, run: Run, witness: None) -> None:
    ini(pytester, "cleanup_steps =", "    gc", "    witness:look")
    pytester.makepyfile(
        test_a="""
        from testkit.cleanup import module_cleanup

        def test_it(engine):
            assert not engine
        """,
        test_b="def test_next_module(): pass",
    )
    run().stdout.fnmatch_lines(["clean-up: 1 built, 0 alive", "next set-up: 1 built, 0 alive"])


def test_fixtures_of_the_same_name_are_left_alone(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(autouse=True, scope="module")
        def module_cleanup():
            yield

        def test_it(): pass
        """
    )
    result = run()
    result.assert_outcomes(passed=1)
    assert "cleanup:" not in result.stdout.str()


FAILING_FIRST = {
    "a module fixture": """
        import pytest
        from testkit.cleanup import module_cleanup

        @pytest.fixture(scope="module", autouse=True)
        def engine():
            raise RuntimeError("planted")

        def test_1(): pass
        def test_2(): pass
        """,
    "a session fixture": """
        import pytest
        from testkit.cleanup import module_cleanup

        @pytest.fixture(scope="session")
        def engine():
            raise RuntimeError("planted")

        def test_1(engine): pass
        """,
    "a set-up of the module": """
        from testkit.cleanup import module_cleanup as another_name

        def setup_module():
            raise RuntimeError("planted")

        def test_1(): pass
        """,
    "a session fixture of a unittest case": """
        import unittest
        import pytest
        from testkit.cleanup import module_cleanup

        @pytest.fixture(scope="session", autouse=True)
        def engine():
            raise RuntimeError("planted")

        class TestIt(unittest.TestCase):
            def test_1(self): pass
        """,
    "a session fixture before one that refines ours": """
        import pytest
        from testkit.cleanup import module_cleanup as ours

        @pytest.fixture(scope="session", autouse=True)
        def engine():
            raise RuntimeError("planted")

        class TestIt:
            @pytest.fixture(scope="class", autouse=True)
            def ours(self, ours):
                pass

            def test_1(self): pass
        """,
}


@pytest.mark.parametrize("what", FAILING_FIRST)
def test_the_imported_fixture_is_heard_though_something_before_it_fails(
    pytester: pytest.Pytester, run: Run, what: str
) -> None:
    pytester.makepyfile(test_a=FAILING_FIRST[what], test_b="def test_1(): pass")
    result = run("-p", "no:warnings")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in * s: gc * s, torch * s"])


def test_the_imported_fixture_is_heard_though_something_before_it_is_interrupted(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(FAILING_FIRST["a module fixture"].replace('RuntimeError("planted")', "KeyboardInterrupt"))
    run().stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in * s: gc * s, torch * s"])


def test_the_imported_fixture_owes_nothing_where_something_before_it_skips(pytester: pytest.Pytester, run: Run) -> None:
    source = FAILING_FIRST["a module fixture"].replace('raise RuntimeError("planted")', 'pytest.skip("planted")')
    pytester.makepyfile(source)
    result = run()
    result.assert_outcomes(skipped=2)
    assert "cleanup:" not in result.stdout.str()


def test_the_imported_fixture_is_asked_for_late(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        """
        import pytest
        from testkit.cleanup import module_cleanup

        class TestIt:
            @pytest.fixture(scope="module", autouse=True)
            def module_cleanup(self):
                pass

            def test_1(self): pass

        def test_2(request):
            assert request.getfixturevalue("module_cleanup") is None
        """
    )
    run().stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in *"])


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_may_replace_the_fixture_that_its_conftest_imports(
    pytester: pytest.Pytester, run: Run, fails: bool
) -> None:
    pytester.makeconftest("from testkit.cleanup import module_cleanup")
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.fixture(scope="session", autouse=True)
        def engine():
            assert not {fails}

        @pytest.fixture(scope="module", autouse=True)
        def module_cleanup():
            pass

        def test_it(): pass
        """
    )
    assert "cleanup:" not in run().stdout.str()


def test_the_imported_fixture_without_its_plugin_is_an_error(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("from testkit.cleanup import module_cleanup\ndef test_it(): pass")
    result = run(plugins=())
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["cleanup: module_cleanup needs its plugin (imported fixture)", "next: add -p testkit.cleanup.plugin"]
    )


def test_cleanup_now_in_a_test_is_counted(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("from testkit.cleanup import cleanup_now\ndef test_it(): cleanup_now()")
    run().stdout.fnmatch_lines(["cleanup: 1 clean-up (cleanup_now) in * s: gc * s, torch * s"])


# Bad values and failing steps


@pytest.mark.parametrize(
    ("args", "line", "following"),
    [
        (["--cleanup-scope=modul"], "unknown scope 'modul' (from --cleanup-scope)", "did you mean module?"),
        (["-o", "cleanup_scope=x"], "unknown scope 'x' (from ini cleanup_scope)", "use function, module or session"),
        (["-o", "cleanup_steps=troch"], "unknown step 'troch' (from ini cleanup_steps)", "did you mean torch?"),
        (
            ["-o", "cleanup_steps=nowhere:f"],
            "step 'nowhere:f' cannot be imported: ModuleNotFoundError: No module named 'nowhere' "
            "(from ini cleanup_steps)",
            "correct the name, or list its folder in pythonpath",
        ),
        (
            ["-o", "cleanup_steps=steps:tracy"],
            "step 'steps:tracy' does not exist in steps (from ini cleanup_steps)",
            "did you mean steps:trace?",
        ),
        (
            ["-o", "cleanup_steps=steps:NUMBER"],
            "step 'steps:NUMBER' is int, not a function (from ini cleanup_steps)",
            "name a function",
        ),
        (
            ["-o", "cleanup_steps=leaves:f"],
            "step 'leaves:f' cannot be imported: SystemExit: 3 (from ini cleanup_steps)",
            "make leaves importable at the start of a run",
        ),
        (
            ["-o", "cleanup_steps=skips:f"],
            "step 'skips:f' cannot be imported: Skipped: could not import 'not_there': No module named 'not_there' "
            "(from ini cleanup_steps)",
            "make skips importable at the start of a run",
        ),
    ],
)
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["", "xdist"])
def test_a_bad_value_stops_the_run_before_it_starts(
    pytester: pytest.Pytester,
    run: Run,
    traces: Callable[[], list[str]],
    args: list[str],
    line: str,
    following: str,
    workers: tuple[str, ...],
) -> None:
    ini(pytester)
    pytester.makepyfile("def test_it(): pass")
    pytester.makepyfile(leaves="raise SystemExit(3)", skips="import pytest\npytest.importorskip('not_there')")
    result = run(*args, *workers, plugins=XDIST if workers else XDIST[:1])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [text for text in result.errlines if text] == [f"ERROR: cleanup: {line}", f"next: {following}"]


@pytest.mark.parametrize("workers", [(), ("-n2", "--dist=loadfile")], ids=["", "xdist"])
def test_a_failing_step_fails_the_run_and_stops_no_other(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]], workers: tuple[str, ...]
) -> None:
    ini(pytester, "cleanup_scope = module", "cleanup_steps =", "    steps:broken", "    steps:trace")
    pytester.makepyfile(test_a="def test_1(): pass\ndef test_2(): print('chatty')", test_b="def test_1(): pass")
    result = run(*workers, "--junitxml=junit.xml", plugins=XDIST if workers else XDIST[:1])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=3, errors=2)
    assert len(traces()) == 2
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_2*",
            "cleanup: step steps:broken raised ValueError: planted (from ini cleanup_steps)",
            "  1 of 2 steps failed after test_a.py::test_2",
            "*raise ValueError(*planted*)",
            "next: repair the step, or take it out of cleanup_steps",
            "cleanup: 2 clean-ups (module) in *",
            "cleanup: step steps:broken failed in 2 of 2 clean-ups",
            "ERROR test_a.py::test_2 - Failed: cleanup: step steps:broken raised *",
        ]
        if not workers
        else ["cleanup: step steps:broken failed in 2 of 2 clean-ups", "ERROR test_*.py::test_* - Failed: cleanup: *"]
    )
    assert "chatty" not in result.stdout.str()
    assert (pytester.path / "junit.xml").read_text().count("cleanup: step steps:broken raised") >= 2


def test_a_failing_step_stops_a_run_that_stops_at_the_first_failure(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, "cleanup_steps = steps:broken")
    pytester.makepyfile("def test_1(): pass\ndef test_2(): pass")
    run("-x").assert_outcomes(passed=1, errors=1)


def test_a_failing_step_is_not_an_expected_failure(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, "cleanup_steps = steps:broken")
    pytester.makepyfile("import pytest\n@pytest.mark.xfail\ndef test_1(): assert 0")
    result = run()
    result.assert_outcomes(xfailed=1, errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_step_that_fails_after_an_early_exit_still_fails_the_run(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, "cleanup_scope = session", "cleanup_steps = steps:broken")
    pytester.makepyfile("import pytest\ndef test_1(): pytest.exit('enough', returncode=0)")
    result = run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["  1 of 1 steps failed at the end of the run"])


# Ctrl-C in a step

INTERRUPTED = ("cleanup_steps =", "    gc", "    steps:interrupted_once", "    steps:trace")


@pytest.mark.parametrize(
    ("scope", "reasons"),
    [("function", "1 function, 1 module"), ("module", "module"), ("session", "session")],
)
@pytest.mark.parametrize("number", [1, 2])
def test_ctrl_c_in_a_step_leaves_the_clean_up_owed_to_the_end_of_the_run(
    pytester: pytest.Pytester,
    run: Run,
    traces: Callable[[], list[str]],
    scope: str,
    reasons: str,
    number: int,
) -> None:
    ini(pytester, *INTERRUPTED, f"cleanup_scope = {scope}")
    pytester.makepyfile(**{f"test_{i}": "def test_it(): pass" for i in range(number)})
    result = run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(passed=number if scope == "session" else 1)
    assert len(traces()) == 3  # the interrupted one; that one and the one after it, at the end
    result.stdout.fnmatch_lines(
        [
            f"cleanup: 2 clean-ups ({reasons}) in * s: gc * s, steps:interrupted_once * s, steps:trace * s",
            "cleanup: step steps:interrupted_once was interrupted in 1 of 2 clean-ups",
        ]
    )
    result.stdout.no_fnmatch_line("*no test ran*")


def test_ctrl_c_in_a_step_of_a_module_that_asked(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, *INTERRUPTED, "cleanup_scope = session")
    pytester.makepyfile(
        test_a="def test_it(): pass",
        test_b="from testkit.cleanup import module_cleanup\ndef test_it(): pass",
        test_c="def test_it(): pass",
    )
    result = run()
    assert len(traces()) == 3
    result.stdout.fnmatch_lines(["cleanup: 2 clean-ups (1 module, 1 session) in *"])


@pytest.mark.parametrize("args", [(), ("-x",)], ids=" ".join)
def test_ctrl_c_in_the_last_clean_up_still_lets_the_run_say_what_happened(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]], args: tuple[str, ...]
) -> None:
    step = "interrupted_once" if args else "interrupted_twice"
    ini(pytester, f"cleanup_steps = steps:{step}", "cleanup_scope = session")
    pytester.makepyfile("def test_it(): assert 0")
    result = run(*args)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    number = "1 of 1 clean-up" if args else "2 of 2 clean-ups"
    assert len(traces()) == int(number[0])
    result.stdout.fnmatch_lines([f"cleanup: step steps:{step} was interrupted in {number}"])
    result.assert_outcomes(failed=1)


def test_ctrl_c_in_a_step_keeps_nothing_of_it_alive(pytester: pytest.Pytester, run: Run, witness: None) -> None:
    pytester.makepyfile(
        holding="""
        import witness

        def once():
            mine = witness.build()
            if len(witness.REFS) == 2:
                raise KeyboardInterrupt
        """
    )
    ini(pytester, "cleanup_steps =", "    holding:once", "    gc", "    witness:look")
    pytester.makepyfile(test_a="def test_it(engine): pass")
    run().stdout.fnmatch_lines(["clean-up: 3 built, 0 alive"])


def test_cleanup_now_that_is_interrupted_is_counted(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, *INTERRUPTED)
    pytester.makepyfile("from testkit.cleanup import cleanup_now\ndef test_it(): cleanup_now()")
    result = run()
    assert len(traces()) == 3
    result.stdout.fnmatch_lines(
        [
            "cleanup: 2 clean-ups (1 cleanup_now, 1 module) in *",
            "cleanup: step steps:interrupted_once was interrupted in 1 of 2 clean-ups",
        ]
    )


# Workers


def test_every_worker_cleans_its_own_and_the_summary_adds_up(
    pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]
) -> None:
    ini(pytester, TRACE, "cleanup_scope = module")
    source = "import pytest\n@pytest.mark.parametrize('i', range(10))\ndef test_it(i): pass"
    pytester.makepyfile(test_a=source, test_b=source)
    result = run("-n2", "--dist=load", plugins=XDIST)
    result.assert_outcomes(passed=20)
    assert set(traces()) == {"gw0", "gw1"}
    result.stdout.fnmatch_lines([f"cleanup: {len(traces())} clean-ups (module) in * s: steps:trace * s"])


def test_figures_of_workers_are_added_up_where_only_the_fixture_asks(pytester: pytest.Pytester, run: Run) -> None:
    source = "from testkit.cleanup import module_cleanup\ndef test_it(): pass\ndef test_that(): pass"
    pytester.makepyfile(test_a=source, test_b=source)
    result = run("-n2", "--dist=loadfile", plugins=XDIST)
    result.stdout.fnmatch_lines(["cleanup: 2 clean-ups (module) in * s: gc * s, torch * s"])


def test_a_crashed_worker_is_named(pytester: pytest.Pytester, run: Run, traces: Callable[[], list[str]]) -> None:
    ini(pytester, TRACE)
    pytester.makepyfile("import os\ndef test_crash(): os._exit(1)")
    result = run("-n1", plugins=XDIST)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["cleanup: figures of gw0 are missing (not finished)"])
