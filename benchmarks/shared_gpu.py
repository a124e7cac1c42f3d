"""A suite of 60 tests of 5-60 GiB and 0.2-3 s on one GPU: as it is, with testkit, one after the other, and the bound.

    python benchmarks/shared_gpu.py [--workers 8] [--tests 60] [--seed 0] [--repeat 1] [--no-serial]

The tests really allocate and compute. Seconds are from the begin of the first test to the end of the last one, waiting
included; in brackets those of the whole run, most of which are imports of torch. The bound is the largest of: the
longest test, all seconds over workers, and the sum of seconds x memory over the card's memory. With testkit there are
two runs: the second one has the first one's times (--timing-history) and so starts the longest tests first.

One suite says little: by its seed the same rule comes to 1.05 to 1.15 times the bound, so --repeat gives a mean. And
each worker's context is memory that tests cannot have, of which the bound knows nothing: with half a GiB for each of
8 workers, the replay of gpu_packing.py comes to 1.14 times the bound instead of 1.11, on average over 20 suites.

On a machine without GPU the stand-in of examples/shared_gpu takes its place, with SHARED_GPU_GIB (139) GiB: what waits
is the same, nothing computes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "shared_gpu"
GIB = 2**30
OUT_OF_MEMORY = r"^.*(?:OutOfMemoryError|CUDA out of memory|CUDA error: out of memory)"
LIMIT = 900
"""Seconds for one run."""

CONFTEST = (EXAMPLE / "tests" / "conftest.py").read_text()

SUITE = """
import json, os, time
import pytest
from shared_gpu import buffer
from shared_gpu.device import stands_in

if not stands_in():  # as suites do that look at the card when they are collected
    import torch
    torch.ones(1, device="cuda")

def log(*what):
    line = json.dumps([time.monotonic(), *what]) + chr(10)
    fd = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, line.encode())
    os.close(fd)

def run(gib, seconds):
    log("begin", gib)
    try:
        with buffer(int(gib * 2**30 * 0.98), "cuda:0", seconds) as checksum:
            assert checksum == 1.0
    finally:
        log("end", gib)

"""


@dataclass
class Outcome:
    failed: int
    passed: int
    seconds: float
    whole: float
    memory: int
    """Out of memory: how many failures say so."""


def tests(number: int, seed: int) -> list[tuple[float, float]]:
    """GiB and seconds of each test."""
    dice = random.Random(seed)
    return [(round(dice.uniform(5, 60), 1), round(dice.uniform(0.2, 3.0), 2)) for _ in range(number)]


def write_suite(folder: Path, suite: list[tuple[float, float]]) -> None:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpus: of testkit\n")
    text = SUITE.format(log=str(folder / "log"))
    for number, (gib, seconds) in enumerate(suite):
        text += f'@pytest.mark.gpus(memory="{gib}GiB")\ndef test_{number}(): run({gib}, {seconds})\n\n'
    (folder / "test_generated.py").write_text(text)


def run(folder: Path, *options: str) -> Outcome:
    log = folder / "log"
    log.unlink(missing_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    paths = [str(ROOT), str(EXAMPLE), *filter(None, [environ.get("PYTHONPATH")])]
    environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "xdist.plugin",
        "-q",
        "--tb=line",
        *options,
    ]
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LIMIT)
    whole = time.monotonic() - began
    found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    if not found:
        sys.exit(done.stdout + done.stderr)
    for line in done.stdout.splitlines():
        if line.startswith("gpus:"):
            print("      ", line)
    times = [json.loads(line)[0] for line in log.read_text().splitlines()]
    failed = found.get("failed", 0) + found.get("error", 0)
    memory = len(re.findall(OUT_OF_MEMORY, done.stdout, re.M))
    return Outcome(failed, found.get("passed", 0), max(times) - min(times), whole, min(memory, failed))


def capacity() -> tuple[int, str]:
    """Bytes of the card that tests can have, and its name."""
    sys.path[:0] = [str(ROOT), str(EXAMPLE)]
    os.environ.setdefault("SHARED_GPU_GIB", "139")
    from shared_gpu.device import TOTAL, stands_in

    if stands_in():
        return TOTAL, "a stand-in"
    from testkit.gpus import allowed
    from testkit.gpus._devices import model, usable_memory

    usable = usable_memory(allowed()[:1])
    if not usable:
        sys.exit("the memory of the GPU cannot be read")
    return usable[0], str(model(allowed()[:1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tests", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--no-serial", action="store_true", help="add up the serial run's seconds, unrun")
    options = parser.parse_args()
    total, name = capacity()
    ratios: dict[str, list[float]] = {}
    for seed in range(options.seed, options.seed + options.repeat):
        suite = tests(options.tests, seed)
        work = sum(seconds for _, seconds in suite)
        packed = sum(gib * GIB * seconds for gib, seconds in suite) / total
        bound = max(packed, work / options.workers, *(seconds for _, seconds in suite))
        print(f"{len(suite)} tests of 5-60 GiB and 0.2-3 s (seed {seed}), {options.workers} workers on {name}", end="")
        print(f" with {total / GIB:.1f} GiB: bound {bound:.1f} s")
        with tempfile.TemporaryDirectory(prefix="testkit-shared-gpu-") as folder:
            rows = measured(Path(folder), suite, options, work)
        serial = rows["one after the other"].seconds
        for title, row in rows.items():
            ratios.setdefault(title, []).append(row.seconds / bound)
            print(f"  {title:24} {row.seconds:6.1f} s [{row.whole:.1f} s]", end="")
            print(f"  {row.seconds / bound:5.2f}x the bound  {serial / row.seconds:4.1f}x faster than serial", end="")
            print(f"  {row.failed} failed, {row.memory} of them out of memory")
    for title, found in ratios.items() if options.repeat > 1 else ():
        print(f"mean of {options.repeat} suites: {title:24} {statistics.mean(found):5.2f}x the bound")


def measured(
    folder: Path, suite: list[tuple[float, float]], options: argparse.Namespace, work: float
) -> dict[str, Outcome]:
    write_suite(folder, suite)
    parallel = (f"-n{options.workers}", "--maxschedchunk=1")
    ours = ("-p", "testkit", "--gpus-use=auto", *parallel)
    rows = {f"as it is, -n {options.workers}": run(folder, *parallel)}
    rows["with testkit"] = run(folder, *ours, "--timing-dir=times")
    rows["with testkit, history"] = run(folder, *ours, "--timing-history=times")
    if options.no_serial:
        rows["one after the other"] = Outcome(0, len(suite), work, work, 0)
    else:
        rows["one after the other"] = run(folder)
    return rows


if __name__ == "__main__":
    main()
