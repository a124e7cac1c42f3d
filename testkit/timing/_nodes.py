"""pytest-xdist's workers, seen from the controller: when they started, what time it is there, what they collected.

The hooks are xdist's; ``Nodes`` is registered as a plugin where xdist is, so they need no marks of pytest's.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from testkit.timing._clock import Clock, offset_of
from testkit.timing._gather import Gatherer
from testkit.timing._record import said
from testkit.timing._run import Worker
from testkit.timing._wire import ON_THE_WIRE

EXCHANGES = 5
PATIENCE = 30
"""Seconds in which a worker must say what time it is."""

ASK_THE_TIME = f"""
import time
for _ in range({EXCHANGES}):
    channel.receive()
    channel.send(time.perf_counter())
"""


class Nodes:
    """``sharded``: workers leave out tests that run elsewhere, and say themselves what there was before."""

    def __init__(self, gatherer: Gatherer, name: Callable[[str], str], *, sharded: bool) -> None:
        self._gatherer = gatherer
        self._name = name
        self._sharded = sharded
        self._begin = gatherer.origin
        self._offsets: dict[str, float] = {}

    def pytest_xdist_setupnodes(self) -> None:
        self._begin = Clock.now()

    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """Ask now: from the start of pytest on, the worker's main thread has other things to do."""
        try:
            channel = gateway.remote_exec(ASK_THE_TIME)
            exchanges = []
            for _ in range(EXCHANGES):
                sent = Clock.now()
                channel.send(None)
                exchanges.append((sent, channel.receive(PATIENCE), Clock.now()))
            channel.waitclose(PATIENCE)
            self._offsets[gateway.id] = offset_of(exchanges)
        except Exception as error:  # noqa: BLE001 - execnet's, for a worker that is slow, lost or raises
            self._gatherer.note(gateway.id, f"clock of {gateway.id} not known: {said(error)}")

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[ON_THE_WIRE] = platform.node()
        name = node.gateway.id
        self._gatherer.worker(Worker(name, offset=self._offsets.get(name, 0.0), started=self._begin))
        self._begin = Clock.now()  # xdist starts one after the other

    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._gatherer.worker(Worker(node.gateway.id, ready=Clock.now()))
        self._gatherer.collected(map(self._name, ids), None, whole_follows=self._sharded)

    def pytest_testnodedown(self, node: Any) -> None:
        self._begin = Clock.now()  # of the one that takes its place, if it crashed
        # An interrupted worker goes down twice.
        if text := (getattr(node, "workeroutput", None) or {}).pop(ON_THE_WIRE, ""):
            self._gatherer.take_text(node.gateway.id, text)


def naming(config: Any) -> Callable[[str], str]:
    """What makes a test's name out of its node id: on workers of ``--dist loadgroup`` xdist adds the group."""
    grouped = config.getoption("loadgroup", False) or config.getoption("dist", "") == "loadgroup"
    return without_group if grouped else str


def without_group(nodeid: str) -> str:
    """``tests/test_a.py::test_x[a@b]@group`` without what follows the parameters; other ids as they are."""
    end = max(nodeid.rfind("]"), nodeid.rfind("::"))
    at = nodeid.find("@", end)
    return nodeid[:at] if 0 <= end < at else nodeid
