"""Examples are run as their owners run them: from their own folder, with no plugin but ours; nothing outlives a run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "testkit", "-q")
MARK = "TESTKIT_EXAMPLE_RUN"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_in() -> Iterator[Run]:
    """``run_in(folder, variable, *words, fault="")``: the suite of an example, with a planted fault in a variable."""
    word = uuid.uuid4().hex  # in the environment of each run

    def inner(folder: Path, variable: str, *words: str, fault: str = "") -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", variable: fault, MARK: word}
        command = [*PYTEST, *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)

    yield inner
    deadline = time.monotonic() + 5  # pytest's guardian may look around for two seconds longer
    while (left := carriers(word)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def carriers(word: str) -> list[psutil.Process]:
    running = (p for p in psutil.process_iter(["environ", "status"]) if p.info["status"] != psutil.STATUS_ZOMBIE)
    return [p for p in running if (p.info["environ"] or {}).get(MARK) == word]


@pytest.fixture
def run(request: pytest.FixtureRequest, run_in: Run) -> Run:
    """``run(*words, fault="")``: the suite of the module's EXAMPLE, with a planted fault in its VARIABLE."""
    return lambda *words, fault="": run_in(request.module.EXAMPLE, request.module.VARIABLE, *words, fault=fault)
