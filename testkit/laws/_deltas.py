"""``Delta``: one thing that a streaming parser says; and what a list of them adds up to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Delta(NamedTuple):
    """One thing that a streaming parser says.

    ``kind``: "text", "reasoning", or any other word of yours for what is no tool call; "name", "id" and "arguments"
    belong to the tool call with the number ``call``, from 0 up.
    """

    kind: str
    value: str
    call: int = 0

    def __repr__(self) -> str:
        return f"Delta({self.kind!r}, {self.value!r}{f', {self.call}' if self.call else ''})"

    @property
    def phase(self) -> str:
        """``kind``, and "call" for the three kinds of a tool call."""
        return "call" if self.kind in OF_CALLS else self.kind


OF_CALLS = ("name", "id", "arguments")


def are_deltas(result: object) -> bool:
    return isinstance(result, (list, tuple)) and bool(result) and all(isinstance(one, Delta) for one in result)


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """What ``deltas`` add up to: neighbours of one kind and call joined, empty ones left out."""
    done: list[Delta] = []
    for delta in deltas:
        if not delta.value:
            continue
        if done and (done[-1].kind, done[-1].call) == (delta.kind, delta.call):
            done[-1] = done[-1]._replace(value=done[-1].value + delta.value)
        else:
            done.append(delta)
    return done
