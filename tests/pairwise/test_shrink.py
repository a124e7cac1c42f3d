"""The search for fewer rows: it keeps cover, constraints and pins, and its bookkeeping is exact."""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any

import pytest
from brute import groups_missing
from covering_models import read_ctw

from testkit.pairwise import _engine, _shrink
from testkit.pairwise._axes import make_axes
from testkit.pairwise._grow import grow
from testkit.pairwise._model import Grown, Model
from testkit.pairwise._plan import make_model
from testkit.pairwise._proof import prove
from testkit.pairwise._shrink import _Search, shrink
from testkit.pairwise._space import Rule, Space


def model_of(number: int) -> Model:
    chance = random.Random(number)
    levels = [chance.randint(2, 4) for _ in range(chance.randint(4, 8))]
    rules = []
    for _ in range(number % 3):
        scope = tuple(sorted(chance.sample(range(len(levels)), 2)))
        pairs = product(*[range(levels[a]) for a in scope])
        table = frozenset(pair for pair in pairs if chance.random() > 0.15)
        rules.append(Rule("rule", scope, table.__contains__, table))
    space = Space(levels, rules)
    kept = [{0: 0, 2: 0}] if number % 4 == 0 and space.states({0: 0, 2: 0}) is not None else []
    return Model(space, 2, (0, 1, 2) if number % 5 == 0 else (), tuple(kept))


def grown_of(model: Model) -> Grown:
    order, prefer = _engine._orders(model, 0)
    return grow(model, order, prefer, "least used")


SATISFIABLE = [number for number in range(60) if model_of(number).space.satisfiable]


def test_the_drawn_models_include_rules_crossed_axes_and_kept_cases() -> None:
    models = [model_of(number) for number in SATISFIABLE]
    assert sum(bool(model.space.components) for model in models) > 20
    assert sum(model.wide for model in models) > 5
    assert sum(bool(model.kept) for model in models) > 5


@pytest.mark.parametrize("seed", [0, 1])
def test_a_smaller_array_still_holds_everything(seed: int) -> None:
    smaller = 0
    for number in SATISFIABLE:
        model = model_of(number)
        grown = grown_of(model)
        found = shrink(model, grown, 3_000, seed)
        prove(model, found.rows)
        assert len(found.rows) <= len(grown.rows)
        assert len(found.rows) >= model.floor
        smaller += len(found.rows) < len(grown.rows)
    assert smaller > len(SATISFIABLE) // 4


def test_pinned_cells_are_never_moved() -> None:
    for number in SATISFIABLE:
        model = model_of(number)
        grown = grown_of(model)
        pinned = [[(axis, row[axis]) for axis in axes] for row, axes in zip(grown.rows, grown.pinned, strict=False)]
        found = shrink(model, grown, 2_000, 0)
        for cells in filter(None, pinned):
            assert any(all(row[axis] == value for axis, value in cells) for row in found.rows), number


def test_the_search_does_not_change_what_it_was_given() -> None:
    model = model_of(1)
    grown = grown_of(model)
    before = [list(row) for row in grown.rows]
    shrink(model, grown, 2_000, 0)
    assert grown.rows == before


def test_a_stuck_search_finds_fewer_rows_from_another_start(monkeypatch: pytest.MonkeyPatch) -> None:
    axes, where = read_ctw("spinv")
    model = make_model(make_axes(axes), strength=2, full=(), where=where)
    grown = grown_of(model)
    several = len(shrink(model, grown, 40_000, 0).rows)
    monkeypatch.setattr(_shrink, "STARTS", 1)
    assert several < len(shrink(model, grown, 40_000, 0).rows)


def test_no_move_is_made_without_a_budget_or_at_the_floor() -> None:
    model = Model(Space((5,) * 10, []), 2)
    grown = grown_of(model)
    assert shrink(model, grown, 0, 0) is grown
    square = Model(Space((3, 3, 3), []), 2)
    assert len(shrink(square, grown_of(square), 10_000, 0).rows) == 9


def test_rows_that_are_all_pinned_are_left() -> None:
    model = Model(Space((2, 2, 2), []), 2, (), tuple({0: a, 1: b, 2: c} for a, b, c in product((0, 1), repeat=3)))
    grown = grown_of(model)
    assert len(shrink(model, grown, 1_000, 0).rows) == 8


def test_a_search_that_comes_no_closer_gives_way_before_its_moves_are_used_up() -> None:
    model = Model(Space((3,) * 4, []), 2)
    search = _Search(model, Grown([[a, b, (a + b) % 3, (a + 2 * b) % 3] for a in range(3) for b in range(3)]), 0)
    assert search.drop()
    assert not search.repair(1_000_000, 300)  # no array has 8 rows
    assert 300 < search.moves < 5_000


def test_the_starts_share_the_moves_and_no_two_seeds_have_one_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []

    class Noted(_Search):
        def __init__(self, model: Model, grown: Grown, seed: int, moves: int = 0) -> None:
            made.append((seed, moves))
            super().__init__(model, grown, seed, moves)

    monkeypatch.setattr(_shrink, "_Search", Noted)
    model = Model(Space((3,) * 5, []), 2)  # 11 rows, and a floor of 9 that none reaches
    grown = grown_of(model)
    for seed in (0, 1):
        shrink(model, grown, 8_000, seed)
    seeds = [seed for seed, _ in made]
    assert len(set(seeds)) == len(seeds) > 4
    for seed in (0, 1):
        begun = [moves for start, moves in made if start // _shrink.STARTS == seed]
        assert 2 <= len(begun) <= _shrink.STARTS
        assert begun == sorted(begun)
        assert begun[0] == 0
        assert begun[-1] < 8_000


def counted(search: _Search) -> tuple[list[set[int]], list[set[int]], int]:
    """For each symbol its partners that no row and that one row holds, and the missing pairs, counted anew."""
    held: dict[tuple[int, int], int] = {}
    for row in search.alive:
        for one, other in combinations([s for s in search.rows[row] if s >= 0], 2):
            held[one, other] = held[other, one] = held.get((one, other), 0) + 1
    symbols = range(len(search.axis_of))
    owed = search._owed()
    missing = [{o for o in symbols if owed[s] >> o & 1 and not held.get((s, o))} for s in symbols]
    once = [{o for o in symbols if held.get((s, o)) == 1} for s in symbols]
    return missing, once, sum(map(len, missing)) // 2


def bits(mask: int) -> set[int]:
    return {place for place in range(mask.bit_length()) if mask >> place & 1}


@pytest.mark.parametrize("number", [number for number in SATISFIABLE if number % 5][:12])
def test_the_counts_of_pairs_stay_exact_while_cells_move(number: int) -> None:
    model = model_of(number)
    search = _Search(model, grown_of(model), 0)
    assert search.drop()
    for limit in range(0, 400, 40):
        missing, once, short = counted(search)
        assert [bits(mask) for mask in search.missing] == missing
        assert [bits(mask) for mask in search.once] == once
        assert search.short == short
        assert bits(search.live) == {s for s, partners in enumerate(missing) if partners}
        if search.repair(limit, 1_000) and not search.drop():
            break


def test_the_price_of_a_move_is_what_it_changes() -> None:
    for number in SATISFIABLE[:20]:
        model = model_of(number)
        search = _Search(model, grown_of(model), 0)
        if not search.drop():
            continue
        chance = random.Random(number)
        for _ in range(30):
            row = chance.choice(search.alive)
            axes = chance.sample(range(len(model.levels)), chance.randint(1, 3))
            changes: dict[int, Any] = {}
            for axis in axes:
                symbol = search.first[axis] + chance.randrange(model.levels[axis])
                if symbol != search.rows[row][axis]:
                    changes[axis] = symbol
            if model.space.components or not changes:
                continue
            price, before = search._price(row, changes), search.short
            for axis in changes:
                search._lift(row, axis)
            for axis, symbol in changes.items():
                search._place(row, axis, symbol)
            assert search.short == before + price


def test_two_searches_with_one_seed_walk_alike() -> None:
    model = Model(Space((4,) * 8, []), 2)
    grown = grown_of(model)
    assert shrink(model, grown, 20_000, 3).rows == shrink(model, grown, 20_000, 3).rows
    assert groups_missing((4,) * 8, shrink(model, grown, 20_000, 3).rows, 2) == 0
