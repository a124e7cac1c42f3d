"""When global state is torn down: once a test, a module or a session.

``from testkit.cleanup import module_cleanup`` in a test module or conftest asks for one clean-up whenever the
run leaves such a module; ``cleanup_now()`` runs the steps at once. Importing this imports no pytest and no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.cleanup._now import cleanup_now
    from testkit.cleanup.fixtures import module_cleanup

__all__ = ["cleanup_now", "module_cleanup"]

_HOMES = {"cleanup_now": "testkit.cleanup._now", "module_cleanup": "testkit.cleanup.fixtures"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
