"""What the run around us decided for all ranks: the plugin sets it, and without pytest the defaults hold."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from testkit._loaded import loaded
from testkit.errors import KitWarning, ProcessesError

STARTS = ("spawn", "preload")
LEAKS = ("off", "warn", "fail")


@dataclass(frozen=True)
class Settings:
    """``leaks``: what follows when a test that passed leaves something; ``preload``: modules for start="preload"."""

    leaks: str = "warn"
    preload: tuple[str, ...] = ()


current = Settings()


def tell(left: Sequence[str], where: str) -> None:
    """Warn of, or fail for, what ranks that passed have left; it is gone by now."""
    if not left or current.leaks == "off":
        return
    problem = f"left behind by ranks that passed: {'; '.join(left)}"
    if current.leaks == "fail":
        raise ProcessesError(problem, where or "--ranks-leaks=fail", "end it in the test, or use --ranks-leaks=warn")
    warnings.warn(KitWarning(f"processes: {problem}"), stacklevel=5)


def end(before: Settings) -> None:
    """The run is over: what was set before it holds again, and the helper of start="preload" ends."""
    global current
    current = before
    if preload := loaded("testkit.processes._preload"):
        preload.close()
