"""``assert_conserved``: what a step counts and drains must be recorded, once, also if the step had no output."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testkit._text import table
from testkit.errors import LawsError
from testkit.laws._failure import LawBroken
from testkit.laws._schedules import Found, Schedule, Step, hunt, label
from testkit.laws._values import shown

__tracebackhide__ = True  # pytest shows the line that called us, not ours

WHERE = "assert_conserved"
ROWS = 12
"""Steps that a failure shows, around the first that is wrong."""
COUNTERS = 3
"""Counters that it shows."""
CLOSE = 1e-9
"""Relative difference up to which sums of floats are equal: they may be added in another order."""
NOT_GIVEN: Any = object()

Amounts = dict[str, Any]


def assert_conserved(
    drain: Callable[..., Any],
    record: Callable[..., Any],
    steps: Any,
    *,
    start: Callable[[], Any] | None = None,
    last: Any = NOT_GIVEN,
) -> None:
    """What ``drain`` counts in the steps of a schedule is what ``record`` has afterwards.

    ``drain(step)`` runs one step and returns what was counted in it: a number, a mapping of names to numbers, a
    dataclass with fields of numbers, or None. ``record()`` returns all that was recorded so far, in the same form; a
    name that one of them leaves out is 0. The two are compared after each step. Where recording lags by design, give
    ``last``, a step that flushes: it ends every schedule, and they are compared after it only.

    ``steps`` is a list of steps of any kind. With ``start``, which returns a new system, the two are called as
    ``drain(system, step)`` and ``record(system)``, and many schedules can be run: a list that fails is made smaller;
    ``steps`` may be a mapping of names to steps, such as empty, full, aborted and retried ones, of which all short
    schedules and some long ones are run; its values, or the whole, may be hypothesis strategies.

    Raises ``LawBroken`` with the first step that loses or doubles, in the smallest schedule that was found; with
    ``last`` that is its last step before ``last``. ``LawsError`` for what is no amount, and if nothing was counted.
    """
    something = False

    def run(schedule: Schedule) -> Found | None:
        nonlocal something
        ledger = _Ledger(drain, record, () if start is None else (start(),))
        for at, step in enumerate(schedule):
            found = ledger.take(at, step) or (ledger.broken() if last is NOT_GIVEN else None)
            if found is not None:
                return found
        something = something or any(any(amounts.values()) for amounts in ledger.counted)
        if last is NOT_GIVEN:
            return None
        end = Step(f"{label(last)} (last)", last)
        found = ledger.take(len(schedule), end) or ledger.broken(whole=True)
        return found and dataclasses.replace(found, at=len(schedule) - 1)

    failure = hunt(run, steps, fresh=start is not None, where=WHERE)
    if failure is not None:
        found, origin = failure
        raise LawBroken(found.problem, [origin, *found.evidence], found.fix) from found.cause
    if not something:
        raise LawsError("drain counted nothing in any step", WHERE, "give steps in which something is counted")


class _Ledger:
    """What was counted in each step of one schedule, and what had been recorded after it."""

    def __init__(self, drain: Callable[..., Any], record: Callable[..., Any], system: tuple[Any, ...]) -> None:
        self._drain, self._record, self._system = drain, record, system
        self._before = _amounts(record(*system), "record")
        self.names: list[str] = []
        self.counted: list[Amounts] = []
        self.recorded: list[Amounts] = []  # in all so far

    def take(self, at: int, step: Step) -> Found | None:
        self.names.append(step.name)
        try:
            drained = self._drain(*self._system, step.value)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what broke
            problem = f"step {at + 1} ({step.name}) raised {type(error).__name__}: {error}"
            fix = "read the error above; let drain handle one that the step means"
            return Found(at, problem, tuple(self._steps()), fix, error)
        self.counted.append(_amounts(drained, "drain"))
        now = _amounts(self._record(*self._system), "record")
        self.recorded.append({name: now.get(name, 0) - self._before.get(name, 0) for name in {**self._before, **now}})
        return None

    def broken(self, whole: bool = False) -> Found | None:
        """The counter whose sums differ by now, and since which step; ``whole``: they may differ meanwhile."""
        wrong = {name: since for name in self._counters() if (since := self._since(name)) is not None}
        if not wrong:
            return None
        first = sorted(wrong, key=lambda one: wrong[one])
        name, at = first[0], wrong[first[0]]
        counted, recorded = self._of_step(name, at)
        step = f"step {at + 1} ({self.names[at]})"
        if whole:
            counted, recorded = sum(one.get(name, 0) for one in self.counted), self.recorded[-1].get(name, 0)
            step = f"a schedule that ends with {self.names[-2]}"
        verb = "loses" if recorded < counted else "doubles" if counted and recorded == 2 * counted else "adds to"
        problem = f"{step} {verb} {repr(name) if name else 'the count'}: {counted} counted, {recorded} recorded"
        problem += f"; {' and '.join(first[1:])} too" if first[1:] else ""
        fix = "record what a step drained, also if it had no output"
        if recorded > counted:
            fix = "record each drained amount once"
        fix += "" if whole else "; if it is recorded later by design, give last=, a step that flushes"
        lines = self._table(first[:COUNTERS], len(self.names) - 1 if whole else at, mark=not whole)
        return Found(len(self.names) - 1, problem, tuple(lines), fix, whole=whole)

    def _counters(self) -> list[str]:
        return list(dict.fromkeys(name for amounts in [*self.counted, *self.recorded] for name in amounts))

    def _of_step(self, name: str, at: int) -> tuple[Any, Any]:
        before = self.recorded[at - 1].get(name, 0) if at else 0
        return self.counted[at].get(name, 0), self.recorded[at].get(name, 0) - before

    def _since(self, name: str) -> int | None:
        """The first step of those, up to the last, after which the sums of ``name`` differ."""
        total, since = 0, None
        for at, amounts in enumerate(self.counted):
            total += amounts.get(name, 0)
            there = self.recorded[at].get(name, 0)
            exact = isinstance(total, int) and isinstance(there, int)
            equal = total == there if exact else math.isclose(total, there, rel_tol=CLOSE, abs_tol=CLOSE)
            since = None if equal else at if since is None else since
        return since

    def _steps(self) -> list[str]:
        return [f"step {number}: {name}" for number, name in enumerate(self.names, 1)][-ROWS:]

    def _table(self, names: list[str], wrong: int, mark: bool) -> list[str]:
        title = ["step", "what"] + [f"{name} {side}".strip() for name in names for side in ("counted", "recorded")]
        rows: list[Sequence[object]] = [title]
        begin = max(0, min(wrong - ROWS // 2, len(self.counted) - ROWS))
        for at in range(begin, min(begin + ROWS, len(self.counted))):
            amounts = [amount for name in names for amount in self._of_step(name, at)]
            rows.append([at + 1, self.names[at], *amounts, *(["<- first"] if mark and at == wrong else [])])
        left = begin, len(self.counted) - begin - ROWS
        before = [f"({left[0]} steps before)"] if left[0] > 0 else []
        return before + table(rows, indent="") + ([f"({left[1]} steps after)"] if left[1] > 0 else [])


def _amounts(value: object, source: str) -> Amounts:
    if value is None:
        return {}
    if _is_number(value):
        return {"": _checked(value, source)}
    if isinstance(value, Mapping):
        strange = [name for name, amount in value.items() if not _is_number(amount)]
        if strange:
            problem = f"{source} returned {strange[0]!r}: {shown(value[strange[0]])}, which is no number"
            raise LawsError(problem, WHERE, "return names and numbers")
        return {str(name): _checked(amount, source) for name, amount in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if found := {name: _checked(amount, source) for name, amount in fields.items() if _is_number(amount)}:
            return found
    fix = "return a number, a mapping of names to numbers, a dataclass with fields of numbers, or None"
    raise LawsError(f"{source} returned {shown(value)}, which is no amount", WHERE, fix)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _checked(value: Any, source: str) -> Any:
    if not math.isfinite(value):
        raise LawsError(f"{source} returned {value}", WHERE, "count what is finite")
    return int(value) if isinstance(value, numbers.Integral) else float(value)
