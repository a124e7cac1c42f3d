"""What a run is told about shards and order: read where the user started it, and sent to its workers."""

from __future__ import annotations

import json
import os
import time
import warnings
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from testkit import _settings
from testkit._text import counted
from testkit.errors import KitWarning, TimingError
from testkit.timing import _ci
from testkit.timing._history import History
from testkit.timing._plan import Plan
from testkit.timing._read import read_folder, run_files
from testkit.timing._run import shard_numbers
from testkit.timing._wishes import path_finder, seen_from
from testkit.timing._write import PARTIAL

SLOWEST = "slowest"


@dataclass(frozen=True, slots=True)
class Task:
    """``shard`` is ``2/4``, or "" where all tests run here. ``where`` says who asked for it.

    ``plan`` is the text of ``plan_file``. ``now`` in seconds since the epoch. ``order``: slowest first. ``notes`` are
    for the end of the run.
    """

    shard: str = ""
    where: str = ""
    now: float = 0.0
    plan: str = ""
    plan_file: str = ""
    history: History | None = None
    order: bool = False
    notes: list[str] = field(default_factory=list)

    def to_text(self) -> str:
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return json.dumps({**parts, "history": self.history and self.history.to_text()})

    @classmethod
    def from_text(cls, text: str) -> Task:
        parts = json.loads(text)
        return cls(**{**parts, "history": parts["history"] and History.from_text(parts["history"])})


def read_task(config: Any, recorded_in: Path | None) -> Task:
    """From pytest's ``Config``. Raises TimingError for values and files that make no sense, before anything runs."""
    nothing: Path | None = None
    shard = _settings.resolve(config, "--timing-shard", _shard, "")
    plan = _settings.resolve(config, "--timing-plan", path_finder(config, "file"), nothing)
    past = _settings.resolve(config, "--timing-history", path_finder(config, "folder"), nothing)
    order = _settings.resolve(config, "--timing-order", _order, False)
    if plan.value and not shard.value:
        raise TimingError("a plan, but no shard of it", plan.source, "give --timing-shard=I/N too")
    if order.value and not past.value:
        raise TimingError("nothing says which tests are slow", order.source, "give --timing-history=DIR too")
    if shard.value and past.value and recorded_in is not None and _overlap(past.value, recorded_in):
        problem = f"{past.value} is read for the plan and written to: a shard that starts later would plan otherwise"
        raise TimingError(problem, past.source, "record into another folder, and merge it into this one afterwards")
    dist = config.getoption("dist", "no")
    first = order.value and dist == "load"
    notes = []
    if order.value and dist not in ("no", "load"):
        notes.append(f"--timing-order has no use with --dist {dist}, which has an order of its own")
    if shard.value and recorded_in is None:
        notes.append("not recorded: with --timing-dir, testkit timing verify proves that every test ran once")
    return Task(
        shard=shard.value,
        where=shard.source,
        now=time.time(),
        plan=_read_plan(plan.value, shard.value, plan.source) if plan.value else "",
        plan_file=seen_from(config.invocation_params.dir, plan.value) if plan.value else "",
        history=_read_history(config, past.value, past.source, notes)
        if past.value and (shard.value or first)
        else None,
        order=first,
        notes=notes,
    )


def _shard(raw: str, source: str) -> str:
    shard = raw.strip()
    if shard == _ci.AUTO:
        _ci.tell_bazel(os.environ)
        return _ci.shard_from(os.environ, source)
    if not shard:
        raise TimingError("no shard is named", source, f"write it as 2/4, or {_ci.AUTO} where the CI system says it")
    number, of = shard_numbers(shard, source)
    return f"{number}/{of}"


def _order(raw: str, source: str) -> bool:
    if raw.strip() != SLOWEST:
        raise TimingError(f"order {raw!r} is not known", source, f"write {SLOWEST}, or leave it out")
    return True


def _overlap(one: Path, other: Path) -> bool:
    paths = one.resolve(), other.resolve()
    return paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])


def _read_plan(path: Path, shard: str, source: str) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        problem = f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        raise TimingError(problem, source, "make it with testkit timing plan") from error
    refuse_number(Plan.from_json(text, str(path)), str(path), shard, source)
    return text


def refuse_number(plan: Plan, file: str, shard: str, where: str) -> None:
    """Unless the plan is for as many shards as there are."""
    _, shards = shard_numbers(shard, where)
    if len(plan.shards) != shards:
        problem = f"shard {shard}, but {file} has {counted(len(plan.shards), 'shard')}"
        raise TimingError(problem, where, "give the number of shards that the plan was made for")


def _read_history(config: Any, path: Path, source: str, notes: list[str]) -> History | None:
    """None where no test was recorded yet. A folder that is not there may be a cache that did not come."""
    if not path.exists():
        fix = f"restore the run files there; before there are any, make an empty folder: mkdir -p {path}"
        raise TimingError(f"{path} does not exist", source, fix)
    if path.is_dir() and not any(path.iterdir()):
        return None
    name = seen_from(config.invocation_params.dir, path)
    # Of a run that was killed at once there may be an empty .partial; an empty whole file was damaged, and is refused.
    if path.is_dir() and all(one.name.endswith(PARTIAL) and not one.stat().st_size for one in run_files(path)):
        notes.append(f"{name} is not empty and has no run file with a run in it")
        return None
    # As a warning it would end a run under -W error, before its first test.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KitWarning)
        runs = read_folder(path)
    notes += [str(warning.message).removeprefix("timing: ") for warning in caught]
    if not any(run.tests for run in runs):
        notes.append(f"no run in {name} has a test in it")
        return None
    return History.of(runs, name)
