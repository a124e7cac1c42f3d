"""``assert_terminates``: planted livelocks, each with the steps that repeat and who asks; healthy systems end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from testkit.errors import LawsError
from testkit.laws import LawBroken, assert_terminates


class Store:
    """Promotes blocks from a slower tier."""

    def promoted(self, block: int) -> bool:
        return True


class Engine:
    """Waits for a promotion for three steps at most, and goes on without it."""

    def __init__(self) -> None:
        self.store = Store()
        self.waiting = [1, 2]
        self.waited = 0

    def step(self) -> bool:
        self.waited += 1
        if self.waited > 3:
            self.give_up()
        self.look()
        return not self.waiting

    def look(self) -> None:
        self.waiting = [block for block in self.waiting if not self.store.promoted(block)]

    def give_up(self) -> None:
        self.waiting = []


class WaitsForEver(Engine):
    def give_up(self) -> None:
        pass


class RetriesEachStep(Engine):
    def give_up(self) -> None:
        for _ in range(64):
            self.scan()

    def scan(self) -> None:
        pass


class PutsItBackInTheQueue(Engine):
    def give_up(self) -> None:
        self.waiting = self.waiting[1:] + self.waiting[:1]


class ResetsItsOwnLimit(Engine):
    def give_up(self) -> None:
        self.waited = 0


class TakesTurns(Engine):
    """Two requests make room for each other, in turn."""

    def give_up(self) -> None:
        self.first() if self.waited % 2 else self.second()

    def first(self) -> None:
        pass

    def second(self) -> None:
        pass


class AsksInALoop(Engine):
    def look(self) -> None:
        while not self.store.promoted(1):
            pass


class SwallowsEverything(Engine):
    def look(self) -> None:
        done = False
        while not done:
            with suppress(Exception):
                done = self.store.promoted(1)


class GrowsABacklog(Engine):
    def give_up(self) -> None:
        self.waiting += [1]


class GivesUpOnOneOnly(Engine):
    def give_up(self) -> None:
        self.waiting = self.waiting[:1]


class CountsSuccessesOnly(Engine):
    def step(self) -> bool:
        before = len(self.waiting)
        self.look()
        self.waited += before - len(self.waiting)
        return not self.waiting or self.waited > 3


BUGS: dict[type[Engine], tuple[str, str]] = {
    WaitsForEver: ("40 steps", "steps 4-40 repeat, each calling"),
    RetriesEachStep: ("40 steps", "steps 4-40 repeat, each calling"),
    PutsItBackInTheQueue: ("40 steps", "steps 4-40 repeat, each calling"),
    ResetsItsOwnLimit: ("40 steps", "steps 1-40 repeat, every 4 of them calling"),
    TakesTurns: ("40 steps", "steps 4-40 repeat, every 2 of them calling"),
    AsksInALoop: ("1 step", "the last step called"),
    SwallowsEverything: ("1 step", "the last step called"),
    GrowsABacklog: ("40 steps", "the last step called"),
    GivesUpOnOneOnly: ("40 steps", "steps 4-40 repeat, each calling"),
    CountsSuccessesOnly: ("40 steps", "steps 1-40 repeat, each calling"),
}
"""Each with the steps it took, and what they are said to do."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_each_livelock_is_found_with_what_repeats_and_who_asks(bug: type[Engine]) -> None:
    steps, repeats = BUGS[bug]
    engine = bug()
    message = rf"^laws: not done after {steps} while Store\.promoted always answers False\n  {repeats}\n"
    with pytest.raises(LawBroken, match=message) as caught:
        assert_terminates(lambda: engine.step(), max_steps=40, stuck=(engine.store, "promoted", False))
    text = str(caught.value)
    assert re.search(r"\n    +\d+  (\w+\.)?look at test_terminates\.py:\d+\n", text)
    assert re.search(
        r"\n  Store\.promoted was asked [\d,]+ times, from\n    +[\d,]+  .*test_terminates\.py:\d+ in ", text
    )
    assert vars(engine.store) == {}


def test_the_report_of_a_scan_in_each_step_says_how_much_that_is() -> None:
    engine = RetriesEachStep()
    with pytest.raises(LawBroken, match="not done") as caught:
        assert_terminates(lambda: engine.step(), max_steps=9, stuck=(engine.store, "promoted", False))
    lines = [re.sub(r"(RetriesEachStep|Engine)\.", "", line) for line in str(caught.value).splitlines()]
    places = [re.sub(r"\S*test_terminates\.py:\d+", "FILE", line) for line in lines]
    assert places[:4] == [
        "laws: not done after 9 steps while Store.promoted always answers False",
        "  steps 4-9 repeat, each calling",
        "    64  scan at FILE",
        "     1  <lambda> at FILE",
    ]
    assert "  Store.promoted was asked 18 times, from" in places
    assert (
        places[-1] == "next: give the wait a limit, or let it end another way; if more steps are fine, raise max_steps"
    )


def test_a_step_that_would_not_end_is_ended_and_that_is_said() -> None:
    engine = SwallowsEverything()
    with pytest.raises(LawBroken, match=r"asked 100,000 times, from\n.*\n  the last step was ended there"):
        assert_terminates(engine.step, max_steps=3, stuck=(engine.store, "promoted", False))


class FallsBack(Engine):
    def give_up(self) -> None:
        self.waiting = []


class HalvesItsWait(Engine):
    def give_up(self) -> None:
        self.waiting = self.waiting[1:]


class RaisesAtItsLimit(Engine):
    def step(self) -> bool:
        try:
            return super().step()
        except TimeoutError:
            return True

    def give_up(self) -> None:
        raise TimeoutError("no promotion in 3 steps")


def generated(engine: Engine) -> Callable[[], bool]:
    def steps() -> Iterator[bool]:
        for _ in range(5):
            engine.look()
            yield False
        yield True

    return steps().__next__


HEALTHY: dict[str, tuple[Callable[[Engine], Callable[[], bool]], type[Engine], int]] = {
    "gives up after three": (lambda engine: engine.step, Engine, 4),
    "falls back": (lambda engine: engine.step, FallsBack, 4),
    "lets one go a step": (lambda engine: engine.step, HalvesItsWait, 5),
    "raises, and says done": (lambda engine: engine.step, RaisesAtItsLimit, 4),
    "steps of a generator": (generated, Engine, 6),
}


@pytest.mark.parametrize("system", HEALTHY)
def test_a_healthy_system_ends_and_its_steps_are_counted(system: str) -> None:
    stepping, kind, steps = HEALTHY[system]
    engine = kind()
    assert assert_terminates(stepping(engine), max_steps=steps, stuck=(engine.store, "promoted", False)) == steps


def test_without_a_stuck_dependency_the_system_runs_as_it_is() -> None:
    engine = WaitsForEver()
    assert assert_terminates(engine.step, max_steps=5) == 1
    with pytest.raises(LawBroken, match=r"^laws: not done after 5 steps\n  steps 1-5 repeat, each calling\n"):
        assert_terminates(lambda: False, max_steps=5)


def test_an_error_of_a_step_is_its_own() -> None:
    engine = RaisesAtItsLimit()
    with pytest.raises(TimeoutError, match="no promotion in 3 steps"):
        assert_terminates(lambda: Engine.step(engine), max_steps=9, stuck=(engine.store, "promoted", False))
    assert vars(engine.store) == {}


@pytest.mark.parametrize(
    ("step", "how", "message"),
    [
        (lambda: None, {}, "step returned None"),
        (lambda: ["output"], {}, r"step returned \['output'\]"),
        (3, {}, "step is 3"),
        (lambda: True, {"max_steps": 0}, "max_steps is 0"),
        (lambda: True, {"max_steps": True}, "max_steps is True"),
        (lambda: True, {"stuck": (Store(), "promoted", False)}, r"done after 1 step, and nobody asked Store\.promoted"),
        (lambda: True, {"stuck": (Store(), "promotd", False)}, r"no such method .*\nnext: the nearest is promoted"),
        (lambda: True, {"stuck": (Store(), "promoted")}, r"stuck is \(<.*>, 'promoted'\)"),
    ],
)
def test_what_would_verify_nothing_is_refused(step: Any, how: Any, message: str) -> None:
    with pytest.raises(LawsError, match=message) as caught:
        assert_terminates(step, **{"max_steps": 5, **how})
    assert not isinstance(caught.value, AssertionError)
