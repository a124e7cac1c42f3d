"""The invariants for streams of ``Delta``: each alone, and within ``assert_split_invariant``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from testkit.errors import LawsError
from testkit.laws import (
    Delta,
    SplitBroken,
    arguments_are_json,
    assert_split_invariant,
    named_once,
    no_marker,
    phases,
    text_before_calls,
)
from testkit.laws._deltas import merged

THINK = {"start": ["reasoning", "text", "call"], "reasoning": ["text", "call"], "text": ["call"], "call": []}
ALL = [no_marker("<call>", "</call>"), named_once, arguments_are_json, text_before_calls, phases(THINK)]


def stream(*words: str) -> list[Delta]:
    """``text:so``, ``name1:f`` (of call 1)."""
    deltas = []
    for word in words:
        kind, _, value = word.partition(":")
        deltas.append(Delta(kind.rstrip("0123456789"), value, int(kind[-1]) if kind[-1].isdigit() else 0))
    return deltas


HEALTHY = [
    stream(),
    stream("text:only"),
    stream("reasoning:so", "reasoning:", "text:well", "text: then", "name:f", "arguments:{", "arguments:}"),
    stream("id:c0", "name:f", "arguments:{}", "id1:c1", "name1:g", "arguments1:[1", "arguments1:]"),
    stream("name:f", 'arguments:{"tag": "<call>"}'),
    stream("text:", "reasoning:late empty text is nothing", "text:a < b > c"),
]
BROKEN = {
    "the text 'a <call> b' holds the marker '<call>'": (ALL[0], stream("text:a <ca", "text:ll> b")),
    "the reasoning 'x</call>' holds the marker '</call>'": (ALL[0], stream("reasoning:x</call>")),
    "the name 'f<call>' holds the marker": (ALL[0], stream("name:f<call>", "arguments:{}")),
    "call 0 has 2 names": (named_once, stream("name:f", "name:f", "arguments:{}")),
    "call 0 has 0 names": (named_once, stream("arguments:{}")),
    "call 1 has 2 ids": (named_once, stream("id:a", "name:f", "id1:b", "id1:b", "name1:g")),
    "call 1 has no id, and call 0 has one": (named_once, stream("id:a", "name:f", "name1:g")),
    "call 0 has its name after its arguments began": (named_once, stream("arguments:{}", "name:f")),
    "the arguments of call 0 are no JSON, .*: ''": (arguments_are_json, stream("name:f")),
    "the arguments of call 1 are no JSON, .*: '{'": (arguments_are_json, stream("arguments:1", "arguments1:{")),
    "the text ' and' comes after a call": (text_before_calls, stream("name:f", "arguments:{}", "text: and")),
    "call 1 comes where call 0 should begin": (text_before_calls, stream("name1:f")),
    "call 0 comes where call 2 should begin": (text_before_calls, stream("name:f", "name1:g", "arguments:{}")),
    "reasoning 'hm' comes after text": (ALL[4], stream("text:a", "reasoning:hm")),
    "text 'b' comes after call": (ALL[4], stream("name:f", "text:b")),
    "refusal 'no' comes after start": (ALL[4], stream("refusal:no")),
}


@pytest.mark.parametrize("deltas", HEALTHY, ids=range(len(HEALTHY)))
def test_all_hold_for_a_healthy_stream(deltas: list[Delta]) -> None:
    for check in ALL:
        check(deltas)


@pytest.mark.parametrize("problem", BROKEN)
def test_each_says_what_is_broken(problem: str) -> None:
    check, deltas = BROKEN[problem]
    with pytest.raises(AssertionError, match=problem):
        check(deltas)


def test_deltas_add_up_by_kind_and_call_and_empty_ones_are_nothing() -> None:
    assert merged(stream("text:a", "name:", "text:b", "name:f", "name1:g")) == stream("text:ab", "name:f", "name1:g")


def say(chunks: Iterable[str], *, twice: bool = False, leaks: bool = False) -> list[Delta]:
    """What is before ``|`` is text, then comes a name, ``(`` and arguments. Two flaws may be planted."""
    said, kind, name = [], "text", ""
    for chunk in chunks:
        for letter in chunk:
            if kind == "text" and letter == "|":
                kind = "name"
                said += [Delta("text", letter)] if leaks and chunk.endswith(letter) else []
            elif kind == "name" and letter == "(":
                kind = "arguments"
                said += [Delta("name", name)] * (2 if twice and chunk.endswith(letter) else 1)
            elif kind == "name":
                name += letter
            else:
                said.append(Delta(kind, letter))
    return said


def test_in_the_law_an_invariant_is_named_with_the_smallest_grouping_that_breaks_it() -> None:
    checks = [no_marker("|"), named_once, arguments_are_json, text_before_calls]
    text = 'so |f({"a": 1}'
    assert_split_invariant(say, text, invariants=checks)
    with pytest.raises(SplitBroken, match=r"at 1 of 13 two-way cuts: 4\n(.*\n)*  no_marker\('\|'\): the text 'so \|'"):
        assert_split_invariant(lambda chunks: say(chunks, leaks=True), text, invariants=checks)
    with pytest.raises(SplitBroken, match=r"at 1 of 13 two-way cuts: 6\n(.*\n)*  named_once: call 0 has 2 names"):
        assert_split_invariant(lambda chunks: say(chunks, twice=True), text, invariants=checks)


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.__name__)
def test_results_that_are_no_deltas_are_refused(check: Any) -> None:
    with pytest.raises(LawsError, match=r"looks at Delta objects, and the result is 'abc'"):
        assert_split_invariant("".join, "abc", invariants=[check])


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (no_marker, (), r"markers are \(\)"),
        (no_marker, ("",), r"markers are \(''"),
        (phases, ({"text": ["call"]},), "name what may come first"),
        (phases, ({"start": "text"},), "name what may come first"),
    ],
)
def test_invariants_that_could_never_hold_or_fail_are_refused(make: Any, given: Any, message: str) -> None:
    with pytest.raises(LawsError, match=message):
        make(*given)
