"""``assert_terminates``: a loop of steps ends, also if what it waits for never completes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any

from testkit._text import counted, table
from testkit.errors import LawsError
from testkit.laws._failure import LawBroken
from testkit.laws._trace import Trace, named
from testkit.laws._values import shown
from testkit.laws._watch import Site, Stop, call_site, checked_method, places, title, watched

__tracebackhide__ = True  # pytest shows the line that called us, not ours

WHERE = "argument of assert_terminates"
ASKED = 100_000
"""So many questions to the stuck dependency within one step end the step: it would never."""
ROWS, SITES = 6, 3
"""Functions of a step, and places that asked, which a failure shows."""
PERIOD = 12
"""Steps after which others may repeat."""

Calls = Counter[CodeType]


def assert_terminates(step: Callable[[], object], *, max_steps: int, stuck: tuple[Any, str, Any] | None = None) -> int:
    """``step()`` returns True, for done, within ``max_steps`` calls; how many it took.

    ``step`` does one step of the system and returns whether all is done, True or False. ``stuck`` has an object (or
    class, or module), the name of a method and an answer: a dependency that never completes, since during the check it
    gives that answer whatever it is asked, such as ``(store, "promoted", False)``. A system that waits without a limit,
    or tries again for ever, then never ends.

    Raises ``LawBroken`` if it does not end, with the step from which on all steps repeat, what each of them calls, and
    who asks the dependency; a step that asks 100,000 times is ended too, another endless one is not. ``LawsError`` for
    arguments that cannot be used, a ``step`` that returns neither True nor False, and a dependency that nobody asked.
    """
    if not callable(step):
        raise LawsError(f"step is {shown(step)}", WHERE, "give a function")
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
        raise LawsError(f"max_steps is {max_steps!r}", WHERE, "give a whole number, 1 or more")
    if stuck is None:
        taken, steps = _drive(step, max_steps, None)
        if taken is None:
            raise _endless(steps, "", [])
        return taken
    terms: Any = stuck  # of users who do not check types
    if not isinstance(terms, tuple) or len(terms) != 3:
        fix = 'give an object, the name of its method and the answer: (store, "promoted", False)'
        raise LawsError(f"stuck is {shown(terms)}", WHERE, fix)
    target, method, answer = terms
    checked_method(target, method, WHERE)
    dependency = _Stuck(answer)
    with watched(target, method, dependency.see):
        taken, steps = _drive(step, max_steps, dependency)
    name = title(target, method)
    if taken is None:
        raise _endless(steps, f" while {name} always answers {shown(answer, 60)}", dependency.lines(name))
    if not dependency.sites:
        fix = "let the steps come to where it is asked, or name another dependency"
        raise LawsError(f"done after {counted(taken, 'step')}, and nobody asked {name}", WHERE, fix)
    return taken


class _Stuck:
    """A dependency that never completes."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.asked = 0  # in this step
        self.sites: Counter[Site] = Counter()

    def see(self, *_: Any) -> Any:
        self.sites[call_site()] += 1
        self.asked += 1
        if self.asked >= ASKED:
            raise Stop
        return self._answer

    def lines(self, name: str) -> list[str]:
        total = sum(self.sites.values())
        if not total:
            return [f"nobody asked {name}"]
        asked = [f"{name} was asked {counted(total, 'time')}, from", *places(self.sites, SITES)]
        return asked + ["the last step was ended there"] * (self.asked >= ASKED)


QUESTION = _Stuck.see.__code__
"""Counts with the calls of a step, so that steps which ask more often are not alike."""


def _drive(step: Callable[[], object], max_steps: int, stuck: _Stuck | None) -> tuple[int | None, list[Calls]]:
    """After how many steps it was done, None if it never was, and what each step called."""
    steps: list[Calls] = []
    for number in range(1, max_steps + 1):
        trace = Trace()
        if stuck is not None:
            stuck.asked = 0
        try:
            done = trace.run(step)
        except Stop:
            return None, [*steps, trace.calls]
        steps.append(trace.calls)
        if stuck is not None:
            trace.calls[QUESTION] = stuck.asked
        if not isinstance(done, bool):
            fix = "let step return whether all is done: True or False"
            raise LawsError(f"step returned {shown(done)}", WHERE, fix)
        if done:
            return number, steps
    return None, steps


def _endless(steps: list[Calls], why: str, asked: list[str]) -> LawBroken:
    first, period = _cycle(steps)
    lines: list[str] = []
    last = steps[-1]
    if period:
        each = "each calling" if period == 1 else f"every {period} of them calling"
        lines.append(f"steps {first + 1}-{len(steps)} repeat, {each}")
        last = sum(steps[-period:], Counter())
    else:
        lines.append("the last step called")
    called = [(count, named(code)) for code, count in last.most_common() if code is not QUESTION]
    lines += table(called[:ROWS])
    return LawBroken(
        f"not done after {counted(len(steps), 'step')}{why}",
        [*lines, *asked],
        "give the wait a limit, or let it end another way; if more steps are fine, raise max_steps",
    )


def _cycle(steps: list[Calls]) -> tuple[int, int]:
    """The first of the steps that repeat to the end, and after how many they do; (0, 0) if less than half do."""
    best = (len(steps), 0)
    for period in range(1, min(PERIOD, len(steps) // 2) + 1):
        first = len(steps) - period
        while first > 0 and steps[first - 1] == steps[first - 1 + period]:
            first -= 1
        best = min(best, (first, period))
    return best if best[0] <= len(steps) // 2 else (0, 0)
