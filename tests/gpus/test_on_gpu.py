"""On a real NVIDIA card: memory is waited for, a lost device fails one test, budgets are learned and held to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testkit.gpus import _nvml
from testkit.gpus._turn import CONTEXT

pytestmark = pytest.mark.skipif(not Path("/proc/driver/nvidia/gpus").exists(), reason="no NVIDIA card")

GIB = 2**30
ASK, DRIVER = _nvml._ask, _nvml.DRIVER  # before a fixture replaces them

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> str:
    """The UUID of the first card that may be used, which is seen as it is."""
    pytest.importorskip("torch")
    monkeypatch.setattr(_nvml, "_ask", ASK)
    monkeypatch.setattr(_nvml, "DRIVER", DRIVER)
    _nvml.uuids.cache_clear()
    from testkit.gpus import allowed
    from testkit.gpus._ledger import keys

    devices = allowed()
    if not devices:
        pytest.skip("no GPU is allowed")
    return keys(devices)[0]


@pytest.fixture
def run(card: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", card)
    plugins = ("testkit.gpus.plugin", "testkit.timing.plugin", "xdist.plugin")
    named = [word for plugin in plugins for word in ("-p", plugin)]
    return lambda *args: pytester.runpytest_subprocess(*named, "-p", "no:cacheprovider", *args, timeout=300)


def test_a_helper_answers_as_a_process_for_one_question_does(card: str) -> None:
    once = _nvml._ask("memory", "fastest", card)
    _nvml.keep_asking()
    try:
        again = [_nvml._ask("memory", "fastest", card) for _ in range(3)]
    finally:
        _nvml.stop_asking()
    assert {answer[0][1] for answer in again} == {once[0][1]}
    assert _nvml.names([card], pci_order=False) is not None
    reserved = _nvml.reserved([card], pci_order=False)
    assert reserved is not None
    assert 0 < reserved[0] < 4 * GIB


PROBE = """
import torch
from testkit.gpus import used_memory
[before] = used_memory(["{card}"])
data = torch.randn(4096, 4096, device="cuda")
(data @ data).sum().item()
torch.nn.functional.scaled_dot_product_attention(*[torch.randn(1, 8, 512, 64, device="cuda").half()] * 3).sum().item()
[after] = used_memory(["{card}"])
print(after - before - torch.cuda.memory_reserved())
"""


def test_a_process_takes_no_more_beside_its_tensors_than_is_asked_for(
    card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails with others at work on the card, it says nothing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", card)
    done = subprocess.run([sys.executable, "-c", PROBE.format(card=card)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) <= CONTEXT


LARGE = """
import pytest
import torch

TOTAL = torch.cuda.get_device_properties(0).total_memory
{mark}
@pytest.mark.parametrize("n", range(8))
def test_large(n):
    data = torch.ones(int(TOTAL * 0.4) // 4, device="cuda")
    for _ in range(50):
        data.mul_(1.0)
    assert data[-1].item() == 1.0
"""


def test_tests_that_do_not_fit_together_wait_for_each_other(run: Run, pytester: pytest.Pytester, card: str) -> None:
    total = _nvml._ask("memory", "fastest", card)[0][1]
    pytester.makepyfile(LARGE.format(mark=f"@pytest.mark.gpus(memory={int(total * 0.42)})"))
    result = run("-n4")
    result.assert_outcomes(passed=8)
    result.stdout.re_match_lines([r"gpus: .* waited \d+\.\d s for GPU memory"])


BREAKS = """
import pytest
import torch

pytestmark = pytest.mark.gpus

def use():
    assert torch.ones(8, device="cuda").sum().item() == 8

def test_before(): use()

def test_breaks():
    use()
    torch.ones(8, device="cuda")[torch.tensor([99], device="cuda")]
    {waits}

@pytest.mark.parametrize("n", range(3))
def test_after(n): use()
"""


@pytest.mark.parametrize("waits", ["torch.cuda.synchronize()", "pass"])
def test_a_lost_device_fails_the_test_at_fault_alone(run: Run, pytester: pytest.Pytester, waits: str) -> None:
    pytester.makepyfile(test_it=BREAKS.format(waits=waits))
    result = run("-n1", "-rfE")
    outcomes: dict[str, Any] = result.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 1
    assert outcomes["passed"] == (4 if waits != "pass" else 5)
    result.stdout.re_match_lines([r"gpus: gw0 lost its device in test_it.py::test_breaks \(.*(assert|CUDA error).*"])
    alone = run()
    assert alone.ret == pytest.ExitCode.TESTS_FAILED
    alone.stdout.fnmatch_lines(["*this process can use no GPU any more in test_it.py::test_breaks*"])


GREEDY = """
import pytest
import torch

def test_warm():
    torch.ones(8, device="cuda")

@pytest.mark.gpus(memory="1GiB")
def test_greedy():
    torch.ones(2 * 2**30, dtype=torch.uint8, device="cuda")

def test_after():
    torch.ones(2 * 2**30, dtype=torch.uint8, device="cuda")
"""


def test_a_test_above_its_budget_is_named_or_held_to_it(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=GREEDY)
    result = run()
    result.assert_outcomes(passed=3, warnings=1)
    text = "test_it.py::test_greedy had 2.0 GiB of GPU memory at its peak, its budget is 1.0 GiB (from marker gpus)"
    result.stdout.fnmatch_lines([f"*KitWarning: gpus: {text}"])
    held = run("--gpus-over=fail")
    held.assert_outcomes(passed=2, failed=1)
    held.stdout.fnmatch_lines(
        ["gpus: out of memory: the test itself wanted 2.0 GiB, its budget is 1.0 GiB (from marker gpus)"]
    )


def test_the_peak_of_one_run_is_the_budget_of_the_next(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def test_it():
            torch.ones(3 * 2**30, dtype=torch.uint8, device="cuda")

        def test_granted(gpu):
            print("granted", gpu.memory)
            torch.ones(2**30, dtype=torch.uint8, device="cuda")
        """
    )
    assert "granted None" in run("--timing-dir=times", "-s").stdout.str()
    [line] = [line for line in run("--timing-dir=times", "-s").outlines if "granted" in line]
    assert int(line.split()[-1].rstrip(".")) == pytest.approx(1.1 * GIB, rel=0.01)
