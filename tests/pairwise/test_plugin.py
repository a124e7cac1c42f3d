"""The plugin's settings and messages: inert, option, ini, marker, bad values."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest

Run = Callable[..., pytest.RunResult]

SUITE = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("c", [1, 2, 3])
@pytest.mark.parametrize("b", [1, 2, 3])
@pytest.mark.parametrize("a", [1, 2, 3, 4])
def test_product(a, b, c):
    pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    def run(suite: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_m=suite)
        return pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin", *arguments)

    return run


def test_a_marked_function_runs_a_covering_array_and_says_so(run: Run) -> None:
    result = run(SUITE)
    result.assert_outcomes(passed=12)
    result.stdout.fnmatch_lines(["*- pairwise -*", "*::test_product: 36 -> 12 cases, 33 owed pairs, 100 % ran"])


def test_unmarked_functions_are_left_alone(run: Run) -> None:
    result = run(SUITE.replace("@pytest.mark.pairwise\n", ""))
    result.assert_outcomes(passed=36)
    result.stdout.no_fnmatch_line("*pairwise*")


def test_a_marked_function_without_axes_runs_as_it_is(run: Run) -> None:
    result = run("import pytest\npytestmark = pytest.mark.pairwise\ndef test_plain(): pass")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*owed*")


def test_no_pairwise_runs_the_full_product(run: Run) -> None:
    result = run(SUITE, "--no-pairwise")
    result.assert_outcomes(passed=36)
    result.stdout.no_fnmatch_line("*owed*")


def test_strength_comes_from_option_then_ini_and_the_marker_beats_both(run: Run, pytester: pytest.Pytester) -> None:
    run(SUITE, "--pairwise-strength=3").assert_outcomes(passed=36)
    pytester.makeini("[pytest]\npairwise_strength = 3")
    run(SUITE).assert_outcomes(passed=36)
    run(SUITE, "--pairwise-strength=1").assert_outcomes(passed=4)
    run(SUITE.replace("mark.pairwise", "mark.pairwise(1)"), "--pairwise-strength=3").assert_outcomes(passed=4)


def test_a_strength_from_the_option_is_capped_at_the_axes_and_said(run: Run) -> None:
    result = run(SUITE, "--pairwise-strength=5")
    result.assert_outcomes(passed=36)
    result.stdout.fnmatch_lines(["*strength 5 (from --pairwise-strength) is above its 3 axes, so 3 is used"])


def test_another_seed_chooses_other_cases_that_cover_as_much(run: Run) -> None:
    first, again, other = (
        run(SUITE, "--collect-only", "-q", *seed).outlines for seed in ((), (), ("--pairwise-seed=5",))
    )
    assert first[:12] == again[:12]
    assert first[:12] != other[:12]
    run(SUITE, "--pairwise-seed=5").stdout.fnmatch_lines(["*36 -> 12 cases, 33 owed pairs, 100 % ran"])


def test_over_thins_unmarked_functions_that_have_more_cases(run: Run) -> None:
    unmarked = SUITE.replace("@pytest.mark.pairwise\n", "")
    run(unmarked, "--pairwise-over=36").assert_outcomes(passed=36)
    run(unmarked, "--pairwise-over=35").assert_outcomes(passed=12)


def test_allpairspy_can_choose_the_cases(run: Run) -> None:
    result = run(SUITE, "--pairwise-engine=allpairspy")
    result.stdout.fnmatch_lines(["*36 -> 1? cases, 33 owed pairs, 100 % ran"])


def test_effort_is_read_from_the_option(run: Run) -> None:
    grid = "import pytest\n@pytest.mark.pairwise\n" + "".join(
        f"@pytest.mark.parametrize('a{i}', range(5))\n" for i in range(10)
    )
    grid += f"def test_grid({', '.join(f'a{i}' for i in range(10))}): pass"
    quick = run(grid, "--pairwise-effort=0").parseoutcomes()["passed"]
    usual = run(grid).parseoutcomes()["passed"]
    assert usual < quick


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--pairwise-strength=0", "pairwise: strength is '0', not a whole number from 1 up (from --pairwise-strength)"),
        ("--pairwise-strength=two", "pairwise: strength is 'two', not a whole number*"),
        ("--pairwise-seed=-1", "pairwise: seed is '-1', not a whole number from 0 up (from --pairwise-seed)"),
        ("--pairwise-effort=much", "pairwise: effort is 'much' (from --pairwise-effort)"),
        ("--pairwise-over=0", "pairwise: pairwise-over is '0', not a whole number from 1 up (from --pairwise-over)"),
        ("--pairwise-fail-under=101", "pairwise: the percentage is '101', not a number from 0 to 100 (from *)"),
        ("--pairwise-fail-under=nan", "pairwise: the percentage is 'nan'*"),
        ("--pairwise-fail-under=0.9", "pairwise: the percentage is '0.9', less than one percent (from *)"),
        ("--pairwise-engine=pict", "pairwise: engine is 'pict' (from --pairwise-engine)"),
    ],
)
def test_a_bad_option_is_a_usage_error(run: Run, argument: str, message: str) -> None:
    result = run(SUITE, argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}", "next: *"])


def test_a_bad_ini_value_is_a_usage_error_that_names_the_key(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\npairwise_report = maybe")
    result = run(SUITE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pairwise: the switch is 'maybe' (from ini pairwise_report)"])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("(4)", "pairwise: strength 4 exceeds the 3 axes (from the marker of *::test_product)"),
        ("(0)", "pairwise: strength is 0, not a whole number from 1 up (marker of *::test_product)"),
        ("(True)", "pairwise: strength is True, not a whole number from 1 up (marker of *"),
        ("(lambda a: True, strength=2)", "pairwise: the marker gives strength twice (marker of *"),
        ("(2, 3)", "pairwise: the marker takes one positional argument, the strength, not 2 (marker of *"),
        ("(2, strength=2)", "pairwise: the marker gives strength twice (marker of *"),
        ("(strenght=2)", "pairwise: the marker has no argument 'strenght' (marker of *"),
        ("(full='aa')", "pairwise: full names 'aa', which no axis has (marker of *"),
        ("(where=lambda bb: True)", "pairwise: predicate lambda at *.py:3 names 'bb', which no axis has (marker of *"),
        ("(where=lambda a: False)", "pairwise: lambda at *.py:3 allows no case (marker of *"),
        ("(where=lambda a: 1 / 0)", "pairwise: predicate lambda at *.py:3 raised ZeroDivisionError: division by zero*"),
        ("(where=lambda *a: True)", "pairwise: predicate lambda at *.py:3 takes [*]a, which says nothing*"),
        ("(keep={'a': 9})", "pairwise: keep asks for a=9, which axis 'a' does not hold (marker of *"),
        ("(keep={'d': 1})", "pairwise: keep names 'd', which no axis has (marker of *"),
        ("(seed=-1)", "pairwise: seed is -1, not a whole number from 0 up (marker of *"),
        ("(where=(p for p in [lambda a: True]))", "pairwise: where is a generator, which serves one function only*"),
        ("(full=iter('ab'))", "pairwise: full is a generator, which serves one function only (marker of *"),
        ("(where=lambda a: pytest.skip('x'))", "pairwise: predicate lambda at *.py:3 raised Skipped: x, for a=1*"),
        ("(where=lambda a: exit())", "pairwise: predicate lambda at *.py:3 raised SystemExit*"),
        ("(effort='low')", "pairwise: effort is 'low' (marker of *"),
    ],
)
def test_a_bad_marker_fails_its_file_alone_with_one_message(
    run: Run, pytester: pytest.Pytester, marker: str, message: str
) -> None:
    pytester.makepyfile(test_other="def test_other(): pass")
    result = run(SUITE.replace("mark.pairwise", f"mark.pairwise{marker}"), "--continue-on-collection-errors")
    assert result.parseoutcomes() == {"passed": 1, "errors": 1} or result.parseoutcomes() == {"passed": 1, "error": 1}
    result.stdout.fnmatch_lines([message, "next: *"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    result.stdout.no_fnmatch_line("*During handling*")


def test_a_bad_marker_alone_ends_with_exit_code_2_and_the_message_in_the_summary(run: Run) -> None:
    result = run(SUITE.replace("mark.pairwise", "mark.pairwise(4)"))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["ERROR *.py - Failed: pairwise: strength 4 exceeds*"])


@pytest.mark.parametrize("arguments", [(), ("--pairwise-over=1",)], ids=["marked", "over"])
def test_an_empty_axis_is_an_error_for_a_marked_function_and_pytests_own_skip_otherwise(
    run: Run, arguments: tuple[str, ...]
) -> None:
    suite = SUITE.replace("[1, 2, 3, 4]", "[]")
    if arguments:
        run(suite.replace("@pytest.mark.pairwise\n", ""), *arguments).assert_outcomes(skipped=9)
    else:
        run(suite).stdout.fnmatch_lines(["pairwise: axis 'a' has no values (marker of *::test_product)"])


def test_an_empty_axis_of_an_unmarked_function_is_pytests_skip(run: Run) -> None:
    suite = SUITE.replace("[1, 2, 3, 4]", "[]").replace("@pytest.mark.pairwise\n", "")
    assert run(suite).parseoutcomes()["skipped"] == 9


def test_conflicting_predicates_are_named_and_no_others(run: Run) -> None:
    where = "(where=[lambda a: a > 1, lambda b: b > 0, lambda a, b: a < 2])"
    result = run(SUITE.replace("mark.pairwise", f"mark.pairwise{where}"))
    result.stdout.fnmatch_lines(["pairwise: lambda at *.py:3 and lambda at *.py:3 allow no case together (marker of *"])


def test_pytests_own_errors_in_parametrize_stay_as_they_are(run: Run) -> None:
    run(SUITE.replace("(a, b, c)", "(a, b)")).stdout.fnmatch_lines(["*function uses no argument 'c'"])
    twice = SUITE.replace(
        '@pytest.mark.parametrize("a"', '@pytest.mark.parametrize("b", [1])\n@pytest.mark.parametrize("a"'
    )
    run(twice).stdout.fnmatch_lines(["*duplicate parametrization of 'b'*"])


def test_the_marker_is_documented_and_accepted_in_strict_mode(run: Run) -> None:
    run(SUITE, "--strict-markers").assert_outcomes(passed=12)
    run(SUITE, "--markers").stdout.fnmatch_lines(["@pytest.mark.pairwise(strength=None, [*], full=(), where=None*"])


def test_a_downstream_conftest_may_register_the_marker_too(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_configure(config): config.addinivalue_line('markers', 'pairwise: ours')")
    run(SUITE, "--strict-markers").assert_outcomes(passed=12)


def test_ini_keys_work_in_pyproject(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\npairwise_strength = "3"\npairwise_report = true')
    run(SUITE).stdout.fnmatch_lines(["*36 -> 36 cases, 36 owed triples, 100 % ran"])


def test_a_predicate_given_by_position_is_told_its_name(run: Run) -> None:
    result = run(
        "import pytest\nmark = pytest.mark.pairwise.with_args(lambda a: True)\n"
        + SUITE.replace("@pytest.mark.pairwise", "@mark")
    )
    result.stdout.fnmatch_lines(
        ["pairwise: strength is <function*", "next: did you mean where=? Predicates go by that name"]
    )


def test_a_marker_that_swallowed_a_test_is_an_error(run: Run) -> None:
    # pytest marks the predicate; the predicate, used as a decorator, then turns the test below it into a bool
    suite = "import pytest\n\ndef small(n): return True\n\n" + SUITE.replace("mark.pairwise", "mark.pairwise(small)")
    result = run(suite)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [
            "pairwise: the marker stands on 'small', which is not a test (in test_m.py)",
            "next: give predicates as where=*",
        ]
    )


def test_marked_methods_and_aliases_of_marked_functions_are_tests(run: Run) -> None:
    suite = SUITE.replace("def test_product", "def product") + "\ntest_alias = product\n"
    suite += "\nclass Base:\n    @pytest.mark.pairwise\n    @pytest.mark.parametrize('a', [1, 2])\n"
    suite += "    def test_b(self, a): pass\n\nclass TestC(Base): pass\n"
    run(suite).assert_outcomes(passed=14)


def test_a_marker_of_its_own_on_a_function_without_axes_is_an_error(run: Run) -> None:
    result = run("import pytest\n@pytest.mark.pairwise\ndef test_plain(): pass")
    result.stdout.fnmatch_lines(["pairwise: the marker stands on a function without axes (marker of *::test_plain)"])


def test_values_that_no_allowed_case_holds_are_told(run: Run) -> None:
    result = run(SUITE.replace("mark.pairwise", "mark.pairwise(where=lambda a, b: a < 3 or b > 5)"))
    result.stdout.fnmatch_lines(["*::test_product: axis 'a': no allowed case holds 3, 4"])


def test_capped_strengths_and_notes_of_whole_suites_do_not_flood_the_summary(run: Run) -> None:
    suite = SUITE.replace("@pytest.mark.pairwise\n", "") + SUITE.replace("@pytest.mark.pairwise\n", "").replace(
        "test_product", "test_other"
    ).replace("[1, 2, 3, 4]", "[1, 1, '1']")
    result = run(suite, "--pairwise-over=1", "--pairwise-strength=5")
    result.stdout.fnmatch_lines(
        ["2 functions: strength 5 (from --pairwise-strength) is above its 3 axes, so 3 is used"]
    )
    result.stdout.no_fnmatch_line("*repeats*")


def test_only_functions_defined_here_and_never_collected_are_refused(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(base=SUITE)
    suite = "from base import test_product as _product\n" + SUITE.replace("test_product", "check")
    run(suite + "\ncheck.__test__ = True\n").assert_outcomes(passed=12)


def test_a_predicate_with_a_bound_argument_keeps_it(run: Run) -> None:
    suite = "import functools\n\ndef below(a, b): return a + b < 4\n\n"
    suite += SUITE.replace("mark.pairwise", "mark.pairwise(where=functools.partial(below, b=1))")
    run(suite).stdout.fnmatch_lines(["*::test_product: axis 'a': no allowed case holds 3, 4"])


def test_functions_with_the_same_axes_share_one_search(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = import_module("testkit.pairwise._plan")
    searches = []
    cover = plan.cover
    monkeypatch.setattr(plan, "cover", lambda *given, **named: searches.append(given) or cover(*given, **named))
    run(SUITE + SUITE.replace("test_product", "test_other")).assert_outcomes(passed=24)
    assert len(searches) == 1
