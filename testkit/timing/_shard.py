"""What one shard runs: chosen from what it collected by a plan that every shard makes or reads alike, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testkit._text import counted
from testkit.errors import TimingError
from testkit.timing._history import UNITS, History, described
from testkit.timing._order import slowest_first
from testkit.timing._plan import Plan
from testkit.timing._plan import plan as make_plan
from testkit.timing._run import Run, canonical, shard_numbers
from testkit.timing._say import shown, spent
from testkit.timing._task import Task, refuse_number

SHARD = "timing_shard"
"""Kind of the record that says by which plan a shard chose."""

SHOWN = 3
"""Names of a kind in one message."""

SAME = "give every shard the same commit, paths, -k and -m, and the plan that was made from them"


@dataclass(frozen=True, slots=True)
class Choice:
    """What a shard runs. ``selected`` are canonical ids in the order in which they are to run.

    ``total`` tests were collected. ``expected`` seconds of work, None where no duration is known. The digests are
    those of the plan. ``source`` says where the plan is from, ``notes`` what a reader should know of it.
    """

    shard: str
    selected: list[str]
    total: int
    expected: float | None = None
    plan: str = ""
    durations: str = ""
    source: str = ""
    notes: list[str] = field(default_factory=list)
    units: dict[str, list[str]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not self.selected

    def lines(self) -> list[str]:
        """For the end of the run."""
        if not self.shard:
            return [f"timing: {note}" for note in self.notes]
        if self.empty:
            runs = f"is empty by plan: {counted(self.total, 'test')} collected, all on other shards"
        else:
            runs = f"has {len(self.selected):,} of {counted(self.total, 'test')}"
            if self.expected is not None:
                runs += f", {spent(self.expected)} of work expected"
        return [f"timing: shard {self.shard} {runs} (plan {self.plan[:8]} {self.source})"] + [
            f"timing: {note}" for note in self.notes
        ]

    def records(self) -> list[tuple[str, Any]]:
        """(kind, data) for the run file: by which plan this shard chose, and which tests stay together."""
        found: list[tuple[str, Any]] = []
        if self.shard:
            data = {"shard": self.shard, "plan": self.plan, "durations": self.durations, "source": self.source}
            found.append((SHARD, {**data, "expected": self.expected}))
        if self.units:
            found.append((UNITS, self.units))
        return found


def choose(ids: Sequence[str], units: Mapping[str, str], task: Task) -> Choice:
    """The tests of ``ids``, as collected, that ``task`` asks for. ``units``: tests with the same text stay together.

    TimingError: an id twice; a plan that was made for other tests or another number of shards, or divides a unit.
    """
    names = [canonical(name) for name in ids]
    together = {canonical(name): unit for name, unit in units.items()}
    by_unit: dict[str, list[str]] = {}
    for name, unit in together.items():
        by_unit.setdefault(unit, []).append(name)
    if not (task.shard or task.order):
        return Choice("", names, len(names), notes=task.notes, units=by_unit)
    _refuse_twice(names, task)
    # First: where nothing was collected, it says so, and there is nothing to estimate.
    plan = planned(task.plan, task.plan_file, names, by_unit, task) if task.plan else None
    order: list[str] = names
    notes: list[str] = []
    if plan is None or task.order:
        history = task.history or History()
        estimates = history.estimates(names)
        tests, notes = history.tests(estimates, together), estimates.notes(task.now)
        order = slowest_first(tests, history.spread) if task.order else names
    if not task.shard:
        return Choice("", order, len(names), notes=[*notes, *task.notes], units=by_unit)
    number, shards = shard_numbers(task.shard, task.where)
    if plan is not None:
        source = f"from {task.plan_file}"
    elif task.history:
        plan = make_plan(tests, shards, fixed=task.history.fixed)
        source, notes = f"made of {described(task.history)}", [*notes, *plan.notes]
    else:
        plan = make_plan(tests, shards)
        source = "made without durations"
        # What they say of equal estimates is no news here.
        notes = ["no durations, so tests are divided by number: give --timing-history or --timing-plan"]
    mine = set(plan.shards[number - 1])
    known = task.plan or task.history is not None
    return Choice(
        shard=task.shard,
        selected=[name for name in order if name in mine],
        total=len(names),
        expected=plan.seconds[number - 1] if known else None,
        plan=plan.digest,
        durations=plan.durations_digest,
        source=source,
        notes=[*notes, *task.notes],
        units=by_unit,
    )


def units_of(items: Iterable[Any], name: Callable[[str], str]) -> dict[str, str]:
    """What stays together among pytest's items: those of one ``xdist_group``, in xdist's own reading of the mark."""
    units = {}
    for item in items:
        groups = {
            str(mark.args[0] if mark.args else mark.kwargs.get("name", "default"))
            for mark in item.iter_markers("xdist_group")
        }
        if groups:
            units[name(item.nodeid)] = f"xdist_group {'_'.join(sorted(groups))}"
    return units


def planned(text: str, file: str, names: Sequence[str], units: Mapping[str, Sequence[str]], task: Task) -> Plan:
    """The plan in ``text``, if it is one of these very tests for this number of shards and divides no unit."""
    plan = Plan.from_json(text, file)
    refuse_number(plan, file, task.shard, task.where)
    home = {name: number for number, shard in enumerate(plan.shards, 1) for name in shard}
    if home.keys() != set(names):
        told = [
            _some("collected and not in the plan", set(names) - home.keys()),
            _some("in the plan and not collected", home.keys() - set(names)),
        ]
        raise TimingError(f"{file} is no plan of what was collected: {'; '.join(filter(None, told))}", task.where, SAME)
    for unit, members in units.items():
        divided = sorted({home[name] for name in members})
        if len(divided) > 1:
            between = " and ".join(map(str, divided[:2]))
            problem = f"{file} divides {unit}, which must stay together, between shards {between}"
            fix = "plan from a run file of this suite: it records what stays together; or leave out --timing-plan"
            raise TimingError(problem, task.where, fix)
    return plan


def _refuse_twice(names: Sequence[str], task: Task) -> None:
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        fix = "give each test an id of its own; --keep-duplicates and shards do not go together"
        raise TimingError(f"{shown(twice)} was collected twice: a plan goes by ids", task.where, fix)


def _some(what: str, names: Iterable[str]) -> str:
    ordered = sorted(names)
    if not ordered:
        return ""
    more = f" and {len(ordered) - SHOWN:,} more" if len(ordered) > SHOWN else ""
    return f"{len(ordered):,} {what} ({', '.join(map(shown, ordered[:SHOWN]))}{more})"


def plans_differ(runs: Iterable[Run]) -> list[str]:
    """Why shards of one CI run do not fit together: lines about their plans, if there are several."""
    sides: dict[str, dict[str, str]] = {}
    durations = set()
    for run in runs:
        for record in run.records:
            if record.kind == SHARD and isinstance(record.data, dict):
                digest, source, made_of = (str(record.data.get(name)) for name in ("plan", "source", "durations"))
                sides.setdefault(digest, {})[run.header.shard] = source
                durations.add(made_of)
    if len(sides) < 2:
        return []
    found = ["the shards did not choose by one plan:"]
    for digest, shards in sides.items():
        found.append(f"  {', '.join(shards)}: plan {digest[:8]} {next(iter(shards.values()))}")
    if len(durations) > 1:
        found.append(
            "  what they know of the tests differs: give every shard the same --timing-history or --timing-plan"
        )
    return found
