"""Predicates: what they may look like, and what is said about one that cannot be used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from brute import Product

from testkit.errors import PairwiseError
from testkit.pairwise import _predicates, sample

AXES: dict[str, list[Any]] = {"n": [1, 2, 3], "k": [1, 2], "m": ["x", "y"]}


class Differs:
    def __call__(self, n: int, k: int) -> bool:
        return n != k

    def method(self, n: int, k: int) -> bool:
        return n != k

    @staticmethod
    def static(n: int, k: int) -> bool:
        return n != k

    @classmethod
    def of_class(cls, n: int, k: int) -> bool:
        return n != k


class AsyncCall:
    async def __call__(self, n: int) -> bool:
        return True


class NoTruth:
    def __bool__(self) -> bool:
        raise ValueError("neither")


async def waits(n: int) -> bool:
    return True


def yields(n: int) -> Any:
    yield True


def differs(n: int, k: int) -> bool:
    return n != k


def only_keywords(*, k: int, n: int) -> bool:
    return n != k


def only_positions(n: int, k: int, /) -> bool:
    return n != k


def with_a_default(n: int, limit: int = 99, k: int = 7) -> bool:
    return n != k and n < limit


def beyond(n: int, k: int, far: int) -> bool:
    return n != k + far


USABLE: list[Callable[..., Any]] = [
    differs,
    lambda n, k: n != k,
    lambda k, n: n != k,
    only_keywords,
    only_positions,
    with_a_default,
    functools.partial(beyond, far=0),
    functools.partial(lambda far, n, k: n != k, 0),
    functools.lru_cache(differs),
    Differs(),
    Differs().method,
    Differs.static,
    Differs.of_class,
    lambda n, k: numpy.bool_(n != k),
    lambda n, k: torch.tensor(n != k),
    lambda n, k: None if n == k else "yes",
    lambda n, k: [] if n == k else [0],
]


@pytest.mark.parametrize("predicate", USABLE)
@pytest.mark.parametrize("limit", [_predicates.TABLE_CASES, 0], ids=["tabulated", "lazy"])
def test_anything_callable_that_names_its_arguments_is_a_predicate(
    predicate: Callable[..., Any], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_predicates, "TABLE_CASES", limit)
    chosen = sample(AXES, where=predicate)
    brute = Product(AXES, where=[differs])
    assert brute.judge(chosen.rows).sound
    assert chosen.owed == len(brute.owed) == 14


@pytest.mark.parametrize("where", [None, [], (), iter([])])
def test_no_predicate_allows_everything(where: Any) -> None:
    assert sample(AXES, where=where).owed == 16


def test_predicates_may_come_from_a_generator() -> None:
    assert sample(AXES, where=(p for p in [differs, lambda m: m == "x"])).owed == 4 + 2 + 3


def test_a_predicate_sees_the_very_objects() -> None:
    values = [[1], {"a": 2}, torch.zeros(2)]
    seen = []

    def watch(a: Any, b: Any) -> bool:
        seen.append(a)
        return True

    sample({"a": values, "b": [1, 2]}, where=watch)
    assert {id(value) for value in seen} == {id(value) for value in values}


def test_a_predicate_may_look_into_axes_of_several_arguments() -> None:
    axes = {"n,k": [(1, 2), (2, 1), (3, 3)], "m,x": [(1, 1), (2, 5)], "y": [0, 1]}

    def rule(k: int, m: int, y: int) -> bool:
        return k >= m + y

    brute = Product(axes, where=[rule])
    assert brute.judge(sample(axes, where=rule).rows).sound


def test_a_true_predicate_without_arguments_of_ours_changes_nothing() -> None:
    assert sample(AXES, where=lambda: True).owed == 16
    assert sample(AXES, where=lambda other=1: other).owed == 16


def raising(n: int, k: int) -> bool:
    return 1 / (n - k) > 0


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (5, "where is 5, not a predicate"),
        ("n < 3", r"where\[0\] is 'n', not a predicate"),
        ([differs, 5], r"where\[1\] is 5, not a predicate"),
        ({"n": differs}, r"where\[0\] is 'n', not a predicate"),
        (lambda *args: True, r"predicate lambda at test_predicates.py:\d+ takes \*args, which says nothing"),
        (lambda n, **more: True, r"predicate lambda at test_predicates.py:\d+ takes \*\*more, which says nothing"),
        (lambda nn: True, r"predicate lambda at test_predicates.py:\d+ names 'nn', which no axis has\nnext: did you"),
        (max, "predicate max does not tell its argument names"),
        (waits, "predicate waits is async, so its answer is always true"),
        (functools.partial(waits), "predicate waits is async, so its answer is always true"),
        (AsyncCall(), "predicate AsyncCall answers with a coroutine, which is always true"),
        (lambda n: waits(n), r"predicate lambda at test_predicates.py:\d+ answers with a coroutine"),
        (yields, "predicate yields answers with a generator, which is always true"),
        (lambda: False, r"predicate lambda at test_predicates.py:\d+ takes none of the axes and is false"),
        (raising, "predicate raising raised ZeroDivisionError: division by zero, for n=1, k=1\nnext: "),
        (lambda n: NoTruth(), r"predicate lambda at test_predicates.py:\d+ raised ValueError: neither, for n=1"),
        (lambda n: numpy.zeros(2), r"predicate lambda at test_predicates.py:\d+ raised ValueError: The truth value"),
    ],
)
@pytest.mark.parametrize("limit", [_predicates.TABLE_CASES, 0], ids=["tabulated", "lazy"])
def test_a_predicate_that_cannot_be_used_is_refused_by_name(
    where: Any, message: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_predicates, "TABLE_CASES", limit)
    with pytest.raises(PairwiseError, match=f"^pairwise: {message}") as caught:
        sample(AXES, where=where)
    assert caught.value.fix


def test_the_headline_is_one_line_whatever_the_error_and_the_values_print() -> None:
    def breaks(a: Any) -> bool:
        raise ValueError("first\nsecond")

    with pytest.raises(PairwiseError, match=r"raised ValueError: first second, for a=tensor\(") as caught:
        sample({"a": [torch.zeros(2, 2)], "b": [1]}, where=breaks)
    assert "\n" not in caught.value.headline
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_interrupt_inside_a_predicate_is_no_failure_of_the_predicate() -> None:
    def interrupted(n: int) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        sample(AXES, where=interrupted)


@pytest.mark.parametrize(
    ("predicates", "message"),
    [
        ([lambda n: n > 3], r"lambda at test_predicates.py:\d+ allows no case"),
        ([lambda k: None], r"lambda at test_predicates.py:\d+ allows no case"),
    ],
)
def test_a_predicate_that_allows_nothing_is_named(predicates: list[Any], message: str) -> None:
    with pytest.raises(PairwiseError, match=f"^pairwise: {message}"):
        sample(AXES, where=predicates)


def larger(n: int, k: int) -> bool:
    return n > k


def not_larger(n: int, k: int) -> bool:
    return n <= k


def known(m: str) -> bool:
    return m in "xy"


def positive(n: int) -> bool:
    return n > 0


def whole(k: int) -> bool:
    return k == int(k)


@pytest.mark.parametrize("limit", [_predicates.TABLE_CASES, 0], ids=["tabulated", "lazy"])
def test_a_conflict_of_two_among_five_names_exactly_those_two(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_predicates, "TABLE_CASES", limit)
    with pytest.raises(PairwiseError, match=r"^pairwise: larger and not_larger allow no case together\nnext: loosen"):
        sample(AXES, where=[positive, larger, known, not_larger, whole])


def test_a_conflict_of_three_names_all_three_and_no_other() -> None:
    def one(a: int, b: int) -> bool:
        return a < b

    def two(b: int, c: int) -> bool:
        return b < c

    def three(a: int, c: int) -> bool:
        return c <= a

    others = [lambda a: a >= 0, lambda b: b >= 0, lambda c: c >= 0]
    axes = {name: [0, 1, 2] for name in "abc"}
    prefix = "test_a_conflict_of_three_names_all_three_and_no_other."
    message = f"^pairwise: {prefix}one and {prefix}two and {prefix}three allow no case together"
    with pytest.raises(PairwiseError, match=message):
        sample(axes, where=[others[0], one, others[1], two, others[2], three])


def test_a_conflict_among_many_predicates_is_still_named_without_trying_every_set() -> None:
    axes = {f"a{i}": [0, 1] for i in range(30)}
    made: dict[str, Any] = {}
    for i in range(30):
        exec(f"def fine{i}(a{i}, a{(i + 1) % 30}): return True", made)
    chain = [f"def up{i}(a{i}, a{i + 1}): return a{i} <= a{i + 1}" for i in range(4)]
    for text in [*chain, "def starts(a0): return a0 == 1", "def ends(a4): return a4 == 0"]:
        exec(text, made)
    where = [value for name, value in made.items() if name != "__builtins__"]
    named = "up0 and up1 and up2 and up3 and starts and ends"
    with pytest.raises(PairwiseError, match=f"^pairwise: {named} allow no case together"):
        sample(axes, where=where)
