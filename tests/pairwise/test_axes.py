"""Axes: what a name and its values mean, which values are one, and which order a set gets."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections import namedtuple
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from brute import same
from hypothesis import given
from hypothesis import strategies as st

from testkit.errors import PairwiseError
from testkit.pairwise import _axes

NAN = float("nan")
Point = namedtuple("Point", "x y")


class Alike:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 1


class Raises:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


def axis(*values: Any) -> _axes.Axis:
    return _axes.make_axis("a", values)


def test_a_name_with_commas_is_one_axis_of_several_arguments() -> None:
    made = _axes.make_axis("n, k,m", [(1, 2, 3), [4, 5, 6]])
    assert made.argnames == ("n", "k", "m")
    assert made.arguments(1) == {"n": 4, "k": 5, "m": 6}
    assert list(made.column("k")) == [2, 5]


def test_a_trailing_comma_names_one_argument_as_in_parametrize() -> None:
    assert _axes.make_axis("n,", [(1,), 2]).column("n") == ((1,), 2)


def test_values_are_the_objects_that_were_given() -> None:
    values = [[], {}, NAN, None, torch.float16, Raises(), lambda: None, {1}]
    assert all(kept is given for kept, given in zip(axis(*values).values, values, strict=True))


@pytest.mark.parametrize(
    "values",
    [
        [1, True, 1.0, 1 + 0j, "1", b"1"],
        [0.0, -0.0, 0, False],
        [None, "None"],
        [(1, 2), [1, 2], (1, 2.0), (True, 2)],
        [{"a": 1}, {"a": True}, {"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [Alike(), Alike()],
        [Raises(), Raises()],
        [lambda: 1, lambda: 1],
        [torch.zeros(2), torch.zeros(2)],
        [torch.float16, torch.bfloat16],
        [numpy.float64(1.0), 1.0, numpy.float64(1.0)],
        [int, float, len],
    ],
)
def test_different_values_are_kept_apart(values: list[Any]) -> None:
    assert axis(*values).repeated == []


@pytest.mark.parametrize(
    "values",
    [
        [1, 1],
        [NAN, float("nan")],
        [(1, NAN), (1, float("nan"))],
        ["ab", "".join(["a", "b"])],
        [[1, [2]], [1, [2]]],
        [{"a": [NAN]}, {"a": [float("nan")]}],
        [complex(0, NAN), complex(0, NAN)],
        [torch.int8, torch.int8],
        [Level.LOW, Level.LOW],
    ],
)
def test_a_value_that_stands_twice_is_one_value(values: list[Any]) -> None:
    assert axis(*values).repeated == [1]
    assert axis(*values).first_positions == (0,)


BUILTINS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(width=16) | st.sampled_from(["", "1", "a", b"a"]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text("ab"), inner),
    max_leaves=6,
)


@given(BUILTINS, BUILTINS)
def test_identity_agrees_with_reading_two_builtins(one: Any, other: Any) -> None:
    assert (_axes.identity(one) == _axes.identity(other)) == same(one, other)
    hash(_axes.identity(one))


@given(st.lists(st.sampled_from([0, 1, 2, True, None, "a"]), min_size=1, max_size=9))
def test_first_positions_hold_each_value_once(values: list[Any]) -> None:
    made = axis(*values)
    kept = [values[position] for position in made.first_positions]
    assert all(not same(a, b) for i, a in enumerate(kept) for b in kept[:i])
    assert all(any(same(value, one) for one in kept) for value in values)
    assert len(kept) + len(made.repeated) == len(values)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (PurePosixPath("a"), PurePosixPath("a")),
        ((PurePosixPath("a"), 1), (PurePosixPath("a"), 1)),
        ({"p": [PurePosixPath("a")]}, {"p": [PurePosixPath("a")]}),
        (Point(1, 2), Point(1, 2)),
        (numpy.float64(2.0), numpy.float64(2.0)),
        (torch.tensor(1), torch.tensor(1)),
        ({1, 2}, {2, 1}),
        (SimpleNamespace(a=1), SimpleNamespace(a=1)),
    ],
)
def test_equal_values_of_one_type_match(value: Any, wanted: Any) -> None:
    assert _axes.matches(value, wanted)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ((1, 2), (True, 2)),
        ((1, 2), (1, 2, 3)),
        ({"a": 1}, {"a": True}),
        ([1], (1,)),
        (Raises(), Raises()),
        (torch.zeros(2), torch.zeros(2)),
        (numpy.zeros(2), numpy.zeros(2)),
        (numpy.int64(1), 1),
    ],
)
def test_values_of_another_type_or_without_a_plain_answer_do_not_match(value: Any, wanted: Any) -> None:
    assert not _axes.matches(value, wanted)


def test_the_same_object_is_found_before_an_equal_one() -> None:
    first, second = Alike(), Alike()
    made = axis(first, second)
    assert _axes.holding(made, [("a", second)]) == [1]
    assert _axes.holding(made, [("a", Alike())]) == [0, 1]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, "pairwise: a model needs at least one axis"),
        ([("a", [1])], "pairwise: axes is list, not a mapping"),
        (None, "pairwise: axes is NoneType, not a mapping"),
        ({"a": []}, "pairwise: axis 'a' has no values"),
        ({"a": iter(())}, "pairwise: axis 'a' has no values"),
        ({"a": 5}, "pairwise: axis 'a' has 5, not values"),
        ({"a": None}, "pairwise: axis 'a' has None, not values"),
        ({1: [1]}, "pairwise: axis name 1 is no argument name"),
        ({("a", "b"): [(1, 2)]}, r"pairwise: axis name \('a', 'b'\) is no argument name"),
        ({"a b": [1]}, "pairwise: axis name 'a b' is no argument name"),
        ({"": [1]}, "pairwise: axis name '' is no argument name"),
        ({"a": [1], "b,a": [(1, 2)]}, "pairwise: argument 'a' stands twice, in axes 'a' and 'b,a'"),
        ({"a,a": [(1, 2)]}, "pairwise: argument 'a' stands twice, in axes 'a,a' and 'a,a'"),
        ({"a,b": [(1, 2), (1,)]}, r"pairwise: axis 'a,b' needs 2 entries a value, position 1 holds \(1,\)"),
        ({"a,b": ["xy"]}, "pairwise: axis 'a,b' needs 2 entries a value, position 0 holds 'xy'"),
        ({"a,b": [5]}, "pairwise: axis 'a,b' needs 2 entries a value, position 0 holds 5"),
        ({"a,b": numpy.zeros((1, 2))}, "pairwise: axis 'a,b' needs 2 entries a value, position 0 holds array"),
    ],
)
def test_axes_that_cannot_be_used_are_refused_by_name(axes: Any, message: str) -> None:
    with pytest.raises(PairwiseError, match=f"^{message}") as caught:
        _axes.make_axes(axes)
    assert caught.value.fix
    assert "\n" not in caught.value.headline


@pytest.mark.parametrize(
    "values",
    [range(3), (i for i in range(3)), dict.fromkeys(range(3)), {0: "x", 1: "y", 2: "z"}.keys(), numpy.arange(3)],
)
def test_any_iterable_of_values_is_read_once_in_its_order(values: Any) -> None:
    assert [int(value) for value in _axes.make_axis("a", values).values] == [0, 1, 2]


# ------------------------------------------------------------------ sets


SETS = """
import enum, json, sys
from testkit.pairwise import _axes, sample
Level = enum.Enum("Level", "LOW HIGH MID")
backends = {"flash", "paged", "naive", "triton", "cutlass", "eager", "marlin"}
shapes = frozenset({"tiny", "ragged", "wide", "tall"})
mixed = {None, 3.5, "a", b"a", (1, frozenset({"x", "y", "z"})), frozenset("pqr"), Level.LOW, Level.HIGH, len, int}
rows = sample({"backend": backends, "shape": shapes, "mixed": mixed}).rows
print([[row["backend"], row["shape"], _axes._stable_text(row["mixed"], "mixed")] for row in rows])
"""


def test_sets_have_the_same_order_under_any_hash_seed() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", SETS],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "2", "3", "4")
    }
    assert len(printed) == 1
    assert "'ragged'" in printed.pop()


@pytest.mark.parametrize("element", [object(), lambda: 1, (1, object())])
def test_a_set_is_refused_if_an_element_prints_its_address(element: Any) -> None:
    with pytest.raises(PairwiseError, match=r"^pairwise: axis 'a' is a set, and <.*> prints its address"):
        _axes.make_axis("a", {element, 1})


def test_a_set_of_functions_and_classes_is_ordered_by_their_names() -> None:
    assert _axes.make_axis("a", {test_sets_have_the_same_order_under_any_hash_seed, axis}).values[0] is axis
    assert set(_axes.make_axis("a", {Raises, int}).values) == {Raises, int}


def test_a_set_whose_elements_print_alike_is_refused() -> None:
    class Quiet:
        def __repr__(self) -> str:
            return "quiet"

    with pytest.raises(PairwiseError, match=r"^pairwise: axis 'a' is a set with two elements that print as quiet"):
        _axes.make_axis("a", {Quiet(), Quiet()})


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    axes = _axes.make_axes({"padded_a": [1], "n,k": [(1, 2)]})
    assert "did you mean 'padded_a'" in str(_axes.unknown_name("where", "paded_a", axes))
    assert "the names are padded_a, n,k, n, k" in str(_axes.unknown_name("where", "zzzzzz", axes))


@pytest.mark.parametrize(("name", "number"), [("n", 0), ("k", 0), ("n,k", 0), ("n, k", 0), ("m", 1), ("x", None)])
def test_an_axis_is_found_by_its_name_and_by_each_argument(name: str, number: int | None) -> None:
    assert _axes.find_axis(name, _axes.make_axes({"n,k": [(1, 2)], "m": [1]})) == number
