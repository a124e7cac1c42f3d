"""Ini ``pairwise_rules``: which line counts for a function, what it sets, and how bad lines are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testkit.errors import PairwiseError
from testkit.pairwise._rules import parse_rules

Run = Callable[..., pytest.RunResult]

SUITE = """
import pytest

@pytest.mark.parametrize("c", [1, 2, 3])
@pytest.mark.parametrize("b", [1, 2, 3])
@pytest.mark.parametrize("a", [1, 2, 3, 4])
def test_product(a, b, c):
    pass

class TestClass:
    @pytest.mark.parametrize("c", [1, 2])
    @pytest.mark.parametrize("b", [1, 2])
    @pytest.mark.parametrize("a", [1, 2])
    def test_method(self, a, b, c):
        pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Runs the suite with these lines in its ini file."""

    def run(rules: str, *arguments: str, suite: str = SUITE) -> pytest.RunResult:
        pytester.makepyfile(test_m=suite)
        lines = "".join(f"\n    {line}" for line in rules.splitlines())
        pytester.makeini(f"[pytest]\npairwise_rules ={lines}")
        return pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin", *arguments)

    return run


def test_of_the_lines_that_match_the_last_one_counts_whole() -> None:
    rules = parse_rules(["* strength=3 full=n", "tests/a/*::test_x over=9", "", "tests/b/*  where=m:f"])
    one, other, third = (rules.of(name) for name in ("tests/a/b/t.py::C::test_x", "tests/b/t.py::test_x", "t.py::f"))
    assert one is not None
    assert (one.strength, one.full, one.over) == (None, "", 9)
    assert other is not None
    assert (other.strength, other.where, other.over) == (None, "m:f", 0)
    assert third is not None
    assert (third.strength, third.full, third.source) == (3, "n", "from ini pairwise_rules, line 1")


def test_a_pattern_is_for_the_whole_node_id_and_case_matters() -> None:
    rules = parse_rules(["tests/a.py::test_x", "*Gemm*"])
    assert rules.of("tests/a.py::test_x") is not None
    assert rules.of("tests/a.py::test_xy") is None
    assert rules.of("tests/test_gemm.py::test_y") is None


def test_lines_that_matched_nothing_are_known_once_functions_were_asked_about() -> None:
    rules = parse_rules(["*::test_a", "*::test_b", "*"])
    assert rules.unmatched() == []
    rules.of("t.py::test_a")
    assert rules.unmatched() == [
        "'*::test_b' matched no collected function without the marker (from ini pairwise_rules, line 2)"
    ]


BAD = [
    ("* strength", "'strength' is no setting", "without spaces"),
    ("* strength=", "'strength=' is no setting", "without spaces"),
    ("* strengh=2", "a rule has no setting 'strengh'", "did you mean 'strength'"),
    ("* seed=2", "a rule has no setting 'seed'", "use strength, full, where, over"),
    ("* strength=2 strength=3", "strength stands twice", "once"),
    ("* strength=0", "strength is '0', not a whole number from 1 up", "1 or more"),
    ("* over=many", "over is 'many', not a whole number from 1 up", "1 or more"),
    ("* where=fits", "where is 'fits'", "module:function"),
    ("strength=2", "'strength=2' begins with a setting", "pattern"),
]


@pytest.mark.parametrize(("line", "problem", "fix"), BAD)
def test_a_bad_line_is_refused_with_its_number(line: str, problem: str, fix: str) -> None:
    with pytest.raises(PairwiseError, match="from ini pairwise_rules, line 2") as caught:
        parse_rules(["* over=5", line])
    assert caught.value.problem == problem
    assert fix in caught.value.fix


def test_a_bad_line_is_a_usage_error(run: Run) -> None:
    result = run("* strength=two")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*strength is 'two', not a whole number from 1 up (from ini pairwise_rules, line 1)"])


def test_rules_thin_unmarked_functions_with_no_edit(run: Run) -> None:
    result = run("*::test_product")
    result.assert_outcomes(passed=12 + 8)
    result.stdout.fnmatch_lines(["test_m.py::test_product: 36 -> 12 cases, 33 owed pairs, 100 % ran"])


def test_strength_and_full_of_a_rule_are_used(run: Run) -> None:
    run("* strength=1\n*::test_method strength=3").assert_outcomes(passed=4 + 8)
    run("*::test_product strength=1 full=b,c").assert_outcomes(passed=9 + 8)


def test_a_strength_above_the_axes_is_capped_and_said(run: Run) -> None:
    result = run("* strength=5")
    result.assert_outcomes(passed=36 + 8)
    result.stdout.fnmatch_lines(
        ["2 functions: strength 5 (from ini pairwise_rules, line 1) is above its 3 axes, so 3 is used"]
    )


def test_over_of_a_rule_leaves_smaller_functions_whole(run: Run) -> None:
    run("* over=8").assert_outcomes(passed=12 + 8)
    run("* over=7").assert_outcomes(passed=12 + 4)


def test_a_rule_beats_pairwise_over_and_the_rest_is_left_to_it(run: Run) -> None:
    run("*::test_product over=100", "--pairwise-over=2").assert_outcomes(passed=36 + 4)


def test_the_marker_beats_every_rule(run: Run) -> None:
    marked = SUITE.replace("@pytest", "@pytest.mark.pairwise(1)\n@pytest", 1)
    run("*::test_product strength=3", suite=marked).assert_outcomes(passed=4 + 8)


def test_no_pairwise_switches_rules_off(run: Run) -> None:
    run("*", "--no-pairwise").assert_outcomes(passed=36 + 8)


def test_a_predicate_is_imported_and_holds_for_every_case(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(rules_of_m="def fits(a, b):\n    return a + b < 5\n")
    result = run("*::test_product where=rules_of_m:fits", "-v")
    result.assert_outcomes(passed=11 + 8)
    result.stdout.no_fnmatch_line("*test_product[[]4-*")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("nowhere_m:fits", "*where=nowhere_m:fits cannot be imported: ModuleNotFoundError:*, line 1)"),
        ("skipping_m:fits", "*where=skipping_m:fits cannot be imported: Skipped: not here (from ini*, line 1)"),
        ("holding_m:missing", "*where=holding_m:missing cannot be imported: AttributeError:*"),
        ("holding_m:number", "*where=holding_m:number is 3, not a predicate*"),
    ],
)
def test_a_predicate_that_is_not_there_fails_the_file(
    run: Run, pytester: pytest.Pytester, where: str, message: str
) -> None:
    pytester.makepyfile(
        skipping_m="import pytest\npytest.skip('not here', allow_module_level=True)", holding_m="number = 3"
    )
    result = run(f"*::test_product where={where}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_an_argument_that_the_function_lacks_names_the_line_and_the_function(run: Run) -> None:
    result = run("* full=n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*full*'n'*(from ini pairwise_rules, line 1, test_m.py::test_product)"])


def test_a_line_that_matches_nothing_is_told_unless_paths_are_named(run: Run) -> None:
    run("*::test_produkt").stdout.fnmatch_lines(
        ["*- pairwise -*", "'[*]::test_produkt' matched no collected function without the marker (from ini *, line 1)"]
    )
    run("*::test_produkt", "test_m.py").stdout.no_fnmatch_line("*matched no collected*")


@pytest.mark.parametrize("option", ["--lf", "--ignore=test_b.py", "--ignore-glob=*_b.py"])
def test_a_run_that_leaves_files_out_tells_of_no_rule(run: Run, pytester: pytest.Pytester, option: str) -> None:
    pytester.makepyfile(test_b=SUITE)
    fails = SUITE.replace("pass", "assert (a, b, c) != (1, 1, 1)", 1)
    run("test_b.py::*", suite=fails).assert_outcomes(passed=35 + 8 + 12 + 4, failed=1)
    result = run("test_b.py::*", option, suite=fails)
    assert result.ret == 1
    result.stdout.no_fnmatch_line("*matched no collected*")


@pytest.mark.parametrize("option", ["", "-x", "--continue-on-collection-errors"])
@pytest.mark.parametrize("line", ["pytest.importorskip('planted_name')", "import planted_name"])
def test_a_file_that_is_not_there_today_makes_no_rule_stale(
    run: Run, pytester: pytest.Pytester, line: str, option: str
) -> None:
    pytester.makepyfile(test_z=f"import pytest\n{line}")
    result = run("test_z.py::*", *filter(None, [option]))
    result.stdout.no_fnmatch_line("*matched no collected*")


def test_a_run_from_a_folder_below_tells_of_no_rule(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(**{"below/test_b": SUITE})
    monkeypatch.chdir(pytester.path / "below")
    result = run("test_m.py::*")
    result.assert_outcomes(passed=36 + 8)
    result.stdout.no_fnmatch_line("*matched no collected*")


def test_rules_hold_on_every_worker(run: Run) -> None:
    result = run("*::test_product", "-p", "xdist", "-n2")
    result.assert_outcomes(passed=12 + 8)
    result.stdout.fnmatch_lines(["test_m.py::test_product: 36 -> 12 cases, 33 owed pairs, 100 % ran"])


def test_lines_come_from_pyproject_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE)
    table = "tool.pytest" if pytest.version_tuple[0] >= 9 else "tool.pytest.ini_options"
    pytester.makepyprojecttoml(f'[{table}]\npairwise_rules = ["*", "*::test_method over=8"]')
    pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin").assert_outcomes(passed=12 + 8)
