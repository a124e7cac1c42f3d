"""``assert_split_invariant``: planted parser bugs with the smallest grouping that shows each, and healthy parsers."""

from __future__ import annotations

import codecs
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import LawsError
from testkit.laws import Delta, LawBroken, SplitBroken, assert_split_invariant
from testkit.laws._groupings import NEIGHBOURS, PAIRS, Pieces, families

OPEN, CLOSE = "<call>", "</call>"
TEXT = 'so <call>f({"a": 1})</call> end'
CALLS = ["so ", ("f", '{"a": 1}'), " end"]


class Parser:
    """Text with calls ``<call>name(arguments)</call>`` in it; says texts, and a name and arguments for each call."""

    def __init__(self) -> None:
        self.buffer = ""
        self.said: list[Any] = []

    def text(self, text: str) -> None:
        if text and self.said and isinstance(self.said[-1], str):
            self.said[-1] += text
        elif text:
            self.said.append(text)

    def feed(self, chunk: str) -> None:
        self.buffer += chunk
        while OPEN in self.buffer:
            before, _, rest = self.buffer.partition(OPEN)
            if CLOSE not in rest:
                return
            self.text(before)
            call, _, self.buffer = rest.partition(CLOSE)
            name, _, arguments = call.partition("(")
            self.said.append((name, arguments[:-1]))
        safe = self.safe()
        self.text(self.buffer[:safe])
        self.buffer = self.buffer[safe:]

    def safe(self) -> int:
        """How many characters of the buffer can be no beginning of a marker."""
        for size in range(len(OPEN) - 1, 0, -1):
            if self.buffer.endswith(OPEN[:size]):
                return len(self.buffer) - size
        return len(self.buffer)

    def end(self) -> list[Any]:
        self.text(self.buffer)
        return self.said


def parsing(kind: Callable[[], Any]) -> Callable[[Iterable[Any]], Any]:
    def parse(chunks: Iterable[Any]) -> Any:
        parser = kind()
        for chunk in chunks:
            parser.feed(chunk)
        return parser.end()

    return parse


class MarkerMustBeWhole(Parser):
    def safe(self) -> int:
        return len(self.buffer)


class KeepsOneCharacterOnly(Parser):
    def safe(self) -> int:
        return len(self.buffer) - self.buffer.endswith("<")


class StopsAtAnEmptyChunk(Parser):
    done = False

    def feed(self, chunk: str) -> None:
        self.done = self.done or not chunk
        if not self.done:
            super().feed(chunk)


class StripsEachChunk(Parser):
    def feed(self, chunk: str) -> None:
        super().feed(chunk.strip() if not self.buffer else chunk)


class LosesTheTail(Parser):
    def end(self) -> list[Any]:
        return self.said


class OneCallAChunk(Parser):
    """A second call in one chunk waits for a chunk that never comes."""

    def feed(self, chunk: str) -> None:
        self.buffer += chunk
        before, opened, rest = self.buffer.partition(OPEN)
        if opened and CLOSE in rest:
            self.text(before)
            call, _, self.buffer = rest.partition(CLOSE)
            name, _, arguments = call.partition("(")
            self.said.append((name, arguments[:-1]))
        elif not opened:
            super().feed("")

    def end(self) -> list[Any]:
        return self.said


class RaisesOnAHalfCall(Parser):
    def feed(self, chunk: str) -> None:
        if chunk.count("(") > chunk.count(")") and chunk.endswith("}"):
            raise ValueError(f"unbalanced {chunk!r}")
        super().feed(chunk)


class ForgetsAcrossThree(Parser):
    """Keeps what it holds for one chunk more only: a marker in three parts is lost."""

    age = 0

    def feed(self, chunk: str) -> None:
        held = bool(self.buffer) and OPEN not in self.buffer
        super().feed(chunk)
        self.age = self.age + 1 if held and self.buffer and OPEN not in self.buffer else 0
        if self.age:
            self.buffer = ""


class Decodes:
    """Bytes to text, a chunk at a time."""

    def __init__(self) -> None:
        self.text = ""

    def feed(self, chunk: bytes) -> None:
        self.text += chunk.decode("utf-8", "replace")

    def end(self) -> str:
        return self.text


class LinesByChunk:
    """Server-sent events, each line expected whole."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def feed(self, chunk: str) -> None:
        self.events += [line[6:] for line in chunk.split("\n") if line.startswith("data: ")]

    def end(self) -> list[str]:
        return self.events


class CountsChunks(Decodes):
    def feed(self, chunk: Any) -> None:
        self.text += str(len(chunk) > 0)


BUGS: dict[Callable[[], Any], tuple[Any, Any, str, str]] = {
    MarkerMustBeWhole: (TEXT, CALLS, "at 5 of 30 two-way cuts: 4-8", """'so <' | 'call>f({"a": 1})</call> end'"""),
    KeepsOneCharacterOnly: (TEXT, CALLS, "at 4 of 30 two-way cuts: 5-8", """'so <c' | 'all>f({"a": 1})</call> end'"""),
    StopsAtAnEmptyChunk: (TEXT, CALLS, "for empty chunks", """'' | 'so <call>f({"a": 1})</call> end'"""),
    StripsEachChunk: (
        TEXT,
        CALLS,
        "at 5 of 30 two-way cuts: 2, 3, 17, 27, 28",
        """'so' | ' <call>f({"a": 1})</call> end'""",
    ),
    LosesTheTail: ("1 <", ["1 <"], "however its input is cut", "'1 <'"),
    OneCallAChunk: (TEXT * 2, None, "at 35 of 61 two-way cuts: 27-61", None),
    RaisesOnAHalfCall: (TEXT, CALLS, "at 1 of 30 two-way cuts: 19", """'so <call>f({"a": 1}' | ')</call> end'"""),
    ForgetsAcrossThree: (TEXT, CALLS, "for one piece a chunk", """'so <' | 'c' | 'all>f({"a": 1})</call> end'"""),
    Decodes: ("a\u00e9\u4f60".encode(), None, "at 3 of 5 two-way cuts: 2, 4, 5", r"b'a\xc3' | b'\xa9\xe4\xbd\xa0'"),
    LinesByChunk: ("data: x\ndata: y\n", None, "at 12 of 15 two-way cuts: 1-6, 9-14", r"'d' | 'ata: x\ndata: y\n'"),
    CountsChunks: ("ab", None, "at 1 of 1 two-way cut: 1", "'a' | 'b'"),
}
"""Each with pieces, the right result, what the first line says, and the smallest failing grouping."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_each_bug_is_found_with_the_smallest_grouping(bug: Callable[[], Any]) -> None:
    pieces, expected, message, grouping = BUGS[bug]
    with pytest.raises(SplitBroken, match=f"^laws: parse is wrong {re.escape(message)}\n") as caught:
        assert_split_invariant(parsing(bug), pieces, expected)
    assert caught.value.evidence[0].startswith("smallest failing grouping, ")
    assert grouping is None or caught.value.evidence[1] == f"  {grouping}"
    assert ("" if isinstance(pieces, str) else b"").join(caught.value.chunks) == pieces
    assert parsing_fails(bug, caught.value.chunks, expected, pieces)


def parsing_fails(bug: Callable[[], Any], chunks: list[Any], expected: Any, pieces: Any) -> bool:
    try:
        return bool(parsing(bug)(chunks) != (parsing(bug)([pieces]) if expected is None else expected))
    except ValueError:
        return True


# the case of the public reports


def toy() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec((Path(__file__).parents[1] / "data/laws/toy_parser.py.txt").read_text(), names)
    return names


def toy_parse(chunks: Iterable[str]) -> Any:
    parser = toy()["ToyParser"]()
    for chunk in chunks:
        parser.feed(chunk)
    return parser.result()


def test_of_a_parser_for_one_token_a_delta_the_failing_cuts_and_pairs_are_listed() -> None:
    tokens, want = toy()["TOKENS"], toy()["WANT"]
    with pytest.raises(SplitBroken, match=r"^laws: parse is wrong at 9 of 10 two-way cuts: 1, 2, 4-10\n") as caught:
        assert_split_invariant(toy_parse, tokens, want)
    assert caught.value.failing_cuts == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert caught.value.failing_pairs == [2]
    assert caught.value.chunks == [*tokens[:2], tokens[2] + tokens[3], *tokens[4:]]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.failing_cuts) == (str(caught.value), caught.value.failing_cuts)
    assert str(caught.value).splitlines() == [
        "laws: parse is wrong at 9 of 10 two-way cuts: 1, 2, 4-10",
        "  smallest failing grouping, one piece a chunk but for pair 2 merged:",
        """    '<call>' | 'weather' | '({"' | 'city' | '":"' | 'Oslo' | '"}' | ')' | '</call>' | ' done'""",
        """  expected  ('weather', '{"city":"Oslo"}', ' done')""",
        """  actual    ('weather', 'city":"Oslo"}', ' done')""",
        "  grouping                wrong  of",
        "  the whole in one chunk      1    1",
        "  one piece a chunk           0    1",
        "  two-way cuts                9   10  1, 2, 4-10",
        "  merged neighbours           1   10  2",
        "  empty chunks                3   16",
        "  pairs of cuts              36   45",
        "  seeded groupings           35  100",
        "next: feed the parser that grouping, and look at what it has kept, dropped or taken for done after each chunk",
    ]


# healthy parsers


def decoded(chunks: Iterable[bytes]) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    return "".join(map(decoder.decode, chunks)) + decoder.decode(b"", final=True)


def as_deltas(chunks: Iterable[str]) -> Iterator[Delta]:
    """Says its text as it comes, so that the deltas differ and what they add up to does not."""
    for chunk in chunks:
        for letter in chunk:
            yield Delta("name", letter) if letter.isupper() else Delta("text", letter)
        yield Delta("text", "")


HEALTHY: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "calls in text": (parsing(Parser), TEXT * 2 + "<cal", None),
    "calls in tokens, with the right result": (
        parsing(Parser),
        ["so <", "call>", "f(", '{"a": 1})', "</call> end"],
        CALLS,
    ),
    "an incremental decoder": (decoded, "a\u00e9\u4f60\U0001f600".encode(), "a\u00e9\u4f60\U0001f600"),
    "deltas that are yielded": (as_deltas, "so A be", [Delta("text", "so "), Delta("name", "A"), Delta("text", " be")]),
    "token ids in lists": (lambda chunks: [i for chunk in chunks for i in chunk if i > 1], range(6), None),
    "tokens of bytes": (b"".join, [b"a", b"", b"\xc3"], b"a\xc3"),
    "the end of a line": (lambda chunks: "".join(chunks).splitlines(), "a\r\nb\n", ["a", "b"]),
    "a result that is empty": (lambda chunks: [0 for chunk in chunks if len(chunk) > 9], "abc", None),
}


@pytest.mark.parametrize("parser", HEALTHY)
def test_a_healthy_parser_passes(parser: str) -> None:
    parse, pieces, expected = HEALTHY[parser]
    assert_split_invariant(parse, pieces, expected)


def test_a_long_text_is_shown_near_the_failure_only() -> None:
    text = "word " * 60 + TEXT
    with pytest.raises(SplitBroken, match=r"^laws: ") as caught:
        assert_split_invariant(parsing(MarkerMustBeWhole), text)
    assert caught.value.failing_cuts == [304, 305, 306, 307, 308]
    assert max(map(len, str(caught.value).splitlines())) < 200


def test_what_differs_from_one_piece_a_chunk_is_shown_with_its_neighbours() -> None:
    tokens = [f"{n} " for n in range(40)] + ["(", "{", ")"]
    with pytest.raises(SplitBroken, match="for 1 of 42 merged neighbours: 40") as caught:
        assert_split_invariant(lambda chunks: sum(chunk == "({" for chunk in chunks), tokens, 0)
    assert caught.value.evidence[1] == "  ... | '39 ' | '({' | ')'"


# invariants


def test_an_invariant_that_raises_or_is_false_is_a_failure() -> None:
    def short(result: str) -> None:
        assert len(result) < 3, "too long"

    with pytest.raises(SplitBroken, match=r"however its input is cut\n(.*\n)*  short: too long") as caught:
        assert_split_invariant("".join, "abc", invariants=[str.isalpha, short])
    assert caught.value.evidence[2] == "short: too long"
    with pytest.raises(SplitBroken, match="isdigit is False"):
        assert_split_invariant("".join, "abc", invariants=[str.isdigit])


def test_an_invariant_sees_the_deltas_as_they_came() -> None:
    def at_most_two(deltas: list[Delta]) -> None:
        assert len(deltas) <= 2, f"{len(deltas)} deltas"

    with pytest.raises(SplitBroken, match=r"one piece a chunk.*\n(.*\n)*  at_most_two: 3 deltas"):
        assert_split_invariant(
            lambda chunks: [Delta("text", chunk) for chunk in chunks], "abc", invariants=[at_most_two]
        )


# what would verify nothing


class Reused:
    parser = Parser()

    def __call__(self, chunks: Iterable[str]) -> list[Any]:
        for chunk in chunks:
            self.parser.feed(chunk)
        return self.parser.end()


def raises(chunks: Iterable[str]) -> None:
    raise KeyError("no such marker")


@pytest.mark.parametrize(
    ("parse", "pieces", "expected", "message"),
    [
        ("".join, "a", None, "pieces is 'a', which cannot be cut"),
        ("".join, "", "", "pieces is '', which cannot be cut"),
        ("".join, 3, None, "pieces is 3"),
        (lambda chunks: "ab", "ab", "ab", "parse did not read its chunks"),
        (lambda chunks: list(chunks) and None, "ab", None, "parse returned None"),
        (Reused(), "ab", None, r"parse gives \['ab'\] and then \['abab'\] for the same chunks"),
        (lambda chunks: "".join(chunks) and object(), "ab", None, "return what == compares"),
        (raises, "ab", None, "parse raised KeyError: 'no such marker' for the whole in one chunk"),
    ],
)
def test_what_would_verify_nothing_is_refused(parse: Any, pieces: Any, expected: Any, message: str) -> None:
    with pytest.raises(LawsError, match=message) as caught:
        assert_split_invariant(parse, pieces, expected)
    assert not isinstance(caught.value, LawBroken)


# the groupings


def test_every_family_is_there_and_every_grouping_holds_all_pieces() -> None:
    pieces = Pieces("abcdefgh", "here")
    found: dict[str, list[list[str]]] = {}
    for family, _, grouping in families(8):
        found.setdefault(family, []).append(pieces.chunks(grouping))
    assert all("".join(chunks) == "abcdefgh" for groups in found.values() for chunks in groups)
    assert found["the whole in one chunk"] == [["abcdefgh"]]
    assert found["one piece a chunk"] == [list("abcdefgh")]
    assert [len(chunks[0]) for chunks in found["two-way cuts"]] == [1, 2, 3, 4, 5, 6, 7]
    assert [chunks.index("abcdefgh"[i : i + 2]) for i, chunks in enumerate(found["merged neighbours"])] == list(
        range(7)
    )
    assert len({tuple(chunks) for chunks in found["pairs of cuts"]}) == 21
    assert sum(chunks.count("") for chunks in found["empty chunks"][:-1]) == 4 + 9
    assert found["empty chunks"][-1].count("") == 9
    assert len({tuple(chunks) for chunks in found["seeded groupings"]}) > 40


def test_of_long_inputs_all_two_way_cuts_and_a_bounded_rest_are_tried() -> None:
    numbers: dict[str, int] = {}
    for family, _, _ in families(1200):
        numbers[family] = numbers.get(family, 0) + 1
    assert numbers["two-way cuts"] == 1199
    assert numbers["merged neighbours"] == NEIGHBOURS
    assert numbers["pairs of cuts"] == PAIRS
