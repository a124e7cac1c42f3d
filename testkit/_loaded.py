"""Look at heavy libraries only when somebody else has imported them."""

from __future__ import annotations

import sys
from types import ModuleType


def loaded(name: str) -> ModuleType | None:
    """The module ``name`` if this process has finished importing it, else None. Imports nothing."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if module is None or getattr(spec, "_initializing", False) else module
