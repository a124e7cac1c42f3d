"""Ids: they say which value is meant, never repeat, and do not depend on the rest of the axis."""

from __future__ import annotations

import enum
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testkit.pairwise._axes import identity, make_axis
from testkit.pairwise._ids import LONGEST, axis_ids, value_text

NAN = float("nan")
# Values that print alike, from a suite whose ids collided under strict ids.
PRINT_ALIKE = [None, "None", 1, True, "1", NAN, NAN, (1, 2), (1, 2), "", "a-b", "a"]


class Level(enum.Enum):
    LOW = 1


class Plain:
    pass


def named() -> None:
    pass


def ids(*values: Any, name: str = "scale") -> list[str]:
    return axis_ids(make_axis(name, values))[0]


def test_values_that_print_alike_have_ids_of_their_own() -> None:
    assert ids(*PRINT_ALIKE) == [
        "scale=None",
        "scale='None'",
        "scale=1",
        "scale=True",
        "scale='1'",
        "scale=nan",
        "scale=nan@2",
        "scale=(1,2)",
        "scale=(1,2)@2",
        "scale=''",
        "scale='a-b'",
        "scale=a",
    ]


def test_pairs_that_join_to_one_text_have_ids_of_their_own() -> None:
    assert ids(("a", "b-c"), ("a-b", "c"), name="left,right") == ["left=a-right='b-c'", "left='a-b'-right=c"]


@pytest.mark.parametrize("left_out", range(len(PRINT_ALIKE)))
def test_an_id_stays_when_another_value_leaves_the_axis(left_out: int) -> None:
    before = dict(zip(range(len(PRINT_ALIKE)), ids(*PRINT_ALIKE), strict=True))
    rest = [number for number in range(len(PRINT_ALIKE)) if number != left_out]
    for number, text in zip(rest, ids(*[PRINT_ALIKE[number] for number in rest]), strict=True):
        assert text == before[number] or before[number].endswith("@2"), "only repeats of a value are numbered"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.bfloat16, "torch.bfloat16"),
        (Level.LOW, "Level.LOW"),
        (Plain(), "<Plain>"),
        (int, "builtins.int"),
        (len, "builtins.len"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (1j, "1j"),
        (b"x", "b'x'"),
        ("nan", "'nan'"),
        ("two words", "'two words'"),
        ("caf\u00e9", "'caf\\xe9'"),
        ("line\nbreak", "'line\\nbreak'"),
        ([1, "a", None], "[1,a,None]"),
        ({"k": 1, 2: [3]}, "{k:1,2:[3]}"),
        ({"b", "a"}, "set{a,b}"),
        (frozenset({2, 1}), "frozenset{1,2}"),
        (range(3), "range(0, 3)"),
        (enum, "module:enum"),
    ],
)
def test_a_value_has_a_typed_text(value: Any, text: str) -> None:
    assert value_text(value) == text


def test_a_function_is_called_by_its_name() -> None:
    assert value_text(named) == f"{__name__}.named"


def test_a_long_text_is_cut_and_still_its_own() -> None:
    one, other = "x" * 200, "x" * 199 + "y"
    assert len(value_text(one)) == LONGEST
    assert value_text(one) != value_text(other)


def test_objects_without_a_text_of_their_own_are_numbered_and_said() -> None:
    texts, notes = axis_ids(make_axis("op", [Plain(), Plain(), Plain()]))
    assert texts == ["op=<Plain>", "op=<Plain>@2", "op=<Plain>@3"]
    assert len(notes) == 2
    assert notes[0].startswith("axis 'op': <")
    assert notes[0].endswith("has the id of another value, and is called op=<Plain>@2")


def test_no_address_is_in_an_id() -> None:
    assert "0x" not in "".join(ids(Plain(), lambda: 1, (Plain(), [Plain()]), {"k": Plain()}))


def test_ids_that_the_user_chose_are_used_and_kept_apart() -> None:
    axis = make_axis("n", [1, 2, 3, 4])
    texts, notes = axis_ids(axis, ["small", None, "small", "small@2"])
    assert texts == ["n=small", "n=2", "n=small@2", "n=small@2@2"]
    assert len(notes) == 2
    assert axis_ids(make_axis("n", [1, 2, 3]), ["small", "small@2", "small"])[0] == [
        "n=small",
        "n=small@2",
        "n=small@3",
    ]


BUILTINS = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(width=16) | st.text("a1-,' N", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text("ab"), inner),
    max_leaves=6,
)


@given(st.lists(BUILTINS, min_size=1, max_size=8))
def test_ids_never_repeat_and_builtins_share_a_text_only_if_they_are_one_value(values: list[Any]) -> None:
    texts = ids(*values)
    assert len(set(texts)) == len(texts)
    assert all(text.isascii() and text.isprintable() for text in texts)
    for one in values:
        for other in values:
            assert (value_text(one) == value_text(other)) == (identity(one) == identity(other))


HASHED = """
from testkit.pairwise._axes import make_axis
from testkit.pairwise._ids import axis_ids
values = [frozenset({"a", "b", "c"}), {"x", "y", ("p", frozenset("qrs"))}, {"k": {"m", "n", "o"}}]
print(axis_ids(make_axis("s", values))[0])
"""


def test_ids_of_sets_are_the_same_under_any_hash_seed() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3", "4")
    }
    assert len(printed) == 1
