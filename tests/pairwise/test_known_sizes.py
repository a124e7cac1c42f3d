"""The figures that are promised: rows of well-known models at default effort, and what they owe."""

from __future__ import annotations

from pathlib import Path

import pytest
from brute import Product, groups_missing
from covering_models import DATA, HIGH, fits_the_device, known_models, read_ctw, skinny_gemm

from testkit.pairwise import _engine, coverage, sample

MODELS = known_models()
FUNCTIONS = skinny_gemm()


@pytest.mark.parametrize("name", list(MODELS))
def test_a_known_model_has_at_most_the_promised_rows(name: str) -> None:
    known = MODELS[name]
    chosen = sample(known.axes, **known.options)
    assert len(chosen.rows) <= known.rows
    if known.exact:
        assert len(chosen.rows) == known.rows
    if "where" not in known.options and "full" not in known.options:
        numbers = [
            [list(values).index(row[name]) for name, values in known.axes.items()]
            if all("," not in name for name in known.axes)
            else _numbers(known.axes, row)
            for row in chosen.rows
        ]
        assert groups_missing(known.levels, numbers, known.strength) == 0


@pytest.mark.long
@pytest.mark.parametrize("name", list(HIGH))
def test_high_effort_reaches_the_rows_that_were_aimed_at_and_the_store_has_them_next_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = MODELS[name]
    first = sample(known.axes, effort="high", store=tmp_path, **known.options)
    assert len(first.rows) <= HIGH[name][1] <= HIGH[name][0]
    where = known.options.get("where")
    assert coverage(known.axes, first.rows, where=where).missing == []
    if where is None:
        assert groups_missing(known.levels, [list(row.values()) for row in first.rows], 2) == 0

    def unwanted(*arguments: object) -> None:
        raise AssertionError("the rows were kept")

    monkeypatch.setattr(_engine, "_cover", unwanted)
    assert sample(known.axes, effort="high", store=tmp_path, **known.options) == first


def _numbers(axes: dict[str, list[object]], row: dict[str, object]) -> list[int]:
    found = []
    for name, values in axes.items():
        parts = name.split(",")
        found.append(values.index([row[part] for part in parts] if len(parts) > 1 else row[name]))
    return found


@pytest.mark.parametrize(
    ("function", "product", "owed", "rows"),
    [("wvsplitkrc", 9216, 448, 96), ("wvsplitk", 864, 246, 54), ("wvsplitk_fp8", 896, 320, 56), ("llmm1", 64, 56, 32)],
)
def test_a_function_of_the_skinny_gemm_suite_owes_and_gets_what_was_measured(
    function: str, product: int, owed: int, rows: int
) -> None:
    axes = FUNCTIONS[function]
    brute = Product(axes)
    assert len(brute.allowed) == product
    assert len(brute.owed) == owed
    chosen = sample(axes)
    assert (len(chosen.rows), chosen.owed, chosen.floor) == (rows, owed, rows)
    assert brute.judge(chosen.rows).sound


def test_the_suite_of_11040_cases_comes_down_to_238_and_with_whole_shapes_to_526() -> None:
    plain = [len(sample(axes).rows) for axes in FUNCTIONS.values()]
    crossed = [len(sample(axes, full=("n", "k", "m")).rows) for axes in FUNCTIONS.values()]
    assert plain == [96, 54, 56, 32]
    assert crossed == [384, 54, 56, 32]
    assert (sum(plain), sum(crossed)) == (238, 526)


def test_whole_shapes_are_crossed_and_all_else_is_paired() -> None:
    axes = FUNCTIONS["wvsplitkrc"]
    chosen = sample(axes, full="n,k,m")
    verdict = Product(axes, full=("n", "k", "m")).judge(chosen.rows)
    assert verdict.sound
    assert verdict.owed == chosen.owed == 648


def test_the_rule_of_the_device_leaves_no_case_that_it_would_skip() -> None:
    axes = FUNCTIONS["wvsplitkrc"]
    chosen = sample(axes, where=fits_the_device)
    verdict = Product(axes, where=[fits_the_device]).judge(chosen.rows)
    assert verdict.sound
    assert verdict.owed == chosen.owed == 439
    crossed = sample(axes, where=fits_the_device, full=("n", "k", "m"))
    assert Product(axes, where=[fits_the_device], full=("n", "k", "m")).judge(crossed.rows).sound


@pytest.mark.parametrize(
    ("name", "axes", "constraints"),
    [("spins", 18, 13), ("bugzilla", 52, 5), ("apache", 172, 7), ("gcc", 199, 40), ("spinv", 55, 49)],
)
def test_a_constrained_model_is_read_whole_and_its_rows_obey_it(name: str, axes: int, constraints: int) -> None:
    made, where = read_ctw(name)
    assert (len(made), len(where)) == (axes, constraints)
    assert (DATA / f"benchmark_{name}.ctw").read_text().count("\n # ") == constraints
    rows = sample(made, where=where, effort=0).rows
    for predicate in where:
        names = predicate.__code__.co_varnames[: predicate.__code__.co_argcount]
        assert all(predicate(**{name: row[name] for name in names}) for row in rows)
    assert coverage(made, rows, where=where).missing == []


def test_pairs_of_spins_are_owed_if_and_only_if_a_case_holds_them() -> None:
    """Feasible pairs counted by a search that knows nothing of components: one case found for each pair."""
    axes, where = read_ctw("spins")
    asked = [(p, p.__code__.co_varnames[: p.__code__.co_argcount]) for p in where]
    names = list(axes)

    def completes(case: dict[str, object]) -> bool:
        for predicate, scope in asked:
            if all(name in case for name in scope) and not predicate(**{name: case[name] for name in scope}):
                return False
        left = [name for name in names if name not in case]
        return not left or any(completes({**case, left[0]: value}) for value in axes[left[0]])

    feasible = sum(
        completes({one: value, other: far})
        for place, one in enumerate(names)
        for other in names[place + 1 :]
        for value in axes[one]
        for far in axes[other]
    )
    assert sample(axes, where=where, effort=0).owed == feasible
