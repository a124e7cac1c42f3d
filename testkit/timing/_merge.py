"""Bring run files together: merging is copying, and a look at which shards and attempts are there."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testkit.errors import TimingError
from testkit.timing._read import read, run_files
from testkit.timing._run import Run, shard_numbers
from testkit.timing._write import PARTIAL, SUFFIX, free_name


@dataclass(slots=True)
class Inventory:
    """The run files of one CI run.

    ``newest`` holds for each shard that is there the file of its newest attempt, by the shard's number; the others
    are in ``older``. ``missing`` are shards without a file, ``unfinished`` newest files without their end. ``copies``
    are files that say the same as another one, and are left out.
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

    def lines(self) -> list[str]:
        """What a reader should know, one line for each fact."""
        there = f"{len(self.newest)} of {self.shards} shards" if self.shards > 1 else "one file, not sharded"
        found = [f"run {self.run}: {there}"]
        found += [f"  shard {shard} has no run file" for shard in self.missing]
        found += [f"  {run.header.name} did not finish: {run.path}" for run in self.unfinished]
        found += [f"  {run.header.name} was run again and does not count: {run.path}" for run in self.older]
        found += [f"  {run.path} is a copy, left out" for run in self.copies]
        return found


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
    for run in sorted(group, key=lambda run: (run.complete, len(run.tests)), reverse=True):
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
        if other.header != run.header:
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


def merge(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Copy run files, and those in and below folders, into ``folder``; returns the paths of the new ones.

    Nothing is overwritten: a file that is there already is passed over, and another one of the same name gets a number.
    Only a ``.partial`` gives way, to a longer or renamed state of the same file. Raises TimingError, before anything
    is copied, for a file that cannot be read.
    """
    paths = [path for source in sources for path in (run_files(source) if source.is_dir() else [source])]
    if not paths:
        raise TimingError("no run file to merge", fix=f"name files or folders with *{SUFFIX}")
    for path in paths:
        read(path)
    folder.mkdir(parents=True, exist_ok=True)
    return [target for path in paths if (target := _copy(path, folder)) is not None]


def _copy(path: Path, folder: Path) -> Path | None:
    data = path.read_bytes()
    stem, _, ending = path.name.partition(SUFFIX)
    for there in folder.glob(glob.escape(stem) + "*"):
        known = there.read_bytes()
        if known == data or (ending == PARTIAL and known.startswith(data)):
            return None
        if known and there.name.endswith(PARTIAL) and data.startswith(known):
            there.unlink()
    target = free_name(folder, stem, ending)
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)), "wb") as file:
        file.write(data)
    return target
