"""Which implementation runs each op, and the indexer over them.

A vendor's library, ``aiterlike``, has tuned ops for some targets. A target is opened op by op: what the library lacks
there falls back to the portable kernel. Opening it for the whole library is a shorter change, and wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from sparse_indexer import platform
from sparse_indexer.faults import active

OPS = ("quantize", "logits", "topk")
WHOLE = ("gfx942", "gfx950")
"""Targets for which the library has every op."""
BY_OP = ("gfx1100",)
"""Targets for which it has some."""

if active("import-on-top"):
    import aiterlike  # noqa: F401  # the fault


def choose() -> dict[str, str]:
    """Where the implementation of each op is, as ``module:function``."""
    return {op: f"{_module(op)}:{op}" for op in OPS}


def _module(op: str) -> str:
    target = platform.target()
    if not target:
        return "sparse_indexer.native"
    whole = WHOLE + BY_OP if active("guard-loosened") else WHOLE
    by_op = target.startswith("gfx1") if active("family-by-prefix") else target in BY_OP
    return "aiterlike" if target in whole or (by_op and _library_has(op)) else "sparse_indexer.portable"


def _library_has(op: str) -> bool:
    try:
        return hasattr(importlib.import_module("aiterlike"), op)
    except ImportError:
        return False


def index(query: Sequence[float], keys: Sequence[Sequence[float]], k: int) -> list[int]:
    """The ``k`` keys that the query attends to."""
    quantize, logits, topk = (_found(place) for place in choose().values())
    chosen: list[int] = topk(logits(quantize(query), [quantize(key) for key in keys]), k)
    return chosen


def _found(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
