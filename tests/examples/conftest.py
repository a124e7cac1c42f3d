"""Examples are run as their owners run them: from their own folder, with no plugin but ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "testkit", "-q")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    """``run(*words, fault="")``: the suite of the module's EXAMPLE, with a planted fault in its VARIABLE."""
    folder, variable = request.module.EXAMPLE, request.module.VARIABLE

    def inner(*words: str, fault: str = "") -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", variable: fault}
        return subprocess.run(
            [*PYTEST, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )

    return inner
