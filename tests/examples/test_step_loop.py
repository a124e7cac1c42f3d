"""The example step_loop: its suite as its owner runs it, and its marker on the loop that waits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.9")  # which has what the simulated device is made of
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="fresh processes need POSIX")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "step_loop"
VARIABLE = "STEP_LOOP_RUNNER"
ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's list has times, and another order")


def census(runner: str) -> str:
    command = [sys.executable, "census.py", "--runner", runner]
    done = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown() -> list[str]:
    """What the README shows of the output."""
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    return [line[4:] for line in text.splitlines() if line.startswith("    ") and "#" not in line]


def test_the_suite_passes(run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("8 passed" if torch.cuda.is_available() else "4 passed, 4 skipped") in done.stdout
    assert " 8 tests, " in (EXAMPLE / "README.md").read_text(encoding="utf-8")


@ON_CPU
def test_the_marker_fails_the_loop_that_waits_as_the_readme_shows(run: Run) -> None:
    done = run("-k", "never_waits", fault="before")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED tests/test_step_loop.py::test_the_host_never_waits[simulated]" in done.stdout
    assert len(shown()) == 4
    readme = "\n".join(shown())
    if sys.version_info < (3, 11):
        readme = readme.replace("Runner.build", "build")  # code did not know the class that it is in
    assert readme in done.stdout


@ON_CPU
def test_the_census_of_both_loops_can_be_had_without_pytest() -> None:
    assert "syncs: the host waited 98 times at 8 sites" in census("before")
    assert "syncs: no wait of the host was seen" in census("after")


def test_a_loop_that_is_not_there_is_named(run: Run) -> None:
    done = run("-k", "never_waits", fault="later")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ValueError: later is no loop; these are: before, after" in done.stdout


def test_the_recorded_list_is_of_a_gpu() -> None:
    recorded = json.loads((EXAMPLE / "tests" / "waits.json").read_text(encoding="utf-8"))
    if recorded["machine"] == "simulated":
        pytest.skip("no GPU has been asked yet: python census.py --json tests/waits.json")
    assert len(recorded["sites"]) == 8
