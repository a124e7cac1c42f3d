"""Durations and reports of other tools as runs; the format is recognised by content, never by a file's name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testkit.errors import TimingError
from testkit.timing._junit import read_junit
from testkit.timing._read import is_run_file
from testkit.timing._run import MAIN, Header, Run, Timed, Worker

READS = "pytest-split's durations, JUnit XML, pytest-reportlog's JSON lines and PyTorch's test times are read"


FIRST = 1 << 16
"""Bytes of the first line that are looked at; a report of 50 MB may be one line."""


def read_foreign(path: Path) -> list[Run]:
    """The runs in a file of another tool: one, or one for each job and configuration of PyTorch's test times.

    Formats that hold no start times have their tests laid end to end; those that hold no outcomes, all passed. Raises
    TimingError for anything else, with what was seen.
    """
    try:
        with path.open("rb") as file:
            first = file.readline(FIRST)
            while first and not first.strip(b"\xef\xbb\xbf \t\r\n"):
                first = file.readline(FIRST)
    except OSError as error:
        raise TimingError(f"cannot read {path}: {error.strerror or error}") from error
    start = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        raise TimingError(f"{path} is empty")
    if is_run_file(start):
        raise TimingError(f"{path} is a run file already", fix="bring it in with testkit timing merge")
    # XML in UTF-16 begins with a byte order mark.
    if start.startswith((b"<", b"\xff\xfe", b"\xfe\xff")):
        return [read_junit(path)]
    if start.startswith((b"{", b"[")):
        line = _object(start)
        return [_reportlog(path)] if "$report_type" in line else _durations(path)
    seen = "gzip-compressed" if start.startswith(b"\x1f\x8b") else f"something that begins with {start[:40]!r}"
    raise TimingError(f"{path} is {seen}", fix="unpack it first" if "gzip" in seen else READS)


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _durations(path: Path) -> list[Run]:
    """pytest-split's dict or list of pairs, or PyTorch's job -> configuration -> file -> seconds."""
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TimingError(
            f"{path} is not whole JSON: {error}", fix="take the file from where it was written, it may be cut"
        ) from error
    started = path.stat().st_mtime
    if isinstance(data, list) and data and all(_is_pair(pair) for pair in data):
        return [_from_seconds(path, Header.imported(path, "pytest-split", started), dict(data))]
    if isinstance(data, dict) and data and not any(isinstance(value, (dict, list)) for value in data.values()):
        return [_from_seconds(path, Header.imported(path, "pytest-split", started), data)]
    if _is_test_times(data):
        return [
            _from_seconds(path, Header.imported(path, "pytorch", started, f"{job}-{config}"), files)
            for job, configs in data.items()
            for config, files in configs.items()
            if files
        ]
    raise TimingError(f"{path} is JSON of no known report: {_seen(data)}", fix=READS)


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)


def _is_test_times(data: Any) -> bool:
    configs = list(data.values()) if isinstance(data, dict) else []
    files = [file for config in configs if isinstance(config, dict) for file in config.values()]
    if not any(files) or not all(isinstance(value, dict) for value in configs + files):
        return False
    return not any(isinstance(seconds, (dict, list)) for file in files for seconds in file.values())


def _seen(data: Any) -> str:
    if not data:
        return "nothing in it"
    if isinstance(data, dict):
        return f"an object with {', '.join(map(repr, list(data)[:5]))}"
    return f"a list that begins with {str(data[0])[:60]!r}"


def _from_seconds(path: Path, header: Header, durations: dict[str, Any]) -> Run:
    run = Run(header, {MAIN: Worker(MAIN)}, complete=True, path=str(path))
    clock = 0.0
    for nodeid, seconds in durations.items():
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
            raise TimingError(f"{path} has {seconds!r} as seconds of {nodeid}", fix="take the entry out")
        run.tests.append(Timed(nodeid, start=clock, call=float(seconds)))
        clock += seconds
    run.notes.append("durations without outcomes: all are taken as passed")
    return run


def _reportlog(path: Path) -> Run:
    """pytest-reportlog: an object a line, a test's phases apart, those of other workers between."""
    run = Run(Header.imported(path, "reportlog", path.stat().st_mtime), path=str(path))
    reports: list[dict[str, Any]] = []
    for line in _lines(path, run):
        kind = line.get("$report_type")
        if kind == "SessionStart":
            run.header.pytest = str(line.get("pytest_version", ""))
        elif kind == "SessionFinish":
            status = line.get("exitstatus")
            run.exit_status, run.complete = status if isinstance(status, int) else None, True
        elif kind == "TestReport":
            # Output and tracebacks, of whatever size, are let go at once.
            kept = ("nodeid", "when", "outcome", "duration", "start", "worker_id")
            reports.append({key: line[key] for key in kept if key in line} | {"xfail": "wasxfail" in line})
    if not reports:
        raise TimingError(f"{path} is a report log without a test", fix="look whether the run that wrote it broke")
    starts = [report["start"] for report in reports if "start" in report]
    if starts:
        version, run.header = run.header.pytest, Header.imported(path, "reportlog", min(starts))
        run.header.pytest = version
    else:
        run.notes.append("no start times: tests are laid end to end")
    try:
        _add_reports(run, reports)
    except (KeyError, TypeError, ValueError) as error:
        raise TimingError(f"{path} has a test report that lacks or misuses a field: {error!r}") from error
    run.workers = {name: Worker(name) for name in dict.fromkeys(timed.worker for timed in run.tests)}
    return run


def _lines(path: Path, run: Run) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            value = _object(line)
            if value:
                yield value
            elif not line.endswith(b"\n"):
                run.cut = True
            elif line.strip():
                raise TimingError(f"line {number} of {path} is no JSON object: {line[:60]!r}")


def _add_reports(run: Run, reports: list[dict[str, Any]]) -> None:
    open_tests: dict[str, Timed] = {}
    attempts: dict[str, int] = {}
    clock = 0.0
    for report in reports:
        nodeid, when, seconds = report["nodeid"], report["when"], float(report["duration"])
        timed = open_tests.get(nodeid)
        if timed is None or when == "setup":
            attempts[nodeid] = attempts.get(nodeid, 0) + 1
            start = report["start"] - run.header.started if "start" in report else clock
            timed = Timed(nodeid, report.get("worker_id", MAIN), start, phases="---", attempt=attempts[nodeid])
            open_tests[nodeid] = timed
            run.tests.append(timed)
        clock += seconds
        at = ("setup", "call", "teardown").index(when) if when != "???" else 1  # xdist's word for a crashed worker
        timed.phases = timed.phases[:at] + _letter(report) + timed.phases[at + 1 :]
        if when != "???":
            setattr(timed, when, seconds)


def _letter(report: dict[str, Any]) -> str:
    outcome = report["outcome"]
    if report["xfail"] and outcome in ("passed", "skipped"):
        return "x" if outcome == "skipped" else "X" if report["when"] == "call" else "p"
    return {"passed": "p", "failed": "f", "skipped": "s", "rerun": "r"}[outcome]
