"""20 two-rank torch tests under our two starts and under torch's own runners, CPU and wall seconds, one run.

    python benchmarks/rank_runners.py [--tests 20] [--only spawn,preload,MultiProcessTestCase]

Each way is a program of its own, started here one after the other; CPU seconds are those of it and of all its
processes, user plus system. The tests do little: what is measured is what a process per rank per test costs. torch's
classes need the package expecttest; a way that cannot run says so. On a busy machine wall seconds say little.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MARKED = """
import pytest, torch

@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", range({tests}))
def test_sum(rank, number):
    assert torch.full((2,), float(rank)).sum().item() == 2 * rank
"""

IN_THE_BODY = """
import pytest

@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", range({tests}))
def test_sum(rank, number):
    import torch
    assert torch.full((2,), float(rank)).sum().item() == 2 * rank
"""

PER_TEST = """
import torch
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_utils import run_tests

class Sums(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _sum(self):
        self.assertEqual(torch.full((2,), float(self.rank)).sum().item(), 2 * self.rank)

for number in range({tests}):
    setattr(Sums, f"test_sum_{{number}}", lambda self: self._sum())
    getattr(Sums, f"test_sum_{{number}}").__name__ = f"test_sum_{{number}}"

if __name__ == "__main__":
    run_tests()
"""

CONTINUOUS = """
import torch
from torch.testing._internal.common_distributed import MultiProcContinuousTest
from torch.testing._internal.common_utils import run_tests

class Sums(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

for number in range({tests}):
    def test(self):
        self.assertEqual(torch.full((2,), float(self.rank)).sum().item(), 2 * self.rank)
    setattr(Sums, f"test_sum_{{number}}", test)

if __name__ == "__main__":
    run_tests()
"""

TORCH_SPAWN = """
import torch
import torch.multiprocessing

def body(rank):
    assert torch.full((2,), float(rank)).sum().item() == 2 * rank

if __name__ == "__main__":
    for _ in range({tests}):
        torch.multiprocessing.spawn(body, nprocs=2)
"""

BARE = """
import multiprocessing
import torch

def body(rank):
    assert torch.full((2,), float(rank)).sum().item() == 2 * rank

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    for _ in range({tests}):
        ranks = [context.Process(target=body, args=(rank,)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
            assert rank.exitcode == 0
"""

PYTEST = ["-m", "pytest", "-q", "-p", "testkit", "-o", "ranks_preload=torch", "test_way.py"]
WAYS = {
    "preload": (MARKED, [*PYTEST, "--ranks-start=preload"]),
    "preload (import in the test)": (IN_THE_BODY, [*PYTEST, "--ranks-start=preload"]),
    "MultiProcContinuousTest": (CONTINUOUS, ["test_way.py"]),
    "spawn": (MARKED, PYTEST),
    "bare multiprocessing spawn": (BARE, ["test_way.py"]),
    "torch.multiprocessing.spawn": (TORCH_SPAWN, ["test_way.py"]),
    "MultiProcessTestCase": (PER_TEST, ["test_way.py"]),
}


def adopt_orphans() -> None:
    """Processes whose parent has ended become ours, so that their seconds are counted too (PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def wait_for_all() -> None:
    with suppress(ChildProcessError):
        while True:
            os.wait()


def measured(suite: str, words: list[str], tests: int) -> tuple[float, float] | str:
    """CPU and wall seconds of one way, or the last line of what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_way.py").write_text(suite.format(tests=tests))
        path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
        wall = time.monotonic() - began
        wait_for_all()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return (done.stdout + done.stderr).strip().splitlines()[-1]
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", type=int, default=20)
    parser.add_argument("--only", default=",".join(WAYS), help="names of ways, with commas")
    options = parser.parse_args()
    adopt_orphans()
    print(f"{options.tests} two-rank torch tests; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':30}{'CPU s':>8}{'wall s':>8}   CPU, times preload")
    least = 0.0
    for way in options.only.split(","):
        figures = measured(*WAYS[way], options.tests)
        if isinstance(figures, str):
            print(f"{way:30}did not run: {figures}")
            continue
        cpu, wall = figures
        least = cpu if way == "preload" else least
        ratio = f"{cpu / least:6.1f}x" if least else ""
        print(f"{way:30}{cpu:8.1f}{wall:8.1f}   {ratio}", flush=True)


if __name__ == "__main__":
    main()
