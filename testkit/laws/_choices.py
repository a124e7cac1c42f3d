"""What was chosen, as plain values: texts for functions and ops, one name for each op, tables and their differences."""

from __future__ import annotations

import enum
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from testkit._text import table
from testkit.errors import LawsError

__tracebackhide__ = True  # pytest shows the line that called us, not ours

Table = dict[str, Any]
"""By platform: a choice, or a mapping of ops to choices."""
Difference = tuple[str, str, str, str]
"""Platform, op, what was expected and what was chosen."""

NO_ROW, NOT_SIMULATED, NO_OP = "(no row)", "(not simulated)", "(nothing)"

_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*|\w+::\w+")


class Refused(Exception):
    """A problem and a fix: what ``LawsError`` will say where it can be raised."""


def plain(choice: Any) -> Any:
    """``choice`` in JSON's values: functions and classes as ``module:name``, torch's ops as ``namespace::name``."""
    if isinstance(choice, Mapping):
        return {str(op): plain(part) for op, part in choice.items()}
    if isinstance(choice, (list, tuple)):
        return [plain(part) for part in choice]
    if isinstance(choice, enum.Enum):
        return f"{type(choice).__name__}.{choice.name}"
    if choice is None or isinstance(choice, (bool, int, float, str)):
        return choice
    if isinstance(choice, functools.partial):
        return plain(choice.func)
    if isinstance(op := getattr(choice, "_qualified_op_name", None), str):  # an op of torch.ops
        return op
    if callable(choice) and hasattr(choice, "__qualname__"):
        return f"{choice.__module__}:{choice.__qualname__}"
    fix = "return text, functions, classes, None, numbers, or a mapping of ops to these"
    raise Refused(f"the choice is a {type(choice).__qualname__}, which has no name to write down", fix)


def leaves(choice: Any, op: str = "") -> Iterator[tuple[str, Any]]:
    """The parts of a plain choice with the names of their ops; "" for a choice without ops."""
    if isinstance(choice, dict):
        for name, part in choice.items():
            yield from leaves(part, f"{op}.{name}" if op else name)
    elif isinstance(choice, list):
        for part in choice:
            yield from leaves(part, op)
    else:
        yield op, choice


def has_place(leaf: str) -> bool:
    """Does the text say where it is to be found, as ``module:name`` or ``namespace::op`` does?"""
    return _PLACE.fullmatch(leaf) is not None


def text(choice: Any) -> str:
    return choice if isinstance(choice, str) else repr(choice)


def differences(wanted: Table, chosen: Table) -> list[Difference]:
    """Rows of ``wanted`` in their order, then new ones; an op that only one side has counts too."""
    found = []
    for platform in dict.fromkeys([*wanted, *chosen]):
        if platform not in wanted:
            found += [(platform, op, NO_ROW, made) for op, made in _by_op(chosen[platform]).items()]
        elif platform not in chosen:
            found.append((platform, "", text(wanted[platform]), NOT_SIMULATED))
        else:
            before, after = _by_op(wanted[platform]), _by_op(chosen[platform])
            for op in dict.fromkeys([*before, *after]):
                pair = before.get(op, NO_OP), after.get(op, NO_OP)
                if pair[0] != pair[1]:
                    found.append((platform, op, *pair))
    return found


def _by_op(choice: Any) -> dict[str, str]:
    if not isinstance(choice, dict):
        return {"": text(choice)}
    return {
        f"{op}.{below}" if below else op: made for op, part in choice.items() for below, made in _by_op(part).items()
    }


def lines(found: Sequence[Difference]) -> list[str]:
    """A table of differences; without the column of ops where there are none."""
    rows = [("platform", "op", "expected", "chosen"), *found]
    if not any(op for _, op, _, _ in found):
        rows = [(platform, *others) for platform, _, *others in rows]  # type: ignore[misc]  # one column less
    return table(rows, indent="")


def to_file(path: Path, rows: Table) -> None:
    """One line a platform and op, so that a difference of versions reads well."""
    try:
        path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        problem = f"cannot write {path}: {error.strerror or error}"
        raise LawsError(problem, "snapshot", "name a file in a folder that exists") from None


def from_file(path: Path) -> Table | None:
    """The table in ``path``; None if there is no such file."""
    fix = "delete it to have it written anew"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LawsError(f"cannot read {path}: {error}", "snapshot", fix) from None
    if not isinstance(rows, dict) or not rows:
        raise LawsError(f"{path} has no table of platforms", "snapshot", fix)
    return rows
