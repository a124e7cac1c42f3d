"""``assert_conserved``: planted ways to lose and double counts, with the smallest schedule; healthy systems pass."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from testkit.errors import LawsError
from testkit.laws import LawBroken, assert_conserved

KINDS = {"empty": "empty", "full": "full", "aborted": "aborted", "retried": "retried"}


class Engine:
    """Each step queries a prefix cache; what it counted is drained, and goes to a recorder with the outputs."""

    def __init__(self) -> None:
        self.recorded: Counter[str] = Counter()
        self.steps: list[str] = []

    def step(self, kind: str) -> Counter[str]:
        self.steps.append(kind)
        counted = Counter(queries=4, hits=3)
        self.record(counted, kind)
        return counted

    def record(self, counted: Counter[str], kind: str) -> None:
        self.recorded += counted


class OnlyWithOutput(Engine):
    def record(self, counted: Counter[str], kind: str) -> None:
        if kind != "empty":
            self.recorded += counted


class AbortedIsDropped(Engine):
    def record(self, counted: Counter[str], kind: str) -> None:
        if kind != "aborted":
            self.recorded += counted


class EachAttemptIsRecorded(Engine):
    def record(self, counted: Counter[str], kind: str) -> None:
        for _ in range(2 if kind == "retried" else 1):
            self.recorded += counted


class OverwrittenNotAdded(Engine):
    def record(self, counted: Counter[str], kind: str) -> None:
        self.recorded = counted


class AbortForgetsAll(Engine):
    def record(self, counted: Counter[str], kind: str) -> None:
        self.recorded += counted
        if kind == "aborted" and "full" in self.steps:
            self.recorded = Counter(queries=4, hits=3)


class FirstIsLost(Engine):
    def record(self, counted: Counter[str], kind: str) -> None:
        if len(self.steps) > 1:
            self.recorded += counted


class EverySecondIsSampled(Engine):
    def record(self, counted: Counter[str], kind: str) -> None:
        if len(self.steps) % 2:
            self.recorded += counted


class OneCounterIsForgotten(Engine):
    def record(self, counted: Counter[str], kind: str) -> None:
        self.recorded += Counter(queries=counted["queries"]) if kind == "retried" else counted


class LastIsRecordedAgain(Engine):
    def step(self, kind: str) -> Any:
        if kind != "empty":
            return super().step(kind)
        if self.steps:
            self.record(Counter(queries=4, hits=3), kind)  # stale
        return None


class LostAfterARetry(Engine):
    def record(self, counted: Counter[str], kind: str) -> None:
        if self.steps[-2:] != ["retried", "aborted"]:
            self.recorded += counted


class LostInALongRun(Engine):
    """Not in any schedule of up to four steps."""

    def record(self, counted: Counter[str], kind: str) -> None:
        if not (kind == "empty" and self.steps.count("empty") == 3 and self.steps.count("full") >= 2):
            self.recorded += counted


BUGS: dict[type[Engine], tuple[str, list[str]]] = {
    OnlyWithOutput: (r"step 1 (empty) loses 'queries': 4 counted, 0 recorded; hits too", ["empty"]),
    AbortedIsDropped: (r"step 1 (aborted) loses 'queries': 4 counted, 0 recorded; hits too", ["aborted"]),
    EachAttemptIsRecorded: (r"step 1 (retried) doubles 'queries': 4 counted, 8 recorded; hits too", ["retried"]),
    OverwrittenNotAdded: (r"step 2 (empty) loses 'queries': 4 counted, 0 recorded; hits too", ["empty", "empty"]),
    AbortForgetsAll: (r"step 2 (aborted) loses 'queries': 4 counted, 0 recorded", ["full", "aborted"]),
    FirstIsLost: (r"step 1 (empty) loses 'queries': 4 counted, 0 recorded", ["empty"]),
    EverySecondIsSampled: (r"step 2 (empty) loses 'queries': 4 counted, 0 recorded", ["empty", "empty"]),
    OneCounterIsForgotten: (r"step 1 (retried) loses 'hits': 3 counted, 0 recorded", ["retried"]),
    LastIsRecordedAgain: (r"step 2 (empty) adds to 'queries': 0 counted, 4 recorded; hits too", ["full", "empty"]),
    LostAfterARetry: (r"step 2 (aborted) loses 'queries': 4 counted, 0 recorded", ["retried", "aborted"]),
    LostInALongRun: (r"step 5 (empty) loses 'queries'", ["empty", "empty", "full", "full", "empty"]),
}
"""Each with the first line of the failure, and the steps of the smallest schedule."""


def recorded(engine: Engine) -> Counter[str]:
    return engine.recorded


def steps_of(failure: LawBroken) -> list[str]:
    """What the table of a failure says was run."""
    rows = [re.match(r" *\d+  (\w+) ", line) for line in failure.evidence]
    return [row[1] for row in rows if row]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_each_bug_is_found_among_kinds_with_its_smallest_schedule(bug: type[Engine]) -> None:
    message, steps = BUGS[bug]
    with pytest.raises(LawBroken, match=f"^laws: {re.escape(message)}") as caught:
        assert_conserved(bug.step, recorded, KINDS, start=bug)
    assert len(steps_of(caught.value)) == len(steps)
    assert sorted(steps_of(caught.value)) == sorted(steps)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_each_bug_is_found_in_a_given_list_and_made_as_small(bug: type[Engine]) -> None:
    given = ["full", "retried", "aborted", "full", "empty", "full", "empty", "retried", "empty", "empty"]
    with pytest.raises(LawBroken, match=r"loses|doubles|adds to") as caught:
        assert_conserved(bug.step, recorded, given, start=bug)
    assert len(steps_of(caught.value)) == len(BUGS[bug][1])
    assert re.match(r"step \d+ of the 10 steps given", caught.value.evidence[0])


@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize("form", ["schedules", "rules"])
def test_hypothesis_makes_schedules_where_it_is_asked(form: str) -> None:
    kinds = st.sampled_from(list(KINDS))
    steps = {"schedules": st.lists(kinds), "rules": {"full": "full", "other": kinds}}[form]
    with pytest.raises(LawBroken, match=r"^laws: step 2 \((other )?aborted\) loses 'queries'") as caught:
        assert_conserved(LostAfterARetry.step, recorded, steps, start=LostAfterARetry)
    assert caught.value.evidence[0] == "made by hypothesis, shrunk"
    assert len(caught.value.evidence) == 4
    assert not getattr(caught.value, "__notes__", None)


def test_without_start_the_list_runs_once_and_the_first_step_that_loses_is_named() -> None:
    engine = OnlyWithOutput()
    with pytest.raises(LawBroken, match=r"^laws: step 21 \(empty\) loses 'queries': 4 counted, 0 recorded") as caught:
        assert_conserved(engine.step, lambda: engine.recorded, ["full"] * 20 + ["empty", "full"])
    assert len(engine.steps) == 21
    assert str(caught.value).splitlines() == [
        "laws: step 21 (empty) loses 'queries': 4 counted, 0 recorded; hits too",
        "  step 21 of the 22 steps given",
        "  (9 steps before)",
        "  step  what   queries counted  queries recorded  hits counted  hits recorded",
        *[f"    {n}  full                 4                 4             3              3" for n in range(10, 21)],
        "    21  empty                4                 0             3              0  <- first",
        "next: record what a step drained, also if it had no output; if it is recorded later by design, give last=, "
        "a step that flushes",
    ]


# healthy systems


class Lagging(Engine):
    """Records a step's counts when the next one begins, as an engine that overlaps the two."""

    def __init__(self) -> None:
        super().__init__()
        self.behind: Counter[str] = Counter()

    def record(self, counted: Counter[str], kind: str) -> None:
        self.recorded += self.behind
        self.behind = counted


class Lossy(Lagging):
    """And forgets what is behind where a request is aborted."""

    def record(self, counted: Counter[str], kind: str) -> None:
        super().record(counted, kind)
        if kind == "aborted":
            self.behind = Counter()


def drained_late(engine: Lagging, kind: str) -> Counter[str]:
    if kind == "flush":
        engine.record(Counter(), kind)
        return Counter()
    return engine.step(kind)


@dataclass
class Stats:
    name: str = "prefix cache"
    hits: int = 0
    reset: bool = False


class WithDataclass(Engine):
    def __init__(self) -> None:
        super().__init__()
        self.stats = Stats(hits=100)  # of an earlier test

    def take(self, kind: str) -> Stats:
        self.stats.hits += len(kind)
        return Stats(hits=len(kind))


class Seconds:
    """The same seconds, added in another order."""

    def __init__(self) -> None:
        self.parts: list[float] = []

    def step(self, seconds: float) -> float:
        self.parts.append(seconds)
        return seconds


class OnlyNonzeroNames(Engine):
    def step(self, kind: str) -> Counter[str]:
        counted = super().step(kind)
        return +Counter({name: 0 if kind == "empty" else value for name, value in counted.items()})

    def record(self, counted: Counter[str], kind: str) -> None:
        self.recorded += Counter() if kind == "empty" else counted


HEALTHY: dict[str, Callable[[], None]] = {
    "plain": lambda: assert_conserved(Engine.step, recorded, KINDS, start=Engine),
    "lagging, flushed at the end": lambda: assert_conserved(drained_late, recorded, KINDS, start=Lagging, last="flush"),
    "dataclass over old totals": lambda: assert_conserved(
        WithDataclass.take, lambda engine: engine.stats, KINDS, start=WithDataclass
    ),
    "floats in another order": lambda: assert_conserved(
        Seconds.step, lambda one: sum(reversed(one.parts)), {"short": 0.1, "long": 1e6, "none": 0.0}, start=Seconds
    ),
    "names only where not zero": lambda: assert_conserved(
        OnlyNonzeroNames.step, recorded, KINDS, start=OnlyNonzeroNames
    ),
    "made by hypothesis": lambda: assert_conserved(
        Engine.step, recorded, st.lists(st.sampled_from(list(KINDS))), start=Engine
    ),
}


@pytest.mark.parametrize("system", HEALTHY)
def test_a_healthy_system_passes(system: str) -> None:
    HEALTHY[system]()


def test_a_lag_without_a_last_step_is_a_loss_and_the_message_says_how_to_allow_it() -> None:
    with pytest.raises(LawBroken, match=r"loses 'queries'.*(\n.*)*give last=, a step that flushes"):
        assert_conserved(drained_late, recorded, KINDS, start=Lagging)


def test_with_a_last_step_a_real_loss_is_found_with_the_step_that_causes_it() -> None:
    message = r"^laws: a schedule that ends with aborted loses 'queries': 4 counted, 0 recorded; hits too\n"
    with pytest.raises(LawBroken, match=message) as caught:
        assert_conserved(drained_late, recorded, ["full", "full", "aborted", "full"], start=Lossy, last="flush")
    assert caught.value.evidence[0] == "step 3 of the 4 steps given; 1 of them is enough"
    assert steps_of(caught.value) == ["aborted", "flush"]


def test_with_a_last_step_and_no_start_the_sums_at_the_end_are_shown() -> None:
    engine = Lossy()
    message = r"^laws: a schedule that ends with full loses 'queries': 12 counted, 8 recorded; hits too\n"
    with pytest.raises(LawBroken, match=message) as caught:
        assert_conserved(
            lambda kind: drained_late(engine, kind), lambda: engine.recorded, ["full", "aborted", "full"], last="flush"
        )
    assert steps_of(caught.value) == ["full", "aborted", "full", "flush"]


def test_of_many_counters_three_are_shown_and_all_are_named() -> None:
    def drained(engine: Engine, _: str) -> dict[str, int]:
        return {f"counter {n}": n for n in range(1, 6)}

    with pytest.raises(
        LawBroken, match=r"loses 'counter 1': 1 counted, 0 recorded; counter 2 .* and counter 5 too"
    ) as caught:
        assert_conserved(drained, recorded, ["full"], start=Engine)
    assert "counter 3 recorded" in caught.value.evidence[1]
    assert "counter 4" not in caught.value.evidence[1]


def test_a_step_that_raises_is_shown_with_what_led_to_it() -> None:
    class Raises(Engine):
        def step(self, kind: str) -> Counter[str]:
            if kind == "aborted" and "full" in self.steps:
                raise KeyError("gone")
            return super().step(kind)

    with pytest.raises(LawBroken, match=r"^laws: step 2 \(aborted\) raised KeyError: 'gone'\n") as caught:
        assert_conserved(Raises.step, recorded, KINDS, start=Raises)
    assert caught.value.evidence[1:] == ("step 1: full", "step 2: aborted")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("drain", "record", "steps", "message"),
    [
        (lambda e, s: None, recorded, ["full"], "drain counted nothing in any step"),
        (lambda e, s: 0, recorded, KINDS, "drain counted nothing in any step"),
        (lambda e, s: "3", recorded, ["full"], "drain returned '3', which is no amount"),
        (lambda e, s: True, recorded, ["full"], "drain returned True, which is no amount"),
        (lambda e, s: float("nan"), recorded, ["full"], "drain returned nan"),
        (lambda e, s: {"hits": "3"}, recorded, ["full"], "drain returned 'hits': '3', which is no number"),
        (Engine.step, lambda e: [e], ["full"], r"record returned \[.*\], which is no amount"),
        (Engine.step, recorded, [], "there is no step"),
        (Engine.step, recorded, {}, "there is no kind of step"),
        (Engine.step, recorded, 7, "7 is no schedule of steps"),
        (Engine.step, recorded, st.integers(), "the strategy made 0"),
    ],
)
def test_what_would_verify_nothing_is_refused(drain: Any, record: Any, steps: Any, message: str) -> None:
    with pytest.raises(LawsError, match=message) as caught:
        assert_conserved(drain, record, steps, start=Engine)
    assert not isinstance(caught.value, AssertionError)


@pytest.mark.parametrize("steps", [KINDS, st.lists(st.just("full")), {"full": st.just("full")}])
def test_many_schedules_need_a_start(steps: Any) -> None:
    engine = Engine()
    with pytest.raises(LawsError, match="start is not given"):
        assert_conserved(engine.step, lambda: engine.recorded, steps)
