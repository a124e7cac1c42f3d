"""What does an installed but unused testkit cost? CPU seconds of trivial tests, with it and with ``-p no:testkit``.

    python benchmarks/inert_overhead.py --tests 10000 --files 100 --pairs 7

The two runs alternate, and so does which of them is first, so that a machine that gets slower slows both alike.
Wanted: a median ratio of at most 1.03.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HEAVY = ("torch", "numpy", "allpairspy", "cloudpickle", "psutil")
WANTED = 1.03

# Also proves that the run with testkit really had it: the entry point's module is there.
WITNESS = f"""
import sys

def pytest_unconfigure(config):
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    print("WITNESS", config.pluginmanager.hasplugin("testkit"), *heavy)
"""


def write_suite(folder: Path, tests: int, files: int) -> None:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(WITNESS)
    for number in range(files):
        share = tests // files + (number < tests % files)
        text = "\n".join(f"def test_{i}():\n    assert True\n" for i in range(share))
        (folder / f"test_file_{number}.py").write_text(text)


def cpu_seconds(folder: Path, *arguments: str) -> tuple[float, str]:
    """User and system time of one run and of its children, and the witness's line."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    output = folder / "output.txt"
    with output.open("w") as file:
        run = subprocess.Popen(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    text = output.read_text()
    if run.returncode:
        sys.exit(f"pytest ended with {run.returncode}:\n{text[-2000:]}")
    witness = next(line for line in text.splitlines() if line.startswith("WITNESS"))
    return usage.ru_utime + usage.ru_stime, witness.removeprefix("WITNESS ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=7)
    wish = parser.parse_args()
    without, installed = [], []
    imported: set[str] = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_suite(folder, wish.tests, wish.files)
        cpu_seconds(folder)  # writes the byte code, warms the disk
        for pair in range(wish.pairs):
            for with_us in (False, True) if pair % 2 else (True, False):
                seconds, witness = cpu_seconds(folder, *([] if with_us else ["-p", "no:testkit"]))
                (installed if with_us else without).append(seconds)
                loaded, *heavy = witness.split()
                if loaded != str(with_us):
                    sys.exit("testkit is not installed in this environment, or could not be left out")
                imported |= set(heavy) if with_us else set()
    ratio = statistics.median(a / b for a, b in zip(installed, without, strict=True))
    print(f"{wish.tests:,} trivial tests in {wish.files} files, {wish.pairs} interleaved pairs, CPU seconds")
    for label, seconds in (("-p no:testkit", without), ("installed", installed)):
        print(f"  {label:<14} median {statistics.median(seconds):6.2f}  from {min(seconds):.2f} to {max(seconds):.2f}")
    print(f"  ratio          median {ratio:6.3f}  wanted <= {WANTED}")
    print(f"  heavy modules imported: {', '.join(sorted(imported)) or 'none'}")


if __name__ == "__main__":
    main()
