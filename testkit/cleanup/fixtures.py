"""The fixture that asks for a clean-up by being imported."""

from __future__ import annotations

import pytest

from testkit.cleanup.plugin import CLEANER, module_of
from testkit.errors import CleanupError


@pytest.fixture(scope="module", autouse=True)
def module_cleanup(request: pytest.FixtureRequest) -> None:
    """Clean up each time the run leaves this module, instead of after each of its tests.

    Import it into a test module, or into a conftest for every module below it. It only announces the wish (so does its
    presence, should a fixture before it fail): the steps run later than any fixture could, when nothing holds the
    module's last objects any more.
    """
    cleaner = request.config.stash.get(CLEANER, None)
    if cleaner is None:
        error = CleanupError("module_cleanup needs its plugin", "imported fixture", "add -p testkit.cleanup.plugin")
        pytest.fail(str(error), pytrace=False)
    cleaner.schedule.wanted.add(module_of(request.node))
