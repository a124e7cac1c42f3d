"""The examples of testkit.laws: each suite as its owner runs it, and with each of its planted faults."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PASSED = {"prefix_stats": 4, "block_reservation": 5, "tool_parser": 10, "tiered_cache": 4}
CONSERVED = "test_what_is_counted_is_recorded"
RESERVES = "test_the_warm_up_reserves"
SAID = "test_what_is_said"
ENDS = "test_nobody_waits"
RED = {
    ("prefix_stats", "recorded-with-output-only"): (CONSERVED, "step 1 (a long prompt) loses 'queries': 20 counted"),
    ("prefix_stats", "abort-forgets"): (CONSERVED, "step 1 (scheduled, then aborted) loses 'queries': 6 counted"),
    ("prefix_stats", "retry-records-twice"): (CONSERVED, "adds to 'queries': 0 counted, 20 recorded; hits too"),
    ("prefix_stats", "last-overwrites"): (CONSERVED, "step 2 (nothing new) loses 'queries': 0 counted, -6 recorded"),
    ("block_reservation", "no-look-ahead"): (RESERVES, "predict says 1 and oracle 2 at step 1 (prompt of 4)"),
    ("block_reservation", "prompt-only"): (RESERVES, "predict says 0 and oracle 1 at step 2 (prompt of 4)"),
    ("block_reservation", "rounded-down"): (RESERVES, "predict says 2 and oracle 3 at step 1 (prompt of 9)"),
    ("block_reservation", "held-forgotten"): (RESERVES, "predict says 2 and oracle 1 at step 2 (prompt of 4)"),
    ("tool_parser", "rest-dropped"): (SAID, "parse is wrong at 58 of 59 two-way cuts: 1-30, 32-59"),
    ("tool_parser", "marker-leaks"): (SAID, "parse is wrong at 7 of 40 two-way cuts: 18-24"),
    ("tool_parser", "one-call-a-delta"): (SAID, "one piece a chunk but for pair"),
    ("tool_parser", "think-end-missed"): (SAID, "parse is wrong at 7 of 40 two-way cuts: 18-24"),
    ("tool_parser", "named-again"): (SAID, "named_once: call 0 has 2 names"),
    ("tiered_cache", "retry-for-pending"): (
        "test_a_prefix",
        "Cache.lookup: 4 calls for request 'short', with a budget of 1",
    ),
    ("tiered_cache", "no-deadline"): (ENDS, "not done after 20 steps while SlowTier.promoted always answers False"),
    ("tiered_cache", "deadline-restarts"): (
        ENDS,
        "not done after 20 steps while SlowTier.promoted always answers False",
    ),
    ("tiered_cache", "rescan-for-each-block"): (
        "test_each_block",
        "Cache.scan: 2,083 of work in 66 calls, with a budget of 66",
    ),
}
"""For each planted fault a test that it turns red, and what the failure says."""


def variable(example: str) -> str:
    return f"{example.upper()}_FAULT"


@pytest.fixture
def run(run_in: Run) -> Run:
    return lambda example, *words, fault="": run_in(EXAMPLES / example, variable(example), *words, fault=fault)


def planted(example: str) -> list[str]:
    """The names in FAULTS of the example's module, read and not imported: all of them are plain dictionaries."""
    (module,) = [path for path in (EXAMPLES / example / example).glob("*.py") if path.name != "__init__.py"]
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FAULTS":
            return list(ast.literal_eval(node.value))
    raise AssertionError(f"{module} has no FAULTS")


@pytest.mark.parametrize("example", PASSED)
def test_the_suite_passes(run: Run, example: str) -> None:
    done = run(example)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PASSED[example]} passed" in done.stdout
    assert f" {PASSED[example]} tests, " in (EXAMPLES / example / "README.md").read_text()


@pytest.mark.parametrize(("example", "fault"), RED)
def test_a_planted_fault_turns_a_test_red_and_is_named(run: Run, example: str, fault: str) -> None:
    test, message = RED[example, fault]
    done = run(example, "-x", "-k", test, fault=fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED tests/test_{example}.py::{test}" in done.stdout
    assert message in done.stdout
    assert "laws: " in done.stdout


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not know its class")
@pytest.mark.parametrize("example", PASSED)
def test_the_readme_shows_what_is_printed(run: Run, example: str) -> None:
    text = (EXAMPLES / example / "README.md").read_text()
    (fault,) = re.findall(rf"{variable(example)}=([\w-]+) pytest", text)
    done = run(example, fault=fault)
    printed = {re.sub(r"^E  +(testkit\S+: )?", "", line).strip() for line in done.stdout.splitlines()}
    shown = [line.strip() for line in text.splitlines() if line.startswith("    ") and "pytest " not in line]
    assert shown
    assert [line for line in shown if line not in printed] == []


@pytest.mark.parametrize("example", PASSED)
def test_every_planted_fault_is_tried_and_no_other_is_known(run: Run, example: str) -> None:
    assert planted(example) == [fault for name, fault in RED if name == example]
    done = run(example, "-x", fault="no-such-fault")
    assert f"no-such-fault is no planted fault; these are: {planted(example)[0]}, " in done.stdout
