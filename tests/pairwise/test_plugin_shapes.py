"""Whatever pytest makes of a product, thinning keeps a subset of it: the same ids, in the same order, with the same
marks, values and scopes. Each row of the table is one way to parametrize; all run on every supported pytest."""

from __future__ import annotations

import re

import pytest

# Every suite has test_f; its cases print what they got, so that runs can be compared case by case.
SHAPES = {
    "stacked decorators": """
@pytest.mark.pairwise
@pytest.mark.parametrize("c", ["x", "y", "z"])
@pytest.mark.parametrize("b", [None, 1.5, True])
@pytest.mark.parametrize("a", [1, 2, 3])
def test_f(a, b, c): show(a, b, c)
""",
    "one decorator for several arguments": """
@pytest.mark.pairwise
@pytest.mark.parametrize("c", ["x", "y"])
@pytest.mark.parametrize("n,k", [(1, 2), (3, 4), (5, 6)])
@pytest.mark.parametrize(("d", "e"), [(1, 2), (3, 4)])
def test_f(n, k, c, d, e): show(n, k, c, d, e)
""",
    "class and module marks": """
pytestmark = [pytest.mark.pairwise, pytest.mark.parametrize("a", [1, 2, 3])]
@pytest.mark.parametrize("b", "xyz")
class TestC:
    @pytest.mark.parametrize("c", [1, 2])
    def test_f(self, a, b, c): show(a, b, c)
""",
    "params with ids and marks": """
@pytest.mark.pairwise
@pytest.mark.parametrize("c", [pytest.param(1, id="one"), pytest.param(2, marks=pytest.mark.xfail), 3])
@pytest.mark.parametrize("b", [pytest.param(1, marks=[pytest.mark.skip(reason="no")]), 2, 3])
@pytest.mark.parametrize("a", [1, 2])
def test_f(a, b, c): show(a, b, c)
""",
    "indirect": """
@pytest.fixture
def b(request): return ("b", request.param)
@pytest.mark.pairwise(where=lambda b, a: b != "p" or a == 1)
@pytest.mark.parametrize("c", [1, 2])
@pytest.mark.parametrize("b", ["p", "q", "r"], indirect=True)
@pytest.mark.parametrize("a", [1, 2, 3])
def test_f(a, b, c): show(a, b, c)
""",
    "indirect by name": """
@pytest.fixture
def b(request): return ("b", request.param)
@pytest.mark.pairwise
@pytest.mark.parametrize("a,b", [(1, "p"), (2, "q")], indirect=["b"])
@pytest.mark.parametrize("c", [1, 2, 3])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_f(a, b, c, d): show(a, b, c, d)
""",
    "parametrized fixtures": """
@pytest.fixture(params=["f1", "f2", pytest.param("f3", id="third")])
def fx(request): return request.param
@pytest.fixture(params=[10, 20], ids=["ten", "twenty"], autouse=True)
def auto(request): return request.param
@pytest.mark.pairwise
@pytest.mark.parametrize("a", [1, 2, 3])
def test_f(a, fx, auto): show(a, fx, auto)
""",
    "fixtures of higher scope": """
@pytest.fixture(scope="module", params=["m1", "m2"])
def module_fx(request): return request.param
@pytest.fixture(scope="session", params=["s1", "s2", "s3"])
def session_fx(request): return request.param
@pytest.mark.pairwise
@pytest.mark.parametrize("a", [1, 2, 3])
def test_f(a, module_fx, session_fx): show(a, module_fx, session_fx)
@pytest.mark.pairwise
@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize("a", [1, 2])
def test_g(a, b, session_fx): show(a, b, session_fx)
""",
    "marks with a scope": """
@pytest.mark.pairwise
@pytest.mark.parametrize("c", [1, 2], scope="class")
@pytest.mark.parametrize("b", [1, 2, 3], scope="module")
@pytest.mark.parametrize("a", [1, 2, 3])
def test_f(a, b, c): show(a, b, c)
""",
    "a hook in the module": """
def pytest_generate_tests(metafunc):
    if "a" in metafunc.fixturenames:
        metafunc.parametrize("a", [1, 2, 3], ids=["i", "ii", "iii"])
        metafunc.parametrize("b", (x for x in "xyz"))
@pytest.mark.pairwise
@pytest.mark.parametrize("c", [1, 2])
def test_f(a, b, c): show(a, b, c)
""",
    "ids from functions and lists": """
@pytest.mark.pairwise
@pytest.mark.parametrize("c", [1, 2], ids=lambda v: f"c{v}")
@pytest.mark.parametrize("b", [(1, 2), (3, 4), object], ids=["p", None, "r"])
@pytest.mark.parametrize("a", [1, 2, 3], ids=(f"g{i}" for i in range(9)))
def test_f(a, b, c): show(a, b, c)
""",
    "values without text": """
class Shape:
    pass
@pytest.mark.pairwise
@pytest.mark.parametrize("c", [{"k": 1}, [1], set()])
@pytest.mark.parametrize("b", [Shape(), Shape(), lambda: 0])
@pytest.mark.parametrize("a", [1, 2])
def test_f(a, b, c): show(a, type(b).__name__, c)
""",
    "one axis": """
@pytest.mark.pairwise(where=lambda a: a != 2)
@pytest.mark.parametrize("a", [1, 2, 3])
def test_f(a): show(a)
""",
    "kept and crossed": """
@pytest.mark.pairwise(full=("a", "b", "c"), keep={"a": 3, "d": "w"})
@pytest.mark.parametrize("d", "wxyz")
@pytest.mark.parametrize("c", [1, 2])
@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize("a", [1, 2, 3])
def test_f(a, b, c, d): show(a, b, c, d)
""",
}
HEAD = "import pytest\n\ndef show(*values): print('got', *values)\n"


def _cases(result: pytest.RunResult) -> list[str]:
    """The node ids that ``--collect-only -q`` lists, in order."""
    return [line for line in result.outlines if re.match(r"test_m\.py::\S+\[", line)]


@pytest.mark.parametrize("shape", SHAPES)
def test_thinned_cases_are_a_subset_of_the_full_product_in_its_order(pytester: pytest.Pytester, shape: str) -> None:
    pytester.makepyfile(test_m=HEAD + SHAPES[shape])
    arguments = ("-p", "testkit.pairwise.plugin", "--collect-only", "-q")
    full = _cases(pytester.runpytest_inprocess(*arguments, "--no-pairwise"))
    thinned = _cases(pytester.runpytest_inprocess(*arguments))
    assert thinned
    assert len(thinned) <= len(full)
    assert len(set(thinned)) == len(thinned)
    if "scope" not in shape:  # pytest itself regroups those
        assert thinned == [case for case in full if case in set(thinned)]
    assert set(thinned) <= set(full)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_thinned_case_gets_the_same_values_and_outcome_as_in_the_full_product(
    pytester: pytest.Pytester, shape: str
) -> None:
    pytester.makepyfile(test_m=HEAD + SHAPES[shape])
    arguments = ("-p", "testkit.pairwise.plugin", "-v", "-s", "-rN")
    full = _runs(pytester.runpytest_inprocess(*arguments, "--no-pairwise"))
    thinned = _runs(pytester.runpytest_inprocess(*arguments))
    assert thinned
    assert thinned.items() <= full.items()


def _runs(result: pytest.RunResult) -> dict[str, str]:
    """From a verbose run the outcome of each case and the values that it printed, by node id."""
    runs: dict[str, str] = {}
    nodeid = ""
    for line in result.outlines:
        if re.match(r"test_m\.py::\S+\[", line):
            nodeid, _, rest = line.partition(" ")
            runs[nodeid] = re.sub(r"\s*\[ *\d+%\]$", "", rest).strip()
        elif nodeid and line.split(" ")[0] in ("PASSED", "FAILED", "XFAIL", "XPASS", "SKIPPED"):
            runs[nodeid] += " " + line.split(" ")[0]
    return runs


@pytest.mark.parametrize("shape", SHAPES)
def test_every_owed_pair_is_planned_and_the_share_that_ran_is_counted(pytester: pytest.Pytester, shape: str) -> None:
    pytester.makepyfile(test_m=HEAD + SHAPES[shape])
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin", "--pairwise-report")
    lines = [line for line in result.outlines if " -> " in line]
    assert lines
    if shape == "params with ids and marks":
        result.stdout.fnmatch_lines(["*::test_f: ? of 21 owed pairs did not run", "  *b=1*skipped: no"])
    else:
        assert all(line.endswith(", 100 % ran") for line in lines), lines


def test_outer_wrappers_of_other_plugins_see_the_thinned_calls(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_generate_tests(metafunc):
            yield
            print("calls", len(metafunc._calls))
        """
    )
    pytester.makepyfile(test_m=HEAD + SHAPES["stacked decorators"])
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin", "-s")
    result.stdout.fnmatch_lines(["*calls 9"])


def test_an_argument_that_repeats_tests_is_not_thinned(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def __repeat_step(request): return request.param

        @pytest.hookimpl(trylast=True)
        def pytest_generate_tests(metafunc):
            metafunc.fixturenames.append("__repeat_step")
            metafunc.parametrize("__repeat_step", range(5), indirect=True)
        """
    )
    pytester.makepyfile(test_m=HEAD + SHAPES["stacked decorators"])
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin")
    result.assert_outcomes(passed=45)
    result.stdout.fnmatch_lines(["*27 -> 45 cases, 27 owed pairs, 100 % ran"])


def test_a_set_as_axis_is_put_into_one_order(pytester: pytest.Pytester) -> None:
    # Case of pytest-dev/pytest-xdist issue 598: a set's order changes with the hash seed.
    pytester.makepyfile(
        test_m="""
        import pytest

        BACKENDS = {"flash", "paged", "naive", "triton", "cutlass", "eager", "marlin"}
        SHAPES = frozenset({"tiny", "ragged", "wide", "tall"})

        @pytest.mark.pairwise
        @pytest.mark.parametrize("shape", SHAPES)
        @pytest.mark.parametrize("backend", BACKENDS)
        @pytest.mark.parametrize("flag", [1, 2])
        def test_backend(backend, shape, flag):
            assert len(backend) > 3 and shape
        """
    )
    command = ("-p", "testkit.pairwise.plugin", "--collect-only", "-q")
    listings = []
    for seed in ("1", "2", "3"):
        pytester._monkeypatch.setenv("PYTHONHASHSEED", seed)
        listings.append([line for line in pytester.runpytest_subprocess(*command).outlines if "::" in line])
    assert listings[0] == listings[1] == listings[2]
    assert len(listings[0]) == 29
    result = pytester.runpytest_subprocess("-p", "testkit.pairwise.plugin", "-p", "xdist.plugin", "-n2")
    result.assert_outcomes(passed=28)


def test_ids_that_pytest_had_to_number_and_ids_with_an_address_are_reported(pytester: pytest.Pytester) -> None:
    # Values of kbr/fritzconnection pull 269 and pytest issues 663 and 11456.
    pytester.makepyfile(
        test_m="""
        import pytest

        NAN = float("nan")
        VALUES = [None, "None", 1, True, "1", NAN, NAN, (1, 2), (1, 2), "", "a-b", "a"]

        @pytest.mark.pairwise
        @pytest.mark.parametrize("other", [object(), object], ids=repr)
        @pytest.mark.parametrize("scale", VALUES)
        def test_scale(scale, other):
            assert VALUES
        """
    )
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin")
    result.stdout.fnmatch_lines(
        [
            "*axis 'scale' repeats nan (position 5 and 6): owed once, still collected",
            "*axis 'scale' repeats (1, 2) (position 7 and 8): owed once, still collected",
            "*axis 'scale': values that print as 'None' were numbered: None is None0, 'None' is None1",
            "*axis 'scale': values that print as '1' were numbered: 1 is 1*0, '1' is 1*1",
            "*axis 'other': the id <object object at 0x*> holds an address, which differs from process to process",
        ]
    )


@pytest.mark.parametrize("strict", [(), ("-o", "strict_parametrization_ids=true")], ids=["", "strict"])
def test_our_decorator_names_every_value_apart(pytester: pytest.Pytester, strict: tuple[str, ...]) -> None:
    if strict and pytest.version_tuple < (9,):
        pytest.skip("strict_parametrization_ids came with pytest 9")
    pytester.makepyfile(
        test_m="""
        import pytest
        from testkit.pairwise import parametrize

        NAN = float("nan")
        VALUES = [None, "None", 1, True, "1", NAN, NAN, (1, 2), (1, 2), "", "a-b", "a"]

        @parametrize({"scale": VALUES})
        def test_scale(scale):
            assert VALUES

        @parametrize({"left,right": [("a", "b-c"), ("a-b", "c")]})
        def test_joined(left, right):
            assert left + "-" + right == "a-b-c"
        """
    )
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin", "-v", *strict)
    result.assert_outcomes(passed=14)
    wanted = ["None", "'None'", "1", "True", "'1'", "nan", "nan@2", "(1,2)", "(1,2)@2", "''", "'a-b'", "a"]
    result.stdout.fnmatch_lines([f"*::test_scale[[]scale={text}[]] PASSED*" for text in wanted])
    result.stdout.fnmatch_lines(["*::test_joined[[]left=a-right='b-c'[]] PASSED*"])
    result.stdout.fnmatch_lines(["*axis 'scale' repeats nan (position 5 and 6): owed once, still collected"])


def test_our_decorator_thins_a_product_that_could_not_be_built(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest
        from testkit.pairwise import parametrize

        axes = {f"a{i}": range(10) for i in range(20)}
        axes["n,k"] = [pytest.param(1, 2, id="small"), pytest.param(3, 4, marks=pytest.mark.skip(reason="large"))]

        @parametrize(axes, where=lambda a0, a1: a0 <= a1, effort=0)
        def test_all(**values):
            pass

        def pytest_generate_tests(metafunc):
            pass
        """.replace("(**values)", "(n, k, " + ", ".join(f"a{i}" for i in range(20)) + ")")
    )
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin")
    result.stdout.fnmatch_lines(["*::test_all: 200,000,000,000,000,000,000 -> 2?? cases, 1*owed pairs, ??.? % ran"])


def test_a_wrapper_that_parametrizes_after_us_multiplies_the_chosen_cases_and_they_are_followed(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_generate_tests(metafunc):
            yield
            metafunc.fixturenames.append("extra")
            metafunc.parametrize("extra", [0, 1], indirect=True)

        @pytest.fixture
        def extra(request): return request.param
        """
    )
    suite = SHAPES["stacked decorators"].replace("show(a, b, c)", "pytest.skip('no') if a == 1 else None")
    pytester.makepyfile(test_m=HEAD + suite)
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin", "--pairwise-fail-under=90")
    assert result.ret == 1
    result.assert_outcomes(passed=12, skipped=6)
    result.stdout.fnmatch_lines(["*::test_f: 27 -> 9 cases, 27 owed pairs, 66.7 % ran"])


def test_ids_that_collide_over_two_axes_ran_only_if_all_their_cases_did(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest
        @pytest.mark.pairwise
        @pytest.mark.parametrize("b", ["y-z", "z"])
        @pytest.mark.parametrize("a", ["x", "x-y"])
        def test_h(a, b):
            if (a, b) == ("x", "y-z"): pytest.skip("no")
        """
    )
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin", "--pairwise-report")
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["*::test_h: 4 -> 4 cases, 4 owed pairs, 50.0 % ran", "  a=x, b='y-z'  skipped: no"])


def test_values_changed_after_thinning_are_not_taken_for_the_planned_ones(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        def pytest_collection_modifyitems(items):
            for item in items:
                item.callspec.params["a"] = object()
        """
    )
    pytester.makepyfile(test_m=HEAD + SHAPES["stacked decorators"])
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin", "--pairwise-fail-under=1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*::test_f: 9 tests of it hold other values than were planned: what ran is not known*"]
    )


def test_a_set_is_put_into_one_order_for_unmarked_functions_that_are_thinned(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest
        @pytest.mark.parametrize("c", {"flash", "paged", "naive"})
        @pytest.mark.parametrize("b", {"tiny", "ragged", "wide"})
        @pytest.mark.parametrize("a", [1, 2, 3])
        def test_f(a, b, c): pass
        """
    )
    listings = []
    for seed in ("1", "2", "3"):
        pytester._monkeypatch.setenv("PYTHONHASHSEED", seed)
        command = ("-p", "testkit.pairwise.plugin", "--collect-only", "-q", "--pairwise-over=9")
        listings.append(_cases(pytester.runpytest_subprocess(*command)))
    assert len(listings[0]) == 9
    assert listings[0] == listings[1] == listings[2]


def test_ids_functions_are_called_once_a_value_and_generators_are_used_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import itertools
        import pytest

        asked = []

        @pytest.mark.pairwise
        @pytest.mark.parametrize("c", [1, 2, 3], ids=lambda value: asked.append(value) or f"c{len(asked)}")
        @pytest.mark.parametrize("b", [1, 2, 3], ids=(f"b{n}" for n in itertools.count()))
        @pytest.mark.parametrize("a", (x for x in [1, 2, 3]))
        def test_f(a, b, c):
            assert asked == [1, 2, 3]
        """
    )
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin", "-v", "-W", "ignore")
    result.assert_outcomes(passed=9)
    result.stdout.fnmatch_lines(["*::test_f[[]*-b?-c?[]] PASSED*"])


def test_values_whose_repr_fails_and_lists_that_hold_themselves_are_no_obstacle(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest

        class Odd:
            def __repr__(self): raise RuntimeError("no text")

        ring = []
        ring.append(ring)

        @pytest.mark.pairwise(where=lambda a, b: True)
        @pytest.mark.parametrize("c", [1, 2])
        @pytest.mark.parametrize("b", [Odd(), Odd()], ids=["o1", "o2"])
        @pytest.mark.parametrize("a", [ring, [1]], ids=["ring", "one"])
        def test_f(a, b, c): pass
        """
    )
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin", "--pairwise-report")
    result.stdout.fnmatch_lines(["*::test_f: 8 -> 4 cases, 12 owed pairs, 100 % ran"])


def test_a_repeated_value_runs_where_one_of_its_places_does(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_m="""
        import pytest
        @pytest.mark.pairwise
        @pytest.mark.parametrize("c", [1, 2, 3])
        @pytest.mark.parametrize("b", [1, 2, 3])
        @pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.skip), pytest.param(1), 2])
        def test_f(a, b, c): pass
        """
    )
    result = pytester.runpytest_inprocess("-p", "testkit.pairwise.plugin")
    assert result.parseoutcomes()["skipped"] == 1
    result.stdout.fnmatch_lines(["*::test_f: 27 -> 10 cases, 21 owed pairs, 100 % ran"])
