"""A predicate that the user could write, from the values of cases that skipped and of cases that ran.

What is said holds of the cases that were seen and of nothing else; whether it is the real condition the user must know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from math import comb
from operator import and_, or_

from testkit._text import counted
from testkit.pairwise._axes import Axis
from testkit.pairwise._history import Case, Lessons, telling
from testkit.pairwise._ids import value_text
from testkit.pairwise._model import Model
from testkit.pairwise._proof import held_counts
from testkit.pairwise._space import TableComponent
from testkit.pairwise._tally import percent

MOST_ARGUMENTS = 3
"""A condition over more arguments is no more readable than the list of its cases."""

MOST_TERMS = 3
"""So many conditions joined by "or" are said; more are none that a user would write."""

MOST_ALTERNATIVES = 50_000
"""So many conjunctions are compared for a term; with more nothing is suggested."""


MOST_GROUPS = 1_000
"""With more groups of axes or arguments nothing is suggested, nor counted what all runs covered together."""


@dataclass(frozen=True)
class Condition:
    """Values of one argument: ``words`` for a reader, ``code`` for Python; "" for any value. ``levels`` fulfil it."""

    words: str
    code: str
    levels: frozenset[int]


@dataclass(frozen=True)
class Suggestion:
    """All seen cases that skipped, and none that ran, fulfil ``words`` and ``code`` over ``arguments``."""

    words: str
    code: str
    arguments: tuple[str, ...]

    @property
    def predicate(self) -> str:
        """To be written as ``where=``."""
        return f"lambda {', '.join(self.arguments)}: not ({self.code})"


def suggest(axes: Sequence[Axis], skipped: Iterable[Case], ran: Iterable[Case]) -> Suggestion | None:
    """The condition that tells the ``skipped`` cases (levels) from those that ``ran``.

    None if none is simple enough, or if as many arguments of other axes tell them apart as well: too few cases were
    seen then. Tried in this order: one conjunction of conditions on single arguments (``=``, ``!=`` and, on numbers,
    ``<``, ``>`` with a value of the axis), a bound on the product of two numbers, up to MOST_TERMS conjunctions.
    """
    names, values, columns = _arguments(axes)
    ones, others = (
        [tuple([column[case[axis]] for axis, column in columns]) for case in side] for side in (skipped, ran)
    )
    if not ones or not others:
        return None
    told = telling(len(names), ones, others)
    if not 1 <= len(told) <= MOST_ARGUMENTS or _ambiguous([axis for axis, _ in columns], told, ones, others):
        return None
    names, values = [names[one] for one in told], [values[one] for one in told]
    if any(map(_compare_equal, values)):
        return None  # code that compares would say more than the cases do
    inside, outside = (sorted({tuple([case[one] for one in told]) for case in side}) for side in (ones, others))
    if set(inside) & set(outside):
        return None
    terms = _terms(names, values, inside, outside)
    if terms is not None and len(terms) == 1:
        return _joined(names, terms)
    return _bound(names, values, inside, outside) or (None if terms is None else _joined(names, terms))


def _ambiguous(axis_of: Sequence[int], told: Sequence[int], ones: Sequence[Case], others: Sequence[Case]) -> bool:
    """Do as many arguments of other axes tell the cases apart as well?"""
    axes = {axis_of[one] for one in told}
    if comb(len(axis_of), len(told)) > MOST_GROUPS:
        return True
    for choice in combinations(range(len(axis_of)), len(told)):
        if {axis_of[one] for one in choice} != axes:
            held = {tuple([case[one] for one in choice]) for case in ones}
            if all(tuple([case[one] for one in choice]) not in held for case in others):
                return True
    return False


def _arguments(axes: Sequence[Axis]) -> tuple[list[str], list[list[object]], list[tuple[int, list[int]]]]:
    """Single arguments: their names, their different values, and (axis, from its level to the number of the value)."""
    names: list[str] = []
    values: list[list[object]] = []
    columns: list[tuple[int, list[int]]] = []
    for number, axis in enumerate(axes):
        for argname in axis.argnames:
            given = [axis.argument(argname, position) for position in axis.first_positions]
            texts = [f"{type(value).__name__} {value_text(value)}" for value in given]
            order = list(dict.fromkeys(texts))
            names.append(argname)
            values.append([given[texts.index(text)] for text in order])
            columns.append((number, [order.index(text) for text in texts]))
    return names, values, columns


def _terms(
    names: Sequence[str], values: Sequence[Sequence[object]], inside: Sequence[Case], outside: Sequence[Case]
) -> list[list[Condition]] | None:
    """Conjunctions that together hold all of ``inside`` and none of ``outside``: wide ones first, then short ones."""
    conditions = [list(_conditions(name, own)) for name, own in zip(names, values, strict=True)]
    if reduce(lambda total, own: total * len(own), conditions, 1) > MOST_ALTERNATIVES:
        return None
    within, without = _holders(conditions, inside), _holders(conditions, outside)
    usable = []
    for choice in product(*[range(len(own)) for own in conditions]):
        if not reduce(and_, [held[number] for held, number in zip(without, choice, strict=True)]):
            held = reduce(and_, [held[number] for held, number in zip(within, choice, strict=True)])
            if held:
                usable.append((sum(1 for number in choice if number), choice, held))
    left = (1 << len(inside)) - 1
    chosen: list[list[Condition]] = []
    while left:
        if len(chosen) == MOST_TERMS:
            return None
        _, choice, held = min(usable, key=lambda one: (-(one[2] & left).bit_count(), one[0], one[1]))
        chosen.append([own[number] for own, number in zip(conditions, choice, strict=True)])
        left &= ~held
    return chosen


def _conditions(name: str, values: Sequence[object]) -> Iterator[Condition]:
    """Any value; then what can be said of single ones, the likeliest first."""
    everything = frozenset(range(len(values)))
    yield Condition("", "", everything)
    for level, value in enumerate(values):
        sign = "is" if value is None or isinstance(value, bool) else "=="
        yield Condition(f"{name} = {value_text(value)}", f"{name} {sign} {_code(value)}", frozenset([level]))
    if all(_is_number(value) for value in values):
        order = sorted(everything, key=lambda level: values[level])  # type: ignore[arg-type, return-value]  # numbers
        for place in range(1, len(order)):
            low, high = order[:place], order[place:]
            for sign, bound, levels in ((">", low[-1], high), ("<", high[0], low)):
                text = f"{name} {sign} {_code(values[bound])}"
                if len(levels) > 1:
                    yield Condition(text, text, frozenset(levels))
    if len(values) > 2:
        for level, value in enumerate(values):
            sign = "is not" if value is None or isinstance(value, bool) else "!="
            yield Condition(f"{name} != {value_text(value)}", f"{name} {sign} {_code(value)}", everything - {level})


def _holders(conditions: Sequence[Sequence[Condition]], cases: Sequence[Case]) -> list[list[int]]:
    """For each condition of each argument the set of cases that fulfil it, as bits."""
    return [
        [
            reduce(or_, [1 << place for place, case in enumerate(cases) if case[number] in one.levels], 0)
            for one in conditions_
        ]
        for number, conditions_ in enumerate(conditions)
    ]


def _bound(
    names: Sequence[str], values: Sequence[Sequence[object]], inside: Sequence[Case], outside: Sequence[Case]
) -> Suggestion | None:
    """A bound that the product of two numbers crosses with the cases inside and with no other, or None."""
    if len(names) != 2 or not all(_is_number(value) for own in values for value in own):
        return None

    def of(case: Case) -> float:
        one, other = values[0][case[0]], values[1][case[1]]
        return one * other  # type: ignore[operator, no-any-return]  # both are numbers

    here, there = sorted(map(of, inside)), sorted(map(of, outside))
    text = f"{names[0]} * {names[1]}"
    if here[0] > there[-1]:
        text += f" > {_code(there[-1])}"
    elif here[-1] < there[0]:
        text += f" < {_code(there[0])}"
    else:
        return None
    return Suggestion(text, text, tuple(names))


def _joined(names: Sequence[str], terms: Sequence[Sequence[Condition]]) -> Suggestion:
    told = [[one for one in term if one.words] for term in terms]
    words = [" and ".join(one.words for one in term) for term in told]
    codes = [" and ".join(one.code for one in term) for term in told]
    if len(codes) > 1:
        codes = [f"({code})" if len(term) > 1 else code for code, term in zip(codes, told, strict=True)]
    return Suggestion(" or ".join(words), " or ".join(codes), tuple(names))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value  # not nan


def _compare_equal(values: Iterable[object]) -> bool:
    """Are there different numbers that compare equal, as 1 and True?"""
    numbers = [value for value in values if isinstance(value, (int, float))]
    return len(set(numbers)) < len(numbers)


def _code(value: object) -> str:
    """The value as Python source; of objects what their own text says, which the user has to read anyway."""
    return ascii(value) if value is None or isinstance(value, (bool, int, float, str)) else value_text(value)


def lesson_notes(lessons: Lessons, axes: Sequence[Axis], model: Model) -> list[str]:
    """What to tell of one function's last runs: why cases skip, which values are new, what all runs covered."""
    if not lessons.last:
        return ["an axis is new since the last runs, so they tell only of failures"] if any(lessons.runs) else []
    runs = "the last run" if len(lessons.runs) == 1 else f"the last {len(lessons.runs)} runs together"
    notes = []
    if lessons.skipping:
        found = suggest(axes, lessons.skipping, [case for case in lessons.last if case not in lessons.skipping])
        why = f': "{lessons.reason}"' if lessons.reason else ""
        seen = f"{counted(len(lessons.skipping), 'case')} seen{why}"
        if found is not None:
            notes.append(f"every case with {found.words} skipped ({seen}): where={found.predicate}")
    for axis, new in zip(axes, lessons.new, strict=True):
        if new:
            values = ", ".join(value_text(axis.values[axis.first_positions[level]]) for level in sorted(new))
            notes.append(f"new since these runs, so its cases come first: {axis.name} = {values}")
    return [*notes, *_together(lessons, model, runs)]


def _together(lessons: Lessons, model: Model, runs: str) -> Iterator[str]:
    """The share of owed tuples that ran in any of the runs, at the strength and one above it."""
    rows = [case for case in sorted(lessons.ran) if model.space.allows(case)]
    told = []
    for strength in (model.strength, model.strength + 1):
        if strength > len(model.levels) or not _is_quick(model, strength):
            continue
        wider = Model(model.space, strength)
        held = sum(number for _, number in held_counts(rows, wider.groups()))
        noun = {1: "value", 2: "pair", 3: "triple"}.get(strength, f"{strength}-tuple")
        told.append(f"{percent(held, wider.owed)} of {counted(wider.owed, noun)}")
    if told:
        yield f"{runs}: {' and '.join(told)} ran"


def _is_quick(model: Model, strength: int) -> bool:
    """Counting what a strength owes asks about every group of axes."""
    if comb(len(model.levels), strength) > MOST_GROUPS:
        return False
    return all(isinstance(component, TableComponent) for component in model.space.components)
