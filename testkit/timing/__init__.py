"""Where the time of a run went: run files, their proof, plans for shards."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.timing._plan import Plan as Plan
    from testkit.timing._plan import plan as plan
    from testkit.timing._read import read as read
    from testkit.timing._read import read_folder as read_folder
    from testkit.timing._run import Run as Run
    from testkit.timing._verify import Verified as Verified
    from testkit.timing._verify import verify as verify

_HOMES = {
    "Plan": "_plan",
    "Run": "_run",
    "Verified": "_verify",
    "plan": "_plan",
    "read": "_read",
    "read_folder": "_read",
    "verify": "_verify",
}

__all__ = ["Plan", "Run", "Verified", "plan", "read", "read_folder", "verify"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
