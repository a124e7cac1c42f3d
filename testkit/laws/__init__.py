"""What a system must keep, whatever its inputs: counts, answers, results under any cut, budgets, an end."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.laws._budget import Budget as Budget
    from testkit.laws._budget import call_budget as call_budget
    from testkit.laws._conserved import assert_conserved as assert_conserved
    from testkit.laws._deltas import Delta as Delta
    from testkit.laws._failure import LawBroken as LawBroken
    from testkit.laws._invariants import arguments_are_json as arguments_are_json
    from testkit.laws._invariants import named_once as named_once
    from testkit.laws._invariants import no_marker as no_marker
    from testkit.laws._invariants import phases as phases
    from testkit.laws._invariants import text_before_calls as text_before_calls
    from testkit.laws._platforms import assert_platform_choices as assert_platform_choices
    from testkit.laws._same_answer import assert_same_answer as assert_same_answer
    from testkit.laws._split import SplitBroken as SplitBroken
    from testkit.laws._split import assert_split_invariant as assert_split_invariant
    from testkit.laws._terminates import assert_terminates as assert_terminates
    from testkit.laws._torch_answers import torch_answers as torch_answers

_HOMES = {
    "Budget": "_budget",
    "Delta": "_deltas",
    "LawBroken": "_failure",
    "SplitBroken": "_split",
    "arguments_are_json": "_invariants",
    "assert_conserved": "_conserved",
    "assert_platform_choices": "_platforms",
    "assert_same_answer": "_same_answer",
    "assert_split_invariant": "_split",
    "assert_terminates": "_terminates",
    "call_budget": "_budget",
    "named_once": "_invariants",
    "no_marker": "_invariants",
    "phases": "_invariants",
    "text_before_calls": "_invariants",
    "torch_answers": "_torch_answers",
}

__all__ = [
    "Budget",
    "Delta",
    "LawBroken",
    "SplitBroken",
    "arguments_are_json",
    "assert_conserved",
    "assert_platform_choices",
    "assert_same_answer",
    "assert_split_invariant",
    "assert_terminates",
    "call_budget",
    "named_once",
    "no_marker",
    "phases",
    "text_before_calls",
    "torch_answers",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
