"""The file of ``--pairwise-lock``: chosen cases by readable ids, one a line, sorted, so that lists only grow.

A line is a JSON list of the function's node id and one ``name=value`` for each axis::

    ["tests/test_gemm.py::test_gemm", "n=13", "k=2880", "dtype=torch.float16"]

Lines stand for themselves: two branches that each added cases are merged by keeping the lines of both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from testkit._text import counted
from testkit.errors import PairwiseError
from testkit.pairwise._axes import Axis
from testkit.pairwise._ids import axis_ids

HEADER = "# testkit pairwise lock 1: one chosen case a line, sorted; in a merge keep the lines of both sides"
"""The first line; a later format has another number. Other lines that begin with # are left out when it is written."""

_MARK = HEADER.partition(" 1:")[0]
_CONFLICT = ("<<<<<<< ", "=======", ">>>>>>> ", "||||||| ")

Entry = tuple[str, ...]
"""One stored case: an id for each axis, in no order that matters."""


@dataclass(frozen=True)
class Locked:
    """The stored cases of one function, for its axes of now.

    ``cases`` (axis -> level) lack an axis that was added since; ``dropped`` had a value that is gone; ``settled`` is
    false if any case was dropped, lacks an axis or lost one; ``notes`` are things to tell the user.
    """

    cases: tuple[Mapping[int, int], ...] = ()
    dropped: int = 0
    settled: bool = True
    notes: tuple[str, ...] = ()


@dataclass
class Lock:
    """The cases of all functions in a lock file, and those that were chosen since it was read."""

    path: Path
    stored: dict[str, list[Entry]]
    chosen: dict[str, list[Entry]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Lock:
        """The file, or an empty lock if there is none yet. Raises ``PairwiseError`` with the number of a bad line."""
        path = Path(path)
        return cls(path, _read(path))

    def locked(self, nodeid: str, axes: Sequence[Axis]) -> Locked:
        """The stored cases of the function ``nodeid`` (without brackets) as levels of ``axes``.

        A case with a value that its axis no longer has is dropped. An axis that no case knows and one that only the
        cases know are taken for one that was renamed, if they share a value.
        """
        entries = self.stored.get(nodeid, [])
        if not entries:
            return Locked()
        levels = [_level_of_id(axis) for axis in axes]
        renamed, note = _renamed(entries, axes, levels)
        known = {argnames[0]: number for number, argnames in enumerate(axis.argnames for axis in axes)}
        known |= renamed
        cases: dict[tuple[tuple[int, int], ...], Mapping[int, int]] = {}
        dropped, settled = 0, not renamed
        for entry in entries:
            case, whole = _case(entry, known, levels)
            settled = settled and whole
            if case is None:
                dropped += 1
            else:
                cases.setdefault(tuple(sorted(case.items())), case)
        notes = [note] if note else []
        if dropped:
            notes.append(f"{counted(dropped, 'case')} of {self.path} dropped: a value is gone from its axis")
        return Locked(tuple(case for _, case in sorted(cases.items())), dropped, settled, tuple(notes))

    def put(self, nodeid: str, axes: Sequence[Axis], rows: Iterable[Sequence[int]]) -> None:
        """These cases (a position for each axis) are what was chosen for the function now."""
        ids = [_ids(axis) for axis in axes]
        firsts = [axis.first_position_of for axis in axes]
        found = {tuple([own[first[at]] for own, first, at in zip(ids, firsts, row, strict=True)]) for row in rows}
        self.chosen[nodeid] = sorted(found)

    def entries(self) -> dict[str, list[list[str]]]:
        """What was chosen, in builtin types, to be sent from a worker to ``take_in``."""
        return {nodeid: [list(entry) for entry in entries] for nodeid, entries in self.chosen.items()}

    def take_in(self, entries: Mapping[str, Sequence[Sequence[str]]]) -> None:
        """What another process chose; all processes of a run choose the same."""
        self.chosen |= {nodeid: [tuple(entry) for entry in own] for nodeid, own in entries.items()}

    def save(self) -> bool:
        """Write what was chosen in place of the same functions' lines, if that changes them; was it written?

        The file is read anew, so that another run's functions stay as they are now, and replaced in one step. Only
        one process of a run may call this (under xdist the controller).
        """
        now = _read(self.path)
        after = {**now, **self.chosen}
        if {nodeid: sorted(entries) for nodeid, entries in now.items()} == after:
            return False
        _write(self.path, after)
        return True


def forget(path: str | Path, patterns: Sequence[str] = ()) -> tuple[int, int]:
    """Take functions whose node id (without brackets) fits one of ``patterns`` out of the file; all without patterns.

    The numbers of cases and functions that went. Raises ``PairwiseError`` if there was nothing to take out.
    """
    path = Path(path)
    if not path.exists():
        raise PairwiseError(f"there is no lock file {path}", fix="name the file of --pairwise-lock")
    stored = _read(path)
    gone = [nodeid for nodeid in stored if not patterns or any(fnmatchcase(nodeid, one) for one in patterns)]
    if not gone:
        asked = f" that fits {' or '.join(patterns)}" if patterns else ""
        raise PairwiseError(
            f"{path} holds no function{asked}", fix="give node ids without brackets, or patterns of them"
        )
    cases = sum(len(stored.pop(nodeid)) for nodeid in gone)
    _write(path, stored)
    return cases, len(gone)


def _ids(axis: Axis) -> list[str]:
    return axis_ids(axis)[0]


def _level_of_id(axis: Axis) -> dict[str, int]:
    ids = _ids(axis)
    return {ids[first]: level for level, first in enumerate(axis.first_positions)}


def _name(text: str) -> str:
    """The (first) argument name of an id."""
    return text.partition("=")[0]


def _case(
    entry: Entry, known: Mapping[str, int], levels: Sequence[Mapping[str, int]]
) -> tuple[dict[int, int] | None, bool]:
    """The case of a line, None if a value is gone; and whether it has a value for each axis and no more."""
    case: dict[int, int] = {}
    strange = 0
    for text in entry:
        number = known.get(_name(text))
        if number is None:
            strange += 1  # the axis is gone, and the case goes on without it
            continue
        level = levels[number].get(text, levels[number].get(_respelt(text, number, known)))
        if level is None or number in case:
            return None, False
        case[number] = level
    return (case or None), not strange and len(case) == len(levels)


def _respelt(text: str, number: int, known: Mapping[str, int]) -> str:
    """The id with the name that its axis has now."""
    name = next((name for name in known if known[name] == number), "")
    return f"{name}={text.partition('=')[2]}"


def _renamed(
    entries: Sequence[Entry], axes: Sequence[Axis], levels: Sequence[Mapping[str, int]]
) -> tuple[dict[str, int], str]:
    """The old name of a renamed axis and that axis's number, with a note; empty if none was renamed."""
    stored = {_name(text) for entry in entries for text in entry}
    gone = stored - {axis.argnames[0] for axis in axes}
    new = [number for number, axis in enumerate(axes) if axis.argnames[0] not in stored]
    if len(gone) != 1 or len(new) != 1 or len(axes[new[0]].argnames) > 1:
        return {}, ""
    (name,), (number,) = gone, new
    values = {text.partition("=")[2] for entry in entries for text in entry if _name(text) == name}
    if not values & {text.partition("=")[2] for text in levels[number]}:
        return {}, ""
    return {name: number}, f"axis {axes[number].name!r} is taken for {name!r} of the lock file, renamed"


# ---------------------------------------------------------------- the file


def _read(path: Path) -> dict[str, list[Entry]]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PairwiseError(f"cannot read {path}: {error.strerror or error}", fix="check the path") from error
    stored: dict[str, dict[Entry, None]] = {}
    for number, line in enumerate(lines, 1):
        text = line.decode("utf-8", "replace").strip()
        if text.startswith(_MARK) and text.partition(":")[0] != HEADER.partition(":")[0]:
            raise PairwiseError(f"{path} is of another format: {text[:60]}", fix="use the testkit that wrote it")
        if text and not text.startswith("#"):
            nodeid, *entry = _parsed(text, number, path)
            stored.setdefault(nodeid, {})[tuple(entry)] = None
    return {nodeid: list(entries) for nodeid, entries in stored.items()}


def _parsed(text: str, number: int, path: Path) -> list[str]:
    if text.startswith(_CONFLICT):
        raise PairwiseError(
            f"line {number} of {path} is a merge mark", fix="keep the lines of both sides, remove the marks"
        )
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    good = isinstance(fields, list) and len(fields) > 1 and all(isinstance(one, str) for one in fields)
    if not good or not all("=" in one for one in fields[1:]):
        raise PairwiseError(
            f"line {number} of {path} is damaged: {text[:60]!a}",
            fix="remove the line, or write it as a JSON list of the node id and one name=value for each axis",
        )
    return list(fields)


def _write(path: Path, stored: Mapping[str, Iterable[Entry]]) -> None:
    """Replace the file in one step; whoever reads it meanwhile sees the old or the new one."""
    lines = sorted(json.dumps([nodeid, *entry]) for nodeid, entries in stored.items() for entry in entries)
    target = path.resolve()  # a link stays one
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text("\n".join([HEADER, *lines, ""]), encoding="ascii", newline="\n")
        os.replace(beside, target)
    except OSError as error:
        raise PairwiseError(f"cannot write {path}: {error.strerror or error}", fix="check the folder") from error
    finally:
        with suppress(OSError):
            beside.unlink()
