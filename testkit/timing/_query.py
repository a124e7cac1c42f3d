"""Run files as tables for SQL: DuckDB reads them, and any question can be asked."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from testkit._text import table
from testkit.errors import TimingError
from testkit.timing._junit import visible
from testkit.timing._run import Run, split_id
from testkit.timing._say import shown

_OF_RUN = {"run": "VARCHAR", "shard": "VARCHAR", "run_attempt": "BIGINT"}

TABLES: dict[str, dict[str, str]] = {
    "runs": {
        **_OF_RUN,
        **dict.fromkeys(("host", "python", "pytest", "origin", "path"), "VARCHAR"),
        "started": "TIMESTAMP",
        "seconds": "DOUBLE",
        "exit_status": "BIGINT",
        "complete": "BOOLEAN",
        "collected": "BIGINT",
        "selected": "BIGINT",
        **dict.fromkeys(("argv", "machine"), "JSON"),
    },
    "tests": {
        **_OF_RUN,
        **dict.fromkeys(("worker", "id", "file", "name", "params", "outcome", "phases"), "VARCHAR"),
        "attempt": "BIGINT",
        **dict.fromkeys(("start", "setup", "call", "teardown", "seconds", "gc"), "DOUBLE"),
        **dict.fromkeys(("rss", "gpu"), "BIGINT"),
        "jit_seconds": "DOUBLE",
        **dict.fromkeys(("jit_count", "jit_hits"), "BIGINT"),
    },
    "fixtures": {
        **_OF_RUN,
        **dict.fromkeys(("worker", "name", "scope", "param", "node"), "VARCHAR"),
        **dict.fromkeys(("start", "setup", "teardown", "teardown_start"), "DOUBLE"),
        "count": "BIGINT",
    },
    "collection": {**_OF_RUN, "worker": "VARCHAR", "file": "VARCHAR", "seconds": "DOUBLE"},
    "imports": {**_OF_RUN, "worker": "VARCHAR", "module": "VARCHAR", "seconds": "DOUBLE"},
    "records": {
        **_OF_RUN,
        "worker": "VARCHAR",
        "kind": "VARCHAR",
        "nodeid": "VARCHAR",
        "start": "DOUBLE",
        "data": "JSON",
    },
    "workers": {
        **_OF_RUN,
        "name": "VARCHAR",
        "host": "VARCHAR",
        "pid": "BIGINT",
        **dict.fromkeys(("clock_offset", "started", "ready"), "DOUBLE"),
        "machine": "JSON",
    },
}
"""Columns and their types; times are seconds since the run's start, ``runs.started`` is UTC, sizes are bytes."""


def query(runs: Sequence[Run], sql: str, *, as_csv: bool = False) -> str:
    """The answer as an aligned table, or as CSV. Raises TimingError for SQL that DuckDB refuses."""
    try:
        import duckdb
    except ImportError as error:
        fix = 'install the extra: pip install "kernel-testkit[report]"'
        raise TimingError(f"queries need DuckDB, which cannot be imported ({error})", fix=fix) from error
    with (
        duckdb.connect(config={"python_enable_replacements": False}) as connection,
        tempfile.TemporaryDirectory() as folder,
    ):
        for name, columns in TABLES.items():
            _fill(connection, Path(folder), name, columns, runs)
        try:
            answer = connection.execute(sql)
            # Of a text without a statement there is no answer, or one without columns.
            titles = [column[0] for column in (answer and answer.description) or ()]
            if not titles:
                raise TimingError("an empty query", fix="try: describe tests")
            rows = answer.fetchall()
        except duckdb.Error as error:
            told = " ".join(str(error).split("\n\nLINE")[0].split())
            raise TimingError(told, "the query", f"the tables are {', '.join(TABLES)}; try: describe tests") from error
    return (
        _csv(titles, rows)
        if as_csv
        else "\n".join(table([titles, *([_cell(cell) for cell in row] for row in rows)], indent=""))
    )


def _fill(connection: Any, folder: Path, name: str, columns: dict[str, str], runs: Sequence[Run]) -> None:
    # Inserted row by row, 10,000 tests take a second; out of a file they take a fiftieth of that.
    path = folder / f"{name}.json"
    with path.open("w", encoding="ascii") as file:
        for row in _rows(name, runs):
            file.write(json.dumps({key: _clean(value) for key, value in row.items()}) + "\n")
    types = ", ".join(f"{column}: '{kind}'" for column, kind in columns.items())
    how = f"format='newline_delimited', columns={{{types}}}, maximum_object_size={1 << 28}"
    connection.execute(f'create table "{name}" as select * from read_json(?, {how})', [str(path)])


def _rows(name: str, runs: Iterable[Run]) -> Iterator[dict[str, Any]]:
    for run in runs:
        of = {"run": run.header.run, "shard": run.header.shard, "run_attempt": run.header.attempt}
        for row in _OWN[name](run):
            yield {**of, **{column: row[column] for column in TABLES[name] if column in row}}


def _runs(run: Run) -> Iterator[dict[str, Any]]:
    header = run.header
    yield {
        **{name: getattr(header, name) for name in ("host", "python", "pytest", "origin", "argv", "machine")},
        "path": run.path,
        "started": datetime.fromtimestamp(header.started, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f"),
        "seconds": run.seconds,
        "exit_status": run.exit_status,
        "complete": run.complete,
        "collected": run.whole and run.whole.count,
        "selected": None if run.selected is None else len(run.selected),
    }


def _tests(run: Run) -> Iterator[dict[str, Any]]:
    for timed in run.tests:
        file, name, params = split_id(timed.id)
        jit = timed.jit
        yield {
            **_fields(timed),
            "file": file,
            "name": name,
            "params": params,
            "outcome": timed.outcome,
            "seconds": timed.seconds,
            **({} if jit is None else {"jit_seconds": jit.seconds, "jit_count": jit.count, "jit_hits": jit.hits}),
        }


def _workers(run: Run) -> Iterator[dict[str, Any]]:
    for worker in run.workers.values():
        yield {**_fields(worker), "clock_offset": worker.offset}


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


_OWN: dict[str, Any] = {
    "runs": _runs,
    "tests": _tests,
    "fixtures": lambda run: map(_fields, run.fixtures),
    "collection": lambda run: map(_fields, run.collection),
    "imports": lambda run: map(_fields, run.imports),
    "records": lambda run: map(_fields, run.records),
    "workers": _workers,
}


def _clean(value: Any) -> Any:
    """Texts that DuckDB takes: half a surrogate pair or a NUL in an id would stop it."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): _clean(part) for key, part in value.items()}
    return [_clean(part) for part in value] if isinstance(value, list) else value


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return shown(value) if isinstance(value, str) else value


def _csv(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([titles, *rows])
    return text.getvalue().rstrip("\n")
