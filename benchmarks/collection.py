"""Collecting a thinned product against collecting its thinned cases alone, written out as one list.

    python benchmarks/collection.py [--repeat 7] [--full]

A product of 196,308 cases is thinned by the marker on stacked decorators and by ``testkit.pairwise.parametrize``; the
peer is pytest itself on the same cases as one ``parametrize`` list. Runs are interleaved; CPU seconds are user plus
system of the whole pytest process, read from the operating system when it is reaped.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from testkit.pairwise import sample

AXES = {
    "n": list(range(41)),
    "k": list(range(19)),
    "m": list(range(7)),
    "dtype": list(range(3)),
    "padded": [False, True],
    "bias": [False, True],
    "order": list(range(3)),
}
NAMES = ", ".join(AXES)
STACKED = "".join(f"@pytest.mark.parametrize({name!r}, {values!r})\n" for name, values in AXES.items())
ROWS = [tuple(row.values()) for row in sample(AXES).rows]

FILES = {
    "marker": f"import pytest\n\n@pytest.mark.pairwise\n{STACKED}def test_f({NAMES}): pass\n",
    "parametrize": f"from testkit.pairwise import parametrize\n\n@parametrize({AXES!r})\ndef test_f({NAMES}): pass\n",
    "list of cases": f"import pytest\n\n@pytest.mark.parametrize({NAMES!r}, {ROWS!r})\ndef test_f({NAMES}): pass\n",
}


def collect(file: Path, *arguments: str) -> tuple[float, int]:
    """CPU seconds of one ``--collect-only`` run, and how many cases it listed."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *arguments, str(file)]
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out, cwd=file.parent)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = status
        out.seek(0)
        cases = sum("::test_f[" in line for line in out)
    assert status == 0, f"{file.name} ended with status {status}"
    return usage.ru_utime + usage.ru_stime, cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--full", action="store_true", help="collect the full product once, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, f"test_{name.replace(' ', '_')}.py") for name in FILES}
        for name, file in files.items():
            file.write_text(FILES[name])
        seconds: dict[str, list[float]] = {name: [] for name in FILES}
        for _ in range(options.repeat):
            for name, file in files.items():
                spent, cases = collect(file)
                assert cases == len(ROWS), f"{name}: {cases} cases instead of {len(ROWS)}"
                seconds[name].append(spent)
        peer = statistics.median(seconds["list of cases"])
        print(f"{len(ROWS)} cases, median CPU seconds of {options.repeat} interleaved runs")
        for name, spent in seconds.items():
            median = statistics.median(spent)
            print(f"  {name:14} {median:6.3f} s  {median / peer:5.2f}x the list")
        if options.full:
            spent, cases = collect(files["marker"], "--no-pairwise")
            print(f"  full product   {spent:6.3f} s  {spent / peer:5.2f}x the list, {cases:,} cases")


if __name__ == "__main__":
    main()
