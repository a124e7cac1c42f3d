"""Whether a marker stands anywhere in a collected run: hooks once a test are only for runs that have one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any


def marked(items: Iterable[Any], names: Collection[str]) -> bool:
    """Whether one of these markers is on an item or above; pytest, asked item by item, would look at modules again."""
    seen: set[object] = set()
    for item in items:
        node = item
        while node is not None and node not in seen:
            if any(mark.name in names for mark in node.own_markers):
                return True
            seen.add(node)
            node = node.parent
    return False
