"""Which cases to run: covering arrays over parametrize axes, their proof, and what a run really covered."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.pairwise._decorator import parametrize as parametrize
    from testkit.pairwise._sample import Coverage as Coverage
    from testkit.pairwise._sample import Sample as Sample
    from testkit.pairwise._sample import coverage as coverage
    from testkit.pairwise._sample import sample as sample

_HOMES = {
    "Coverage": "_sample",
    "Sample": "_sample",
    "coverage": "_sample",
    "parametrize": "_decorator",
    "sample": "_sample",
}

__all__ = ["Coverage", "Sample", "coverage", "parametrize", "sample"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
