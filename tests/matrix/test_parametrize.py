"""``parametrize_from``: a recipe's variants and strategies as parameters of a test."""

from __future__ import annotations

from typing import Any

import pytest

from testkit.errors import MatrixError
from testkit.matrix import load_recipe, parametrize_from

RECIPE: dict[str, Any] = {
    "variants": {"bf16": {"dtype": "bfloat16"}, "fp8": "/fp8.json"},
    "strategies": {"recommended": {"name": "tp", "size": 2}, "alternatives": {"ep": "/ep.json"}},
}
PAGES: dict[str, dict[str, Any]] = {"/fp8.json": {"dtype": "float8"}, "/ep.json": {"strategy": "ep", "size": 8}}

SUITE = f"""
import pytest
from testkit.matrix import load_recipe, parametrize_from

PAGES = {PAGES!r}
each = parametrize_from(load_recipe({RECIPE!r}, PAGES.__getitem__))

@each
def test_both(variant, strategy):
    assert variant["dtype"] in ("bfloat16", "float8")
    assert strategy.settings["size"] == dict(tp=2, ep=8)[strategy.name]

@pytest.mark.pairwise
@each
def test_thinned(strategy, variant):
    assert variant

class TestMore:
    @each
    def test_one(self, variant):
        assert variant
"""


def test_a_test_gets_what_it_names_with_readable_ids(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-v", "-p", "testkit", "-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=10)
    ids = [line.split("::", 1)[1].split(" ")[0] for line in result.outlines if " PASSED" in line]
    assert set(ids) == {
        *(
            f"test_{test}[{variant}-{strategy}]"
            for test in ("both", "thinned")
            for variant in ("bf16", "fp8")
            for strategy in ("tp", "ep")
        ),
        "TestMore::test_one[bf16]",
        "TestMore::test_one[fp8]",
    }


def test_a_link_is_followed_only_for_what_a_test_names() -> None:
    asked: list[str] = []

    def fetch(link: str) -> dict[str, Any]:
        asked.append(link)
        return PAGES[link]

    each = parametrize_from(load_recipe(RECIPE, fetch))
    assert asked == []

    @each
    def check(strategy: Any) -> None: ...

    assert asked == ["/ep.json"]
    assert [mark.args[0] for mark in check.pytestmark] == ["strategy"]  # type: ignore[attr-defined]


def neither() -> None: ...


def wants_strategy(strategy: Any) -> None: ...


@pytest.mark.parametrize(
    ("recipe", "target", "problem"),
    [
        (RECIPE, neither, "neither takes neither variant nor strategy .*\nnext: name one of them"),
        (RECIPE, type("TestClass", (), {}), "parametrize_from decorates <class .*\nnext: decorate the test functions"),
        ({"variants": {"a": {}}}, wants_strategy, "wants_strategy takes strategy, and the recipe has none"),
        (RECIPE, wants_strategy, "strategy 'ep' is the link '/ep.json', and nothing fetches it"),
    ],
)
def test_a_function_that_gets_nothing_is_refused(recipe: Any, target: Any, problem: str) -> None:
    with pytest.raises(MatrixError, match=problem):
        parametrize_from(load_recipe(recipe))(target)


def test_what_is_no_recipe_is_refused() -> None:
    with pytest.raises(MatrixError, match=r"the recipe is 'r\.yml'\nnext: give what load_recipe returns"):
        parametrize_from("r.yml")  # type: ignore[arg-type]  # the mistake under test
