"""A clock that tests cannot reach, spans of it that lie in each other, and how far the clock of another host is off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable


class Clock:
    """Seconds on a clock that never goes back, and since the epoch.

    Held by a class, not by names of this module: freezegun replaces every module's attribute that is such a function.
    Whoever reads the time often keeps ``Clock.now`` in an instance.
    """

    now: Callable[[], float] = staticmethod(time.perf_counter)
    epoch: Callable[[], float] = staticmethod(time.time)


class Nested:
    """Measures spans of which some lie in others; a span's own time is what those leave of it."""

    def __init__(self) -> None:
        self._now = Clock.now
        self._open: list[list[float]] = []

    def enter(self) -> int:
        """Begin a span. The number is for ``leave``."""
        self._open.append([self._now(), 0.0])
        return len(self._open) - 1

    def leave(self, depth: int) -> tuple[float, float]:
        """End that span, and those in it that nobody ended; returns its begin and its own seconds."""
        end = self._now()
        if depth >= len(self._open):
            return end, 0.0  # one that held it was ended before
        begin, inner = self._open[depth]
        del self._open[depth:]
        if self._open:
            self._open[-1][1] += end - begin
        return begin, end - begin - inner


def offset_of(exchanges: Iterable[tuple[float, float, float]]) -> float:
    """Seconds to add to another process's clock to get ours, from (we sent, it read its clock, we received).

    It read its clock between our two times, so each exchange bounds the offset from below and above, and all together
    more closely; the middle is at most half the shortest round trip off. 0 where the bounds allow it: the processes
    of one machine share their clock.
    """
    bounds = [(sent - theirs, received - theirs) for sent, theirs, received in exchanges]
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    return 0.0 if low <= 0 <= high else (low + high) / 2
