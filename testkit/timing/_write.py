"""Write a run file while the run goes on: JSON lines, appended, renamed at the end.

The first line is an object, the header. Each other line is an array that begins with its kind::

    ["word", 0, "tests/test_a.py"]                    a file or function name, by number
    ["ids", 0, 0, 1, ["64-fp16", "64-bf16"]]          ids 0 and 1: words of file and function, and the parameters
    ["worker", 0, "gw0", {"host": ..., "pid": ...}]   one more line about the same worker adds to it
    ["collected", [COUNT, DIGEST, {FILE: [COUNT, DIGEST]}], [[0, 2]]]     the whole, and the selected ids as ranges
    ["test", ID, WORKER, START, SETUP, CALL, TEARDOWN, RSS, PHASES, ATTEMPT, GC, GPU, [JIT, COUNT, HITS]]
    ["fixture", NAME, SCOPE, PARAM, ID, WORKER, START, SETUP, TEARDOWN, TEARDOWN_START, COUNT]
    ["file", WORD, WORKER, TIME]                      collection of one file
    ["import", MODULE, WORKER, TIME]
    ["record", KIND, ID, WORKER, START, DATA]
    ["end", EXIT_STATUS, TIME, NUMBER_OF_TESTS]

Times are whole microseconds, RSS is in KiB. A test's fields after RSS are left out from the first one on after which
all have their usual values. Lines stand for themselves apart from the numbers of words, ids and workers, so a file
can be cut anywhere and queried by other tools. New kinds of line and new fields at the end of a known one do not
change ``VERSION``; readers pass over them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from testkit.errors import TimingError
from testkit.timing._run import (
    Collected,
    Fixture,
    Header,
    Imported,
    Record,
    Run,
    Timed,
    Whole,
    Worker,
    canonical,
    plain,
    shard_numbers,
    split_id,
)

VERSION = 1
MARK = "testkit_timing"
SUFFIX = ".timing.jsonl"
PARTIAL = ".partial"

FLUSH_EVERY = 1.0
"""Seconds; a killed run loses at most this much."""

IDS_A_LINE = 500

Row: TypeAlias = Timed | Fixture | Collected | Imported | Record | Worker

# Tests replace functions of os and json, and rows are written while such a test runs.
_os_write, _os_close, _os_rename, _getpid = os.write, os.close, os.rename, os.getpid


class Encoder(json.JSONEncoder):
    """Compact JSON by methods of its own: those of ``json.JSONEncoder`` may be replaced."""

    encode = json.JSONEncoder.encode
    iterencode = json.JSONEncoder.iterencode

    def __init__(self, default: Callable[[Any], Any] | None = None) -> None:
        super().__init__(separators=(",", ":"), default=default)


_encode = Encoder().encode

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class NameTakenError(Exception):
    """Another run has the file of that name."""


class Writer:
    """Appends to ``NAME.timing.jsonl.partial`` until ``close`` renames it.

    A file is never overwritten: if the name is taken, a number is added, or, with ``exact``, NameTakenError is raised.
    Full disks and the like do not stop a run: ``problem`` then says what happened, nothing more is written, and the
    file keeps its ``.partial``. In a fork of the process that made it, it does nothing. Not for use from several
    threads.
    """

    def __init__(self, folder: Path, header: Header, *, exact: bool = False) -> None:
        if not header.run:
            raise TimingError("a run needs a name", "header", "give its shards and attempts one that they share")
        shard_numbers(header.shard, "header")
        self.problem = ""
        self._lines: list[str] = []
        self._flushed = 0.0
        self._words: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._workers: dict[str, int] = {}
        self._tests = 0
        self._put: dict[type, Callable[[Any], None]] = {
            Timed: self._timed,
            Fixture: self._fixture,
            Collected: self._collected_file,
            Imported: self._imported,
            Record: self._record,
            Worker: self._worker_line,
        }
        self._pid = _getpid()
        self.path, self._file = _claim(folder, _stem(header), exact=exact)
        self._lines.append(_line(_header_json(header)))
        self.flush()

    def add(self, row: Row) -> None:
        """Append one row; it reaches the disk with the next ``flush``."""
        self._put[type(row)](row)

    def collected(self, whole: Whole, selected: Iterable[str]) -> None:
        """What was collected before any selection, and the ids that this run or shard is to run, in order."""
        numbers = self._number_all(list(selected))
        ranges: list[list[int]] = []
        for number in numbers:
            if ranges and number == sum(ranges[-1]):
                ranges[-1][1] += 1
            else:
                ranges.append([number, 1])
        self._lines.append(_line(["collected", whole.to_json(), ranges]))

    def maybe_flush(self, now: float) -> None:
        """Flush if a second has gone by on the caller's clock since this last did."""
        if now - self._flushed >= FLUSH_EVERY:
            self._flushed = now
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        lines, self._lines = self._lines, []
        if self.problem or _getpid() != self._pid:
            return
        data = memoryview("".join(lines).encode("ascii"))
        try:
            while data:
                data = data[_os_write(self._file, data) :]
        except OSError as error:
            # Half a line may be on the disk; with more after it the file could not be read at all.
            self.problem = f"{self.path}: {error.strerror or error}"

    def close(self, exit_status: int | None, seconds: float) -> Path:
        """Write the end after ``seconds`` of run and rename the file; returns where it is now."""
        if _getpid() != self._pid:
            return self.path
        self._lines.append(_line(["end", exit_status, _us(seconds), self._tests]))
        self.abandon()
        if not self.problem:
            try:
                self.path = _renamed(self.path)
            except OSError as error:
                self.problem = f"{self.path}: {error.strerror or error}"
        return self.path

    def abandon(self) -> None:
        """Flush and close without an end: readers see that the run did not finish."""
        self.flush()
        if self._file >= 0 and _getpid() == self._pid:
            _os_close(self._file)
            self._file = -1

    def _timed(self, row: Timed) -> None:
        self._tests += 1
        head = (
            f'["test",{self._number(row.id)},{self._worker(row.worker)},{_us(row.start)},'
            f"{_us(row.setup)},{_us(row.call)},{_us(row.teardown)},{int(row.rss) >> 10}"
        )
        if row.phases == "ppp" and row.attempt == 1 and not row.gc and not row.gpu and row.jit is None:
            self._lines.append(head + "]\n")
            return
        tail = [_encode(row.phases), row.attempt, _us(row.gc), row.gpu]
        if row.jit is not None:
            tail.append(f"[{_us(row.jit.seconds)},{row.jit.count},{row.jit.hits}]")
        else:
            while tail[-1] == 0:
                tail.pop()
        self._lines.append(f"{head},{','.join(map(str, tail))}]\n")

    def _fixture(self, row: Fixture) -> None:
        names = _encode([canonical(row.name), row.scope, canonical(row.param)])[1:-1]
        ended = "null" if row.teardown_start is None else str(_us(row.teardown_start))
        self._lines.append(
            f'["fixture",{names},{self._number(row.node)},{self._worker(row.worker)},'
            f"{_us(row.start)},{_us(row.setup)},{_us(row.teardown)},{ended},{row.count}]\n"
        )

    def _collected_file(self, row: Collected) -> None:
        self._lines.append(f'["file",{self._word(row.file)},{self._worker(row.worker)},{_us(row.seconds)}]\n')

    def _imported(self, row: Imported) -> None:
        worker = self._worker(row.worker)
        self._lines.append(_line(["import", canonical(row.module), worker, _us(row.seconds)]))

    def _record(self, row: Record) -> None:
        number, worker = self._number(row.nodeid), self._worker(row.worker)
        self._lines.append(_line(["record", canonical(row.kind), number, worker, _us(row.start), plain(row.data)]))

    def _worker_line(self, row: Worker) -> None:
        known: dict[str, Any] = {
            "host": row.host,
            "pid": row.pid,
            "offset": None if not row.offset else _us(row.offset),
            "started": None if row.started is None else _us(row.started),
            "ready": None if row.ready is None else _us(row.ready),
            "machine": plain(row.machine),
        }
        number = self._workers.setdefault(row.name, len(self._workers))
        self._lines.append(_line(["worker", number, row.name, {key: value for key, value in known.items() if value}]))

    def _worker(self, name: str) -> int:
        number = self._workers.get(name)
        if number is None:
            number = self._workers[name] = len(self._workers)
            self._lines.append(_line(["worker", number, name, {}]))
        return number

    def _word(self, text: str) -> int:
        number = self._words.get(text)
        if number is None:
            number = self._words[text] = len(self._words)
            self._lines.append(_line(["word", number, text]))
        return number

    def _number(self, nodeid: str) -> int:
        number = self._ids.get(nodeid)
        return self._number_all([nodeid])[0] if number is None else number

    def _number_all(self, nodeids: list[str]) -> list[int]:
        """The numbers of ids; new ones get lines, one for consecutive ids of a function."""
        first = 0
        group: tuple[str, str | None] = ("", None)
        params: list[str | None] = []
        for nodeid in nodeids:
            if nodeid in self._ids:
                continue
            file, name, param = split_id(canonical(nodeid))
            if params and ((file, name) != group or len(params) == IDS_A_LINE):
                self._id_line(first, group, params)
                params = []
            if not params:
                first, group = len(self._ids), (file, name)
            params.append(param)
            self._ids[nodeid] = len(self._ids)
        if params:
            self._id_line(first, group, params)
        return [self._ids[nodeid] for nodeid in nodeids]

    def _id_line(self, first: int, group: tuple[str, str | None], params: list[str | None]) -> None:
        file, name = group
        words = (self._word(file), None if name is None else self._word(name))
        self._lines.append(_line(["ids", first, *words, params]))


def write(folder: Path, run: Run) -> Path:
    """Write a whole run, such as an imported one."""
    writer = Writer(folder, run.header)
    for worker in run.workers.values():
        writer.add(worker)
    if run.whole is not None:
        writer.collected(run.whole, run.selected or ())
    for rows in (run.collection, run.imports, run.fixtures, run.tests, run.records):
        for row in rows:
            writer.add(row)
    if run.complete:
        path = writer.close(run.exit_status, run.seconds or 0.0)
    else:
        writer.abandon()
        path = writer.path
    if writer.problem:
        raise TimingError(f"cannot write {writer.problem}", fix="free the disk, or name another folder")
    return path


def free_name(folder: Path, stem: str, suffix: str = "") -> Path:
    """``stem`` in ``folder``, with a number where that is taken; open it with O_EXCL, it may be taken by then."""
    name, number = stem, 1
    while any(os.path.lexists(folder / f"{name}{SUFFIX}{ending}") for ending in {"", suffix}):
        number += 1
        name = f"{stem}-{number}"
    return folder / f"{name}{SUFFIX}{suffix}"


def _claim(folder: Path, stem: str, *, exact: bool) -> tuple[Path, int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            path = folder / f"{stem}{SUFFIX}{PARTIAL}" if exact else free_name(folder, stem, PARTIAL)
            try:
                file = os.open(path, flags, 0o666)
            except FileExistsError:
                if exact:
                    raise NameTakenError(str(path)) from None
                continue  # another writer was quicker; its file is seen now
            if exact and os.path.lexists(folder / f"{stem}{SUFFIX}"):  # and was done before we looked at its .partial
                os.close(file)
                path.unlink()
                raise NameTakenError(str(path))
            return path, file
    except OSError as error:
        raise TimingError(f"cannot write in {folder}: {error.strerror or error}", fix="name another folder") from error


def _renamed(partial: Path) -> Path:
    # Every writer claims the .partial first, so only a copy that somebody put here meanwhile can be in the way.
    target = partial.with_name(partial.name[: -len(PARTIAL)])
    if target.exists():
        target = free_name(partial.parent, target.name[: -len(SUFFIX)])
    _os_rename(partial, target)
    return target


def _stem(header: Header) -> str:
    number, of = shard_numbers(header.shard)
    shard = f".{number}of{of}" if header.shard else ""
    return f"{_UNSAFE.sub('_', header.run)[:100]}{shard}.{header.attempt}"


def _header_json(header: Header) -> dict[str, Any]:
    fields = {name: plain(getattr(header, name)) for name in Header.__dataclass_fields__}
    return {MARK: VERSION, **{name: value for name, value in fields.items() if value}}


def _line(value: Any) -> str:
    return _encode(value) + "\n"


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)
