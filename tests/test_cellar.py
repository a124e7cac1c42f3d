"""The small files that every capability stands on: errors, text, a look at what is loaded."""

from __future__ import annotations

import pickle
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from testkit import errors
from testkit._loaded import loaded
from testkit._text import counted, table
from testkit.errors import KitError, PairwiseError
from testkit.kernels import KernelFailed
from testkit.laws import SplitBroken
from testkit.processes import RanksFailed


def test_an_error_is_a_headline_with_its_origin_and_one_action() -> None:
    error = PairwiseError("strength 4 exceeds the 3 axes of test_forward", "from the marker", "use 1 to 3")
    assert str(error).splitlines() == [
        "pairwise: strength 4 exceeds the 3 axes of test_forward (from the marker)",
        "next: use 1 to 3",
    ]
    assert error.headline == str(error).splitlines()[0]


def test_an_error_without_origin_or_action_is_one_line() -> None:
    assert str(KitError("no run file")) == "testkit: no run file"


def test_an_error_survives_the_way_from_a_worker() -> None:
    error = pickle.loads(pickle.dumps(PairwiseError("a", "b", "c")))
    assert (type(error), error.problem, error.where, error.fix) == (PairwiseError, "a", "b", "c")


@pytest.mark.parametrize(
    "error",
    [
        RanksFailed("a", "b", "c", "d"),
        KernelFailed("a", ["d", "e"], "c", "b"),
        SplitBroken("a", ["d"], "c", [1], [2], ["x"]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_evidence_survives_it_too(error: KitError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_each_error_names_a_capability_of_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, KitError)]
    assert len({kind.capability for kind in kinds}) == len(kinds) > 2


@pytest.mark.parametrize(("number", "text"), [(0, "0 cases"), (1, "1 case"), (2644, "2,644 cases"), (-1, "-1 cases")])
def test_counted_nouns(number: int, text: str) -> None:
    assert counted(number, "case") == text
    assert counted(2, "axis", "axes") == "2 axes"


def test_a_table_aligns_numbers_right_and_words_left() -> None:
    assert table([("krc", 9216, "9,216"), ("llmm1", 64, True), ("short", 1)]) == [
        "  krc    9,216  9,216",
        "  llmm1     64   True",
        "  short      1",
    ]
    assert table([]) == []


def test_loaded_finds_what_is_there_and_imports_nothing() -> None:
    assert loaded("sys") is sys
    assert loaded("antigravity") is None
    assert "antigravity" not in sys.modules


def test_loaded_does_not_hand_out_a_module_that_is_half_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("half")
    module.__spec__ = ModuleSpec("half", None)
    monkeypatch.setitem(sys.modules, "half", module)
    assert loaded("half") is module
    monkeypatch.setattr(module.__spec__, "_initializing", True, raising=False)
    assert loaded("half") is None
