"""Values of a job, which are those of JSON: their text, a key by which two are told apart, what they may be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from testkit.errors import MatrixError

__tracebackhide__ = True  # pytest shows the line that called us, not ours

Job = dict[str, Any]
"""The values of one job, by name."""


def as_text(value: object) -> str:
    """How a CI system shows a value: ``true``, ``2`` for the number 2.0, nothing for null, JSON for the rest."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value)


def key_of(value: object) -> str:
    """A text that two values share only if they are the same: ``1`` and ``"1"`` differ, 2 and 2.0 do not."""
    return json.dumps(value, sort_keys=True) if not isinstance(value, float) else as_text(value)


def label(job: Mapping[str, Any]) -> list[str]:
    """The texts of all scalars of a job, nested ones too, in order, as in the names that GitHub gives to jobs."""
    return [text for value in job.values() for text in _scalars(value) if text]


def _scalars(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for part in value.values():
            yield from _scalars(part)
    elif isinstance(value, list):
        for part in value:
            yield from _scalars(part)
    else:
        yield as_text(value)


def shown(value: object) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_value(value: object, what: str, where: str) -> None:
    """Refuse what JSON, and so a CI system, does not have: dates, NaN, keys that are no text."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if not isinstance(name, str):
                raise MatrixError(f"{what} has the key {name!r}", where, "quote it: keys are text")
            check_value(part, f"{what}.{name}", where)
    elif isinstance(value, list):
        for place, part in enumerate(value):
            check_value(part, f"{what}[{place}]", where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise MatrixError(f"{what} is {value}", where, "write a number that JSON has, or quote it")
    elif not (value is None or isinstance(value, (str, int, float))):
        problem = f"{what} is the {type(value).__name__} {value}"
        raise MatrixError(problem, where, "write text, a number, true, false or null, or lists and mappings of them")
