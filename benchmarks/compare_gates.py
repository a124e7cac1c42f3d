"""Gates of ``testkit.timing`` on daily recordings: alarms that nobody asked for, and planted slow-downs found.

    python benchmarks/compare_gates.py FOLDER [--planted 400]

FOLDER has JSON files with "days" and "series": for each file of a suite its seconds on each day, or null. Each day
is compared with the days before, as a nightly job would. An alarm counts on the day it begins. A planted slow-down
makes one row longer by the greater of half its median and 60 s from one day on; it is found if its alarm begins on
that day or the two after it. Without FOLDER the excerpt in the tests is used, which has a thirteenth of the rows.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testkit.timing._compare import Gate, Rows, compare, windows

EXCERPT = Path(__file__).resolve().parent.parent / "tests" / "data" / "timing"
FIRST = 12
"""Days that only serve as a base."""
GATES = {
    "default": Gate(),
    "single runs": Gate(head=1, above=1, base=1),
    "last run": Gate(head=1, above=1),
    "3 of 3 runs": Gate(above=3),
    "base of 14": Gate(base=14),
    "+30 s": Gate(seconds=30),
    "+60 s": Gate(seconds=60),
    "+20 %": Gate(relative=0.2),
    "share only": Gate(seconds=0),
    "seconds only": Gate(relative=0),
}


def recordings(folder: Path) -> list[dict[str, Any]]:
    read = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return [one for one in read if isinstance(one, dict) and {"days", "series"} <= one.keys()]


def alarmed(rows: Rows, gate: Gate) -> set[str]:
    return {change.name for change in compare(*windows(rows, gate), gate).slower}


def alarms(series: Sequence[Sequence[float | None]], gate: Gate) -> list[int]:
    """How many alarms began on each day."""
    began, before = [], set[str]()
    for day in range(FIRST, len(series[0])):
        now = alarmed({str(n): row[: day + 1] for n, row in enumerate(series)}, gate)
        began.append(len(now - before))
        before = now
    return began


def share_found(series: Sequence[Sequence[float | None]], gate: Gate, planted: int) -> float:
    """The share of planted slow-downs that are found within three runs."""
    chance, found, tried = random.Random(1), 0, 0
    while tried < planted:
        row, day = chance.choice(series), chance.randrange(FIRST, len(series[0]) - 3)
        known = [x for x in row[:day] if x is not None]
        if row[day] is None or len(known) < 10 or alarmed({"row": row[:day]}, gate):
            continue
        tried += 1
        more = max(60.0, 0.5 * statistics.median(known[-7:]))
        slow = [*row[:day], *[None if x is None else x + more for x in row[day : day + 3]]]
        found += any(alarmed({"row": slow[:end]}, gate) for end in range(day + 1, day + 4))
    return found / planted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=EXCERPT)
    parser.add_argument("--planted", type=int, default=400)
    arguments = parser.parse_args()
    found = recordings(arguments.folder)
    if not found:
        parser.error(f"{arguments.folder} has no recording: JSON files with days and series")
    for recording in found:
        series = recording["series"]
        print(f"{recording['name']}: {len(series)} rows, {len(series[0])} days, {arguments.planted} planted slow-downs")
        print(f"  {'gate':14}{'alarms a day':>14}{'worst day':>11}{'found':>8}")
        for name, gate in GATES.items():
            began = alarms(series, gate)
            share = share_found(series, gate, arguments.planted)
            print(f"  {name:14}{statistics.fmean(began):14.2f}{max(began):11}{share:8.0%}   {gate}")


if __name__ == "__main__":
    main()
