"""What one run is made of: its tests, fixtures, imports and collection, and names for the tests that survive a file.

A *run* is what one controller recorded; a CI run of four shards is four of them with one run id. Seconds are floats
since the run's start on the controller's clock, sizes are bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from testkit.errors import TimingError

LONGEST = 4_000
"""A longer text is cut, and says by how much; a cut node id keeps a digest of the whole, so that no two become one."""

MAIN = "main"
"""The worker of a run without workers."""

_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


@dataclass(slots=True)
class Header:
    """Which run this is and where it ran.

    ``run`` is the same on all shards and attempts of one CI run. ``shard`` is ``"2/4"``, or "" for a run that is not
    sharded; ``attempt`` counts re-runs of the shard from 1. ``started`` is in seconds since the epoch. ``origin``
    says which foreign format a run was imported from.
    """

    run: str
    shard: str = ""
    attempt: int = 1
    started: float = 0.0
    host: str = ""
    python: str = ""
    pytest: str = ""
    argv: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    origin: str = ""

    @classmethod
    def imported(cls, path: Path, origin: str, started: float, part: str = "") -> Header:
        """For what was read from ``path``; ``part`` tells several runs in one file apart.

        The content is part of the name: CI unpacks many files that are called ``report.xml``, all of one second.
        """
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
        stamp = datetime.fromtimestamp(started, tz=timezone.utc).strftime("%Y%m%dT%H%M%S")
        name = "-".join(filter(None, [path.stem.lstrip("."), part, stamp, digest.hexdigest()[:8]]))
        return cls(name, started=started, origin=origin)

    @property
    def name(self) -> str:
        """``shard 2/4, attempt 1``, for messages."""
        return f"{f'shard {self.shard}' if self.shard else 'the run'}, attempt {self.attempt}"


@dataclass(slots=True)
class Worker:
    """One process that runs tests. ``offset`` seconds were added to its clock to get the controller's.

    It was started at ``started`` and had collected at ``ready``; None where that is not known.
    """

    name: str
    host: str = ""
    pid: int = 0
    offset: float = 0.0
    started: float | None = None
    ready: float | None = None
    machine: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Jit:
    """Kernels that were compiled during a test: seconds, how many, and how many more came out of a cache."""

    seconds: float = 0.0
    count: int = 0
    hits: int = 0


@dataclass(slots=True)
class Timed:
    """One attempt at one test.

    ``phases`` has a letter each for set-up, call and teardown: p passed, f failed, s skipped, x failed as expected,
    X passed unexpectedly, r failed and run again, - did not run. A test that failed in call and in teardown is
    ``"pff"``: one test with both facts. ``rss`` is the process's peak after the test (kept in whole KiB), ``gc``
    the seconds of garbage collection during it, ``gpu`` its peak of GPU memory.
    """

    id: str
    worker: str = MAIN
    start: float = 0.0
    setup: float = 0.0
    call: float = 0.0
    teardown: float = 0.0
    rss: int = 0
    phases: str = "ppp"
    attempt: int = 1
    gc: float = 0.0
    gpu: int = 0
    jit: Jit | None = None

    @property
    def outcome(self) -> str:
        """passed, failed, error, skipped, xfailed, xpassed or rerun."""
        return outcome_of(self.phases)

    @property
    def seconds(self) -> float:
        """All three phases."""
        return self.setup + self.call + self.teardown

    @property
    def failed_in(self) -> list[str]:
        """The phases that failed, also in an attempt that was repeated."""
        names = ("setup", "call", "teardown")
        return [name for name, letter in zip(names, self.phases, strict=True) if letter in "fr"]


@dataclass(slots=True)
class Fixture:
    """One set-up and teardown of a fixture, or ``count`` of them added up, for ``node`` (an item, class, file...).

    ``teardown_start`` is None where there was no teardown, or for several added up.
    """

    name: str
    scope: str
    param: str = ""
    node: str = ""
    worker: str = MAIN
    start: float = 0.0
    setup: float = 0.0
    teardown: float = 0.0
    teardown_start: float | None = None
    count: int = 1


@dataclass(slots=True)
class Collected:
    """What collecting one file took one worker, its imports included."""

    file: str
    worker: str = MAIN
    seconds: float = 0.0


@dataclass(slots=True)
class Imported:
    """What importing one test module took one worker."""

    module: str
    worker: str = MAIN
    seconds: float = 0.0


@dataclass(slots=True)
class Record:
    """Something that was announced, such as a step of clean-up; ``data`` is plain JSON."""

    kind: str
    nodeid: str = ""
    data: Any = None
    worker: str = MAIN
    start: float = 0.0


@dataclass(slots=True)
class Whole:
    """All ids that were collected, before any shard's selection, as digests.

    ``files`` has number and short digest for each file: enough to say where two collections differ, in a few
    kilobytes for any number of tests.
    """

    count: int
    digest: str
    files: dict[str, tuple[int, str]]

    @classmethod
    def of(cls, ids: Iterable[str]) -> Whole:
        whole = sorted(map(canonical, ids))
        groups: dict[str, list[str]] = {}
        for nodeid in whole:
            groups.setdefault(nodeid.partition("::")[0], []).append(nodeid)
        files = {file: (len(group), digest_of(group)[:8]) for file, group in groups.items()}
        return cls(len(whole), digest_of(whole), files)

    def to_json(self) -> list[Any]:
        """Plain lists, to send from a worker; ``from_json`` takes them back."""
        return [self.count, self.digest, {file: list(pair) for file, pair in self.files.items()}]

    @classmethod
    def from_json(cls, data: Any) -> Whole:
        count, digest, files = data
        return cls(int(count), str(digest), {str(file): (int(n), str(short)) for file, (n, short) in files.items()})


@dataclass(slots=True)
class Run:
    """One run file, or what was read from a foreign one.

    ``selected`` are the ids that this shard was to run, ``whole`` what they were selected from (None: not recorded).
    ``complete``: the end was recorded. ``cut``: the file itself lost its end, or its last line. ``other`` holds lines
    of kinds that this version does not know; ``notes`` are things to tell the user about how it was read.
    """

    header: Header
    workers: dict[str, Worker] = field(default_factory=dict)
    tests: list[Timed] = field(default_factory=list)
    fixtures: list[Fixture] = field(default_factory=list)
    collection: list[Collected] = field(default_factory=list)
    imports: list[Imported] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    whole: Whole | None = None
    selected: list[str] | None = None
    exit_status: int | None = None
    seconds: float | None = None
    complete: bool = False
    cut: bool = False
    other: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    path: str = ""


@dataclass(slots=True)
class Joined:
    """All attempts at one test of one CI run, oldest first; the last one counts."""

    attempts: list[Timed]

    @property
    def final(self) -> Timed:
        return self.attempts[-1]

    @property
    def verdict(self) -> str:
        """The last attempt's outcome, or ``flaky`` where it passed after one that did not."""
        bad = ("failed", "error", "rerun")
        if self.final.outcome == "passed" and any(timed.outcome in bad for timed in self.attempts):
            return "flaky"
        return self.final.outcome


def joined(runs: Iterable[Run]) -> dict[str, Joined]:
    """The tests of shards, attempts and retries by id, so that each test counts once."""
    tests: dict[str, Joined] = {}
    for run in sorted(runs, key=lambda run: (run.header.started, run.header.attempt)):
        for timed in sorted(run.tests, key=lambda timed: timed.attempt):
            tests.setdefault(timed.id, Joined([])).attempts.append(timed)
    return tests


@lru_cache(maxsize=1_000)
def outcome_of(phases: str) -> str:
    """One word for the letters of ``Timed.phases``; a test without a result of its call is an error, not a pass."""
    setup, call, teardown = tuple(phases)
    if "r" in phases:
        return "rerun"
    if call == "f":
        return "failed"
    if "f" in (setup, teardown):
        return "error"
    if "x" in (setup, call):
        return "xfailed"
    if "s" in (setup, call):
        return "skipped"
    return {"p": "passed", "X": "xpassed"}.get(call, "error")


def split_id(nodeid: str) -> tuple[str, str | None, str | None]:
    """``("tests/test_a.py", "TestX::test_y", "fp16-64")``; name or parameters are None where there are none.

    ``join_id`` puts any text together again as it was.
    """
    file, separator, name = nodeid.partition("::")
    if not separator:
        return file, None, None
    if name.endswith("]"):
        function, bracket, params = name.partition("[")
        if bracket:
            return file, function, params[:-1]
    return file, name, None


def join_id(file: str, name: str | None, params: str | None) -> str:
    """The opposite of ``split_id``."""
    text = file if name is None else f"{file}::{name}"
    return text if params is None else f"{text}[{params}]"


def canonical(text: str) -> str:
    """A text as it comes back out of a file: cut to ``LONGEST``, with a digest of the whole where it was cut.

    JSON reads a high surrogate before a low one as one character, so they are joined here already.
    """
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if len(text) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    kept = LONGEST - 60
    return f"{text[:kept]}~{digest} ({len(text) - kept:,} characters cut)"


def digest_of(ids: Iterable[str]) -> str:
    """SHA-256 of the sorted ids as a JSON list: the same for any order, and the one that plans carry."""
    text = json.dumps(sorted(map(canonical, ids)), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def shard_numbers(shard: str, where: str = "") -> tuple[int, int]:
    """``"2/4"`` -> (2, 4); "" -> (1, 1)."""
    if not shard:
        return 1, 1
    found = _SHARD.fullmatch(shard)
    numbers = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= numbers[0] <= numbers[1]:
        raise TimingError(f"shard {shard!r} is not one of 1/N to N/N", where, "write it as 2/4")
    return numbers


def plain(value: Any, depth: int = 8) -> Any:
    """``value`` as JSON can hold it: what it cannot becomes text, and long texts are cut."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return canonical(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no nan and no infinity
    if depth and isinstance(value, Mapping):
        return {canonical(str(key)): plain(part, depth - 1) for key, part in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [plain(part, depth - 1) for part in value]
    try:
        return canonical(str(value))
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        return f"<{type(value).__qualname__}>"
