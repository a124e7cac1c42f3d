"""Rows found before, kept in a folder: one file for a model and what was asked of it, proved again when it is read.

A file is written under another name and then moved into place, so that nobody reads half of one. Of several processes
that want the same rows at once, as the workers of pytest-xdist do, one finds them while the others wait.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from testkit.errors import KitWarning, PairwiseError
from testkit.pairwise._model import Model, Row
from testkit.pairwise._proof import prove

LONGEST_WAIT = 120.0
"""Seconds to wait for another process that finds rows; then they are found here too, and are the same."""

BETWEEN_LOOKS = 0.02
"""Seconds between two looks at a lock that another process holds."""


def kept_rows(folder: Path, model: Model, asked: str, find: Callable[[], list[Row]]) -> list[Row]:
    """The rows of ``model`` from ``folder``, else those that ``find`` returns, which are kept there.

    ``asked`` is all else that the rows depend on: seed, effort, engine and its version. A file that is damaged, foreign
    or does not hold what the model owes counts as none. A model with a predicate that is asked as needed (its answers
    are not known beforehand, so neither is whether they changed) is not kept. Where the folder cannot be written the
    rows are returned all the same, with a ``KitWarning``.
    """
    name = digest(model, asked)
    if name is None:
        return find()
    file = folder / f"{name}.json"
    rows = _read(file, model)
    if rows is None:
        with _alone(file.with_suffix(".lock")):
            rows = _read(file, model)  # another process may have found them meanwhile
            if rows is None:
                rows = find()
                _write(file, rows)
    return rows


def digest(model: Model, asked: str) -> str | None:
    """A name for the model and what is asked of it; None if a predicate's answers are not all known."""
    rules = [(rule.scope, sorted(rule.table)) for rule in model.space.rules if rule.table is not None]
    if len(rules) < len(model.space.rules):
        return None
    kept = [sorted(case.items()) for case in model.kept]
    whole = json.dumps([asked, model.levels, model.strength, model.crossed, kept, rules])
    return sha256(whole.encode()).hexdigest()[:32]


def _read(file: Path, model: Model) -> list[Row] | None:
    try:
        rows, check = json.loads(file.read_text(encoding="utf-8"))
        if check != _check(file, rows) or not _fits(rows, model):
            return None
        prove(model, rows)
    except (OSError, ValueError, TypeError, RecursionError, PairwiseError):
        return None
    found: list[Row] = rows
    return found


def _fits(rows: list[Row], model: Model) -> bool:
    """Are these whole cases of the model's levels? The proof takes that for granted."""
    return all(
        len(row) == len(model.levels)
        and all(type(level) is int and 0 <= level < n for level, n in zip(row, model.levels, strict=True))
        for row in rows
    )


def _check(file: Path, rows: list[Row]) -> str:
    """What a file says at its end, so that one which was cut, changed or renamed is not taken for whole."""
    return sha256(f"{file.name} {json.dumps(rows)}".encode()).hexdigest()


def _write(file: Path, rows: list[Row]) -> None:
    beside = file.with_suffix(f".{os.getpid()}")
    try:
        beside.write_text(json.dumps([rows, _check(file, rows)]), encoding="utf-8")
        os.replace(beside, file)
    except OSError as refused:
        _warn(file.parent, refused)
        _remove(beside)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of the file at ``path``, which ends with the process at the latest; none where none can be had."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("ab")
    except OSError as refused:
        _warn(path.parent, refused)
        yield
        return
    with lock:
        deadline = time.monotonic() + LONGEST_WAIT
        while not _taken(lock.fileno()) and time.monotonic() < deadline:
            time.sleep(BETWEEN_LOOKS)
        try:
            yield
        finally:
            _remove(path)  # whoever waits at it, and whoever makes another, looks for the rows first


def _taken(fd: int) -> bool:
    """Is the lock ours now? Also true where there are no locks: then each process finds the rows for itself."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows; a file system without locks
        return True
    return True


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _warn(folder: Path, refused: OSError) -> None:
    problem = f"pairwise: the rows found are not kept in {folder}: {refused.strerror or refused}"
    warnings.warn(problem, KitWarning, stacklevel=2)
