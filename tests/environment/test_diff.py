"""How two machines differ: what is flagged and why, what is not, and how it is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testkit.environment import Fact
from testkit.environment._diff import MATTERS, Difference, as_json, as_markdown, differences, value_text
from testkit.environment._snapshot import READERS

H200 = {"model": "NVIDIA H200", "memory": 140 << 30, "arch": "sm90", "links": 18}
A10 = {"model": "NVIDIA A10", "memory": 22 << 30, "arch": "sm86", "links": 0}


def facts(**values: Any) -> dict[str, Fact]:
    return {name.replace("__", "-"): Fact(value, "planted") for name, value in values.items()}


def test_what_is_the_same_differs_in_nothing_however_it_was_read() -> None:
    before = {"kernel": Fact("6.8.0", "/proc"), "packages": Fact({"numpy": "2.0"}, "here")}
    after = {"kernel": Fact("6.8.0", "uname"), "packages": Fact({"numpy": "2.0"}, "there")}
    assert differences(before, after) == []
    assert as_markdown([], ("a", "b")) == "no difference"


@pytest.mark.parametrize(
    ("name", "before", "after", "matters"),
    [
        ("os_version", "22.04", "24.04", True),
        ("rdma-core", "39.0", "50.0", True),
        ("rdma-core", "50.0", "50.1", False),
        ("kernel", "6.8.0-48-generic", "6.8.0-49-generic", False),
        ("kernel", "5.15.0-122-generic", "6.8.0-48-generic", True),
        ("glibc", "2.35", "2.39", True),
        ("python", "3.11.7", "3.11.9", False),
        ("python", "3.11.7", "3.12.1", True),
        ("torch", "2.6.0+cu124", "2.6.1+cu124", False),
        ("torch", "2.6.0+cu124", "2.7.0+cu124", True),
        ("torch_cuda", "12.4", "12.8", True),
        ("torch_cuda", "12.8", None, True),
        ("torch_cuda", None, "12.8", True),
        ("driver", "570.86.15", "570.124.06", False),
        ("driver", "570.86.15", "580.159.04", True),
        ("nccl", "2.27.3", "2.27.5", False),
        ("nccl", "2.21.5", "2.27.3", True),
        ("memory", 1 << 40, 1 << 39, False),
        ("cpus", 96, 48, True),
        ("container", "docker", None, True),
        ("gpus", [H200], [H200, H200], True),
        ("kernel", "custom-a", "custom-b", True),
    ],
)
def test_what_matters_is_flagged_with_why(name: str, before: Any, after: Any, matters: bool) -> None:
    [found] = differences({name: Fact(before, "")}, {name: Fact(after, "")})
    assert found == Difference(name, before, after, MATTERS[name][1] if matters else "")


def test_variables_and_packages_are_compared_one_by_one_and_the_digest_not_besides() -> None:
    before = facts(variables={"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}, packages={"a": "1", "b": "1"})
    after = facts(variables={"OMP_NUM_THREADS": "1", "NCCL_ALGO": "Ring"}, packages={"b": "2", "c": "1"})
    before["package_digest"], after["package_digest"] = Fact("12", ""), Fact("34", "")
    found = differences(before, after)
    assert [(one.name, one.before, one.after) for one in found] == [
        ("variable NCCL_ALGO", None, "Ring"),
        ("variable NCCL_DEBUG", "INFO", None),
        ("package a", "1", None),
        ("package b", "1", "2"),
        ("package c", None, "1"),
    ]
    assert [bool(one.matters) for one in found] == [True, True, False, False, False]


def test_what_matters_comes_first() -> None:
    before, after = facts(kernel="6.8.1", python="3.11.1", gpus=[]), facts(kernel="6.8.2", python="3.12.1", gpus=[H200])
    assert [one.name for one in differences(before, after)] == ["python", "gpus", "kernel"]


def test_a_fact_that_one_snapshot_does_not_have_is_absent_there() -> None:
    assert differences(facts(kernel="6.8"), {}) == [Difference("kernel", "6.8", None, MATTERS["kernel"][1])]
    assert differences(facts(unheard_of=None), {}) == []


def test_every_fact_is_either_known_to_matter_or_left_out_on_purpose() -> None:
    assert set(READERS) - set(MATTERS) == {"memory", "variables", "packages", "package_digest"}
    assert set(MATTERS) - set(READERS) == {"variable"}


def test_markdown_shows_what_matters_apart() -> None:
    found = differences(
        facts(rdma__core="39.0", gpus=[H200, H200], packages={"numpy": "2.0"}, memory=1 << 40),
        facts(rdma__core="50.0", gpus=[H200, A10], packages={"numpy": "2.1"}, memory=None),
    )
    assert as_markdown(found, ("old", "a|b")).splitlines() == [
        "2 of 4 differences matter",
        "",
        "| what matters | old | a\\|b | why |",
        "|---|---|---|---|",
        f"| rdma-core | 39.0 | 50.0 | {MATTERS['rdma-core'][1]} |",
        "| gpus | 2 x NVIDIA H200, 140 GiB, sm90, 18 links | 1 x NVIDIA H200, 140 GiB, sm90, 18 links; "
        f"1 x NVIDIA A10, 22 GiB, sm86 | {MATTERS['gpus'][1]} |",
        "",
        "| what else differs | old | a\\|b |",
        "|---|---|---|",
        "| memory | 1 TiB | none |",
        "| package numpy | 2.0 | 2.1 |",
    ]


def test_json_has_all_of_it() -> None:
    found = differences(facts(kernel="6.8.1"), facts(kernel="6.8.2"))
    assert json.loads(as_json(found)) == {
        "differences": [{"name": "kernel", "before": "6.8.1", "after": "6.8.2", "matters": ""}]
    }


def test_cards_that_are_unknown_are_not_shown_as_none() -> None:
    assert value_text("gpus", None) == "unknown"
    assert value_text("gpus", []) == "none"
    bare = {"model": None, "memory": None, "arch": None, "links": 0}
    assert value_text("gpus", [bare]) == "1 x unnamed"


some = st.dictionaries(st.sampled_from(["kernel", "os", "torch"]), st.sampled_from([None, "6.8", "6.8.1", "7", "x"]))


@given(some, some)
def test_the_way_back_has_the_same_differences(before: dict[str, Any], after: dict[str, Any]) -> None:
    there = differences(facts(**before), facts(**after))
    back = differences(facts(**after), facts(**before))
    assert [(one.name, one.before, one.after, one.matters) for one in there] == [
        (one.name, one.after, one.before, one.matters) for one in back
    ]
