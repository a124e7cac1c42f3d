"""Job matrices expand as GitHub documents: the common shapes, how values match, and what is refused.

The rules are those of "Running variations of jobs in a workflow" and "Evaluate expressions in workflows and actions"
in GitHub's documentation; the matrices are our own.
"""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from testkit.errors import MatrixError
from testkit.matrix._expand import LARGEST, equal, expand, make_matrix
from testkit.matrix._values import as_text, key_of, label

SHAPES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "axes, the first one slowest": (
        {"torch": ["2.6", "2.9"], "gpu": ["l4", "h100"]},
        [
            {"torch": "2.6", "gpu": "l4"},
            {"torch": "2.6", "gpu": "h100"},
            {"torch": "2.9", "gpu": "l4"},
            {"torch": "2.9", "gpu": "h100"},
        ],
    ),
    "one axis": ({"gpu": ["l4", "h100"]}, [{"gpu": "l4"}, {"gpu": "h100"}]),
    "include only": (
        {"include": [{"gpu": "l4"}, {"gpu": "l4", "suite": "fast"}, {"suite": "all", "hours": 2}]},
        [{"gpu": "l4"}, {"gpu": "l4", "suite": "fast"}, {"suite": "all", "hours": 2}],
    ),
    "exclude by a whole and by a partial match": (
        {
            "gpu": ["l4", "h100"],
            "python": ["3.10", "3.12", "3.14"],
            "mode": ["eager", "graph"],
            "exclude": [{"gpu": "l4", "python": "3.10", "mode": "graph"}, {"gpu": "h100", "python": "3.14"}],
        },
        [
            {"gpu": "l4", "python": "3.10", "mode": "eager"},
            {"gpu": "l4", "python": "3.12", "mode": "eager"},
            {"gpu": "l4", "python": "3.12", "mode": "graph"},
            {"gpu": "l4", "python": "3.14", "mode": "eager"},
            {"gpu": "l4", "python": "3.14", "mode": "graph"},
            {"gpu": "h100", "python": "3.10", "mode": "eager"},
            {"gpu": "h100", "python": "3.10", "mode": "graph"},
            {"gpu": "h100", "python": "3.12", "mode": "eager"},
            {"gpu": "h100", "python": "3.12", "mode": "graph"},
        ],
    ),
    "include in order: to all, over an added value, to some, a job of its own, never to that one": (
        {
            "image": ["cuda", "rocm"],
            "python": ["3.10", "3.12"],
            "include": [
                {"queue": "small"},
                {"queue": "large", "python": "3.10"},
                {"image": "cuda", "driver": "580"},
                {"image": "cpu"},
                {"image": "cpu", "python": "3.10"},
            ],
        },
        [
            {"image": "cuda", "python": "3.10", "queue": "large", "driver": "580"},
            {"image": "cuda", "python": "3.12", "queue": "small", "driver": "580"},
            {"image": "rocm", "python": "3.10", "queue": "large"},
            {"image": "rocm", "python": "3.12", "queue": "small"},
            {"image": "cpu"},
            {"image": "cpu", "python": "3.10"},
        ],
    ),
    "include expands one combination": (
        {
            "gpu": ["l4", "h100"],
            "torch": ["2.6", "2.9"],
            "include": [{"gpu": "h100", "torch": "2.9", "nccl": "2.27"}],
        },
        [
            {"gpu": "l4", "torch": "2.6"},
            {"gpu": "l4", "torch": "2.9"},
            {"gpu": "h100", "torch": "2.6"},
            {"gpu": "h100", "torch": "2.9", "nccl": "2.27"},
        ],
    ),
    "include after exclude brings a combination back, and an original value is never overwritten": (
        {
            "gpu": ["l4", "h100"],
            "torch": ["2.6", "2.9"],
            "exclude": [{"gpu": "l4"}],
            "include": [{"gpu": "l4", "torch": "2.9"}, {"gpu": "h100", "torch": "nightly"}],
        },
        [
            {"gpu": "h100", "torch": "2.6"},
            {"gpu": "h100", "torch": "2.9"},
            {"gpu": "l4", "torch": "2.9"},
            {"gpu": "h100", "torch": "nightly"},
        ],
    ),
    "everything excluded, one included": (
        {"gpu": ["l4", "h100"], "exclude": [{"gpu": "l4"}, {"gpu": "h100"}], "include": [{"note": "docs"}]},
        [{"note": "docs"}],
    ),
    "nested objects": (
        {
            "image": [{"name": "cuda", "version": 12}, {"name": "rocm", "version": 6, "extra": {"gfx": "gfx942"}}],
            "python": ["3.12"],
            "include": [{"image": {"name": "rocm", "version": 6, "extra": {"gfx": "gfx942"}}, "runner": "amd"}],
        },
        [
            {"image": {"name": "cuda", "version": 12}, "python": "3.12"},
            {
                "image": {"name": "rocm", "version": 6, "extra": {"gfx": "gfx942"}},
                "python": "3.12",
                "runner": "amd",
            },
        ],
    ),
    "nested objects match in part": (
        {
            "image": [{"name": "cuda", "version": 12}, {"name": "cuda", "version": 13}, {"name": "rocm"}],
            "shards": [[1, 2], [1, 3]],
            "exclude": [{"image": {"name": "rocm"}}, {"shards": [1, 3], "image": {"version": 13}}],
        },
        [
            {"image": {"name": "cuda", "version": 12}, "shards": [1, 2]},
            {"image": {"name": "cuda", "version": 12}, "shards": [1, 3]},
            {"image": {"name": "cuda", "version": 13}, "shards": [1, 2]},
        ],
    ),
    "scalars of every kind": (
        {"value": [1, 2.5, "text", "", None, True], "exclude": [{"value": "TEXT"}, {"value": 2.5}]},
        [{"value": 1}, {"value": ""}, {"value": None}, {"value": True}],
    ),
    "booleans": (
        {
            "compile": [True, False],
            "graph": [True, False],
            "exclude": [{"compile": False, "graph": True}],
            "include": [{"compile": True, "cache": "warm"}],
        },
        [
            {"compile": True, "graph": True, "cache": "warm"},
            {"compile": True, "graph": False, "cache": "warm"},
            {"compile": False, "graph": False},
        ],
    ),
    "names in any case": (
        {"GPU": ["l4", "h100"], "include": [{"gpu": "l4", "queue": "a"}, {"Queue": "b"}, {"gpu": "b200"}]},
        [{"GPU": "l4", "queue": "b"}, {"GPU": "h100", "Queue": "b"}, {"GPU": "b200"}],
    ),
    "repeated values": ({"gpu": ["l4", "l4"]}, [{"gpu": "l4"}, {"gpu": "l4"}]),
    "empty lists of entries": ({"gpu": ["l4"], "include": [], "exclude": []}, [{"gpu": "l4"}]),
}


@pytest.mark.parametrize(("raw", "jobs"), SHAPES.values(), ids=SHAPES)
def test_a_matrix_expands_as_github_documents(raw: dict[str, Any], jobs: list[dict[str, Any]]) -> None:
    expanded = expand(make_matrix(raw, ""))
    assert expanded == jobs
    assert [[*map(type, job.values())] for job in expanded] == [[*map(type, job.values())] for job in jobs]


def test_a_job_of_its_own_has_the_axes_first() -> None:
    raw = {"gpu": ["l4"], "torch": ["2.6"], "include": [{"queue": "a", "torch": "2.9", "gpu": "l4"}]}
    assert list(expand(make_matrix(raw, ""))[-1]) == ["torch", "gpu", "queue"]


def test_expanding_leaves_what_was_read_alone() -> None:
    raw = {"gpu": ["l4", "h100"], "include": [{"gpu": "l4", "queue": "a"}, {"queue": "b"}, {"gpu": "x"}]}
    matrix = make_matrix(raw, "")
    first = expand(matrix)
    first[-1]["changed"] = True
    assert raw == {"gpu": ["l4", "h100"], "include": [{"gpu": "l4", "queue": "a"}, {"queue": "b"}, {"gpu": "x"}]}
    assert expand(matrix) == [{"gpu": "l4", "queue": "b"}, {"gpu": "h100", "queue": "b"}, {"gpu": "x"}]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("L4", "l4"),
        ("3.10", 3.1),
        ("", 0),
        (None, 0),
        (None, None),
        (None, False),
        (None, ""),
        (True, 1),
        ("1", True),
        (2, 2.0),
        ("1e3", 1000),
        (" 7 ", 7),
    ],
)
def test_values_that_github_takes_for_equal(one: object, other: object) -> None:
    assert equal(one, other)
    assert equal(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("l4", "h100"),
        ("true", True),
        ("3.10", "3.1"),
        ("01", 1),
        ("0x1", 1),
        ("abc", 0),
        ([], ""),
        ({}, None),
        ([1], [1]),
        (True, 2),
        (None, "null"),
    ],
)
def test_values_that_github_takes_for_different(one: object, other: object) -> None:
    assert not equal(one, other)
    assert not equal(other, one)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ([1], r"the matrix is \[1\] \(in ci.yml\)\nnext: write a mapping"),
        ("gpu", "the matrix is 'gpu'"),
        ({}, "neither an axis nor an include entry"),
        ({"include": []}, "neither an axis nor an include entry"),
        ({"python": 3.12}, "axis 'python' is 3.12 .*\nnext: write a list of at least one value"),
        ({"python": []}, r"axis 'python' is \[\]"),
        ({"python": None}, "axis 'python' is None"),
        ({"python": {"a": 1}}, "axis 'python' is {'a': 1}"),
        ({3: ["a"]}, "matrix has the key 3 .*\nnext: quote it"),
        ({"gpu": ["l4"], "GPU": ["h100"]}, "axes 'gpu' and 'GPU' differ in case only"),
        ({"gpu": ["l4"], "include": {"a": 1}}, "include is {'a': 1} .*\nnext: write a list of mappings"),
        ({"gpu": ["l4"], "include": None}, "include is None"),
        ({"gpu": ["l4"], "include": ["l4"]}, r"include\[0\] is 'l4'"),
        ({"gpu": ["l4"], "exclude": [{}]}, r"exclude\[0\] is {}"),
        ({"gpu": ["l4"], "exclude": [{"gpus": "l4"}]}, r"exclude\[0\] names 'gpus', .*\nnext: name one of: gpu"),
        ({"include": [{"a": 1}], "exclude": [{"a": 1}]}, "names 'a', which is no axis .*\nnext: remove exclude"),
        ({"day": [datetime.date(2026, 1, 1)]}, r"matrix.day\[0\] is the date 2026-01-01 "),
        ({"a": [1.0, float("nan")]}, r"matrix.a\[1\] is nan"),
        ({"a": [{"b": {1: 2}}]}, r"matrix.a\[0\].b has the key 1"),
    ],
)
def test_what_github_would_refuse_is_refused_with_what_was_read(raw: object, problem: str) -> None:
    with pytest.raises(MatrixError, match=problem):
        make_matrix(raw, "in ci.yml")


def test_a_matrix_without_a_job_is_an_error() -> None:
    with pytest.raises(MatrixError, match=r"exclude leaves no job \(in ci.yml\)"):
        expand(make_matrix({"gpu": ["l4"], "exclude": [{"gpu": "l4"}]}, "in ci.yml"))


def test_a_product_that_would_not_end_is_refused() -> None:
    axes = {f"axis{number}": list(range(10)) for number in range(7)}
    assert LARGEST < 10**7
    with pytest.raises(MatrixError, match="10,000,000 combinations are too many to list"):
        expand(make_matrix(axes, ""))


def test_the_text_of_a_value_is_what_a_ci_system_shows() -> None:
    values = [None, True, False, 3, 2.0, 3.1, -0.5, "a b", [1, "x"], {"a": None}, 1e300]
    assert [as_text(value) for value in values] == [
        "",
        "true",
        "false",
        "3",
        "2",
        "3.1",
        "-0.5",
        "a b",
        '[1, "x"]',
        '{"a": null}',
        "1e+300",
    ]


def test_the_key_of_a_value_tells_text_from_numbers_and_not_the_order_of_keys() -> None:
    assert key_of(1) != key_of("1")
    assert key_of(True) != key_of(1)
    assert key_of(2) == key_of(2.0)
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})


def test_the_label_of_a_job_has_its_scalars_in_order() -> None:
    assert label({"image": {"name": "cuda", "tags": [12, None]}, "ok": True, "none": None}) == ["cuda", "12", "true"]
