"""Geometry of the report's plots: what each worker did, where time concentrates, how a file went.

Widths are percent of the plot, or thousandths in paths, so that a plot fits any window while its text keeps its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from testkit.timing._facts import Facts
from testkit.timing._lanes import Lane, Span
from testkit.timing._rows import Row
from testkit.timing._trend import Series

WIDE = 1000
"""Units of a lane's width."""
HIGH = 24
"""Units of a lane's height: all of a worker's time is full height."""
MOST_COLUMNS = 16_000
"""Columns of all lanes together; a page with more of them would be large and show no more."""
MOST_LANES = 100
STACK = ("start", "collect", "test", "fixture", "step")
"""Kinds that are drawn, from the bottom up; what stays empty above them is idle."""

LABELLED = 1.5
"""Percent of the width from which a stretch of tests is drawn with its file's name."""

TREE = (1000.0, 420.0)
CELLS = 60
SHADES = 5


@dataclass(frozen=True, slots=True)
class Stretch:
    """A worker's consecutive tests of one file; of several (``file`` is "") where each is too short to see."""

    begin: float
    end: float
    file: str
    tests: int
    bad: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """One lane: a path for each kind of time, marks of failures, and its stretches."""

    lane: Lane
    paths: dict[str, str]
    bad: str
    on: float
    off: float
    """Percent of the width at which the worker began, and at which its run had ended."""
    stretches: list[Stretch]


@dataclass(frozen=True, slots=True)
class Cell:
    """A rectangle of the treemap, in percent; ``shade`` says from 0 how much of it was no body of a test."""

    name: str
    row: Row | None
    seconds: float
    x: float
    y: float
    width: float
    height: float
    shade: int


def timeline(facts: Facts) -> list[Drawn]:
    """Each lane from 0 to the end of the longest one; shards and attempts begin at 0 too."""
    lanes = facts.lanes[:MOST_LANES]
    if not lanes or not facts.elapsed:
        return []
    columns = max(100, min(WIDE, MOST_COLUMNS // len(lanes)))
    return [_drawn(lane, facts.elapsed, columns) for lane in lanes]


def ticks(seconds: float) -> list[tuple[float, str]]:
    """(percent, text) of at most eight round times from 0 to ``seconds``."""
    steps = [number * 10.0**power for power in range(-6, 1) for number in (1, 2, 5)]
    steps += [10, 15, 30, 60, 120, 300, 600, 900, 1800, *(3600.0 * number for number in (1, 2, 6, 12, 24))]
    while seconds / steps[-1] > 8:
        steps.append(steps[-1] * 2)
    step = next(step for step in steps if seconds / step <= 8)
    return [(100 * number * step / seconds, _clock(number * step, step)) for number in range(int(seconds / step) + 1)]


def _clock(seconds: float, step: float) -> str:
    if not seconds:
        return "0"
    if step < 1:
        return f"{seconds * 1000:g} ms" if step < 0.1 else f"{seconds:g} s"
    if step < 30:
        return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"
    if step < 1800:
        return f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"
    return f"{seconds // 3600:.0f}:{seconds % 3600 / 60:02.0f} h"


def _drawn(lane: Lane, elapsed: float, columns: int) -> Drawn:
    shares = {kind: [0.0] * columns for kind in STACK}
    for span in lane.spans:
        for column, seconds in _columns(span, elapsed, columns):
            shares[span.kind][column] += seconds
    wide = WIDE / columns
    paths, below = {}, [0] * columns
    for kind in STACK:
        full = elapsed / columns
        # Up to whole units, so that equal neighbours become one rectangle.
        tops = [min(HIGH, base + round(HIGH * share / full)) for base, share in zip(below, shares[kind], strict=True)]
        path = "".join(_rectangles(below, tops, wide))
        if path:
            paths[kind] = path
        below = tops
    failures = {int(columns * span.begin / elapsed) for span in lane.spans if span.bad}
    bad = "".join(f"M{_number(min(column, columns - 1) * wide)} 0h3v{HIGH}h-3z" for column in sorted(failures))
    on, off = (round(100 * seconds / elapsed, 2) for seconds in (lane.begin, lane.end))
    return Drawn(lane, paths, bad, on, off, _stretches(lane, elapsed))


def _columns(span: Span, elapsed: float, columns: int) -> Iterator[tuple[int, float]]:
    """The seconds of a span in each column that it touches."""
    first = max(0, min(columns - 1, int(columns * span.begin / elapsed)))
    last = max(first, min(columns - 1, int(columns * span.end / elapsed)))
    for column in range(first, last + 1):
        begin, end = column * elapsed / columns, (column + 1) * elapsed / columns
        seconds = min(end, span.end) - max(begin, span.begin)
        if seconds > 0:
            yield column, seconds


def _rectangles(bottoms: Sequence[int], tops: Sequence[int], wide: float) -> Iterator[str]:
    start = 0
    for column in range(1, len(tops) + 1):
        same = column < len(tops) and (bottoms[column], tops[column]) == (bottoms[start], tops[start])
        if not same:
            high = tops[start] - bottoms[start]
            if high:
                length = _number((column - start) * wide)
                yield f"M{_number(start * wide)} {HIGH - tops[start]}h{length}v{high}h-{length}z"
            start = column


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _stretches(lane: Lane, elapsed: float) -> list[Stretch]:
    """Tests of a file in a row; neighbours that are both too short to see are drawn as one."""
    found: list[Stretch] = []
    for span in lane.spans:
        if span.kind != "test":
            continue
        last, bad = found[-1] if found else None, int(span.bad and span.tests > 0)
        if last is not None and last.file == span.what:
            found[-1] = Stretch(last.begin, span.end, span.what, last.tests + span.tests, last.bad + bad)
        else:
            found.append(Stretch(span.begin, span.end, span.what, span.tests, bad))
    short = elapsed / WIDE
    merged: list[Stretch] = []
    for one in found:
        last = merged[-1] if merged else None
        if last is not None and last.end - last.begin < short and one.end - last.begin < 2 * short:
            tests, bad = last.tests + one.tests, last.bad + one.bad
            merged[-1] = Stretch(last.begin, one.end, "", tests, bad)
        else:
            merged.append(one)
    return merged


def treemap(rows: Sequence[Row]) -> list[Cell]:
    """Rectangles whose areas are the rows' seconds; what is too small for one of its own shares the last."""
    rows = [row for row in rows if row.seconds > 0]
    whole = sum(row.seconds for row in rows)
    large = [row for row in rows[:CELLS] if row.seconds >= whole / 500]
    left = rows[len(large) :]
    parts: list[tuple[str, Row | None, float, float]] = [
        (row.name, row, row.seconds, row.around / row.seconds) for row in large
    ]
    if left:
        seconds = sum(row.seconds for row in left)
        around = sum(row.around for row in left) / seconds
        parts.append((f"{len(left):,} more", None, seconds, around))
    boxes = _squarified([seconds for _, _, seconds, _ in parts], *TREE)
    found = []
    for (name, row, seconds, around), box in zip(parts, boxes, strict=True):
        x, y, width, height = (round(100 * value / TREE[axis % 2], 2) for axis, value in enumerate(box))
        found.append(Cell(name, row, seconds, x, y, width, height, min(SHADES - 1, int(SHADES * around))))
    return found


def _squarified(areas: Sequence[float], width: float, height: float) -> list[tuple[float, float, float, float]]:
    """(x, y, width, height) for each area, in order, as square as can be.

    Areas are laid in rows along the shorter side; one more joins a row while that makes its worst rectangle squarer
    (Bruls, Huizing and van Wijk, Squarified treemaps, 2000).
    """
    scale = width * height / sum(areas) if areas else 0.0
    left = [area * scale for area in areas]
    found: list[tuple[float, float, float, float]] = []
    x = y = 0.0
    while left:
        side = min(width, height)
        number, total = 1, left[0]
        while number < len(left) and _worst(left[: number + 1], side) <= _worst(left[:number], side):
            total += left[number]
            number += 1
        thick, at = total / side, 0.0
        for area in left[:number]:
            long = area / thick
            found.append((x, y + at, thick, long) if width >= height else (x + at, y, long, thick))
            at += long
        if width >= height:
            x, width = x + thick, max(width - thick, 1e-9)
        else:
            y, height = y + thick, max(height - thick, 1e-9)
        left = left[number:]
    return found


def _worst(row: Iterable[float], side: float) -> float:
    """How far from square the worst rectangle of a row is; 1 is square."""
    areas = list(row)
    thick = sum(areas) / side
    return max(max(thick * thick / area, area / (thick * thick)) for area in areas)


@dataclass(frozen=True, slots=True)
class Curve:
    """A series in a box of 300 by 96: a line through its runs, their points (x, y, seconds), and its band.

    The band is (y, height, y of the middle). ``low`` and ``high`` are the seconds at the bottom and the top: not from
    0, or noise could not be told from news.
    """

    series: Series
    line: str
    points: list[tuple[float, float, float]]
    band: tuple[float, float, float] | None
    low: float
    high: float


def curve(series: Series) -> Curve:
    """The last sixty runs, evenly spaced."""
    values = series.values[-60:]
    seconds = [value for value in values if value is not None] + list(series.band or ())
    middle = (max(seconds) + min(seconds)) / 2
    half = max(0.6 * (max(seconds) - min(seconds)), 0.1 * middle, 1e-6)
    low, high = max(0.0, middle - half), middle + half

    def height(value: float) -> float:
        return round(92 - 88 * (value - low) / (high - low), 1)

    across = 284 / max(1, len(values) - 1)
    points = [
        (round(8 + place * across, 1), height(value), value) for place, value in enumerate(values) if value is not None
    ]
    # A run without the file breaks nothing: the line goes on at the next one that has it.
    line = "M" + "L".join(f"{x} {y}" for x, y, _ in points)
    band = None
    if series.band:
        bottom, mid, top = map(height, series.band)
        band = (top, round(bottom - top, 1), mid)
    return Curve(series, line, points, band, low, high)
