"""Three public suites as they are, with testkit recording, and in two recorded shards: same outcomes, and the cost.

    pip install . pandas joblib scikit-learn
    python benchmarks/suites.py [--rounds 2] [--suite pandas]

The tests are those inside the installed packages, no line edited. Each round runs every variant of every suite once, in
turn, so that a machine that gets slower slows all alike; the least of all rounds counts. CPU seconds are user plus
system of pytest and its children; the seconds of shards are added up, and so contain what every process pays again:
imports and collection. Ends with 1 if an outcome differs or ``testkit timing verify`` does not prove the shards whole.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from testkit._text import table

REPOSITORY = Path(__file__).resolve().parent.parent

SUITES: dict[str, tuple[str, str, tuple[str, ...]]] = {  # name -> distribution, folder in its package, paths
    "pandas": ("pandas", "pandas/tests/groupby", ("test_groupby.py", "methods")),
    "joblib": ("joblib", "joblib/test", ("test_hashing.py", "test_memory.py", "test_numpy_pickle.py")),
    "scikit-learn": ("scikit-learn", "sklearn/metrics/tests", ("test_common.py", "test_ranking.py")),
}
RECORD = ("--timing-dir={out}",)
VARIANTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "as it is": ((),),
    "recording": (RECORD,),
    "two shards": ((*RECORD, "--timing-shard=1/2"), (*RECORD, "--timing-shard=2/2")),
}

OUTCOMES = """
import pytest
def pytest_addoption(parser):
    parser.addoption("--outcomes")
@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.register(Writer(open(config.getoption("--outcomes"), "a", encoding="utf-8")))
class Writer:
    def __init__(self, file):
        self.file = file
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.file.write(f"{report.nodeid!r} {report.when} {report.outcome} {hasattr(report, 'wasxfail')}\\n")
    def pytest_unconfigure(self):
        self.file.close()
"""


@dataclass
class Ran:
    """One variant of one suite: seconds, and how often each line about a test was written."""

    wall: float
    cpu: float
    outcomes: Counter[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this one (repeatable)")
    wish = parser.parse_args()
    names = wish.suite or list(SUITES)
    done: dict[tuple[str, str], list[Ran]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "outcomes_to_file.py").write_text(OUTCOMES)
        for number in range(wish.rounds):
            for name in names:
                for variant in VARIANTS:
                    out = place / f"{name}-{variant}-{number}".replace(" ", "-")
                    done.setdefault((name, variant), []).append(run(name, variant, place, out))
    print(f"best of {wish.rounds} interleaved rounds, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    rows = [["", "tests", "", "wall s", "CPU s", "wall", "CPU", "outcomes that differ"]]
    differ = 0
    for name in names:
        plain = done[name, "as it is"]
        tests = sum(plain[0].outcomes.values())
        for variant in VARIANTS:
            runs = done[name, variant]
            other = sum(
                ((one.outcomes - plain[0].outcomes) + (plain[0].outcomes - one.outcomes)).total() for one in runs
            )
            differ += other
            wall, cpu = min(one.wall for one in runs), min(one.cpu for one in runs)
            of = [f"x {wall / min(one.wall for one in plain):.3f}", f"x {cpu / min(one.cpu for one in plain):.3f}"]
            title = f"{name} {version(SUITES[name][0])}" if variant == "as it is" else ""
            rows.append([title, str(tests) if title else "", variant, f"{wall:.1f}", f"{cpu:.1f}", *of, str(other)])
    print("\n".join(table(rows)))
    return 1 if differ else 0


def differing(plain: Counter[str], other: Counter[str]) -> int:
    """How many lines only one of the two has."""
    return ((plain - other) + (other - plain)).total()


def run(name: str, variant: str, place: Path, out: Path) -> Ran:
    """All processes of one variant, one after another."""
    _, folder, paths = SUITES[name]
    spec = find_spec(folder.split("/")[0])
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{name} is not installed: pip install {SUITES[name][0]}")
    where = Path(spec.submodule_search_locations[0]).parent / folder
    log = Path(f"{out}.outcomes")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TESTKIT_RUN_ID": out.name}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), str(place)])
    wall = cpu = 0.0
    for options in VARIANTS[variant]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outcomes_to_file"]
        command += ["-p", "no:randomly", f"--outcomes={log}", *(["-p", "testkit.timing.plugin"] if options else [])]
        command += [option.format(out=out) for option in options] + [str(where / path) for path in paths]
        with Path(f"{out}.txt").open("w") as text:
            begin = time.monotonic()
            child = subprocess.Popen(command, cwd=where, env=environment, stdout=text, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        wall += time.monotonic() - begin
        cpu += usage.ru_utime + usage.ru_stime
        if child.returncode not in (0, 1):
            sys.exit(f"{' '.join(command)}\nended with {child.returncode}:\n{Path(text.name).read_text()[-2000:]}")
    if len(VARIANTS[variant]) > 1:
        verify = [sys.executable, "-m", "testkit", "timing", "verify", str(out)]
        proof = subprocess.run(verify, env=environment, capture_output=True, text=True, check=False)
        if proof.returncode:
            sys.exit(f"{name}: the shards are not whole:\n{proof.stdout}{proof.stderr}")
    return Ran(wall, cpu, Counter(log.read_text().splitlines()))


if __name__ == "__main__":
    sys.exit(main())
