"""The example mla_prefill: its suite as its owner runs it, and with each of its planted faults."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mla_prefill"
sys.path.insert(0, str(EXAMPLE))

from mla_prefill.faults import FAULTS, VARIABLE, planted  # noqa: E402  # found through the path set above

ATTENDS, STREAMS = "test_it_attends_as_in_float64", "test_values_may_be_projected_on_a_second_stream"
RED = {
    "diagonal-dropped": (ATTENDS, "beyond the limit (model of prefill, fp8_errors.json)"),
    "value-scale-lost": (ATTENDS, "rows (100 %) beyond the limit (model of prefill, fp8_errors.json)"),
    "range-of-fnuz": ("test_fp8_holds_its_nearest_value", "differ by more than "),
    "padding-multiplied": ("test_nothing_stale", "864 of 1,024 elements are NaN, 0 with the poison's own bits"),
    "stride-ignored": ("test_only_rows_of_tokens", "168 elements between its elements, nearest +32 from its first"),
    "tail-not-reset": ("test_the_builder_forgets", "the bits of 8 of 16 elements (50 %) differ"),
    "mask-through-host": ("test_a_replay_follows", "replay with changed inputs differs from the eager call"),
    "no-wait": (STREAMS, "stream 1 begins without a wait for the caller's: backend.py:"),
    "reads-the-model": (ATTENDS, "the stub of Backend has no config.model, an attribute of Config"),
}
"""For each planted fault a test that it turns red, and what the failure says; the drift turns the run red."""
ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a real graph and real streams fail in other words")


def test_the_suite_passes_and_no_stub_has_drifted(run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "29 passed" in done.stdout
    assert "kernels: 0 drifts in 6 places that make stubs (from ini kernels_drift)" in done.stdout
    assert " 29 tests, " in (EXAMPLE / "README.md").read_text()


@ON_CPU
@pytest.mark.parametrize("fault", RED)
def test_a_planted_fault_turns_a_test_red_and_is_named(run: Run, fault: str) -> None:
    test, message = RED[fault]
    done = run("-x", "-k", test, fault=fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED tests/test_mla_prefill.py::{test}" in done.stdout
    assert message in done.stdout


def test_a_read_with_a_default_fails_the_run_though_every_test_passes(run: Run) -> None:
    done = run(fault="window-by-default")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "29 passed" in done.stdout
    assert "Backend: window is not given, and who asked went on with a default: mla_prefill/backend.py:" in done.stdout


def test_the_readme_shows_what_is_printed(run: Run) -> None:
    done = run("-x", fault="reads-the-model")
    printed = {line.removeprefix("E").strip().rpartition("StubError: ")[2] for line in done.stdout.splitlines()}
    text = (EXAMPLE / "README.md").read_text()
    shown = [line.strip() for line in text.splitlines() if line.startswith("    ") and "pytest" not in line[:60]]
    shown = [line for line in shown if not line.startswith("PYTHONPATH")]
    assert shown
    assert [line for line in shown if line not in printed] == []


def test_a_fault_that_is_not_planted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-such-fault")
    with pytest.raises(ValueError, match="no-such-fault is no planted fault; these are: diagonal-dropped, value-"):
        planted("no-wait")


def test_every_planted_fault_is_tried() -> None:
    assert [*RED, "window-by-default"] == list(FAULTS)
