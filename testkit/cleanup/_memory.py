"""GPU memory that live tensors hold: when it asks for a clean-up, and what a module leaves of it.

Seen through the counters of torch's allocators, without a call to the driver: a test that leaks tensors raises exactly
this figure, while cached memory does not. What other libraries take from the driver is not in it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from testkit._loaded import loaded

MIB = 2**20
#: Above the workspaces that libraries allocate once and keep, such as cuBLAS' for each stream.
DEFAULT_LIMIT = 256 * MIB


def allocated() -> int | None:
    """Bytes of live tensors, over all devices that this process started; None if it started none. Imports nothing."""
    torch: Any = loaded("torch")
    if torch is None:
        return None
    total = None
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if device is not None and device.is_initialized():
            total = (total or 0) + sum(device.memory_allocated(index) for index in range(device.device_count()))
    return total


class Watch:
    """``limit``: bytes that ask for a clean-up, or None. ``leak_limit``: bytes that a module may leave, or None.

    What the last clean-up could not free, such as a model that a module shares, is not counted again.
    """

    def __init__(self, limit: int | None, leak_limit: int | None) -> None:
        self.limit = limit
        self.leak_limit = leak_limit
        self.gpu = False  # whether there was anything to look at
        self._floor = 0
        self._module: Hashable = None
        self._began = 0

    def full(self) -> bool:
        """Whether so much is allocated that a clean-up is due."""
        if self.limit is None:
            return False
        now = self._now()
        self._floor = min(self._floor, now)
        return now - self._floor >= self.limit

    def cleaned(self) -> None:
        """A clean-up is over."""
        if self.limit is not None:
            self._floor = self._now()

    def enter(self, module: Hashable) -> None:
        """A test of ``module`` begins."""
        if self.leak_limit is not None and module is not self._module:
            self._module = module
            self._began = self._now()

    def more(self) -> int:
        """Bytes that are allocated beyond what the module began with; 0 if they are within the limit."""
        if self.leak_limit is None or self._module is None:
            return 0
        left = self._now() - self._began
        return left if left > self.leak_limit else 0

    def leave(self) -> int:
        """What the module leaves after its clean-up, as ``more`` tells; its end."""
        left, self._module = self.more(), None
        return left

    def _now(self) -> int:
        now = allocated()
        self.gpu = self.gpu or now is not None
        return now or 0


def shown(size: int) -> str:
    """``300 MiB (314,572,800 bytes)``."""
    return f"{size / MIB:,.0f} MiB ({size:,} bytes)"
