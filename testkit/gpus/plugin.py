"""pytest's side of testkit.gpus: the marker ``gpus``.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

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
    if not manager.has_plugin(PER_TEST) and _is_marked(session.items):
        manager.register(PerTest(), PER_TEST)


def _is_marked(items: Iterable[pytest.Item]) -> bool:
    """Whether a marker of ours is on an item or above. Asked item by item, pytest would look at each module again."""
    seen: set[object] = set()
    for item in items:
        node: pytest.Item | pytest.Collector | None = item
        while node is not None and node not in seen:
            if any(mark.name == MARKER for mark in node.own_markers):
                return True
            seen.add(node)
            node = node.parent
    return False


class PerTest:
    """Sees to the devices of marked tests. Registered as a plugin only when a marker was seen."""

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        mark = item.get_closest_marker(MARKER)
        # testkit.processes gives each rank its share
        if mark is not None and item.get_closest_marker(RANKS) is None:
            shares(mark, 1)
