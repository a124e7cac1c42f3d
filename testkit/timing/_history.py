"""A folder of run files as a history: what plans and comparisons take from past runs, and what may be deleted."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from testkit._text import counted
from testkit.errors import KitWarning, TimingError
from testkit.timing._estimate import PASSED, Estimates, Past, estimate
from testkit.timing._merge import inventory
from testkit.timing._read import read_folder
from testkit.timing._rows import shared_fixtures
from testkit.timing._run import MAIN, Run, joined, split_id
from testkit.timing._trend import file_seconds
from testkit.timing._write import PARTIAL

LAST = 7
"""Runs of a module from which its set-up is taken."""

OF_A_MODULE = ("module", "class")
"""Scopes of fixtures that each shard sets up again for a module it touches."""

UNITS = "timing_units"
"""Kind of the record that holds tests which stay together: name of the unit -> ids."""

DAY = 86_400

BY = ("test", "file", "fixture", "phase")


@dataclass(slots=True)
class History:
    """What past runs say about tests to come: plain values, so that it can be sent to workers.

    ``seconds`` by id, robust and on one machine's scale (see ``_estimate``). ``setups`` by file: what its module and
    class fixtures cost each shard that touches it. ``spread`` by file: the same of parametrized ones, which a shard
    pays for the parameters that its tests have; it is divided among the tests. ``fixed``: what a run took beside its
    tests and these, such as start, collection with imports (every shard collects everything) and session fixtures.
    ``gpu``: peak bytes by id. ``units`` by id. ``frozen`` and ``measured`` as in ``Estimates``.
    """

    source: str = ""
    runs: int = 0
    workers: int = 1
    newest: float | None = None
    fixed: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    setups: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    gpu: dict[str, int] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)
    measured: int = 0

    @classmethod
    def of(cls, runs: Sequence[Run], source: str = "", quantile: float = 0.5) -> History:
        """Raise TimingError if no run has a test."""
        used = [run for run in runs if run.tests]
        if not used:
            raise TimingError("no run has a test in it", source, "record one with --timing-dir, or import durations")
        pasts = [past(run) for run in used]
        estimates = estimate({name for one in pasts for name in one.seconds}, pasts, quantile=quantile)
        setups, spread = _setups(used, estimates.speeds)
        newest = max(used, key=lambda run: run.header.started)
        gpu: dict[str, int] = {}
        for timed in (timed for run in used for timed in run.tests):
            if timed.gpu:
                gpu[timed.id] = max(gpu.get(timed.id, 0), timed.gpu)
        return cls(
            source=source,
            runs=len({run.header.run for run in used}),
            workers=_workers(newest),
            newest=estimates.newest,
            fixed=_fixed(used, estimates.speeds),
            seconds={name: estimates.seconds[name] for name, origin in estimates.origin.items() if origin == "own"},
            setups=setups,
            spread=spread,
            gpu=gpu,
            units=_units(runs),
            frozen=estimates.frozen,
            measured=estimates.measured,
        )

    def to_text(self) -> str:
        """JSON; ``from_text`` reads it. Node ids that no encoding can write come through too."""
        return json.dumps({part.name: getattr(self, part.name) for part in fields(self)})

    @classmethod
    def from_text(cls, text: str) -> History:
        return cls(**json.loads(text))

    def estimates(self, ids: Iterable[str]) -> Estimates:
        """Seconds for each id; for those without a past, of their nearest."""
        own = [Past(self.seconds, self.newest or 0.0)] if self.seconds else []
        found = estimate(ids, own)
        frozen = [name for name in self.frozen if name in found.seconds]
        return replace(found, frozen=frozen, measured=self.measured)

    def tests(self, estimates: Estimates, units: dict[str, str] | None = None) -> list[dict[str, Any]]:
        """What ``plan`` takes, for the ids of ``estimates``; ``units`` stands in for those that were recorded."""
        units = self.units if units is None else units
        files = {name: split_id(name)[0] for name in estimates.seconds}
        number: dict[str, int] = {}
        for file in files.values():
            number[file] = number.get(file, 0) + 1
        return [
            {
                "id": name,
                "module": files[name],
                "seconds": seconds + self.spread.get(files[name], 0.0) / number[files[name]],
                "setup": self.setups.get(files[name], 0.0),
                "memory": self.gpu.get(name),
                "unit": units.get(name),
            }
            for name, seconds in estimates.seconds.items()
        ]


def past(run: Run) -> Past:
    """The last attempts of one run file, with their outcomes."""
    finals = {name: test.final for name, test in joined([run]).items()}
    return Past(
        {name: timed.seconds for name, timed in finals.items()},
        run.header.started,
        {name: timed.outcome for name, timed in finals.items()},
    )


def newest_ids(runs: Sequence[Run]) -> list[str]:
    """What the newest run was to run in all its shards; where that was not recorded, what it ran."""
    newest = inventory(runs)[-1]
    if newest.missing:
        problem = f"run {newest.run} lacks shard {', '.join(newest.missing)}: its tests are not all known"
        raise TimingError(problem, fix="add the missing run files, or name the tests with --ids")
    files = newest.newest.values()
    known = [name for run in files for name in (run.selected or [timed.id for timed in run.tests])]
    return list(dict.fromkeys(known))


def prune(folder: Path, now: float, *, keep: int | None = None, days: float | None = None) -> list[Path]:
    """Delete the run files of all but the ``keep`` newest runs, and of runs older than ``days``; returns their paths.

    Shards and attempts of one CI run go together. The newest run always stays: plans need one. Raises TimingError,
    before anything is deleted, for a file that cannot be read, and for one that cannot be deleted. A ``.partial``
    beside a deleted file goes with it only if it is of the same run; otherwise it stays, and a KitWarning names it.
    """
    groups: dict[str, list[Run]] = {}
    for run in read_folder(folder):
        groups.setdefault(run.header.run, []).append(run)
    dated = sorted(((max(run.header.started for run in group), group) for group in groups.values()), key=_newest_first)
    gone = []
    for place, (date, group) in enumerate(dated):
        old = days is not None and now - date > days * DAY
        if place and (old or (keep is not None and place >= keep)):
            gone += [Path(run.path) for run in group]
    try:
        for path in gone:
            _delete(path)
    except OSError as error:
        raise TimingError(f"cannot delete {path}: {error.strerror or error}", fix="look who owns it") from error
    return sorted(gone)


def _delete(path: Path) -> None:
    """A run file, and what is left of its ``.partial``: that would count again without it."""
    partial = path.with_name(path.name + PARTIAL)
    if partial.is_file():
        whole, begun = path.read_bytes(), partial.read_bytes()
        if whole.startswith(begun) or begun.partition(b"\n")[0] == whole.partition(b"\n")[0]:
            partial.unlink()
        else:
            warnings.warn(KitWarning(f"timing: {partial} is of another run than {path.name}, it stays"), stacklevel=3)
    path.unlink()


def _newest_first(dated: tuple[float, list[Run]]) -> tuple[float, str]:
    return -dated[0], dated[1][0].header.run


def rows(runs: Iterable[Run], by: str, newest: int | None = None) -> tuple[dict[str, list[float | None]], list[str]]:
    """Seconds of each test, file, fixture or phase in each CI run, oldest first, for ``compare``; and notes.

    Tests count where they passed, with their last attempt. Files: all last attempts and the file's shared fixtures.
    Fixtures: all set-ups and teardowns of a name in a scope. Runs that are not whole (``Inventory.lacks``) are left
    out; TimingError if none of the ``newest`` runs is (None: of all).
    """
    found = inventory(runs)
    whole = [one for one in found if not one.lacks]
    left_out = {one.run: f"run {one.run} is left out: {'; '.join(one.lacks)}" for one in found if one.lacks}
    judged = found if newest is None else found[-newest:]
    if all(one.run in left_out for one in judged):
        where = "; ".join(left_out[one.run] for one in judged)
        raise TimingError("nothing whole to compare", where, "name runs that finished, with all shards")
    columns = [_column([*one.newest.values(), *one.older], by) for one in whole]
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: [column.get(name) for column in columns] for name in names}, [*left_out.values()]


def _column(files: Sequence[Run], by: str) -> dict[str, float]:
    if by == "file":
        return file_seconds(files)
    fixtures = [fixture for run in files for fixture in run.fixtures]
    if by == "fixture":
        return {f"{row.name} ({row.scope})": row.seconds for row in shared_fixtures(fixtures)}
    finals = {name: test.final for name, test in joined(files).items()}
    if by == "test":
        return {name: timed.seconds for name, timed in finals.items() if timed.outcome in PASSED}
    phases = {name: sum(getattr(timed, name) for timed in finals.values()) for name in ("setup", "call", "teardown")}
    wider = sum(fixture.setup + fixture.teardown for fixture in fixtures if fixture.scope != "function")
    return {
        **phases,
        "shared fixtures": wider,
        "collection": sum(row.seconds for run in files for row in run.collection),
        "imports": sum(row.seconds for run in files for row in run.imports),
        "compilation": sum(timed.jit.seconds for timed in finals.values() if timed.jit),
        "longest run file": max(run.seconds or 0.0 for run in files),
    }


_Key = tuple[str, str, str]
"""Node, name and parameter of a fixture."""


def _setups(runs: Sequence[Run], speeds: Sequence[float]) -> tuple[dict[str, float], dict[str, float]]:
    """``setups`` and ``spread`` of ``History``: each fixture's median over the last runs that had its file."""
    seen: dict[str, set[str]] = {}
    found: dict[str, dict[_Key, list[float]]] = {}
    for number in sorted(range(len(runs)), key=lambda number: -runs[number].header.started):
        run, costs = runs[number], _costs(runs[number])
        for file in {split_id(timed.id)[0] for timed in run.tests}:
            names = seen.setdefault(file, set())
            if run.header.run in names or len(names) < LAST:
                names.add(run.header.run)
                for key, seconds in costs.get(file, {}).items():
                    found.setdefault(file, {}).setdefault(key, []).append(seconds / speeds[number])
    setups: dict[str, float] = {}
    spread: dict[str, float] = {}
    for file, costs_of_keys in found.items():
        for (_, _, param), values in sorted(costs_of_keys.items()):
            where = spread if param else setups
            where[file] = where.get(file, 0.0) + median(values)
    return setups, spread


def _costs(run: Run) -> dict[str, dict[_Key, float]]:
    """What each module and class fixture cost a worker that set it up, by file."""
    sums: dict[_Key, dict[str, float]] = {}
    for row in run.fixtures:
        if row.scope in OF_A_MODULE:
            workers = sums.setdefault((row.node, row.name, row.param), {})
            workers[row.worker] = workers.get(row.worker, 0.0) + row.setup + row.teardown
    costs: dict[str, dict[_Key, float]] = {}
    for key, by_worker in sums.items():
        costs.setdefault(split_id(key[0])[0], {})[key] = fmean(by_worker.values())
    return costs


def _workers(run: Run) -> int:
    return max(1, len({timed.worker for timed in run.tests} - {MAIN}))


def _fixed(runs: Sequence[Run], speeds: Sequence[float]) -> float:
    """The median over recorded runs of their seconds less what a worker spent on tests and module set-ups."""
    left = []
    for run, speed in zip(runs, speeds, strict=True):
        if run.seconds and run.complete and not run.header.origin:
            planned = sum(timed.seconds for timed in run.tests)
            planned += sum(row.setup + row.teardown for row in run.fixtures if row.scope in OF_A_MODULE)
            left.append(max(0.0, run.seconds - planned / _workers(run)) / speed)
    return median(left) if left else 0.0


def _units(runs: Iterable[Run]) -> dict[str, str]:
    """Of the newest run that recorded units."""
    for run in sorted(runs, key=lambda run: -run.header.started):
        for record in run.records:
            if record.kind == UNITS and isinstance(record.data, dict):
                return {name: unit for unit, names in record.data.items() for name in names}
    return {}


def described(history: History) -> str:
    """``7 runs in .timings``, for messages."""
    return f"{counted(history.runs, 'run')} in {history.source}"
