"""What runs beside the tests, and how it ends: ranks, servers, and the ladder that ends processes of any kind."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.processes._ladder import Ended as Ended
    from testkit.processes._ladder import stop as stop
    from testkit.processes._output import ServerError as ServerError
    from testkit.processes._port import Answer as Answer
    from testkit.processes._ranks import run_ranks as run_ranks
    from testkit.processes._server import Server as Server
    from testkit.processes._verdict import RanksFailed as RanksFailed

_HOMES = {
    "Answer": "_port",
    "Ended": "_ladder",
    "RanksFailed": "_verdict",
    "Server": "_server",
    "ServerError": "_output",
    "run_ranks": "_ranks",
    "stop": "_ladder",
}

__all__ = ["Answer", "Ended", "RanksFailed", "Server", "ServerError", "run_ranks", "stop"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
