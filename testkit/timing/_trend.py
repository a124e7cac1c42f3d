"""How the seconds of a file went over past runs, and which of them are more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from testkit._text import counted
from testkit.timing._merge import Inventory
from testkit.timing._rows import file_of
from testkit.timing._run import Run, joined

BEFORE = 14
"""Runs before the newest one that make the band."""

FEWEST = 3
"""With fewer of them there is no band."""

SIGMAS, SHARE = 4.0, 0.05
"""Half of the band: so many robust standard deviations, and at least this share of the middle."""

AUDIBLE = 0.05
"""Seconds below which a file says more about the clock than about the machine."""

NEWS = 5.0
"""Seconds beyond the middle from which a file above its band is news. On a recording of 82 days of 799 files this
and the band alarm twice a day; ``testkit timing compare`` has stricter gates, over several runs."""


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds of one file, the oldest run first and the reported one last; None where a run does not have it.

    ``band`` is (low, middle, high) of the runs before; None where they are too few.
    """

    name: str
    values: list[float | None]
    band: tuple[float, float, float] | None

    @property
    def last(self) -> float:
        return self.values[-1] or 0.0

    @property
    def beyond(self) -> float:
        """Seconds of the newest run above its band (or, negative, below it); 0 within."""
        if self.band is None:
            return 0.0
        low, _, high = self.band
        return max(0.0, self.last - high) + min(0.0, self.last - low)

    @property
    def slower(self) -> bool:
        """Above the band, and by enough seconds to look into."""
        return self.band is not None and self.beyond > 0 and self.last - self.band[1] >= NEWS


def band_of(values: Sequence[float]) -> tuple[float, float, float] | None:
    """The middle of the last values, and how far a value may be off by chance: 4 * 1.4826 * MAD, and at least 5 %.

    1.4826 times the median absolute deviation estimates the standard deviation of normal noise (Hampel, The influence
    curve and its role in robust estimation, JASA 69, 1974), and one stray run in seven does not move it.
    """
    values = values[-BEFORE:]
    if len(values) < FEWEST:
        return None
    middle = median(values)
    half = max(SIGMAS * 1.4826 * median([abs(value - middle) for value in values]), SHARE * middle)
    return max(0.0, middle - half), middle, middle + half


def trend(now: Sequence[Run], before: Sequence[Inventory]) -> list[Series]:
    """A series for each file of the reported run: what left its band most first, then the largest.

    Of the runs before, only whole ones count: a missing shard, or one that was interrupted, would look like a
    speed-up.
    """
    past = [file_seconds([*one.newest.values(), *one.older]) for one in before if not one.lacks]
    if not past:
        return []
    found = []
    for name, seconds in file_seconds(now).items():
        values = [run.get(name) for run in past]
        found.append(Series(name, [*values, seconds], band_of([value for value in values if value is not None])))
    return sorted(found, key=lambda series: (-max(0.0, series.beyond), -series.last, series.name))


def trend_notes(trends: Sequence[Series], before: int) -> list[str]:
    """On what the bands rest, and whether all files moved together."""
    if not before:
        return []
    bands = [series for series in trends if series.band is not None]
    found = [f"{counted(before, 'earlier run')} for comparison"]
    if not bands:
        found[0] += f", too few whole ones for a band: {FEWEST} are needed"
    ratios = [series.last / series.band[1] for series in bands if series.band and series.band[1] >= AUDIBLE]
    if ratios and not 0.9 < median(ratios) < 1.1:
        found.append(
            f"the middle file took {median(ratios):.2f} times its usual seconds: another machine, or a cause that all "
            "files share"
        )
    return found


def file_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """Seconds by file: the attempts that count, and the file's shared fixtures."""
    seconds: dict[str, float] = {}
    for nodeid, test in joined(runs).items():
        file = file_of(nodeid)
        seconds[file] = seconds.get(file, 0.0) + test.final.seconds
    for run in runs:
        for fixture in run.fixtures:
            file = file_of(fixture.node)
            if fixture.scope != "function" and file in seconds:
                seconds[file] += fixture.setup + fixture.teardown
    return seconds
