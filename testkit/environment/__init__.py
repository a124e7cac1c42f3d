"""What machine was this: a snapshot of it, what a test requires of it, and how two of them differ."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.environment._snapshot import snapshot as snapshot
    from testkit.environment._sources import Fact as Fact

_HOMES = {
    "Fact": "_sources",
    "snapshot": "_snapshot",
}

__all__ = ["Fact", "snapshot"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
