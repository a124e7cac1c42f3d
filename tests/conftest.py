"""What all tests share: inner pytest runs that see only the plugins they name, our public names, minutes per folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest

# Set by the user's shell, or for us by pytest-xdist; an inner run would obey them.
INFLUENCES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "CI")


@pytest.fixture(autouse=True)
def _inner_runs_name_their_plugins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "pytester" in request.fixturenames:
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        for name in INFLUENCES:
            monkeypatch.delenv(name, raising=False)


Names = dict[str, set[str]]

# Where pytest itself shows a plugin's names, and how a line with one looks.
SHOWN = {
    "options": ("--help", r" +(?:-\w, )?(--[\w-]+)"),
    "ini": ("--help", r"  (\w+) \([\w |']+\):"),
    "markers": ("--markers", r"@pytest\.mark\.(\w+)"),
    "fixtures": ("--fixtures", r"(\w+)(?: \[.*\])? -- "),
}


@pytest.fixture(scope="session")
def names_of_plugins(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Names]:
    """The options, ini keys, markers and fixtures that pytest shows only when the named plugins are loaded."""
    empty = tmp_path_factory.mktemp("empty")
    environment = {name: value for name, value in os.environ.items() if name not in INFLUENCES}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}

    def shown(*plugins: str) -> Names:
        loading = [word for plugin in plugins for word in ("-p", plugin)]
        pages = {}
        for page in {page for page, _ in SHOWN.values()}:
            command = [sys.executable, "-m", "pytest", *loading, page]
            done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, timeout=60)
            assert done.stdout, done.stderr
            pages[page] = done.stdout.splitlines()
        return {
            kind: {found[1] for line in pages[page] if (found := re.match(pattern, line))}
            for kind, (page, pattern) in SHOWN.items()
        }

    without = shown()
    return lambda *plugins: {kind: names - without[kind] for kind, names in shown(*plugins).items()}


@pytest.fixture(scope="session")
def our_names(names_of_plugins: Callable[..., Names]) -> Names:
    return names_of_plugins("testkit")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The budget of ``make test`` is counted per folder; under xdist these are the workers' minutes, added up."""
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration") and hasattr(report, "nodeid"):
                folder = "/".join(PurePosixPath(report.nodeid.split("::")[0]).parts[:2])
                folder = "tests" if folder.endswith(".py") else folder
                seconds[folder] += report.duration
                tests[folder] += getattr(report, "when", "") == "call"
    if os.environ.get("TESTKIT_NO_BROWSER") == "1":
        terminalreporter.line("no browser looked at the HTML report: TESTKIT_NO_BROWSER=1")
    if seconds:
        terminalreporter.section("minutes per folder")
        for folder, spent in seconds.most_common():
            terminalreporter.line(f"{spent / 60:6.2f} min  {tests[folder]:>6} tests  {folder}")
