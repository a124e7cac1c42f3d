"""The example tensor_ipc: its suite as its owner runs it, and with each of its planted faults, one of them a hang."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm and sessions are Linux's")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tensor_ipc"
sys.path.insert(0, str(EXAMPLE))

from tensor_ipc import FAULTS, VARIABLE, send  # noqa: E402  # found through the path set above

ARRIVES, VIEWS, SEVERAL = "test_a_tensor_arrives", "test_a_view_arrives", "test_several_messages"
RED = {
    "never-released": (ARRIVES, r"left behind by ranks that passed: shared memory psm_\w+ \([\d,]+ bytes\)"),
    "released-early": (SEVERAL, "rank 1 of 2 ended without a result, SIGSEGV"),
    "strides-ignored": (VIEWS, "rank 1 of 2 raised AssertionError"),
    "type-lost": (ARRIVES, r"rank 1 of 2 raised AssertionError: assert .*torch\.float16.* == .*torch\.bfloat16"),
}
"""For each planted fault but the hang: the tests that it turns red, and what the first failure says."""


def test_the_suite_passes_and_no_rank_is_left(run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(17 passed, 1 skipped|18 passed)", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("fault", RED)
def test_a_planted_fault_turns_a_test_red_and_is_named(run: Run, fault: str) -> None:
    test, message = RED[fault]
    done = run("-x", "-k", test, fault=fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED tests/test_tensor_ipc.py::{test}" in done.stdout
    assert re.search(rf"^processes: {message}", done.stdout, re.MULTILINE), done.stdout


def test_a_decoder_that_waits_in_vain_is_named_with_what_it_waits_in(run: Run) -> None:
    began = time.monotonic()
    done = run("-x", "-k", ARRIVES, "--ranks-timeout=2", fault="never-sent")
    assert time.monotonic() - began < 60, "the limit, the ladder, two imports of torch, and much to spare"
    assert done.returncode == 1, done.stdout + done.stderr
    for line in (
        r"processes: rank 1 of 2 did not finish in 2\.0 s$",
        r"  rank 0  pid \d+  exit 0 .* done$",
        r"  rank 1  pid \d+  SIGTERM .* did not finish in 2\.0 s",
        r"  rank 1 waits in channel\.get\(''\) for \d\.\d s$",
        r"--- rank 1: stack at the limit$",
        r"  File .*transport\.py\", line \d+ in received$",
    ):
        assert re.search(f"^{line}", done.stdout, re.MULTILINE), f"{line}\n{done.stdout}"
    left = re.search(r"left behind: shared memory (psm_\w+)", done.stdout)
    assert left is not None, "what nobody received is named"
    assert not Path("/dev/shm", left[1]).exists()


def test_every_planted_fault_is_tried() -> None:
    assert {*RED, "never-sent"} == {*FAULTS}


def test_a_fault_that_is_not_planted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-such-fault")
    with pytest.raises(ValueError, match="no-such-fault is no planted fault; these are: never-sent, never-released"):
        send(SimpleQueue(), torch.ones(1))
