"""Budgets: how long a test, a file and the whole run may take, and what is said when they take longer."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from testkit.errors import TimingError

UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}

_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)")


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds, or None. Of a test its set-up and call count; of a file those of its tests, and the set-up of the
    fixtures that they share; of the run the time on the wall."""

    test: float | None = None
    file: float | None = None
    run: float | None = None
    source: str = ""

    def over(self, what: str, kind: str, took: float) -> TimingError | None:
        """The complaint about ``what``, such as a test, if it took longer than ``kind`` of thing may."""
        limit: float | None = getattr(self, kind)
        if limit is None or took <= limit:
            return None
        fix = f"make it faster, or raise {kind}={shown(limit)}"
        return TimingError(f"{what} took {shown(took)}, its budget is {shown(limit)}", self.source, fix)


def parse_budget(raw: str | Sequence[str], source: str) -> Budget:
    """``test=30s file=5m run=20m``, in any order, separated by blanks, commas or lines."""
    words = (raw if isinstance(raw, str) else " ".join(raw)).replace(",", " ").split()
    limits: dict[str, float] = {}
    for word in words:
        kind, equals, time = word.partition("=")
        if kind not in ("test", "file", "run") or not equals:
            raise TimingError(f"budget {word!r} is not known", source, "write test=30s, file=5m or run=20m")
        if kind in limits:
            raise TimingError(f"the budget of a {kind} is given twice: {word!r}", source, "leave one out")
        limits[kind] = parse_seconds(time, source)
    if not limits:
        raise TimingError(f"no budget in {raw!r}", source, "write test=30s, file=5m or run=20m")
    return Budget(limits.get("test"), limits.get("file"), limits.get("run"), source)


def parse_seconds(raw: str, source: str) -> float:
    """``90``, ``1.5m``, ``300 ms`` or ``2h`` in seconds; more than nothing."""
    found = _TIME.fullmatch(raw.strip())
    seconds = float(found[1]) * UNITS.get(found[2], math.nan) if found else math.nan
    if not 0 < seconds < math.inf:
        raise TimingError(f"{raw!r} is no time", source, "give seconds above 0, or 300ms, 30s, 5m, 2h")
    return seconds


def shown(seconds: float) -> str:
    """``0.043 s``, ``30.004 s``, ``312.4 s``: never rounded to a limit that it is above."""
    digits = 3 if seconds < 100 else 1
    return f"{seconds:,.{digits}f}".rstrip("0").rstrip(".") + " s"
