"""Hear when torch gets imported while a region is open: a test may import it in its body, and its waits count too.

A finder before all others asks them for torch, and has the loader that they name call us when torch has run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from testkit._loaded import loaded

heard: list[Callable[[], None]] = []
"""Called when torch has been imported, on the thread that did it."""


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        for finder in [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _tell_after(spec)
                return spec
        return None


_FINDER: Any = _Finder()


def _tell_after(spec: ModuleSpec) -> None:
    loader: Any = spec.loader
    original = getattr(loader, "exec_module", None)
    if original is None or not hasattr(loader, "__dict__"):
        return  # a loader of another kind; the region finds at its end that torch came in unheard

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        original(module)
        # It has run to its end; what follows is the import system's own, which sets this once more.
        spec._initializing = False  # type: ignore[attr-defined]  # CPython's
        if _FINDER in sys.meta_path:
            for call in heard:
                call()

    loader.exec_module = exec_module


def watch() -> None:
    """The first region opens. Nothing to do where torch is there already."""
    if loaded("torch") is None and _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def unwatch() -> None:
    """The last region closes."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
