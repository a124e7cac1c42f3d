"""What an existing matrix misses: found by brute force, and by ``check``."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from testkit.errors import MatrixError
from testkit.matrix._check import Checked, check
from testkit.matrix._expand import make_matrix
from testkit.matrix._thin import thin

Raw = dict[str, Any]
AXES: Raw = {"gpu": ["l4", "h100"], "torch": ["2.6", "2.9"], "python": ["3.10", "3.12"]}


def checked(raw: Raw, against: Raw | None = None, strength: int | None = None) -> Checked:
    return check(make_matrix(raw, "in ci.yml"), strength, make_matrix(against, "in axes.yml") if against else None)


def test_a_full_matrix_misses_nothing() -> None:
    result = checked(AXES)
    assert (result.jobs, result.owed, result.missing) == (8, 12, [])
    assert result.lines() == ["8 jobs of gpu, torch, python hold 12 of 12 pairs"]


def test_the_pairs_that_an_include_list_misses_are_listed() -> None:
    listed = [
        {"name": "a", "gpu": "l4", "torch": "2.6", "python": "3.10"},
        {"name": "b", "gpu": "l4", "torch": "2.9", "python": "3.12"},
        {"name": "c", "gpu": "h100", "torch": "2.9", "python": "3.12", "nightly": True},
    ]
    result = checked({"include": listed})
    assert result.lines() == [
        "3 jobs of gpu, torch, python hold 8 of 12 pairs, 4 missing:",
        "  gpu=h100, torch=2.6",
        "  gpu=h100, python=3.10",
        "  torch=2.6, python=3.12",
        "  torch=2.9, python=3.10",
        "note: not taken for axes: name, nightly",
    ]


def test_the_pairs_of_a_model_are_owed_whatever_the_list_knows() -> None:
    model = AXES | {"gpu": ["l4", "h100", "b200"], "exclude": [{"gpu": "b200", "torch": "2.6"}]}
    jobs = thin(make_matrix(AXES, "")).jobs
    result = checked({"include": jobs}, model)
    assert result.missing == [
        {"gpu": "b200", "torch": "2.9"},
        {"gpu": "b200", "python": "3.10"},
        {"gpu": "b200", "python": "3.12"},
    ]
    assert (result.owed, result.excluded) == (15, 1)
    assert result.lines()[-1] == "note: 1 pair not owed, because of exclude"
    assert not checked({"include": thin(make_matrix(model, "")).jobs}, model).missing


def test_values_that_a_ci_system_shows_alike_are_one() -> None:
    listed = [{"python": 3.12, "graph": "true"}, {"python": "3.12", "graph": False}]
    result = checked({"include": listed}, {"python": ["3.12"], "graph": [True, False]})
    assert (result.owed, result.missing) == (2, [])


def test_a_value_that_include_brings_for_an_axis_owes_its_pairs() -> None:
    result = checked({"gpu": ["l4"], "torch": ["2.6", "2.9"], "include": [{"gpu": "b200", "torch": "2.9"}]})
    assert result.missing == [{"gpu": "b200", "torch": "2.6"}]


def test_a_combination_that_include_brings_back_holds_its_pairs() -> None:
    raw = AXES | {"exclude": [{"gpu": "h100", "torch": "2.9"}]}
    assert checked(raw).excluded == 1
    back = raw | {"include": [{"gpu": "h100", "torch": "2.9", "python": "3.10"}]}
    assert not checked(back).missing


def test_a_job_without_an_axis_holds_what_it_has() -> None:
    listed = [{"gpu": "l4", "torch": "2.6"}, {"torch": "2.6", "python": "3.10"}]
    assert len(checked({"include": listed}, AXES).missing) == 12 - 2


@pytest.mark.parametrize("strength", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_missing_is_what_brute_force_finds(seed: int, strength: int) -> None:
    drawn = random.Random(seed)
    names = ["a", "b", "c", "d"][: drawn.randint(3, 4)]
    model: Raw = {name: [f"{name}{n}" for n in range(drawn.randint(1, 3))] for name in names}
    rows = [dict(zip(names, values, strict=True)) for values in itertools.product(*model.values())]
    out = {name: drawn.choice(model[name]) for name in drawn.sample(names, 2)}
    legal = [row for row in rows if any(row[name] != value for name, value in out.items())]
    listed = drawn.sample(rows, drawn.randint(1, min(5, len(rows))))

    def held(jobs: list[Raw]) -> set[frozenset[tuple[str, str]]]:
        return {frozenset(some) for job in jobs for some in itertools.combinations(job.items(), strength)}

    if not legal:
        return
    result = checked({"include": listed}, model | {"exclude": [out]}, strength)
    assert {frozenset(one.items()) for one in result.missing} == held(legal) - held(listed)
    assert result.owed == len(held(legal))
    assert result.excluded == len(held(rows)) - len(held(legal))


def test_a_long_list_is_cut() -> None:
    model = {"a": list(range(6)), "b": list(range(6))}
    lines = checked({"include": [{"a": 0, "b": 0}]}, model).lines()
    assert lines[0] == "1 job of a, b hold 1 of 36 pairs, 35 missing:"
    assert lines[-1] == "  and 15 more"


@pytest.mark.parametrize(
    ("raw", "against", "strength", "problem"),
    [
        (
            {"include": [{"a": 1}, {"a": 2}]},
            None,
            None,
            r"no key of the jobs repeats a value \(in ci.yml\)\nnext: name",
        ),
        ({"include": [{"a": 1}]}, {"include": [{"a": 1}]}, None, r"there are no axes \(in axes.yml\)"),
        (AXES, None, 4, "strength 4 is not within 1 and 3"),
        ({"a": [1], "exclude": [{"a": 1}]}, None, None, "exclude leaves no job"),
    ],
)
def test_what_would_verify_nothing_is_an_error(raw: Raw, against: Raw | None, strength: int, problem: str) -> None:
    with pytest.raises(MatrixError, match=problem):
        checked(raw, against, strength)
