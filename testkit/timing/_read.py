"""Read run files: whole ones, those of runs that go on or were killed, and folders of them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from testkit._text import counted
from testkit.errors import KitWarning, TimingError
from testkit.timing._run import (
    Collected,
    Fixture,
    Header,
    Imported,
    Jit,
    Record,
    Run,
    Timed,
    Whole,
    Worker,
    join_id,
    outcome_of,
)
from testkit.timing._write import MARK, PARTIAL, SUFFIX, VERSION

Values: TypeAlias = list[Any]
_T = TypeVar("_T")

MOST = 1 << 53
"""No number in a run file is further from 0; as microseconds it is 285 years."""

FIX = "take the file from where it was written"


def read(path: str | Path) -> Run:
    """One run file. A ``.partial`` and a cut last line are read, and said in ``complete`` and ``cut``.

    Raises TimingError for anything else that is not a whole run file of this version or an older one.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TimingError(f"cannot read {path}: {error.strerror or error}") from error
    lines = data.split(b"\n")
    reader = _Reader(_read_header(lines[0], path))
    for number, line in enumerate(lines[1:], 2):
        if reader.take(line):
            continue
        if number < len(lines):
            raise TimingError(f"line {number} of {path} is damaged: {_shown(line)}", fix=FIX)
        reader.run.cut = bool(line)  # the last one: empty where the file ends as it should
    return _finish(reader, path)


def read_folder(folder: str | Path) -> list[Run]:
    """All run files in and below ``folder`` (CI puts each job's artifact in a folder of its own), oldest run first.

    A file that cannot be read is an error, never left out. Where a run's ``.partial`` lies beside the renamed file,
    that one is read.
    """
    folder = Path(folder)
    if folder.is_file():
        return [read(folder)]
    runs = []
    for path in run_files(folder):
        if path.name.endswith(PARTIAL) and not path.stat().st_size:
            warnings.warn(KitWarning(f"timing: {path} is empty, it was left out"), stacklevel=2)
        else:
            runs.append(read(path))
    if not runs:
        raise TimingError(f"no run file in {folder}", fix=f"name a folder with *{SUFFIX} files")
    return sorted(runs, key=lambda run: (run.header.started, run.path))


def run_files(folder: Path) -> list[Path]:
    """The paths that ``read_folder`` reads."""
    whole = {path for path in folder.rglob(f"*{SUFFIX}") if path.is_file()}
    partial = {path for path in folder.rglob(f"*{SUFFIX}{PARTIAL}") if path.is_file()}
    return sorted(whole | {path for path in partial if path.with_suffix("") not in whole})


def is_run_file(first_line: bytes) -> bool:
    """Does a file that begins so say that it is a run file, of whatever version?"""
    header = _json(first_line)
    return isinstance(header, dict) and MARK in header


def _read_header(line: bytes, path: Path) -> Header:
    if not line.strip():
        raise TimingError(f"{path} is empty" if not line else f"{path} does not begin with a header")
    fields = _json(line)
    if not isinstance(fields, dict) or MARK not in fields:
        cut = line.startswith(f'{{"{MARK}"'.encode())
        what = "is cut in its first line" if cut else f"is not a run file; it begins with {_shown(line)}"
        fix = FIX if cut else "bring other reports in with testkit timing import"
        raise TimingError(f"{path} {what}", fix=fix)
    if fields[MARK] != VERSION:
        raise TimingError(
            f"{path} has format {fields[MARK]!r}, this testkit reads {VERSION}", fix="use the testkit that wrote it"
        )
    known = {name: value for name, value in fields.items() if name in Header.__dataclass_fields__}
    try:
        header = Header(**known)
        for name in ("run", "shard", "host", "python", "pytest", "origin"):
            _text(getattr(header, name))
        _of(header.argv, list)
        _of(header.machine, dict)
        header.started, header.attempt = float(header.started), int(header.attempt)
        datetime.fromtimestamp(header.started)  # raises for what is no time
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise TimingError(f"the header of {path} is damaged: {_shown(line)}") from error
    return header


def _finish(reader: _Reader, path: Path) -> Run:
    run = reader.run
    run.path = str(path)
    if run.complete and reader.announced != len(run.tests):
        raise TimingError(f"{path} announces {counted(reader.announced, 'test')} and holds {len(run.tests):,}", fix=FIX)
    # Only a file that has its end is renamed: without one it lost it afterwards.
    run.cut = run.cut or not (run.complete or path.name.endswith(PARTIAL))
    return run


class _Reader:
    """Takes the lines one by one; the opposite of ``Writer``.

    Each value is checked here, as the only place: what has a wrong type or is no finite time makes its line damaged.
    """

    def __init__(self, header: Header) -> None:
        self.run = Run(header)
        self.announced = 0
        self._words: dict[int, str] = {}
        self._ids: dict[int, str] = {}
        self._workers: dict[int, str] = {}
        self._take: dict[str, Callable[[Values], None]] = {
            "test": self._test,
            "word": self._word,
            "ids": self._id_line,
            "worker": self._worker,
            "collected": self._collected,
            "fixture": self._fixture,
            "file": self._file,
            "import": self._import,
            "record": self._record,
            "end": self._end,
        }

    def take(self, text: bytes) -> bool:
        """False if the line is damaged."""
        try:
            line = json.loads(text)
            if not isinstance(line, list):
                return False
            take = self._take.get(line[0])
            if take is None:
                self.run.other.append(line)
            else:
                take(line)
        except (ValueError, TypeError, IndexError, KeyError, AttributeError, RecursionError):
            return False
        return True

    def _test(self, line: Values) -> None:
        _, number, worker, start, setup, call, teardown, rss, *rest = line
        phases, attempt, gc, gpu, jit = (*rest[:5], *_USUAL[len(rest) :])
        outcome_of(_text(phases))  # raises ValueError unless there are three
        self.run.tests.append(
            Timed(
                self._ids[number],
                self._workers[worker],
                _time(start),
                _time(setup),
                _time(call),
                _time(teardown),
                _whole(rss) << 10,
                phases,
                _whole(attempt),
                _time(gc),
                _whole(gpu),
                None if jit is None else Jit(_time(jit[0]), _whole(jit[1]), _whole(jit[2])),
            )
        )

    def _word(self, line: Values) -> None:
        self._words[line[1]] = _text(line[2])

    def _id_line(self, line: Values) -> None:
        _, first, file, name, params = line[:5]
        function = None if name is None else self._words[name]
        for offset, param in enumerate(params):
            self._ids[first + offset] = join_id(self._words[file], function, None if param is None else _text(param))

    def _worker(self, line: Values) -> None:
        _, number, name, known = line[:4]
        self._workers[number] = _text(name)
        worker = self.run.workers.setdefault(name, Worker(name))
        for key in known.keys() & _OF_A_WORKER.keys():
            setattr(worker, key, _OF_A_WORKER[key](known[key]))

    def _collected(self, line: Values) -> None:
        _, whole, ranges = line[:3]
        self.run.whole = Whole.from_json(whole)
        self.run.selected = [self._ids[first + offset] for first, count in ranges for offset in range(count)]

    def _fixture(self, line: Values) -> None:
        _, name, scope, param, node, worker, start, setup, teardown, ended, count = line[:11]
        names = (_text(name), _text(scope), _text(param), self._ids[node], self._workers[worker])
        times = (_time(start), _time(setup), _time(teardown), None if ended is None else _time(ended))
        self.run.fixtures.append(Fixture(*names, *times, _whole(count)))

    def _file(self, line: Values) -> None:
        _, file, worker, spent = line[:4]
        self.run.collection.append(Collected(self._words[file], self._workers[worker], _time(spent)))

    def _import(self, line: Values) -> None:
        _, module, worker, spent = line[:4]
        self.run.imports.append(Imported(_text(module), self._workers[worker], _time(spent)))

    def _record(self, line: Values) -> None:
        _, kind, node, worker, start, data = line[:6]
        self.run.records.append(Record(_text(kind), self._ids[node], data, self._workers[worker], _time(start)))

    def _end(self, line: Values) -> None:
        _, status, spent, announced = line[:4]
        self.run.exit_status = None if status is None else _whole(status)
        self.announced, self.run.seconds, self.run.complete = _whole(announced), _time(spent), True


_USUAL: Values = ["ppp", 1, 0, 0, None]


def _of(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _text(value: Any) -> str:
    return _of(value, str)


def _whole(value: Any) -> int:
    if abs(_of(value, int)) > MOST:
        raise ValueError(f"{value!r} is no number of anything")
    return int(value)


def _time(value: Any) -> float:
    """Seconds of microseconds."""
    if type(value) is not int and type(value) is not float:
        raise TypeError(f"{value!r} is no time")
    if not -MOST <= value <= MOST:  # JSON's NaN and Infinity too, which Python reads
        raise ValueError(f"{value!r} is no time")
    return value / 1e6


_OF_A_WORKER: dict[str, Callable[[Any], Any]] = {
    "host": _text,
    "pid": _whole,
    "machine": lambda machine: _of(machine, dict),
    "offset": _time,
    "started": _time,
    "ready": _time,
}


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _shown(line: bytes) -> str:
    text = line[:60].decode("utf-8", "replace")
    return ascii(text) + ("..." if len(line) > 60 else "")
