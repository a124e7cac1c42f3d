"""Prove from the shards' run files that every collected test ran, and none twice.

Each shard recorded the digest of all that it collected, the ids it was to run, and what ran. The proof: all shards
collected the same (one digest), their selected ids together have that very digest, and each of them ran once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from testkit._text import counted
from testkit.errors import TimingError
from testkit.timing._merge import Inventory, inventory
from testkit.timing._run import Run, Whole, digest_of
from testkit.timing._say import shown

SHOWN = 10
"""More ids or files of a kind are counted, not listed."""


@dataclass(slots=True)
class Verified:
    """The outcome of ``verify``; ``ok`` only if every collected test ran exactly once.

    ``not_run``: a shard was to run these and did not (ids, with the shard). ``unlisted``: no shard was to run these;
    number by file, since digests do not hold names, and ids in ``unlisted_ids`` if ``verify`` was told them.
    ``doubled``: in several shards, or run twice in one. ``strange``: run by a shard that was not to.
    """

    run: str
    shards: int
    collected: int
    ran: int
    missing: list[str] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    unlisted: dict[str, int] = field(default_factory=dict)
    unlisted_ids: list[str] = field(default_factory=list)
    doubled: dict[str, str] = field(default_factory=dict)
    strange: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.missing or self.not_run or self.unlisted or self.doubled or self.strange)

    def lines(self) -> list[str]:
        """The verdict, and each finding with at most ``SHOWN`` names."""
        of = f" in {counted(self.shards, 'shard')}" if self.shards > 1 else ""
        verdict = "every test ran exactly once" if self.ok else "NOT every test ran exactly once"
        found = [f"{verdict}: run {self.run}, {counted(self.collected, 'test')} collected{of}, {self.ran:,} ran"]
        found += [f"  {text}" for text in self.missing]
        found += _listed("was to run and did not", self.not_run)
        if self.unlisted_ids:
            found += _listed("in no shard", dict.fromkeys(self.unlisted_ids, ""))
        else:
            found += _listed("in no shard", {file: counted(n, "test") for file, n in self.unlisted.items()})
        found += _listed("more than once", self.doubled)
        found += _listed("ran where it was not to", self.strange)
        return found + [f"  {note}" for note in self.notes]


def verify(runs: Iterable[Run], *, ids: Iterable[str] | None = None) -> Verified:
    """Check the run files of one CI run; of a shard that was run again, the newest attempt counts.

    ``ids``: all that should have been collected, such as the ids of a plan, to name what no shard was to run. Raises
    TimingError where there is nothing to judge: no run file, files of several runs, no recorded collection, nothing
    collected, shards or ``ids`` that disagree about what was collected, shards of different Pythons or platforms.
    """
    found = inventory(runs)
    if not found:
        raise TimingError("no run file to verify", fix="name the folder that --timing-dir wrote to")
    if len(found) > 1:
        names = ", ".join(one.run for one in found[:SHOWN])
        raise TimingError(f"files of {len(found)} runs: {names}", fix="verify one run at a time")
    one = found[0]
    _refuse_matrix(one)
    whole = _agreed(one)
    names_known = list(ids) if ids is not None else None
    if names_known is not None and digest_of(names_known) != whole.digest:
        _refuse([("the ids given", Whole.of(names_known)), (f"run {one.run}", whole)])
    verified = Verified(one.run, one.shards, whole.count, 0)
    verified.missing = [f"shard {shard} has no run file" for shard in one.missing]
    verified.notes = [f"{run.header.name} does not count, it was run again" for run in one.older]
    listed = _listed_ids(one, verified)
    _compare_with_whole(listed, whole, verified, names_known)
    _compare_with_ran(one, listed, verified)
    return verified


def _refuse_matrix(one: Inventory) -> None:
    """Unless all shards ran alike. The entries of a CI matrix have one job name, and so one run id by default: each
    entry has its own shards, and those of several, put together, prove nothing."""
    places: dict[str, str] = {}
    for run in one.newest.values():
        if place := _place(run):
            places.setdefault(place, run.header.name)
    if len(places) > 1:
        told = "; ".join(f"{name}: {shown(place)}" for place, name in list(places.items())[:SHOWN])
        raise TimingError(
            f"the shards of run {shown(one.run)} ran on different Pythons or platforms ({told})",
            fix="name each entry of a CI matrix: TESTKIT_RUN_ID=$GITHUB_RUN_ID-<entry>",
        )


def _place(run: Run) -> str:
    """``CPython 3.11, debian x86_64``, as far as it was recorded."""
    machine = run.header.machine.get("environment")
    known = machine if isinstance(machine, dict) else {}
    python = ".".join(run.header.python.split(".")[:2])  # a patch release more on one host is no matrix
    parts = (known.get("python_implementation"), python, known.get("os"), known.get("machine"))
    return " ".join(str(part) for part in parts if part)


def _agreed(one: Inventory) -> Whole:
    """What all shards collected."""
    wholes = [(run.header.name, run.whole) for run in one.newest.values() if run.whole is not None]
    if not wholes:
        raise TimingError(f"run {one.run} has no record of what was collected", fix="record it with --timing-dir")
    if len({whole.digest for _, whole in wholes}) > 1:
        _refuse(wholes)
    if not wholes[0][1].count:
        raise TimingError(f"run {one.run} collected no test: nothing to verify", fix="look at the collection's errors")
    return wholes[0][1]


def _refuse(wholes: Sequence[tuple[str, Whole]]) -> NoReturn:
    """Raise the error about different collections, with the files in which they differ."""
    groups: dict[str, tuple[list[str], Whole]] = {}
    for name, whole in wholes:
        groups.setdefault(whole.digest, ([], whole))[0].append(name)
    sides = list(groups.values())
    told = "; ".join(f"{', '.join(names)}: {counted(whole.count, 'test')}" for names, whole in sides)
    files = sorted({file for _, whole in sides for file in whole.files})
    different = [file for file in files if len({whole.files.get(file) for _, whole in sides}) > 1]
    parts = []
    for file in different[:SHOWN]:
        numbers = [whole.files.get(file, (0, ""))[0] for _, whole in sides]
        alike = " (other names)" if len(set(numbers)) == 1 else ""
        parts.append(f"{shown(file)} {' and '.join(map(str, numbers))}{alike}")
    more = f" and {len(different) - SHOWN} more files" if len(different) > SHOWN else ""
    raise TimingError(
        f"different tests were collected ({told}); they differ in {', '.join(parts)}{more}",
        fix="collect the same commit with the same options on every shard",
    )


def _listed_ids(one: Inventory, verified: Verified) -> dict[str, dict[int, int]]:
    """For each id that a shard was to run: how often, by shard."""
    listed: dict[str, dict[int, int]] = {}
    for number, run in one.newest.items():
        if run.selected is None:
            verified.missing.append(f"{run.header.name} stopped before it had collected: {run.path}")
        elif not run.selected:
            verified.notes.append(f"{run.header.name} was to run no test")
        elif not run.complete:
            verified.notes.append(f"{run.header.name} did not finish: {run.path}")
        for nodeid, times in Counter(run.selected).items():
            listed.setdefault(nodeid, {})[number] = times
    return listed


def _compare_with_whole(
    listed: dict[str, dict[int, int]], whole: Whole, verified: Verified, names: list[str] | None
) -> None:
    """Fill in what no shard was to run, and what several were."""
    # An id that one shard has twice was collected twice, and the digest tells; in two shards it is one too many.
    once = [nodeid for nodeid, shards in listed.items() for _ in range(max(shards.values()))]
    for nodeid, shards in listed.items():
        if len(shards) > 1:
            verified.doubled[nodeid] = f"in shards {', '.join(f'{n}/{verified.shards}' for n in sorted(shards))}"
    union = Whole.of(once)
    if union.digest == whole.digest:
        return
    for file in sorted(whole.files.keys() | union.files.keys()):
        expected, there = whole.files.get(file, (0, "")), union.files.get(file, (0, ""))
        if there[0] > expected[0]:
            verified.strange[file] = f"{counted(there[0], 'test')} in the shards' lists, {expected[0]} collected"
        elif there != expected:
            verified.unlisted[file] = (expected[0] - there[0]) or expected[0]
    if names is not None:
        verified.unlisted_ids = sorted((Counter(names) - Counter(once)).elements())


def _compare_with_ran(one: Inventory, listed: dict[str, dict[int, int]], verified: Verified) -> None:
    """Fill in what did not run although listed, ran twice, or ran unlisted."""
    for number, run in one.newest.items():
        # A repeated attempt says by its outcome that another one follows.
        ran = Counter(timed.id for timed in run.tests if timed.outcome != "rerun")
        verified.ran += ran.total()
        shard = f"shard {run.header.shard}" if run.header.shard else ""
        for nodeid in dict.fromkeys(run.selected or ()):
            if ran[nodeid] < listed[nodeid][number]:
                verified.not_run.setdefault(nodeid, shard)
            elif ran[nodeid] > listed[nodeid][number]:
                verified.doubled.setdefault(nodeid, f"ran {ran[nodeid]} times {f'in {shard}' if shard else ''}".strip())
        for nodeid in ran:
            if nodeid not in listed or number not in listed[nodeid]:
                verified.strange.setdefault(nodeid, shard)


def _listed(what: str, found: dict[str, str]) -> list[str]:
    if not found:
        return []
    rows = [f"    {shown(name)}{f'  ({where})' if where else ''}" for name, where in list(found.items())[:SHOWN]]
    more = [f"    and {len(found) - SHOWN:,} more"] if len(found) > SHOWN else []
    return [f"  {what}: {len(found):,}", *rows, *more]
