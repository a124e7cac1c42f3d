"""Which values may stand together: predicates joined into components, and exact questions about them.

Everything here works on value positions. A *component* is a set of axes that predicates tie together; axes of
different components never restrict each other, so each question is answered inside one component. A component
with few enough allowed combinations is a table of them (states are bitsets over its rows, every answer one AND);
a larger one is searched, with every solved or refuted state remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import and_
from typing import Any, Protocol

from testkit.errors import PairwiseError

TABLE_ROWS = 60_000
"""A component with more partial or complete combinations than this is searched instead of tabulated."""

SEARCH_STEPS = 2_000_000
"""All questions to a searched component together may look at its rules this often (seconds), then it is an error."""

WITNESSES = 256
"""So many solutions of a searched component are kept: what one of them shows needs no search."""


@dataclass(frozen=True)
class Rule:
    """One predicate over value positions: its scope (axes, ascending) and what it allows.

    ``table`` holds the allowed position tuples of a tabulated predicate, None for one that is asked as needed.
    """

    name: str
    scope: tuple[int, ...]
    allows: Callable[[tuple[int, ...]], bool]
    table: frozenset[tuple[int, ...]] | None


class Component(Protocol):
    """Axes tied together. A *state* stands for a partial case; a false state is one that nothing completes."""

    axes: tuple[int, ...]
    start: Any

    def narrow(self, state: Any, axis: int, value: int) -> Any:
        """The state with ``axis`` fixed to ``value``; false when no allowed case holds both."""

    def values(self, state: Any, axis: int) -> list[int]:
        """Positions of ``axis`` that some allowed case of this state holds, ascending."""

    def nearest(self, state: Any, wanted: Mapping[int, int]) -> dict[int, int]:
        """An allowed case of this state (axis -> position) that keeps what it can of ``wanted``, in axis order."""


class TableComponent:
    """A component whose allowed combinations are listed."""

    def __init__(self, axes: tuple[int, ...], rows: Sequence[tuple[int, ...]], levels: Sequence[int]) -> None:
        self.axes = axes
        self.rows = rows
        self.start = (1 << len(rows)) - 1
        self._columns = {axis: c for c, axis in enumerate(axes)}
        self._support = {axis: _bitsets([row[c] for row in rows], levels[axis]) for axis, c in self._columns.items()}
        self._values: dict[tuple[int, int], list[int]] = {}

    def narrow(self, state: int, axis: int, value: int) -> int:
        return state & self._support[axis][value]

    def values(self, state: int, axis: int) -> list[int]:
        key = (state, axis)
        if key not in self._values:
            self._values[key] = [value for value, support in enumerate(self._support[axis]) if state & support]
        return self._values[key]

    def nearest(self, state: int, wanted: Mapping[int, int]) -> dict[int, int]:
        for axis in self.axes:
            if axis in wanted:
                state = state & self._support[axis][wanted[axis]] or state
        return dict(zip(self.axes, self.rows[(state & -state).bit_length() - 1], strict=True))


def _bitsets(column: Sequence[int], levels: int) -> list[int]:
    """For each value the set of rows that hold it, as an integer."""
    buffers = [bytearray(len(column) // 8 + 1) for _ in range(levels)]
    for row, value in enumerate(column):
        buffers[value][row >> 3] |= 1 << (row & 7)
    return [int.from_bytes(buffer, "little") for buffer in buffers]


Domains = tuple[int, ...]
"""State of a searched component: for each of its axes the bitset of positions still open."""


class SearchComponent:
    """A component too large to list: rules are propagated, then searched depth-first.

    A state that ``narrow`` returns has an allowed completion (found by search and kept); dead ends are kept too.
    """

    def __init__(self, axes: tuple[int, ...], rules: Sequence[Rule], levels: Sequence[int]) -> None:
        self.axes = axes
        self._place = {axis: i for i, axis in enumerate(axes)}
        self._rules = [(rule, tuple(self._place[a] for a in rule.scope)) for rule in rules]
        self._of_axis: list[list[int]] = [[] for _ in axes]
        for number, (_, places) in enumerate(self._rules):
            for place in places:
                self._of_axis[place].append(number)
        self._solved: dict[Domains, Domains | None] = {}
        self._settled: dict[Domains, Domains | None] = {}
        self._witnesses: deque[Domains] = deque(maxlen=WITNESSES)
        self._steps = 0
        full: Domains = tuple((1 << levels[axis]) - 1 for axis in axes)
        self.start = self._settle(full, range(len(self._rules)))

    def narrow(self, state: Domains | None, axis: int, value: int) -> Domains | None:
        if not state:
            return None
        place = self._place[axis]
        bit = 1 << value
        if not state[place] & bit:
            return None
        if state[place] == bit:
            return state
        narrower = (*state[:place], bit, *state[place + 1 :])
        if narrower not in self._settled:
            self._settled[narrower] = self._settle(narrower, self._of_axis[place])
        return self._settled[narrower]

    def values(self, state: Domains | None, axis: int) -> list[int]:
        if not state:
            return []
        place = self._place[axis]
        shown = 0
        for witness in self._witnesses:
            if witness[place] & ~shown and all(map(and_, witness, state)):
                shown |= witness[place]
        return [
            value for value in _bits(state[place]) if shown >> value & 1 or self.narrow(state, axis, value) is not None
        ]

    def nearest(self, state: Domains | None, wanted: Mapping[int, int]) -> dict[int, int]:
        assert state, "nearest() is asked of states that can be completed"
        for axis in self.axes:
            if axis in wanted:
                state = self.narrow(state, axis, wanted[axis]) or state
        solution = self._solution(state)
        assert solution is not None, "narrow() returned a dead end"
        return {axis: domain.bit_length() - 1 for axis, domain in zip(self.axes, solution, strict=True)}

    def _settle(self, domains: Domains, changed: Iterable[int]) -> Domains | None:
        """Propagate, then make sure that a completion exists."""
        narrowed = self._propagate(domains, changed)
        return narrowed if narrowed and self._solution(narrowed) is not None else None

    def _solution(self, domains: Domains) -> Domains | None:
        """One completion of a propagated state, remembered; None when there is none."""
        if domains in self._solved:
            return self._solved[domains]
        open_places = [(d.bit_count(), place) for place, d in enumerate(domains) if d & (d - 1)]
        found: Domains | None = None
        if not open_places:
            found = domains
            self._witnesses.append(domains)
        else:
            _, place = min(open_places)
            for value in _bits(domains[place]):
                child = self._propagate((*domains[:place], 1 << value, *domains[place + 1 :]), self._of_axis[place])
                if child:
                    found = self._solution(child)
                    if found:
                        break
        self._solved[domains] = found
        return found

    def _give_up(self) -> PairwiseError:
        names = ", ".join(dict.fromkeys(rule.name for rule, _ in self._rules))
        return PairwiseError(
            f"gave up after looking {SEARCH_STEPS:,} times for cases that satisfy {names}",
            fix="give the predicate fewer or smaller arguments, or split it into several with smaller scopes",
        )

    def _propagate(self, domains: Domains, changed: Iterable[int]) -> Domains | None:
        """Remove values that a rule with at most one open place refuses, until nothing changes."""
        current = list(domains)
        waiting = dict.fromkeys(changed)
        while waiting:
            number = next(iter(waiting))
            del waiting[number]
            self._steps += 1
            if self._steps > SEARCH_STEPS:
                raise self._give_up()
            rule, places = self._rules[number]
            open_places = [place for place in places if current[place] & (current[place] - 1)]
            if len(open_places) > 1:
                continue
            values = [current[place].bit_length() - 1 for place in places]
            if not open_places:
                if not rule.allows(tuple(values)):
                    return None
                continue
            place = open_places[0]
            column = places.index(place)
            kept = 0
            for value in _bits(current[place]):
                values[column] = value
                if rule.allows(tuple(values)):
                    kept |= 1 << value
            if not kept:
                return None
            if kept != current[place]:
                current[place] = kept
                waiting.update(dict.fromkeys(self._of_axis[place]))
        return tuple(current)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Space:
    """All axes of one model, with the components that its rules make.

    ``levels[a]`` is the number of values of axis ``a``; ``component_of[a]`` its component's number or None for
    an axis that no rule names. ``satisfiable`` is False when no case is allowed at all.
    """

    def __init__(self, levels: Sequence[int], rules: Sequence[Rule]) -> None:
        self.levels = tuple(levels)
        self.rules = tuple(rules)
        self.components: list[Component] = [
            _component(axes, own, self.levels) for axes, own in _groups(len(self.levels), self.rules)
        ]
        self.component_of: list[int | None] = [None] * len(self.levels)
        for number, component in enumerate(self.components):
            for axis in component.axes:
                self.component_of[axis] = number
        self.start: tuple[Any, ...] = tuple(component.start for component in self.components)
        self.satisfiable = all(self.start)
        self._tuples: dict[tuple[int, ...], set[tuple[int, ...]]] = {}

    def states(self, partial: Mapping[int, int]) -> list[Any] | None:
        """The components' states of a partial case (axis -> position); None when nothing completes it."""
        states = list(self.start)
        for axis, value in partial.items():
            number = self.component_of[axis]
            if number is not None:
                states[number] = self.components[number].narrow(states[number], axis, value)
                if not states[number]:
                    return None
        return states

    def values(self, states: Sequence[Any], axis: int) -> Sequence[int]:
        """Positions that ``axis`` may take beside what ``states`` fixes."""
        number = self.component_of[axis]
        if number is None:
            return range(self.levels[axis])
        return self.components[number].values(states[number], axis)

    def tuples(self, axes: tuple[int, ...]) -> set[tuple[int, ...]]:
        """The value tuples of ``axes`` (ascending, all in one component) that some allowed case holds."""
        known = self._tuples.get(axes)
        if known is None:
            number = self.component_of[axes[0]]
            assert number is not None, "asked only of axes that a rule names"
            component = self.components[number]
            partial: list[tuple[tuple[int, ...], Any]] = [((), component.start)]
            for axis in axes:
                partial = [
                    ((*values, value), component.narrow(state, axis, value))
                    for values, state in partial
                    for value in component.values(state, axis)
                ]
            known = self._tuples[axes] = {values for values, _ in partial}
        return known

    def split(self, axes: Sequence[int]) -> list[tuple[int, ...]]:
        """``axes`` by component, in order; each axis that no rule names stands alone."""
        parts: dict[object, list[int]] = {}
        for axis in axes:
            number = self.component_of[axis]
            parts.setdefault(("free", axis) if number is None else number, []).append(axis)
        return [tuple(part) for part in parts.values()]

    def count(self, axes: Sequence[int]) -> int:
        """How many value tuples of ``axes`` some allowed case holds."""
        total = 1
        for part in self.split(axes):
            free = self.component_of[part[0]] is None
            total *= prod(self.levels[a] for a in part) if free else len(self.tuples(part))
        return total

    def allows(self, row: Sequence[int]) -> bool:
        """Does every rule, asked directly, allow this complete case?"""
        return all(rule.allows(tuple([row[a] for a in rule.scope])) for rule in self.rules)


def _groups(axes: int, rules: Sequence[Rule]) -> list[tuple[tuple[int, ...], list[Rule]]]:
    """Axes tied together by rules, with those rules, in order of their first axis."""
    parent = list(range(axes))

    def find(axis: int) -> int:
        while parent[axis] != axis:
            parent[axis] = parent[parent[axis]]
            axis = parent[axis]
        return axis

    for rule in rules:
        for axis in rule.scope[1:]:
            parent[find(axis)] = find(rule.scope[0])
    own: dict[int, list[Rule]] = {}
    for rule in rules:
        own.setdefault(find(rule.scope[0]), []).append(rule)
    groups = [(tuple(a for a in range(axes) if find(a) == root), rules_) for root, rules_ in own.items()]
    return sorted(groups, key=lambda group: group[0])


def _component(axes: tuple[int, ...], rules: Sequence[Rule], levels: Sequence[int]) -> Component:
    rows = None if any(rule.table is None for rule in rules) else _join(axes, rules, levels)
    if rows is None:
        return SearchComponent(axes, rules, levels)
    return TableComponent(axes, rows, levels)


def _join(axes: tuple[int, ...], rules: Sequence[Rule], levels: Sequence[int]) -> list[tuple[int, ...]] | None:
    """All combinations of ``axes`` that every (tabulated) rule allows, sorted; None when they are too many."""
    if len(rules) == 1 and rules[0].table is not None:
        return sorted(rules[0].table) if len(rules[0].table) <= TABLE_ROWS else None
    order: list[int] = []
    for rule in sorted(rules, key=lambda rule: (len(rule.scope), rule.scope)):
        order += [axis for axis in rule.scope if axis not in order]
    partial: list[tuple[int, ...]] = [()]
    for number, axis in enumerate(order):
        done = set(order[: number + 1])
        checks = [
            ([order.index(a) for a in rule.scope], rule.table)
            for rule in rules
            if rule.table is not None and axis in rule.scope and done.issuperset(rule.scope)
        ]
        if len(partial) * levels[axis] > 4 * TABLE_ROWS:
            return None
        extended = [(*row, value) for row, value in product(partial, range(levels[axis]))]
        for places, table in checks:
            extended = [row for row in extended if tuple([row[p] for p in places]) in table]
        partial = extended
        if len(partial) > TABLE_ROWS:
            return None
    places = [order.index(axis) for axis in axes]
    return sorted(tuple([row[p] for p in places]) for row in partial)
