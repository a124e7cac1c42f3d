"""``sample`` and ``coverage`` as users call them."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import pytest
import torch
from brute import Product, groups_missing
from hypothesis import given, settings
from hypothesis import strategies as st

import testkit.pairwise
from testkit.errors import KitWarning, PairwiseError
from testkit.pairwise import Coverage, Sample, coverage, sample

AXES: dict[str, list[Any]] = {"n": [1, 2, 3], "k": [1, 2], "m": ["x", "y"]}


def test_the_face_shows_what_it_exports_and_nothing_else() -> None:
    assert dir(testkit.pairwise) == testkit.pairwise.__all__
    with pytest.raises(AttributeError, match="has no attribute 'sampel'"):
        _ = testkit.pairwise.sampel


def test_a_sample_holds_the_very_objects() -> None:
    values: list[Any] = [
        None,
        float("nan"),
        [1],
        {"a": 1},
        {2},
        torch.zeros(2),
        torch.bfloat16,
        lambda: 1,
        1,
        True,
        1.0,
    ]
    chosen = sample({"a": values, "b,c": [(values[2], 0), (values[5], 1)]})
    assert {id(row["a"]) for row in chosen.rows} == {id(value) for value in values}
    assert {id(row["b"]) for row in chosen.rows} == {id(values[2]), id(values[5])}
    assert list(chosen.rows[0]) == ["a", "b", "c"]


def test_a_sample_of_one_axis_is_all_of_it() -> None:
    assert sample({"a": [3, 1, 2]}, strength=1).rows == [{"a": 3}, {"a": 1}, {"a": 2}]


def test_strength_of_all_axes_is_the_whole_product() -> None:
    assert len(sample(AXES, strength=3).rows) == 12


def test_axes_of_one_value_change_nothing_but_are_there() -> None:
    axes = {"a": [0, 1], "b": [5], "c": [0, 1, 2], "d": [None]}
    chosen = sample(axes)
    assert len(chosen.rows) == 6
    assert all(row["b"] == 5 and row["d"] is None for row in chosen.rows)
    assert Product(axes).judge(chosen.rows).sound


def test_owed_and_floor_are_true_bounds() -> None:
    chosen = sample(AXES)
    assert chosen == Sample(chosen.rows, 16, 6)


def test_the_warning_of_a_repeated_value_points_at_the_caller() -> None:
    with pytest.warns(KitWarning, match="repeats 1") as caught:
        sample({"a": [1, 1], "b": [2]})
    assert caught[0].filename == __file__


# ------------------------------------------------------------------ coverage


def test_coverage_of_a_sample_is_complete() -> None:
    found = coverage(AXES, sample(AXES).rows)
    assert found == Coverage(16, 16, [])
    assert found.percent == 100.0


def test_coverage_names_what_is_missing_by_argument() -> None:
    found = coverage({"n,k": [(1, 2), (3, 4)], "m": [0, 1]}, [{"n": 1, "k": 2, "m": 0}, {"n": 3, "k": 4, "m": 1}])
    assert found.missing == [{"n": 1, "k": 2, "m": 1}, {"n": 3, "k": 4, "m": 0}]
    assert found.percent == 50.0


def test_coverage_never_rounds_up_to_complete() -> None:
    axes = {"a": range(200), "b": range(200)}
    rows = [{"a": a, "b": b} for a, b in product(range(200), repeat=2)]
    assert coverage(axes, rows[1:]).percent == 99.99
    assert coverage(axes, rows).percent == 100.0


def test_coverage_of_no_rows_is_nothing() -> None:
    assert coverage(AXES, []).covered == 0


def test_equal_objects_in_one_axis_are_told_apart() -> None:
    class Alike:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Alike)

        __hash__ = None  # type: ignore[assignment]

    axes = {"a": [Alike(), Alike()], "b": [0, 1]}
    assert coverage(axes, sample(axes).rows) == Coverage(4, 4, [])


def test_coverage_of_a_repeated_value_counts_it_once() -> None:
    assert coverage({"a": [1, 1], "b": [0, 1]}, [{"a": 1, "b": 0}]) == Coverage(2, 1, [{"a": 1, "b": 1}])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"n": 1}], "row 0 lacks k, m"),
        (
            [{"n": 1, "k": 1, "m": "x"}, {"n": 1, "k": 1, "mm": "x"}],
            "row 1 names 'mm', which no axis has\nnext: did you",
        ),
        ([{"n": 9, "k": 1, "m": "x"}], "row 0 has n=9, which axis 'n' does not hold"),
        ([{"n": True, "k": 1, "m": "x"}], "row 0 has n=True, which axis 'n' does not hold"),
        ([{1: 1}], "row 0 names '1', which no axis has"),
        ([(1, 1, "x")], r"row 0 is \(1, 1, 'x'\), not a case"),
        (None, "rows is None, not cases"),
    ],
)
def test_rows_that_are_no_cases_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(PairwiseError, match=f"^pairwise: {message}"):
        coverage(AXES, rows)


def test_a_single_row_may_be_given_alone() -> None:
    assert coverage(AXES, {"n": 1, "k": 1, "m": "x"}).covered == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("strength", [0, True, 1.5])
def test_coverage_checks_its_strength_too(strength: Any) -> None:
    with pytest.raises(PairwiseError, match=r"^pairwise: strength is "):
        coverage(AXES, [], strength=strength)


# ------------------------------------------------------------------ properties


LEVELS = st.lists(st.integers(1, 5), min_size=2, max_size=6)


@settings(max_examples=150, deadline=None)
@given(LEVELS, st.integers(1, 3), st.integers(0, 5))
def test_every_tuple_is_held_and_no_bound_is_broken(levels: list[int], strength: int, seed: int) -> None:
    strength = min(strength, len(levels))
    axes = {f"p{i}": range(n) for i, n in enumerate(levels)}
    chosen = sample(axes, strength=strength, seed=seed, effort=200)
    rows = [tuple(row.values()) for row in chosen.rows]
    assert groups_missing(levels, rows, strength) == 0
    assert max(math.prod(g) for g in combinations(levels, strength)) <= chosen.floor <= len(rows) <= math.prod(levels)
    assert len(set(rows)) == len(rows)


@settings(max_examples=60, deadline=None)
@given(LEVELS, st.randoms(use_true_random=False))
def test_renaming_values_renames_the_rows(levels: list[int], chance: Any) -> None:
    names = {f"p{i}": [f"{i}-{v}" for v in range(n)] for i, n in enumerate(levels)}
    plain = sample({f"p{i}": range(n) for i, n in enumerate(levels)}, effort=100).rows
    named = sample(names, effort=100).rows
    assert named == [{name: names[name][value] for name, value in row.items()} for row in plain]


@settings(max_examples=60, deadline=None)
@given(LEVELS, st.integers(0, 10**6))
def test_coverage_agrees_with_brute_force_on_any_rows(levels: list[int], number: int) -> None:
    axes = {f"p{i}": list(range(n)) for i, n in enumerate(levels)}
    rows = [{f"p{i}": (number >> (i + turn)) % n for i, n in enumerate(levels)} for turn in range(4)]
    brute = Product(axes)
    found = coverage(axes, rows)
    assert found.owed == len(brute.owed)
    assert found.missing == list(brute.left_out(rows))


# ------------------------------------------------------------------ two known complaints


@pytest.mark.parametrize(
    ("axes", "owed", "best_peer", "floor"),
    [
        ({name: ["on", "off"] for name in ("graph", "prefix", "lora", "spec")}, 32, 9, 8),
        (
            {
                "dtype": ["bf16", "fp16", "fp32"],
                "quant": ["none", "int8", "fp8"],
                "group": [0, 64, 128],
                "rows": [1, 16, 512],
            },
            108,
            31,
            27,
        ),
    ],
    ids=["four switches", "kernel grid"],
)
@pytest.mark.parametrize("engine", ["testkit", "allpairspy"])
def test_three_wise_holds_every_triple(
    axes: dict[str, list[Any]], owed: int, best_peer: int, floor: int, engine: Any
) -> None:
    chosen = sample(axes, strength=3, engine=engine)
    assert (chosen.owed, chosen.floor) == (owed, floor)
    assert Product(axes, strength=3).judge(chosen.rows).sound
    if engine == "testkit":
        assert len(chosen.rows) == floor <= best_peer
