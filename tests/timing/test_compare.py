"""Comparisons: two gates, sustained; what a recording of 82 days says about the default; and how weak an answer is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from testkit.errors import TimingError
from testkit.timing._compare import Change, Gate, compare, windows

ROOT = Path(__file__).resolve().parents[2]
WEEK = [100.0, 101, 99, 100, 102, 98, 100]


def slower(base: list[Any], head: list[Any], **gate: Any) -> bool:
    found = compare({"row": base}, {"row": head}, Gate(**gate))
    assert found.ok is not bool(found.slower)
    return bool(found.slower)


def test_two_of_three_runs_beyond_both_gates_are_slower() -> None:
    assert slower(WEEK, [100.0, 160, 160])
    assert slower(WEEK, [160.0, 100, 160])
    assert slower(WEEK, [160.0, 160, 160])


def test_one_run_beyond_the_gates_is_chance() -> None:
    assert not slower(WEEK, [100.0, 100, 500])


def test_either_gate_alone_is_not_enough() -> None:
    assert not slower(WEEK, [140.0] * 3)  # +40 %, but 40 s
    assert not slower([1000.0] * 7, [1100.0] * 3)  # 100 s, but +10 %
    assert not slower([0.1] * 7, [10.0] * 3)


def test_a_stray_run_in_the_base_moves_nothing() -> None:
    assert slower([*WEEK[:6], 900.0], [160.0] * 3)
    assert not slower([*WEEK[:6], 1.0], [110.0] * 3)


def test_gates_can_be_set() -> None:
    assert slower([0.1] * 7, [0.2] * 3, seconds=0.05)
    assert slower(WEEK, [110.0] * 3, relative=0.05, seconds=5)
    assert not slower(WEEK, [100.0, 160, 160], above=3)
    month = {"row": [10.0] * 8 + WEEK}
    assert compare(month, {"row": [60.0] * 3}, Gate(base=15)).slower == [Change("row", 10, 60, 15, 3)]
    assert compare(month, {"row": [60.0] * 3}, Gate(base=7)).slower == []


def test_a_row_that_became_faster_is_no_failure() -> None:
    found = compare({"row": [160.0] * 7}, {"row": WEEK[:3]})
    assert found.ok
    assert found.faster == [Change("row", 160, 100, 7, 3)]


def test_rows_are_listed_by_the_seconds_that_they_lost() -> None:
    base = {name: [100.0] * 7 for name in "abcd"}
    found = compare(base, {"a": [200.0] * 3, "b": [900.0] * 3, "c": [200.0] * 3, "d": [101.0] * 3})
    assert [(change.name, change.lost, change.ratio) for change in found.slower] == [
        ("b", 800, 9),
        ("a", 100, 2),
        ("c", 100, 2),
    ]
    found = compare({"a": [300.0] * 7, "b": [500.0] * 7}, {"a": [1.0] * 3, "b": [1.0] * 3})
    assert [(change.name, change.lost) for change in found.faster] == [("b", -499), ("a", -299)]


def test_rows_of_one_side_are_named_and_not_judged() -> None:
    found = compare({"a": [1.0] * 7, "old": [1.0]}, {"a": [1.0] * 3, "new": [900.0] * 3, "none": [None]})
    assert (found.added, found.removed, found.compared, found.ok) == (["new"], ["old"], 1, True)


def test_only_the_newest_values_count_and_gaps_are_skipped() -> None:
    found = compare({"a": [900.0] * 9 + WEEK}, {"a": [1.0] * 9 + [160.0, None, 160, None, 160]})
    assert found.slower == [Change("a", 100, 160, 7, 3)]


def test_two_single_runs_are_judged_and_called_weak() -> None:
    found = compare({"a": [100.0], "b": [10.0]}, {"a": [160.0], "b": [10.0]})
    assert [change.name for change in found.slower] == ["a"]
    assert found.notes() == [
        "2 of 2 rows have fewer runs than the gate asks for (2 of 3 runs off the median of 7 by 25% and 45 s): "
        "what differs there may be chance",
        "the middle row took 1.30 times its base: another machine, or a cause that all rows share",
    ]


def test_full_windows_on_the_same_machine_need_no_note() -> None:
    assert compare({"a": WEEK}, {"a": WEEK[:3]}).notes() == []


def test_a_row_from_nothing_has_no_ratio_and_is_found() -> None:
    found = compare({"a": [0.0] * 7}, {"a": [60.0] * 3})
    assert (found.slower[0].ratio, found.shift) == (float("inf"), 1.0)


def test_one_history_is_cut_into_base_and_head() -> None:
    history = {"a": [None, 1.0, 2, 3, None, 4, 5], "new": [None] * 6 + [7.0], "gone": [1.0] * 4 + [None] * 3}
    assert windows(history) == (
        {"a": [1, 2], "new": [], "gone": [1] * 4},
        {"a": [3, 4, 5], "new": [7], "gone": []},
    )
    found = compare(*windows(history))
    assert (found.added, found.removed, found.compared) == (["new"], ["gone"], 1)


def test_nothing_in_common_is_an_error_and_not_a_pass() -> None:
    with pytest.raises(TimingError, match="nothing to compare: 1 row in the base, 2 in the head, none in both"):
        compare({"a": [1.0]}, {"b": [1.0], "c": [1.0]})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "3"])
def test_values_that_are_no_times_are_refused_with_row_and_side(value: Any) -> None:
    with pytest.raises(TimingError, match=r"a took .* \(the head of a comparison\)"):
        compare({"a": [1.0]}, {"a": [value]})


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"relative": -0.1}, r"relative is -0.1 \(Gate\(relative="),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"head": 0}, "head is 0"),
        ({"base": 7.5}, "base is 7.5"),
        ({"above": 4}, "above is 4 of 3 runs"),
    ],
)
def test_gates_that_mean_nothing_are_refused(gate: dict[str, Any], message: str) -> None:
    with pytest.raises(TimingError, match=message):
        Gate(**gate)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_gates", ROOT / "benchmarks" / "compare_gates.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_default_gate_is_quiet_on_real_days_and_finds_what_is_planted(benchmark: ModuleType) -> None:
    """The excerpt has a thirteenth of the recording's rows; 1.1 alarms a day on all of them are 0.085 here."""
    series = json.loads((ROOT / "tests" / "data" / "timing" / "daily_excerpt.json").read_text())["series"]
    began = benchmark.alarms(series, Gate())
    assert sum(began) <= 0.085 * len(began)
    assert benchmark.share_found(series, Gate(), 100) >= 0.95
