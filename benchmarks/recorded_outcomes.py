"""What became of every case of another project's parametrized tests, as a small file: input of rotation.py.

    python benchmarks/recorded_outcomes.py FILE TEST_PATH ... [--package NAME]

Runs the tests with ``--runxfail``, so that a case its authors expect to fail is a failure like any other: a real one,
found by people. Kept are functions whose cases are a whole product of three axes or more, where some cases failed and
most did not. An axis is one call of ``parametrize`` or one parametrized fixture, known by the ids that pytest gave its
values; outcomes stand in product order: ``p`` passed, ``f`` failed (or could not be set up), ``s`` skipped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

import pytest

MOST_FAILING = 0.5
"""A function of which more cases fail than this part is broken whatever its values, and any case finds that."""


class Recorder:
    """The ids of each case's values by axis, and its outcome."""

    def __init__(self) -> None:
        self.cases: dict[str, dict[tuple[str, ...], str]] = {}
        self.nodes: dict[str, tuple[str, tuple[str, ...]]] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            callspec = getattr(item, "callspec", None)
            if callspec is not None:
                function, ids = item.nodeid.partition("[")[0], tuple(map(str, callspec._idlist))
                self.nodes[item.nodeid] = function, ids
                self.cases.setdefault(function, {})[ids] = "p"

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.nodeid in self.nodes and report.outcome != "passed":
            function, ids = self.nodes[report.nodeid]
            self.cases[function][ids] = report.outcome[0]

    def kept(self) -> dict[str, Any]:
        """Functions worth keeping: axes as lists of ids, outcomes as one text."""
        found = {}
        for function, cases in sorted(self.cases.items()):
            lengths = {len(ids) for ids in cases}
            if len(lengths) != 1:
                continue
            columns = [list(dict.fromkeys(column)) for column in zip(*cases, strict=True)]
            axes = [ids for ids in columns if len(ids) > 1]
            failed = sum(outcome == "f" for outcome in cases.values())
            skipped = sum(outcome == "s" for outcome in cases.values())
            whole = prod(map(len, columns)) == len(cases)
            if len(axes) >= 3 and whole and 0 < failed <= MOST_FAILING * (len(cases) - skipped):
                outcomes = "".join(cases[ids] for ids in itertools.product(*columns))
                found[function] = {"axes": axes, "outcomes": outcomes}
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--package", default="pandas", help="whose version is noted (default pandas)")
    wish = parser.parse_args()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    recorder = Recorder()
    code = pytest.main(["-q", "-p", "no:cacheprovider", "--runxfail", "--tb=no", *wish.paths], plugins=[recorder])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"pytest ended with {code}")
    kept = recorder.kept()
    origin = f"{wish.package} {version(wish.package)}, pytest {pytest.__version__}, Python {sys.version.split()[0]}"
    lines = [f" {json.dumps(function)}: {json.dumps(entry)}" for function, entry in kept.items()]
    wish.file.write_text(f'{{"origin": {json.dumps(origin)},\n"functions": {{\n' + ",\n".join(lines) + "\n}}\n")
    print(f"{len(kept)} functions of {len(recorder.cases)}, {len(recorder.nodes)} cases; {wish.file}")


if __name__ == "__main__":
    main()
