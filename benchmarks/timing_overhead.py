"""What does recording cost? CPU seconds of trivial tests: alone, with our run file, and with what other plugins write.

    python benchmarks/timing_overhead.py --tests 10000 --files 20 --rounds 5 [--workers 2]

Each round runs every variant once, in turn, so that a machine that gets slower slows all alike; the best of all rounds
counts. CPU seconds are user plus system of pytest and its children. A plugin that is not installed is named and left
out. Wanted of ours: at most 1.10 times the run alone, 50 microseconds and 60 compressed bytes a test.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

RATIO, MICROSECONDS, BYTES = 1.10, 50, 60

# name -> (module of the plugin, or "" for pytest itself; its options; what it writes)
VARIANTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "alone": ("", (), ""),
    "testkit --timing-dir": ("testkit.timing.plugin", ("--timing-dir=out",), "out/*.timing.jsonl"),
    "--durations=25": ("", ("--durations=25",), ""),
    "pytest-split": ("pytest_split.plugin", ("--store-durations", "--durations-path=out.json"), "out.json"),
    "pytest-reportlog": ("pytest_reportlog.plugin", ("--report-log=out.jsonl",), "out.jsonl"),
    "pytest-json-report": (
        "pytest_jsonreport.plugin",
        ("-p", "pytest_metadata.plugin", "--json-report", "--json-report-file=out.json"),
        "out.json",
    ),
}
OURS = "testkit --timing-dir"


def write_suite(folder: Path, tests: int, files: int) -> None:
    (folder / "pytest.ini").write_text("[pytest]\n")
    for number in range(files):
        share = tests // files + (number < tests % files)
        text = "\n".join(f"def test_{i}():\n    assert True\n" for i in range(share))
        (folder / f"test_file_{number}.py").write_text(text)


def installed(module: str) -> bool:
    return not module or (find_spec(module.split(".")[0]) is not None and find_spec(module) is not None)


def run(folder: Path, name: str, workers: int) -> tuple[float, bytes]:
    """CPU seconds of one run, and what it wrote."""
    module, options, pattern = VARIANTS[name]
    for old in folder.glob(pattern) if pattern else ():
        old.unlink()
    plugins = [module] if module else []
    distributed = []
    if workers:
        plugins.append("xdist.plugin")
        distributed = ["-n", str(workers)]
    named = [word for plugin in plugins for word in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *named, *options, *distributed]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    text = folder / "output.txt"
    with text.open("w") as file:
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{name} ended with {child.returncode}:\n{text.read_text()[-2000:]}")
    written = b"".join(path.read_bytes() for path in sorted(folder.glob(pattern))) if pattern else b""
    if pattern and not written:
        sys.exit(f"{name} wrote nothing")
    return usage.ru_utime + usage.ru_stime, written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0, help="of pytest-xdist; 0 runs without it")
    wish = parser.parse_args()
    chosen = [name for name, (module, _, _) in VARIANTS.items() if installed(module)]
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    written: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_suite(folder, wish.tests, wish.files)
        run(folder, "alone", wish.workers)  # writes the byte code, warms the disk
        for _ in range(wish.rounds):
            for name in chosen:
                spent, written[name] = run(folder, name, wish.workers)
                seconds[name].append(spent)
    alone = min(seconds["alone"])
    on = f" on {wish.workers} workers" if wish.workers else ""
    print(f"{wish.tests:,} trivial tests in {wish.files} files{on}, best of {wish.rounds} interleaved rounds")
    print(f"{'':22}  CPU s  ratio  us/test  bytes/test  compressed")
    for name in chosen:
        best, size = min(seconds[name]), len(written[name]) / wish.tests
        row = f"{name:22} {best:6.2f} {best / alone:6.3f}  {(best - alone) / wish.tests * 1e6:7.1f}"
        packed = len(gzip.compress(written[name])) / wish.tests
        print(f"{row}  {size:10.1f}  {packed:10.1f}" if written[name] else row)
    for name in VARIANTS.keys() - set(chosen):
        print(f"{name} is not installed, left out")
    print(f"wanted of {OURS}: ratio <= {RATIO:.2f}, us/test <= {MICROSECONDS}, compressed bytes/test <= {BYTES}")


if __name__ == "__main__":
    main()
