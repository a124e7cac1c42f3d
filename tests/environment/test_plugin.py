"""The marker ``requires_machine`` in inner runs: who is skipped or fails, the summary, and what costs nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

SUITE = """
import pytest

@pytest.mark.requires_machine("kernel>=5.15", "os in (ubuntu, debian)")
def test_met():
    pass

@pytest.mark.requires_machine("rdma-core>=50")
def test_rdma():
    pass

@pytest.mark.requires_machine("gpus>=2", "rdma-core>=50")
def test_both():
    pass

def test_unmarked():
    pass
"""
RDMA = "needs rdma-core>=50, found 39.0 (libibverbs.so.1.14.39.0)"
GPUS = "needs gpus>=2, found 0 (planted)"

# A machine to stand in for the one that the tests run on, and whether the per-test hook was there.
PLANTED = """
from testkit.environment import Fact, _snapshot

PLANTED = {
    "kernel": Fact("6.8.0", "planted"),
    "os": Fact("ubuntu", "planted"),
    "rdma-core": Fact("39.0", "libibverbs.so.1.14.39.0"),
    "gpus": Fact([], "planted"),
}
_snapshot.snapshot = lambda: PLANTED


def pytest_terminal_summary(terminalreporter, config):
    there = config.pluginmanager.has_plugin("testkit.environment.per_test")
    terminalreporter.write_line(f"per-test hook: {there}")
"""


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run pytest in its own process with our plugin on the planted machine; others are named by position."""
    pytester.makeconftest(PLANTED)

    def run(*args: str, plugins: tuple[str, ...] = ("testkit.environment.plugin",)) -> pytest.RunResult:
        named = [part for name in plugins for part in ("-p", name)]
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers", *named, *args, timeout=120)

    return run


def test_a_test_whose_machine_lacks_something_is_skipped_with_what_was_found(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(SUITE)
    result = run("-rs")
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines_random(
        [f"SKIPPED [[]1] test_a_test*.py:7: {RDMA}", f"SKIPPED [[]1] test_a_test*.py:11: {GPUS}; {RDMA}"]
    )


def test_the_summary_counts_the_tests_that_each_requirement_kept_from_running(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(SUITE)
    run().stdout.fnmatch_lines(
        [f"environment: 2 tests skipped: {RDMA}", f"environment: 1 test skipped: {GPUS}"], consecutive=True
    )


def test_strict_fails_what_would_have_been_skipped(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = run("--environment-requires=strict")
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(
        [
            f"environment: {RDMA} (from marker requires_machine)",
            "next: use a machine that has it, or leave --environment-requires=strict out",
            f"environment: 2 tests failed: {RDMA}",
        ]
    )
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pytest.ini", "[pytest]\nenvironment_requires = strict\n"),
        ("pyproject.toml", '[tool.pytest.ini_options]\nenvironment_requires = "strict"\n'),
    ],
)
def test_the_ini_key_says_the_same_and_the_option_wins(
    run: Run, pytester: pytest.Pytester, file: str, text: str
) -> None:
    pytester.makepyfile(SUITE)
    (pytester.path / file).write_text(text)
    run().assert_outcomes(passed=2, errors=2)
    run("--environment-requires=skip").assert_outcomes(passed=2, skipped=2)


def test_a_bad_value_is_a_usage_error_with_its_source(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = run("--environment-requires=fail")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: environment: 'fail' is not known (from --environment-requires)", "next: give one of skip, strict"]
    )


def test_the_skip_comes_before_any_fixture(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def engine():
            raise RuntimeError("started on a machine that cannot")

        @pytest.mark.requires_machine("gpus>=1")
        def test_two(): pass
        """
    )
    run().assert_outcomes(skipped=1)


def test_requirements_of_module_class_function_and_parameter_add_up(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.requires_machine("kernel>=6")

        @pytest.mark.requires_machine("gpus>=1")
        class TestSome:
            @pytest.mark.requires_machine("os==ubuntu")
            def test_gpu(self): pass

        @pytest.mark.parametrize(
            "n", [1, pytest.param(2, marks=pytest.mark.requires_machine("kernel>=7", "kernel>=6", "gpus>=2"))]
        )
        def test_params(n): pass
        """
    )
    result = run("-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(
        ["*: needs gpus>=1, found 0 (planted)", "*: needs kernel>=7, found 6.8.0 (planted); needs gpus>=2, found 0*"]
    )


@pytest.mark.parametrize(
    ("arguments", "line", "fix"),
    [
        ("'kernal>=6'", "'kernal>=6': nothing is called kernal", "did you mean kernel?"),
        ("'kernel>=6', 'gpus>=two'", "'gpus>=two': two is no whole number", "write it as 2"),
        ("3", "'3' is no requirement", "write it as*"),
        ("", "nothing is required", 'give texts, such as requires_machine("kernel>=6.8", "gpus>=2")'),
        ("kernel='6'", "there is no argument 'kernel'", "give texts, *"),
    ],
)
def test_a_marker_that_cannot_be_used_fails_its_test_with_one_clear_message(
    run: Run, pytester: pytest.Pytester, arguments: str, line: str, fix: str
) -> None:
    pytester.makepyfile(
        f"import pytest\n@pytest.mark.requires_machine({arguments})\ndef test_bad(): pass\n\ndef test_good(): pass\n"
    )
    result = run("--tb=short")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"environment: {line} (from marker requires_machine)", f"next: {fix}"])
    assert "Traceback" not in result.stdout.str()


def test_a_marker_that_cannot_be_used_fails_although_something_else_is_missing(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.requires_machine('gpus>=2', 'gups>=2')\ndef test_bad(): pass\n")
    run().assert_outcomes(errors=1)


def test_workers_skip_as_well_and_the_summary_adds_them_up(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(8))\n"
        "@pytest.mark.requires_machine('rdma-core>=50')\n"
        "def test_many(n): pass\n"
    )
    result = run("-n2", plugins=("testkit.environment.plugin", "xdist.plugin"))
    result.assert_outcomes(skipped=8)
    result.stdout.fnmatch_lines([f"environment: 8 tests skipped: {RDMA}"])


def test_a_test_that_is_run_again_counts_once(run: Run, pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_rerunfailures")
    pytester.makepyfile(SUITE)
    result = run(
        "--reruns=2",
        "--environment-requires=strict",
        plugins=("testkit.environment.plugin", "pytest_rerunfailures"),
    )
    result.stdout.fnmatch_lines([f"environment: 2 tests failed: {RDMA}"])


def test_the_file_for_junit_has_the_requirement(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    run("--junitxml=junit.xml")
    text = (pytester.path / "junit.xml").read_text().replace("&gt;", ">")
    assert f'<property name="requires_machine" value="{RDMA}" />' in text


def test_a_plugin_that_keeps_records_is_told(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    (pytester.path / "keeper.py").write_text(
        """
class Spec:
    def pytest_testkit_record(self, kind, nodeid, data): ...

def pytest_addhooks(pluginmanager):
    pluginmanager.add_hookspecs(Spec)

def pytest_testkit_record(kind, nodeid, data):
    print("kept", kind, nodeid.split("::")[1], data["missing"], data["strict"])
"""
    )
    result = run("-s", plugins=("testkit.environment.plugin", "keeper"))
    result.stdout.fnmatch_lines([f"*kept environment test_rdma ['{RDMA}'] False*".replace("[", "[[]")])


def test_tests_that_are_skipped_anyway_keep_their_reason(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.skip(reason='planted')\n"
        "@pytest.mark.requires_machine('gpus>=2')\n"
        "def test_two(): pass\n"
    )
    run("-rs").stdout.fnmatch_lines(["SKIPPED * planted"])


def test_a_run_without_the_marker_has_no_hook_of_ours_and_reads_no_machine(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\ndef test_unmarked(): assert 'testkit.environment._requirements' not in sys.modules\n"
    )
    result = run("--environment-requires=strict")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["per-test hook: False"])
    result.stdout.no_fnmatch_line("environment: *")
    pytester.makepyfile(test_marked=SUITE)
    run().stdout.fnmatch_lines(["per-test hook: True"])


def test_a_run_in_which_everything_is_met_says_nothing(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.requires_machine('kernel>=6')\ndef test_met(): pass\n")
    result = run()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("environment: *")


def test_the_marker_is_listed_with_what_it_takes(run: Run) -> None:
    run("--markers").stdout.fnmatch_lines(["@pytest.mark.requires_machine(*requirements): *"])


def test_this_machine_is_asked_where_none_is_planted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.requires_machine('python>=3.10')\ndef test_met(): pass\n"
        "@pytest.mark.requires_machine('python>=99')\ndef test_not_met(): pass\n"
    )
    result = pytester.runpytest_subprocess("-p", "testkit.environment.plugin", "-rs", timeout=120)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *: needs python>=99, found 3.*"])
