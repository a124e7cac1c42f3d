"""Bring run files together: merging is copying, and a look at which shards and attempts are there."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit._text import counted
from testkit.errors import TimingError
from testkit.timing._read import read, run_files
from testkit.timing._run import Run, shard_numbers
from testkit.timing._write import PARTIAL, SUFFIX, free_name

ENDED = (0, 1)
"""pytest's exit statuses of runs that came to their end: all passed, some failed."""


@dataclass(slots=True)
class Inventory:
    """The run files of one CI run.

    ``newest`` holds for each shard that is there the file of its newest attempt, by the shard's number; the others
    are in ``older``. ``missing`` are shards without a file, ``unfinished`` newest files without their end. ``copies``
    are files that say the same as another one or how that began, and are left out.
    """

    run: str
    shards: int
    newest: dict[int, Run] = field(default_factory=dict)
    older: list[Run] = field(default_factory=list)
    copies: list[Run] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        return [f"{number}/{self.shards}" for number in range(1, self.shards + 1) if number not in self.newest]

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.newest.values() if not run.complete]

    @property
    def lacks(self) -> list[str]:
        """Why the run is not whole, or nothing: its seconds would look like a speed-up.

        A run that was interrupted has its end recorded too, so each id that was to run must have a last attempt. What
        was imported has no exit status.
        """
        found = [f"shard {shard} has no run file" for shard in self.missing]
        return found + [lack for run in self.newest.values() if (lack := _lack(run))]

    def lines(self) -> list[str]:
        """What a reader should know, one line for each fact."""
        there = f"{len(self.newest)} of {self.shards} shards" if self.shards > 1 else "one file, not sharded"
        found = [f"run {self.run}: {there}"]
        found += [f"  shard {shard} has no run file" for shard in self.missing]
        found += [f"  {run.header.name} did not finish: {run.path}" for run in self.unfinished]
        found += [f"  {run.header.name} was run again and does not count: {run.path}" for run in self.older]
        found += [f"  {run.path} is a copy, left out" for run in self.copies]
        return found


def _lack(run: Run) -> str:
    if not run.complete:
        return f"{run.header.name} did not finish"
    if run.exit_status not in (None, *ENDED):
        return f"{run.header.name} ended with exit status {run.exit_status}"
    # A repeated attempt says by its outcome that another one follows.
    left = set(run.selected or ()) - {timed.id for timed in run.tests if timed.outcome != "rerun"}
    return f"{run.header.name} did not run {counted(len(left), 'test')} that it was to run" if left else ""


def inventory(runs: Iterable[Run]) -> list[Inventory]:
    """The runs by run id, oldest first.

    Raises TimingError if files of one run disagree about the number of shards, or claim the same attempt at the same
    shard without being copies.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.header.run, []).append(run)
    oldest_first = sorted(groups.values(), key=lambda group: min(run.header.started for run in group))
    return [_inventory(group) for group in oldest_first]


def _inventory(group: Sequence[Run]) -> Inventory:
    first = group[0]
    found = Inventory(first.header.run, shard_numbers(first.header.shard, first.path)[1])
    kept: dict[tuple[int, int], Run] = {}
    # The longest of several copies is the last that was made of a file that grew.
    for run in sorted(group, key=lambda run: (run.complete, sum(map(len, _parts(run)))), reverse=True):
        number, of = shard_numbers(run.header.shard, run.path)
        if of != found.shards or bool(run.header.shard) != bool(first.header.shard):
            raise TimingError(
                f"run {found.run} has {first.header.name} and {run.header.name}: which number of shards is right?",
                f"{first.path}, {run.path}",
                "keep the files of one division; give each CI run a name of its own",
            )
        other = kept.setdefault((number, run.header.attempt), run)
        if other is run:
            continue
        if not _is_copy(run, other):
            raise TimingError(
                f"two different files are {run.header.name} of run {found.run}",
                f"{other.path}, {run.path}",
                "count attempts up when a shard is run again, and give each CI run a name of its own",
            )
        found.copies.append(run)
    for (number, _), run in sorted(kept.items()):
        if number in found.newest:
            found.older.append(found.newest[number])
        found.newest[number] = run
    return found


def _parts(run: Run) -> list[list[Any]]:
    return [run.tests, run.fixtures, run.collection, run.imports, run.records, run.other]


def _is_copy(run: Run, longer: Run) -> bool:
    """Does ``run`` say what ``longer`` says, or how that began?"""
    if run.header != longer.header or run.whole not in (None, longer.whole):
        return False
    if run.selected not in (None, longer.selected):
        return False
    if run.complete and (run.exit_status, run.seconds) != (longer.exit_status, longer.seconds):
        return False
    pairs = zip(_parts(run), _parts(longer), strict=True)
    return all(part == (more if run.complete else more[: len(part)]) for part, more in pairs)


def merge(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Copy run files, and those in and below folders, into ``folder``; returns the paths of the new ones.

    Nothing is overwritten: a file that is there already is passed over, and another one of the same name gets a number.
    Only a ``.partial`` gives way, to a longer or renamed state of the same file. Raises TimingError, before anything
    is copied, for a file that cannot be read; and where ``folder`` cannot be written, which leaves whole files only.
    """
    paths = [path for source in sources for path in (run_files(source) if source.is_dir() else [source])]
    if not paths:
        raise TimingError("no run file to merge", fix=f"name files or folders with *{SUFFIX}")
    for path in paths:
        read(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [target for path in paths if (target := _copy(path, folder)) is not None]
    except OSError as error:
        problem = f"cannot write in {folder}: {error.strerror or error}"
        raise TimingError(problem, fix="name another folder, or free the disk") from error


def _copy(path: Path, folder: Path) -> Path | None:
    data = path.read_bytes()
    stem, _, ending = path.name.partition(SUFFIX)
    begun = []
    for there in folder.glob(glob.escape(stem) + "*"):
        known = there.read_bytes()
        if known == data or (ending == PARTIAL and known.startswith(data)):
            return None
        if known and there.name.endswith(PARTIAL) and data.startswith(known):
            begun.append(there)
    # Under another name first: half a file, as a full disk leaves it, must not count as a run.
    handle, name = tempfile.mkstemp(prefix=".merge-", dir=folder)
    whole = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        whole.chmod(path.stat().st_mode & 0o666 | 0o200)  # mkstemp's are for the owner alone
        target = begun.pop() if begun and ending == PARTIAL else _claimed(folder, stem, ending)
        try:
            whole.replace(target)
        except OSError:
            if not target.stat().st_size:
                target.unlink()
            raise
        for there in begun:
            there.unlink()
    finally:
        whole.unlink(missing_ok=True)
    return target


def _claimed(folder: Path, stem: str, ending: str) -> Path:
    # A rename would overwrite what another process put there meanwhile; a link is not on every file system.
    target = free_name(folder, stem, ending)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    return target
