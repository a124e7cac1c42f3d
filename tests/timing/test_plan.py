"""Plans: every test in one shard, close to the bound, and the same from the same knowledge."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.errors import TimingError
from testkit.timing._plan import Plan, plan, shards_for

Tests = list[dict[str, Any]]


def suite(seed: int, modules: int = 40, tests: int = 2000, setup: float = 0.0) -> Tests:
    """Modules of uneven size, seconds over four orders of magnitude; set-ups are ``setup`` of the seconds of all."""
    chance = random.Random(seed)
    homes = sorted(chance.choices(range(modules), [1 / (k + 1) for k in range(modules)], k=tests))
    made = [
        {"id": f"t_{home:03}.py::test[{n}]", "module": f"t_{home:03}.py", "seconds": chance.lognormvariate(-1, 1.5)}
        for n, home in enumerate(homes)
    ]
    total = sum(test["seconds"] for test in made)
    share = {home: chance.lognormvariate(0, 1) for home in sorted(set(homes))}
    for test, home in zip(made, homes, strict=True):
        test["setup"] = setup * total * share[home] / sum(share.values())
    return made


def simple(*seconds: float, **more: Any) -> Tests:
    """One module's tests ``a``, ``b``, ..."""
    return [{"id": f"t.py::{chr(97 + n)}", "module": "t.py", "seconds": s, **more} for n, s in enumerate(seconds)]


def lengths(tests: Sequence[Mapping[str, Any]], shards: Sequence[Sequence[str]], fixed: float = 0.0) -> list[float]:
    """Seconds of each shard, counted here and not by the planner."""
    known = {test["id"]: test for test in tests}
    setups: dict[str, float] = {}
    for test in tests:
        setups[test["module"]] = max(setups.get(test["module"], 0.0), test.get("setup", 0.0))
    return [
        fixed
        + sum(max(1e-6, known[name]["seconds"]) for name in shard)
        + sum(setups[module] for module in {known[name]["module"] for name in shard})
        for shard in shards
    ]


def homes(made: Plan, name: str) -> int:
    return next(number for number, shard in enumerate(made.shards) if name in shard)


@st.composite
def any_tests(draw: st.DrawFn) -> Tests:
    seconds = st.one_of(st.just(0.0), st.floats(0, 100), st.sampled_from([1e-7, 3600.0, 86400.0]))
    return [
        {
            "id": f"test {n}",
            "module": draw(st.sampled_from("abc")),
            "seconds": draw(seconds),
            "setup": draw(st.sampled_from([0.0, 0.0, 0.5, 30.0])),
            "memory": draw(st.sampled_from([None, 1, 4, 6, 10])),
            "unit": draw(st.sampled_from([None, None, None, "u", "v"])),
        }
        for n in range(draw(st.integers(1, 25)))
    ]


@settings(max_examples=150, deadline=None)
@given(tests=any_tests(), shards=st.integers(1, 12), order=st.randoms(use_true_random=False), limit=st.booleans())
def test_any_plan_is_a_division_that_holds_what_it_says(
    tests: Tests, shards: int, order: random.Random, limit: bool
) -> None:
    memory = 10 if limit and any(test["memory"] is not None for test in tests) else None
    made = plan(tests, shards, fixed=2.0, memory=memory)
    assert Counter(name for shard in made.shards for name in shard) == Counter(test["id"] for test in tests)
    assert made.seconds == pytest.approx(lengths(tests, made.shards, 2.0))
    assert made.bound <= max(made.seconds) + 1e-6
    for unit in ("u", "v"):
        assert len({homes(made, test["id"]) for test in tests if test["unit"] == unit}) <= 1
    pieces = len({test["unit"] or test["id"] for test in tests})
    assert sum(not shard for shard in made.shards) == max(0, shards - pieces)
    mixed = order.sample(tests, len(tests))
    again = plan(mixed, shards, fixed=2.0, memory=memory)
    assert (again.digest, again.seconds, again.bound) == (made.digest, made.seconds, made.bound)
    assert (again.ids_digest, again.durations_digest) == (made.ids_digest, made.durations_digest)


@pytest.mark.parametrize("shards", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("setup", [0.0, 0.02, 0.1, 0.25, 0.5])
def test_the_longest_shard_is_close_to_what_is_possible(setup: float, shards: int) -> None:
    for seed in (1, 2):
        made = plan(suite(seed, setup=setup), shards)
        assert max(made.seconds) <= made.bound * 1.05, made.bound


def test_shards_list_their_ids_in_the_order_given() -> None:
    tests = suite(3, tests=200)[::-1]
    order = {test["id"]: place for place, test in enumerate(tests)}
    for shard in plan(tests, 7).shards:
        assert shard == sorted(shard, key=order.__getitem__)


def test_modules_stay_whole_where_that_costs_nothing() -> None:
    tests = [
        {"id": f"t_{m}.py::test_{n}", "module": f"t_{m}.py", "seconds": 1.0, "setup": 5.0}
        for m in range(8)
        for n in range(4)
    ]
    made = plan(tests, 4)
    assert made.seconds == [18.0] * 4
    assert all(len({name.split("::")[0] for name in shard}) == 2 for shard in made.shards)


def test_a_large_module_is_cut_into_contiguous_runs_that_each_pay_its_set_up() -> None:
    tests = [
        {"id": f"t.py::test_{n:02}", "module": "t.py", "seconds": 1.0, "setup": 3.0}
        for n in random.sample(range(40), 40)
    ]
    made = plan(tests, 4)
    assert made.seconds == [13.0] * 4
    assert made.bound == 13.0
    for shard in map(sorted, made.shards):
        first = int(shard[0][-2:])
        assert shard == [f"t.py::test_{n:02}" for n in range(first, first + 10)]


def test_long_tests_leave_their_modules_where_shards_fill_better_without_what_hangs_on_them() -> None:
    chance = random.Random(10)
    tests = [
        {"id": f"t_{n % 40:02}.py::test_{n}", "module": f"t_{n % 40:02}.py", "setup": 0.1}
        | {"seconds": chance.uniform(60, 240) if n % 50 == 0 else chance.uniform(0, 0.2)}
        for n in range(3000)
    ]
    made = plan(tests, 24)
    assert max(made.seconds) <= made.bound * 1.02


def test_the_fixed_seconds_of_a_shard_are_in_every_figure() -> None:
    made = plan(simple(1.0, 1.0), 3, fixed=240.0)
    assert (made.seconds, made.bound, made.fixed) == ([241.0, 241.0, 240.0], 241.0, 240.0)


def test_one_huge_test_leaves_no_shard_empty() -> None:
    quick = [{"id": f"t.py::quick[{n}]", "module": "t.py", "seconds": 0.01} for n in range(12)]
    made = plan([*quick, {"id": "t.py::slow_end", "module": "t.py", "seconds": 60.0}], 4)
    assert sorted(map(len, made.shards))[0] == 1
    assert ["t.py::slow_end"] in made.shards
    assert max(made.seconds) == 60.0
    assert made.notes == (
        "t.py::slow_end alone takes 60.0 s, an even share of all is 15.0 s: more shards would not help",
    )


def test_more_shards_than_tests_leave_some_empty_and_say_so() -> None:
    made = plan(simple(1.0, 2.0), 4)
    assert made.shards == [["t.py::a"], ["t.py::b"], [], []]
    assert made.notes[0] == "2 of 4 shards empty by plan: there are 2 tests and units"


def test_tests_without_seconds_are_spread_by_number_and_named_as_such() -> None:
    made = plan(simple(*[0.0] * 12), 4)
    assert [len(shard) for shard in made.shards] == [3, 3, 3, 3]
    assert made.notes[0] == "all 12 tests have the same estimate: placeholders, or no data"


def test_a_unit_stays_on_one_shard_also_across_modules() -> None:
    tests = suite(5, tests=300, setup=0.1)
    for test in tests[::30]:
        test["unit"] = "one server"
    made = plan(tests, 8)
    assert len({homes(made, test["id"]) for test in tests[::30]}) == 1
    assert max(made.seconds) <= made.bound * 1.05


def test_tests_that_cannot_run_beside_each_other_are_dealt_evenly() -> None:
    large = [{"id": f"m.py::large[{n}]", "module": "m.py", "seconds": 0.001, "memory": 50} for n in range(7)]
    tests = simple(*[10.0] * 8) + large
    made = plan(tests, 4, memory=80)
    assert sorted(sum("large" in name for name in shard) for shard in made.shards) == [1, 2, 2, 2]
    assert max(sum("large" in name for name in shard) for shard in plan(tests, 4).shards) == 7


def test_dealing_them_keeps_modules_together_where_set_ups_are_dear() -> None:
    tests = suite(11, setup=0.1)
    for test in tests[::20]:
        test["memory"] = 50
    made = plan(tests, 8, memory=80)
    large = {test["id"] for test in tests[::20]}
    assert max(sum(name in large for name in shard) for shard in made.shards) <= 13
    assert max(made.seconds) <= made.bound * 1.15


def test_a_test_that_needs_more_memory_than_a_shard_has_is_refused_by_name() -> None:
    with pytest.raises(TimingError, match=r"t.py::b needs 90, a shard has 80 \(plan\(memory=") as refused:
        plan([*simple(1.0), {**simple(1.0, 1.0)[1], "memory": 90}], 2, memory=80)
    assert "larger machine" in refused.value.fix


def test_a_memory_limit_that_nothing_can_break_is_refused() -> None:
    with pytest.raises(TimingError, match="no test says what it needs"):
        plan(simple(1.0), 2, memory=80)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": -1.0}, r"seconds of t.py::a: -1.0 is no time \(test 0 of plan"),
        ({"seconds": float("nan")}, "nan is no time"),
        ({"seconds": float("inf")}, "inf is no time"),
        ({"seconds": None}, "None is no time"),
        ({"seconds": "3"}, "'3' is no time"),
        ({"seconds": True}, "True is no time"),
        ({"setup": -2}, "setup of t.py::a: -2 is no time"),
        ({"memory": float("nan")}, "memory is nan for t.py::a"),
        ({"unit": 3}, "unit is 3 for t.py::a"),
        ({"id": None}, "id is None"),
        ({"module": 7}, "module is 7"),
    ],
)
def test_values_that_mean_nothing_are_refused_with_the_test_and_the_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TimingError, match=message):
        plan([{**simple(1.0)[0], **change}], 2)


@pytest.mark.parametrize("shards", [0, -1, 2.0, True, "3"])
def test_what_is_no_number_of_shards_is_refused(shards: Any) -> None:
    with pytest.raises(TimingError, match="is no number of shards"):
        plan(simple(1.0), shards)


@pytest.mark.parametrize(("option", "value"), [("fixed", -1.0), ("fixed", None), ("memory", 0), ("memory", -5)])
def test_parameters_that_mean_nothing_are_refused(option: str, value: Any) -> None:
    with pytest.raises(TimingError, match=rf"plan\({option}="):
        plan(simple(1.0, memory=1), 2, **{option: value})


def test_an_id_twice_is_refused_by_name() -> None:
    with pytest.raises(TimingError, match=r"an id twice: t.py::a \(and 1 more\)"):
        plan(simple(1.0, 2.0) * 2, 2)


def test_a_plan_of_nothing_is_refused() -> None:
    with pytest.raises(TimingError, match="no test to plan"):
        plan([], 2)


SHOW = """
from testkit.timing._plan import plan
tests = []
for n in range(2000):
    m = n * n % 37
    tests.append({"id": f"t_{m:02}.py::test[{n}]", "module": f"t_{m:02}.py", "seconds": n * 7919 % 9973 / 1000})
    tests[-1] |= {"setup": m * 1.1, "memory": n % 19 if n % 8 else None, "unit": f"u{n % 5}" if n % 200 == 0 else None}
made = plan(tests, 13, fixed=9.5, memory=32)
print(made.digest, made.durations_digest)
"""
KNOWN = [
    "87d98e6f28964dcf3aa94bdf8cc0a623253fdf98108c2077cdd35c79b7d2cd65",
    "8d3b2b5d4cd21d30cd969ee136850d9e2c88416f117f65d9998a3db9556ac91e",
]


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_the_plan_is_the_same_under_every_hash_seed_python_and_platform(seed: str) -> None:
    """The digests stand here: whoever changes the planner changes VERSION too."""
    command = [sys.executable, "-c", SHOW]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == KNOWN


def test_a_plan_is_the_same_after_its_text_was_read() -> None:
    tests = [*suite(8, tests=50), {"id": "t.py::odd[\n\udc80é]", "module": "t.py", "seconds": 1.5}]
    made = plan(tests, 5, fixed=3.0)
    text = made.to_json()
    assert text.isascii()
    assert Plan.from_json(text) == made
    assert Plan.from_json(text).to_json() == text


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: "", "a plan that is no JSON"),
        (lambda data: json.dumps(data)[:-20], "a plan that is no JSON"),
        (lambda data: "[]", "testkit_plan is None"),
        (lambda data: json.dumps({**data, "testkit_plan": 99}), "not a plan of version 1: testkit_plan is 99"),
        (lambda data: json.dumps({**data, "shards": data["shards"][1:]}), "ids do not fit its own digest"),
        (lambda data: json.dumps({**data, "shards": [data["shards"][0]] * 2}), "has an id twice: t.py::"),
        (lambda data: json.dumps({**data, "shards": 3}), "has something else as its shards: 3"),
        (lambda data: json.dumps({**data, "shards": [[1], [2]]}), "something else as its shards"),
        (lambda data: json.dumps({**data, "seconds": [1.0, float("nan")]}), "something else as its seconds"),
        (lambda data: json.dumps({**data, "bound": 10**400}), "something else as its bound"),
        (lambda data: json.dumps({**data, "fixed": -1}), "something else as its fixed"),
        (lambda data: json.dumps({**data, "ids_digest": ["x"]}), "something else as its ids_digest"),
        (lambda data: "[" * 100_000, "a plan that is no JSON"),
        (lambda data: json.dumps({k: v for k, v in data.items() if k != "seconds"}), "lacks a part.*seconds"),
    ],
)
def test_a_text_that_is_no_whole_plan_is_refused(damage: Any, message: str) -> None:
    data = json.loads(plan(simple(1.0, 2.0, 3.0), 2).to_json())
    with pytest.raises(TimingError, match=rf"{message}.*\(plan.json\)"):
        Plan.from_json(damage(data), "plan.json")


def test_digests_tell_what_changed() -> None:
    one, slower, fewer = (plan(tests, 2) for tests in (simple(1, 2, 3), simple(1, 2, 4), simple(1, 2)))
    assert one.ids_digest == slower.ids_digest != fewer.ids_digest
    assert one.durations_digest != slower.durations_digest
    assert one.digest == slower.digest != fewer.digest


@pytest.mark.parametrize("setup", [0.0, 0.3])
def test_the_number_of_shards_for_a_target_is_enough_and_no_more_than_needed(setup: float) -> None:
    tests = suite(9, setup=setup)
    longest = max(test["seconds"] + test["setup"] for test in tests)
    for target in (longest + 30.1, 2 * longest + 30, 1e6):
        number = shards_for(tests, target, fixed=30.0)
        assert max(plan(tests, number, fixed=30.0).seconds) <= target
        assert number == 1 or max(plan(tests, number - 1, fixed=30.0).seconds) > target


def test_a_target_below_the_longest_test_is_refused_by_its_name() -> None:
    with pytest.raises(TimingError, match=r"t.py::c alone takes 400.0 s with all set-up, the target is 300.0 s"):
        shards_for(simple(1.0, 2.0, 300.0, setup=40.0), 300.0, fixed=60.0)


def test_as_many_shards_as_tests_reach_the_shortest_target_there_is() -> None:
    assert shards_for(simple(5.0, 5.0, 5.0), 5.0) == 3


@pytest.mark.parametrize("target", [-1.0, float("nan"), None])
def test_a_target_that_is_no_time_is_refused(target: Any) -> None:
    with pytest.raises(TimingError, match=r"is no time \(shards_for\(target_seconds="):
        shards_for(simple(1.0), target)


def test_the_benchmark_divides_for_other_peoples_simulators() -> None:
    tests = [{"id": f"t{n}", "module": f"m{n % 3}", "est": None if n == 4 else n, "setup": 1.0} for n in range(12)]
    command = [sys.executable, str(Path(__file__).resolve().parents[2] / "benchmarks" / "shard_balance.py"), "--stdin"]
    request = json.dumps({"shards": 3, "tests": tests})
    done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(done.stdout)["shards"]
    assert len(answer) == 3
    assert sorted(name for shard in answer for name in shard) == sorted(test["id"] for test in tests)
