"""Does the host wait for the device: a guard, a census with fixes, and a simulated device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.syncs._census import census as census
    from testkit.syncs._guard import allow as allow
    from testkit.syncs._guard import forbid as forbid
    from testkit.syncs._guard import sight as sight
    from testkit.syncs._simulated import simulated as simulated
    from testkit.syncs._to_device import to_device as to_device

_HOMES = {
    "allow": "_guard",
    "census": "_census",
    "forbid": "_guard",
    "sight": "_guard",
    "simulated": "_simulated",
    "to_device": "_to_device",
}

__all__ = ["allow", "census", "forbid", "sight", "simulated", "to_device"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
