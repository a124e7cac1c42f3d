"""Plans: crossed axes, kept cases, repeated values, product order, and the refusals."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import combinations, product
from pathlib import PurePosixPath
from random import Random
from typing import Any

import numpy
import pytest
import torch
from brute import Product

from testkit.errors import KitWarning, PairwiseError
from testkit.pairwise import sample
from testkit.pairwise._axes import make_axes
from testkit.pairwise._plan import plan_cases

AXES: dict[str, list[Any]] = {"n": [1, 2, 3], "k": [1, 2], "m": ["x", "y"]}


def differ(n: int, k: int) -> bool:
    return n != k


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("strength", [0, -1, True, False, 1.5, "2", None, numpy.int64(2), [2]])
def test_a_strength_that_is_no_whole_number_is_refused(strength: Any) -> None:
    with pytest.raises(PairwiseError, match=r"^pairwise: strength is .*, not a whole number from 1 up\nnext: use 2"):
        sample(AXES, strength=strength)


def test_a_strength_above_the_axes_is_refused_with_their_names() -> None:
    with pytest.raises(PairwiseError, match=r"^pairwise: strength 4 exceeds the 3 axes n, k, m\nnext: use 1 to 3"):
        sample(AXES, strength=4)


@pytest.mark.parametrize("seed", [-1, True, 1.5, "auto", None, 2**0.5])
def test_a_seed_that_is_no_whole_number_is_refused(seed: Any) -> None:
    with pytest.raises(PairwiseError, match=r"^pairwise: seed is .*, not a whole number from 0 up"):
        sample(AXES, seed=seed)


@pytest.mark.parametrize("effort", [-1, True, 1.5, "more", None, [1], numpy.arange(2)])
def test_an_effort_that_is_no_number_of_moves_is_refused(effort: Any) -> None:
    with pytest.raises(PairwiseError, match=r'^pairwise: effort is .*\nnext: use "default", "high" or a number of'):
        sample(AXES, effort=effort)


@pytest.mark.parametrize("engine", ["pict", None, True, [], numpy.arange(2)])
def test_an_engine_that_is_not_there_is_refused(engine: Any) -> None:
    with pytest.raises(PairwiseError, match=r'^pairwise: engine is .*\nnext: use "testkit" or "allpairspy"'):
        sample(AXES, engine=engine)


@pytest.mark.parametrize(
    ("full", "message"),
    [
        ("nn", "full names 'nn', which no axis has\nnext: did you mean 'n'"),
        (("n", "kk"), "full names 'kk', which no axis has\nnext: did you mean 'k'"),
        ("n,x", "full names 'x', which no axis has\nnext: the names are n, k, m"),
        ("", "full names '', which no axis has"),
        ([1], "full names '1', which no axis has"),
        (5, "full is 5, not names"),
        (None, "full is None, not names"),
    ],
)
def test_names_in_full_that_no_axis_has_are_refused(full: Any, message: str) -> None:
    with pytest.raises(PairwiseError, match=f"^pairwise: {message}"):
        sample(AXES, full=full)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"nn": 1}, "keep names 'nn', which no axis has\nnext: did you mean 'n'"),
        ({1: 1}, "keep names '1', which no axis has"),
        ({"n": 9}, "keep asks for n=9, which axis 'n' does not hold\nnext: use the value as it stands"),
        ({"n": 1.0}, "keep asks for n=1.0, which axis 'n' does not hold"),
        ({"n": True}, "keep asks for n=True, which axis 'n' does not hold"),
        ({"n": [1]}, r"keep asks for n=\[1\], which axis 'n' does not hold"),
        ({"n": 1, "k": 1}, "keep asks for {'n': 1, 'k': 1}, which no allowed case holds"),
        ([{"n": 2}, {"n": 1, "k": 1, "m": "x"}], "keep asks for {'n': 1, 'k': 1, 'm': 'x'}, which no allowed"),
        ("n", "keep holds 'n', not a case"),
        ([(1, 2, "x")], r"keep holds \(1, 2, 'x'\), not a case"),
        (5, "keep is 5, not cases"),
        (None, "keep is None, not cases"),
    ],
)
def test_cases_to_keep_that_cannot_be_are_refused(keep: Any, message: str) -> None:
    with pytest.raises(PairwiseError, match=f"^pairwise: {message}") as caught:
        sample(AXES, where=differ, keep=keep)
    assert caught.value.fix


# ------------------------------------------------------------------ full


@pytest.mark.parametrize("full", [("n", "k", "m"), "n,k,m", "n, k, m", ["m", "k", "n"], iter(["n", "k", "m"])])
def test_crossed_axes_may_be_written_in_any_way(full: Any) -> None:
    axes = {**AXES, "o": [0, 1], "p": [0, 1]}
    chosen = sample(axes, full=full)
    assert len(chosen.rows) == 12
    assert len({(row["n"], row["k"], row["m"]) for row in chosen.rows}) == 12
    assert Product(axes, full=("n", "k", "m")).judge(chosen.rows).sound


def test_crossing_an_axis_of_several_arguments_by_one_of_them_crosses_the_axis() -> None:
    axes = {"n,k": [(1, 2), (3, 4), (5, 6)], "m": [0, 1], "o": [0, 1], "p": [0, 1]}
    by_argument = sample(axes, full=("k", "m", "o"))
    assert by_argument.rows == sample(axes, full=("n,k", "m", "o")).rows
    assert len(by_argument.rows) == 12


def test_crossing_obeys_predicates() -> None:
    chosen = sample({**AXES, "o": [0, 1]}, full=("n", "k", "m"), where=differ)
    assert len({(row["n"], row["k"], row["m"]) for row in chosen.rows}) == 8


# ------------------------------------------------------------------ keep


def test_a_kept_case_may_be_given_alone_or_in_any_iterable() -> None:
    case = {"n": 3, "k": 2, "m": "y"}
    for keep in (case, [case], (case,), (one for one in [case]), {"only": case}.values()):
        assert case in sample(AXES, keep=keep).rows


def test_a_kept_case_that_says_nothing_asks_for_nothing() -> None:
    axes = {f"p{i}": [0, 1] for i in range(40)}
    assert sample(axes, keep={}).rows == sample(axes).rows == sample(axes, keep=[{}, {}]).rows


def test_kept_values_are_found_by_identity_first() -> None:
    class Alike:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Alike)

        __hash__ = None  # type: ignore[assignment]

    first, second = Alike(), Alike()
    axes = {"a": [first, second], "b": [0, 1], "c": [0, 1]}
    case = {"a": second, "b": 0, "c": 0}
    for seed in range(6):
        rows = sample(axes, keep=case, seed=seed).rows
        assert any(row["a"] is second and (row["b"], row["c"]) == (0, 0) for row in rows)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([[1], [2]], [2]),
        ([{"x": 1}, {"x": 2}], {"x": 2}),
        ([{1}, {2}], {2}),
        ([PurePosixPath("a"), PurePosixPath("b")], PurePosixPath("b")),
        ([(PurePosixPath("a"), 1), (PurePosixPath("b"), 1)], (PurePosixPath("b"), 1)),
        ([0.0, float("nan")], float("nan")),
        ([1, True], True),
        ([torch.float16, torch.bfloat16], torch.bfloat16),
        ([numpy.float64(1), numpy.float64(2)], numpy.float64(2)),
    ],
)
def test_values_of_any_kind_can_be_kept(values: list[Any], wanted: Any) -> None:
    rows = sample({"a": values, "b": [0, 1, 2], "c": [0, 1]}, keep={"a": wanted, "b": 2, "c": 1}).rows
    assert any(row["a"] is values[1] and (row["b"], row["c"]) == (2, 1) for row in rows)


def test_tensors_in_an_axis_are_kept_by_being_the_same_object() -> None:
    tensors = [torch.zeros(2), torch.zeros(2)]
    rows = sample({"a": tensors, "b": [0, 1, 2]}, strength=1, keep={"a": tensors[1], "b": 0}).rows
    assert any(row["a"] is tensors[1] and row["b"] == 0 for row in rows)
    with pytest.raises(PairwiseError, match=r"^pairwise: keep asks for a=tensor.*, which axis 'a' does not hold"):
        sample({"a": tensors, "b": [0, 1, 2]}, keep={"a": torch.zeros(2)})


def test_a_part_of_an_axis_may_be_kept_and_the_first_allowed_value_is_taken() -> None:
    axes = {"n,k": [(1, 1), (1, 2), (2, 3)], "m": [1, 2, 3]}
    chosen = sample(axes, keep={"n": 1, "m": 2}, where=lambda k, m: k == m)
    assert {"n": 1, "k": 2, "m": 2} in chosen.rows
    assert sample(axes, keep={"n,k": (2, 3), "m": 3}).rows
    with pytest.raises(PairwiseError, match=r"^pairwise: keep asks for n=2, k=1, which axis 'n,k' does not hold"):
        sample(axes, keep={"n": 2, "k": 1})


def test_choices_in_two_axes_are_made_together() -> None:
    axes = {"a,b": [(0, 0), (0, 1)], "c,d": [(0, 0), (0, 1)], "e": [0, 1]}
    chosen = sample(axes, keep={"a": 0, "c": 0, "e": 1}, where=[lambda b, d: b == d, lambda b, e: b == e])
    assert {"a": 0, "b": 1, "c": 0, "d": 1, "e": 1} in chosen.rows


def test_many_kept_cases_are_all_in_and_one_row_may_serve_several() -> None:
    axes = {name: list(range(4)) for name in "abcd"}
    complete = [{"a": i, "b": i, "c": i, "d": (i + 1) % 4} for i in range(4)]
    partial = [{"a": i} for i in range(4)]
    chosen = sample(axes, keep=[*complete, *partial])
    assert all(case in chosen.rows for case in complete)
    assert Product(axes).judge(chosen.rows, [*complete, *partial]).sound
    assert len(chosen.rows) <= 24


# ------------------------------------------------------------------ repeated values, order


def test_a_repeated_value_is_reported_owed_once_and_still_collected() -> None:
    message = r"^pairwise: axis 'a' repeats 1 \(position 0 and 2\): owed once, still collected$"
    with pytest.warns(KitWarning, match=message):
        chosen = sample({"a": [1, 2, 1], "b": [0, 1]})
    assert chosen.owed == 4
    plan = plan_cases(make_axes({"a": [1, 2, 1], "b": [0, 1]}))
    assert {row[0] for row in plan.rows} == {0, 1, 2}
    assert plan.total == 6


def test_each_position_of_a_value_repeated_more_often_than_needed_is_collected() -> None:
    plan = plan_cases(make_axes({"a": [7] * 5, "b": [0, 1]}))
    assert {row[0] for row in plan.rows} == set(range(5))
    assert plan.owed == 2
    assert len(plan.notes) == 4


def test_rows_come_in_product_order_without_repetition() -> None:
    for seed in range(4):
        rows = plan_cases(make_axes({"a": range(5), "b": range(4), "c": range(3)}), seed=seed).rows
        assert list(rows) == sorted(set(rows))


def test_predicates_may_differ_only_in_what_they_are_bound_to() -> None:
    def not_both(value: int, n: int, k: int) -> bool:
        return not n == k == value

    axes = {"n": [1, 2, 3], "k": [1, 2, 3]}
    where = [functools.partial(not_both, value) for value in (1, 2)]
    assert [tuple(row.values()) for row in sample(axes, where=where).rows] == [
        (n, k) for n in (1, 2, 3) for k in (1, 2, 3) if n != k or n == 3
    ]


@pytest.mark.parametrize(
    ("axes", "arguments", "message"),
    [
        (
            {f"a{i}": range(10) for i in range(20)},
            {"strength": 8},
            "strength 8 owes 100,000,000 tuples of the 8",
        ),
        ({f"a{i}": range(40) for i in range(5)}, {"full": [f"a{i}" for i in range(4)]}, "full crosses 2,560,000 comb"),
        (
            {f"a{i}": range(2) for i in range(200)},
            {"strength": 4},
            "strength 4 makes 64,684,950 groups of the 200",
        ),
    ],
)
def test_what_would_not_end_is_refused(axes: dict[str, range], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PairwiseError, match=f"^pairwise: {message}"):
        sample(axes, **arguments)


@pytest.mark.parametrize("number", range(60))
def test_what_can_run_is_held_by_cases_that_can_run(number: int) -> None:
    random = Random(number).random

    def below(limit: int) -> int:
        return int(random() * limit)

    axes = make_axes({name: list(range(1 + below(4))) for name in "abcd"[: 2 + below(3)]})
    idle = [{at for at in range(len(axis.values)) if random() < 0.3} for axis in axes]
    strength = 1 + below(min(3, len(axes)))
    limit = 2 + below(6)
    where = (lambda a, b: a + b < limit) if below(2) else None
    plan = plan_cases(axes, strength=strength, where=where, idle=idle, seed=below(3), effort=below(2) * 100)
    allowed = [row for row in product(*(range(len(axis.values)) for axis in axes)) if not where or where(*row[:2])]
    assert set(plan.rows) <= set(allowed)

    def tuples(rows: Iterable[tuple[int, ...]]) -> set[tuple[Any, ...]]:
        groups = list(combinations(range(len(axes)), strength))
        return {(group, tuple(row[a] for a in group)) for row in rows for group in groups}

    def running(rows: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [row for row in rows if not any(at in never for at, never in zip(row, idle, strict=True))]

    assert tuples(plan.rows) == tuples(allowed)
    assert tuples(running(plan.rows)) == tuples(running(allowed))
