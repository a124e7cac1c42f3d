"""``call_budget``: how often a method may be called, or how much work it may do, for each request or step."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from testkit._text import counted, table
from testkit.errors import LawsError
from testkit.laws._failure import LawBroken
from testkit.laws._values import shown
from testkit.laws._watch import Site, Stop, call_site, checked_method, places, title, watched

__tracebackhide__ = True  # pytest shows the line that called us, not ours

WHERE = "argument of call_budget"
ROWS, SITES = 5, 5
"""Keys over budget, and places that called, which a failure shows."""
RUNAWAY = 1000
"""Times the budget, or so many calls of no budget: there the block is ended, since its loop may never."""


def call_budget(
    target: Any,
    method: str,
    *,
    at_most: float,
    per: str | Callable[..., Any] | tuple[Any, str] | None = None,
    work: Callable[..., float] | None = None,
) -> Budget:
    """A block in which ``target.method`` may be called ``at_most`` times, in all or for each of ``per``.

    ``target`` is an object, a class (all its objects count) or a module. ``per``: the name of a parameter of the
    method, such as "request"; a function of the call's arguments that returns what to count by; or an object and the
    name of a method, ``(engine, "step")``, each call of which begins a new step. With ``work``, a function of the
    arguments that returns an amount, such as the number of tokens, amounts are added up in place of calls. Both
    functions get the arguments as the call has them, for a class the object first.

    At the end of the block ``LawBroken`` is raised if some budget was exceeded, with the first call beyond it and the
    places that called; a loop that reaches 1,000 times the budget is ended at once. ``LawsError`` for arguments that
    cannot be used, and if the method was never called (unless ``at_most`` is 0). A call through a reference that was
    taken before the block is not seen, nor one in another process.
    """
    return Budget(target, method, at_most, per, work)


class Budget:
    """What ``call_budget`` returns: ``spent`` has the calls, or the work, by key, and ``calls`` counts all calls."""

    def __init__(self, target: Any, method: str, at_most: Any, per: Any, work: Any) -> None:
        original = checked_method(target, method, WHERE)
        if not isinstance(at_most, (int, float)) or isinstance(at_most, bool) or not at_most >= 0:
            raise LawsError(f"at_most is {at_most!r}", WHERE, "give a number, 0 or more")
        if work is not None and not callable(work):
            raise LawsError(f"work is {work!r}", WHERE, "give a function of the arguments that returns an amount")
        self.name = title(target, method)
        self.calls = 0
        self.spent: dict[Any, Any] = {}
        self._target, self._method, self._at_most, self._work, self._per = target, method, at_most, work, per
        self._by = "all calls"
        self._key: Callable[..., Any] = _by_nothing
        self._step = 0
        self._set_key(original, per)
        self._lock = threading.Lock()
        self._sites: dict[Any, Counter[Site]] = {}
        self._first: dict[Any, str] = {}
        self._kept: list[Any] = []  # objects that are told by their identity, which must not be given out again
        self._block = ExitStack()

    def __enter__(self) -> Budget:
        self._block.enter_context(watched(self._target, self._method, self._see))
        if isinstance(self._per, tuple):
            self._block.enter_context(watched(self._per[0], self._per[1], self._begin_step))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._block.close()
        ended = kind is not None and issubclass(kind, Stop)
        if kind is not None and not ended:
            return
        if isinstance(self._per, tuple) and not self._step:
            fix = f"let the block call {title(*self._per)} on that object"
            raise LawsError(f"{title(*self._per)}, which begins a step, was never called", WHERE, fix)
        if over := [key for key in self.spent if self.spent[key] > self._at_most]:
            raise self._broken(over, ended) from None
        if ended:
            return  # by somebody else's block
        if not self.calls and self._at_most:
            fix = "let the block call it through that object; for all objects of a class give the class"
            raise LawsError(f"{self.name} was never called in the block", WHERE, fix)

    def _set_key(self, original: Any, per: Any) -> None:
        if isinstance(per, tuple):
            if len(per) != 2:
                raise LawsError(f"per is {shown(per)}", WHERE, "give an object and the name of a method of it")
            checked_method(*per, WHERE)
            self._by, self._key = "step", lambda *_, **__: self._step
        elif isinstance(per, str):
            try:
                signature = inspect.signature(original)
            except (TypeError, ValueError) as error:
                raise LawsError(f"{self.name} has no signature: {error}", WHERE, "give per as a function") from error
            if per not in signature.parameters:
                names = ", ".join(signature.parameters) or "none"
                raise LawsError(f"per is {per!r}, which is no parameter of {self.name}", WHERE, f"it has: {names}")
            self._by, self._key = per, _by_parameter(signature, per)
        elif callable(per):
            self._by, self._key = "key", per
        elif per is not None:
            fix = "give the name of a parameter, a function of the arguments, or an object and a method's name"
            raise LawsError(f"per is {shown(per)}", WHERE, fix)

    def _begin_step(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._lock:
            self._step += 1
        return original(*args, **kwargs)

    def _see(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = self._key(*args, **kwargs)
        amount = 1 if self._work is None else self._work(*args, **kwargs)
        if not isinstance(amount, (int, float)) or not amount >= 0:
            raise LawsError(f"work returned {shown(amount)}", WHERE, "return a number, 0 or more")
        site = call_site()
        with self._lock:
            try:
                hash(key)
            except TypeError:
                self._kept.append(key)
                key = _Same(key)
            self.calls += 1
            self.spent[key] = self.spent.get(key, 0) + amount
            self._sites.setdefault(key, Counter())[site] += 1
            if self.spent[key] > self._at_most and key not in self._first:
                values = [shown(value, 40) for value in args] + [f"{n}={shown(v, 40)}" for n, v in kwargs.items()]
                number = sum(self._sites[key].values())
                self._first[key] = f"call {number}, {self.name.rpartition('.')[2]}({', '.join(values)})"
            if self.spent[key] > RUNAWAY * max(1, self._at_most):
                raise Stop
        return original(*args, **kwargs)

    def _broken(self, over: list[Any], ended: bool) -> LawBroken:
        over.sort(key=lambda key: -self.spent[key])
        worst = over[0]
        said = "calls" if self._work is None else f"of work in {counted(sum(self._sites[worst].values()), 'call')}"
        whose = "" if self._per is None else f" for {self._by} {shown(worst, 60)}"
        problem = f"{self.name}: {_amount(self.spent[worst]):,} {said}{whose}, with a budget of {self._at_most:,}"
        columns: list[object] = [self._by, "calls"] if self._work is None else [self._by, "work", "calls"]
        rows: list[list[object]] = [columns]
        for key in over[:ROWS]:
            calls = sum(self._sites[key].values())
            rows.append([shown(key, 60), _amount(self.spent[key]), calls][: len(columns)])
        lines = [] if self._per is None else table(rows, indent="")
        within = len(self.spent) - len(over)
        more = [f"{len(over) - ROWS} more over it"] if len(over) > ROWS else []
        lines += [", ".join([*more, f"{within} within it"])] if self._per is not None and (more or within) else []
        lines += ["the block was ended there, since its loop might never end"] if ended else []
        lines.append(f"the first beyond it: {self._first[worst]}")
        sites: Counter[Site] = Counter()
        for key in over:
            sites.update(self._sites[key])
        lines += ["called from", *places(sites, SITES)]
        return LawBroken(problem, lines, "look at the places above, the most frequent first, or raise at_most")


class _Same:
    """Stands for an object that has no hash, and is told by its identity."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    def __repr__(self) -> str:
        return repr(self._value)


def _amount(spent: Any) -> Any:
    return spent if isinstance(spent, int) else float(f"{spent:.6g}")


def _by_nothing(*_: Any, **__: Any) -> None:
    return None


def _by_parameter(signature: inspect.Signature, name: str) -> Callable[..., Any]:
    def key(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return "(a call that does not fit the method)"  # the method itself will say so
        bound.apply_defaults()
        return bound.arguments[name]

    return key
