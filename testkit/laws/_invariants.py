"""Invariants of a stream of ``Delta``, for ``assert_split_invariant``: what must hold however the input was cut."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from testkit._text import counted
from testkit.errors import LawsError
from testkit.laws._deltas import OF_CALLS, Delta
from testkit.laws._values import shown

__tracebackhide__ = True  # pytest shows the line that called us, not ours

Invariant = Callable[[Sequence[Delta]], None]
START = "start"
"""What a stream is in before its first delta."""


def no_marker(*markers: str) -> Invariant:
    """No marker, such as "<tool_call>", is in what the stream says, whatever the kind.

    Arguments may hold one: they are data.
    """
    if not markers or not all(isinstance(marker, str) and marker for marker in markers):
        raise LawsError(f"markers are {markers!r}", "argument of no_marker", 'give text: no_marker("<call>")')

    def check(deltas: Sequence[Delta]) -> None:
        _look("no_marker", deltas)
        said: dict[tuple[str, int], str] = {}
        for delta in deltas:
            if delta.kind != "arguments":
                said[delta.kind, delta.call] = said.get((delta.kind, delta.call), "") + delta.value
        for (kind, _), text in said.items():
            for marker in markers:
                _must(marker not in text, f"the {kind} {text!r} holds the marker {marker!r}")

    return _called(check, f"no_marker({', '.join(map(repr, markers))})")


def named_once(deltas: Sequence[Delta]) -> None:
    """Each tool call has its name in one delta, before its arguments, and an id in one delta or none has any."""
    _look("named_once", deltas)
    found = Counter((delta.call, delta.kind) for delta in deltas if delta.value and delta.kind in OF_CALLS)
    calls = sorted({call for call, _ in found})
    with_id = [call for call in calls if found[call, "id"]]
    for call in calls:
        _must(found[call, "name"] == 1, f"call {call} has {counted(found[call, 'name'], 'name')}")
        _must(found[call, "id"] <= 1, f"call {call} has {counted(found[call, 'id'], 'id')}")
        _must(found[call, "id"] or not with_id, f"call {call} has no id, and call {[*with_id, 0][0]} has one")
        kinds = [delta.kind for delta in deltas if delta.value and delta.call == call and delta.kind in OF_CALLS]
        early = kinds.index("name") < [*kinds, "arguments"].index("arguments")
        _must(early, f"call {call} has its name after its arguments began")


def arguments_are_json(deltas: Sequence[Delta]) -> None:
    """The arguments of each tool call add up to JSON; nothing at all is none."""
    _look("arguments_are_json", deltas)
    calls = {delta.call: "" for delta in deltas if delta.kind in OF_CALLS}
    for delta in deltas:
        if delta.kind == "arguments":
            calls[delta.call] += delta.value
    for call, arguments in calls.items():
        try:
            json.loads(arguments)
        except ValueError as error:  # noqa: PERF203  # the first is enough
            raise AssertionError(f"the arguments of call {call} are no JSON, {error}: {arguments!r}") from None


def text_before_calls(deltas: Sequence[Delta]) -> None:
    """What is no tool call comes before all calls, and these one after the other, numbered from 0."""
    _look("text_before_calls", deltas)
    said = [delta for delta in deltas if delta.value]
    calls: list[int] = []
    for delta in said:
        if delta.phase != "call":
            _must(not calls, f"the {delta.kind} {delta.value!r} comes after a call")
        elif not calls or delta.call != calls[-1]:
            _must(delta.call == len(calls), f"call {delta.call} comes where call {len(calls)} should begin")
            calls.append(delta.call)


def phases(allowed: Mapping[str, Collection[str]]) -> Invariant:
    """From a phase the stream goes on to those that ``allowed`` names for it, or stays.

    Phases are the kinds of deltas, with "call" for name, id and arguments, and "start" before the first delta; what
    ``allowed`` leaves out may be followed by nothing.
    """
    if START not in allowed or any(isinstance(after, str) for after in allowed.values()):
        fix = 'name what may come first: {"start": ["reasoning", "text"], "reasoning": ["text"]}'
        raise LawsError(f"allowed is {allowed!r}", "argument of phases", fix)

    def check(deltas: Sequence[Delta]) -> None:
        _look("phases", deltas)
        now = START
        for delta in deltas:
            if delta.value and delta.phase != now:
                _must(delta.phase in allowed.get(now, ()), f"{delta.phase} {delta.value!r} comes after {now}")
                now = delta.phase

    return _called(check, "phases")


def _look(name: str, deltas: object) -> None:
    if not isinstance(deltas, (list, tuple)) or not all(isinstance(delta, Delta) for delta in deltas):
        fix = "let parse return or yield Delta objects, or give a function that knows its results"
        raise LawsError(f"{name} looks at Delta objects, and the result is {shown(deltas)}", "invariants", fix)


def _must(holds: object, problem: str) -> None:
    """An assert that ``python -O`` keeps."""
    if not holds:
        raise AssertionError(problem)


def _called(check: Invariant, name: str) -> Invariant:
    check.__name__ = name
    return check
