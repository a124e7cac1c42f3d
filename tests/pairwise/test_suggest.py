"""Predicates that are suggested: true of every case that was seen, short, and none where the cases do not tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from testkit.pairwise._axes import Axis, make_axes
from testkit.pairwise._suggest import Suggestion, suggest

SHAPES = {"n": [13, 16, 64, 128, 256], "k": [2880, 2888, 3072], "dtype": ["float16", "bfloat16"], "bias": [None, 0, 1]}


def split(axes: Sequence[Axis], skips: Callable[..., bool]) -> tuple[list[Any], list[Any]]:
    """All cases of the product, as levels: those that skip, and the others."""
    sides: tuple[list[Any], list[Any]] = [], []
    for case in product(*[range(len(axis.first_positions)) for axis in axes]):
        arguments: dict[str, Any] = {}
        for axis, level in zip(axes, case, strict=True):
            arguments |= axis.arguments(axis.first_positions[level])
        sides[not skips(arguments)].append(case)
    return sides


def suggested(table: Mapping[str, Sequence[Any]], skips: Callable[..., bool]) -> Suggestion | None:
    """What is suggested; checked to hold of all cases as the code that a user would paste."""
    axes = make_axes(table)
    skipped, ran = split(axes, skips)
    found = suggest(axes, skipped, ran)
    if found is not None:
        allows = eval(found.predicate)
        assert (skipped, ran) == split(axes, lambda case: not allows(*[case[name] for name in found.arguments]))
    return found


@pytest.mark.parametrize(
    ("skips", "words", "predicate"),
    [
        (lambda c: c["k"] == 2888, "k = 2888", "lambda k: not (k == 2888)"),
        (lambda c: c["n"] > 64, "n > 64", "lambda n: not (n > 64)"),
        (lambda c: c["n"] < 64, "n < 64", "lambda n: not (n < 64)"),
        (
            lambda c: c["n"] > 64 and c["k"] == 2888,
            "n > 64 and k = 2888",
            "lambda n, k: not (n > 64 and k == 2888)",
        ),
        (
            lambda c: c["dtype"] == "float16" and c["bias"] is None,
            "dtype = float16 and bias = None",
            "lambda dtype, bias: not (dtype == 'float16' and bias is None)",
        ),
        (lambda c: c["bias"] is not None, "bias != None", "lambda bias: not (bias is not None)"),
        (lambda c: c["n"] * c["k"] > 370_000, "n * k > 369664", "lambda n, k: not (n * k > 369664)"),
        (
            lambda c: c["n"] > 64 or (c["dtype"] == "float16" and c["k"] > 2880),
            "n > 64 or k > 2880 and dtype = float16",
            "lambda n, k, dtype: not (n > 64 or (k > 2880 and dtype == 'float16'))",
        ),
    ],
)
def test_the_condition_is_found_and_holds_of_every_case(skips: Callable[..., bool], words: str, predicate: str) -> None:
    found = suggested(SHAPES, skips)
    assert found is not None
    assert (found.words, found.predicate) == (words, predicate)


def test_an_argument_of_a_joint_axis_is_named_by_itself() -> None:
    table = {"n,k": [(1, 64), (2, 64), (1, 80), (2, 80)], "dtype": ["a", "b"]}
    found = suggested(table, lambda c: c["k"] == 80 and c["dtype"] == "a")
    assert found is not None
    assert found.predicate == "lambda k, dtype: not (k == 80 and dtype == 'a')"


def test_nothing_is_suggested_of_numbers_that_compare_equal() -> None:
    assert suggested({"a": [1, True, 2], "b": [1, 2]}, lambda c: c["a"] is True) is None


def test_a_text_and_a_number_that_print_alike_are_told_apart() -> None:
    found = suggested({"a": [1, "1", 2], "b": [1, 2]}, lambda c: c["a"] == "1")
    assert found is not None
    assert found.predicate == "lambda a: not (a == '1')"


def test_nothing_is_suggested_where_two_explanations_fit_alike() -> None:
    axes = make_axes({"a": [1, 2], "b": [1, 2], "c": [1, 2]})
    assert suggest(axes, [(0, 0, 0)], [(1, 1, 0), (1, 1, 1)]) is None


def test_nothing_is_suggested_where_only_a_list_of_cases_would_do() -> None:
    assert suggested({"a": range(6), "b": range(6)}, lambda c: (c["a"] * 7 + c["b"] * 3) % 5 == 0) is None
    assert suggested({name: [0, 1] for name in "abcd"}, lambda c: sum(c.values()) % 2 == 0) is None


def test_nothing_is_suggested_where_nothing_or_all_skipped() -> None:
    assert suggested(SHAPES, lambda c: False) is None
    assert suggested(SHAPES, lambda c: True) is None
