"""``assert_split_invariant``: a streaming parser says the same however its input is cut into chunks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from testkit._text import counted, table
from testkit.errors import LawsError
from testkit.laws._deltas import are_deltas, merged
from testkit.laws._failure import LawBroken
from testkit.laws._groupings import FINEST, MERGED, TWO_WAY, WHOLE, Grouping, Pieces, families, finest
from testkit.laws._values import differing, ranges, same, shown

__tracebackhide__ = True  # pytest shows the line that called us, not ours

WHERE = "assert_split_invariant"
WHOLE_GROUPING = Grouping(())


class SplitBroken(LawBroken):
    """Some grouping gives another result.

    ``failing_cuts``: the two-way cuts that do, each the number of pieces before it; ``failing_pairs``: i, where the
    pieces i and i + 1 in one chunk and every other alone do; ``chunks``: the smallest failing grouping.
    """

    def __init__(
        self,
        problem: str,
        evidence: Sequence[str],
        fix: str,
        cuts: Sequence[int] = (),  # defaults, or it could not be pickled: Exception keeps three arguments
        pairs: Sequence[int] = (),
        chunks: Sequence[Any] = (),
    ) -> None:
        super().__init__(problem, evidence, fix)
        self.failing_cuts, self.failing_pairs, self.chunks = list(cuts), list(pairs), list(chunks)


def assert_split_invariant(
    parse: Callable[[Iterable[Any]], Any],
    pieces: Any,
    expected: Any = None,
    *,
    invariants: Sequence[Callable[[Any], Any]] = (),
) -> None:
    """``parse(chunks)`` gives one result for every way to cut ``pieces`` into chunks.

    ``parse`` makes a new parser, feeds it the chunks, an iterable, and returns what it said: anything that ``==``
    compares, or ``Delta`` objects, in a list or yielded, of which that is compared what they add up to. ``pieces``:
    text, cut between characters; bytes, cut anywhere, also inside a character of UTF-8; or tokens, cut between them
    (those of text or bytes are joined in a chunk, others come as lists). ``expected`` is the right result; without it
    that of the whole in one chunk is the measure. ``invariants``: functions of the result that raise AssertionError, or
    return False, where it is wrong; ``no_marker`` and its neighbours are some for ``Delta``.

    Tried are the whole, one piece a chunk, each two-way cut, each pair of neighbours merged, empty chunks, pairs of
    cuts (all up to 2,000) and 100 seeded groupings. A ``parse`` that raises is wrong.

    Raises ``SplitBroken``, whose ``failing_cuts`` are the two-way cuts with another result, with the smallest failing
    grouping: the one that differs least from a grouping that is right. ``LawsError`` if nothing would be verified:
    fewer than two pieces, chunks that are not read, results that differ for the same chunks.
    """
    judge = _Judge(parse, Pieces(pieces, WHERE), expected, invariants)
    judge.settle()
    tried: dict[str, list[int]] = {}
    failing: dict[str, list[int]] = {}
    for family, number, grouping in families(judge.pieces.count):
        tried.setdefault(family, []).append(number)
        if judge.wrong(grouping):
            failing.setdefault(family, []).append(number)
    if failing:
        raise _broken(judge, failing, tried)


class _Judge:
    def __init__(
        self, parse: Callable[..., Any], pieces: Pieces, expected: Any, invariants: Sequence[Callable[[Any], Any]]
    ) -> None:
        self.pieces, self._parse, self._invariants = pieces, parse, invariants
        self.given = expected is not None
        self.expected = merged(expected) if are_deltas(expected) else expected
        self.failing: dict[Grouping, list[str]] = {}
        """What is wrong with the result of each grouping that fails, in lines."""
        self._right: set[Grouping] = set()

    def wrong(self, grouping: Grouping) -> list[str]:
        if grouping not in self._right and grouping not in self.failing:
            if lines := self._lines(self._run(grouping)[0]):
                self.failing[grouping] = lines
            else:
                self._right.add(grouping)
        return self.failing.get(grouping, [])

    def settle(self) -> None:
        """Is there a result to compare, the same twice? It is the measure if there is no other."""
        first, read = self._run(WHOLE_GROUPING)
        with suppress(Exception):  # what cannot be copied is taken as it is
            first = copy.deepcopy(first)  # or a later call could change the measure
        second, _ = self._run(WHOLE_GROUPING)
        if isinstance(first, _Raised):
            if not self.given:
                fix = "correct that first, or give expected"
                raise LawsError(f"parse raised {first} for the whole in one chunk", WHERE, fix) from first.error
            return
        if not read:
            raise LawsError("parse did not read its chunks", WHERE, "feed the parser each chunk that it is given")
        if isinstance(second, _Raised) or not same(first, second, WHERE):
            problem = f"parse gives {shown(first)} and then {shown(second)} for the same chunks"
            raise LawsError(problem, WHERE, "make a new parser in each call, and return what == compares")
        if not self.given:
            self.expected = merged(first) if are_deltas(first) else first
        if self.expected is None:
            raise LawsError("parse returned None", WHERE, "let it return what the parser said")

    def _run(self, grouping: Grouping) -> tuple[Any, int]:
        """What parse returned, and how many chunks were read."""
        read = 0

        def feed() -> Iterator[Any]:
            nonlocal read
            for chunk in self.pieces.chunks(grouping):
                read += 1
                yield chunk

        try:
            result = self._parse(feed())
            return (list(result) if isinstance(result, Iterator) else result), read
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the result of this grouping
            return _Raised(error), read

    def _lines(self, result: Any) -> list[str]:
        if isinstance(result, _Raised):
            return [f"expected  {shown(self.expected)}", f"actual    raised {result}"]
        actual = merged(result) if are_deltas(result) else result
        lines = []
        if not same(self.expected, actual, WHERE):
            lines = [
                f"{name} {text}"
                for name, text in zip(("expected ", "actual   "), differing(self.expected, actual), strict=True)
            ]
        for check in self._invariants:
            try:
                held = check(result)
            except AssertionError as error:  # noqa: PERF203  # each has a line of its own
                first = (str(error).splitlines() or ["AssertionError"])[0]
                lines.append(f"{_name(check)}: {first}")
            else:
                lines += [] if held is None or held else [f"{_name(check)} is {held!r}"]
        return lines


class _Raised:
    """A result of its own: ``parse`` raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


def _name(check: Callable[[Any], Any]) -> str:
    return getattr(check, "__name__", shown(check))


def _broken(judge: _Judge, failing: dict[str, list[int]], tried: dict[str, list[int]]) -> SplitBroken:
    cuts, pairs = failing.get(TWO_WAY, []), failing.get(MERGED, [])
    smallest, difference, near = _smallest(judge)
    lines = [f"smallest failing grouping, {difference}:", f"  {judge.pieces.shown(smallest, near)}"]
    lines += judge.failing[smallest]
    lines += [] if judge.given else [f"expected is not given: the measure is {WHOLE}"]
    rows: list[tuple[object, ...]] = [("grouping", "wrong", "of")]
    for family, numbers in tried.items():
        wrong = failing.get(family, [])
        listed = [ranges(wrong)] if family in (TWO_WAY, MERGED) and wrong else []
        rows.append((family, len(wrong), len(numbers), *listed))
    lines += table(rows, indent="")
    if inside := judge.pieces.inside_characters(cuts):
        lines.append(f"inside a character of UTF-8: {ranges(inside)}")
    if failing == tried:
        problem = "parse is wrong however its input is cut"
    elif cuts:
        problem = f"parse is wrong at {len(cuts)} of {counted(len(tried[TWO_WAY]), 'two-way cut')}: {ranges(cuts)}"
    elif pairs and FINEST not in failing:
        problem = f"parse is wrong for {len(pairs)} of {len(tried[MERGED])} merged neighbours: {ranges(pairs)}"
    else:
        problem = f"parse is wrong for {next(iter(failing))}"
    fix = "feed the parser that grouping, and look at what it has kept, dropped or taken for done after each chunk"
    return SplitBroken(problem, lines, fix, cuts, pairs, judge.pieces.chunks(smallest))


def _smallest(judge: _Judge) -> tuple[Grouping, str, set[int]]:
    """The failing grouping that differs least from one that is right; in what it differs, in words and as places.

    Right may be the whole in one chunk, and one piece a chunk; if neither is, the whole stands for all.
    """
    bases = {WHOLE: WHOLE_GROUPING, FINEST: finest(judge.pieces.count)}
    right = [(name, base) for name, base in bases.items() if not judge.wrong(base)]
    if not right:
        return WHOLE_GROUPING, WHOLE, set()
    distances = (
        (abs(len(grouping.cuts) - len(base.cuts)) + len(grouping.empties), name, base, grouping)
        for grouping in judge.failing
        for name, base in right
    )
    # The whole has no cut and one piece a chunk has all, so that the numbers of cuts tell in how many one differs.
    _, name, base, found = min(distances, key=lambda one: one[0])
    for place in sorted(set(found.cuts) ^ set(base.cuts), reverse=True):
        nearer = tuple(sorted(set(found.cuts) ^ {place}))
        trial = Grouping(nearer, tuple(empty for empty in found.empties if empty in (0, judge.pieces.count, *nearer)))
        found = trial if judge.wrong(trial) else found
    for place in found.empties:
        trial = Grouping(found.cuts, tuple(empty for empty in found.empties if empty != place))
        found = trial if judge.wrong(trial) else found
    changed = sorted(set(found.cuts) ^ set(base.cuts))
    parts = []
    if changed:
        numbers = changed if name == WHOLE else [place - 1 for place in changed]
        word = ("cut" if name == WHOLE else "pair") + ("s" if len(numbers) > 1 else "")
        parts.append(f"{word} {ranges(numbers)}" + ("" if name == WHOLE else " merged"))
    if found.empties:
        word = "an empty chunk" if len(found.empties) == 1 else "empty chunks"
        parts.append(f"{word} at {ranges(found.empties)}")
    return found, f"{name} but for {' and '.join(parts)}", {*changed, *found.empties}
