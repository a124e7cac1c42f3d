"""The example weight_sync: its suite as its owner runs it, and with each of its planted faults."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="whose port it is cannot be told everywhere")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "weight_sync"
sys.path.insert(0, str(EXAMPLE))

from weight_sync.serve import FAULTS, VARIABLE, Engine  # noqa: E402  # found through the path set above

RED = {
    "killed-in-update": ("test_after_pause_update_and_resume", "ended by itself during POST /update: SIGKILL"),
    "pause-without-drain": ("test_pause_waits", "'running': 1"),
    "update-while-running": ("test_an_update_while_it_runs", "assert (200, "),
    "checksum-unread": ("test_damaged_weights", "assert 200 == 422"),
    "resume-forgotten": (
        "test_after_pause_update_and_resume",
        """last answer: status 200, '{"phase": "paused", """,
    ),
}
"""For each planted fault a test that it turns red, and what the failure says."""


def test_the_suite_passes_and_no_server_is_left(run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^8 passed", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_turns_a_test_red_and_is_named(run: Run, fault: str) -> None:
    test, message = RED[fault]
    done = run("-x", "-k", test, fault=fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED tests/test_weight_sync.py::{test}" in done.stdout
    assert message in done.stdout


def test_the_last_words_of_a_server_that_was_killed_are_shown(run: Run) -> None:
    done = run("-k", "test_a_restart", fault="killed-in-update")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"its last \d lines:\n.*POST /pause.*\n.* loading 3 weights of version 1\n", done.stdout)


def test_a_fault_that_is_not_planted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-such-fault")
    with pytest.raises(ValueError, match="no-such-fault is no planted fault; these are: killed-in-update, pause-"):
        Engine()
