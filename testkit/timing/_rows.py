"""What each file, function, test and fixture took, and why: the rows of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from testkit._text import counted
from testkit.timing._lanes import BAD, seconds_of
from testkit.timing._run import Fixture, Joined, Run, split_id
from testkit.timing._say import percent, shown

WHOLE_RUN = "(whole run)"
"""Where session fixtures and steps that belong to no test are counted."""

ENOUGH = 10
"""Rows that are shown at once; with fewer files the rows are functions."""

FEW = 3
"""With fewer functions the rows are tests."""

STANDS_OUT = 0.2
"""A part of a row from this share on is named as its cause."""


@dataclass(slots=True)
class Row:
    """Seconds of one file, function or test, of all attempts and on all workers.

    ``shared`` are its module, class and package fixtures, ``steps`` clean-up and whatever else was announced,
    ``collecting`` its collection with imports. ``compiling`` and ``repeated`` are parts of set-up, call and teardown.
    """

    name: str
    tests: int = 0
    bad: int = 0
    setup: float = 0.0
    call: float = 0.0
    teardown: float = 0.0
    shared: float = 0.0
    steps: float = 0.0
    collecting: float = 0.0
    compiling: float = 0.0
    repeated: float = 0.0
    longest: str = ""
    longest_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.setup + self.call + self.teardown + self.shared + self.steps + self.collecting

    @property
    def around(self) -> float:
        """All that is not the bodies of its tests."""
        return self.seconds - self.call

    def add(self, test: Joined) -> None:
        """Count all attempts at a test; one that was repeated counts as a failure only in ``repeated``."""
        self.tests += 1
        self.bad += test.final.outcome in BAD
        whole = 0.0
        for timed in test.attempts:
            self.setup += timed.setup
            self.call += timed.call
            self.teardown += timed.teardown
            whole += timed.seconds
        self.repeated += whole - test.final.seconds
        self.compiling += test.final.jit.seconds if test.final.jit else 0.0
        if whole > self.longest_seconds:
            self.longest, self.longest_seconds = test.final.id, whole

    def cause(self) -> str:
        """What most of the seconds are, in a few words."""
        parts = {
            "collection and imports": self.collecting,
            "shared fixtures": self.shared,
            "clean-up": self.steps,
            "kernel compilation": self.compiling,
            "repeated attempts": self.repeated,
            "set-up and teardown": self.setup + self.teardown,
        }
        if self.tests > 1:
            parts["its longest test"] = self.longest_seconds
        name, most = max(parts.items(), key=lambda part: part[1])
        if not self.tests or most < STANDS_OUT * self.seconds:
            return ""
        return f"{percent(most, self.seconds)} {name}" + (f", {_within(self)}" if name == "its longest test" else "")


def _within(row: Row) -> str:
    """The longest test without what the row's name says already."""
    inside = row.longest.removeprefix(row.name).removeprefix("::") if row.longest != row.name else row.longest
    return shown(inside, 60)


@dataclass(slots=True)
class Shared:
    """All set-ups and teardowns of the fixtures with one name and scope; ``files`` has the seconds by file."""

    name: str
    scope: str
    count: int = 0
    setup: float = 0.0
    teardown: float = 0.0
    files: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.setup + self.teardown

    @property
    def where(self) -> str:
        """The file, or the one with most of the seconds and how many more there are."""
        file, *others = sorted(self.files, key=lambda file: (-self.files[file], file))
        more = f" and {counted(len(others), 'file')} more" if others else ""
        return f"{shown(file)}{more}"


def rows_by(level: str, runs: Iterable[Run], tests: Mapping[str, Joined]) -> list[Row]:
    """A row for each file, function or test of one CI run, the largest first.

    Where rows are functions or tests, shared fixtures and the collection of a file are rows of their own. Together
    the rows hold everything that was recorded with a place.
    """
    rows: dict[str, Row] = {}
    for nodeid, test in tests.items():
        name = _key(level, nodeid)
        row = rows.get(name) or rows.setdefault(name, Row(name))
        row.add(test)
    for run in runs:
        for fixture in run.fixtures:
            if fixture.scope != "function":
                name = file_of(fixture.node)
                name = name if level == "file" else f"fixture {fixture.name} ({fixture.scope}), {name}"
                rows.setdefault(name, Row(name)).shared += fixture.setup + fixture.teardown
        for record in run.records:
            seconds = seconds_of(record)
            if seconds:
                name = _key(level, record.nodeid) if record.nodeid else WHOLE_RUN
                rows.setdefault(name, Row(name)).steps += seconds
        for collected in run.collection:
            name = collected.file if level == "file" else f"collection of {collected.file}"
            rows.setdefault(name, Row(name)).collecting += collected.seconds
    return sorted(rows.values(), key=lambda row: (-row.seconds, row.name))


def level_of(tests: Iterable[str]) -> str:
    """The coarsest level with enough rows to choose from."""
    ids = list(tests)
    for level, enough in (("file", ENOUGH), ("function", FEW)):
        if len({_key(level, nodeid) for nodeid in ids}) >= enough:
            return level
    return "test"


def shared_fixtures(fixtures: Iterable[Fixture]) -> list[Shared]:
    """Fixtures by name and scope, the costliest first."""
    found: dict[tuple[str, str], Shared] = {}
    for fixture in fixtures:
        row = found.setdefault((fixture.name, fixture.scope), Shared(fixture.name, fixture.scope))
        row.count += fixture.count
        row.setup += fixture.setup
        row.teardown += fixture.teardown
        file = file_of(fixture.node)
        row.files[file] = row.files.get(file, 0.0) + fixture.setup + fixture.teardown
    return sorted(found.values(), key=lambda row: (-row.seconds, row.name))


def half_of(rows: Iterable[Row]) -> int:
    """How many of the largest rows hold half of all seconds."""
    seconds = sorted((row.seconds for row in rows), reverse=True)
    half, number = sum(seconds) / 2, 0
    while half > 0 and number < len(seconds):
        half -= seconds[number]
        number += 1
    return number


def file_of(node: str) -> str:
    """The file of an id, or ``WHOLE_RUN`` for a node of the session."""
    return split_id(node)[0] or WHOLE_RUN


def _key(level: str, nodeid: str) -> str:
    file, name, _ = split_id(nodeid)
    if level == "test":
        return nodeid
    return (file or WHOLE_RUN) if level == "file" or name is None else f"{file}::{name}"
