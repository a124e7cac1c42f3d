"""In which order tests start where workers share GPUs: the longest first, so that cards are full until the end.

Every worker of pytest-xdist brings its tests into the same order, by the same seconds, which the controller sends:
xdist runs nothing where collections differ. Memory has no say in it. With the largest first, two of 60 GiB leave 19 GiB
of a card of 139 GiB idle while the small ones that fit there are still to come: 1.25 times the bound of 60 such tests
with 8 workers, and 1.11 times with the longest first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from testkit import _settings

SECONDS = "testkit_gpus_seconds"
"""Where the seconds of tests travel, by their ids, in ``workerinput``."""

DIST = "load"
"""xdist's mode that hands tests out in the order of collection as workers come free; no other does."""

SAID = "gpus: the longest tests start first, by the seconds of past runs"

OFTEN = {"function", "session"}
"""Scopes of fixtures that are not set up more often where the tests of a module are taken apart."""


def start_order(seconds: Sequence[float], together: Sequence[str], workers: int) -> list[int]:
    """The places of tests in the order in which xdist should hand them, one by one, to ``workers``.

    ``seconds`` and ``together`` are of the tests as collected. Those with the same text in ``together`` stay in that
    order, at the place of the longest of them; one with "" is on its own.
    """
    units: dict[str | int, list[int]] = {}
    for place, unit in enumerate(together):
        units.setdefault(unit or place, []).append(place)
    longest = sorted(units.values(), key=lambda unit: -max(seconds[place] for place in unit))
    return _dealt([place for unit in longest for place in unit], workers)


def _dealt(order: list[int], workers: int) -> list[int]:
    """``order`` for xdist, which begins with two tests for each worker, the first two for the first one.

    Left alone, the two longest would run one after the other: on recorded suites that took 1.5 times their bound, and
    dealt so 1.09 times.
    """
    if len(order) < 2 * workers:  # each gets one at a time, in turn
        return order
    first, second = order[:workers], order[workers : 2 * workers]
    pairs = zip(first, reversed(second), strict=True)
    return [place for pair in pairs for place in pair] + order[2 * workers :]


def order_items(items: list[Any], seconds: Mapping[str, float], workers: int) -> None:
    """Bring pytest's ``items`` into that order. Tests of unknown length are taken to be like the median.

    Those of a module that use a fixture of a module, class or package, or a session's with parameters, stay together:
    taken apart, workers would set it up again each time they come back.
    """
    usual = sorted(seconds.values())[len(seconds) // 2] if seconds else 0.0
    known = [seconds.get(item.nodeid, usual) for item in items]
    together = [item.nodeid.partition("::")[0] if _shares(item) else "" for item in items]
    items[:] = [items[place] for place in start_order(known, together, workers)]


def _shares(item: Any) -> bool:
    info = getattr(item, "_fixtureinfo", None)
    if info is None:  # another plugin's kind of test, of which nobody knows
        return True
    found = [definition for several in info.name2fixturedefs.values() for definition in several]
    return any(one.scope not in OFTEN or (one.scope == "session" and one.params) for one in found)


def send(config: Any, seconds: Mapping[str, float], *, memory: bool) -> list[str]:
    """On the controller: have every worker order its tests by ``seconds``. Returns what to say.

    Nothing follows without ``memory`` of tests in past runs, for then no card is shared out; where xdist does not go by
    the order; and where the user has asked for another one, or for larger chunks.
    """
    chunk = getattr(config.option, "maxschedchunk", None)
    others = any(config.getoption(name, False) for name in ("failedfirst", "newfirst"))
    others = others or _settings.resolve(config, "--timing-order", lambda raw, _: bool(raw), False).value
    if not (memory and seconds) or config.getoption("dist", "") != DIST or others or chunk not in (None, 1):
        return []
    config.option.maxschedchunk = 1  # larger ones give one worker all the longest
    config.pluginmanager.register(Sending(seconds))
    return [SAID]


class Sending:
    """Sends them to each worker, also to one elsewhere or one that replaces another. The hook is xdist's."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._text = json.dumps(dict(seconds))

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[SECONDS] = self._text


def order_on_worker(worker: Mapping[str, Any], items: list[Any]) -> None:
    """``order_items`` by what came in ``worker``, the ``workerinput`` of this process."""
    order_items(items, json.loads(worker[SECONDS]), worker["workercount"])
