"""The same figures from a real GPU: what torch says about leaked tensors, and what it costs to ask."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if torch.cuda.mem_get_info()[0] < 6 << 30:
        pytest.skip("needs 6 GiB of free GPU memory")


# The collector is off, so that only clean-ups free what the tests leak: tensors in a cycle.
LEAKY = """
import gc
import pytest
import torch

gc.disable()

class Holder:
    def __init__(self):
        self.me = self
        self.tensor = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")

@pytest.mark.parametrize("i", range(21))
def test_it(i):
    Holder()

def test_peak():
    print("peak", torch.cuda.max_memory_allocated() >> 20)
    assert torch.cuda.max_memory_allocated() <= 2101 << 20
"""

KEEPS = """
import torch

KEPT = []

def test_matmul():  # libraries allocate what they keep here: no leak
    one = torch.ones(256, 256, device="cuda")
    torch.cuda.synchronize()
    assert float((one @ one).sum()) == 256**3

def test_it():
    KEPT.append(torch.empty(300 << 20, dtype=torch.uint8, device="cuda"))
"""


def test_a_suite_that_leaks_300_mib_a_test_cleans_every_seventh_test(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makeini("[pytest]\ncleanup_when_gpu_memory = 2GiB")
    pytester.makepyfile(LEAKY)
    result = run()
    result.assert_outcomes(passed=22)
    result.stdout.fnmatch_lines(["cleanup: 3 clean-ups (memory) in * s: gc * s, torch * s"])


def test_a_leak_is_named_with_its_bytes_and_workspaces_are_none(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makeini("[pytest]\ncleanup_leaks = fail")
    pytester.makepyfile(
        test_a=KEEPS.partition("def test_it")[0],
        test_b=KEEPS,
        test_c=LEAKY.replace("range(21)", "range(2)").partition("def test_peak")[0],
    )
    result = run()
    result.assert_outcomes(passed=5, errors=1)
    result.stdout.fnmatch_lines(["cleanup: test_b.py left 300 MiB (314,572,800 bytes) of GPU memory allocated"])
    assert result.stdout.str().count("ERROR at teardown") == 1


def test_what_is_held_is_seen_and_what_it_costs_to_ask_is_shown() -> None:
    import time

    import torch

    from testkit.cleanup._memory import allocated

    held = torch.empty(1 << 20, device="cuda")
    assert (allocated() or 0) >= held.nbytes
    start = time.perf_counter()
    for _ in range(100):
        allocated()
    each = (time.perf_counter() - start) / 100
    figure = f"allocated(): {each * 1e6:.0f} us, {torch.cuda.device_count()} devices"
    print(figure)  # noqa: T201  # for who runs it with -s
