"""Ids of the form ``name=value`` that say which value is meant and never change when the axis does."""

from __future__ import annotations

import hashlib
import re
from enum import Enum
from types import ModuleType

from testkit.pairwise._axes import Axis, holds_address, identity

LONGEST = 60
"""A longer text is cut and gets a digest of the whole."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_A_STRING = frozenset({"None", "True", "False", "nan", "inf", "infj", "nanj"})


def axis_ids(axis: Axis, given: list[str | None] | None = None) -> tuple[list[str], list[str]]:
    """One id for each position of an axis, no two alike, and what to tell the user about them.

    ``given`` holds ids that the user chose (None where none was). A value's id depends on the value alone;
    where a value stands again, or has no text of its own, a number is added and said.
    """
    ids: list[str] = []
    notes: list[str] = []
    taken: dict[str, int] = {}
    for position, value in enumerate(axis.values):
        chosen = given[position] if given else None
        parts = [
            f"{argname}={value_text(part)}" for argname, part in zip(axis.argnames, _parts(axis, position), strict=True)
        ]
        text = "-".join(parts) if chosen is None else (f"{axis.name}={chosen}" if len(axis.argnames) == 1 else chosen)
        taken[text] = taken.get(text, 0) + 1
        if taken[text] > 1:
            while (alike := f"{text}@{taken[text]}") in taken:
                taken[text] += 1
            taken[alike] = 1
            if axis.first_position_of[position] == position:
                notes.append(f"axis {axis.name!r}: {shown(value)} has the id of another value, and is called {alike}")
            text = alike
        ids.append(text)
    return ids, notes


def _parts(axis: Axis, position: int) -> list[object]:
    return [axis.argument(argname, position) for argname in axis.argnames]


def value_text(value: object) -> str:
    """A text that two values share only if they are the same or have no text of their own."""
    try:
        text = _text(value)
    except Exception:  # noqa: BLE001 - a foreign __repr__ may raise anything
        text = f"<{type(value).__qualname__}>"
    if len(text) > LONGEST:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        text = f"{text[: LONGEST - 9]}~{digest}"
    return text


def _text(value: object) -> str:
    kind = type(value)
    if kind is str:
        return _string_text(str(value))
    if isinstance(value, Enum):
        return f"{kind.__qualname__}.{value.name}"
    if kind is ModuleType:
        return f"module:{value.__name__}"  # type: ignore[attr-defined]  # its repr says where this machine has it
    if kind in (tuple, list):
        inner = ",".join(_text(part) for part in value)  # type: ignore[attr-defined]  # a sequence
        return f"({inner})" if kind is tuple else f"[{inner}]"
    if kind is dict:
        return "{" + ",".join(f"{_text(k)}:{_text(v)}" for k, v in value.items()) + "}"  # type: ignore[attr-defined]
    if kind in (set, frozenset):
        return f"{kind.__name__}{{{','.join(sorted(map(_text, value)))}}}"  # type: ignore[call-overload]  # a set
    if identity(value) != ("object", id(value)):
        return ascii(value)
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module and qualname:
        return f"{module}.{qualname}"
    text = ascii(value)
    if holds_address(text):
        return f"<{kind.__qualname__}>"
    own = text.startswith((kind.__qualname__, kind.__module__.split(".")[0] + "."))
    return text if own else f"{kind.__qualname__}:{text}"


def _string_text(value: str) -> str:
    """A word stands as it is; whatever could be taken for something else is quoted."""
    if _PLAIN.fullmatch(value) and value not in _NOT_A_STRING:
        return value
    return ascii(value)


def shown(value: object) -> str:
    """The value's repr for a message, whatever its class does."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a foreign __repr__ may raise anything
        return f"<{type(value).__qualname__}>"
