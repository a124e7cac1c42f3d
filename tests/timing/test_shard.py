"""What a shard chooses, and when it refuses: pure values, no pytest run (test_sharding.py has those)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from testkit.errors import TimingError
from testkit.timing import Run, plan
from testkit.timing._ci import SYSTEMS, shard_from, tell_bazel
from testkit.timing._history import UNITS, History
from testkit.timing._order import slowest_first
from testkit.timing._run import Header, Record
from testkit.timing._shard import SHARD, Choice, choose, plans_differ
from testkit.timing._task import Task

IDS = [f"tests/test_{file}.py::test_{number}" for file in "abc" for number in range(4)]
TASK = Task("1/3", "from --timing-shard", now=0.0)
SLOW = History("folder", 1, newest=0.0, seconds={name: 1.0 + number for number, name in enumerate(IDS)})


def chosen(task: Task = TASK, ids: Sequence[str] = IDS, units: dict[str, str] | None = None) -> list[Choice]:
    """What each of the shards chooses."""
    shards = int(task.shard.partition("/")[2])
    return [choose(ids, units or {}, replace(task, shard=f"{n}/{shards}")) for n in range(1, shards + 1)]


def union(choices: Sequence[Choice]) -> list[str]:
    return sorted(name for choice in choices for name in choice.selected)


def with_plan(ids: Sequence[str] = IDS, shards: int = 3) -> Task:
    tests = [{"id": name, "module": name.partition("::")[0], "seconds": 1.0} for name in ids]
    return replace(TASK, plan=plan(tests, shards).to_json(), plan_file="plan.json")


@pytest.mark.parametrize("task", [TASK, replace(TASK, history=SLOW), with_plan()], ids=["number", "history", "plan"])
def test_each_test_is_on_one_shard(task: Task) -> None:
    choices = chosen(task)
    assert union(choices) == sorted(IDS)
    assert len({choice.plan for choice in choices}) == 1


@pytest.mark.parametrize("task", [TASK, replace(TASK, history=SLOW), with_plan()], ids=["number", "history", "plan"])
def test_a_shard_that_collects_in_another_order_chooses_the_same_and_keeps_its_order(task: Task) -> None:
    shuffled = random.Random(7).sample(IDS, len(IDS))
    for one, other in zip(chosen(task), chosen(task, shuffled), strict=True):
        assert set(other.selected) == set(one.selected)
        assert other.plan == one.plan
        assert other.selected == [name for name in shuffled if name in one.selected]


def test_a_task_comes_through_text_as_it_was() -> None:
    task = replace(with_plan(), history=SLOW, order=True)
    assert Task.from_text(task.to_text()) == task
    assert Task.from_text(TASK.to_text()) == TASK


def test_without_durations_tests_are_divided_by_number_and_that_is_said() -> None:
    first, *_ = chosen()
    assert len(first.selected) == 4
    assert first.lines()[1] == (
        "timing: no durations, so tests are divided by number: give --timing-history or --timing-plan"
    )
    assert "expected" not in first.lines()[0]


def test_a_shard_says_what_it_has_and_by_which_plan() -> None:
    first, *_ = chosen(replace(TASK, history=SLOW))
    assert first.lines() == [
        f"timing: shard 1/3 has {len(first.selected)} of 12 tests, 26.0 s of work expected "
        f"(plan {first.plan[:8]} made of 1 run in folder)"
    ]


def test_notes_of_the_task_are_said_at_the_end() -> None:
    assert chosen(replace(with_plan(), notes=["not recorded"]))[0].lines()[-1] == "timing: not recorded"


def test_more_shards_than_tests_leave_shards_empty_and_that_is_said() -> None:
    choices = chosen(replace(TASK, shard="1/5"), IDS[:3])
    assert [len(choice.selected) for choice in choices] == [1, 1, 1, 0, 0]
    assert (
        choices[4]
        .lines()[0]
        .startswith("timing: shard 5/5 is empty by plan: 3 tests collected, all on other shards (plan ")
    )


def test_with_a_test_for_each_shard_none_is_empty_whatever_the_durations() -> None:
    huge = History("folder", 1, newest=0.0, seconds=dict.fromkeys(IDS, 0.0) | {IDS[0]: 1000.0})
    choices = chosen(replace(TASK, shard="1/12", history=huge))
    assert [len(choice.selected) for choice in choices] == [1] * 12


def test_zero_durations_are_divided() -> None:
    nothing = History("folder", 1, newest=0.0, seconds=dict.fromkeys(IDS, 0.0))
    assert [len(choice.selected) for choice in chosen(replace(TASK, history=nothing))] == [4, 4, 4]


def test_tests_of_a_unit_are_on_one_shard() -> None:
    units = {IDS[0]: "xdist_group 'db'", IDS[5]: "xdist_group 'db'", IDS[10]: "xdist_group 'db'"}
    homes = [number for number, choice in enumerate(chosen(units=units)) for name in choice.selected if name in units]
    assert len(homes) == 3
    assert len(set(homes)) == 1


def test_what_stays_together_is_recorded_for_the_next_plan() -> None:
    choice = choose(IDS, {IDS[0]: "db", IDS[5]: "db"}, TASK)
    assert choice.records()[1] == (UNITS, {"db": [IDS[0], IDS[5]]})


def test_a_plan_that_divides_a_unit_is_refused() -> None:
    task = with_plan()
    with pytest.raises(TimingError, match=r"plan.json divides db, which must stay together, between shards 1 and 2"):
        choose(IDS, {IDS[0]: "db", IDS[5]: "db"}, task)


@pytest.mark.parametrize(
    ("collected", "told"),
    [
        (IDS[1:], r"1 in the plan and not collected \(tests/test_a.py::test_0\)"),
        ([*IDS, "tests/test_d.py::test_new"], r"1 collected and not in the plan \(tests/test_d.py::test_new\)"),
        (IDS[:4], r"8 in the plan and not collected \(.*test_b.py::test_0, .* and 5 more\)"),
        ([*IDS[1:], "tests/test_d.py::test_new"], r"1 collected and .*; 1 in the plan and not"),
        ([], "12 in the plan and not collected"),
    ],
)
def test_a_plan_of_other_tests_is_refused_with_the_difference(collected: list[str], told: str) -> None:
    with pytest.raises(TimingError, match=f"plan.json is no plan of what was collected: {told}"):
        choose(collected, {}, with_plan())


def test_a_plan_for_another_number_of_shards_is_refused() -> None:
    with pytest.raises(TimingError, match=r"shard 2/4, but plan.json has 3 shards \(from --timing-shard\)"):
        choose(IDS, {}, replace(with_plan(), shard="2/4"))


@pytest.mark.parametrize("cut", [0, 10, 200, -30])
def test_a_plan_file_that_was_cut_is_refused(cut: int) -> None:
    task = with_plan()
    with pytest.raises(TimingError, match=r"a plan .*\(plan.json\)"):
        choose(IDS, {}, replace(task, plan=task.plan[:cut] or " "))


def test_a_test_that_was_collected_twice_is_refused() -> None:
    with pytest.raises(TimingError, match=r"test_a.py::test_0 was collected twice"):
        choose([*IDS, IDS[0]], {}, TASK)


def test_new_and_removed_tests_have_a_shard_by_estimate() -> None:
    ids = [*IDS[2:], "tests/test_a.py::test_new", "tests/test_d.py::test_new"]
    choices = chosen(replace(TASK, history=SLOW), ids)
    assert union(choices) == sorted(ids)
    assert any("2 new tests of 12" in line for line in choices[0].lines())


def recorded(number: int, choice: Choice) -> Run:
    return Run(Header("r", f"{number}/3"), records=[Record(kind, data=data) for kind, data in choice.records()])


def test_shards_with_one_plan_have_nothing_to_say() -> None:
    assert plans_differ([recorded(number, choice) for number, choice in enumerate(chosen(), 1)]) == []


def test_a_shard_with_a_stale_history_is_named() -> None:
    stale = replace(SLOW, source="old", seconds=dict.fromkeys(IDS, 1.0) | {IDS[5]: 100.0})
    choices = chosen(replace(TASK, history=SLOW))
    choices[1] = chosen(replace(TASK, history=stale))[1]
    assert union(choices) != sorted(IDS)
    said = plans_differ([recorded(number, choice) for number, choice in enumerate(choices, 1)])
    assert said[0] == "the shards did not choose by one plan:"
    assert said[1] == f"  1/3, 3/3: plan {choices[0].plan[:8]} made of 1 run in folder"
    assert said[2] == f"  2/3: plan {choices[1].plan[:8]} made of 1 run in old"
    assert "give every shard the same --timing-history" in said[3]


def test_the_record_of_a_shard_has_its_plan_and_digests() -> None:
    choice = choose(IDS, {}, replace(TASK, history=SLOW))
    ((kind, data),) = choice.records()
    assert kind == SHARD
    assert data["plan"] == choice.plan
    assert len(data["durations"]) == 64


def test_without_a_shard_all_tests_run_and_what_stays_together_is_recorded() -> None:
    choice = choose(IDS, {IDS[0]: "db"}, Task(notes=["a note"]))
    assert choice.selected == IDS
    assert choice.records() == [(UNITS, {"db": [IDS[0]]})]
    assert choice.lines() == ["timing: a note"]


def test_an_order_without_a_shard_keeps_all_tests() -> None:
    choice = choose(IDS, {}, Task("", "", 0.0, history=SLOW, order=True))
    assert choice.selected == IDS[::-1]
    assert choice.records() == []


def test_a_shard_may_run_slowest_first_too() -> None:
    choices = chosen(replace(TASK, history=SLOW, order=True))
    assert union(choices) == sorted(IDS)
    assert [sorted(choice.selected, key=SLOW.seconds.get, reverse=True) for choice in choices] == [  # type: ignore[arg-type]
        choice.selected for choice in choices
    ]


def a_test(name: str, seconds: float, setup: float = 0.0) -> dict[str, object]:
    return {"id": name, "module": name[0], "seconds": seconds, "setup": setup}


def test_slow_tests_come_first_and_equal_ones_as_collected() -> None:
    tests = [a_test("a1", 1.0), a_test("a2", 5.0), a_test("b1", 1.0), a_test("b2", 9.0)]
    assert slowest_first(tests, {}) == ["b2", "a2", "a1", "b1"]


def test_a_module_with_a_shared_fixture_stays_together_at_the_place_of_its_slowest() -> None:
    tests = [a_test("a1", 1.0, 3.0), a_test("a2", 5.0, 3.0), a_test("b1", 7.0), a_test("b2", 9.0)]
    assert slowest_first(tests, {}) == ["b2", "a1", "a2", "b1"]


def test_a_module_with_parametrized_shared_fixtures_stays_together() -> None:
    tests = [a_test("a1", 1.0), a_test("b1", 2.0), a_test("a2", 5.0)]
    assert slowest_first(tests, {"a": 4.0}) == ["a1", "a2", "b1"]


@pytest.mark.parametrize(
    ("variables", "shard"),
    [
        ({"BUILDKITE_PARALLEL_JOB": "0", "BUILDKITE_PARALLEL_JOB_COUNT": "4"}, "1/4"),
        ({"CIRCLE_NODE_INDEX": "3", "CIRCLE_NODE_TOTAL": "4"}, "4/4"),
        ({"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "4"}, "1/4"),
        ({"CI_NODE_INDEX": "4", "CI_NODE_TOTAL": "4"}, "4/4"),
        ({"SYSTEM_JOBPOSITIONINPHASE": "2", "SYSTEM_TOTALJOBSINPHASE": "4"}, "2/4"),
        ({"TEST_SHARD_INDEX": "1", "TEST_TOTAL_SHARDS": "4"}, "2/4"),
        ({"CIRCLE_NODE_INDEX": "0", "CIRCLE_NODE_TOTAL": "1"}, "1/1"),
        # Bazel inside of a job that is alone
        (
            {"CIRCLE_NODE_INDEX": "0", "CIRCLE_NODE_TOTAL": "1", "TEST_SHARD_INDEX": "1", "TEST_TOTAL_SHARDS": "2"},
            "2/2",
        ),
    ],
)
def test_each_ci_system_counts_from_its_own_first_number(variables: dict[str, str], shard: str) -> None:
    assert shard_from(variables, "here") == shard


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"CI_NODE_INDEX": "0", "CI_NODE_TOTAL": "4"}, "CI_NODE_INDEX=0, CI_NODE_TOTAL=4 is not one of 1 to 4"),
        ({"CIRCLE_NODE_INDEX": "4", "CIRCLE_NODE_TOTAL": "4"}, "is not one of 0 to 3"),
        ({"BUILDKITE_PARALLEL_JOB": "1"}, "Buildkite does not say which shard this is"),
        ({"CI_NODE_TOTAL": "4"}, "GitLab CI does not say which shard this is: CI_NODE_INDEX=, CI_NODE_TOTAL=4"),
        ({"CI_NODE_INDEX": "x", "CI_NODE_TOTAL": "4"}, "CI_NODE_INDEX=x"),
        (
            {"CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "4", "TEST_SHARD_INDEX": "0", "TEST_TOTAL_SHARDS": "4"},
            "CI systems disagree: TEST_SHARD_INDEX says 1/4, CI_NODE_INDEX says 2/4",
        ),
    ],
)
def test_variables_that_make_no_shard_are_refused(variables: dict[str, str], problem: str) -> None:
    with pytest.raises(TimingError, match=problem):
        shard_from(variables, "here")


@pytest.mark.parametrize("variables", [{}, {"CI_NODE_TOTAL": "1"}])
def test_without_variables_auto_is_refused_with_their_names(variables: dict[str, str]) -> None:
    with pytest.raises(TimingError, match="none of these variables is set") as refused:
        shard_from(variables, "from --timing-shard")
    assert all(system.number in str(refused.value) for system in SYSTEMS)
    assert "GitHub Actions" in refused.value.fix


def test_bazel_is_told_that_the_program_shards_itself(tmp_path) -> None:  # type: ignore[no-untyped-def]
    status = tmp_path / "status"
    tell_bazel({"TEST_SHARD_STATUS_FILE": str(status)})
    assert not status.exists()
    tell_bazel({"TEST_SHARD_STATUS_FILE": str(status), "TEST_SHARD_INDEX": "0"})
    assert status.exists()


def test_a_status_file_of_bazel_that_cannot_be_touched_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    variables = {"TEST_SHARD_STATUS_FILE": str(tmp_path / "gone" / "status"), "TEST_SHARD_INDEX": "0"}
    with pytest.raises(TimingError, match=r"cannot touch .*status: .*\(from TEST_SHARD_STATUS_FILE\)"):
        tell_bazel(variables)


def test_an_id_in_a_refusal_is_written_out() -> None:
    with pytest.raises(TimingError, match=r"1 collected and not in the plan \(test_a.py::test\[\\x1b\]\)"):
        choose([*IDS, "test_a.py::test[\x1b]"], {}, with_plan())
