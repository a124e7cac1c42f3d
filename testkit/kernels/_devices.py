"""Is it the same device, however it is written?"""

from __future__ import annotations

import re
from typing import Any

from testkit._loaded import loaded
from testkit.errors import KernelsError

WRITTEN = re.compile(r"([a-z_]\w*)(?::(\d+))?", re.ASCII)
SINGLE = ("cpu", "meta", "mps")
"""Devices of which there is one: an index says nothing."""


def same_device(left: Any, right: Any) -> bool:
    """Do two devices mean the same one? Strings (``"cuda"``, ``"cuda:0"``), ``torch.device``, or what has ``.device``.

    ``"cuda"`` is the current device of this process; where torch has not initialised CUDA (or another accelerator)
    that is index 0, and it is not initialised to find out. cpu, meta and mps have no index. ``torch.device("cuda")``
    and ``torch.device("cuda:0")`` are different keys of a dictionary, so normalise before you store.
    Raises ``KernelsError`` for anything else, numbers included: 0 is no name of a device.
    """
    return _normal(left) == _normal(right)


def _normal(device: Any) -> tuple[str, int]:
    named = device if isinstance(device, str) else getattr(device, "device", device)
    if isinstance(named, (int, float)) or (written := WRITTEN.fullmatch(str(named))) is None:
        fix = 'give a string such as "cuda:0", a torch.device, or a tensor'
        raise KernelsError(f"{device!r} is no device", "argument of same_device", fix)
    kind, index = written[1], written[2]
    if kind in SINGLE:
        return kind, 0
    return kind, int(index) if index is not None else _current(kind)


def _current(kind: str) -> int:
    torch = loaded("torch")
    backend = getattr(torch, kind, None)
    initialized = getattr(backend, "is_initialized", None)
    return int(backend.current_device()) if initialized is not None and initialized() else 0  # type: ignore[union-attr]
