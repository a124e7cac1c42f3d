"""pytest's side of testkit.gpus: the marker ``gpus``.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import pytest

from testkit._marked import marked
from testkit.gpus._marker import shares

MARKER = "gpus"
MARKER_HELP = (
    f"{MARKER}(count=1, memory=None, exclusive=False): skip the test where fewer than count GPUs are allowed; with "
    "ranks, each rank sees count of its own. memory and exclusive are not available yet."
)
RANKS = "ranks"
PER_TEST = "testkit.gpus.per_test"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The per-test hook is for runs with a marker of ours in them."""
    manager = session.config.pluginmanager
    if not manager.has_plugin(PER_TEST) and marked(session.items, {MARKER}):
        manager.register(PerTest(), PER_TEST)


class PerTest:
    """Sees to the devices of marked tests. Registered as a plugin only when a marker was seen."""

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        mark = item.get_closest_marker(MARKER)
        # testkit.processes gives each rank its share
        if mark is not None and item.get_closest_marker(RANKS) is None:
            shares(mark, 1)
