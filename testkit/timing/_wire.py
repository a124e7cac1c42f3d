"""Rows on their way from a worker to the controller, as one text.

JSON, since it holds any text (lone surrogates too) and costs less than xdist's own encoding of the same lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from json import loads
from operator import attrgetter
from typing import Any, TypeAlias

from testkit.timing._run import Collected, Fixture, Imported, Jit, Record, Timed, Whole, Worker
from testkit.timing._write import Encoder, Row

Sent: TypeAlias = Row | Whole

ON_THE_WIRE = "testkit_timing"
"""Where the text travels: in ``workerinput`` (to ask for it), in reports, in ``workeroutput``."""

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Timed, Fixture, Collected, Imported, Record, Worker, Whole)}
_VALUES = {kind: attrgetter(*kind.__dataclass_fields__) for kind in _KINDS.values()}


def pack(rows: Iterable[Sent]) -> str:
    """Text that ``unpack`` turns into the same rows; the data of records must be plain JSON."""
    return _encode([[type(row).__name__, *_VALUES[type(row)](row)] for row in rows])


def unpack(text: str) -> list[Sent]:
    rows: list[Sent] = []
    for kind, *values in loads(text):
        if kind == "Whole":
            rows.append(Whole.from_json(values))
            continue
        if kind == "Timed" and values[-1] is not None:
            values[-1] = Jit(*values[-1])
        rows.append(_KINDS[kind](*values))
    return rows


def _jit(value: Any) -> list[float]:
    if isinstance(value, Jit):
        return [value.seconds, value.count, value.hits]
    raise TypeError(f"{value!r} is not plain")


_encode = Encoder(_jit).encode
