"""Further cases that tell suspects apart: which one is chosen, and how they run in the session of the failure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from random import Random

import pytest

from testkit.pairwise._axes import make_axes
from testkit.pairwise._engine import cover
from testkit.pairwise._isolate import next_case
from testkit.pairwise._model import Model, Row
from testkit.pairwise._plan import make_model
from testkit.pairwise._suspects import Finding, find_suspects

PLUGIN = ("-p", "testkit.pairwise.plugin")
Fault = dict[int, int]


def model_of(levels: Sequence[int], where: Callable[..., bool] | None = None) -> Model:
    axes = make_axes({name: list(range(size)) for name, size in zip("abcdefghijklm", levels, strict=False)})
    return make_model(axes, strength=2, full=(), where=where)


def holds(row: Sequence[int], fault: Fault) -> bool:
    return all(row[axis] == level for axis, level in fault.items())


def isolate(model: Model, planted: Sequence[Fault], cases: int = 12) -> tuple[Finding, list[Row], int]:
    """The finding after up to so many further cases, those cases, and how many of them failed."""
    sample = cover(model, seed=0, effort="default", engine="testkit")
    failed = [row for row in sample if any(holds(row, fault) for fault in planted)]
    passed = [row for row in sample if row not in failed]
    assert failed, "planted where the sample sees it"
    further: list[Row] = []
    before = len(failed)
    while len(further) < cases and (row := next_case(model, passed, failed)) is not None:
        further.append(row)
        (failed if any(holds(row, fault) for fault in planted) else passed).append(row)
    return find_suspects(model.levels, passed, failed), further, len(failed) - before


def seen_faults(model: Model, size: int, count: int) -> list[Fault]:
    random = Random(size)
    sample = cover(model, seed=0, effort="default", engine="testkit")
    rows = [random.choice(sample) for _ in range(count)]
    return [{axis: row[axis] for axis in sorted(random.sample(range(len(row)), size))} for row in rows]


MODELS = {
    "gemm": model_of((16, 4, 6, 2, 2, 3, 2)),
    "shapes": model_of((18, 2, 2, 2, 3, 2)),
    "3^10": model_of((3,) * 10),
    "rule": model_of((6, 5, 4, 3, 2, 2), where=lambda a, b, c: a + b + c < 9),
}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_twelve_further_cases_name_the_planted_combination_exactly(name: str, size: int) -> None:
    model, exact = MODELS[name], 0
    faults = seen_faults(model, size, 20)
    for fault in faults:
        finding, _, _ = isolate(model, [fault])
        named = [tuple(zip(one.axes, one.cells[0], strict=True)) for one in finding.suspects if len(one.cells) == 1]
        exact += finding.settled and named == [tuple(fault.items())]
    assert exact >= 18  # nine in ten


def test_two_faults_are_both_named() -> None:
    faults = [{0: 3, 3: 1}, {2: 4, 5: 2, 6: 0}]
    finding, _, _ = isolate(MODELS["gemm"], faults)
    assert {(one.axes, one.cells) for one in finding.suspects} == {((0, 3), ((3, 1),)), ((2, 5, 6), ((4, 2, 0),))}


def test_a_case_that_holds_the_suspect_and_else_first_values_confirms_it() -> None:
    _, further, failed = isolate(MODELS["gemm"], [{0: 3, 3: 1}])
    assert [3, 0, 0, 1, 0, 0, 0] in further
    assert failed >= 1


def test_every_further_case_is_new_allowed_and_holds_only_values_that_ran() -> None:
    model = MODELS["rule"]
    sample = cover(model, seed=0, effort="default", engine="testkit")
    without = [row for row in sample if row[3] != 2]  # say, its cases are deselected
    failed = [row for row in without if holds(row, {0: 1, 4: 1})]
    passed = [row for row in without if row not in failed]
    tried: list[Row] = []
    while (row := next_case(model, passed, failed, tried)) is not None:
        assert row not in (*passed, *failed, *tried)
        assert model.space.allows(row)
        assert row[3] != 2
        tried.append(row)  # skipped: neither passed nor failed
        assert len(tried) < 2000
    assert tried


def test_nothing_is_chosen_where_nothing_passed_or_nothing_failed() -> None:
    model = MODELS["gemm"]
    sample = cover(model, seed=0, effort="default", engine="testkit")
    assert next_case(model, [], sample) is None
    assert next_case(model, sample, []) is None


def test_the_search_ends_when_all_is_told_apart() -> None:
    _, further, _ = isolate(model_of((3, 3, 2)), [{0: 1, 1: 2}], cases=1000)
    assert len(further) < 9


def test_a_failing_case_that_the_predicates_refuse_is_left_alone() -> None:
    model = MODELS["rule"]
    sample = cover(model, seed=0, effort="default", engine="testkit")
    assert next_case(model, sample, [[5, 4, 3, 0, 0, 0]]) is None


# ---------------------------------------------------------------- inside pytest

SUITE = """
import pytest

def product(test):
    for name, values in (("a", [1, 2, 3]), ("b", "xyz"), ("c", [False, True]), ("d", [10, 20, 30]), ("e", "pqr")):
        test = pytest.mark.parametrize(name, values)(test)
    return test

@pytest.mark.pairwise
@product
def test_f(a, b, c, d, e):
    assert not (a == 2 and c and d == 30)

def test_other():
    pass
"""
NAMED = "  * of * failures have a=2 and c=True and d=30; 0 of * passing cases do"


def test_further_cases_run_in_the_same_session_as_ordinary_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE)
    full = set(pytester.runpytest_inprocess(*PLUGIN, "--co", "-q", "--no-pairwise").outlines)
    chosen = pytester.runpytest_inprocess(*PLUGIN, "--co", "-q").outlines
    result = pytester.runpytest_inprocess(*PLUGIN, "-v", "--pairwise-isolate=12")
    ran = [line.split()[0] for line in result.outlines if line.endswith("%]")]
    further = [nodeid for nodeid in ran if nodeid not in chosen]
    assert 1 <= len(further) <= 12
    assert full.issuperset(further)
    assert ran.index("test_m.py::test_other") == len(ran) - 1
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*: * of * cases failed (10 chosen + {len(further)} to isolate)", NAMED])
    result.stdout.no_fnmatch_line("next: *")
    assert sum(result.parseoutcomes().values()) == 11 + len(further)


def test_the_printed_command_reproduces_the_smallest_failing_case(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE)
    lines = pytester.runpytest_inprocess(*PLUGIN, "--pairwise-isolate=12").outlines
    command = next(line.partition(": ")[2] for line in lines if "smallest failing case" in line)
    assert command == "pytest 'test_m.py::test_f[2-x-True-30-p]'"
    pytester.runpytest_inprocess(*PLUGIN, *shlex.split(command)[1:]).assert_outcomes(failed=1)


def test_the_command_holds_from_the_folder_where_pytest_was_called(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE)
    pytester.makeini("[pytest]")
    pytester._monkeypatch.chdir(pytester.mkdir("deep"))
    result = pytester.runpytest_inprocess(*PLUGIN, "--pairwise-isolate=12", "..")
    result.stdout.fnmatch_lines(["  smallest failing case: pytest '../test_m.py::test_f[[]2-x-True-30-p[]]'"])


def test_without_the_option_suspects_are_told_and_the_option_is_offered(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE)
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(passed=10, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*::test_f: 1 of 10 cases failed",
            "  1 of 1 failure has *; 0 of 9 passing cases do",
            "  just as well: *",
            "next: pytest test_m.py::test_f --pairwise-isolate=12  (up to 12 *",
        ]
    )


def test_the_option_is_offered_for_a_function_whose_suspects_are_in_doubt(pytester: pytest.Pytester) -> None:
    certain = "import pytest\n@pytest.mark.pairwise\n@pytest.mark.parametrize('a', [1, 2, 3])\n"
    certain += "@pytest.mark.parametrize('b', [1, 2, 3])\ndef test_f(a, b): assert a != 2\n"
    pytester.makepyfile(test_a=certain, test_m=SUITE)
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(
        ["  3 of 3 failures have a=2; *", "next: pytest test_m.py::test_f --pairwise-isolate=12 *"]
    )


CERTAIN = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", [1, 2, 3])
@pytest.mark.parametrize("c", ["only"])
def test_f(a, b, c):
    assert a != 2 or b == OTHER
"""


def test_nothing_is_offered_where_no_larger_combination_fits_the_failures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=CERTAIN.replace("OTHER", "0"))
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(["  3 of 3 failures have a=2; 0 of 6 passing cases do"])
    result.stdout.no_fnmatch_line("next: *")


def test_an_axis_of_one_value_is_no_part_of_a_suspect(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=CERTAIN.replace("a != 2 or b == OTHER", "(a, b) != (2, 2)"))
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(["  1 of 1 failure has b=2 and a=2; 0 of 8 passing cases do"])
    for word in ("  just as well: *", "next: *"):
        result.stdout.no_fnmatch_line(word)


def test_confirming_is_offered_where_the_failing_cases_share_more_than_the_suspect(pytester: pytest.Pytester) -> None:
    skip = "if a == 2 and b != 2: pytest.skip('planted')\n    assert a != 2"
    pytester.makepyfile(test_m=CERTAIN.replace("assert a != 2 or b == OTHER", skip))
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(
        [
            "  1 of 1 failure has a=2; 0 of 6 passing cases do",
            "next: pytest test_m.py::test_f --pairwise-isolate=12  (*, to confirm what is suspected)",
        ]
    )


MULTIPLIED = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", ["x", "y"])
    return (yield)
"""


def test_a_case_that_another_plugin_made_several_of_is_named_as_it_failed(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(MULTIPLIED)
    fault = "not (backend == 'y' and a == 2 and c and d == 30)"
    pytester.makepyfile(
        test_m=SUITE.replace("d, e):", "d, e, backend):").replace("not (a == 2 and c and d == 30)", fault)
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "--pairwise-isolate=12")
    result.assert_outcomes(passed=20, failed=1)
    result.stdout.fnmatch_lines(
        [
            "  smallest failing case: pytest 'test_m.py::test_f[[]y-*",
            "  no further cases: another plugin makes several tests of each case",
        ]
    )


def test_nothing_is_told_or_run_where_nothing_failed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE.replace("assert not", "assert True or"))
    result = pytester.runpytest_inprocess(*PLUGIN, "--pairwise-isolate=12")
    result.assert_outcomes(passed=11)
    for word in ("* cases failed*", "*to isolate*", "next: *"):
        result.stdout.no_fnmatch_line(word)


def test_no_more_cases_run_than_asked_for_and_the_ini_key_asks_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE)
    pytester.makeini("[pytest]\npairwise_isolate = 2")
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(["*(10 chosen + 2 to isolate)"])
    result.stdout.no_fnmatch_line("next: *")


@pytest.mark.parametrize("value", ["0", "many"])
def test_a_bad_number_is_one_line_and_a_usage_error(pytester: pytest.Pytester, value: str) -> None:
    result = pytester.runpytest_inprocess(*PLUGIN, f"--pairwise-isolate={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: pairwise: pairwise-isolate is '{value}', not a whole number from 1 up *"])


def test_under_xdist_suspects_are_told_and_nothing_further_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE)
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "xdist.plugin", "-n2", "--pairwise-isolate=5")
    result.assert_outcomes(passed=10, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*::test_f: 1 of 10 cases failed",
            "  1 of 1 failure has *",
            "next: pytest test_m.py::test_f --pairwise-isolate=5  (without -n; up to 5 *",
        ]
    )


def test_a_run_that_stops_at_the_first_failure_runs_nothing_further(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE)
    result = pytester.runpytest_inprocess(*PLUGIN, "-x", "--pairwise-isolate=12")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.no_fnmatch_line("*to isolate)")
    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])


def test_collecting_only_and_collection_errors_are_left_to_pytest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE)
    assert pytester.runpytest_inprocess(*PLUGIN, "--co", "--pairwise-isolate=3").ret == 0
    pytester.makepyfile(test_broken="raise ValueError")
    result = pytester.runpytest_inprocess(*PLUGIN, "--pairwise-isolate=3")
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_a_skip_in_a_further_case_counts_as_neither(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m=SUITE.replace(
            "    assert not", "    if (a, c, d, b) == (2, True, 30, 'x'): pytest.skip('not here')\n    assert not"
        )
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "-rs", "--pairwise-isolate=12")
    outcomes = result.parseoutcomes()
    counts = next(line for line in result.outlines if "cases failed (" in line)
    assert f" {outcomes['failed']} of {outcomes['failed'] + outcomes['passed'] - 1} cases failed" in counts


def test_a_set_up_that_failed_says_nothing_where_bodies_failed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest

        @pytest.fixture
        def loaded(a, b):
            assert (a, b) != (1, 1)

        @pytest.mark.pairwise
        @pytest.mark.parametrize("a", [1, 2, 3])
        @pytest.mark.parametrize("b", [1, 2, 3])
        def test_body(a, b, loaded):
            assert a != 3

        @pytest.mark.pairwise
        @pytest.mark.parametrize("a", [1, 2, 3])
        @pytest.mark.parametrize("b", [1, 2, 3])
        def test_set_up(a, b, loaded):
            pass
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(
        [
            "*::test_body: 3 of 8 cases failed",
            "  3 of 3 failures have a=3; 0 of 5 passing cases do",
            "*::test_set_up: 1 of 9 cases failed",
            "  1 of 1 failure has *a=1*; 0 of 8 passing cases do",
        ]
    )


SCOPES = """
import pytest

LOG = []

@pytest.fixture(scope="session", autouse=True)
def session():
    LOG.append("session"); yield; LOG.append("/session")
    print("LOG", *LOG)

@pytest.fixture(scope="module", autouse=True)
def module(session):
    LOG.append("module"); yield; LOG.append("/module")

@pytest.fixture(scope="class", params=["cpu", "gpu"])
def device(request):
    LOG.append(request.param); yield request.param; LOG.append("/" + request.param)

@pytest.fixture
def scaled(request):
    return request.param * 10

@pytest.mark.pairwise
class TestC:
    @pytest.mark.parametrize("scaled", [1, 2, 3], indirect=True)
    @pytest.mark.parametrize("b,c", [(1, 2), (1, 3), (2, 2)])
    @pytest.mark.parametrize("d", [pytest.param(1, id="one"), 2, pytest.param(3, marks=pytest.mark.skip)])
    @pytest.mark.parametrize("e", [1, 2])
    def test_f(self, device, scaled, b, c, d, e):
        assert (device, scaled) != ("cpu", 20)
"""


@pytest.mark.parametrize("after", ["", "def test_z(): pass\n"], ids=["last", "not last"])
def test_fixtures_of_every_scope_are_set_up_and_torn_down_in_order(pytester: pytest.Pytester, after: str) -> None:
    pytester.makepyfile(test_m=SCOPES, test_z="def test_z(): pass\n" if after else "")
    result = pytester.runpytest_inprocess(*PLUGIN, "-s", "--pairwise-isolate=12")
    result.stdout.fnmatch_lines(["*chosen + * to isolate)", "  * failures have *device=cpu*; *"])
    logs = [line.partition("LOG ")[2].split() for line in result.outlines if "LOG " in line]
    assert len(logs) >= 1
    live: list[str] = []
    for event in logs[-1]:
        if event.startswith("/"):
            assert live.pop() == event[1:]
        else:
            live.append(event)
    assert not live
    assert logs[-1].count("session") == 1
    assert logs[-1].count("module") == 1
    plain = pytester.runpytest_inprocess(*PLUGIN)
    assert result.parseoutcomes()["skipped"] == plain.parseoutcomes()["skipped"]  # of a value that only skips, no more


def test_fixtures_are_set_up_again_where_only_the_last_test_of_all_failed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest

        @pytest.fixture(scope="module", autouse=True)
        def module():
            print("LOG up"); yield; print("LOG down")

        @pytest.mark.pairwise
        @pytest.mark.parametrize("a", [1, 2, 3])
        @pytest.mark.parametrize("b", [1, 2, 3])
        @pytest.mark.parametrize("c", [1, 2, 3])
        def test_f(a, b, c):
            assert (c, b) != (3, 3)
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "-s", "--pairwise-isolate=12")
    log = [line.partition("LOG ")[2] for line in result.outlines if "LOG " in line]
    assert log == ["up", "down"] * (len(log) // 2)
    assert len(log) >= 4
    result.stdout.fnmatch_lines(["  * failures have c=3 and b=3; *"])


def test_a_further_case_of_a_repeated_test_runs_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE)
    pytester.makeconftest(
        """
        def pytest_generate_tests(metafunc):
            if "a" in metafunc.fixturenames:
                metafunc.fixturenames.append("__repeat")
                metafunc.parametrize("__repeat", range(2))
        """
    )
    full = set(pytester.runpytest_inprocess(*PLUGIN, "--co", "-q", "--no-pairwise").outlines)
    chosen = pytester.runpytest_inprocess(*PLUGIN, "--co", "-q").outlines
    result = pytester.runpytest_inprocess(*PLUGIN, "-v", "--pairwise-isolate=12")
    further = [line.split()[0] for line in result.outlines if line.endswith("%]") and line.split()[0] not in chosen]
    assert further
    assert full.issuperset(further)
    result.stdout.fnmatch_lines([f"*(10 chosen + {len(further)} to isolate)", NAMED])


def test_marks_of_the_values_are_on_further_cases_and_a_hook_sees_each_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_m=SUITE.replace("[False, True]", "[False, pytest.param(True, marks=pytest.mark.wide)]"))
    pytester.makeini("[pytest]\nmarkers = wide")
    pytester.makeconftest(
        """
        import pytest

        seen = []

        def pytest_itemcollected(item):
            seen.append(item.nodeid)

        def pytest_runtest_setup(item):
            spec = getattr(item, "callspec", None)
            assert spec is None or spec.params["c"] == (item.get_closest_marker("wide") is not None)

        def pytest_sessionfinish():
            assert len(seen) == len(set(seen))
            print("SEEN", len(seen))
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "-s", "--pairwise-isolate=12")
    result.stdout.fnmatch_lines(["*SEEN *", NAMED])
    assert "error" not in result.parseoutcomes()
