"""Estimates: robust over runs, on one machine's scale, borrowed for new tests, and honest about what they rest on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from testkit.errors import TimingError
from testkit.timing._estimate import Estimates, Past, estimate
from testkit.timing._plan import plan

DAY = 86_400.0


def runs_of(**values: Sequence[float | None]) -> list[Past]:
    """Runs on days 0, 1, ...; a keyword for each test, with a value for each run."""
    number = max(map(len, values.values()))
    return [Past({n: v[day] for n, v in values.items() if day < len(v)}, day * DAY) for day in range(number)]


def one(values: Sequence[float | None], **options: Any) -> float:
    return estimate(["a"], runs_of(a=values), **options).seconds["a"]


def test_the_figure_is_the_middle_of_the_last_values() -> None:
    assert one([99, 99, 99, 99, 11, 12, 13, 14, 15, 16, 17]) == 14
    assert one([11, None, 12, 14]) == 12
    assert one([11, 12, 13, 14], last=2) == 13.5


def test_a_quantile_is_the_cautious_figure() -> None:
    assert one([10, 11, 12, 13, 14], quantile=0.9) == pytest.approx(13.6)
    assert one([10, 11, 12, 13, 14], quantile=1) == 14
    assert one([5], quantile=0.9) == 5


def test_few_far_values_are_left_out_and_many_are_how_the_test_is() -> None:
    assert one([610, 640, 3600]) == 625
    assert one([310, 300, 12]) == 305
    assert one([10, 10, 10, 10, 10, 500], quantile=1) == 10
    assert one([1, 1, 20, 20], quantile=1) == 20


def test_the_order_of_dates_counts_and_not_the_order_of_runs() -> None:
    runs = runs_of(a=[1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert estimate(["a"], runs[::-1]) == estimate(["a"], runs)
    assert estimate(["a"], runs).seconds == {"a": 6}


def test_runs_in_which_a_test_did_not_pass_count_only_if_there_are_no_others() -> None:
    runs = [
        Past({"a": 100.0, "b": 0.001}, 0, {"b": "skipped"}),
        Past({"a": 60.0, "b": 0.002}, DAY, {"a": "failed", "b": "skipped"}),
        Past({"a": 50.0}, 2 * DAY, {"a": "error"}),
    ]
    assert estimate(["a", "b"], runs).seconds == {"a": 100.0, "b": 0.0015}


def test_values_of_slow_machines_are_brought_to_the_scale_of_the_usual_one() -> None:
    chance = random.Random(1)
    true = {f"t.py::test_{n}": chance.lognormvariate(0, 1.5) for n in range(200)}
    factors = [1.0, 1.0, 1.8, 1.0, 0.6, 1.0]
    runs = [
        Past({name: value * factor * chance.uniform(0.97, 1.03) for name, value in true.items()}, day * DAY)
        for day, factor in enumerate(factors)
    ]
    only_slow = "t.py::only_on_the_slow_machine"
    runs[2] = Past({**runs[2].seconds, only_slow: 18.0}, runs[2].date)
    found = estimate([*true, only_slow], runs)
    assert found.speeds == pytest.approx(factors, rel=0.03)
    for name, value in true.items():
        assert found.seconds[name] == pytest.approx(value, rel=0.05)
    assert found.seconds[only_slow] == pytest.approx(10.0, rel=0.03)


def test_one_slow_test_is_not_taken_for_a_slow_machine() -> None:
    steady = {f"t{n}": 1.0 for n in range(30)}
    runs = [Past({**steady, "slow": 1.0}, 0), Past({**steady, "slow": 50.0}, DAY)]
    assert estimate(["slow"], runs).speeds == [1.0, 1.0]


def test_a_known_speed_is_used_as_it_is() -> None:
    runs = [Past({"a": 20.0}, 0, speed=2.0), Past({"a": 11.0}, DAY)]
    found = estimate(["a"], runs)
    assert (found.seconds["a"], found.speeds) == (10.5, [2.0, 1.0])


HISTORY = {
    "t.py::test_gemm[8-bf16-x]": 8.0,
    "t.py::test_gemm[1024-bf16-x]": 1024.0,
    "t.py::test_gemm[8-fp8-x]": 80.0,
    "t.py::TestA::test_b": 3.0,
    "t.py::TestA::test_c[n=1]": 5.0,
    "u.py::test_d": 0.5,
    "u.py::test_e": 0.7,
}


@pytest.mark.parametrize(
    ("new", "seconds", "origin"),
    [
        ("t.py::test_gemm[16-bf16-x]", 8.0, "parametrization"),
        ("t.py::test_gemm[512-bf16-x]", 1024.0, "parametrization"),
        ("t.py::test_gemm[16-fp8-x]", 80.0, "parametrization"),
        ("t.py::test_gemm[8-int8-x]", 44.0, "parametrization"),
        ("t.py::test_gemm[9-int8-y]", 1112 / 3, "function"),
        ("t.py::TestA::test_c[n=2]", 5.0, "parametrization"),
        ("t.py::TestA::test_z", 224.0, "module"),
        ("u.py::test_f", 0.6, "module"),
        ("v.py::test_g", 1121.2 / 7, "suite"),
        ("v.py", 1121.2 / 7, "suite"),
    ],
)
def test_a_new_test_borrows_from_the_nearest_that_is_known(new: str, seconds: float, origin: str) -> None:
    found = estimate([new, *HISTORY], [Past(HISTORY, 0)])
    assert found.seconds[new] == pytest.approx(seconds)
    assert (found.origin[new], found.new) == (origin, [new])


def test_a_stated_default_is_for_tests_of_unknown_modules_only() -> None:
    found = estimate(["v.py::test_g", "u.py::test_f"], [Past(HISTORY, 0)], default=300)
    assert found.seconds == {"v.py::test_g": 300, "u.py::test_f": 0.6}
    assert found.origin == {"v.py::test_g": "default", "u.py::test_f": "module"}


def test_removed_tests_still_lend() -> None:
    assert estimate(["u.py::test_new"], [Past(HISTORY, 0)]).seconds == {"u.py::test_new": 0.6}


def test_without_any_history_every_test_counts_the_same_and_that_is_said() -> None:
    found = estimate(["a", "b"], [])
    assert (found.seconds, found.matched) == ({"a": 1.0, "b": 1.0}, 0.0)
    assert estimate(["a"], [], default=30).seconds == {"a": 30}
    assert found.notes(0) == ["no test has a recorded time: each counts as 1 s"]


def known(days: int = 4, tests: int = 20, **more: Sequence[float]) -> Estimates:
    """Steady tests, measured anew on each day, and ``more``."""
    chance = random.Random(2)
    values = {f"t.py::test_{n}": [1 + n + chance.uniform(0, 0.1) for _ in range(days)] for n in range(tests)}
    return estimate([*values, *more], runs_of(**values, **more))


def test_good_figures_need_no_note() -> None:
    assert known().notes(4 * DAY) == []
    assert (known().matched, known().age_days(4 * DAY)) == (1.0, 1.0)


def test_new_tests_and_a_foreign_history_are_noted() -> None:
    ids = [f"t.py::test_{n}" for n in range(10)]
    found = estimate([*ids, "v.py::x"], runs_of(**{name: [1.0 + n] for n, name in enumerate(ids)}))
    assert found.notes(0) == ["1 new test of 11, estimated: 1 by suite"]
    found = estimate(ids, runs_of(**{name: [1.0 + n] for n, name in enumerate(ids[:7])}))
    assert found.notes(0) == [
        "3 new tests of 10, estimated: 3 by module",
        "only 70% of the tests have a recorded time: is it the history of this suite?",
    ]


def test_old_figures_are_noted() -> None:
    assert known().notes(37 * DAY) == ["the newest recorded times are 34 days old: plans get worse by the month"]


def test_a_feed_that_never_changes_is_noted_and_its_tests_are_listed() -> None:
    frozen = {f"frozen{n}": [3.0 + n] * 4 for n in range(3)}
    found = known(**frozen, tiny=[0.001] * 4, short=[1.0] * 2)
    assert found.frozen == ["frozen0", "frozen1", "frozen2"]
    assert found.notes(4 * DAY) == ["3 tests of 23 never changed by a microsecond: the feed of their times is frozen"]


def test_placeholders_are_noted() -> None:
    found = known(days=1, **{f"heavy{n}": [3600.0] for n in range(6)})
    assert found.notes(0) == ["6 tests have the same 3600 s: placeholders, not measured"]


@pytest.mark.parametrize("outcomes", [{}, {"t_gamma": "failed", "t_eps": "skipped"}])
def test_cut_off_runs_and_placeholders_do_not_spoil_the_balance(outcomes: dict[str, str]) -> None:
    """The arithmetic of sgl-project/sglang pull 29726: flat estimates gave 3120 and 1910 s, means of all runs 3100."""
    recorded = {
        "t_alpha": [2080, 2110, 1995],
        "t_beta": [1290, 1310, 1305],
        "t_gamma": [610, 640, 3600],
        "t_delta": [420, 400, 415],
        "t_eps": [310, 300, 12],
    }
    runs = runs_of(**recorded)
    runs[2] = Past(runs[2].seconds, runs[2].date, outcomes)
    found = estimate([*recorded, "t_new"], runs, default=300)
    assert (found.seconds["t_gamma"], found.seconds["t_eps"], found.new) == (625, 305, ["t_new"])
    tests = [{"id": name, "module": name, "seconds": seconds} for name, seconds in found.seconds.items()]
    longest = max(sum(found.seconds[name] for name in shard) for shard in plan(tests, 2).shards)
    assert longest <= 1.05 * 2515


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "3"])
def test_a_value_that_is_no_time_is_refused_with_its_test_and_run(value: Any) -> None:
    with pytest.raises(TimingError, match=r"b took .* \(run 1 of estimate\(runs="):
        estimate(["a"], [Past({"a": 1.0}, 0), Past({"b": value}, 1)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantile": 1.5}, "quantile is 1.5"),
        ({"quantile": float("nan")}, "quantile is nan"),
        ({"last": 0}, "last is 0"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TimingError, match=message):
        estimate(["a"], [], **options)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_speed_that_is_no_factor_is_refused(speed: float) -> None:
    with pytest.raises(TimingError, match=r"speed is .* \(run 0 of estimate"):
        estimate(["a"], [Past({"a": 1.0}, 0, speed=speed)])


def test_an_estimate_of_nothing_is_refused() -> None:
    with pytest.raises(TimingError, match="no test to estimate"):
        estimate([], [])
