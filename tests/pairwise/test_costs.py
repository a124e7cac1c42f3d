"""Durations: read from files, estimated for cases never run, and what they change in the choice of cases."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from brute import groups_missing

from testkit.errors import PairwiseError
from testkit.pairwise._axes import make_axes
from testkit.pairwise._cheaper import cheaper, cheapest, fewer_kernels
from testkit.pairwise._costs import CaseCosts, Measured, read_durations
from testkit.pairwise._engine import cover
from testkit.pairwise._lockfile import Lock
from testkit.pairwise._model import Model
from testkit.pairwise._plan import plan_cases
from testkit.pairwise._space import Rule, Space
from testkit.timing._run import Header, Jit, Timed
from testkit.timing._write import Writer

Case = tuple[int, ...]
DATA = Path(__file__).parent.parent / "data" / "pairwise"
LEVELS = (6, 4, 3, 2, 2)
blind = partial(cover, seed=0, effort="default", engine="testkit")


def whole(levels: Sequence[int], seconds: Any) -> dict[Case, Measured]:
    """Every case recorded, with ``seconds(case)``."""
    return {case: Measured(seconds(case), 0.0, turn) for turn, case in enumerate(product(*map(range, levels)))}


def slow_value(case: Case) -> float:
    """The second value of the last axis takes a hundred times as long."""
    return 1.0 if case[-1] == 1 else 0.01


# ------------------------------------------------------------------ files


def write(folder: Path, name: str, tests: Sequence[Timed], *, close: bool = True) -> Path:
    writer = Writer(folder, Header(name, started=1.0))
    for timed in tests:
        writer.add(timed)
    if close:
        writer.close(0, 1.0)
    else:
        writer.abandon()
    return folder


def test_a_json_object_of_seconds_is_read_by_function_and_case(tmp_path: Path) -> None:
    path = tmp_path / "durations"
    path.write_text(json.dumps({"a.py::test_a[1-x[0]]": 2, "a.py::test_a[2]": 0.5, "a.py::test_b": 1.0}))
    durations = read_durations(path)
    assert durations.source == str(path)
    assert durations.of("a.py::test_a") == {"1-x[0]": Measured(2.0, 0.0, 0), "2": Measured(0.5, 0.0, 1)}
    assert durations.of("a.py::test_b") == {"": Measured(1.0, 0.0, 2)}
    assert durations.of("a.py::test_c") == {}


def test_run_files_give_medians_without_compilation_and_without_tests_that_did_not_run(tmp_path: Path) -> None:
    write(tmp_path, "cold", [
        Timed("a.py::test_a[1]", start=1.0, call=5.0, jit=Jit(4.0, 1)),
        Timed("a.py::test_a[2]", start=2.0, call=2.0),
        Timed("a.py::test_a[3]", start=3.0, call=0.1, phases="psp"),
        Timed("a.py::test_a[4]", start=4.0, setup=9.0, phases="f-p"),
    ])  # fmt: skip
    write(tmp_path, "warm", [Timed("a.py::test_a[1]", start=1.0, call=3.0)])
    write(tmp_path, "third", [Timed("a.py::test_a[1]", start=1.0, call=1.5)])
    assert read_durations(tmp_path).of("a.py::test_a") == {"1": Measured(1.5, 4.0, 0), "2": Measured(2.0, 0.0, 1)}


def test_a_run_that_goes_on_is_not_read_so_that_all_workers_choose_alike(tmp_path: Path) -> None:
    write(tmp_path, "now", [Timed("a.py::test_a[1]", call=1.0)], close=False)
    assert read_durations(tmp_path).functions == {}


def test_a_file_whose_run_was_cut_off_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "now", [Timed("a.py::test_a[1]", call=1.0)], close=False)
    (path,) = tmp_path.iterdir()
    with pytest.raises(PairwiseError, match=r"^pairwise: the run in \S+ did not come to its end\nnext: give"):
        read_durations(path)


def test_a_group_of_xdist_is_no_part_of_the_case(tmp_path: Path) -> None:
    write(tmp_path, "one", [Timed("a.py::test_a[1]@gpu", start=1.0, call=3.0)])
    assert read_durations(tmp_path).of("a.py::test_a") == {"1": Measured(3.0, 0.0, 0)}


def test_a_folder_without_a_run_gives_no_durations(tmp_path: Path) -> None:
    (tmp_path / ".gitkeep").touch()
    assert read_durations(tmp_path).functions == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"no durations in \S+: \S+ is empty\nnext: give a JSON object"),
        ("{}", r"\S+ holds no durations\nnext: give a JSON object"),
        ('{"a.py::test_a": -1}', r"\S+ gives a\.py::test_a -1, which is no seconds\nnext: use numbers from 0 up"),
        ('{"a.py::test_a": null}', r"gives a\.py::test_a None, which is no seconds"),
        ('{"a.py::test_a": true}', r"gives a\.py::test_a True, which is no seconds"),
        ('{"a.py::test_a": NaN}', r"gives a\.py::test_a nan, which is no seconds"),
        ('{"a.py::test_a": "1 s"}', r"no durations in \S+: \S+ is not a run file"),
        ("[1, 2]", r"no durations in \S+: \S+ is not a run file"),
        ("a.py::test_a 1.0", r"no durations in \S+: \S+ is not a run file"),
        ("caf\xe9", r"cannot read durations from \S+: it is no text"),
    ],
)
def test_a_file_that_holds_no_durations_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(PairwiseError, match=f"^pairwise: .*{said}"):
        read_durations(path)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PairwiseError, match=r"^pairwise: cannot read durations from \S+gone: No such file"):
        read_durations(tmp_path / "gone")


# ------------------------------------------------------------------ what cases cost


def test_recorded_cases_cost_what_they_took() -> None:
    costs = CaseCosts((2, 2), {(0, 0): Measured(1.0), (1, 1): Measured(0.0)})
    assert costs.expected_seconds([(0, 0), [1, 1]]) == 1.0
    assert costs.expected_seconds([]) == 0.0


def test_cases_never_run_are_estimated_from_the_factors_of_their_values() -> None:
    factors = [(1.0, 2.0, 4.0), (1.0, 10.0), (1.0, 3.0)]
    truth = whole((3, 2, 2), lambda case: math.prod(f[level] for f, level in zip(factors, case, strict=True)))
    unseen = {(0, 1, 1), (1, 0, 0), (2, 1, 0)}
    costs = CaseCosts((3, 2, 2), {case: one for case, one in truth.items() if case not in unseen})
    for case in unseen:
        assert costs.run(case) == pytest.approx(truth[case].seconds, rel=0.4)
    assert costs.run((1, 0, 0)) < costs.run((0, 1, 1)) < costs.run((2, 1, 0))


def test_a_value_never_run_costs_the_mean_and_nothing_more_than_the_longest_case() -> None:
    costs = CaseCosts((3, 2), {(0, 0): Measured(1.0), (1, 1): Measured(3.0)})
    assert 0.5 < costs.run((2, 0)) < costs.run((2, 1)) <= 3.0


def test_durations_of_zero_are_no_trouble() -> None:
    costs = CaseCosts((2, 2), {(0, 0): Measured(0.0)})
    assert costs.run((1, 1)) == 0.0
    assert cheaper(Model(Space((2, 2), []), 2), [[0, 0], [0, 1], [1, 0], [1, 1]], costs)


def with_kernels(levels: Sequence[int], key: Sequence[int], seconds: float = 2.0) -> dict[Case, Measured]:
    """A cold run of the whole product: the first case of each key compiles."""
    seen: set[Case] = set()
    found = {}
    for turn, case in enumerate(product(*map(range, levels))):
        own = tuple(case[axis] for axis in key)
        found[case] = Measured(0.01, 0.0 if own in seen else seconds, turn)
        seen.add(own)
    return found


@pytest.mark.parametrize("key", [(0,), (3,), (1, 4), (2, 3, 4)])
def test_the_axes_that_kernels_depend_on_are_learned(key: Case) -> None:
    recorded = with_kernels(LEVELS, key)
    costs = CaseCosts(LEVELS, recorded)
    assert costs.key_axes == key
    keys = math.prod(LEVELS[axis] for axis in key)
    assert costs.expected_seconds(recorded) == pytest.approx(0.01 * len(recorded) + 2.0 * keys)
    assert costs.expected_seconds([(0,) * 5, (0,) * 5]) == pytest.approx(2.02)


def test_a_run_that_compiled_nothing_has_no_keys() -> None:
    costs = CaseCosts(LEVELS, whole(LEVELS, slow_value))
    assert costs.key_axes == ()
    assert costs.key((1, 2, 0, 1, 1)) == ()


# ------------------------------------------------------------------ the choice


def covered(model: Model, rows: Sequence[Sequence[int]], allowed: Mapping[Case, Any] | None = None) -> bool:
    """Judged apart from the engine."""
    if allowed is None:
        return groups_missing(model.levels, rows, model.strength) == 0
    pairs = [(a, b) for a in range(len(model.levels)) for b in range(a)]
    owed = {(a, b, case[a], case[b]) for case in allowed for a, b in pairs}
    return owed <= {(a, b, row[a], row[b]) for row in rows for a, b in pairs} and all(tuple(r) in allowed for r in rows)


@pytest.mark.parametrize("strength", [2, 3])
def test_a_dear_value_is_taken_no_oftener_than_coverage_asks(strength: int) -> None:
    model = Model(Space(LEVELS, []), strength)
    costs = CaseCosts(LEVELS, whole(LEVELS, slow_value))
    rows = blind(model)
    found = cheaper(model, rows, costs)
    assert covered(model, found)
    assert len(found) <= len(rows)
    assert costs.expected_seconds(found) < 0.75 * costs.expected_seconds(rows)
    if strength == 2:
        assert sum(row[-1] for row in found) == 6  # beside each of the six values of the largest axis


def test_without_durations_the_rows_stay_as_they_are() -> None:
    model = Model(Space(LEVELS, []), 2)
    rows = blind(model)
    assert cheaper(model, rows, CaseCosts(LEVELS, {})) == rows


def test_kept_and_fixed_cases_stay() -> None:
    kept = {0: 2, 4: 1}
    model = Model(Space(LEVELS, []), 2, kept=(kept,))
    costs = CaseCosts(LEVELS, whole(LEVELS, slow_value))
    rows = blind(model)
    fixed = [dict(enumerate(row)) for row in rows[5:9]]
    found = cheaper(model, rows, costs, fixed=fixed)
    assert covered(model, found)
    assert any(row[0] == 2 and row[4] == 1 for row in found)
    assert all(row in found for row in rows[5:9])


def test_forbidden_cases_are_not_chosen_however_cheap() -> None:
    allowed = {case: one for case, one in whole(LEVELS, slow_value).items() if case[0] != case[1] and sum(case) % 5}
    rule = Rule("allowed", (0, 1, 2, 3, 4), frozenset(allowed).__contains__, frozenset(allowed))
    model = Model(Space(LEVELS, [rule]), 2)
    costs = CaseCosts(LEVELS, {case: Measured(slow_value(case)) for case in product(*map(range, LEVELS))})
    rows = blind(model)
    found = cheaper(model, rows, costs)
    assert covered(model, found, allowed)
    assert costs.expected_seconds(found) < costs.expected_seconds(rows)


def test_crossed_axes_stay_crossed() -> None:
    model = Model(Space(LEVELS, []), 2, crossed=(0, 1, 2))
    found = cheaper(model, blind(model), CaseCosts(LEVELS, whole(LEVELS, slow_value)))
    assert {tuple(row[:3]) for row in found} == set(product(range(6), range(4), range(3)))
    assert covered(model, found)


def test_as_few_kernels_are_compiled_as_pairs_need() -> None:
    levels = (12, 5, 2, 3, 2)
    model = Model(Space(levels, []), 2)
    costs = CaseCosts(levels, with_kernels(levels, (2, 3, 4)))
    rows = cheapest(model, costs, blind)
    assert covered(model, rows)
    assert len(rows) == len(blind(model))
    assert len({costs.key(row) for row in rows}) == 6  # of 12
    assert fewer_kernels(model, CaseCosts(levels, whole(levels, slow_value))) is None


def test_kernels_that_a_kept_or_fixed_case_needs_are_not_forbidden() -> None:
    levels = (4, 2, 2, 2)
    costs = CaseCosts(levels, with_kernels(levels, (1, 2, 3)))
    cases = [dict(enumerate(case)) for case in product([0], range(2), range(2), range(2))]
    assert fewer_kernels(Model(Space(levels, []), 2, kept=tuple(cases)), costs) is None
    assert fewer_kernels(Model(Space(levels, []), 2), costs, cases) is None
    assert fewer_kernels(Model(Space(levels, []), 2), costs) is not None


def test_a_locked_case_that_is_not_allowed_any_more_needs_no_kernel() -> None:
    levels = (4, 2, 2, 2)
    costs = CaseCosts(levels, with_kernels(levels, (1, 2, 3)))
    table = frozenset({(0,), (1,), (2,)})
    model = Model(Space(levels, [Rule("small", (0,), table.__contains__, table)]), 2)
    gone = [dict(enumerate(case)) for case in product([3], range(2), range(2), range(2))]
    assert fewer_kernels(model, costs, gone) is not None


def test_kernels_are_left_alone_where_allowed_cases_cannot_be_listed() -> None:
    levels = (4, 2, 2, 2)
    costs = CaseCosts(levels, with_kernels(levels, (1, 2, 3)))
    asked = Rule("asked", (0, 1), lambda case: case != (0, 0), None)
    model = Model(Space(levels, [asked]), 2)
    assert fewer_kernels(model, costs) is None
    assert cheapest(model, costs, blind)


def test_recorded_torchmetrics_cases_take_at_most_085_of_the_seconds() -> None:
    """Chosen by the first run; timed by the same run, and by the second one, at the same pairs held."""
    blind_seconds, seconds = [0.0, 0.0], [0.0, 0.0]
    for function in json.loads((DATA / "torchmetrics_seconds.json").read_text()).values():
        levels = [len(values) for values in function["axes"].values()]
        cases = list(product(*map(range, levels)))
        runs = [
            {case: Measured(s) for case, s in zip(cases, function[run], strict=True) if s is not None}
            for run in ("run1", "run2")
        ]
        allowed = frozenset(runs[0])
        rules = [Rule("ran", tuple(range(len(levels))), allowed.__contains__, allowed)]
        model = Model(Space(levels, rules), 2)
        rows = blind(model)
        found = cheapest(model, CaseCosts(levels, runs[0]), blind)
        assert covered(model, found, runs[0])
        for number, run in enumerate(runs):
            real = CaseCosts(levels, run)
            blind_seconds[number] += real.expected_seconds(rows)
            seconds[number] += real.expected_seconds(found)
    assert seconds[0] <= 0.85 * blind_seconds[0]
    assert seconds[1] <= 0.85 * blind_seconds[1]


AXES = {name: list(range(n)) for name, n in zip("abcde", LEVELS, strict=True)}


def test_a_plan_says_what_its_cases_are_expected_to_take() -> None:
    costs = CaseCosts(LEVELS, whole(LEVELS, slow_value))
    plan = plan_cases(make_axes(AXES), costs=costs)
    assert plan.seconds == costs.expected_seconds(plan.rows)
    assert plan.seconds < 0.75 * costs.expected_seconds(plan_cases(make_axes(AXES)).rows)
    assert plan_cases(make_axes(AXES)).seconds is None
    assert plan_cases(make_axes(AXES), costs=CaseCosts(LEVELS, {})).seconds is None


def test_locked_cases_stay_and_only_new_ones_are_chosen_by_cost(tmp_path: Path) -> None:
    made = make_axes(AXES)
    lock = Lock.read(tmp_path / "lock")
    first = plan_cases(made)
    lock.put("t", made, first.rows)
    lock.save()
    grown = make_axes({**AXES, "a": range(7)})
    levels = (7, *LEVELS[1:])
    costs = CaseCosts(levels, whole(levels, slow_value))
    plan = plan_cases(grown, locked=Lock.read(tmp_path / "lock").locked("t", grown), costs=costs)
    assert set(first.rows) <= set(plan.rows)
    assert sum(row[-1] for row in plan.rows if row[0] == 6) == 1


def test_a_case_that_a_skip_mark_stops_is_not_chosen_for_its_price() -> None:
    made = make_axes(AXES)
    costs = CaseCosts(LEVELS, {case: Measured(0.0 if case[0] == 0 else 1.0) for case in product(*map(range, LEVELS))})
    plan = plan_cases(made, costs=costs, idle=[{0}, (), (), (), ()])
    running = [row[1:] for row in plan.rows if row[0]]
    assert groups_missing(LEVELS[1:], running, 2) == 0


def test_every_process_and_hash_seed_chooses_the_same() -> None:
    program = (
        "from itertools import product\n"
        "from testkit.pairwise._axes import make_axes\n"
        "from testkit.pairwise._costs import CaseCosts, Measured\n"
        "from testkit.pairwise._plan import plan_cases\n"
        f"levels = {LEVELS}\n"
        "known = {c: Measured(0.1 + sum(c) % 7 / 3, 1.5 * (c[2:] == (0, 0, 0)), n)"
        " for n, c in enumerate(product(*map(range, levels))) if n % 3}\n"
        "axes = make_axes({name: range(n) for name, n in zip('abcde', levels)})\n"
        "print(plan_cases(axes, costs=CaseCosts(levels, known)).rows)\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
