"""One thinned product: the axes, the cases chosen, and what they owe. Arguments are checked here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import comb, prod
from os import PathLike, path
from pathlib import Path
from typing import Any

from testkit._text import counted
from testkit.errors import PairwiseError
from testkit.pairwise._axes import Axis, find_axis, holding, unknown_name
from testkit.pairwise._cheaper import cheapest
from testkit.pairwise._costs import CaseCosts
from testkit.pairwise._engine import Effort, Engine, cover
from testkit.pairwise._history import Lessons
from testkit.pairwise._ids import shown
from testkit.pairwise._lockfile import Locked
from testkit.pairwise._model import Model, Row
from testkit.pairwise._predicates import Predicate, listed, make_rule, predicate_name
from testkit.pairwise._regrow import regrown
from testkit.pairwise._space import Rule, Space, TableComponent
from testkit.pairwise._spread import Run

LARGEST = 1_000_000
"""A group of axes with more value tuples, or more groups of axes, is refused rather than never finished."""

Positions = tuple[int, ...]
"""A case: for each axis the position of its value."""

Known = dict[tuple[object, ...], list[Row]]
"""Rows that were found before, by what they depend on."""

Case = Mapping[str, object]
"""A complete or partial case, by argument name (or by axis name, with a tuple)."""


@dataclass(frozen=True)
class Plan:
    """The chosen ``rows`` of a product in product order, as positions; ``notes`` are things to tell the user.

    ``seconds``: how long the rows are expected to take; None without recorded durations. With ``lessons``, those of
    allowed cases, ``planned`` says how many owed tuples are held by cases that are expected to run, and ``kept`` how
    many cases are in because they failed.
    """

    axes: tuple[Axis, ...]
    model: Model
    rows: tuple[Positions, ...]
    notes: tuple[str, ...]
    seconds: float | None = None
    lessons: Lessons | None = None
    planned: int | None = None
    kept: int = 0

    @property
    def total(self) -> int:
        """Cases of the full product."""
        return prod(len(axis.values) for axis in self.axes)

    @property
    def owed(self) -> int:
        """Tuples that some allowed case holds, each to be held by a chosen one."""
        return self.model.owed

    @property
    def floor(self) -> int:
        """No list with this coverage has fewer cases."""
        return self.model.floor

    def refused_values(self) -> list[str]:
        """Values that the predicates refuse whatever stands beside them, as things to tell."""
        space = self.model.space
        found = []
        for number, axis in enumerate(self.axes):
            allowed = set(space.values(space.start, number))
            refused = [shown(axis.values[at]) for level, at in enumerate(axis.first_positions) if level not in allowed]
            if refused:
                found.append(f"axis {axis.name!r}: no allowed case holds {', '.join(refused)}")
        return found


def level_of_position(axis: Axis) -> list[int]:
    """For each position of an axis the number of its value (a repeated value has one number)."""
    number = {first: level for level, first in enumerate(axis.first_positions)}
    return [number[first] for first in axis.first_position_of]


def plan_cases(
    axes: Sequence[Axis],
    *,
    strength: int = 2,
    full: str | Iterable[str] = (),
    where: Predicate | Iterable[Predicate] | None = None,
    keep: Case | Iterable[Case] = (),
    seed: int = 0,
    effort: Effort = "default",
    engine: Engine = "testkit",
    idle: Sequence[Collection[int]] = (),
    known: Known | None = None,
    locked: Locked | None = None,
    costs: CaseCosts | None = None,
    lessons: Lessons | None = None,
    store: str | PathLike[str] | None = None,
) -> Plan:
    """Choose cases so that every owed tuple is held by one; see ``sample`` for the arguments.

    ``idle`` holds for each axis the positions that a skip mark keeps from running: every owed tuple without one is
    held by a case without one. ``known`` keeps the rows of models without predicates and kept cases, for the next.
    ``locked`` cases of an earlier run stay as far as they can. Among rows that cover equally ``costs`` chooses.
    By ``lessons`` cases that failed are kept, and cases that skip come last, like idle ones; and any seed but 0 chooses
    combinations that nobody owes and that recent runs lacked, where they cost nothing.
    ``store`` is a folder that keeps rows from one process to the next.
    """
    _check_search(seed, effort, engine)
    model = make_model(axes, strength=strength, full=full, where=where, keep=keep)
    lessons = lessons.within(model.space) if lessons else None
    failed = lessons.kept_in(model.space) if lessons else []
    model = replace(model, kept=(*model.kept, *failed))
    skips = lessons.rule if lessons else None
    running = _running(model, axes, idle, skips)
    if skips and running is None:
        skips, running = None, _running(model, axes, idle, None)
    seen = lessons.seen if lessons and seed else None
    choose = _chooser(seed, effort, engine, locked, costs, _folder(store), seen)
    if running is not None:
        model = model.keeping(choose(running))
    if known is None or model.space.rules or model.kept or locked or costs or lessons:
        rows = choose(model)
    else:
        key = (model.levels, strength, model.crossed, seed, effort, engine)
        rows = known[key] = known.get(key) or choose(model)
    notes = [
        f"axis {axis.name!r} repeats {shown(axis.values[position])} (position {axis.first_position_of[position]}"
        f" and {position}): owed once, still collected"
        for axis in axes
        for position in axis.repeated
    ]
    notes += locked.notes if locked else ()
    if lessons and lessons.skipping and not skips:
        notes.append("none of the cases that skipped is left for last: too few others, or too many, are allowed")
    seconds = costs.expected_seconds(rows) if costs and costs.known else None
    chosen = tuple(sorted(_positions(axes, rows, idle)))
    planned = None if lessons is None else (running or model).owed
    return Plan(tuple(axes), model, chosen, tuple(notes), seconds, lessons, planned, len(failed))


def _chooser(
    seed: int,
    effort: Effort,
    engine: Engine,
    locked: Locked | None,
    costs: CaseCosts | None,
    store: Path | None,
    seen: Sequence[Run] | None,
) -> Callable[[Model], list[Row]]:
    """From a model to proved rows: the old ones that may stay, and then the cheaper of equal choices."""

    def fresh(model: Model) -> list[Row]:
        return cover(model, seed=seed, effort=effort, engine=engine, store=store, seen=None if locked else seen)

    def choose(model: Model) -> list[Row]:
        return regrown(model, locked, fresh) if locked and locked.cases else fresh(model)

    old = locked.cases if locked else ()
    return choose if costs is None else partial(cheapest, costs=costs, choose=choose, fixed=old, seed=seed)


def _running(model: Model, axes: Sequence[Axis], idle: Sequence[Collection[int]], skips: Rule | None) -> Model | None:
    """The model without what does not run: values that no case can run with, and cases that ``skips`` refuses.

    None if there is none such, or nothing else; or if the cases that run would be too many to be listed, as a search
    among them may give up where the model as it is has an answer.
    """
    rules = [skips] if skips else []
    for number, positions in enumerate(idle):
        levels = level_of_position(axes[number])
        running = {levels[position] for position in range(len(levels)) if position not in positions}
        if len(running) < model.levels[number]:
            table = frozenset((level,) for level in running)
            rules.append(Rule("skip marks", (number,), table.__contains__, table))
    space = Space(model.levels, (*model.space.rules, *rules)) if rules else model.space
    if space is model.space or not space.satisfiable:
        return None
    if skips and not all(isinstance(component, TableComponent) for component in space.components):
        return None
    kept = tuple(case for case in model.kept if space.states(case) is not None)
    return Model(space, model.strength, model.crossed, kept)


def make_model(
    axes: Sequence[Axis],
    *,
    strength: int,
    full: str | Iterable[str],
    where: Predicate | Iterable[Predicate] | None,
    keep: Case | Iterable[Case] = (),
) -> Model:
    """The covering problem over levels, with its arguments checked."""
    check_strength(strength)
    if strength > len(axes):
        names = ", ".join(axis.name for axis in axes)
        raise PairwiseError(
            f"strength {strength} exceeds the {counted(len(axes), 'axis', 'axes')} {names}",
            fix=f"use 1 to {len(axes)}",
        )
    levels = [len(axis.first_positions) for axis in axes]
    rules = []
    for predicate in listed(where):
        rule = make_rule(predicate, axes)
        if rule is False:
            raise PairwiseError(
                f"predicate {predicate_name(predicate)} takes none of the axes and is false",
                fix="let it name the arguments that it looks at",
            )
        if isinstance(rule, Rule):
            rules.append(rule)
    space = Space(levels, rules)
    if not space.satisfiable:
        raise _unsatisfiable(levels, rules)
    crossed = tuple(sorted({axis for name in _names(full, axes) for axis in [_crossed(name, axes)]}))
    _check_size(levels, strength, crossed)
    if not isinstance(keep, Iterable):
        raise PairwiseError(f"keep is {keep!r}, not cases", fix='write cases as {"name": value}, or leave keep out')
    kept = [_kept(case, axes, space) for case in ([keep] if isinstance(keep, Mapping) else keep)]
    return Model(space, strength, crossed, tuple(case for case in kept if case))


def check_strength(strength: object) -> None:
    """Refuse what is no strength at all, however many axes there are."""
    if callable(strength):
        raise PairwiseError(f"strength is {strength!r}", fix="did you mean where=? Predicates go by that name")
    if not isinstance(strength, int) or isinstance(strength, bool) or strength < 1:
        raise PairwiseError(f"strength is {strength!r}, not a whole number from 1 up", fix="use 2 for pairs")


def _check_search(seed: int, effort: Effort, engine: Engine) -> None:
    if not _whole(seed) or seed < 0:
        raise PairwiseError(f"seed is {seed!r}, not a whole number from 0 up", fix="use 0, or another number")
    known = effort in ("default", "high") if isinstance(effort, str) else _whole(effort) and effort >= 0
    if not known:
        raise PairwiseError(
            f"effort is {effort!r}", fix='use "default", "high" or a number of moves (0: no search for fewer rows)'
        )
    if not isinstance(engine, str) or engine not in ("testkit", "allpairspy"):
        raise PairwiseError(f"engine is {engine!r}", fix='use "testkit" or "allpairspy"')


def _folder(store: object) -> Path | None:
    if store is None:
        return None
    if not isinstance(store, (str, PathLike)) or not store or (path.exists(store) and not path.isdir(store)):
        raise PairwiseError(f"store is {store!r}, not a folder", fix="give a folder that rows may be kept in")
    return Path(store)


def _check_size(levels: Sequence[int], strength: int, crossed: Sequence[int]) -> None:
    """Refuse what would not end: every chosen list holds all tuples of its largest group, and each group is checked."""
    tuples = prod(sorted(levels)[-strength:])
    if tuples > LARGEST:
        raise PairwiseError(
            f"strength {strength} owes {tuples:,} tuples of the {strength} largest axes alone, more than {LARGEST:,}",
            fix="use a lower strength",
        )
    together = prod(levels[axis] for axis in crossed)
    if together > LARGEST:
        raise PairwiseError(f"full crosses {together:,} combinations, more than {LARGEST:,}", fix="cross fewer axes")
    groups = comb(len(levels), strength)
    if groups > LARGEST:
        raise PairwiseError(
            f"strength {strength} makes {groups:,} groups of the {len(levels)} axes, more than {LARGEST:,}",
            fix="use a lower strength",
        )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _names(full: str | Iterable[str], axes: Sequence[Axis]) -> list[str]:
    if isinstance(full, str):
        return [full] if find_axis(full, axes) is not None else full.split(",")
    if not isinstance(full, Iterable):
        raise PairwiseError(f"full is {full!r}, not names", fix='write full as ("n", "k"), or leave it out')
    return list(full)


def _crossed(name: str, axes: Sequence[Axis]) -> int:
    number = find_axis(name, axes) if isinstance(name, str) else None
    if number is None:
        raise unknown_name("full", str(name), axes)
    return number


def _kept(case: Case, axes: Sequence[Axis], space: Space) -> dict[int, int]:
    """A kept case as axis -> level; where entries of one axis fit several of its values, the first allowed ones."""
    if not isinstance(case, Mapping):
        raise PairwiseError(f"keep holds {case!r}, not a case", fix='write cases as {"name": value}')
    wanted: dict[int, list[tuple[str, Any]]] = {}
    for name, value in case.items():
        number = find_axis(name, axes) if isinstance(name, str) else None
        if number is None:
            raise unknown_name("keep", str(name), axes)
        wanted.setdefault(number, []).append((name, value))
    fitting: dict[int, list[int]] = {}
    for number, entries in wanted.items():
        axis = axes[number]
        fitting[number] = [axis.first_positions.index(position) for position in holding(axis, entries)]
        if not fitting[number]:
            asked = ", ".join(f"{name}={shown(value)}" for name, value in entries)
            raise PairwiseError(
                f"keep asks for {asked}, which axis {axis.name!r} does not hold",
                fix="use the value as it stands in the axis (same object, or equal and of the same type)",
            )
    kept = _allowed_choice(fitting, {}, space)
    if kept is None:
        raise PairwiseError(
            f"keep asks for {dict(case)!r}, which no allowed case holds", fix="change it or the predicates"
        )
    return kept


def _allowed_choice(fitting: Mapping[int, list[int]], chosen: dict[int, int], space: Space) -> dict[int, int] | None:
    """``chosen`` and one of the fitting levels of each axis after it, so that some allowed case holds all."""
    if space.states(chosen) is None:
        return None
    if len(chosen) == len(fitting):
        return chosen
    number = list(fitting)[len(chosen)]
    for level in fitting[number]:
        found = _allowed_choice(fitting, {**chosen, number: level}, space)
        if found is not None:
            return found
    return None


def _unsatisfiable(levels: Sequence[int], rules: Sequence[Rule]) -> PairwiseError:
    """The refusal that names a smallest set of predicates which no case satisfies together."""
    sets = (chosen for size in range(1, len(rules)) for chosen in combinations(rules, size))
    smallest = list(rules)
    for tried, chosen in enumerate(sets):
        if tried == 2_000:
            smallest = _irreducible(levels, rules)
            break
        if not Space(levels, chosen).satisfiable:
            smallest = list(chosen)
            break
    names = " and ".join(rule.name for rule in smallest)
    verb = "allows no case" if len(smallest) == 1 else "allow no case together"
    return PairwiseError(f"{names} {verb}", fix="loosen one of them, or remove the test")


def _irreducible(levels: Sequence[int], rules: Sequence[Rule]) -> list[Rule]:
    """A conflicting set of which no member can go (found by leaving out one at a time)."""
    needed = list(rules)
    for rule in rules:
        fewer = [other for other in needed if other is not rule]
        if not Space(levels, fewer).satisfiable:
            needed = fewer
    return needed


def _positions(axes: Sequence[Axis], rows: Sequence[Sequence[int]], idle: Sequence[Collection[int]]) -> set[Positions]:
    """Rows of levels as rows of positions, so that each position of a repeated value is collected.

    Positions that can run come first; one that no row is left for gets a row of its own.
    """
    if not any(axis.repeated for axis in axes):
        return set(map(tuple, rows))
    found = [[axis.first_positions[level] for axis, level in zip(axes, row, strict=True)] for row in rows]
    for number, axis in enumerate(axes):
        if not axis.repeated:
            continue
        never = idle[number] if idle else ()
        for first in axis.first_positions:
            same = [position for position, other in enumerate(axis.first_position_of) if other == first]
            running = [position for position in same if position not in never] or same
            holders = [row for row in found if row[number] == first]
            for turn, row in enumerate(holders):
                row[number] = running[turn % len(running)]
            if holders:
                one, used = holders[0], {row[number] for row in holders}
                found += [[*one[:number], other, *one[number + 1 :]] for other in same if other not in used]
    return {tuple(row) for row in found}
