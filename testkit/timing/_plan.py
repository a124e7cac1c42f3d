"""Which shard runs which test: a division that depends on ids, seconds and parameters, and on nothing else.

The model: a shard takes its fixed seconds, the seconds of its tests, and the set-up of each module that it touches.
Modules stay whole where that costs nothing; large ones are cut into contiguous runs in the order of their ids.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, NamedTuple, TypeGuard

from testkit._text import counted
from testkit.errors import TimingError
from testkit.timing import _pack as packing
from testkit.timing._run import digest_of
from testkit.timing._say import shown

VERSION = 1
"""Of the text of a plan and of the way of planning: the same version makes the same plan."""
MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """Every test in exactly one shard."""

    shards: list[list[str]]
    """Ids, in the order in which the tests were given."""
    seconds: list[float]
    """How long each shard should take, its fixed seconds and set-ups included."""
    bound: float
    """Seconds that the longest shard of no plan can go below."""
    ids_digest: str
    """Of all ids, whatever their order; a shard compares it with what it collected."""
    durations_digest: str
    """Of what is known of each test: module, microseconds, set-up, memory, unit."""
    fixed: float
    memory: float | None
    notes: tuple[str, ...] = ()
    """What a reader should know: empty shards, equal estimates, a test that is as long as a shard."""

    @property
    def digest(self) -> str:
        """Of the division itself, whatever the order of the ids."""
        return _digest([VERSION, [sorted(shard) for shard in self.shards]])

    def to_json(self, beside: Mapping[str, Any] | None = None) -> str:
        """The same text for the same plan; ``from_json`` reads it, and leaves what is kept ``beside`` to others."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return json.dumps({"testkit_plan": VERSION, **parts, **(beside or {})}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "") -> Plan:
        """Raise TimingError unless ``text`` is a whole plan of this version whose ids fit its digest."""
        fix = "make the plan again: testkit timing plan"
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TimingError(f"a plan that is no JSON: {error}", where, fix) from None
        version = data.get("testkit_plan") if isinstance(data, dict) else None
        if version != VERSION:
            raise TimingError(f"not a plan of version {VERSION}: testkit_plan is {version!r}", where, fix)
        try:
            parts = {part.name: data[part.name] for part in fields(cls)}
        except KeyError as error:
            raise TimingError(f"a plan that lacks a part: {error}", where, fix) from None
        for name, fits in _SHAPES.items():
            if not fits(parts[name]):
                told = repr(parts[name])[:60]
                raise TimingError(f"a plan that has something else as its {name}: {told}", where, fix)
        plan = cls(**parts | {"notes": tuple(parts["notes"])})
        ids = [test for shard in plan.shards for test in shard]
        if len(set(ids)) < len(ids):
            twice = Counter(ids).most_common(1)[0][0]
            raise TimingError(f"a plan that has an id twice: {shown(twice)}", where, fix)
        if digest_of(ids) != plan.ids_digest or len(plan.seconds) != len(plan.shards):
            raise TimingError("a plan whose ids do not fit its own digest: it was edited or cut", where, fix)
        return plan


def plan(tests: Iterable[Mapping[str, Any]], shards: int, *, fixed: float = 0.0, memory: float | None = None) -> Plan:
    """Divide ``tests`` among ``shards`` so that the longest shard is short.

    A test is a mapping: ``id``, ``module``, ``seconds``; and, if known, ``setup`` (seconds that its module's set-up
    costs each shard that touches the module; the largest of a module counts), ``memory`` (what it needs, in the unit of
    the argument) and ``unit`` (tests of one unit stay on one shard, also across modules). ``fixed`` is what a shard
    costs before its first test. A test counts as one microsecond at least, so that tests without seconds are spread
    by number. With at least as many units and single tests as shards, no shard is empty.

    ``memory`` is what one shard has. A test that needs more is refused by name. Tests that need more than half of it
    cannot run beside each other: no shard gets more than its share of them (ceil of their number / ``shards``; with
    units about that), however short they are. They leave their module for that, and may cost it a set-up more.

    TimingError: no test, an id twice, values that are no seconds, a limit that no test says anything about.
    """
    if type(shards) is not int or shards < 1:
        raise TimingError(f"{shards!r} is no number of shards", "plan(shards=...)", "give a whole number from 1")
    model = _Model(tests, fixed, memory)
    return model.plan(packing.pack(model.rows, model.setups, shards))


def shards_for(
    tests: Iterable[Mapping[str, Any]], target_seconds: float, *, fixed: float = 0.0, memory: float | None = None
) -> int:
    """The least number of shards whose plan has no shard longer than ``target_seconds``.

    TimingError when one test or unit alone, with its set-up and the fixed seconds, takes longer: no number would do.
    """
    where = "shards_for(target_seconds=...)"
    target = _micro(target_seconds, "target_seconds", where)
    model = _Model(tests, fixed, memory)
    room = target - model.overhead
    name, cost = model.longest()
    if cost > room:
        alone = (cost + model.overhead) / MICRO
        problem = f"{name} alone takes {alone:.1f} s with all set-up, the target is {target_seconds:.1f} s"
        raise TimingError(problem, where, "raise the target, or split that test")
    low, high = 1, model.pieces
    while low < high:  # the bound falls as shards are added; plans need not, so from there one by one
        middle = (low + high) // 2
        if packing.bound(model.rows, model.setups, middle) <= room:
            high = middle
        else:
            low = middle + 1
    while max(map(model.cost, packing.pack(model.rows, model.setups, low))) > target:
        low += 1
    return low


def _digest(value: object) -> str:
    # JSON escapes what no encoding could write: an id may hold a lone surrogate.
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


class _Test(NamedTuple):
    """A test as it is planned: whole microseconds."""

    id: str
    module: str
    seconds: int
    setup: int
    memory: float | None
    unit: str | None


class _Model:
    """The tests as rows of pieces, in an order that their ids alone decide.

    A piece is a test or a unit. A module's pieces are a row; a piece of several modules, or one that should be apart
    because of its memory, is a row of its own.
    """

    def __init__(self, tests: Iterable[Mapping[str, Any]], fixed: float, memory: float | None) -> None:
        self.fixed, self.memory = fixed, memory
        self.overhead = _micro(fixed, "fixed", "plan(fixed=...)")
        checked = [_checked(number, test) for number, test in enumerate(tests)]
        self.ids = [test.id for test in checked]
        self._refuse(checked)
        self.known = {test.id: test for test in sorted(checked, key=lambda test: test.id)}
        self.setups: dict[str, int] = {}
        units: dict[tuple[str, str], list[_Test]] = {}
        for test in self.known.values():
            self.setups[test.module] = max(self.setups.get(test.module, 0), test.setup)
            units.setdefault(("test", test.id) if test.unit is None else ("unit", test.unit), []).append(test)
        self.pieces = len(units)
        self.rows: list[packing.Row] = []
        self._parts: list[list[list[_Test]]] = []
        modules: dict[str, list[list[_Test]]] = {}
        for piece in units.values():
            touched = tuple(sorted({test.module for test in piece}))
            apart = 0 if memory is None else sum(2 * (test.memory or 0) > memory for test in piece)
            if apart or len(touched) > 1:
                self._add(touched, [piece], apart)
            else:
                modules.setdefault(touched[0], []).append(piece)
        for module, pieces in modules.items():
            self._add((module,), pieces, 0)

    def _add(self, modules: tuple[str, ...], pieces: list[list[_Test]], apart: int) -> None:
        sums = list(accumulate(map(_length, pieces), initial=0))
        self.rows.append(packing.Row(modules, sum(self.setups[module] for module in modules), sums, apart))
        self._parts.append(pieces)

    def _refuse(self, tests: Sequence[_Test]) -> None:
        """No tests, an id twice, or a limit that cannot be kept."""
        if not tests:
            raise TimingError("no test to plan", "plan(tests=...)", "give at least one test")
        if len(set(self.ids)) < len(tests):
            twice = [name for name, times in Counter(self.ids).items() if times > 1]
            more = f" (and {len(twice) - 1} more)" if len(twice) > 1 else ""
            raise TimingError(f"an id twice: {twice[0]}{more}", "plan(tests=...)", "give each test an id of its own")
        if self.memory is None:
            return
        where = "plan(memory=...)"
        if not _is_amount(self.memory) or not self.memory:
            raise TimingError(f"{self.memory!r} is no memory limit", where, "give a number above 0, or None")
        if all(test.memory is None for test in tests):
            raise TimingError("a memory limit, but no test says what it needs", where, "record memory, or plan without")
        large = [test for test in tests if (test.memory or 0) > self.memory]
        if large:
            more = f" (and {len(large) - 1} more)" if len(large) > 1 else ""
            problem = f"{large[0].id}{more} needs {large[0].memory}, a shard has {self.memory}"
            raise TimingError(problem, where, "give such tests a larger machine, and plan the others")

    def tests(self, runs: Iterable[packing.Run]) -> list[_Test]:
        return [test for run in runs for piece in self._parts[run.row][run.first : run.end] for test in piece]

    def cost(self, runs: Iterable[packing.Run]) -> int:
        """Microseconds of a shard with these runs."""
        tests = self.tests(runs)
        return _length(tests) + sum(self.setups[module] for module in {test.module for test in tests}) + self.overhead

    def longest(self) -> tuple[str, int]:
        """The piece that takes longest with its set-ups, by its first id, and its microseconds."""
        cost, number = max((packing.longest(row), -number) for number, row in enumerate(self.rows))
        return max(self._parts[-number], key=_length)[0].id, cost

    def plan(self, divided: Sequence[Sequence[packing.Run]]) -> Plan:
        names = [[test.id for test in self.tests(runs)] for runs in divided]
        # In the order of their first ids, the empty ones last: packing knows no first shard.
        order = sorted(range(len(names)), key=lambda n: (not names[n], min(names[n], default=""), n))
        home = {name: place for place, number in enumerate(order) for name in names[number]}
        shards: list[list[str]] = [[] for _ in names]
        for name in self.ids:
            shards[home[name]].append(name)
        return Plan(
            shards=shards,
            seconds=[self.cost(divided[number]) / MICRO for number in order],
            bound=(packing.bound(self.rows, self.setups, len(names)) + self.overhead) / MICRO,
            ids_digest=digest_of(self.ids),
            durations_digest=_digest([VERSION, list(self.known.values())]),
            fixed=self.fixed,
            memory=self.memory,
            notes=tuple(self._notes(shards)),
        )

    def _notes(self, shards: Sequence[Sequence[str]]) -> Iterator[str]:
        empty = sum(not shard for shard in shards)
        if empty:
            there = counted(self.pieces, "test or unit", "tests and units")
            yield f"{empty} of {counted(len(shards), 'shard')} empty by plan: there are {there}"
        if len(self.ids) > 2 and len({test.seconds for test in self.known.values()}) == 1:
            yield f"all {len(self.ids):,} tests have the same estimate: placeholders, or no data"
        name, cost = self.longest()
        even = (_length(self.known.values()) + sum(self.setups.values())) / len(shards)
        if len(shards) > 1 and cost >= even:
            yield (
                f"{name} alone takes {cost / MICRO:.1f} s, an even share of all is {even / MICRO:.1f} s: "
                "more shards would not help"
            )


def _length(tests: Iterable[_Test]) -> int:
    return sum([test.seconds for test in tests])


def _checked(number: int, test: Mapping[str, Any]) -> _Test:
    """One test with whole microseconds, or TimingError with its name."""
    where = f"test {number} of plan(tests=...)"
    for key in ("id", "module"):
        if not isinstance(test.get(key), str):
            raise TimingError(f"{key} is {test.get(key)!r}", where, f"give each test a text as {key}")
    name, memory, unit = test["id"], test.get("memory"), test.get("unit")
    if memory is not None and not _is_amount(memory):
        raise TimingError(f"memory is {memory!r} for {name}", where, "give a finite number from 0, or leave it out")
    if unit is not None and not isinstance(unit, str):
        raise TimingError(f"unit is {unit!r} for {name}", where, "give a text, or leave it out")
    seconds = max(1, _micro(test.get("seconds"), f"seconds of {name}", where))
    setup = 0 if test.get("setup") is None else _micro(test["setup"], f"setup of {name}", where)
    return _Test(name, test["module"], seconds, setup, memory, unit)


def _is_amount(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def _micro(value: Any, what: str, where: str) -> int:
    if not _is_amount(value):
        raise TimingError(f"{what}: {value!r} is no time", where, "give a finite number of seconds from 0")
    return round(value * MICRO)


def _is_list(value: object, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_SHAPES: dict[str, Callable[[Any], bool]] = {
    "shards": lambda shards: bool(shards) and _is_list(shards, lambda shard: _is_list(shard, _is_text)),
    "seconds": lambda seconds: _is_list(seconds, _is_amount),
    "bound": _is_amount,
    "ids_digest": _is_text,
    "durations_digest": _is_text,
    "fixed": _is_amount,
    "memory": lambda memory: memory is None or _is_amount(memory),
    "notes": lambda notes: _is_list(notes, _is_text),
}
"""What each part of a plan's text must be."""
