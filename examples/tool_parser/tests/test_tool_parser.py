"""What the parser says does not depend on where its input is cut."""

from functools import partial

import pytest
from tool_parser.parser import parse

from testkit.laws import (
    Delta,
    arguments_are_json,
    assert_split_invariant,
    named_once,
    no_marker,
    phases,
    text_before_calls,
)

WEATHER = '<tool_call>weather({"city": "Oslo"})</tool_call>'
CALL = [Delta("name", "weather"), Delta("arguments", '{"city": "Oslo"}')]
SAID = {
    "only text <or so": [Delta("text", "only text <or so")],
    f"Let me see. {WEATHER}": [Delta("text", "Let me see. "), *CALL],
    f"{WEATHER}<tool_call>time({{}})</tool_call>": [*CALL, Delta("name", "time", 1), Delta("arguments", "{}", 1)],
    '<tool_call>f({"a": ")</tool"})</tool_call>': [Delta("name", "f"), Delta("arguments", '{"a": ")</tool"}')],
}
ORDER = {"start": ["reasoning", "text", "call"], "reasoning": ["text", "call"], "text": ["call"]}
HOLDS = [
    no_marker("<tool_call>", "</tool_call>", "</think>"),
    named_once,
    arguments_are_json,
    text_before_calls,
    phases(ORDER),
]


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("text", SAID)
def test_what_is_said_does_not_depend_on_the_cuts(text, thinking):
    given = f"Oslo, then. 2 < 3</think>{text}" if thinking else text
    expected = [Delta("reasoning", "Oslo, then. 2 < 3")] * thinking + SAID[text]
    assert_split_invariant(partial(parse, thinking=thinking), given, expected, invariants=HOLDS)


def test_it_holds_for_the_tokens_of_a_model():
    tokens = [
        "Sure",
        ".</",
        "think",
        ">",
        "<tool_call>",
        "weather",
        "(",
        '{"',
        "city",
        '": "',
        "Oslo",
        '"}',
        ")",
        "</tool_call>",
    ]
    assert_split_invariant(
        partial(parse, thinking=True), tokens, [Delta("reasoning", "Sure."), *CALL], invariants=HOLDS
    )


def test_a_text_is_said_as_it_comes_and_not_at_the_end():
    parser = parse(iter(["Let ", "me ", "see."]), thinking=False)
    assert [next(parser), next(parser)] == [Delta("text", "Let "), Delta("text", "me ")]
