"""Which schedules are run, how one is made smaller, and that hypothesis is only used where it is asked for."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import strategies as st

from testkit.errors import LawsError
from testkit.laws._schedules import EXHAUSTIVE, LENGTHS, LONGER, SHRINKS, Found, Schedule, hunt


def names(schedule: Schedule) -> list[str]:
    return [step.name for step in schedule]


@pytest.mark.parametrize("kinds", [1, 2, 3, 5, 30, 500])
def test_all_schedules_of_kinds_come_shortest_first_and_then_some_longer_ones(kinds: int) -> None:
    seen: list[Schedule] = []
    assert hunt(lambda schedule: seen.append(schedule), {n: n for n in range(kinds)}, fresh=True, where="here") is None
    short, longer = seen[:-LONGER], seen[-LONGER:]
    assert len(short) <= EXHAUSTIVE
    assert [len(one) for one in short] == sorted(len(one) for one in short)
    assert len({tuple(names(one)) for one in short}) == len(short)
    assert all(LENGTHS[0] <= len(one) <= LENGTHS[1] for one in longer)
    if kinds == 3:
        assert len(short) == 3 + 9 + 27 + 81 + 243


def test_a_schedule_is_made_as_small_as_it_gets() -> None:
    """Fails from the third a on, if a b has been there."""

    def run(schedule: Schedule) -> Found | None:
        for at in range(len(schedule)):
            before = names(schedule[: at + 1])
            if before.count("a") == 3 and "b" in before:
                return Found(at, f"{len(before)} steps: {before}", (), "")
        return None

    found, origin = hunt(run, [*"xxaxxbxxaxxxxaxxxxx"], fresh=True, where="here") or (None, "")
    assert found is not None
    assert found.problem == "4 steps: ['a', 'b', 'a', 'a']"
    assert origin == "step 14 of the 19 steps given; 4 of them are enough"


def test_making_it_smaller_is_bounded() -> None:
    runs = 0

    def run(schedule: Schedule) -> Found | None:
        nonlocal runs
        runs += 1
        return Found(len(schedule) - 1, "", (), "") if len(schedule) == 1000 else None

    assert hunt(run, range(1000), fresh=True, where="here")
    assert runs <= SHRINKS + 1


def test_without_a_fresh_system_there_is_one_run() -> None:
    runs: list[Schedule] = []

    def run(schedule: Schedule) -> Found | None:
        runs.append(schedule)
        return Found(1, "broken", (), "")

    found = hunt(run, iter("abc"), fresh=False, where="here")
    assert found == (Found(1, "broken", (), ""), "step 2 of the 3 steps given")
    assert [names(schedule) for schedule in runs] == [["a", "b", "c"]]


@pytest.mark.usefixtures("same_draws")
def test_a_system_that_remembers_earlier_schedules_is_refused() -> None:
    recorded = itertools.count(1)

    def run(schedule: Schedule) -> Found | None:
        return Found(0, "broken", (), "") if next(recorded) == 3 else None

    with pytest.raises(LawsError, match=r"^laws: a schedule failed, and then passed \(here\)\nnext: let start make"):
        hunt(run, st.lists(st.integers(), min_size=1), fresh=True, where="here")


def test_hypothesis_is_not_imported_for_lists_and_kinds() -> None:
    code = (
        "import sys\n"
        "from testkit.laws import assert_conserved, assert_same_answer\n"
        "class One:\n"
        "    total = 0\n"
        "    def step(self, n):\n"
        "        self.total += n\n"
        "        return n\n"
        "for steps in ([1, 2], {'one': 1, 'two': 2}):\n"
        "    assert_conserved(One.step, lambda one: one.total, steps, start=One)\n"
        "    assert_same_answer(lambda one, n: n, One.step, steps, start=One)\n"
        "assert 'hypothesis' not in sys.modules and 'pytest' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
