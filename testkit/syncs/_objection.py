"""What is said when the host waits where it must not."""

from __future__ import annotations

import linecache
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from testkit._evidence import Shown
from testkit._text import counted
from testkit.errors import SyncsError

if TYPE_CHECKING:
    from testkit.syncs._region import Found

SHOWN = 20
"""Places that are listed; a loop may hold thousands of waits."""


class HostWaits(Shown, SyncsError):
    """The host waited for the device. ``evidence`` has each wait of the region so far."""


def objection(found: Sequence[Found], at_most: int, where: str) -> HostWaits:
    """The error of a region that ``where`` opened and whose last wait is one more than ``at_most``."""
    from testkit.syncs._fixes import fix

    last = found[-1]
    if not at_most:
        return HostWaits(f"the host waits for the device: {told(last)}", where, fix(last.seen, last.place.outside))
    problem = f"the host waits for the device {len(found)} times, {at_most} allowed; last: {told(last)}"
    return HostWaits(problem, where, fix(last.seen, last.place.outside), listed(found))


def caught(found: Sequence[Found], at_most: int, where: str) -> HostWaits:
    """The error of a region that ends as if nothing had happened: an ``except`` inside has swallowed the first."""
    error = objection(found, at_most, where)
    return HostWaits(f"{error.problem}; something inside caught that error", where, error.fix, error.evidence)


def told(found: Found) -> str:
    """One wait in one line: "Tensor.to (pageable, 4096 bytes) at model.py:31 in step"; the source if it has no name."""
    from testkit.syncs._sites import short

    seen, place = found.seen, found.place
    path, _, line = place.outside.rpartition(":")
    text = linecache.getline(path, int(line)).strip() if seen.operator == "?" and line.isdigit() else ""
    size = "" if seen.bytes is None else f", {seen.bytes} bytes"
    what = f"{seen.operator} ({seen.kind}{size})" if seen.operator != "?" else f"'{text}'" if text else "a call"
    return f"{what} at {short(place.outside, os.getcwd())} in {place.function}"


def listed(found: Sequence[Found]) -> str:
    """One line for all waits that are told alike, and what to do about them; the same advice is given once."""
    from testkit.syncs._fixes import fix

    alike: dict[str, list[Found]] = {}
    for one in found:
        alike.setdefault(told(one) + ("" if one.allowed is None else f" (allowed: {one.allowed})"), []).append(one)
    lines, given = [], set()
    for text, group in list(alike.items())[:SHOWN]:
        lines.append(f"  {len(group):,} x {text}")
        advice = fix(group[0].seen, group[0].place.outside)
        if advice not in given:
            lines.append(f"      fix: {advice}")
        given.add(advice)
    rest = sum(map(len, list(alike.values())[SHOWN:]))
    return "\n".join(lines + ([f"  and {counted(rest, 'wait')} at other places"] if rest else []))
