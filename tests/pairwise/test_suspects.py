"""What failing cases share: the smallest explanation that no passing case contradicts, and its words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testkit.pairwise._suspects import Finding, find_suspects, finding_lines, group_sizes, smallest_failing

AXES = [
    ("k", ["2880", "2888", "3072", "3080"]),
    ("padded_a", ["False", "True"]),
    ("bias_mode", ["0", "1", "2"]),
    ("dtype", ["float16", "bfloat16"]),
]
LEVELS = [len(words) for _, words in AXES]
Row = tuple[int, ...]


def found(fails: Callable[[Row], bool], cases: Sequence[Row] | None = None) -> Finding:
    """The finding of a run of these cases (all without any)."""
    rows = list(product(*map(range, LEVELS))) if cases is None else cases
    return find_suspects(LEVELS, [row for row in rows if not fails(row)], [row for row in rows if fails(row)])


def told(finding: Finding) -> list[str]:
    return finding_lines("test_m.py::test_f", AXES, finding, 0)


def test_the_pair_that_all_failing_and_no_passing_cases_hold_is_told_with_counts() -> None:
    finding = found(lambda row: row[1] == 1 and row[2] == 2)
    assert finding.settled
    assert told(finding) == [
        "test_m.py::test_f: 8 of 48 cases failed",
        "  8 of 8 failures have padded_a=True and bias_mode=2; 0 of 40 passing cases do",
    ]


def test_a_single_value_comes_before_any_pair() -> None:
    finding = found(lambda row: row[3] == 1)
    assert [(one.axes, one.cells) for one in finding.suspects] == [((3,), ((1,),))]
    assert finding.settled


def test_a_pair_comes_before_all_of_three_axes() -> None:
    finding = find_suspects([2, 2, 2], [(1, 0, 0), (0, 1, 0), (0, 0, 1)], [(1, 1, 1)])
    assert [one.axes for one in (*finding.suspects, *finding.rivals)] == [(0, 1), (0, 2), (1, 2)]


def test_values_of_one_axis_that_fail_alike_are_told_together() -> None:
    finding = found(lambda row: row[0] != 2 and row[1] == 1)
    assert told(finding)[1:] == [
        "  18 of 18 failures have k in (2880, 2888, 3080) and padded_a=True; 0 of 30 passing cases do"
    ]


def test_two_faults_are_told_as_two_suspects() -> None:
    finding = found(lambda row: (row[0], row[1]) == (0, 1) or (row[2], row[3]) == (2, 0))
    assert told(finding) == [
        "test_m.py::test_f: 13 of 48 cases failed",
        "  8 of 13 failures have bias_mode=2 and dtype=float16; 0 of 35 passing cases do",
        "  6 of 13 failures have k=2880 and padded_a=True; 0 of 35 passing cases do",
    ]


def test_what_fits_as_well_is_told_too_and_nothing_is_settled() -> None:
    cases = [(0, 1, 2, 1), (0, 0, 0, 0), (1, 1, 1, 0), (2, 0, 2, 0), (3, 0, 0, 1)]
    finding = found(lambda row: row == (0, 1, 2, 1), cases)
    assert not finding.settled
    lines = told(finding)
    assert lines[0] == "test_m.py::test_f: 1 of 5 cases failed"
    assert lines[1].startswith("  1 of 1 failure has ")
    assert lines[1].endswith("; 0 of 4 passing cases do")
    assert lines[2:5] == [line for line in lines if line.startswith("  just as well: ")]
    assert lines[5:] == [f"  and {len(finding.rivals) - 3} other combinations no larger"]


def test_nothing_is_told_where_nothing_failed() -> None:
    assert told(found(lambda row: False)) == []


def test_a_function_whose_cases_all_failed_has_no_suspect() -> None:
    finding = found(lambda row: True)
    assert not finding.suspects
    assert told(finding) == ["test_m.py::test_f: all 48 cases failed"]
    assert told(found(lambda row: True, [(0, 0, 0, 0)])) == []


def test_failures_that_share_all_they_hold_with_passing_cases_are_said_to() -> None:
    finding = find_suspects([2] * 6, [row for row in product((0, 1), repeat=6) if any(row)], [(0,) * 6])
    assert finding_lines("test_f", [(name, ["x", "y"]) for name in "abcdef"], finding, 0) == [
        "test_f: 1 of 64 cases failed; no value or small combination is theirs alone"
    ]


def test_a_case_that_passed_and_failed_counts_as_failed() -> None:
    finding = find_suspects([2, 2], [(0, 0), (0, 1), (1, 0)], [(0, 1), (0, 1)])
    assert (finding.passed, finding.failed) == (2, 1)


def test_cases_run_to_isolate_are_told_apart_from_chosen_ones() -> None:
    finding = found(lambda row: row[3] == 1)
    assert finding_lines("test_f", AXES, finding, 5)[0] == "test_f: 24 of 48 cases failed (43 chosen + 5 to isolate)"


def test_long_lists_are_cut_and_counted() -> None:
    axes = [("n", [str(n) for n in range(20)]), ("b", ["False", "True"])]
    rows = list(product(range(20), range(2)))
    failed = [row for row in rows if row[0] < 15 and row[1]]
    lines = finding_lines("f", axes, find_suspects([20, 2], [row for row in rows if row not in failed], failed), 0)
    assert lines[1].startswith("  15 of 15 failures have n in (0, 1, 2, 3, 4, 5, 6, 7, 7 more) and b=True;")


def test_many_failures_with_many_causes_are_counted_not_listed() -> None:
    levels = [8] * 5
    rows = [(a, (a + b) % 8, b, (a * b) % 8, (a + 2 * b) % 8) for a in range(8) for b in range(8)]
    failed = [row for row in rows if row[0] == row[2]]
    lines = finding_lines("f", [(name, list("01234567")) for name in "abcde"], find_suspects(levels, rows, failed), 0)
    assert len(lines) < 12


def test_the_smallest_failing_case_is_the_first_that_holds_the_suspect() -> None:
    rows = [(0, 0, 0, 1), (1, 1, 2, 0), (1, 1, 2, 1), (3, 1, 2, 0)]
    finding = found(lambda row: row[1] == 1 and row[2] == 2)
    assert smallest_failing(finding, rows) == (1, 1, 2, 0)


@pytest.mark.parametrize(("axes", "largest"), [(1, 1), (3, 3), (7, 4), (20, 4), (75, 3), (100, 2), (2000, 1)])
def test_groups_get_smaller_as_axes_get_more(axes: int, largest: int) -> None:
    assert list(group_sizes(axes)) == list(range(1, largest + 1))


def test_a_hundred_axes_are_searched() -> None:
    rows = [tuple((number >> axis % 5) & 1 ^ (axis // 5 & number & 1) for axis in range(100)) for number in range(24)]
    finding = find_suspects(
        [2] * 100, [row for row in rows if not row[0] & row[6]], [row for row in rows if row[0] & row[6]]
    )
    assert finding.suspects
    assert not finding.unexplained


def test_suspects_hold_no_passing_case_and_together_all_failing_ones_but_those_said_to_be_left() -> None:
    rows = st.lists(st.tuples(*[st.integers(0, 2)] * 4), max_size=25)

    @given(rows, rows)
    def holds(passed: list[Row], failed: list[Row]) -> None:
        finding = find_suspects([3] * 4, passed, failed)
        really_passed = set(passed) - set(failed)
        for suspect in (*finding.suspects, *finding.rivals):
            assert not any(suspect.holds(row) for row in really_passed)
            assert suspect.failing == sum(suspect.holds(row) for row in set(failed))
        left = [row for row in set(failed) if not any(one.holds(row) for one in finding.suspects)]
        assert finding.unexplained == len(left)
        if not really_passed:
            assert not finding.suspects

    holds()
