"""A fixture that plants machines; the planted ones are in a module beside, which importlib mode does not find."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from planted_machines import image  # noqa: E402  # found through the path set above

from testkit.environment._sources import Sources  # noqa: E402  # after it, so that imports stay together

Plant = Callable[..., Sources]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Plant a machine, each time in a folder of its own; by default Ubuntu 22.04 in docker, without cards."""
    made: list[int] = []

    def plant(**changes: Any) -> Sources:
        made.append(1)
        return image(tmp_path / f"machine{len(made)}", **changes)

    return plant
