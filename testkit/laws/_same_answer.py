"""``assert_same_answer``: a formula that predicts must agree with what really decides, at every step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from testkit._text import table
from testkit.errors import LawsError
from testkit.laws._failure import LawBroken
from testkit.laws._schedules import Found, Schedule, hunt
from testkit.laws._shared_code import codes_of, not_reached, shared_code
from testkit.laws._trace import Trace
from testkit.laws._values import differing, same, shown

__tracebackhide__ = True  # pytest shows the line that called us, not ours

WHERE = "assert_same_answer"
ROWS = 12
"""Steps that a failure shows, the last ones."""


def assert_same_answer(
    predict: Callable[..., Any],
    oracle: Callable[..., Any],
    trajectory: Any,
    *,
    start: Callable[[], Any] | None = None,
    shared: Sequence[Any] = (),
) -> None:
    """``predict(step)`` and ``oracle(step)`` give the same answer at each step of a trajectory.

    At each step ``predict`` says what will happen, and leaves the system alone; then ``oracle`` does it, with the real
    code, and says what happened. Answers are compared with ``==``. With ``start``, which returns a new system, they are
    called as ``predict(system, step)`` and ``oracle(system, step)``; a trajectory that fails is then made smaller, and
    may have any form that ``assert_conserved`` takes as ``steps``.

    An oracle that runs the predictor's code agrees with anything, so that is refused: functions that both run and that
    compute something, and copies. ``shared`` names functions, methods, properties or classes that both are meant to
    read, the one source of truth, or helpers; each must then be reached from both. Python code of this thread is
    seen, the standard library's, torch's and numpy's is not looked at.

    Raises ``LawBroken`` with the shortest diverging prefix and both answers at each step; ``LawsError`` for an oracle
    that shares code, for a ``shared`` that one side does not reach, and if all answers are None.
    """
    if predict == oracle:
        _refuse(["they are one function"], [])
    codes = [codes_of(item, WHERE) for item in shared]
    pair = _Pair(predict, oracle, start, frozenset().union(*codes))
    failure = hunt(pair.run, trajectory, fresh=start is not None, where=WHERE)
    if failure is not None:
        found, origin = failure
        raise LawBroken(found.problem, [origin, *found.evidence], found.fix) from found.cause
    if not pair.answered:
        raise LawsError("all answers were None", WHERE, "let predict and oracle return what they say")
    for side, trace in zip(("predict", "oracle"), pair.traces, strict=True):
        if missing := not_reached(shared, codes, trace):
            fix = "let it read what the other reads, or take the name out of shared"
            raise LawsError(f"shared names {', '.join(missing)}, which {side} never reached", WHERE, fix)


class _Pair:
    """Both sides, what they ran so far, and whether one of them ever answered something."""

    def __init__(
        self,
        predict: Callable[..., Any],
        oracle: Callable[..., Any],
        start: Callable[[], Any] | None,
        leave: frozenset[CodeType],
    ) -> None:
        self._sides, self._start = (predict, oracle), start
        self.traces = Trace(leave), Trace(leave)
        self.answered = False
        self._looked_at = 0

    def run(self, schedule: Schedule) -> Found | None:
        system = () if self._start is None else (self._start(),)
        found = self._difference(schedule, system)
        # A difference means nothing if the two share code, so what ran for the first time is looked at before.
        seen = sum(len(trace.calls) for trace in self.traces)
        if self._looked_at != seen:
            _refuse(*shared_code(*self.traces))
            self._looked_at = seen
        return found

    def _difference(self, schedule: Schedule, system: tuple[Any, ...]) -> Found | None:
        rows: list[tuple[str, str, str]] = []
        for at, step in enumerate(schedule):
            side = "predict"
            try:
                predicted = self.traces[0].run(self._sides[0], *system, step.value)
                if isinstance(predicted, (list, dict, set)):
                    predicted = copy.copy(predicted)  # it may be the system's own, which the oracle changes
                side = "oracle"
                really = self.traces[1].run(self._sides[1], *system, step.value)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is what broke
                problem = f"{side} raised {type(error).__name__} at step {at + 1} ({step.name}): {error}"
                said = (step.name, "raised") if side == "predict" else (step.name, shown(predicted), "raised")
                fix = "read the error above; if it is an answer, return it"
                return Found(at, problem, tuple(_table([*rows, said])), fix, error)
            rows.append((step.name, *differing(predicted, really)))
            if not same(predicted, really, WHERE):
                problem = f"predict says {rows[-1][1]} and oracle {rows[-1][2]} at step {at + 1} ({step.name})"
                fix = "let both read one source, or correct the one that is wrong"
                return Found(at, problem, tuple(_table(rows)), fix)
            self.answered = self.answered or predicted is not None or really is not None
        return None


def _refuse(lines: list[str], names: list[str]) -> None:
    """Raise if there are ``lines`` about what both sides run; what has a name could be allowed."""
    if lines:
        fix = "give the real code as oracle"
        if names:
            one = len(names) == 1
            what = f"{names[0]} is" if one else "these are"
            fix += f"; if {what} what both are meant to read, say so: shared=({', '.join(names)}{',' * one})"
        raise LawsError(f"oracle is no judge of predict: {'; '.join(lines)}", WHERE, fix)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines: list[tuple[object, ...]] = [("step", "what", "predict", "oracle")]
    lines += [(number, *row) for number, row in enumerate(rows, 1)][-ROWS:]
    left = len(rows) - ROWS
    return ([f"({left} steps before, alike)"] if left > 0 else []) + table(lines, indent="")
