"""``assert_same_answer``: wrong predictors with the shortest prefix that shows it, fake oracles, and healthy pairs."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from testkit.errors import LawsError
from testkit.laws import LawBroken, assert_same_answer

BLOCK, LIMIT = 4, 14
Step = tuple[str, int]
KINDS: dict[str, Step] = {"prompt": ("prompt", 6), "decode": ("decode", 1), "free": ("free", 0)}


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


class Manager:
    """Blocks of a KV cache for one request; beyond its tokens room is kept for those that may be speculated."""

    def __init__(self, look_ahead: int = 2) -> None:
        self._look_ahead = look_ahead
        self.tokens = 0
        self.blocks: list[int] = []
        self.free_blocks = list(range(100))

    @property
    def look_ahead(self) -> int:
        return self._look_ahead

    def allocate(self, step: Step) -> int:
        """How many blocks this step took."""
        kind, tokens = step
        if kind == "free":
            self.free_blocks += self.blocks
            self.tokens, self.blocks = 0, []
            return 0
        self.tokens += tokens
        wanted = min(self.tokens + self._look_ahead, LIMIT)
        taken = 0
        while len(self.blocks) * BLOCK < wanted:
            self.blocks.append(self.free_blocks.pop())
            taken += 1
        return taken


def right(manager: Manager, step: Step) -> int:
    kind, tokens = step
    if kind == "free":
        return 0
    return max(0, blocks_for(min(manager.tokens + tokens + manager.look_ahead, LIMIT)) - len(manager.blocks))


def looks_not_ahead(manager: Manager, step: Step) -> int:
    if step[0] == "free":
        return 0
    return max(0, blocks_for(min(manager.tokens + step[1], LIMIT)) - len(manager.blocks))


def rounds_down(manager: Manager, step: Step) -> int:
    if step[0] == "free":
        return 0
    return max(0, min(manager.tokens + step[1] + manager.look_ahead, LIMIT) // BLOCK - len(manager.blocks))


def one_too_many_at_the_edge(manager: Manager, step: Step) -> int:
    if step[0] == "free":
        return 0
    return max(0, min(manager.tokens + step[1] + manager.look_ahead, LIMIT) // BLOCK + 1 - len(manager.blocks))


def forgets_what_is_held(manager: Manager, step: Step) -> int:
    return 0 if step[0] == "free" else blocks_for(min(manager.tokens + step[1] + manager.look_ahead, LIMIT))


def knows_no_limit(manager: Manager, step: Step) -> int:
    if step[0] == "free":
        return 0
    return max(0, blocks_for(manager.tokens + step[1] + manager.look_ahead) - len(manager.blocks))


def looks_ahead_for_prompts_only(manager: Manager, step: Step) -> int:
    ahead = manager.look_ahead if step[0] == "prompt" else 0
    return (
        0
        if step[0] == "free"
        else max(0, blocks_for(min(manager.tokens + step[1] + ahead, LIMIT)) - len(manager.blocks))
    )


def free_takes_blocks(manager: Manager, step: Step) -> int:
    return max(0, blocks_for(min(manager.tokens + step[1] + manager.look_ahead, LIMIT)) - len(manager.blocks))


def has_its_own_block_size(manager: Manager, step: Step) -> int:
    if step[0] == "free":
        return 0
    return max(0, math.ceil(min(manager.tokens + step[1] + manager.look_ahead, LIMIT) / 5) - len(manager.blocks))


def is_a_step_behind(manager: Manager, step: Step) -> int:
    return 0 if step[0] == "free" else max(0, blocks_for(min(manager.tokens + 2, LIMIT)) - len(manager.blocks))


def fails_after_free(manager: Manager, step: Step) -> int:
    assert manager.tokens or len(manager.free_blocks) == 100 or manager.blocks
    if manager.tokens == 0 and manager.free_blocks[-1] != 99:
        raise ZeroDivisionError("no tokens")
    return right(manager, step)


BUGS: dict[Callable[..., int], tuple[str, list[str]]] = {
    looks_not_ahead: ("predict says 1 and oracle 2 at step 2 (prompt)", ["prompt", "prompt"]),
    rounds_down: ("predict says 0 and oracle 1 at step 1 (decode)", ["decode"]),
    one_too_many_at_the_edge: ("predict says 3 and oracle 2 at step 1 (prompt)", ["prompt"]),
    forgets_what_is_held: ("predict says 4 and oracle 2 at step 2 (prompt)", ["prompt", "prompt"]),
    knows_no_limit: ("predict says 1 and oracle 0 at step 3 (prompt)", ["prompt", "prompt", "prompt"]),
    looks_ahead_for_prompts_only: ("predict says 0 and oracle 1 at step 2 (decode)", ["prompt", "decode"]),
    free_takes_blocks: ("predict says 1 and oracle 0 at step 1 (free)", ["free"]),
    has_its_own_block_size: ("predict says 1 and oracle 2 at step 2 (prompt)", ["prompt", "prompt"]),
    is_a_step_behind: ("predict says 1 and oracle 2 at step 1 (prompt)", ["prompt"]),
    fails_after_free: ("predict raised ZeroDivisionError at step 3 (prompt): no tokens", ["prompt", "free", "prompt"]),
}
"""Each with the first line of the failure, and the steps of the shortest prefix."""


def steps_of(failure: LawBroken) -> list[str]:
    rows = [re.match(r" *\d+  (\w+) ", line) for line in failure.evidence]
    return [row[1] for row in rows if row]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_each_wrong_predictor_is_found_with_the_shortest_prefix(bug: Callable[..., int]) -> None:
    message, steps = BUGS[bug]
    with pytest.raises(LawBroken, match=f"^laws: {re.escape(message)}\n") as caught:
        assert_same_answer(bug, Manager.allocate, KINDS, start=Manager)
    assert steps_of(caught.value) == steps


@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_each_is_found_in_a_given_trajectory_and_by_hypothesis(bug: Callable[..., int]) -> None:
    names = ["free", "prompt", "decode", "free", "prompt", "prompt", "prompt", "decode", "free", "prompt"]
    tokens = st.integers(1, 9)
    rules = {
        "prompt": st.tuples(st.just("prompt"), tokens),
        "decode": ("decode", 1),
        "free": ("free", 0),
    }
    for trajectory, most in (([KINDS[name] for name in names], len(BUGS[bug][1])), (rules, 8)):
        with pytest.raises(LawBroken, match=r"predict (says|raised)") as caught:
            assert_same_answer(bug, Manager.allocate, trajectory, start=Manager)
        assert len([line for line in caught.value.evidence if re.match(r" *\d", line)]) <= most


def test_without_start_the_trajectory_runs_once_and_the_whole_prefix_is_shown() -> None:
    manager = Manager()
    trajectory = [KINDS[name] for name in ["prompt", "decode", "decode", "decode"]]
    with pytest.raises(LawBroken, match=r"^laws: predict says 0 and oracle 1 at step 2 ") as caught:
        assert_same_answer(
            lambda step: looks_ahead_for_prompts_only(manager, step), lambda step: manager.allocate(step), trajectory
        )
    assert str(caught.value).splitlines() == [
        "laws: predict says 0 and oracle 1 at step 2 (('decode', 1))",
        "  step 2 of the 4 steps given",
        "  step  what           predict  oracle",
        "     1  ('prompt', 6)  2        2",
        "     2  ('decode', 1)  0        1",
        "next: let both read one source, or correct the one that is wrong",
    ]


# oracles that prove nothing


def wanted(manager: Manager, tokens: int) -> int:
    return max(0, blocks_for(min(manager.tokens + tokens + manager.look_ahead, LIMIT)) - len(manager.blocks))


class Fake(Manager):
    """Stands for the allocator in tests, and knows only what the predictor knows."""

    def allocate(self, step: Step) -> int:
        taken = right(self, step)
        return self.keep(step, taken)

    def keep(self, step: Step, taken: int) -> int:
        self.tokens = self.tokens + step[1] if step[0] != "free" else 0
        self.blocks = [*self.blocks, *range(taken)] if step[0] != "free" else []
        return taken

    def by_a_third(self, step: Step) -> int:
        return self.keep(step, 0 if step[0] == "free" else wanted(self, step[1]))

    def by_a_helper(self, step: Step) -> int:
        ahead = min(self.tokens + step[1] + self._look_ahead, LIMIT)
        return self.keep(step, 0 if step[0] == "free" else max(0, blocks_for(ahead) - len(self.blocks)))

    def predicts(self, step: Step) -> int:
        return 0 if step[0] == "free" else wanted(self, step[1])

    def by_a_copy(self, step: Step) -> int:
        return self.keep(step, pasted(self, step))


class Answer:
    """What objects do by themselves is no formula."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and self.blocks - other.blocks == 0

    def __hash__(self) -> int:
        return self.blocks * 2

    def __repr__(self) -> str:
        return f"Answer({self.blocks + 0})"


@dataclass(frozen=True)
class Kept:
    blocks: int


def kept(blocks: int) -> Answer:
    return next(iter({Answer(blocks): Kept(blocks)}))


class Private(Manager):
    def __formula(self, step: Step) -> int:
        return step[1] + 1

    def predict(self, step: Step) -> int:
        return self.__formula(step)

    def allocate(self, step: Step) -> int:
        return self.__formula(step) + self.tokens


def pasted(allocator: Manager, what: Step) -> int:
    """The predictor's text under another name."""
    kind, tokens = what
    if kind == "free":
        return 0
    return max(0, blocks_for(min(allocator.tokens + tokens + allocator.look_ahead, LIMIT)) - len(allocator.blocks))


def allocates_to_predict(manager: Manager, step: Step) -> int:
    """The other way round: the predictor runs the allocator."""
    other = Manager(manager.look_ahead)
    other.tokens, other.blocks = manager.tokens, list(manager.blocks)
    return other.allocate(step)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        assert len(args) == 2
        return function(*args)

    return inner


FAKES: dict[str, tuple[Callable[..., int], Callable[..., int], str]] = {
    "the same function": (right, right, "they are one function"),
    "the predictor in a lambda": (right, lambda m, s: right(m, s), "both run right at test_same_answer.py"),
    "a partial of it": (right, functools.partial(right), "both run right at test_same_answer.py"),
    "a fake that calls it": (right, Fake.allocate, "both run right at test_same_answer.py"),
    "a third function in both": (Fake.predicts, Fake.by_a_third, "both run wanted at test_same_answer.py"),
    "a helper with the formula in it": (right, Fake.by_a_helper, "both run blocks_for at test_same_answer.py"),
    "a copy of it": (right, Fake.by_a_copy, r"pasted at test_same_answer.py:\d+ is a copy of right at"),
    "a predictor that allocates": (allocates_to_predict, Manager.allocate, r"both run (Manager\.)?allocate at"),
    "a private method": (Private.predict, Private.allocate, r"both run (Private\.)?__formula at"),
    "one decorator around both": (decorated(right), decorated(Manager.allocate), r"both run .*inner at"),
}


@pytest.mark.parametrize("fake", FAKES)
def test_an_oracle_that_shares_code_is_refused(fake: str) -> None:
    predict, oracle, message = FAKES[fake]
    trajectory = [KINDS["prompt"], KINDS["decode"]]
    start = Private if predict == Private.predict else Fake
    with pytest.raises(LawsError, match=rf"^laws: oracle is no judge of predict: .*{message}") as caught:
        assert_same_answer(predict, oracle, trajectory, start=start)
    assert not isinstance(caught.value, AssertionError)


def test_one_function_of_c_on_both_sides_is_refused_too() -> None:
    with pytest.raises(LawsError, match="they are one function"):
        assert_same_answer(abs, abs, [1, 2])


def test_an_answer_that_is_the_systems_own_list_is_compared_as_it_was() -> None:
    with pytest.raises(LawBroken, match=r"^laws: predict says \[\] and oracle \[99, 98\] at step 1 \(prompt\)"):
        assert_same_answer(lambda m, s: m.blocks, lambda m, s: m.allocate(s) and m.blocks, KINDS, start=Manager)


def test_a_refusal_says_how_a_helper_may_be_shared_and_never_offers_the_predictor_itself() -> None:
    with pytest.raises(LawsError, match=r"say so: shared=\(blocks_for,\)"):
        assert_same_answer(right, Fake.by_a_helper, [KINDS["prompt"]], start=Fake)
    with pytest.raises(LawsError, match=r"next: give the real code as oracle$"):
        assert_same_answer(right, Fake.allocate, [KINDS["prompt"]], start=Fake)


def test_a_refusal_names_all_that_is_shared_at_once() -> None:
    def first(step: Step) -> int:
        return step[1] + 1

    def second(step: Step) -> int:
        return step[1] + 2

    with pytest.raises(LawsError, match=r"both run first at .*; both run second at ") as caught:
        assert_same_answer(
            lambda m, s: first(s) + second(s), lambda m, s: second(s) + first(s), [("a", 1)], start=Manager
        )
    assert caught.value.fix.endswith("if these are what both are meant to read, say so: shared=(first, second)")


# healthy pairs


class Sharing(Manager):
    """Computes the room with the function that its predictor uses: one source of truth."""

    def room(self, tokens: int) -> int:
        return min(self.tokens + tokens + self._look_ahead, LIMIT)

    def allocate(self, step: Step) -> int:
        if step[0] == "free":
            return super().allocate(step)
        room, taken = self.room(step[1]), 0
        while len(self.blocks) * BLOCK < room:
            self.blocks.append(self.free_blocks.pop())
            taken += 1
        self.tokens += step[1]
        return taken

    def predict(self, step: Step) -> int:
        return 0 if step[0] == "free" else max(0, blocks_for(self.room(step[1])) - len(self.blocks))


class Formula:
    def __init__(self, ahead: int) -> None:
        self.ahead = ahead

    def room(self, tokens: int) -> int:
        return tokens + self.ahead


class Reservation:
    def __init__(self) -> None:
        self.formula, self.tokens = Formula(2), 0

    def predict(self, step: Step) -> int:
        return self.formula.room(self.tokens + step[1])

    def take(self, step: Step) -> int:
        self.tokens += step[1]
        return self.formula.room(self.tokens)


HEALTHY: dict[str, Callable[[], None]] = {
    "a formula and an allocator": lambda: assert_same_answer(right, Manager.allocate, KINDS, start=Manager),
    "a shared property that only reads": lambda: assert_same_answer(
        right, Manager.allocate, [("prompt", 9)], start=lambda: Manager(5), shared=()
    ),
    "a source that is named": lambda: assert_same_answer(
        Sharing.predict, Sharing.allocate, KINDS, start=Sharing, shared=(Sharing.room,)
    ),
    "a helper and a decorator that are named": lambda: assert_same_answer(
        decorated(right), decorated(Fake.by_a_helper), KINDS, start=Fake, shared=(decorated, blocks_for)
    ),
    "a class that is named": lambda: assert_same_answer(
        Reservation.predict, Reservation.take, [("prompt", 3)] * 5, start=Reservation, shared=(Formula,)
    ),
    "schedules by hypothesis": lambda: assert_same_answer(
        lambda m, s: ["block"] * right(m, s),
        lambda m, s: ["block"] * m.allocate(s),
        st.lists(st.sampled_from(list(KINDS.values()))),
        start=Manager,
    ),
    "objects that both make": lambda: assert_same_answer(
        lambda m, s: [Answer(right(m, s))], lambda m, s: [Answer(m.allocate(s))], KINDS, start=Manager
    ),
    "a helper that is named, of objects in sets": lambda: assert_same_answer(
        lambda m, s: kept(right(m, s)), lambda m, s: kept(m.allocate(s)), KINDS, start=Manager, shared=(kept,)
    ),
    "the standard library in both": lambda: assert_same_answer(
        lambda m, s: functools.reduce(lambda a, b: a + b, [right(m, s)]),
        lambda m, s: functools.reduce(lambda a, b: b + a, [m.allocate(s)]),
        KINDS,
        start=Manager,
    ),
}


@pytest.mark.parametrize("pair", HEALTHY)
def test_a_healthy_pair_passes(pair: str) -> None:
    HEALTHY[pair]()


# the source of truth


def has_its_own_look_ahead(manager: Manager, step: Step) -> int:
    return (
        0 if step[0] == "free" else max(0, blocks_for(min(manager.tokens + step[1] + 2, LIMIT)) - len(manager.blocks))
    )


def test_a_source_that_the_predictor_does_not_read_is_named() -> None:
    """The answers agree, and will until somebody changes the source."""
    message = r"^laws: shared names look_ahead, which predict never reached"
    with pytest.raises(LawsError, match=message):
        assert_same_answer(has_its_own_look_ahead, Manager.allocate, KINDS, start=Manager, shared=(Manager.look_ahead,))


def test_a_source_that_the_oracle_does_not_read_is_named() -> None:
    with pytest.raises(LawsError, match=r"shared names look_ahead, which oracle never reached"):
        assert_same_answer(right, Manager.allocate, KINDS, start=Manager, shared=(Manager.look_ahead,))


@pytest.mark.parametrize(
    ("predict", "oracle", "shared", "message"),
    [
        (lambda m, s: None, lambda m, s: m.__dict__.get(s), (), "all answers were None"),
        (right, Manager.allocate, (len,), "shared has <built-in function len>, whose code cannot be seen"),
        (right, Manager.allocate, (int,), "shared has <class 'int'>, whose code cannot be seen"),
        (lambda m, s: Odd(), lambda m, s: Odd() or Odd(), (), "Odd cannot be compared: no truth in it"),
    ],
)
def test_what_would_verify_nothing_is_refused(predict: Any, oracle: Any, shared: Any, message: str) -> None:
    with pytest.raises(LawsError, match=message):
        assert_same_answer(predict, oracle, KINDS, start=Manager, shared=shared)


class Odd:
    """Compares as arrays do."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("no truth in it")

    __hash__ = None  # type: ignore[assignment]  # as arrays


def test_a_profiler_that_is_at_work_comes_back() -> None:
    def profiler(*_: Any) -> None:
        pass

    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        assert_same_answer(right, Manager.allocate, KINDS, start=Manager)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
