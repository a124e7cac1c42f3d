"""Thinned matrices hold every allowed tuple, and are jobs of the full matrix: by a checker of the tests' own."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from testkit.errors import MatrixError
from testkit.matrix._expand import expand, make_matrix
from testkit.matrix._thin import thin

Raw = dict[str, Any]

CI: Raw = {
    "image": ["cuda-12.4", "cuda-12.8", "rocm-6.4", "cpu"],
    "gpu": ["none", "l4", "h100", "mi300x"],
    "python": ["3.10", "3.11", "3.12", "3.13", "3.14"],
    "torch": ["2.6", "2.9", "nightly"],
}
RULED: Raw = CI | {
    "exclude": [
        {"image": "cpu", "gpu": "l4"},
        {"image": "cpu", "gpu": "h100"},
        {"image": "cpu", "gpu": "mi300x"},
        {"image": "rocm-6.4", "gpu": "h100"},
        {"python": "3.14", "torch": "2.6"},
        {"image": "cuda-12.4", "gpu": "h100", "torch": "nightly"},
    ],
    "include": [
        {"torch": "nightly", "experimental": True},
        {"image": "cuda-12.8", "gpu": "h100", "python": "3.12", "torch": "2.9", "wheel": True},
        {"image": "macos", "gpu": "none", "python": "3.12"},
    ],
}


def allowed(raw: Raw) -> list[Raw]:
    """The product without what exclude takes away, for text and whole numbers: written apart from the package."""
    names = [name for name in raw if name not in ("include", "exclude")]
    rows = [dict(zip(names, values, strict=True)) for values in itertools.product(*(raw[name] for name in names))]
    out = raw.get("exclude", [])
    return [row for row in rows if not any(all(row[name] == entry[name] for name in entry) for entry in out)]


def tuples(rows: list[Raw], names: list[str], strength: int) -> set[tuple[tuple[str, Any], ...]]:
    return {
        tuple((name, row[name]) for name in chosen)
        for row in rows
        for chosen in itertools.combinations([name for name in names if name in row], strength)
    }


def assert_thin(raw: Raw, strength: int) -> int:
    """Everything that a thinned matrix promises; the number of its jobs."""
    matrix = make_matrix(raw, "")
    thinned = thin(matrix, strength)
    names = list(matrix.axes)
    owed = tuples(allowed(raw), names, strength)
    assert owed <= tuples(thinned.jobs, names, strength)
    assert thinned.owed == len(owed)
    assert thinned.floor <= len(thinned.jobs)
    full = expand(matrix)
    places = [full.index(job) for job in thinned.jobs]
    assert places == sorted({*places})
    for entry in raw.get("include", []):
        added = set(entry) - set(names)
        assert not added or any(set(entry) <= set(job) for job in thinned.jobs)
    return len(thinned.jobs)


def test_240_jobs_become_the_few_that_hold_every_pair() -> None:
    assert len(expand(make_matrix(CI, ""))) == 240
    assert assert_thin(CI, 2) <= 23
    assert assert_thin(CI, 3) <= 90
    assert assert_thin(CI, 1) == 5
    assert assert_thin(CI, 4) == 240


def test_excluded_combinations_stay_out_and_included_ones_stay_in() -> None:
    jobs = thin(make_matrix(RULED, "")).jobs
    assert_thin(RULED, 2)
    assert_thin(RULED, 3)
    assert not [job for job in jobs if job["image"] == "cpu" and job["gpu"] != "none"]
    assert {"image": "macos", "gpu": "none", "python": "3.12"} in jobs
    assert [job["gpu"] for job in jobs if job.get("wheel")] == ["h100"]
    assert all(job.get("experimental") is True for job in jobs if job.get("torch") == "nightly")


def test_the_same_matrix_gives_the_same_jobs() -> None:
    assert thin(make_matrix(RULED, "")) == thin(make_matrix(RULED, ""))


@pytest.mark.parametrize("seed", range(40))
def test_random_matrices_hold_every_allowed_tuple(seed: int) -> None:
    drawn = random.Random(seed)
    sizes = [drawn.randint(1, 4) for _ in range(drawn.randint(2, 5))]
    raw: Raw = {f"axis-{place}": [f"v{value}" for value in range(size)] for place, size in enumerate(sizes)}
    names = list(raw)

    def entry(most: int) -> Raw:
        return {name: drawn.choice(raw[name]) for name in drawn.sample(names, drawn.randint(1, min(most, len(names))))}

    exclude = [entry(3) for _ in range(drawn.randint(0, 3))]
    raw |= {"exclude": exclude, "include": [entry(5) | {f"added{n}": n} for n in range(drawn.randint(0, 4))]}
    raw["include"].append({"axis-0": "new", "note": "own"})
    if not allowed(raw):
        raw["exclude"] = []
    assert_thin(raw, drawn.randint(1, min(3, len(names))))


def test_axes_may_be_called_anything_and_hold_anything() -> None:
    raw: Raw = {
        "runs-on": [["self-hosted", "gpu"], ["ubuntu"]],
        "runs_on": [1, "1", 1.0, True],
        "class": [{"a": 1}, {"a": 2, "b": 3}],
        "4k": [None, ""],
        "exclude": [{"class": {"a": 1}, "runs-on": ["ubuntu"]}],
    }
    jobs = thin(make_matrix(raw, "")).jobs
    assert all(job in expand(make_matrix(raw, "")) for job in jobs)
    held = {(repr(job["runs_on"]), repr(job["class"])) for job in jobs}
    assert len(held) == 3 * 2  # 1.0 is the number 1
    assert not [job for job in jobs if job["class"] == {"a": 1} and job["runs-on"] == ["ubuntu"]]


def test_an_include_list_is_left_as_it_is() -> None:
    raw = {"include": [{"gpu": "l4"}, {"gpu": "l4", "torch": "2.6"}]}
    assert thin(make_matrix(raw, "")).jobs == raw["include"]


def test_one_axis_keeps_all_its_values() -> None:
    assert thin(make_matrix({"gpu": ["a", "b"]}, "")).jobs == [{"gpu": "a"}, {"gpu": "b"}]


def test_a_product_too_large_to_list_is_thinned() -> None:
    thinned = thin(make_matrix({f"axis{n}": ["a", "b", "c"] for n in range(16)}, ""))
    assert thinned.total == 3**16
    assert len(thinned.jobs) < 40


@pytest.mark.parametrize("strength", [0, 5, -1])
def test_a_strength_that_the_axes_do_not_have_is_refused(strength: int) -> None:
    with pytest.raises(MatrixError, match=rf"strength {strength} is not within 1 and 4, .*\nnext: use 1 to 4"):
        thin(make_matrix(CI, "in ci.yml"), strength)


def test_an_exclude_that_leaves_nothing_names_its_entries() -> None:
    raw = {"gpu": ["a", "b"], "torch": ["c"], "exclude": [{"gpu": "a"}, {"gpu": "b"}]}
    with pytest.raises(MatrixError, match=r"^matrix: no combination is left by exclude\[0\] and exclude\[1\]"):
        thin(make_matrix(raw, ""))
