"""From a model to rows: growth, the choice among constructions, the budget, the other engine, the proof."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, product
from math import prod
from typing import Any, get_args

import pytest
from brute import Product, groups_missing

from testkit.errors import PairwiseError
from testkit.pairwise import _engine, _proof, _space, coverage, sample
from testkit.pairwise._grow import Ties, grow
from testkit.pairwise._model import Grown, Model
from testkit.pairwise._shrink import shrink
from testkit.pairwise._space import Rule, Space


def free(*levels: int, strength: int = 2, crossed: tuple[int, ...] = (), kept: Any = ()) -> Model:
    return Model(Space(levels, []), strength, crossed, tuple(kept))


def tied(*levels: int, strength: int = 2) -> Model:
    """Axes 0 and 1 differ."""
    table = frozenset((a, b) for a, b in product(range(levels[0]), range(levels[1])) if a != b)
    return Model(Space(levels, [Rule("differ", (0, 1), table.__contains__, table)]), strength)


# ------------------------------------------------------------------ growth


@pytest.mark.parametrize("strength", [1, 2, 3, 4])
@pytest.mark.parametrize("ties", get_args(Ties))
@pytest.mark.parametrize("seed", [0, 1])
def test_growth_alone_covers_every_tuple(strength: int, ties: Ties, seed: int) -> None:
    levels = (4, 3, 3, 2, 2, 1)
    model = free(*levels, strength=strength)
    order, prefer = _engine._orders(model, seed)
    rows = grow(model, order, prefer, ties, seed).rows
    assert groups_missing(levels, rows, strength) == 0
    assert all(0 <= value < n for row in rows for value, n in zip(row, levels, strict=True))


def test_growth_keeps_kept_cells_and_says_which_are_pinned() -> None:
    model = free(3, 3, 3, 3, kept=[{0: 2, 3: 1}, {1: 0}])
    order, prefer = _engine._orders(model, 0)
    grown = grow(model, order, prefer, "least used")
    assert grown.rows[0][0] == 2
    assert grown.rows[0][3] == 1
    assert grown.rows[1][1] == 0
    assert grown.pinned[0] >= {0, 3}
    assert grown.pinned[1] >= {1}


def test_crossed_axes_are_fully_crossed_at_the_size_of_their_product() -> None:
    model = free(3, 4, 2, 2, 2, crossed=(0, 1, 2))
    rows = _engine.cover(model, seed=0, effort="default", engine="testkit")
    assert len(rows) == 24
    assert len({tuple(row[:3]) for row in rows}) == 24
    assert groups_missing((3, 4, 2, 2, 2), rows, 2) == 0


def test_the_search_leaves_crossed_combinations_inside_kept_cases() -> None:
    for number in range(400):
        chance = random.Random(number)
        levels = [chance.randint(2, 5) for _ in range(chance.randint(4, 7))]
        axes = range(len(levels))
        crossed = tuple(sorted(chance.sample(axes, 3)))
        kept = [{a: chance.randrange(levels[a]) for a in chance.sample(axes, chance.randint(1, 2))} for _ in range(3)]
        rows = _engine.cover(free(*levels, crossed=crossed, kept=kept), seed=0, effort=1_500, engine="testkit")
        assert len({tuple(row[a] for a in crossed) for row in rows}) == prod(levels[a] for a in crossed), number
        assert all(any(all(row[a] == v for a, v in case.items()) for row in rows) for case in kept), number


def test_crossed_axes_no_more_than_the_strength_change_nothing() -> None:
    plain = _engine.cover(free(4, 3, 3, 2), seed=0, effort="default", engine="testkit")
    assert _engine.cover(free(4, 3, 3, 2, crossed=(1, 2)), seed=0, effort="default", engine="testkit") == plain


# ------------------------------------------------------------------ the budget


def test_the_search_stops_at_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*arguments: Any) -> Grown:
        raise AssertionError("nothing was left to gain")

    monkeypatch.setattr(_engine, "shrink", unwanted)
    assert len(sample({"a": range(16), "b": range(6), "c": range(4), "d": range(3)}).rows) == 96


def test_more_effort_never_gives_more_rows() -> None:
    axes = {f"p{i}": range(3) for i in range(13)}
    sizes = [len(sample(axes, effort=effort).rows) for effort in (0, 1_000, 20_000, "default")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


def test_effort_is_a_number_of_moves_and_is_kept_to() -> None:
    model = free(*[5] * 10)
    order, prefer = _engine._orders(model, 0)
    grown = grow(model, order, prefer, "least used")
    spent: list[int] = []

    class Counting(int):
        """An int that notes what it was compared with."""

        def __gt__(self, other: Any) -> bool:
            spent.append(other)
            return int(self) > other

        def __le__(self, other: Any) -> bool:
            spent.append(other)
            return int(self) <= other

    shrink(model, grown, Counting(3_000), 0)
    assert 2_000 < max(spent) < 3_000 + len(grown.rows)


def test_the_budget_depends_on_the_model_alone() -> None:
    axes = {f"p{i}": range(3) for i in range(9)}
    first = sample(axes).rows
    sample({f"q{i}": range(4) for i in range(9)})
    assert sample(axes).rows == first


def test_zero_effort_means_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(sample({f"p{i}": range(5) for i in range(10)}, effort=0).rows) >= 41


def test_seeds_give_other_choices_that_are_as_valid() -> None:
    axes = {"a": range(4), "b": range(3), "c": range(3), "d": range(2)}
    chosen = [sample(axes, seed=seed).rows for seed in range(4)]
    assert len({tuple(tuple(row.values()) for row in rows) for rows in chosen}) == 4
    assert all(Product({k: list(v) for k, v in axes.items()}).judge(rows).sound for rows in chosen)


# ------------------------------------------------------------------ the other engine


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_what_allpairspy_leaves_out_is_completed(strength: int) -> None:
    axes = {"a": [0, 1], "b": [0, 1, 2], "c": [0, 1], "d": [0, 1]}

    def legal(a: int, b: int) -> bool:
        return (a, b) not in {(0, 0), (0, 2)}

    chosen = sample(axes, strength=strength, where=legal, engine="allpairspy")
    assert Product(axes, strength=strength, where=[legal]).judge(chosen.rows).sound


def test_allpairspy_is_not_asked_for_one_axis() -> None:
    assert [row["a"] for row in sample({"a": [1, 2]}, strength=1, engine="allpairspy").rows] == [1, 2]


def test_rows_of_allpairspy_are_among_the_completed_ones() -> None:
    from allpairspy import AllPairs

    axes = {"a": list(range(5)), "b": list(range(4)), "c": list(range(3)), "d": [0, 1]}
    theirs = {tuple(row) for row in AllPairs(list(axes.values()))}
    ours = {tuple(row.values()) for row in sample(axes, engine="allpairspy").rows}
    assert theirs <= ours


# ------------------------------------------------------------------ the proof


SPOILED_MODELS = {
    "free": free(4, 3, 3, 2),
    "three-wise": free(3, 3, 2, 2, strength=3),
    "crossed": free(3, 3, 2, 2, crossed=(0, 1, 2)),
    "kept": free(4, 3, 3, 2, kept=[{0: 1, 1: 1, 2: 1, 3: 1}]),
    "tied": tied(4, 4, 3, 2),
}


@pytest.mark.parametrize("name", list(SPOILED_MODELS))
def test_the_proof_accepts_good_rows_and_refuses_each_row_that_is_needed(name: str) -> None:
    model = SPOILED_MODELS[name]
    rows = _engine.cover(model, seed=0, effort="default", engine="testkit")
    _proof.prove(model, rows)
    needed = 0
    for left_out in range(len(rows)):
        fewer = rows[:left_out] + rows[left_out + 1 :]
        gone = {(g, tuple(rows[left_out][a] for a in g)) for g in model.groups()}
        still = {(g, tuple(row[a] for a in g)) for row in fewer for g in model.groups()}
        if gone - still:
            needed += 1
            with pytest.raises(PairwiseError, match=r"^pairwise: the engine made a list .*: (tuples|the kept case)"):
                _proof.prove(model, fewer)
    assert needed > len(rows) // 2


def test_the_proof_refuses_a_changed_cell_that_held_the_last_of_a_pair() -> None:
    model = free(3, 3, 3)
    rows = _engine.cover(model, seed=0, effort="default", engine="testkit")
    assert len(rows) == 9
    for row, axis in product(range(9), range(3)):
        spoiled = [list(one) for one in rows]
        spoiled[row][axis] = (spoiled[row][axis] + 1) % 3
        with pytest.raises(PairwiseError, match=r": tuples of axes \(\d, \d\) are missing"):
            _proof.prove(model, spoiled)


def test_the_proof_refuses_a_row_that_a_predicate_forbids() -> None:
    model = tied(3, 3, 2)
    rows = _engine.cover(model, seed=0, effort="default", engine="testkit")
    with pytest.raises(PairwiseError, match=": a row is not allowed"):
        _proof.prove(model, [*rows, [1, 1, 0]])


def test_the_proof_refuses_a_list_without_a_kept_case() -> None:
    model = free(3, 3, 3, kept=[{0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 1}])
    rows = [[a, b, (a + b) % 3] for a, b in product(range(3), repeat=2)]
    with pytest.raises(PairwiseError, match=r": the kept case \{0: 0, 1: 0, 2: 1\} is not in"):
        _proof.prove(model, rows)


def test_the_proof_refuses_an_empty_list() -> None:
    with pytest.raises(PairwiseError, match=": there are no rows"):
        _proof.prove(free(2, 2), [])


def some_nonsense() -> Iterator[list[list[int]]]:
    yield []
    yield [[0, 0, 0]]
    yield [[0, 0, 0]] * 9
    yield [[a, b, 0] for a, b in product(range(3), repeat=2)]


@pytest.mark.parametrize("rows", list(some_nonsense()))
def test_an_engine_that_returns_nonsense_is_refused(rows: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "_cover", lambda *arguments: Grown(rows))
    with pytest.raises(PairwiseError, match=r"^pairwise: the engine made a list that does not hold what it must: "):
        sample({"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1, 2]})


@pytest.mark.parametrize("part", ["grow", "shrink", "algebraic"])
def test_a_fault_in_any_part_of_the_engine_reaches_the_proof(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(_engine, part)

    def faulty(*arguments: Any, **options: Any) -> Any:
        made = real(*arguments, **options)
        if isinstance(made, Grown):
            return Grown(made.rows[1:], made.pinned[1:])
        return made and made[1:]

    monkeypatch.setattr(_engine, part, faulty)
    sizes = {"grow": (5, 4, 3, 2), "algebraic": (2,) * 100, "shrink": (3,) * 13}[part]
    with pytest.raises(PairwiseError, match=r"^pairwise: the engine made a list that does not hold what it must: "):
        sample({f"p{i}": range(size) for i, size in enumerate(sizes)})


def test_a_constraint_that_a_space_forgets_is_caught_by_asking_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_space.TableComponent, "values", lambda self, state, axis: list(range(3)))
    with pytest.raises(PairwiseError, match=r"^pairwise: "):
        sample({"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1]}, where=lambda a, b: a != b)


def test_missing_tuples_are_listed_in_order_and_counted_like_brute_force() -> None:
    axes = {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1]}

    def rule(a: int, b: int) -> bool:
        return a != b

    rows = [{"a": 0, "b": 1, "c": 0}, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 0, "c": 1}]
    found = coverage(axes, rows, where=rule)
    wanted = [tuple(sorted(one.items())) for one in Product(axes, where=[rule]).left_out(rows)]
    assert [tuple(sorted(one.items())) for one in found.missing] == wanted
    assert found.covered == 6, "the second row is not allowed and covers nothing"


# ------------------------------------------------------------------ model arithmetic


def test_owed_and_floor_are_those_of_the_groups() -> None:
    model = free(5, 4, 3, 2, strength=2)
    assert model.owed == sum(a * b for a, b in combinations((5, 4, 3, 2), 2))
    assert model.floor == 20
    assert free(5, 4, 3, 2, crossed=(1, 2, 3)).floor == 24
    assert free(2, 2, 2, 2).floor == 5, "four rows hold three two-valued columns"
    assert free(*[2] * 100).floor == 10
    assert tied(4, 4, 2).floor == 12


@pytest.mark.parametrize("axes", range(2, 36))
def test_the_floor_of_two_valued_axes_is_reached(axes: int) -> None:
    chosen = sample({f"p{i}": [0, 1] for i in range(axes)})
    assert len(chosen.rows) == chosen.floor
