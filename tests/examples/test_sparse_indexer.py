"""The example sparse_indexer: its suite as its owner runs it, and with each of its planted faults."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ranks need POSIX")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sparse_indexer"
sys.path.insert(0, str(EXAMPLE))

from sparse_indexer.faults import FAULTS, VARIABLE, active  # noqa: E402  # found through the path set above

TEST = "test_every_machine_takes_the_ops_that_it_has"
SAID = {
    "guard-loosened": "on gfx1100 quantize: aiterlike:quantize cannot be had: AttributeError: module 'aiterlike'",
    "family-by-prefix": "on gfx1201 topk is aiterlike:topk, not sparse_indexer.portable:topk (",
    "features-forgotten": "on gfx942 quantize is sparse_indexer.portable:quantize, not aiterlike:quantize, and 5 more",
    "import-on-top": "on cpu, gfx1100 without the library decide raised ModuleNotFoundError: ",
    "fallback-renamed": "on gfx90a topk: sparse_indexer.portable:topk cannot be had: AttributeError: ",
}
"""What the failure says, for each planted fault."""


def test_the_suite_passes(run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^5 passed", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_turns_the_table_red_and_is_named(run: Run, fault: str) -> None:
    done = run("-k", TEST, fault=fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED tests/test_sparse_indexer.py::{TEST}" in done.stdout
    assert f"laws: {SAID[fault]}" in done.stdout


def test_the_table_is_not_changed_by_a_fault(run: Run) -> None:
    table = EXAMPLE / "tests" / "platforms.json"
    before = table.read_text()
    run("-k", TEST, fault="guard-loosened")
    assert table.read_text() == before


def test_a_fault_that_is_not_planted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-such-fault")
    with pytest.raises(ValueError, match="no-such-fault is no planted fault; these are: guard-loosened, family-by-"):
        active("guard-loosened")
