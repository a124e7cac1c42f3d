"""The slowest tests first: under xdist's ``load``, in chunks of one, nobody waits at the end for a long test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def slowest_first(tests: Sequence[Mapping[str, Any]], spread: Mapping[str, float]) -> list[str]:
    """The ids of ``tests`` (mappings as ``plan`` takes them, in the order of collection) in the order to run.

    Tests of a module with shared fixtures stay together as they were collected, at the place of the slowest of them
    with the module's set-up: taken apart, each worker that comes back to the module would set it up again. ``spread``:
    modules that have parametrized ones.
    """
    blocks: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for test in tests:
        shared = test["setup"] or spread.get(test["module"])
        blocks.setdefault(("module", test["module"]) if shared else ("test", test["id"]), []).append(test)
    longest = sorted(blocks.values(), key=lambda block: -max(test["seconds"] + test["setup"] for test in block))
    return [test["id"] for block in longest for test in block]
