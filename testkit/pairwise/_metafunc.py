"""Thinning inside pytest: the parametrize calls of one function, recorded, each applied alone, and joined.

pytest's own ``Metafunc.parametrize`` makes every id, mark and scope, one call at a time; what a case of several axes
holds is put together from its parts, so that only chosen cases are ever built. metafunc comes as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from testkit._text import counted
from testkit.errors import PairwiseError
from testkit.pairwise._axes import Axis, holds_address, in_fixed_order
from testkit.pairwise._files import About, Files
from testkit.pairwise._ids import shown
from testkit.pairwise._plan import Known, Plan, Positions, check_strength, level_of_position, plan_cases
from testkit.pairwise._request import Request
from testkit.pairwise._suggest import lesson_notes
from testkit.pairwise._tally import Tally

LEFT_WHOLE = "__"
"""An argument whose name begins so repeats tests (pytest-repeat); it is no choice of the test and is not thinned."""


@dataclass
class Call:
    """One ``metafunc.parametrize(argnames, argvalues, ...)`` as a hook made it.

    Learned from pytest: ``axis``, ``alone`` (a callspec for each position, of this axis only) and ``idle`` (positions
    whose marks keep them from running).
    """

    argnames: Any
    argvalues: Any
    rest: tuple[Any, ...]
    options: dict[str, Any]
    axis: Axis = field(init=False)
    alone: list[Any] = field(init=False)
    idle: set[int] = field(init=False)

    def apply(self, metafunc: Any) -> None:
        metafunc.parametrize(self.argnames, self.argvalues, *self.rest, **self.options)

    @cached_property
    def levels(self) -> list[int]:
        """For each position the number of its value."""
        return level_of_position(self.axis)

    @property
    def thinned(self) -> bool:
        return not self.axis.name.startswith(LEFT_WHOLE)


class Recorder:
    """Stands in for ``metafunc.parametrize`` while all ``pytest_generate_tests`` hooks run."""

    def __init__(self, metafunc: Any) -> None:
        self.metafunc = metafunc
        self.replaced = vars(metafunc).get("parametrize")
        self.calls: list[Call] = []
        metafunc.parametrize = self

    def __call__(self, argnames: Any, argvalues: Any, *rest: Any, **options: Any) -> None:
        self.calls.append(Call(argnames, argvalues, rest, options))

    def stop(self) -> list[Call]:
        """Give metafunc its own method back; the recorded calls."""
        if self.replaced is None:
            del self.metafunc.parametrize
        else:
            self.metafunc.parametrize = self.replaced
        return self.calls


def thin(
    metafunc: Any, calls: Sequence[Call], request: Request, named: Collection[str], known: Known, files: Files
) -> tuple[Tally, CaseOf] | None:
    """Leave metafunc the chosen cases, and those whose bracketed part of the node id is ``named``.

    The tally, and how to tell an item's case. None if nothing was thinned (no axis, or too few cases for
    ``request.over``): then metafunc has what pytest would have given it.
    """
    nodeid = metafunc.definition.nodeid
    _learn(metafunc, calls, request)
    axes = [call.axis for call in calls if call.thinned]
    names = [argname for call in calls for argname in call.axis.argnames]
    if request.own and not axes:
        raise PairwiseError("the marker stands on a function without axes", fix="parametrize it, or remove the marker")
    if len(set(names)) < len(names):
        for call in calls:  # pytest refuses it, in its own words
            call.apply(metafunc)
    if not axes or prod(len(axis.values) for axis in axes) <= request.over:
        _leave(metafunc, calls, product(*(range(len(call.alone)) for call in calls)))
        return None
    about = files.about(nodeid, axes, partial(_cases_named, calls, metafunc._calls))
    store = None if request.effort == "default" else files.store()
    plan = _plan(axes, [call.idle for call in calls if call.thinned], request, nodeid, known, about, store)
    files.chose(nodeid, axes, plan.rows)
    chosen = sorted(_with_whole_axes(calls, plan.rows))
    outside = sorted({row for _, row in _named_rows(calls, metafunc._calls, named)} - set(chosen))
    rows = sorted([*chosen, *outside])
    lessons = plan.lessons
    if lessons is not None and any(lessons.new):
        rows = sorted(rows, key=lambda row: not lessons.is_new(_levels(calls, row)))
    _leave(metafunc, calls, rows)
    case_of = CaseOf(axes, [_thinned_part(calls, row) for row in [*chosen, *outside]])
    # whoever thins a whole suite did not ask about each function
    notes = [*plan.notes, *plan.refused_values(), *_id_notes(calls)] if request.marked else []
    if request.marked and lessons is not None:
        notes += lesson_notes(lessons, axes, plan.model)
    tally = Tally.of(nodeid, plan, request.strength, case_of.cases, len(chosen), len(outside), notes)
    return tally, case_of


class CaseOf:
    """Tells the case of a collected item by the very objects that it was parametrized with."""

    def __init__(self, axes: Sequence[Axis], rows: Iterable[Positions]) -> None:
        levels = [level_of_position(axis) for axis in axes]
        numbers: dict[tuple[int, ...], int] = {}
        self._names = [argname for axis in axes for argname in axis.argnames]
        self._known: dict[tuple[int, ...], int] = {}
        self._kept_alive = axes  # an object's id is its own only as long as it lives
        for row in rows:
            case = numbers.setdefault(tuple([n[at] for n, at in zip(levels, row, strict=True)]), len(numbers))
            objects = [axis.argument(name, at) for axis, at in zip(axes, row, strict=True) for name in axis.argnames]
            self._known[tuple(map(id, objects))] = case
        self.cases = list(numbers)

    def __call__(self, params: dict[str, object]) -> int | None:
        """The number of the case that holds these parameters; None if it is none of ours."""
        return self._known.get(tuple([id(params.get(name)) for name in self._names]))


def _plan(
    axes: Sequence[Axis],
    idle: Sequence[Collection[int]],
    request: Request,
    nodeid: str,
    known: Known,
    about: About,
    store: Path | None,
) -> Plan:
    strength = request.strength.value
    check_strength(strength)
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
        known=known,
        locked=about.locked,
        costs=about.costs,
        lessons=about.lessons,
        store=store,
    )


def _learn(metafunc: Any, calls: Sequence[Call], request: Request) -> None:
    """Let pytest apply each call alone, and keep what it makes of it."""
    before = metafunc._calls
    try:
        for call in calls:
            call.argvalues = _ordered(call, request)
            metafunc._calls = []
            call.apply(metafunc)
            call.alone = metafunc._calls
            call.axis = _axis(call.alone)
            call.idle = {at for at, callspec in enumerate(call.alone) if any(map(_idles, callspec.marks))}
            if request.marked and type(call.axis.argument(call.axis.argnames[0], 0)).__name__ == "NotSetType":
                raise PairwiseError(
                    f"axis {call.axis.name!r} has no values",
                    fix="give it values (a generator serves one function only), or remove the pairwise marker",
                )
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


def _ordered(call: Call, request: Request) -> Any:
    """A set as a list in one fixed order; anything else as it is."""
    if not isinstance(call.argvalues, Set):
        return call.argvalues
    name = call.argnames if isinstance(call.argnames, str) else ",".join(call.argnames)
    try:
        return in_fixed_order(call.argvalues, name)
    except PairwiseError:
        if request.marked:
            raise
        return call.argvalues


def _axis(alone: Sequence[Any]) -> Axis:
    argnames = tuple(alone[0].params)
    if len(argnames) == 1:
        return Axis(argnames[0], argnames, tuple(callspec.params[argnames[0]] for callspec in alone))
    return Axis(",".join(argnames), argnames, tuple(tuple(callspec.params.values()) for callspec in alone))


def _leave(metafunc: Any, calls: Sequence[Call], rows: Iterable[Positions]) -> None:
    """Give metafunc these cases (a position for each call), after what it was given before us."""
    if not calls:
        return
    before, made = metafunc._calls, []
    rows = list(rows) if before else rows
    for start in before or [None]:
        prefix: list[Any] = []
        last: Positions = ()
        for row in rows:
            same = next((n for n, (one, other) in enumerate(zip(row, last, strict=False)) if one != other), len(last))
            del prefix[same:]
            for call, position in zip(calls[same:], row[same:], strict=True):
                prefix.append(joined(prefix[-1] if prefix else start, call.alone[position]))
            made.append(prefix[-1])
            last = row
    metafunc._calls = made


def joined(start: Any, alone: Any) -> Any:
    """pytest's record of a case with one axis more."""
    if start is None:
        return alone
    return replace(
        start,
        params={**start.params, **alone.params},
        indices={**start.indices, **alone.indices},
        _arg2scope={**start._arg2scope, **alone._arg2scope},
        _idlist=[*start._idlist, *alone._idlist],
        marks=[*start.marks, *alone.marks],
    )


def _with_whole_axes(calls: Sequence[Call], rows: Iterable[Positions]) -> Iterator[Positions]:
    """Each chosen row with every position of the axes that are left whole, in the order of the calls."""
    for row in rows:
        chosen = iter(row)
        yield from product(*[(next(chosen),) if call.thinned else range(len(call.alone)) for call in calls])


def _thinned_part(calls: Sequence[Call], row: Positions) -> Positions:
    return tuple([position for call, position in zip(calls, row, strict=True) if call.thinned])


def _levels(calls: Sequence[Call], row: Positions) -> tuple[int, ...]:
    """The levels of the thinned axes in a row of positions of all calls."""
    thinned = [call for call in calls if call.thinned]
    return tuple([call.levels[at] for call, at in zip(thinned, _thinned_part(calls, row), strict=True)])


def _cases_named(
    calls: Sequence[Call], before: Sequence[Any], texts: Iterable[str]
) -> dict[str, list[tuple[int, ...]]]:
    """The cases, as levels of the thinned axes, whose ids joined by dashes are one of ``texts``."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for text, row in _named_rows(calls, before, texts):
        found.setdefault(text, []).append(_levels(calls, row))
    return found


def _named_rows(calls: Sequence[Call], before: Sequence[Any], texts: Iterable[str]) -> Iterator[tuple[str, Positions]]:
    """Each text with the cases whose ids, joined by dashes, it is (or what follows the ids that stood there before)."""
    by_id: list[dict[str | None, list[int]]] = []
    for call in calls:
        positions: dict[str | None, list[int]] = {}
        for position, callspec in enumerate(call.alone):
            positions.setdefault("-".join(callspec._idlist) if callspec._idlist else None, []).append(position)
        by_id.append(positions)

    def rows(number: int, rest: str | None) -> Iterator[Positions]:
        if number == len(calls):
            if rest is None:
                yield ()
            return
        ends: list[tuple[str | None, str | None]] = [(None, rest)]  # a hidden parameter adds nothing to the id
        if rest is not None:
            ends += [(rest[:at], rest[at + 1 :]) for at, sign in enumerate(rest) if sign == "-"] + [(rest, None)]
        for own, left in ends:
            for position in by_id[number].get(own, ()):
                for row in rows(number + 1, left):
                    yield (position, *row)

    starts = {"-".join(callspec._idlist) for callspec in before if callspec._idlist}
    for text in texts:
        for rest in [text[len(start) + 1 :] for start in starts if text.startswith(start + "-")] if starts else [text]:
            yield from ((text, row) for row in rows(0, rest))


def _id_notes(calls: Sequence[Call]) -> list[str]:
    """What to tell of ids that pytest had to number because values print alike, or that show an address."""
    notes = []
    for call in calls:
        axis, alike = call.axis, dict[str, list[str]]()
        for value, callspec in zip(axis.values, call.alone, strict=True):
            own, plain = "".join(callspec._idlist), _plain_text(value)
            if holds_address(own):
                notes.append(
                    f"axis {axis.name!r}: the id {own} holds an address, which differs from process to process"
                )
            if plain is not None and own != plain and own.startswith(plain) and own[len(plain) :].strip("_").isdigit():
                alike.setdefault(plain, []).append(f"{shown(value)} is {own}")
        for text, values in alike.items():
            if len(values) > 1:
                notes.append(f"axis {axis.name!r}: values that print as {text!r} were numbered: {', '.join(values)}")
    return notes


def _plain_text(value: object) -> str | None:
    """The id that pytest gives a value of its own accord, for the types where two values may share it."""
    if value is None or isinstance(value, (str, int, float, complex)):
        return str(value)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else None
