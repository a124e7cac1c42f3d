"""A job matrix as GitHub Actions expands it: the product of its axes, ``exclude``, then ``include``.

Source of all rules: "Running variations of jobs in a workflow" in GitHub's documentation,
https://docs.github.com/en/actions/how-tos/write-workflows/choose-what-workflows-do/run-job-variations

- The first axis changes slowest.
- A combination goes if it matches an entry of ``exclude``; a partial match is enough.
- ``include`` is processed after ``exclude``, entry by entry: the pairs of an entry are added to each combination
  of which they overwrite no original value (added values may be overwritten), and if there is none, the entry is a
  combination of its own. Such a combination is not one of the original ones: later entries are never added to it.

Which values match is not in that page. It is what the runner's source does (``MatrixBuilder.cs`` in
actions/runner): each leaf of an entry is compared by ``==`` of GitHub's expressions, and names in any case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan, prod
from typing import Any

from testkit.errors import MatrixError
from testkit.matrix._values import Job, check_value, shown

__tracebackhide__ = True  # pytest shows the line that called us, not ours

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_RESERVED = ("include", "exclude")

LARGEST = 1_000_000
"""Combinations that are listed; thinning lists none."""


@dataclass(frozen=True)
class Matrix:
    """A checked job matrix: ``axes`` by name, entries of ``exclude`` and ``include``, and where it was read."""

    axes: dict[str, list[Any]]
    exclude: list[Job]
    include: list[Job]
    where: str


def make_matrix(raw: object, where: str) -> Matrix:
    """``raw`` as a matrix. Raises ``MatrixError`` where GitHub would refuse it, with what was read and expected."""
    if not isinstance(raw, Mapping):
        raise MatrixError(f"the matrix is {shown(raw)}", where, "write a mapping from axes to lists of values")
    check_value(raw, "matrix", where)
    axes: dict[str, list[Any]] = {}
    for name, values in raw.items():
        if name in _RESERVED:
            continue
        if not isinstance(values, list) or not values:
            raise MatrixError(f"axis {name!r} is {shown(values)}", where, "write a list of at least one value")
        twin = _named(axes, name)
        if twin is not None:
            raise MatrixError(f"axes {twin!r} and {name!r} differ in case only", where, "GitHub takes them for one")
        axes[name] = values
    include, exclude = (_entries(raw, name, where) for name in _RESERVED)
    for place, entry in enumerate(exclude):
        for name in entry:
            if _named(axes, name) is None:
                fix = f"name one of: {', '.join(axes)}" if axes else "remove exclude: there are no axes"
                raise MatrixError(f"exclude[{place}] names {name!r}, which is no axis", where, fix)
    if not axes and not include:
        raise MatrixError("the matrix has neither an axis nor an include entry", where, "write at least one")
    return Matrix(
        axes, [_by_axis(entry, axes) for entry in exclude], [_by_axis(entry, axes) for entry in include], where
    )


def _entries(raw: Mapping[str, Any], name: str, where: str) -> list[Job]:
    entries = raw.get(name, [])
    if not isinstance(entries, list):
        raise MatrixError(f"{name} is {shown(entries)}", where, "write a list of mappings")
    for place, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not entry:
            raise MatrixError(f"{name}[{place}] is {shown(entry)}", where, "write a mapping from names to values")
    return [dict(entry) for entry in entries]


def _named(mapping: Iterable[str], name: str) -> str | None:
    """The key of ``mapping`` that is ``name`` in any case."""
    return next((key for key in mapping if key.lower() == name.lower()), None)


def _by_axis(entry: Job, axes: Mapping[str, Any]) -> Job:
    """The entry with axes first and spelled as they are; a combination of its own has this order on GitHub too."""
    spelled = {_named(axes, name) or name: value for name, value in entry.items()}
    return {name: spelled[name] for name in sorted(spelled, key=lambda name: name not in axes)}


def expand(matrix: Matrix) -> list[Job]:
    """All jobs of the matrix, in GitHub's order. Raises ``MatrixError`` if there is none, or more than ``LARGEST``."""
    size = prod(len(values) for values in matrix.axes.values())
    if size > LARGEST:
        raise MatrixError(f"{size:,} combinations are too many to list", matrix.where, "shorten the axes, or thin them")
    jobs = finished(matrix, combinations(matrix))
    if not jobs:
        raise MatrixError("exclude leaves no job", matrix.where, "loosen it, or include one")
    return jobs


def combinations(matrix: Matrix) -> Iterator[Job]:
    """The product of the axes without what ``exclude`` takes away, one by one."""
    if matrix.axes:
        for values in product(*matrix.axes.values()):
            job = dict(zip(matrix.axes, values, strict=True))
            if not any(matches(entry, job) for entry in matrix.exclude):
                yield job


def finished(matrix: Matrix, original: Iterable[Job]) -> list[Job]:
    """The original combinations with what ``include`` adds to them, then its combinations of their own."""
    jobs = [(job, dict(job)) for job in original]
    own = []
    for entry in matrix.include:
        wanted = {name: value for name, value in entry.items() if name in matrix.axes}
        added = {name: value for name, value in entry.items() if name not in matrix.axes}
        met = [whole for job, whole in jobs if matches(wanted, job)]
        for whole in met:
            for name, value in added.items():
                whole[_named(whole, name) or name] = value
        if not met:
            own.append(dict(entry))
    return [whole for _, whole in jobs] + own


def matches(wanted: object, found: object) -> bool:
    """Does ``found`` hold each leaf of ``wanted``? What is not there is null."""
    if isinstance(wanted, Mapping):
        return all(matches(part, _part(found, name)) for name, part in wanted.items())
    if isinstance(wanted, list):
        return all(matches(part, _at(found, place)) for place, part in enumerate(wanted))
    return equal(found, wanted)


def _part(found: object, name: str) -> object:
    if not isinstance(found, Mapping):
        return None
    key = _named(found, name)
    return None if key is None else found[key]


def _at(found: object, place: int) -> object:
    return found[place] if isinstance(found, Sequence) and not isinstance(found, str) and place < len(found) else None


def equal(one: object, other: object) -> bool:
    """``==`` of GitHub's expressions: text in any case; values of two kinds as numbers, so that ``"3.1" == 3.1``.

    Source: "Evaluate expressions in workflows and actions", operators. Null is 0, true 1, false 0, empty text 0,
    other text the JSON number that it is, and all else no number, which equals nothing.
    """
    if isinstance(one, str) and isinstance(other, str):
        return one.lower() == other.lower()
    return _number(one) == _number(other)


def _number(value: object) -> float:
    if value is None or value == "":
        return 0.0
    if isinstance(value, (bool, int, float)):
        return float(value)
    text = value.strip() if isinstance(value, str) else ""
    return float(text) if _NUMBER.fullmatch(text) else nan
