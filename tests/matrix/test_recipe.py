"""Recipes: their shapes, the links in them, the choice of a strategy, and what is said of a wrong one."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import MatrixError
from testkit.matrix import Recipe, Strategy, load_recipe, select_strategy, strategy_sources

YAML = """
model: org/moe-30b
variants:
  bf16: {dtype: bfloat16, gpus: 2}
  fp8: {dtype: float8_e4m3, gpus: 1}
strategies:
  recommended: {name: TP, args: [--tp, 2]}
  alternatives:
    ep: {args: [--ep]}
    dep: /org/moe-30b/hw/h100/dep.json
"""
TOML = """
model = "org/moe-30b"
[variants]
bf16 = {dtype = "bfloat16", gpus = 2}
fp8 = {dtype = "float8_e4m3", gpus = 1}
[strategies.recommended]
name = "TP"
args = ["--tp", 2]
[strategies.alternatives]
ep = {args = ["--ep"]}
dep = "/org/moe-30b/hw/h100/dep.json"
"""
DATA: dict[str, Any] = {
    "model": "org/moe-30b",
    "variants": {"bf16": {"dtype": "bfloat16", "gpus": 2}, "fp8": {"dtype": "float8_e4m3", "gpus": 1}},
    "strategies": {
        "recommended": {"name": "TP", "args": ["--tp", 2]},
        "alternatives": {"ep": {"args": ["--ep"]}, "dep": "/org/moe-30b/hw/h100/dep.json"},
    },
}
LINK = "/org/moe-30b/hw/h100/dep.json"
RENDERED: dict[str, Any] = {"strategy": "tp", "argv": ["serve"], "alternatives": {"DEP": LINK, "tep": "tep.json?x=1"}}


class Api:
    """What is behind links, and which were asked for."""

    def __init__(self, pages: dict[str, Any]) -> None:
        self.pages, self.asked = pages, list[str]()

    def __call__(self, link: str) -> Any:
        self.asked.append(link)
        return self.pages[link]


@pytest.mark.parametrize(("name", "text"), [("r.yml", YAML), ("r.toml", TOML), ("r.json", json.dumps(DATA))])
def test_yaml_toml_json_and_mappings_give_the_same_recipe(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    for source in (tmp_path / name, str(tmp_path / name), DATA):
        recipe = load_recipe(source)
        assert recipe.data == DATA
        assert recipe.variants == DATA["variants"]
        assert recipe.recommended == "TP"
        assert list(strategy_sources(recipe)) == ["TP", "ep", "dep"]


@pytest.mark.parametrize(
    ("variants", "names"),
    [
        ({"a": {"x": 1}, "b": "/link"}, ["a", "b"]),
        ([{"name": "a", "x": 1}, {"dtype": "fp8", "gpu": {"arch": "sm90"}}], ["a", "fp8-sm90"]),
        (
            {
                "dtype": ["bf16", "fp8"],
                "hardware": ["h100", "mi300x"],
                "exclude": [{"dtype": "fp8", "hardware": "mi300x"}],
            },
            ["bf16-h100", "bf16-mi300x", "fp8-h100"],
        ),
    ],
)
def test_variants_have_names_by_key_by_name_or_by_their_values(variants: Any, names: list[str]) -> None:
    assert list(load_recipe({"variants": variants}).variants) == names


@pytest.mark.parametrize(
    ("data", "sources"),
    [
        (DATA, {"TP": {"name": "TP", "args": ["--tp", 2]}, "ep": {"args": ["--ep"]}, "dep": LINK}),
        (RENDERED, {"tp": RENDERED, "DEP": LINK, "tep": "tep.json?x=1"}),
        (
            {"strategies": {"recommended": "EP", "alternatives": {"tp": {"a": 1}, "ep": {"a": 2}}}},
            {"ep": {"a": 2}, "tp": {"a": 1}},
        ),
        (
            {"strategies": {"recommended": "tp", "alternatives": [{"name": "ep", "a": 2}]}},
            {
                "tp": {"strategies": {"recommended": "tp", "alternatives": [{"name": "ep", "a": 2}]}},
                "ep": {"name": "ep", "a": 2},
            },
        ),
        ({"strategy": "tp"}, {"tp": {"strategy": "tp"}}),
    ],
)
def test_strategies_are_the_recommended_one_and_then_the_alternatives(data: Any, sources: Any) -> None:
    found = strategy_sources(load_recipe(data))
    assert found == sources
    assert list(found) == list(sources)


def test_names_alone_mean_the_recipe_itself() -> None:
    recipe = load_recipe({"model": "m", "strategies": {"recommended": "tp", "alternatives": ["ep"]}})
    assert [select_strategy(recipe, name).settings["model"] for name in ("tp", "ep")] == ["m", "m"]


# the choice


@pytest.mark.parametrize("name", ["ep", "EP", "eP"])
def test_a_strategy_is_chosen_in_any_case_and_has_the_recipes_spelling(name: str) -> None:
    assert select_strategy(load_recipe(DATA), name) == Strategy("ep", {"args": ["--ep"]})


def test_without_a_terminal_the_recommended_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("ep\n"))
    assert select_strategy(load_recipe(DATA)).name == "TP"
    monkeypatch.setattr(sys, "stdin", None)
    assert select_strategy(load_recipe(DATA)).name == "TP"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "name", "said"),
    [
        ("EP\n", "ep", "strategies: TP (recommended), ep, dep\nwhich [TP]? "),
        ("\n", "TP", "which [TP]? "),
        ("", "TP", "which [TP]? "),
        ("pp\nep\n", "ep", "'pp' is none of them\nwhich [TP]? "),
    ],
)
def test_at_a_terminal_it_asks(monkeypatch: pytest.MonkeyPatch, typed: str, name: str, said: str) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys, "stderr", screen)
    assert select_strategy(load_recipe(DATA)).name == name
    assert screen.getvalue().endswith(said)


@pytest.mark.parametrize("name", ["pp", "", 3])
def test_a_name_that_is_none_of_them_lists_the_choices(name: Any) -> None:
    with pytest.raises(MatrixError, match=rf"no strategy {name!r} \(in the given mapping\)\nnext: .*: TP, ep, dep"):
        select_strategy(load_recipe(DATA), name)


# links


def test_a_link_is_fetched_as_it_stands_and_only_when_it_is_chosen() -> None:
    api = Api({LINK: {"strategy": "dep", "argv": ["--dp", 8]}, "tep.json?x=1": {"argv": []}})
    recipe = load_recipe(RENDERED, api)
    assert select_strategy(recipe, "tp").settings == RENDERED
    assert api.asked == []
    assert select_strategy(recipe, "dep") == Strategy("DEP", {"strategy": "dep", "argv": ["--dp", 8]})
    assert select_strategy(recipe, "TEP").settings == {"argv": []}
    assert api.asked == [LINK, "tep.json?x=1"]


def test_a_link_that_nothing_fetches_is_named() -> None:
    with pytest.raises(
        MatrixError, match=rf"strategy 'dep' is the link '{LINK}', and nothing fetches it .*\nnext: give"
    ):
        select_strategy(load_recipe(DATA), "dep")


def test_a_link_that_leads_elsewhere_is_no_answer() -> None:
    api = Api({LINK: {"strategy": "tp"}})
    with pytest.raises(MatrixError, match=rf"the link '{LINK}' of strategy 'dep' leads to strategy 'tp'"):
        select_strategy(load_recipe(DATA, api), "dep")


@pytest.mark.parametrize("page", ['{"strategy": "dep"}', None, [1]])
def test_what_fetch_returns_must_be_a_mapping(page: Any) -> None:
    with pytest.raises(MatrixError, match=rf"fetch gave .* for the link '{LINK}' of strategy 'dep'"):
        select_strategy(load_recipe(DATA, Api({LINK: page})), "dep")


def test_what_fetch_raises_is_left_alone() -> None:
    with pytest.raises(KeyError, match=r"dep\.json"):
        select_strategy(load_recipe(DATA, Api({})), "dep")


# what is wrong


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"model": "m", "args": []}, r"read model, args, expected variants or strategies \(in the given mapping\)"),
        ({}, "read no key, expected variants or strategies"),
        ({"variants": "bf16"}, "variants is 'bf16' .*\nnext: write a mapping from names to settings, or a list"),
        ({"variants": {}}, "variants is empty"),
        ({"variants": []}, "variants is empty"),
        ({"variants": {"bf16": 16}}, "variant 'bf16' is 16 .*\nnext: write its settings, or the link to them"),
        ({"variants": {"bf16": ""}}, "variant 'bf16' is ''"),
        ({"variants": {16: {}}}, "the name 16 is no text"),
        ({"variants": {"a": {}, "A": {}}}, "'a' and 'A' have one name"),
        ({"variants": [{"x": 1}, {"x": 1}]}, "'1' and '1' have one name"),
        ({"variants": ["bf16"]}, r"variants\[0\] is 'bf16' .*\nnext: write a mapping of settings"),
        ({"variants": [{"name": 3}]}, r"variants\[0\] has the name 3"),
        ({"variants": {"dtype": ["bf16"], "gpu": "h100"}}, "axis 'gpu' is 'h100' .*\nnext: write a list"),
        ({"strategies": ["tp"]}, r"strategies is \['tp'\] .*\nnext: write recommended and alternatives"),
        ({"strategies": {"alternatives": {}}}, "strategies has alternatives, and not recommended"),
        ({"strategies": {"recommended": None}}, "strategies.recommended is None .*\nnext: write a name"),
        ({"strategies": {"recommended": {"args": []}}}, "strategies.recommended is {'args': "),
        ({"strategy": ["tp"]}, r"strategy is \['tp'\]"),
        ({"strategy": "tp", "alternatives": "ep"}, "alternatives is 'ep' .*\nnext: write a mapping"),
        ({"strategy": "tp", "alternatives": {"ep": None}}, "strategy 'ep' is None"),
        ({"strategy": "tp", "alternatives": [3]}, r"alternatives\[0\] is 3"),
        (
            {"strategies": {"recommended": {"name": "tp"}, "alternatives": {"TP": {}}}},
            "'tp' and 'TP' have one name",
        ),
    ],
)
def test_a_wrong_recipe_says_what_was_read_and_what_was_expected(data: Any, problem: str) -> None:
    with pytest.raises(MatrixError, match=problem) as refused:
        load_recipe(data)
    assert refused.value.fix


def test_a_file_that_holds_no_mapping_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.yml"
    path.write_text("- a")
    with pytest.raises(MatrixError, match=r"the recipe is \['a'\] \(in .*r\.yml\)"):
        load_recipe(path)


@pytest.mark.parametrize("use", [strategy_sources, select_strategy])
def test_a_recipe_without_strategies_and_what_is_no_recipe_are_refused(use: Callable[[Any], Any]) -> None:
    with pytest.raises(MatrixError, match=r"the recipe has no strategies .*\nnext: write strategies"):
        use(load_recipe({"variants": {"a": {}}}))
    with pytest.raises(MatrixError, match=r"the recipe is {'strategy': 'tp'}\nnext: give what load_recipe returns"):
        use({"strategy": "tp"})


def test_a_recipe_is_a_value() -> None:
    assert load_recipe(DATA) == load_recipe(DATA)
    assert isinstance(load_recipe(DATA), Recipe)
