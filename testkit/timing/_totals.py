"""The three facts that a recorded run ends with in the terminal: tests, seconds, the largest waste."""

from __future__ import annotations

from collections import defaultdict

from testkit._text import counted
from testkit.timing._lanes import seconds_of
from testkit.timing._run import Collected, Fixture, Imported, Record, Timed
from testkit.timing._say import spent
from testkit.timing._write import Row

CLEANUP = "cleanup"
"""The kind of the records of clean-up."""

WORTH_SAYING = 0.01
"""Seconds below which no waste is named."""


class Totals:
    """Adds up rows as they are written. Seconds are of all workers together, except those of the run."""

    def __init__(self) -> None:
        self.tests = 0
        self.seconds = 0.0
        self.ready: dict[str, float] = {}
        self._wasted: dict[str, float] = defaultdict(float)
        self._ends: dict[str, float] = {}
        self._first = 0.0

    def add(self, row: Row) -> None:
        if isinstance(row, Timed):
            self.tests += "r" not in row.phases
            self._wasted["garbage collection"] += row.gc
            if row.jit is not None:
                self._wasted["compilation"] += row.jit.seconds
            self._begins(row.start)
            self._ends[row.worker] = max(self._ends.get(row.worker, 0.0), row.start + row.seconds)
        elif isinstance(row, Fixture):
            self._begins(row.start)
        elif isinstance(row, Collected):
            self._wasted["collection"] += row.seconds
        elif isinstance(row, Imported):
            self._wasted["imports"] += row.seconds
            self._wasted["collection"] -= row.seconds  # which holds them
        elif isinstance(row, Record) and row.kind == CLEANUP:
            self._wasted["clean-up"] += seconds_of(row)

    def _begins(self, start: float) -> None:
        self._first = min(self._first or start, start)

    def wasted(self) -> dict[str, float]:
        """Seconds in which no test ran, by what they went to."""
        found = dict(self._wasted)
        if len(self._ends) > 1:
            last = max(self._ends.values())
            found["idle at the end"] = sum(last - end for end in self._ends.values())
            waits = [max(0.0, self._first - ready) for ready in self.ready.values()]
            found["collection barrier"] = sum(waits)
        return found

    def line(self) -> str:
        """``1,234 tests in 83.0 s, largest waste: imports 12.0 s``."""
        text = f"{counted(self.tests, 'test')} in {spent(self.seconds)}"
        what, most = max(self.wasted().items(), key=lambda pair: pair[1], default=("", 0.0))
        if most < WORTH_SAYING:
            return text
        of = f" over {len(self._ends)} workers" if len(self._ends) > 1 else ""
        return f"{text}, largest waste: {what} {spent(most)}{of}"
