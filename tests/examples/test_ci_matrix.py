"""The example ci_matrix: its suite as its owner runs it, and with each of its planted faults."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ci_matrix"
sys.path.insert(0, str(EXAMPLE))

from ci_matrix.wheel import FAULTS, VARIABLE, smoke  # noqa: E402  # found through the path set above


def test_the_suite_passes(run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^40 passed", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_breaks_a_thinned_job_and_none_of_those_by_hand(run: Run, fault: str) -> None:
    done = run("-k", "wheel", fault=fault)
    assert done.returncode == 1, done.stdout + done.stderr
    red = re.findall(r"^FAILED \S+::(\w+)\[", done.stdout, re.MULTILINE)
    assert set(red) == {"test_the_wheel_loads_in_a_job_of_the_thinned_matrix"}


def test_a_page_of_another_strategy_stops_the_suite(run: Run) -> None:
    done = run(fault="api-answers-with-another-strategy")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "of strategy 'dep' leads to strategy 'tp' (in " in done.stdout


def test_a_fault_that_is_not_planted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-such-fault")
    with pytest.raises(ValueError, match="no-such-fault is no planted fault; these are: no-wheel-for"):
        smoke({"image": "cpu"})
