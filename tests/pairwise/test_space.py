"""Spaces: which partial cases some allowed case holds, by joined tables and by search."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations, product

import pytest

from testkit.errors import PairwiseError
from testkit.pairwise import _predicates, _space, sample
from testkit.pairwise._space import Rule, Space

Levels = Sequence[int]


def rule(scope: tuple[int, ...], levels: Levels, allows: Callable[..., bool], *, lazy: bool = False) -> Rule:
    table = frozenset(t for t in product(*[range(levels[a]) for a in scope]) if allows(*t))
    return Rule("rule", scope, lambda values: allows(*values), None if lazy else table)


def random_space(number: int, *, lazy: bool) -> tuple[Space, list[tuple[int, ...]]]:
    """A space and, by brute force, its allowed cases."""
    chance = random.Random(number)
    levels = [chance.randint(1, 4) for _ in range(chance.randint(2, 6))]
    rules = []
    for _ in range(chance.randint(1, 4)):
        scope = tuple(sorted(chance.sample(range(len(levels)), min(len(levels), chance.randint(1, 3)))))
        share = chance.choice([0.1, 0.4, 0.6])
        table = {t: chance.random() >= share for t in product(*[range(levels[a]) for a in scope])}
        rules.append(rule(scope, levels, lambda *values, table=table: table[values], lazy=lazy))
    cases = [
        case
        for case in product(*map(range, levels))
        if all(one.allows(tuple(case[a] for a in one.scope)) for one in rules)
    ]
    return Space(levels, rules), cases


@pytest.mark.parametrize("lazy", [False, True], ids=["joined", "searched"])
@pytest.mark.parametrize("block", range(5))
def test_a_partial_case_has_states_if_and_only_if_an_allowed_case_holds_it(block: int, lazy: bool) -> None:
    for number in range(block * 20, block * 20 + 20):
        space, cases = random_space(number, lazy=lazy)
        assert space.satisfiable == bool(cases), number
        if not cases:
            continue
        for size in (1, 2, 3):
            for group in combinations(range(len(space.levels)), size):
                held = {tuple(case[a] for a in group) for case in cases}
                assert space.count(group) == len(held), (number, group)
                for values in product(*[range(space.levels[a]) for a in group]):
                    states = space.states(dict(zip(group, values, strict=True)))
                    assert (states is not None) == (values in held), (number, group, values)
                    if states is not None:
                        fitting = [c for c in cases if tuple(c[a] for a in group) == values]
                        for axis in range(len(space.levels)):
                            if axis not in group:
                                assert list(space.values(states, axis)) == sorted({c[axis] for c in fitting})


@pytest.mark.parametrize("lazy", [False, True], ids=["joined", "searched"])
def test_the_nearest_case_is_allowed_and_keeps_what_is_fixed(lazy: bool) -> None:
    for number in range(60):
        space, cases = random_space(number, lazy=lazy)
        chance = random.Random(number)
        for case in cases[:10]:
            for index, component in enumerate(space.components):
                axis = component.axes[0]
                state = space.states({axis: case[axis]})
                assert state is not None
                wanted = {a: chance.randrange(space.levels[a]) for a in component.axes}
                near = component.nearest(state[index], wanted)
                assert near[axis] == case[axis]
                assert list(near) == list(component.axes)
                full = list(case)
                for a, value in near.items():
                    full[a] = value
                assert tuple(full) in set(cases)
                exact = component.nearest(component.start, {a: case[a] for a in component.axes})
                assert exact == {a: case[a] for a in component.axes}, "an allowed wish is granted whole"


def test_rules_that_share_no_axis_make_components_of_their_own() -> None:
    levels = (2, 2, 2, 2, 2)
    rules = [rule((0, 3), levels, lambda a, b: a <= b), rule((1, 4), levels, lambda a, b: a != b)]
    space = Space(levels, rules)
    assert [component.axes for component in space.components] == [(0, 3), (1, 4)]
    assert space.component_of == [0, 1, None, 0, 1]
    assert space.split((0, 1, 2, 3)) == [(0, 3), (1,), (2,)]


def test_a_component_too_large_to_list_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = (5,) * 6
    rules = [rule((a, a + 1), levels, lambda x, y: x != y) for a in range(5)]
    assert isinstance(Space(levels, rules).components[0], _space.TableComponent)
    monkeypatch.setattr(_space, "TABLE_ROWS", 100)
    searched = Space(levels, rules)
    assert isinstance(searched.components[0], _space.SearchComponent)
    assert searched.count((0, 1)) == 20
    assert searched.count((0, 2)) == 25


def test_a_predicate_too_large_to_tabulate_is_asked_and_its_answers_are_remembered() -> None:
    axes = {name: list(range(12)) for name in "abcde"}
    asked: list[tuple[int, ...]] = []

    def even(a: int, b: int, c: int, d: int, e: int) -> bool:
        asked.append((a, b, c, d, e))
        return (a + b + c + d + e) % 2 == 0

    chosen = sample(axes, where=even, effort=0)
    assert len(asked) == len(set(asked)) < 12**5 // 2
    assert chosen.owed == 10 * 144
    assert all(sum(row.values()) % 2 == 0 for row in chosen.rows)


def test_a_predicate_too_hard_to_satisfy_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_space, "SEARCH_STEPS", 300)
    monkeypatch.setattr(_predicates, "TABLE_CASES", 10)
    axes = {name: list(range(8)) for name in "abcdefghi"}  # nine pigeons, eight holes

    def all_apart(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int) -> bool:
        return len({a, b, c, d, e, f, g, h, i}) == 9

    name = "test_a_predicate_too_hard_to_satisfy_is_refused_by_name.all_apart"
    with pytest.raises(
        PairwiseError, match=f"^pairwise: gave up after looking 300 times for cases that satisfy {name}"
    ):
        sample(axes, where=all_apart)


def test_a_predicate_that_is_asked_too_often_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_predicates, "TABLE_CASES", 100)
    monkeypatch.setattr(_predicates, "LAZY_CASES", 2_000)
    axes = {name: list(range(12)) for name in "abcde"}

    def seven(a: int, b: int, c: int, d: int, e: int) -> bool:
        return a + b + c + d + e == 7

    name = "test_a_predicate_that_is_asked_too_often_is_refused_by_name.seven"
    message = f"^pairwise: gave up on predicate {name} after asking it about 2,000 combinations of its arguments\nnext"
    with pytest.raises(PairwiseError, match=message):
        sample(axes, where=seven)


def test_a_long_chain_of_predicates_is_decided_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_space, "TABLE_ROWS", 1_000)
    axes = {f"a{i}": [0, 1] for i in range(60)}
    made: dict[str, Callable[..., bool]] = {}
    for i in range(59):
        exec(f"def up{i}(a{i}, a{i + 1}): return a{i} <= a{i + 1}", made)  # type: ignore[arg-type]
    chosen = sample(axes, where=[made[f"up{i}"] for i in range(59)], effort=0)
    assert chosen.owed == 3 * 60 * 59 // 2, "of each pair (1, 0) is not owed"
    assert len(chosen.rows) == 61, "each allowed case alone holds one of the pairs"
