"""The example index_remap: its suite as its owner runs it, and with each of its planted faults."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "index_remap"
sys.path.insert(0, str(EXAMPLE))

from index_remap.remap import FAULTS, VARIABLE, planted  # noqa: E402  # found through the path set above

BORDERS, ORDER = "test_every_position_has_its_slot_at_every_border", "test_a_row_with_an_owner_keeps_its_order"
WRITTEN = "test_each_element_of_the_output_is_written_and_nothing_else"
OTHER = "hold other values than the reference's, in any order (size "
RED = {
    "width-rounded-down": (BORDERS, "by size: 3 (2), 5 (2), 7 (2), 9 (2), 15 (2), 17 (2), 31 (2), 33 (2), 48 (2)"),
    "sum-in-8-bits": (ORDER, "runs of 18 failed; by size: "),
    "lost-update": (BORDERS, f"{OTHER}33, seed 0)"),
    "last-tile-unmasked": (WRITTEN, "1 element after it, nearest +93 from its first element"),
    "tail-unwritten": (WRITTEN, "elements left unwritten (output of shape (3, "),
    "stride-ignored": (WRITTEN, "2 elements between its elements, nearest +1 from its first element"),
    "block-by-shift": (f"{BORDERS} and 48", f"{OTHER}1, seed 0)"),
    "padding-mapped": (BORDERS, f"{OTHER}1, seed 0)"),
}
"""For each planted fault the tests that it turns red, and what the first failure says."""


def test_the_suite_passes(run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "32 passed" in done.stdout
    assert " 32 tests, " in (EXAMPLE / "README.md").read_text()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_turns_a_test_red_and_is_named(run: Run, fault: str) -> None:
    tests, message = RED[fault]
    done = run("-x", "-k", tests, fault=fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED tests/test_index_remap.py::{tests.split()[0]}" in done.stdout
    assert message in done.stdout


def test_the_readme_shows_what_is_printed(run: Run) -> None:
    done = run("-x", fault="width-rounded-down")
    printed = {line.removeprefix("E").strip().rpartition("KernelFailed: ")[2] for line in done.stdout.splitlines()}
    text = (EXAMPLE / "README.md").read_text()
    shown = [line.strip() for line in text.splitlines() if line.startswith("    ") and "pytest " not in line]
    assert shown
    assert [line for line in shown if line not in printed] == []


def test_a_fault_that_is_not_planted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-such-fault")
    with pytest.raises(ValueError, match="no-such-fault is no planted fault; these are: width-rounded-down, sum-"):
        planted("lost-update")
