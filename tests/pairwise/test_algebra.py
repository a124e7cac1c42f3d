"""Constructions from algebra: each array covers, and is as small as its source says."""

from __future__ import annotations

from itertools import product

import pytest
from brute import groups_missing

from testkit.pairwise import _algebra

MANY = 1 << 30


@pytest.mark.parametrize("q", [2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 25, 27])
def test_a_field_has_inverses_and_distributes(q: int) -> None:
    add, multiply = _algebra._field(q)
    numbers = range(q)
    assert all(sorted(row) == list(numbers) for row in add)
    assert all(sorted(row) == list(numbers) for row in multiply[1:])
    assert multiply[1] == list(numbers)
    assert add[0] == list(numbers)
    some = range(min(q, 9))
    for a, b, c in product(some, repeat=3):
        assert add[a][b] == add[b][a]
        assert multiply[a][b] == multiply[b][a]
        assert add[a][add[b][c]] == add[add[a][b]][c]
        assert multiply[a][multiply[b][c]] == multiply[multiply[a][b]][c]
        assert multiply[a][add[b][c]] == add[multiply[a][b]][multiply[a][c]]


@pytest.mark.parametrize(
    ("levels", "strength", "rows"),
    [
        ((3,) * 4, 2, 9),
        ((4,) * 5, 2, 16),
        ((5,) * 6, 2, 25),
        ((7,) * 8, 2, 49),
        ((8,) * 9, 2, 64),
        ((9,) * 10, 2, 81),
        ((6,) * 3, 2, 36),
        ((10,) * 3, 2, 100),
        ((12,) * 4, 2, 144),
        ((15,) * 4, 2, 225),
        ((20,) * 5, 2, 400),
        ((2,) * 3, 2, 4),
        ((2,) * 4, 2, 5),
        ((2,) * 10, 2, 6),
        ((2,) * 15, 2, 7),
        ((2,) * 100, 2, 10),
        ((4,) * 100, 2, 52),
        ((3,) * 12, 2, 15),
        ((3,) * 13, 2, 21),
        ((3,) * 4, 3, 27),
        ((4,) * 5, 3, 64),
        ((5,) * 6, 3, 125),
        ((2,) * 4, 3, 8),
        ((2,) * 5, 4, 16),
        ((6,) * 4, 3, 216),
        ((3,) * 2, 1, 3),
        ((3,) * 2, 2, 9),
    ],
)
def test_an_array_of_equal_axes_has_the_published_size(levels: tuple[int, ...], strength: int, rows: int) -> None:
    made = _algebra.algebraic(levels, strength, MANY)
    assert made is not None
    assert len(made) == rows
    assert groups_missing(levels, made, strength) == 0


@pytest.mark.parametrize("strength", [1, 2, 3, 4])
def test_every_construction_covers_axes_of_mixed_sizes(strength: int) -> None:
    for axes in range(strength, 8):
        for order in (2, 3, 4, 5, 6, 7):
            if order**strength > 1_300:
                continue
            levels = tuple(max(1, order - i % 3) for i in range(axes))
            made = _algebra.algebraic(levels, strength, MANY)
            if made is None:
                continue
            assert groups_missing(levels, made, strength) == 0, levels
            assert all(0 <= v < n for row in made for v, n in zip(row, levels, strict=True)), levels
            assert len({tuple(row) for row in made}) == len(made), levels


def test_a_larger_order_is_taken_where_the_own_one_has_too_few_columns() -> None:
    made = _algebra.algebraic((6,) * 8, 2, MANY)
    assert made is not None
    assert len(made) < 50
    assert groups_missing((6,) * 8, made, 2) == 0


@pytest.mark.parametrize(("levels", "below"), [((3,) * 4, 9), ((2,) * 100, 10), ((4,) * 100, 16), ((6,) * 8, 49)])
def test_no_array_is_built_that_is_no_smaller_than_what_is_there(levels: tuple[int, ...], below: int) -> None:
    assert _algebra.algebraic(levels, 2, below) is None
