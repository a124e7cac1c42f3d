"""Thinning inside pytest: the parametrize calls of one function, recorded, understood, and applied with pruning.

pytest's own ``Metafunc.parametrize`` makes every id, mark and scope; between two of its calls the cases that no
chosen row begins with are dropped, so the full product is never built. No pytest import: metafunc comes as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from math import prod
from typing import Any

from testkit._text import counted
from testkit.errors import PairwiseError
from testkit.pairwise._axes import Axis, holds_address, in_fixed_order
from testkit.pairwise._plan import Plan, Positions, plan_cases
from testkit.pairwise._request import Request
from testkit.pairwise._tally import Tally

LEFT_WHOLE = "__"
"""An argument whose name begins so repeats tests (pytest-repeat); it is no choice of the test and is not thinned."""


@dataclass
class Call:
    """One ``metafunc.parametrize(argnames, argvalues, ...)``, not yet applied."""

    argnames: Any
    argvalues: Any
    options: dict[str, Any]
    axis: Axis = field(init=False)
    idle: set[int] = field(init=False)

    def apply(self, metafunc: Any) -> None:
        metafunc.parametrize(self.argnames, self.argvalues, **self.options)


class Recorder:
    """Stands in for ``metafunc.parametrize`` while all ``pytest_generate_tests`` hooks run."""

    def __init__(self, metafunc: Any) -> None:
        self.metafunc = metafunc
        self.calls: list[Call] = []
        metafunc.parametrize = self

    def __call__(
        self, argnames: Any, argvalues: Any, indirect: Any = False, ids: Any = None, scope: Any = None, **private: Any
    ) -> None:
        if isinstance(argvalues, Iterator):
            argvalues = list(argvalues)
        self.calls.append(Call(argnames, argvalues, {"indirect": indirect, "ids": ids, "scope": scope, **private}))

    def stop(self) -> list[Call]:
        """Give metafunc its own method back; the recorded calls."""
        del self.metafunc.parametrize
        return self.calls


def apply_plainly(metafunc: Any, calls: Sequence[Call]) -> None:
    """What pytest would have done."""
    for call in calls:
        call.apply(metafunc)


def thin(metafunc: Any, calls: Sequence[Call], request: Request, named: Collection[str]) -> Tally | None:
    """Apply the calls so that only chosen cases remain, and those whose bracketed part of the node id is ``named``.

    None if nothing was thinned (no axis, or too few cases for ``request.over``); the calls are applied all the same.
    """
    nodeid = metafunc.definition.nodeid
    _learn(metafunc, calls, request)
    axes = [call.axis for call in calls if not call.axis.name.startswith(LEFT_WHOLE)]
    total = prod(len(axis.values) for axis in axes)
    names = [argname for axis in axes for argname in axis.argnames]
    if request.own and not axes:
        raise PairwiseError("the marker stands on a function without axes", fix="parametrize it, or remove the marker")
    if not axes or total <= request.over or len(set(names)) < len(names):
        apply_plainly(metafunc, calls)
        return None
    idle = [call.idle for call in calls if not call.axis.name.startswith(LEFT_WHOLE)]
    plan = _plan(axes, idle, request, nodeid)
    cases, outside, notes = _apply_pruned(metafunc, calls, plan, named, nodeid)
    # whoever thins a whole suite did not ask about each function
    notes = [*plan.notes, *plan.refused_values(), *notes] if request.marked else []
    return Tally.of(nodeid, plan, request.strength, cases, outside, notes)


def _plan(axes: Sequence[Axis], idle: Sequence[Collection[int]], request: Request, nodeid: str) -> Plan:
    strength = request.strength.value
    if strength > len(axes):
        if request.strength.source == "from the marker":
            total = prod(len(axis.values) for axis in axes)
            raise PairwiseError(
                f"strength {strength} exceeds the {counted(len(axes), 'axis', 'axes')}",
                f"from the marker of {nodeid}",
                fix=f"use 1 to {len(axes)}, or remove the marker to run all {total:,} cases",
            )
        strength = len(axes)
    return plan_cases(
        axes,
        strength=strength,
        full=request.full,
        where=request.where,
        keep=request.keep,
        seed=request.seed,
        effort=request.effort,
        engine=request.engine,
        idle=idle,
    )


def _learn(metafunc: Any, calls: Sequence[Call], request: Request) -> None:
    """Find each call's axis by letting pytest apply it alone, with ids that ask nobody."""
    before = metafunc._calls
    try:
        for call in calls:
            call.argvalues = _ordered(call, request)
            count = len(list(call.argvalues))
            if not count and request.marked:
                raise PairwiseError(
                    f"axis {_names(call.argnames)!r} has no values",
                    fix="give it values (a generator serves one function only), or remove the pairwise marker",
                )
            metafunc._calls = []
            metafunc.parametrize(
                call.argnames,
                call.argvalues,
                indirect=call.options["indirect"],
                ids=[f"testkit{position}" for position in range(count)] or None,
                scope=call.options["scope"],
            )
            call.axis = _axis(metafunc._calls)
            call.idle = {at for at, callspec in enumerate(metafunc._calls) if any(map(_idles, callspec.marks))}
    finally:
        metafunc._calls = before


def _idles(mark: Any) -> bool:
    """Does this mark of a parameter keep its cases from running, as far as can be known now?"""
    if mark.name == "skip":
        return True
    conditions = [mark.kwargs["condition"]] if "condition" in mark.kwargs else list(mark.args)
    if mark.name == "xfail":
        return mark.kwargs.get("run") is False and (not conditions or conditions[0] is True)
    return mark.name == "skipif" and any(condition is True for condition in conditions)


def _names(argnames: str | Iterable[str]) -> str:
    return argnames if isinstance(argnames, str) else ",".join(argnames)


def _ordered(call: Call, request: Request) -> Any:
    """A set as a list in one fixed order, for functions that carry the marker; anything else as it is."""
    if request.marked and isinstance(call.argvalues, Set):
        return in_fixed_order(call.argvalues, _names(call.argnames))
    return call.argvalues


def _axis(alone: Sequence[Any]) -> Axis:
    argnames = tuple(alone[0].params)
    if len(argnames) == 1:
        return Axis(argnames[0], argnames, tuple(callspec.params[argnames[0]] for callspec in alone))
    return Axis(",".join(argnames), argnames, tuple(tuple(callspec.params.values()) for callspec in alone))


def _apply_pruned(
    metafunc: Any, calls: Sequence[Call], plan: Plan, named: Collection[str], nodeid: str
) -> tuple[list[tuple[str, Positions]], set[str], list[str]]:
    wanted = set(plan.rows)
    named = set(named)
    beginnings = {text[:end] for text in named for end, sign in enumerate(text) if sign == "-"} | named | {""}
    kept: list[Positions] = [()] * (len(metafunc._calls) or 1)
    depth, notes = 0, []
    for number, call in enumerate(calls):
        count = len(call.axis.values)
        call.apply(metafunc)
        notes += _id_notes(call, [callspec._idlist[-1:] for callspec in metafunc._calls[:count]])
        thinned = not call.axis.name.startswith(LEFT_WHOLE)
        depth += thinned
        prefixes = {row[:depth] for row in wanted}
        pairs = []
        for at, callspec in enumerate(metafunc._calls):
            before, position = kept[at // count], at % count
            row = (*before, position) if thinned else before
            known = callspec.id in (named if number == len(calls) - 1 else beginnings)
            if row in prefixes or (named and known):
                pairs.append((row, callspec))
        kept = [row for row, _ in pairs]
        metafunc._calls = [callspec for _, callspec in pairs]
    cases = [
        (f"{nodeid}[{callspec.id}]" if callspec._idlist else nodeid, row)
        for row, callspec in zip(kept, metafunc._calls, strict=True)
    ]
    return cases, {name for name, row in cases if row not in wanted}, notes


def _id_notes(call: Call, idlists: Sequence[Sequence[str]]) -> list[str]:
    """What to tell of ids that pytest had to number because values print alike, or that show an address."""
    axis, notes = call.axis, []
    alike: dict[str, list[int]] = {}
    for position, value in enumerate(axis.values):
        own = "".join(idlists[position])
        if holds_address(own):
            notes.append(f"axis {axis.name!r}: the id {own} holds an address, which differs from process to process")
        plain = _plain_text(value)
        if plain is not None and own != plain and own.startswith(plain) and own[len(plain) :].strip("_").isdigit():
            alike.setdefault(plain, []).append(position)
    for text, positions in alike.items():
        if len(positions) > 1:
            ids = ", ".join("".join(idlists[position]) for position in positions)
            values = ", ".join(repr(axis.values[position]) for position in positions)
            notes.append(f"axis {axis.name!r}: values {values} all print as {text!r}, so pytest numbered them: {ids}")
    return notes


def _plain_text(value: object) -> str | None:
    """The id that pytest gives a value of its own accord, for the types where two values may share it."""
    if value is None or isinstance(value, (str, int, float, complex)):
        return str(value)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else None
