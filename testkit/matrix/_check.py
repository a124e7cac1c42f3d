"""Which tuples of values the jobs of an existing matrix never bring together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from testkit._text import counted
from testkit.errors import MatrixError
from testkit.matrix._expand import Matrix, expand
from testkit.matrix._thin import Model, check_strength, tuple_noun
from testkit.matrix._values import Job, as_text

ROWS = 20


@dataclass(frozen=True)
class Checked:
    """What the ``jobs`` of a matrix hold: of the ``owed`` tuples of ``strength`` values the ``missing`` ones, by axis
    name; ``excluded`` tuples are owed by nobody; ``ignored`` keys of jobs were not taken for axes."""

    jobs: int
    owed: int
    strength: int
    missing: list[Job]
    excluded: int
    axes: list[str]
    ignored: list[str]

    def lines(self) -> list[str]:
        """The report."""
        noun = tuple_noun(self.strength)
        held = self.owed - len(self.missing)
        lines = [f"{counted(self.jobs, 'job')} of {', '.join(self.axes)} hold {held:,} of {counted(self.owed, noun)}"]
        if self.missing:
            lines[0] += f", {len(self.missing):,} missing:"
        for one in self.missing[:ROWS]:
            lines.append("  " + ", ".join(f"{axis}={as_text(value)}" for axis, value in one.items()))
        if len(self.missing) > ROWS:
            lines.append(f"  and {len(self.missing) - ROWS:,} more")
        if self.excluded:
            lines.append(f"note: {counted(self.excluded, noun)} not owed, because of exclude")
        if self.ignored:
            lines.append(f"note: not taken for axes: {', '.join(self.ignored)}")
        return lines


def check(matrix: Matrix, strength: int | None = None, against: Matrix | None = None) -> Checked:
    """The tuples that no job of ``matrix`` holds.

    Owed are the tuples of ``against``, a matrix with axes, that some combination allowed by its ``exclude`` holds.
    Without it those of the matrix itself: of its axes, with the values that entries of ``include`` bring for them;
    of an include list the keys that every job has and that repeat a value. Two values are one if a CI system shows
    them alike (``3.12`` and ``"3.12"``). Raises ``MatrixError`` where nothing could be verified.
    """
    from testkit.pairwise import coverage

    jobs = expand(matrix)
    ignored: list[str] = []
    owing = against
    if owing is None:
        owing, ignored = _own(matrix, jobs)
    if not owing.axes:
        problem = "there are no axes" if against else "there are no axes, and no key of the jobs repeats a value"
        raise MatrixError(problem, owing.where, "name a file that has them: --against=FILE")
    strength = check_strength(owing, strength)
    model = Model(owing)
    positions = model.positions()
    owed = coverage(positions, [], strength=strength, where=model.predicates())
    everything = coverage(positions, [], strength=strength)
    held = set(_held(jobs, list(owing.axes), strength))
    missing = [one for one in map(model.job, owed.missing) if _key(one) not in held]
    excluded = everything.owed - owed.owed
    return Checked(len(jobs), owed.owed, strength, missing, excluded, list(owing.axes), ignored)


def _own(matrix: Matrix, jobs: list[Job]) -> tuple[Matrix, list[str]]:
    """The matrix that a matrix's own jobs make, and the keys that are no axes of it."""
    axes = list(matrix.axes) or [name for name in jobs[0] if _repeats(name, jobs)]
    values = {
        axis: list({as_text(value): value for value in [*matrix.axes.get(axis, []), *_seen(axis, jobs)]}.values())
        for axis in axes
    }
    keys = dict.fromkeys(name for job in jobs for name in job)
    ignored = [] if matrix.axes else [name for name in keys if name not in axes]
    return Matrix(values, matrix.exclude, [], matrix.where), ignored


def _repeats(name: str, jobs: list[Job]) -> bool:
    """Has every job this key, and do two have the same value? A name that each job has for itself is no axis."""
    texts = [as_text(value) for value in _seen(name, jobs)]
    return len(texts) == len(jobs) and len({*texts}) < len(texts)


def _seen(name: str, jobs: list[Job]) -> list[object]:
    return [job[name] for job in jobs if name in job]


def _held(jobs: Iterable[Job], axes: list[str], strength: int) -> Iterable[frozenset[tuple[str, str]]]:
    for job in jobs:
        for names in combinations([axis for axis in axes if axis in job], strength):
            yield _key({name: job[name] for name in names})


def _key(values: Mapping[str, object]) -> frozenset[tuple[str, str]]:
    return frozenset((name, as_text(value)) for name, value in values.items())
