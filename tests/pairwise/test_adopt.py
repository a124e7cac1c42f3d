"""``testkit pairwise adopt``: what it finds in a suite, that nothing runs, and that its lines do what they promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.__main__ import main
from testkit.pairwise._adopt import ini_lines, report
from testkit.pairwise._survey import Fixture, Function, Survey

Adopt = Callable[..., str]

CONFTEST = """
import gc
import pytest

def release():
    gc.collect()

@pytest.fixture
def wanted(request):
    return request.node.get_closest_marker("skip_global_cleanup") is None

@pytest.fixture(autouse=True)
def cleanup_fixture(wanted):
    yield
    if wanted:
        release()

@pytest.fixture(autouse=True)
def restore_device():
    yield
    print("restored")

@pytest.fixture(params=[1, 2, 3])
def size(request):
    return request.param
"""

PRODUCT = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("n,m", [(1, 2), (3, 4), (5, 6)])
@pytest.mark.parametrize("dtype", ["half", "single", "double", "quad"])
def test_product(n, m, dtype, size):
    Path("ran").touch()

def test_plain():
    Path("ran").touch()
"""


@pytest.fixture
def adopt(pytester: pytest.Pytester, capfd: pytest.CaptureFixture[str]) -> Adopt:
    """The command's output, with its exit code."""

    def adopt(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert main(["pairwise", "adopt", *arguments]) == code
        said = capfd.readouterr()
        return said.out if code == 0 else said.err

    return adopt


def test_it_tells_products_clean_up_and_both_and_runs_nothing(adopt: Adopt, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_a=PRODUCT)
    pytester.makepyfile(test_b="import pytest\npytestmark = pytest.mark.skip_global_cleanup\ndef test_marked(): pass")
    pytester.makeini("[pytest]\nmarkers = skip_global_cleanup")
    said = adopt(".", "--over=20").splitlines()
    assert not Path("ran").exists()
    pytest.LineMatcher(said).fnmatch_lines(
        [
            "38 cases of 3 functions in 2 files, collected in * s with products over 20 cases thinned",
            "Products: 38 cases would be 14; 1 function would lose some",
            "  36  ->  12  test_a.py::test_product  size 3, dtype 4, n,m 3",
            "Clean-up after every test, by autouse fixtures:",
            "  37  cases  cleanup_fixture (conftest.py:11)  release (gc.collect)",
            "Other code after a yield frees nothing, *: restore_device (conftest.py:17)",
            "Modules that would gain both ways (cases, clean-ups):",
            "  37  ->  13  37  -> 1  test_a.py",
            "Paste into *tox.ini, beside pytest's other keys:",
            "pairwise_rules =",
            "    test_a.py::[*] over=20",
            "cleanup_wrap = cleanup_fixture",
        ]
    )


def test_the_pasted_lines_do_what_was_told(adopt: Adopt, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_a=PRODUCT)
    said = adopt(".", "--over=20")
    assert f"Paste into a new {pytester.path / 'pytest.ini'}:\n[pytest]\n" in said
    Path("pytest.ini").write_text(said[said.index("[pytest]") :])
    result = pytester.runpytest_subprocess("-p", "testkit.pairwise.plugin", "-p", "testkit.cleanup.plugin")
    result.assert_outcomes(passed=13)
    result.stdout.fnmatch_lines(
        ["cleanup: 1 clean-up (module)*cleanup_fixture*", "*36 -> 12 cases*"], consecutive=False
    )


def test_what_fails_or_skips_at_import_is_told_and_the_rest_goes_on(adopt: Adopt, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_a="import no_such_library", test_b=PRODUCT)
    pytester.makepyfile(test_c="import pytest\npytest.importorskip('no_such_library')")
    pytester.makeini("[pytest]\naddopts = -x -p xdist -n2 -p no:cacheprovider --strict-config")
    pytest.LineMatcher(adopt(".", "--over=20").splitlines()).fnmatch_lines(
        [
            "37 cases of 2 functions in 1 file, *",
            "Not counted, since collecting failed: 1 file or folder",
            "  test_a.py  ModuleNotFoundError: No module named 'no_such_library'",
            "Not counted, since they skip themselves here: 1 file or folder",
            "  test_c.py  could not import 'no_such_library'*",
            "  36  ->  12  test_b.py::test_product *",
        ]
    )


def test_lines_are_written_in_toml_for_a_toml_file(adopt: Adopt, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_a=PRODUCT)
    table = "[tool.pytest]" if pytest.version_tuple[0] >= 9 else "[tool.pytest.ini_options]"
    pytester.makepyprojecttoml(table)
    said = adopt("test_a.py", "--over=20")
    lines = said[said.index("pairwise_rules") :]
    assert lines.splitlines()[1] == '    "test_a.py::* over=20",'
    pytester.makepyprojecttoml(f"{table}\n{lines}")
    pytester.runpytest_subprocess("-p", "testkit.pairwise.plugin", "-p", "testkit.cleanup.plugin").assert_outcomes(
        passed=13
    )


def test_what_is_marked_or_ruled_already_counts_as_it_is(adopt: Adopt, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_a=PRODUCT.replace("@pytest", "@pytest.mark.pairwise\n@pytest", 1))
    pytester.makepyfile(test_b=PRODUCT)
    pytester.makeini("[pytest]\npairwise_rules = test_b.py::*\ncleanup_wrap = cleanup_fixture")
    said = adopt(".", "--over=10", "--", "-p", "testkit.cleanup.plugin")
    assert "Products: 26 cases would be 26; 0 functions would lose some" in said
    assert "2 functions with more than 10 cases would keep all of them" in said
    assert "cleanup_wrap = cleanup_fixture is set already" in said
    assert "Paste" not in said


def test_unittest_and_deselected_tests_are_told_apart(adopt: Adopt, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        test_a=PRODUCT, test_u="import unittest\nclass Case(unittest.TestCase):\n    def test_method(self): pass"
    )
    said = adopt(".", "--", "-k", "not product")
    assert "2 cases of 2 functions in 2 files" in said
    assert "Not counted, since they are deselected: 1 function" in said
    assert "  2  cases  cleanup_fixture" in said


def test_tests_whose_decision_fixture_says_no_pay_nothing(adopt: Adopt, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    declined = "\n@pytest.fixture\ndef wanted():\n    return False\n"
    pytester.makepyfile(test_a=PRODUCT, test_b=PRODUCT + declined)
    assert "  37  cases  cleanup_fixture" in adopt(".")


def test_a_fixture_that_cannot_be_put_off_gives_way_to_its_callable(adopt: Adopt, pytester: pytest.Pytester) -> None:
    tail = "    try:\n        yield\n    finally:\n        release()\n"
    pytester.makeconftest(CONFTEST.replace("    yield\n    if wanted:\n        release()\n", tail))
    pytester.makepyfile(test_a=PRODUCT)
    said = adopt(".")
    assert "  cleanup_fixture cannot be put off: it yields inside try; release, which it calls, can" in said
    assert said.endswith("[pytest]\ncleanup_wrap = release\n")


def test_arguments_that_are_gone_by_then_are_told(adopt: Adopt, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_a="import gc, pytest\n"
        "@pytest.fixture(autouse=True)\ndef sweep(monkeypatch, request):\n    yield\n    gc.collect()\n"
        "def test_one(): pass"
    )
    said = adopt(".")
    assert "  sweep cannot be put off: it takes monkeypatch, gone by then; move the clean-up to a function" in said
    assert "Paste" not in said


def test_a_callable_that_the_conftest_itself_does_not_name_is_not_suggested(
    adopt: Adopt, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(helper="import gc\n\ndef release(): gc.collect()\n", test_a="def test_one(): pass")
    pytester.makeconftest(
        "import pytest, helper\n@pytest.fixture(autouse=True)\ndef sweep(tmp_path):\n    yield\n"
        "    from helper import release\n    release()\n"
    )
    said = adopt(".")
    assert "  sweep cannot be put off: it takes tmp_path, gone by then; move the clean-up to a function" in said
    assert "Paste" not in said


def test_an_argument_that_may_be_gone_by_then_is_told(adopt: Adopt, pytester: pytest.Pytester) -> None:
    decision = "@pytest.fixture\ndef wanted(request): return request.node.name is not None\n"
    engine = "@pytest.fixture\ndef engine(): return object()\n"
    sweep = "@pytest.fixture(autouse=True)\ndef sweep({}):\n    yield\n    release()\n"
    head = "import gc, pytest\ndef release(): gc.collect()\n"
    pytester.makepyfile(test_a="def test_one(): pass")
    pytester.makeconftest(head + decision + sweep.format("wanted"))
    assert "only if" not in adopt(".")
    pytester.makeconftest(head + engine + sweep.format("engine"))
    assert "  sweep can be put off only if engine is True, a number or text; else name release\n" in adopt(".")


@pytest.mark.parametrize(
    ("ini", "arguments", "lines"),
    [
        (
            "",
            ("nowhere",),
            ["pairwise: pytest ended with exit code 4 (collecting nowhere)", "*file or directory not f*"],
        ),
        (
            "",
            ("test_a.py", "--", "-k", "no"),
            ["pairwise: pytest found no test (collecting test_a.py -k no)", "next: *"],
        ),
        ("", ("test_broken.py",), ["pairwise: no test could be collected: test_broken.py: SyntaxError: *", "next: *"]),
        ("addopts = --no-pairwise", (".",), ["pairwise: thinning is off by --no-pairwise (collecting .)", "next: *"]),
    ],
)
def test_what_cannot_be_inspected_is_refused(
    adopt: Adopt, pytester: pytest.Pytester, ini: str, arguments: tuple[str, ...], lines: list[str]
) -> None:
    pytester.makeini(f"[pytest]\n{ini}")
    pytester.makepyfile(test_a="def test_one(): pass", test_broken="def test_two(: pass")
    pytest.LineMatcher(adopt(*arguments, code=2).splitlines()).fnmatch_lines(lines)


def test_a_bad_limit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["pairwise", "adopt", ".", "--over=none"])
    assert "'none' is not a whole number from 1 up" in capsys.readouterr().err


def suite(modules: int, ini: str = "") -> Survey:
    found = Survey(root="/suite", ini=ini, seconds=0.5, off=False, wrapped="", deselected=0)
    for number in range(modules):
        found.functions.append(
            Function(f"tests/test [{number}].py::test_x", 200, 20, [("a", 20), ("b", 1), ("c", 10)], [], False)
        )
    return found


def test_lines_name_each_module_so_that_the_pattern_matches_it_alone() -> None:
    assert ini_lines(suite(1), 100) == ["pairwise_rules =", "    tests/test?[[]0].py::* over=100"]


def test_many_modules_get_one_line_for_all(tmp_path: Path) -> None:
    assert ini_lines(suite(21), 100) == ["pairwise_rules =", "    * over=100"]
    listed = report(suite(21, ini="/suite/pytest.ini"), 100)
    assert "  and 11 more" in listed
    assert any(line.endswith("a 20, c 10") for line in listed)


def test_of_several_clean_ups_the_one_that_most_cases_pay_for_is_named() -> None:
    found = suite(2)
    for name in ("few", "many"):
        found.fixtures.append(Fixture(name, "conftest.py", 1, {"gc.collect": ["gc.collect"]}, "", []))
    found.functions[0].fixtures = [0, 1]
    found.functions[1].fixtures = [1]
    assert ini_lines(found, 100)[-1] == "cleanup_wrap = many"
    found.functions[1].exempt = True
    listed = report(found, 100)
    assert "  200  cases  few (conftest.py:1)   gc.collect (gc.collect)" in listed
    assert "  cleanup_wrap takes one name: the first is put off, others stay after each test" in listed


def test_modules_in_which_only_some_tests_pay_are_told() -> None:
    found = suite(1)
    found.fixtures.append(Fixture("sweep", "conftest.py", 1, {"gc.collect": ["gc.collect"]}, "", []))
    found.functions.append(Function("tests/test [0].py::test_y", 1, 1, [], [0], True))
    found.functions[0].fixtures = [0]
    assert "1 module with tests marked skip_global_cleanup beside tests that pay:" in report(found, 100)


def test_a_survey_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    found = suite(2)
    found.fixtures.append(Fixture("sweep", "conftest.py", 1, {"gc.collect": ["gc.collect"]}, "with", ["tmp_path"]))
    found.write(tmp_path / "survey.json")
    again = Survey.read(tmp_path / "survey.json")
    again.functions = [Function(**{**vars(one), "axes": list(map(tuple, one.axes))}) for one in again.functions]
    assert again == found
