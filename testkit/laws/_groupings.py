"""The ways to cut pieces into chunks, by family: a chunk is some neighbours joined.

A cut is the number of pieces before it. Pair i are the pieces i and i + 1, counted from 0.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from testkit.errors import LawsError
from testkit.laws._values import shown

__tracebackhide__ = True  # pytest shows the line that called us, not ours

PAIRS = 2_000
"""Pairs of cuts that are tried: all, or so many drawn with a fixed seed."""
NEIGHBOURS = 500
"""Merged neighbours, and places of an empty chunk, that are tried: all, or so many evenly spaced."""
SEEDED = 100
"""Groupings drawn with a fixed seed."""
SHOWN, LENGTH = 16, 60
"""Chunks that are shown, of more those near a difference; and characters of each."""

WHOLE, FINEST, TWO_WAY, MERGED = "the whole in one chunk", "one piece a chunk", "two-way cuts", "merged neighbours"
EMPTY, CUT_TWICE, DRAWN = "empty chunks", "pairs of cuts", "seeded groupings"


@dataclass(frozen=True)
class Grouping:
    """``cuts``; ``empties``: those of them, 0 and the end included, at which there is an empty chunk too."""

    cuts: tuple[int, ...]
    empties: tuple[int, ...] = ()


class Pieces:
    """Text by characters, bytes by bytes, or tokens: of text or bytes joined, any other kept in lists."""

    def __init__(self, given: Any, where: str) -> None:
        if isinstance(given, (bytearray, memoryview)):
            given = bytes(given)
        if not isinstance(given, (str, bytes)):
            if not isinstance(given, Iterable):
                raise LawsError(f"pieces is {shown(given)}", where, "give text, bytes or a list of tokens")
            given = list(given)
        self.count = len(given)
        if self.count < 2:
            raise LawsError(f"pieces is {shown(given)}, which cannot be cut", where, "give two pieces or more")
        self._given = given
        kinds = {type(piece) for piece in given} if isinstance(given, list) else set()
        self._joint: Any = "" if kinds == {str} else b"" if kinds == {bytes} else None

    def chunks(self, grouping: Grouping) -> list[Any]:
        return [self._chunk(begin, end) for begin, end in self._spans(grouping)]

    def shown(self, grouping: Grouping, near: Iterable[int]) -> str:
        """The chunks; of many those that touch a place in ``near``."""
        spans = self._spans(grouping)
        kept = set(range(len(spans)))
        if len(spans) > SHOWN:
            touched = [i for i, (begin, end) in enumerate(spans) if any(begin <= place <= end for place in near)]
            kept = {i + by for i in touched or [0] for by in (-1, 0, 1)}
        parts: list[str] = []
        for i, span in enumerate(spans):
            if i in kept:
                parts.append(shown(self._chunk(*span), LENGTH))
            elif parts[-1:] != ["..."]:
                parts.append("...")
        return " | ".join(parts)

    def inside_characters(self, cuts: Iterable[int]) -> list[int]:
        """Of ``cuts`` through bytes those before a continuation byte of UTF-8."""
        return [cut for cut in cuts if isinstance(self._given, bytes) and self._given[cut] & 0xC0 == 0x80]

    def _chunk(self, begin: int, end: int) -> Any:
        part = self._given[begin:end]
        return part if self._joint is None else self._joint.join(part)

    def _spans(self, grouping: Grouping) -> list[tuple[int, int]]:
        bounds = [0, *grouping.cuts, self.count]
        spans = []
        for begin, end in pairwise(bounds):
            spans += [(begin, begin)] * (begin in grouping.empties) + [(begin, end)]
        return spans + [(self.count, self.count)] * (self.count in grouping.empties)


def finest(count: int) -> Grouping:
    return Grouping(tuple(range(1, count)))


def families(count: int) -> Iterator[tuple[str, int, Grouping]]:
    """The family, the number in it (a cut, a pair, or a running one) and the grouping of ``count`` pieces."""
    every = tuple(range(1, count))
    yield WHOLE, 0, Grouping(())
    yield FINEST, 0, finest(count)
    for cut in every:
        yield TWO_WAY, cut, Grouping((cut,))
    for pair in spaced(count - 1):
        yield MERGED, pair, Grouping(every[:pair] + every[pair + 1 :])
    for places in ((0,), (count,), (0, count)):
        yield EMPTY, 0, Grouping((), places)
    for place in spaced(count + 1):
        yield EMPTY, 0, Grouping(every, (place,))
    yield EMPTY, 0, Grouping(every, (0, *every, count))
    drawn = random.Random(0)
    many = (count - 1) * (count - 2) // 2 > PAIRS
    pairs = (sorted(drawn.sample(every, 2)) for _ in range(PAIRS)) if many else combinations(every, 2)
    for one, other in pairs:
        yield CUT_TWICE, 0, Grouping((one, other))
    for _ in range(SEEDED):
        share = drawn.random()
        yield DRAWN, 0, Grouping(tuple(cut for cut in every if drawn.random() < share))


def spaced(count: int) -> list[int]:
    """The numbers below ``count``, or ``NEIGHBOURS`` of them, the first and last among them."""
    if count <= NEIGHBOURS:
        return list(range(count))
    return sorted({round(place * (count - 1) / (NEIGHBOURS - 1)) for place in range(NEIGHBOURS)})
