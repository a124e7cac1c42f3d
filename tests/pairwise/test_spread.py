"""Rows moved away from what recent runs held: as many, proved, and wider tuples that those runs lacked."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from random import Random

import pytest

from testkit.pairwise._axes import make_axes
from testkit.pairwise._engine import cover
from testkit.pairwise._history import Lessons
from testkit.pairwise._model import Model, Row
from testkit.pairwise._plan import make_model, plan_cases
from testkit.pairwise._proof import prove
from testkit.pairwise._space import Rule, Space
from testkit.pairwise._spread import spread

SHAPES = {"shape": list(range(12)), "a": [0, 1], "b": [0, 1], "c": [0, 1], "d": [0, 1, 2]}


def rows_of(model: Model, seed: int, seen: Sequence[Iterable[Row]] | None = None) -> list[Row]:
    return cover(model, seed=seed, effort="default", engine="testkit", seen=seen)


def triples(rows: Iterable[Row]) -> set[tuple[tuple[int, int], ...]]:
    return {triple for row in rows for triple in itertools.combinations(enumerate(row), 3)}


def random_models() -> Iterable[tuple[int, Model]]:
    for number in range(40):
        random = Random(number)
        levels = [random.randint(1, 5) for _ in range(random.randint(2, 6))]
        rules = []
        for _ in range(random.randint(0, 2)):
            scope = tuple(sorted(random.sample(range(len(levels)), min(2, len(levels)))))
            cells = list(itertools.product(*(range(levels[a]) for a in scope)))
            table = frozenset(random.sample(cells, max(1, len(cells) - random.randint(0, 2))))
            rules.append(Rule(f"rule {number}", scope, table.__contains__, table))
        space = Space(levels, rules)
        if space.satisfiable:
            strength = min(random.choice([1, 2, 2, 3]), len(levels))
            crossed = tuple(range(min(3, len(levels)))) if random.random() < 0.3 else ()
            yield number, Model(space, strength, crossed)


def test_rows_stay_as_many_and_hold_all_that_is_owed() -> None:
    for number, model in random_models():
        grown = rows_of(model, number + 1)
        case = tuple(grown[0])
        model = model.keeping([list(case)])
        grown = rows_of(model, number + 1)
        moved = spread(model, grown, [grown], number)
        assert len(moved) == len(grown)
        prove(model, moved)
        assert all(model.space.allows(row) for row in moved)
        assert list(case) in moved


def test_wider_tuples_that_the_last_run_lacked_come_first() -> None:
    model = make_model(make_axes(SHAPES), strength=2, full=(), where=None)
    first = rows_of(model, 1)
    by_chance, told = rows_of(model, 2), rows_of(model, 2, [first])
    assert len(told) == len(by_chance)
    assert len(triples(told) - triples(first)) > 1.2 * len(triples(by_chance) - triples(first))


def test_three_runs_hold_nearly_every_triple() -> None:
    # 2-valued axes beside a large one: each run holds half of the triples, whatever it chooses
    model = make_model(make_axes({**SHAPES, "d": [0, 1]}), strength=2, full=(), where=None)
    seen: list[list[Row]] = []
    for seed in (5, 6, 7):
        seen.append(rows_of(model, seed, seen))
    every = triples(list(row) for row in itertools.product(*map(range, model.levels)))
    assert len(triples(itertools.chain(*seen))) >= 0.97 * len(every)


def test_the_same_history_gives_the_same_rows() -> None:
    model = make_model(make_axes(SHAPES), strength=2, full=(), where=None)
    seen = [rows_of(model, 1), rows_of(model, 2)]
    assert rows_of(model, 3, seen) == rows_of(model, 3, seen)
    backwards = [list(reversed(run)) for run in seen]
    assert rows_of(model, 3, backwards) == rows_of(model, 3, seen)


def test_seed_0_keeps_its_rows_whatever_the_history_says() -> None:
    axes = make_axes(SHAPES)
    plain = plan_cases(axes)
    lessons = Lessons(plain.model.levels, (dict.fromkeys(plain.rows, "ran"),))
    assert plan_cases(axes, lessons=lessons).rows == plain.rows


def test_another_seed_chooses_by_what_ran() -> None:
    axes = make_axes(SHAPES)
    plain = plan_cases(axes, seed=9)
    ran = Lessons(plain.model.levels, (dict.fromkeys(plain.rows, "ran"),))
    told = plan_cases(axes, seed=9, lessons=ran)
    assert len(told.rows) == len(plain.rows)
    assert told.rows != plain.rows


@pytest.mark.parametrize("levels", [(3, 4), (2,) * 70, (130, 130, 130)])
def test_a_model_without_wider_tuples_or_with_too_many_is_left_as_it_is(levels: tuple[int, ...]) -> None:
    model = Model(Space(levels, []), 2)
    rows = [[0] * len(levels)]
    assert spread(model, rows, [], 1) == rows
