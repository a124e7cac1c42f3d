"""Where the host waited: the line outside torch and the line of the test; and all waits of one line as one site."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from testkit.syncs._seen import Seen

# Whose frames are never the answer: torch, we, and what stands between a warning and its hook.
INSIDE = ("torch", "testkit.syncs", "warnings", "_py_warnings", "contextlib", "functools")
# Between pytest and the test's own code, or below both.
RUNNERS = ("_pytest", "pluggy", "pytest_asyncio", "anyio", "asyncio", "testkit", "threading", "runpy", "xdist")


@dataclass(frozen=True)
class Place:
    """``outside``: "file:line" of the innermost frame that is neither torch's nor ours; ``function``: its name.

    ``test``: "file:line" of the outermost frame under pytest, a test or a fixture; None where pytest is not above.
    """

    outside: str
    test: str | None
    function: str


@dataclass(frozen=True)
class Site:
    """All waits of one operator at one line. ``bytes``: of all of them together, None where not known.

    ``seconds``: how long the host was in the operator, all times together, None where nothing measured it.
    ``allowed``: the reason of the ``allow`` region around it, None outside of one.
    """

    operator: str
    where: str
    function: str
    test: str | None
    kind: str
    detail: str
    count: int
    bytes: int | None
    direction: str | None
    threads: tuple[str, ...]
    fix: str
    allowed: str | None = None
    seconds: float | None = None


def place() -> Place:
    """Where the caller's torch call stands. Files are absolute paths as Python knows them."""
    frame: FrameType | None = sys._getframe(1)
    outside = last = frame
    while frame is not None and _is_one_of(frame, INSIDE):
        last, frame = frame, frame.f_back
    outside = frame if frame is not None else last
    assert outside is not None
    return Place(_line(outside), _test(outside), _name(outside.f_code))


def _test(frame: FrameType | None) -> str | None:
    """The outermost frame that is below pytest and belongs to no machinery."""
    innermost = None
    while frame is not None:
        if _is_one_of(frame, ("_pytest",)):
            return None if innermost is None else _line(innermost)
        if not _is_one_of(frame, (*INSIDE, *RUNNERS)):
            innermost = frame
        frame = frame.f_back
    return None


def _is_one_of(frame: FrameType, packages: tuple[str, ...]) -> bool:
    name = frame.f_globals.get("__name__", "")
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _name(code: CodeType) -> str:
    # Since Python 3.11; the plain name is what 3.10 knows.
    name = str(getattr(code, "co_qualname", code.co_name))
    return name.replace("<locals>.", "")


def short(where: str, root: str | os.PathLike[str]) -> str:
    """``where`` as people and other machines know it: below ``root``, else from site-packages on, else as it is."""
    path, colon, line = where.rpartition(":")
    for folder in ("site-packages", "dist-packages"):
        mark = f"{os.sep}{folder}{os.sep}"
        if mark in path:
            return path[path.rindex(mark) + len(mark) :].replace(os.sep, "/") + colon + line
    base = os.path.join(os.fspath(root), "")
    if path.startswith(base):
        path = path[len(base) :]
    return path.replace(os.sep, "/") + colon + line


def as_row(site: Site, root: str | os.PathLike[str]) -> dict[str, Any]:
    """A site for JSON, with paths that mean the same on another machine."""
    return {
        "operator": site.operator,
        "where": short(site.where, root),
        "function": site.function,
        "test": None if site.test is None else short(site.test, root),
        "kind": site.kind,
        "detail": site.detail,
        "count": site.count,
        "bytes": site.bytes,
        "direction": site.direction,
        "threads": list(site.threads),
        "fix": site.fix,
        "allowed": site.allowed,
        "seconds": site.seconds,
    }


def from_row(row: Mapping[str, Any]) -> Site:
    """What ``as_row`` made; KeyError, TypeError or ValueError for anything else."""
    texts = ("operator", "where", "function", "kind", "detail", "fix")
    maybe = ("test", "direction", "allowed")
    if not all(isinstance(row[name], str) for name in texts):
        raise ValueError("a text is missing")
    if not all(row[name] is None or isinstance(row[name], str) for name in maybe):
        raise ValueError("a text is no text")
    count = row["count"]
    if type(count) is not int or count < 1:
        raise ValueError(f"a count of {count!r}")
    if row["bytes"] is not None and type(row["bytes"]) is not int:
        raise ValueError(f"bytes of {row['bytes']!r}")
    if row["seconds"] is not None and type(row["seconds"]) not in (int, float):
        raise ValueError(f"seconds of {row['seconds']!r}")
    values = {name: row[name] for name in (*texts, *maybe, "count", "bytes", "seconds")}
    return Site(threads=tuple(map(str, row["threads"])), **values)


def joined(old: Site | None, new: Site) -> Site:
    """Both as one site; the place and the fix of the first stay."""
    if old is None:
        return new
    return Site(
        operator=old.operator,
        where=old.where,
        function=old.function,
        test=old.test or new.test,
        kind=old.kind,
        detail=old.detail,
        count=old.count + new.count,
        bytes=_sum(old.bytes, new.bytes),
        direction=old.direction if old.direction == new.direction else None,
        threads=tuple(dict.fromkeys((*old.threads, *new.threads))),
        fix=old.fix,
        allowed=old.allowed,
        # A sum of which a part was not measured would look cheaper than it is.
        seconds=None if old.seconds is None or new.seconds is None else old.seconds + new.seconds,
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other


def site_of(seen: Seen, where: Place, *, fix: str, thread: str, allowed: str | None, seconds: float | None) -> Site:
    """One wait as a site."""
    return Site(
        operator=seen.operator,
        where=where.outside,
        function=where.function,
        test=where.test,
        kind=seen.kind,
        detail=seen.detail,
        count=1,
        bytes=seen.bytes,
        direction=seen.direction,
        threads=(thread,),
        fix=fix,
        allowed=allowed,
        seconds=seconds,
    )
