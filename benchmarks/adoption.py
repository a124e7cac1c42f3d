"""Collecting a suite as it is, without testkit, against collecting it thinned by ``--pairwise-over``, unedited.

    python benchmarks/adoption.py PATH [--over 200] [--repeat 3] [-- OPTIONS OF PYTEST]

Runs are interleaved and the best of each kind counts. Seconds are those of the whole pytest process: wall, and CPU
(user plus system, read from the operating system when it is reaped). Files that fail to import fail on both sides.
``testkit pairwise adopt PATH`` tells which products the cases come from.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

COLLECTED = re.compile(r"^(?:\d+/)?(\d+) tests? collected", re.MULTILINE)


def collect(arguments: list[str]) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and cases of one ``--collect-only`` run."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *arguments]
    with tempfile.TemporaryFile("w+") as out:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said = out.read()
    found = COLLECTED.search(said)
    if child.returncode not in (0, 2) or found is None:  # 2: some files failed to import
        sys.exit(f"{' '.join(command)}\nended with {child.returncode}:\n{said[-2000:]}")
    return wall, usage.ru_utime + usage.ru_stime, int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="+", metavar="PATH", help="files or folders, and after -- options of pytest")
    parser.add_argument("--over", type=int, default=200, metavar="N", help="thin products of more cases")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:at])
    suite = [*options.path, *sys.argv[at + 1 :]]
    kinds = {
        "as it is, without testkit": ["-p", "no:testkit", *suite],
        f"thinned over {options.over}": ["-p", "testkit.pairwise.plugin", f"--pairwise-over={options.over}", *suite],
    }
    runs: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in kinds}
    for _ in range(options.repeat):
        for kind, arguments in kinds.items():
            runs[kind].append(collect(arguments))
    print(f"collection, best of {options.repeat} interleaved runs")
    first = next(iter(runs.values()))
    for kind, seen in runs.items():
        wall, cpu = min(one[0] for one in seen), min(one[1] for one in seen)
        share = cpu / min(one[1] for one in first)
        print(f"  {kind:26} {seen[0][2]:8,} cases  {wall:6.2f} s wall  {cpu:6.2f} s CPU  {share:5.2f}x")


if __name__ == "__main__":
    main()
