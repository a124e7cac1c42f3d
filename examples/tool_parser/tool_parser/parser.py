"""A streaming parser in miniature: ``thoughts</think>text<tool_call>name({"a": 1})</tool_call>``.

It is fed deltas as they come, of any size, and says at once what is certain. FAULTS are planted mistakes; the
environment variable TOOL_PARSER_FAULT activates one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from testkit.laws import Delta

VARIABLE = "TOOL_PARSER_FAULT"
FAULTS = {
    "rest-dropped": "what follows the opening bracket in the same delta is dropped",
    "marker-leaks": "the beginning of a marker is said as text, since its end is in the next delta",
    "one-call-a-delta": "a second call in one delta waits for a delta that may never come",
    "think-end-missed": "the end of the thoughts is looked for in each delta alone",
    "named-again": "the name is said again with the first arguments",
}
ENDS = {
    "reasoning": ("</think>", "text"),
    "text": ("<tool_call>", "name"),
    "name": ("(", "arguments"),
    "arguments": (")</tool_call>", "text"),
}
"""For each phase the marker that ends it, and the phase that follows."""


class ToolParser:
    """``thinking``: the stream begins within the thoughts, as the chat template of some models has it."""

    def __init__(self, thinking: bool) -> None:
        self.fault = os.environ.get(VARIABLE, "")
        if self.fault and self.fault not in FAULTS:
            raise ValueError(f"{self.fault} is no planted fault; these are: {', '.join(FAULTS)}")
        self.phase, self.call, self.buffer, self.name = "reasoning" if thinking else "text", 0, "", ""

    def feed(self, delta: str) -> Iterator[Delta]:
        self.buffer += delta
        while True:
            marker, after = ENDS[self.phase]
            before, found, rest = self.buffer.partition(marker)
            if self.fault == "think-end-missed" and self.phase == "reasoning" and marker not in delta:
                found = ""
            if not found:
                break
            yield from self._say(before)
            self.buffer = "" if self.fault == "rest-dropped" and self.phase == "name" else rest
            self.call += self.phase == "arguments"
            self.phase = after
            if self.fault == "one-call-a-delta" and after == "text" and self.call:
                return
        if self.phase != "name":  # a name is said whole
            safe = len(self.buffer) - self._may_begin(marker)
            yield from self._say(self.buffer[:safe])
            self.buffer = self.buffer[safe:]

    def finish(self) -> Iterator[Delta]:
        """The stream has ended: what was held back is what it looks like."""
        yield from self._say(self.buffer)

    def _may_begin(self, marker: str) -> int:
        """How many characters at the end of the buffer may be the beginning of ``marker``."""
        if self.fault == "marker-leaks":
            return 0
        return max(size for size in range(len(marker)) if self.buffer.endswith(marker[:size]))

    def _say(self, value: str) -> Iterator[Delta]:
        call = self.call if self.phase in ("name", "arguments") else 0
        if self.phase == "name":
            self.name = value
        if self.fault == "named-again" and self.phase == "arguments" and self.name and len(value) > 1:
            yield Delta("name", self.name, call)
            self.name = ""
        if value:
            yield Delta(self.phase, value, call)


def parse(deltas: Iterable[str], *, thinking: bool) -> Iterator[Delta]:
    parser = ToolParser(thinking)
    for delta in deltas:
        yield from parser.feed(delta)
    yield from parser.finish()
