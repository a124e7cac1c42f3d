"""An independent judge of chosen cases: it walks the whole product and shares no line with the engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

Case = Mapping[str, Any]
Numbers = tuple[int, ...]


@dataclass
class Verdict:
    """What is wrong with a list of cases; nothing is, where all lists are empty."""

    owed: int
    missing: list[tuple[Numbers, Numbers]] = field(default_factory=list)
    disallowed: list[Case] = field(default_factory=list)
    foreign: list[Case] = field(default_factory=list)
    dropped: list[Case] = field(default_factory=list)
    never: list[tuple[str, int]] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.missing or self.disallowed or self.foreign or self.dropped or self.never)


class Product:
    """All cases of some axes, those that the predicates allow, and what these owe.

    A case is a tuple of choices, one for each axis: the number of the different value, not of its position.
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[Any]],
        *,
        strength: int = 2,
        full: Iterable[str] = (),
        where: Iterable[Callable[..., Any]] = (),
    ) -> None:
        self.names = [[part.strip() for part in name.split(",")] for name in axes]
        self.entries = [
            [tuple(value) if len(names) > 1 else (value,) for value in values]
            for names, values in zip(self.names, axes.values(), strict=True)
        ]
        self.kinds = [_kinds(entries) for entries in self.entries]
        self.different = [[kinds.index(kind) for kind in range(max(kinds) + 1)] for kinds in self.kinds]
        asked = [(predicate, tuple(inspect.signature(predicate).parameters)) for predicate in where]
        self.allowed = {
            case
            for case in product(*[range(len(different)) for different in self.different])
            if all(self._ask(predicate, names, case) for predicate, names in asked)
        }
        crossed = {self._axis(name) for name in full}
        self.groups = [
            group
            for group in combinations(range(len(self.names)), strength)
            if len(crossed) <= strength or not set(group) <= crossed
        ]
        if len(crossed) > strength:
            self.groups.append(tuple(sorted(crossed)))
        self.owed = {(group, tuple(case[a] for a in group)) for case in self.allowed for group in self.groups}

    def _axis(self, name: str) -> int:
        return next(a for a, names in enumerate(self.names) if name in names or name == ",".join(names))

    def arguments(self, case: Numbers) -> dict[str, Any]:
        """The case as values by argument name."""
        found = {}
        for names, entries, different, number in zip(self.names, self.entries, self.different, case, strict=True):
            found |= dict(zip(names, entries[different[number]], strict=True))
        return found

    def _ask(self, predicate: Callable[..., Any], names: Iterable[str], case: Numbers) -> bool:
        values = self.arguments(case)
        return bool(predicate(**{name: values[name] for name in names if name in values}))

    def positions(self, row: Case) -> list[list[int]] | None:
        """For each axis the positions whose very objects the row holds; None if an axis has none."""
        found = []
        for names, entries in zip(self.names, self.entries, strict=True):
            wanted = [row[name] for name in names]
            here = [p for p, entry in enumerate(entries) if all(a is b for a, b in zip(entry, wanted, strict=True))]
            if not here:
                return None
            found.append(here)
        return found

    def holders(self, partial: Case) -> set[Numbers]:
        """The allowed cases that hold this partial case."""
        return {case for case in self.allowed if self.holds(self.arguments(case), partial)}

    def holds(self, row: Case, partial: Case) -> bool:
        for name, value in partial.items():
            held = row[name] if name in row else tuple(row[part] for part in name.split(","))
            if not same(held, value):
                return False
        return True

    def judge(self, rows: Sequence[Case], keep: Iterable[Case] = ()) -> Verdict:
        verdict = Verdict(len(self.owed))
        held = set()
        collected = set()
        for row in rows:
            positions = self.positions(row) if set(row) == {name for names in self.names for name in names} else None
            if positions is None:
                verdict.foreign.append(row)
                continue
            collected |= {(axis, position) for axis, here in enumerate(positions) for position in here}
            case = tuple(self.kinds[axis][here[0]] for axis, here in enumerate(positions))
            if case not in self.allowed:
                verdict.disallowed.append(row)
                continue
            held |= {(group, tuple(case[a] for a in group)) for group in self.groups}
        verdict.missing = sorted(self.owed - held)
        verdict.dropped = [partial for partial in keep if not any(self.holds(row, partial) for row in rows)]
        possible = {(axis, number) for case in self.allowed for axis, number in enumerate(case)}
        verdict.never = [
            (",".join(self.names[axis]), position)
            for axis, kinds in enumerate(self.kinds)
            for position, kind in enumerate(kinds)
            if (axis, kind) in possible and (axis, position) not in collected
        ]
        return verdict

    def left_out(self, rows: Sequence[Case]) -> Iterator[dict[str, Any]]:
        """The owed tuples that no row holds, as arguments."""
        for group, numbers in self.judge(rows).missing:
            found = {}
            for axis, number in zip(group, numbers, strict=True):
                found |= dict(zip(self.names[axis], self.entries[axis][self.different[axis][number]], strict=True))
            yield found


def _kinds(entries: Sequence[tuple[Any, ...]]) -> list[int]:
    """For each position the number of its value, in order of first appearance."""
    firsts: list[tuple[Any, ...]] = []
    kinds = []
    for entry in entries:
        for number, first in enumerate(firsts):
            if len(first) == len(entry) and all(map(same, first, entry)):
                kinds.append(number)
                break
        else:
            kinds.append(len(firsts))
            firsts.append(entry)
    return kinds


def same(one: Any, other: Any) -> bool:
    """One value in the sense of the documentation: the object itself, or a builtin that reads the same."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (bool, int, float, complex, str, bytes)):
        return type(one) in (bool, int, float, complex, str, bytes) and repr(one) == repr(other)
    if type(one) in (tuple, list):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is dict:
        return len(one) == len(other) and all(map(same, one.items(), other.items()))
    return False


def groups_missing(levels: Sequence[int], rows: Sequence[Sequence[int]], strength: int) -> int:
    """How many value tuples rows of levels leave out, where every case is allowed (also for large models)."""
    columns = list(zip(*rows, strict=True))
    missing = 0
    for group in combinations(range(len(levels)), strength):
        owed = 1
        for axis in group:
            owed *= levels[axis]
        missing += owed - len(set(zip(*[columns[axis] for axis in group], strict=True)))
    return missing
