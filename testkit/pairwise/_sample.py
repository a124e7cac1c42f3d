"""The functions for people who have a table of their own: ``sample`` and ``coverage``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from testkit.errors import KitWarning, PairwiseError
from testkit.pairwise import _proof
from testkit.pairwise._axes import Axis, holding, identity, make_axes, unknown_name
from testkit.pairwise._engine import Effort, Engine
from testkit.pairwise._ids import shown
from testkit.pairwise._plan import Case, level_of_position, make_model, plan_cases
from testkit.pairwise._predicates import Predicate


@dataclass(frozen=True)
class Sample:
    """Chosen cases.

    ``rows``: one dict a case from single argument name to value, in product order, the very objects that were
    given; ``owed``: how many value tuples had to be covered, all of which are; ``floor``: a number of rows that
    no list with this coverage can go below.
    """

    rows: list[dict[str, Any]]
    owed: int
    floor: int


@dataclass(frozen=True)
class Coverage:
    """What a list of cases covers: tuples ``owed`` and ``covered``, and the ``missing`` ones by argument name."""

    owed: int
    covered: int
    missing: list[dict[str, Any]]

    @property
    def percent(self) -> float:
        """Share of the owed tuples that are covered, 0.0 to 100.0; 100.0 only when none is missing."""
        return 100.0 if self.covered == self.owed else min(99.99, 100.0 * self.covered / self.owed)


def sample(
    axes: Mapping[str, Iterable[Any]],
    *,
    strength: int = 2,
    full: str | Iterable[str] = (),
    where: Predicate | Iterable[Predicate] | None = None,
    keep: Case | Iterable[Case] = (),
    seed: int = 0,
    effort: Effort = "default",
    engine: Engine = "testkit",
    store: str | PathLike[str] | None = None,
) -> Sample:
    """Cases of a product of axes that together hold every ``strength``-tuple of values (a covering array).

    ``axes``: from a name as in ``parametrize``, ``"n"`` or ``"n,k,m"``, to its values (any objects).
    ``strength``: t >= 1; 2 covers all pairs. ``full``: axes or argument names that stay fully crossed with each
    other. ``where``: predicates over arguments by name; a case is allowed if all are true, and a tuple that no
    allowed case holds is not owed. ``keep``: complete or partial cases that must be in. ``seed``: another,
    equally valid choice. ``effort``: ``"default"``, ``"high"`` or a number of moves spent on fewer rows.
    ``engine``: ``"testkit"`` or ``"allpairspy"`` (completed where it leaves tuples out). ``store``: a folder where
    rows are kept and looked for first, proved again; not those of allpairspy, nor of a model with a predicate that has
    more than 100,000 combinations of arguments.

    Every owed tuple is verified before the rows are returned. The same arguments give the same rows in every
    process. Raises ``testkit.errors.PairwiseError`` for arguments that cannot be used and for predicates that
    allow no case; warns with ``KitWarning`` of a value that stands twice in an axis.
    """
    plan = plan_cases(
        make_axes(axes),
        strength=strength,
        full=full,
        where=where,
        keep=keep,
        seed=seed,
        effort=effort,
        engine=engine,
        store=store,
    )
    for note in plan.notes:
        warnings.warn(f"pairwise: {note}", KitWarning, stacklevel=2)
    columns = {
        argname: [values[position] for position in positions]
        for axis, positions in zip(plan.axes, zip(*plan.rows, strict=True), strict=True)
        for argname in axis.argnames
        for values in [axis.column(argname)]
    }
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return Sample(rows, plan.owed, plan.floor)


def coverage(
    axes: Mapping[str, Iterable[Any]],
    rows: Iterable[Mapping[str, Any]],
    *,
    strength: int = 2,
    full: str | Iterable[str] = (),
    where: Predicate | Iterable[Predicate] | None = None,
) -> Coverage:
    """Which owed tuples the given complete cases hold; arguments as for ``sample``.

    Each row is a case by single argument name; values are matched by identity, then by equality of the same
    type. A row that the predicates refuse covers nothing. Raises ``PairwiseError`` for a row that names an
    unknown argument, lacks one, or holds a value that its axis does not have.
    """
    made = make_axes(axes)
    model = make_model(made, strength=strength, full=full, where=where)
    numbers = [level_of_position(axis) for axis in made]
    known = [_by_identity(axis) for axis in made]
    levels = [
        [number[_position(axis, places, row, place)] for axis, number, places in zip(made, numbers, known, strict=True)]
        for place, row in enumerate(_checked(made, rows))
    ]
    missing = []
    for group, tuple_ in _proof.missing(model, levels):
        arguments: dict[str, Any] = {}
        for axis, level in zip(group, tuple_, strict=True):
            arguments |= made[axis].arguments(made[axis].first_positions[level])
        missing.append(arguments)
    return Coverage(model.owed, model.owed - len(missing), missing)


def _checked(axes: Sequence[Axis], rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    argnames = {argname for axis in axes for argname in axis.argnames}
    if not isinstance(rows, Iterable):
        raise PairwiseError(f"rows is {rows!r}, not cases", fix='write cases as {"name": value}')
    checked = [rows] if isinstance(rows, Mapping) else list(rows)
    for place, row in enumerate(checked):
        if not isinstance(row, Mapping):
            raise PairwiseError(f"row {place} is {row!r}, not a case", fix='write cases as {"name": value}')
        for name in row:
            if name not in argnames:
                raise unknown_name(f"row {place}", str(name), axes)
        lacking = sorted(argnames - set(row))
        if lacking:
            raise PairwiseError(f"row {place} lacks {', '.join(lacking)}", fix="give complete cases")
    return checked


def _by_identity(axis: Axis) -> dict[tuple[object, ...], int]:
    """For each different value, as the identities of its arguments, the position where it stands first."""
    return {tuple(map(identity, axis.arguments(position).values())): position for position in axis.first_positions}


def _position(axis: Axis, known: Mapping[tuple[object, ...], int], row: Mapping[str, Any], place: int) -> int:
    position = known.get(tuple([identity(row[argname]) for argname in axis.argnames]))
    if position is not None:
        return position
    for position in holding(axis, [(argname, row[argname]) for argname in axis.argnames]):
        return position
    given = ", ".join(f"{argname}={shown(row[argname])}" for argname in axis.argnames)
    raise PairwiseError(f"row {place} has {given}, which axis {axis.name!r} does not hold", fix="use its values")
