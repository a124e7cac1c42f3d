"""What ran: fates of cases, the share of owed tuples, the exit code, named cases, and the same under xdist."""

from __future__ import annotations

import pytest

PLUGIN = ("-p", "testkit.pairwise.plugin")
XDIST = (*PLUGIN, "-p", "xdist.plugin", "-n2")

FATES = """
import os
import pytest

def product(test):
    for name in "abc":
        test = pytest.mark.parametrize(name, [1, 2, 3])(test)
    return pytest.mark.pairwise(test)

@pytest.fixture
def broken(a):
    assert a != 1, "no luck"

@product
def test_fails(a, b, c): assert a != 1

@product
def test_skips(a, b, c):
    if a == 1: pytest.skip("too large")

@product
def test_gives_up(a, b, c):
    if a == 1: pytest.xfail("known")

@product
def test_set_up(a, b, c, broken): pass

@product
@pytest.mark.xfail
def test_xfail(a, b, c): assert a != 1

@product
@pytest.mark.xfail(run=False, reason="hangs")
def test_not_run(a, b, c): pass

@product
def test_teardown(a, b, c, request):
    request.addfinalizer(lambda: 1 / 0)
"""


@pytest.mark.parametrize("workers", [PLUGIN, XDIST], ids=["", "xdist"])
def test_ran_means_that_the_call_phase_ended(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_m=FATES)
    result = pytester.runpytest_subprocess(*workers, "--pairwise-report")
    result.stdout.fnmatch_lines(
        [
            "*::test_fails: 27 -> 9 cases, 27 owed pairs, 100 % ran",
            "*::test_skips: 27 -> 9 cases, 27 owed pairs, *% ran",
            "*::test_skips: * of 27 owed pairs did not run",
            "  a=1, b=1  skipped: too large",
            "*::test_gives_up: * of 27 owed pairs did not run",
            "  a=1, b=1  called pytest.xfail: *known",
            "*::test_set_up: * of 27 owed pairs did not run",
            "  a=1, b=1  set-up failed",
            "*::test_not_run: 27 of 27 owed pairs did not run",
            "  a=1, b=1  marked xfail(run=False): hangs",
        ]
    )


def test_every_pair_with_a_skipped_value_counts_as_not_run_and_no_other(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=FATES)
    result = pytester.runpytest_inprocess(*PLUGIN, "--pairwise-report", "-k", "test_skips")
    listed = [line.split("  ")[1] for line in result.outlines if line.endswith("skipped: too large")]
    assert {pair for pair in listed if "a=1" in pair} == {f"a=1, {n}={v}" for n in "bc" for v in (1, 2, 3)}
    result.stdout.fnmatch_lines([f"*: {len(listed)} of 27 owed pairs did not run"])


def test_deselected_cases_count_as_not_run_and_functions_without_any_case_are_not_listed(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_m=FATES)
    listing = pytester.runpytest_inprocess(*PLUGIN, "--collect-only", "-q").outlines
    first = next(line for line in listing if "test_fails[" in line).partition("[")[2].rstrip("]")
    result = pytester.runpytest_inprocess(*PLUGIN, "--pairwise-report", "-k", f"test_fails and {first}")
    result.stdout.fnmatch_lines(["*::test_fails: 27 -> 9 cases*11.1 % ran", "  a=3, b=3  deselected"])
    result.stdout.fnmatch_lines(["6 thinned functions deselected whole and not counted: test_skips, test_gives_up, *"])
    result.stdout.no_fnmatch_line("*::test_skips*")


@pytest.mark.parametrize("workers", [PLUGIN, XDIST], ids=["", "xdist"])
@pytest.mark.parametrize(("limit", "code"), [("60", 0), ("70", 1), ("100", 1)])
def test_fail_under_turns_the_share_into_an_exit_code(
    pytester: pytest.Pytester, workers: tuple[str, ...], limit: str, code: int
) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest
        @pytest.mark.pairwise
        @pytest.mark.parametrize("b", [1, 2, 3])
        @pytest.mark.parametrize("a", [1, 2, 3])
        def test_f(a, b):
            if a == 1: pytest.skip("too large")
        """
    )
    result = pytester.runpytest_subprocess(*workers, f"--pairwise-fail-under={limit}")
    assert result.ret == code
    if code:
        result.stdout.fnmatch_lines(
            [f"pairwise: 66.7 % of 9 owed tuples ran, less than {limit} % (from --pairwise-fail-under)", "next: *"]
        )


@pytest.mark.parametrize("workers", [PLUGIN, XDIST], ids=["", "xdist"])
def test_fail_under_without_any_thinned_function_is_a_failure(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_m="def test_plain(): pass")
    result = pytester.runpytest_subprocess(*workers, "--pairwise-fail-under=1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["pairwise: no thinned function ran, so the limit of 1 % had nothing to hold*"])


def test_fail_under_does_not_hide_a_failing_test_or_judge_a_collection(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=FATES)
    assert pytester.runpytest_inprocess(*PLUGIN, "--pairwise-fail-under=50", "-k", "test_fails").ret == 1
    assert pytester.runpytest_inprocess(*PLUGIN, "--pairwise-fail-under=100", "--collect-only").ret == 0
    assert pytester.runpytest_inprocess(*PLUGIN, "--pairwise-fail-under=100", "--no-pairwise", "-k", "xfail").ret == 0


PRODUCT = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("c", ["x", "x-y", "y"])
@pytest.mark.parametrize("b", ["p", "p-q", "q"])
@pytest.mark.parametrize("a", [1, 2, 3])
class TestC:
    def test_f(self, a, b, c):
        assert (a, b, c) != (2, "q", "y")
"""


def _outside(pytester: pytest.Pytester) -> list[str]:
    """Node ids of the full product that the sample leaves out."""
    full, thinned = (
        [line for line in pytester.runpytest_inprocess(*PLUGIN, "--co", "-q", *more).outlines if "::" in line]
        for more in (("--no-pairwise",), ())
    )
    return [nodeid for nodeid in full if nodeid not in thinned]


@pytest.mark.parametrize("workers", [PLUGIN, XDIST], ids=["", "xdist"])
def test_a_case_that_the_sample_leaves_out_runs_when_named(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_m=PRODUCT)
    outside = _outside(pytester)
    assert len(outside) == 18
    chosen = [outside[0], outside[7], outside[-1]]
    result = pytester.runpytest_subprocess(*workers, *chosen, "-v")
    result.assert_outcomes(passed=3)
    for nodeid in chosen:
        assert any(nodeid in line and "PASSED" in line for line in result.outlines)


def test_a_named_case_runs_from_another_folder_and_by_absolute_path(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=PRODUCT)
    nodeid = _outside(pytester)[3]
    pytester.runpytest_inprocess(*PLUGIN, f"{pytester.path}/{nodeid}").assert_outcomes(passed=1)
    folder = pytester.mkdir("deep")
    pytester._monkeypatch.chdir(folder)
    pytester.runpytest_inprocess(*PLUGIN, f"../{nodeid}").assert_outcomes(passed=1)


@pytest.mark.parametrize("workers", [PLUGIN, XDIST], ids=["", "xdist"])
def test_a_failure_outside_the_sample_runs_again_under_last_failed(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_m=PRODUCT)
    pytester.runpytest_subprocess(*PLUGIN, "--no-pairwise").assert_outcomes(passed=26, failed=1)
    seed = next(
        seed
        for seed in "0123456789"
        if "test_m.py::TestC::test_f[2-q-y]"
        not in pytester.runpytest_inprocess(*PLUGIN, "--co", "-q", f"--pairwise-seed={seed}").outlines
    )
    result = pytester.runpytest_subprocess(*workers, "--lf", f"--pairwise-seed={seed}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*27 -> 9 cases + 1 named*"])


def test_a_named_case_that_the_predicates_refuse_runs_and_covers_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest
        @pytest.mark.pairwise(where=lambda a, b: a != b)
        @pytest.mark.parametrize("b", [1, 2, 3])
        @pytest.mark.parametrize("a", [1, 2, 3])
        def test_f(a, b): pass
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "test_m.py::test_f[1-1]")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*::test_f: 9 -> 6 cases + 1 named, 6 owed pairs, 0.0 % ran"])


def test_the_plan_survives_the_crash_of_a_worker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import os, pytest
        @pytest.mark.pairwise
        @pytest.mark.parametrize("b", [1, 2, 3])
        @pytest.mark.parametrize("a", [1, 2, 3])
        def test_f(a, b):
            if (a, b) == (3, 3): os._exit(7)
        """
    )
    result = pytester.runpytest_subprocess(*XDIST, "--pairwise-report")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*::test_f: 9 -> 9 cases, 9 owed pairs, 88.9 % ran", "  a=3, b=3  its worker crashed"])


def test_workers_with_other_hash_seeds_choose_the_same_cases(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=PRODUCT)
    pytester._monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "xdist.plugin", "-n4")
    assert sum(result.parseoutcomes().get(word, 0) for word in ("passed", "failed")) == 9
    result.stdout.fnmatch_lines(["*27 -> 9 cases, 27 owed pairs, 100 % ran"])


def test_stopping_early_leaves_the_rest_as_not_reached(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=FATES)
    result = pytester.runpytest_inprocess(*PLUGIN, "-x", "--pairwise-report", "-k", "test_fails")
    result.stdout.fnmatch_lines(["  *not reached"])


def test_reruns_count_once(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    pytester.makepyfile(test_m=FATES)
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "rerunfailures", "--reruns=1", "-k", "test_fails")
    result.stdout.fnmatch_lines(["*::test_fails: 27 -> 9 cases, 27 owed pairs, 100 % ran"])


def test_a_test_that_never_comes_back_is_told_from_one_that_was_not_reached(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest
        @pytest.mark.pairwise
        @pytest.mark.parametrize("b", [1, 2])
        @pytest.mark.parametrize("a", [1, 2])
        def test_f(a, b):
            if (a, b) == (1, 2): pytest.exit("enough", returncode=0)
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN, "--pairwise-report", "--pairwise-fail-under=100")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["  a=1, b=2  never finished", "  a=2, b=1  not reached", "*25.0 % of 4 owed tuples ran*"]
    )


def test_no_pairwise_says_that_the_limit_holds_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=PRODUCT)
    result = pytester.runpytest_inprocess(*PLUGIN, "--no-pairwise", "--pairwise-fail-under=100")
    result.stdout.fnmatch_lines(["pairwise: off (--no-pairwise), so the limit of 100 % (from --pairwise-fail-under) *"])


@pytest.mark.parametrize(
    "mark",
    [
        "skip(reason='no f64')",
        "skipif(True, reason='no f64')",
        "xfail(run=False)",
        "xfail(True, run=False, reason='x')",
    ],
)
def test_values_marked_not_to_run_take_no_other_pair_with_them(pytester: pytest.Pytester, mark: str) -> None:
    pytester.makepyfile(
        test_m=f"""
        import pytest
        @pytest.mark.pairwise
        @pytest.mark.parametrize("dtype", ["f16", "f32", pytest.param("f64", marks=pytest.mark.{mark})])
        @pytest.mark.parametrize("k", [1, 2, 3])
        @pytest.mark.parametrize("n", [1, 2, 3])
        def test_f(n, k, dtype): assert dtype != "f64"
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "--pairwise-report")
    result.stdout.fnmatch_lines(
        ["*::test_f: 27 -> * cases, 27 owed pairs, 77.8 % ran", "*: 6 of 27 owed pairs did not run"]
    )
    assert all("dtype=f64" in line for line in result.outlines if line.startswith("  ") and "=" in line)


def test_values_marked_for_another_machine_are_like_any_other(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest
        other = [pytest.param(1, marks=pytest.mark.skipif(False, reason="")), pytest.param(2, marks=pytest.mark.xfail)]
        @pytest.mark.pairwise
        @pytest.mark.parametrize("b", other)
        @pytest.mark.parametrize("a", [1, 2])
        def test_f(a, b): pass
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(["*::test_f: 4 -> 4 cases, 4 owed pairs, 100 % ran"])


def test_a_function_whose_values_are_all_marked_to_skip_is_thinned_all_the_same(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest
        @pytest.mark.pairwise
        @pytest.mark.parametrize("c", [1, 2])
        @pytest.mark.parametrize("b", [pytest.param(v, marks=pytest.mark.skip) for v in (1, 2)])
        @pytest.mark.parametrize("a", [1, 2])
        def test_f(a, b, c): pass
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(["*::test_f: 8 -> 4 cases, 12 owed pairs, 0.0 % ran"])


def test_a_skip_is_told_whatever_ran_before_it(pytester: pytest.Pytester) -> None:
    # the reports that pytest keeps are grouped by outcome, so a skip may stand before its own set-up
    pytester.makepyfile(
        test_m="""
        import pytest
        @pytest.mark.skip
        def test_first(): pass
        @pytest.mark.pairwise
        @pytest.mark.parametrize("b", [1, 2])
        @pytest.mark.parametrize("a", [1, 2])
        def test_f(a, b): pytest.skip("because")
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "--pairwise-report")
    result.stdout.fnmatch_lines(["  a=1, b=1  skipped: because"])
    result.stdout.no_fnmatch_line("*never finished*")


def test_cases_in_an_xdist_group_are_followed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest
        @pytest.mark.xdist_group("g")
        @pytest.mark.pairwise
        @pytest.mark.parametrize("b", [1, 2, 3])
        @pytest.mark.parametrize("a", [1, 2, 3])
        def test_f(a, b):
            if a == 2: pytest.skip("no")
        """
    )
    result = pytester.runpytest_subprocess(*XDIST, "--dist=loadgroup", "--pairwise-fail-under=90")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*::test_f: 9 -> 9 cases, 9 owed pairs, 66.7 % ran"])


def test_plans_of_odd_text_and_number_types_travel(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import enum, pytest
        class S(enum.IntEnum): TWO = 2
        class N(str, enum.Enum): A = "a"
        @pytest.mark.pairwise(S.TWO)
        @pytest.mark.parametrize("b", [1, 2, 3])
        @pytest.mark.parametrize(N.A, [1, 2, 3])
        def test_f(a, b): pass
        """
    )
    result = pytester.runpytest_subprocess(*XDIST)
    result.assert_outcomes(passed=9)
    result.stdout.fnmatch_lines(["*::test_f: 9 -> 9 cases, 9 owed pairs, 100 % ran"])


def test_a_named_case_is_found_by_its_modules_name(pytester: pytest.Pytester) -> None:
    package = pytester.mkpydir("pk")
    (package / "test_x.py").write_text(PRODUCT.lstrip())
    pytester.syspathinsert()
    listing = (
        [line for line in pytester.runpytest_subprocess(*PLUGIN, "--co", "-q", *more).outlines if "::" in line]
        for more in (("--no-pairwise",), ())
    )
    full, thinned = listing
    case = next(line for line in full if line not in thinned).partition("::")[2]
    pytester._monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    pytester.runpytest_subprocess(*PLUGIN, "--pyargs", f"pk.test_x::{case}").assert_outcomes(passed=1)


def test_stepwise_finds_the_case_that_it_stopped_at(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=PRODUCT)
    pytester.runpytest_inprocess(*PLUGIN, "--no-pairwise", "--sw").assert_outcomes(passed=17, failed=1)
    result = pytester.runpytest_inprocess(*PLUGIN, "--sw")
    assert result.parseoutcomes()["failed"] == 1
    assert any("test_m.py::TestC::test_f[2-q-y]" in line for line in result.outlines)


def test_without_the_terminal_reporter_a_limit_cannot_be_held_and_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=PRODUCT)
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:terminal", "--pairwise-fail-under=1")
    assert result.ret == 1
    result.stderr.fnmatch_lines(["pairwise: the limit needs the terminal reporter*(from --pairwise-fail-under)"])


def test_whoever_names_a_function_that_is_refused_is_told_last_why_it_is_not_there(pytester: pytest.Pytester) -> None:
    """pytest says of it that it found none; the refusal stands far above."""
    suite = "import pytest\n@pytest.mark.pairwise(where=lambda q: q > 1)\n@pytest.mark.parametrize('a', [1, 2])\n"
    pytester.makepyfile(test_m=suite + "@pytest.mark.parametrize('b', [1, 2])\ndef test_f(a, b): pass\n")
    result = pytester.runpytest_subprocess(*PLUGIN, "test_m.py::test_f")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: *test_m.py::test_f",
            "ERROR: pairwise: predicate lambda at *names 'q', which no axis has (marker of test_m.py::test_f)",
            "next: the names are b, a",
        ]
    )
