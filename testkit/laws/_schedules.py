"""Schedules of steps: given, made of kinds, or made by hypothesis; and the smallest one that fails.

A law gives ``hunt`` a function that runs one schedule on a system and says what it found. Which schedules are run:

- a sequence of steps: that one;
- a mapping of names to steps, the kinds: every schedule of them, shortest first, up to 400, then 40 longer ones drawn
  with a fixed seed;
- a mapping whose values are, all or some, hypothesis strategies of steps (the rules of a state machine), or one
  strategy of whole schedules: what hypothesis draws under the profile that is loaded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from testkit._loaded import loaded
from testkit._text import counted
from testkit.errors import LawsError
from testkit.laws._values import shown

__tracebackhide__ = True  # pytest shows the line that called us, not ours

EXHAUSTIVE = 400
"""Schedules of kinds that are run shortest first; the last length that does not fit whole is left out."""
LONGER, LENGTHS = 40, (6, 24)
"""Schedules drawn after those, and how many steps they have."""
SHRINKS = 400
"""Runs that may be spent on a smaller schedule."""
STEPS = 50
"""At most so many steps has a schedule that hypothesis makes of rules."""
NAME = 40
"""Characters of a step that a table shows."""


@dataclass(frozen=True)
class Step:
    name: str
    value: Any


@dataclass(frozen=True)
class Found:
    """What broke: ``at`` is the step's index in its schedule, ``cause`` what a function raised.

    ``whole``: the schedule was judged at its end only, so that a shorter one may fail too.
    """

    at: int
    problem: str
    evidence: tuple[str, ...]
    fix: str
    cause: Exception | None = None
    whole: bool = False


Schedule = tuple[Step, ...]
Run = Callable[[Schedule], "Found | None"]


def hunt(run: Run, steps: object, *, fresh: bool, where: str) -> tuple[Found, str] | None:
    """The failure with the fewest steps, and a line that says where it came from; None if all schedules pass.

    ``fresh``: each run has a system of its own, so that more than one schedule may be run.
    """
    if _is_strategy(steps) or (isinstance(steps, Mapping) and any(map(_is_strategy, steps.values()))):
        _check_fresh(fresh, "hypothesis makes many schedules", where)
        return _by_hypothesis(run, steps, where)
    if isinstance(steps, Mapping):
        _check_fresh(fresh, "steps is a mapping of kinds, of which many schedules are made", where)
        return _of_kinds(run, [Step(str(name), value) for name, value in steps.items()], where)
    if not isinstance(steps, Iterable):
        fix = "give a list of steps, or a dictionary of names and steps"
        raise LawsError(f"{shown(steps)} is no schedule of steps", where, fix)
    return _given(run, tuple(Step(label(value), value) for value in steps), fresh, where)


def _check_fresh(fresh: bool, why: str, where: str) -> None:
    if not fresh:
        raise LawsError(f"{why}, and start is not given", where, "give start, a function that makes a new system")


def _given(run: Run, schedule: Schedule, fresh: bool, where: str) -> tuple[Found, str] | None:
    if not schedule:
        raise LawsError("there is no step", where, "give steps")
    found = run(schedule)
    if found is None:
        return None
    if fresh and found.whole:
        found = next(filter(None, (run(schedule[:end]) for end in range(1, len(schedule)))), found)
    origin = f"step {found.at + 1} of the {counted(len(schedule), 'step')} given"
    if not fresh:
        return found, origin
    smallest, steps = _shrunk(run, schedule[: found.at + 1], found)
    return smallest, origin + (f"; {_enough(len(steps))}" if len(steps) <= found.at else "")


def _of_kinds(run: Run, kinds: list[Step], where: str) -> tuple[Found, str] | None:
    if not kinds:
        raise LawsError("there is no kind of step", where, "name some: {'empty': ..., 'full': ...}")
    for number, schedule in enumerate(_made(kinds), 1):
        found = run(schedule)
        if found is not None:
            smallest, _ = _shrunk(run, schedule[: found.at + 1], found)
            return smallest, f"schedule {number} of those made of {counted(len(kinds), 'kind')}, shrunk"
    return None


def _made(kinds: list[Step]) -> Iterator[Schedule]:
    made, length = 0, 1
    while made + len(kinds) ** length <= EXHAUSTIVE and length <= LENGTHS[1]:
        yield from product(kinds, repeat=length)
        made, length = made + len(kinds) ** length, length + 1
    drawn = random.Random(0)
    for _ in range(LONGER):
        yield tuple(drawn.choices(kinds, k=drawn.randint(*LENGTHS)))


def _shrunk(run: Run, schedule: Schedule, found: Found) -> tuple[Found, Schedule]:
    """Steps left out, first many at once, as long as what is left still fails."""
    runs, size = 0, max(1, len(schedule) // 2)
    while True:
        at, smaller = len(schedule) - size, False
        while at >= 0 and runs < SHRINKS:
            trial = schedule[:at] + schedule[at + size :]
            runs += bool(trial)
            other = run(trial) if trial else None
            if other is not None:
                schedule, found, smaller = trial[: other.at + 1], other, True
            at = min(at - size, len(schedule) - size)
        if runs >= SHRINKS or (size == 1 and not smaller):
            return found, schedule
        size = size if smaller else max(1, size // 2)


def label(value: object) -> str:
    """What a table calls a step that has no name."""
    return value if isinstance(value, str) and value.isprintable() and value.strip() else shown(value, NAME)


def _enough(steps: int) -> str:
    return "1 of them is enough" if steps == 1 else f"{steps} of them are enough"


def _is_strategy(value: object) -> bool:
    """A user who gives a strategy has imported hypothesis."""
    module = loaded("hypothesis.strategies")
    return module is not None and isinstance(value, module.SearchStrategy)


def _by_hypothesis(run: Run, steps: Any, where: str) -> tuple[Found, str] | None:
    import hypothesis
    from hypothesis import strategies
    from hypothesis.errors import Flaky, NoSuchExample

    if isinstance(steps, Mapping):
        rules = [_rule(str(name), value) for name, value in steps.items()]
        schedules = strategies.lists(strategies.one_of(rules), min_size=1, max_size=STEPS)
    else:
        schedules = steps
    # find, and not given: the law says itself what it found, without notes of another form below.
    settings = hypothesis.settings(hypothesis.settings(), deadline=None, database=None)
    try:
        smallest = hypothesis.find(schedules, lambda drawn: _outcome(run, drawn, where) is not None, settings=settings)
    except NoSuchExample:
        return None
    except Flaky:
        outcome = None
    else:
        outcome = _outcome(run, smallest, where)
    if isinstance(outcome, LawsError):
        raise outcome
    if outcome is None:
        fix = "let start make a system that shares nothing with the last one"
        raise LawsError("a schedule failed, and then passed", where, fix)
    # Fewer steps with larger values are not what hypothesis takes for smaller.
    outcome, _ = _shrunk(run, _steps_of(smallest), outcome)
    return outcome, "made by hypothesis, shrunk"


def _outcome(run: Run, drawn: object, where: str) -> Found | LawsError | None:
    """What a run found; a refusal is an outcome too, or hypothesis would add notes to it."""
    if not isinstance(drawn, (list, tuple)):
        return LawsError(f"the strategy made {shown(drawn)}", where, "give a strategy of lists of steps")
    try:
        return run(_steps_of(drawn)) if drawn else None
    except LawsError as refused:
        return refused


def _steps_of(drawn: Iterable[Any]) -> Schedule:
    return tuple(one if isinstance(one, Step) else Step(label(one), one) for one in drawn)


def _rule(name: str, value: Any) -> Any:
    from hypothesis import strategies

    if _is_strategy(value):
        return value.map(lambda drawn: Step(f"{name} {label(drawn)}", drawn))
    return strategies.just(Step(name, value))
