"""Which GPU a test may use: what the caller allowed, who gets which, and how full they are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.gpus._devices import allowed as allowed
    from testkit.gpus._devices import share as share
    from testkit.gpus._devices import total_memory as total_memory
    from testkit.gpus._devices import used_memory as used_memory
    from testkit.gpus._devices import visible as visible
    from testkit.gpus._marker import Gpu as Gpu
    from testkit.gpus._marker import hold as hold
    from testkit.gpus._marker import shares as shares

_HOMES = {
    "Gpu": "_marker",
    "allowed": "_devices",
    "hold": "_marker",
    "share": "_devices",
    "shares": "_marker",
    "total_memory": "_devices",
    "used_memory": "_devices",
    "visible": "_devices",
}

__all__ = ["Gpu", "allowed", "hold", "share", "shares", "total_memory", "used_memory", "visible"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
