"""vLLM's own Triton kernel tests, no line edited: as they are, and with testkit; kernel caches cold and warm.

    python benchmarks/vllm_kernels.py FOLDER [--workers 8] [--over 64] [FILE ...]

FOLDER holds vLLM 0.33.0's ``vllm/`` and ``tests/`` as docs/evidence.md says. Each FILE (by default the two below) runs
four ways, in this order: as it is with a cold cache, again with the same cache, with testkit and a cold cache of its
own, with testkit and the first cache. "test seconds" is the sum of set-up, call and tear-down of all tests, clean-up
included. Ends with 1 if a function that failed as it is does not fail with testkit. ``--gpus`` instead runs each FILE
as it is and with --gpus-use=auto, all its cases.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from testkit._text import table

FILES = ("tests/kernels/fla/test_fla_layernorm_guard.py", "tests/kernels/attention/test_triton_unified_attention.py")
CLEANED = re.compile(r"^cleanup: (.*)$", re.MULTILINE)
SECONDS = re.compile(r" in ([\d.]+) s\b")


@dataclass
class Ran:
    """One run of one file."""

    wall: float
    cpu: float
    cases: int = 0
    tests: float = 0.0
    failing: set[str] = field(default_factory=set)
    outcomes: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--over", type=int, default=64, help="thin functions of more cases than this")
    parser.add_argument(
        "--gpus", action="store_true", help="instead: nothing thinned, with --gpus-use=auto and without"
    )
    parser.add_argument("-k", default="", help="only tests that match, as pytest's -k")
    asked = parser.parse_args()
    if asked.gpus:
        return shared(asked)
    ours = ["-p", "testkit.pairwise.plugin", "-p", "testkit.cleanup.plugin"]
    ours += [f"--pairwise-over={asked.over}", "-o", "cleanup_wrap=cleanup_fixture"]
    lost = False
    for file in asked.files:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            runs = {
                "as it is, cold": run(asked, file, [], first),
                "as it is, warm": run(asked, file, [], first),
                "testkit, cold": run(asked, file, ours, second),
                "testkit, warm": run(asked, file, ours, first),
            }
        lost |= show(file, runs)
    return int(lost)


def shared(asked: argparse.Namespace) -> int:
    """What it costs that workers get their cards and memory from testkit.gpus; 1 if any outcome differs."""
    differs = False
    for file in asked.files:
        with tempfile.TemporaryDirectory() as cache:
            run(asked, file, [], cache)
            plain = run(asked, file, [], cache)
            ours = run(asked, file, ["-p", "testkit.gpus.plugin", "--gpus-use=auto"], cache)
        print(f"\n{file}, kernel cache warm, {asked.workers} workers")
        rows = [
            [way, ran.cases, f"{ran.tests:.1f}", f"{ran.wall:.1f}"] for way, ran in (("plain", plain), ("gpus", ours))
        ]
        print("\n".join(table([["", "cases", "test seconds", "wall s"], *rows])))
        differs |= plain.outcomes != ours.outcomes
        print(
            f"wall {ours.wall / plain.wall:.3f}x; outcomes {'DIFFER' if plain.outcomes != ours.outcomes else 'equal'}"
        )
        print("\n".join(f"  {note}" for note in [*plain.notes, *ours.notes]), flush=True)
    return int(differs)


def run(asked: argparse.Namespace, file: str, options: list[str], cache: str) -> Ran:
    path = os.pathsep.join([os.getcwd(), str(asked.folder), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "TRITON_CACHE_DIR": cache, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with tempfile.TemporaryDirectory() as place:
        xml = Path(place) / "junit.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-o",
            "addopts=",
            "-p",
            "no:cacheprovider",
            "-p",
            "xdist.plugin",
        ]
        command += ["-n", str(asked.workers), f"--junitxml={xml}", *options, file]
        command += ["-k", asked.k] if asked.k else []
        before, begin = os.times(), time.monotonic()
        done = subprocess.run(command, cwd=asked.folder, env=environ, capture_output=True, text=True, check=False)
        wall, after = time.monotonic() - begin, os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        ran = Ran(wall, spent)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        for case in ET.parse(xml).iter("testcase"):
            ran.cases += 1
            ran.tests += float(case.get("time", 0))
            error = case.find("error")
            if error is not None and error.get("message") == "collection failure":
                raise SystemExit(f"{file} cannot be collected:\n{error.text}")
            told = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            ran.outcomes[f"{case.get('classname')}::{case.get('name')}"] = " ".join(told) or "passed"
            if case.find("failure") is not None or error is not None:
                ran.failing.add(str(case.get("name")).split("[")[0])
    for line in CLEANED.findall(done.stdout):  # what runs after a module's last test is in no test's time
        ran.tests += sum(map(float, SECONDS.findall(line)))
    ran.notes = [
        line for line in done.stdout.splitlines() if line.startswith(("cleanup: ", "gpus: ")) or " owed " in line
    ]
    ran.notes += done.stdout.splitlines()[-1:]
    return ran


def show(file: str, runs: dict[str, Ran]) -> bool:
    """Print the four runs of ``file``; true if a failing function was lost."""
    full, thin = runs["as it is, warm"], runs["testkit, warm"]
    print(f"\n{file}")
    rows = [
        [way, str(ran.cases), f"{ran.tests:.1f}", f"{ran.wall:.1f}", f"{ran.cpu:.0f}", str(len(ran.failing))]
        for way, ran in runs.items()
    ]
    print("\n".join(table([["", "cases", "test seconds", "wall s", "CPU s", "failing functions"], *rows])))
    cold = runs["as it is, cold"].tests / runs["testkit, cold"].tests
    print(f"test seconds: {full.tests / thin.tests:.1f} times less, caches warm; {cold:.1f} times less, cold")
    lost = (full.failing | runs["as it is, cold"].failing) - thin.failing
    print(f"functions that fail: {sorted(full.failing) or 'none'}; lost by thinning: {sorted(lost) or 'none'}")
    for way, ran in runs.items():
        for note in ran.notes:
            print(f"  {way}: {note}")
    sys.stdout.flush()
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
