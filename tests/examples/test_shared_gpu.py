"""The example shared_gpu: with what its tests say of their memory, and as they would be without."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or Path("/proc/driver/nvidia").exists(), reason="the stand-in is for machines without GPU"
)

Run = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "shared_gpu"
VARIABLE = "SHARED_GPU_FAULT"


def test_each_test_waits_for_its_memory_and_what_is_larger_than_the_card_is_skipped(run: Run) -> None:
    done = run("-p", "xdist", "-n3", "-rs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^11 passed, 1 skipped", done.stdout, re.MULTILINE)
    assert re.search(r"^gpus: .* waited \d+\.\d s for GPU memory", done.stdout, re.MULTILINE)
    assert "needs 200.0 GiB on 1 GPU, found 1 with 80.0 GiB" in done.stdout


def test_without_saying_so_they_run_out_of_memory_and_who_is_to_blame_is_told(run: Run) -> None:
    done = run(fault="as-they-are")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^1 failed, 11 passed", done.stdout, re.MULTILINE)
    assert "gpus: out of memory: the test itself wanted 199.0 GiB, the card has 80.0 GiB" in done.stdout
