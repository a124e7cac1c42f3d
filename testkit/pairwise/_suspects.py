"""Which values the failing cases share: the smallest explanation of what failed that no passing case contradicts.

A *suspect* is a group of axes and one or more combinations of their levels: every case that holds one failed, as far as
cases ran. Of several explanations the shortest to write down comes first: a group of g axes out of k costs
``ln C(k, g)``, and naming n of its m combinations ``ln C(m, n)`` (minimum description length; J. Rissanen, Modeling by
shortest data description, Automatica 14, 1978). Several faults at once are a weighted set cover, chosen greedily.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations
from math import comb, lgamma, prod
from operator import or_

from testkit._text import counted

LARGEST_GROUP = 4
"""Combinations of more values than this are not looked for."""

GROUPS = 75_000
"""Groups of axes that are looked at; with more axes, only smaller groups are."""

MOST = 20
"""No more suspects than this are taken to explain what failed; the rest is left unexplained."""

TOLD = 3
"""So many suspects of each kind are printed, and the number of the others."""

VALUES = 8
"""So many values of one axis are printed, and the number of the others."""

Row = Sequence[int]
Cell = tuple[int, ...]


@dataclass(frozen=True)
class Suspect:
    """``cells`` (a level for each of ``axes``) that failing cases hold and no passing one; ``failing``: how many do."""

    axes: tuple[int, ...]
    cells: tuple[Cell, ...]
    failing: int
    cost: float

    def holds(self, row: Row) -> bool:
        return tuple([row[axis] for axis in self.axes]) in self.cells


@dataclass(frozen=True)
class Finding:
    """What is to be said of one function.

    ``passed`` and ``failed``: different cases of either kind. ``suspects`` explain the failures together, all but
    ``unexplained``; ``rivals`` are single combinations no larger than the only suspect that fit as well.
    """

    passed: int
    failed: int
    suspects: tuple[Suspect, ...]
    rivals: tuple[Suspect, ...]
    unexplained: int

    @cached_property
    def settled(self) -> bool:
        """Is there one explanation of all failures, and nothing as small beside it?"""
        return bool(self.suspects) and not self.rivals and not self.unexplained


def find_suspects(levels: Sequence[int], passed: Sequence[Row], failed: Sequence[Row]) -> Finding:
    """The suspects of one function, from complete cases as levels (``levels``: how many each axis has).

    A case that both passed and failed counts as failed. Without a passing case there is nothing to compare with, and
    no suspect.
    """
    failing = list(dict.fromkeys(map(tuple, failed)))
    passing = list(dict.fromkeys(row for row in map(tuple, passed) if row not in set(failing)))
    if not failing or not passing:
        return Finding(len(passing), len(failing), (), (), len(failing))
    shared = _shared(levels, passing, failing)
    cover, unexplained = _cover(levels, passing, failing)
    if shared and (unexplained or shared[0].cost <= sum(suspect.cost for suspect in cover)):
        cover, unexplained = [shared[0]], 0
    elif len(cover) == 1 and len(cover[0].cells) == 1:  # of three axes all are cheaper to name than two
        cover = [next((one for one in shared if set(one.axes) <= set(cover[0].axes)), cover[0])]
    rivals: list[Suspect] = []
    if len(cover) == 1 and not unexplained:
        most = len(cover[0].axes)
        rivals = [one for one in shared if len(one.axes) <= most and (one.axes, one.cells) != _key(cover[0])]
    return Finding(len(passing), len(failing), tuple(cover), tuple(rivals), unexplained)


def _key(suspect: Suspect) -> tuple[object, object]:
    return suspect.axes, suspect.cells


def group_sizes(axes: int, most: int = GROUPS) -> range:
    """How large groups of ``axes`` axes are looked at, from 1 up."""
    size, groups = 1, axes
    while size < min(LARGEST_GROUP, axes) and groups + comb(axes, size + 1) <= most:
        size += 1
        groups += comb(axes, size)
    return range(1, size + 1)


def _shared(levels: Sequence[int], passing: Sequence[Cell], failing: Sequence[Cell]) -> list[Suspect]:
    """The smallest combinations that all failing cases and no passing case hold, likeliest first."""
    first = failing[0]
    common = [axis for axis in range(len(levels)) if all(row[axis] == first[axis] for row in failing)]
    place = {axis: 1 << number for number, axis in enumerate(common)}
    agreements = {sum(place[axis] for axis in common if row[axis] == first[axis]) for row in passing}
    largest: list[int] = []
    for one in sorted(agreements, key=int.bit_count, reverse=True):
        if not any(one & other == one for other in largest):
            largest.append(one)
    found: list[Suspect] = []
    masks: list[int] = []
    for size in group_sizes(len(common)):
        smaller = tuple(masks)
        for axes in combinations(common, size):
            mask = sum([place[axis] for axis in axes])
            if all(mask & ~other for other in largest) and not any(mask & one == one for one in smaller):
                masks.append(mask)
                cells = (tuple([first[axis] for axis in axes]),)
                found.append(Suspect(axes, cells, len(failing), _cost(levels, axes, 1)))
    return sorted(found, key=lambda suspect: (len(suspect.axes), suspect.cost, suspect.axes))


def _cost(levels: Sequence[int], axes: Cell, cells: int) -> float:
    """Nats that it takes to name so many combinations of a group of axes."""
    all_cells = prod([levels[axis] for axis in axes])
    return _ln_comb(len(levels), len(axes)) + _ln_comb(all_cells, cells)


def _ln_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _cover(levels: Sequence[int], passing: Sequence[Cell], failing: Sequence[Cell]) -> tuple[list[Suspect], int]:
    """Suspects that explain all failing cases together, each taken for what it costs a case; and how many are left."""
    groups = [
        (axes, clean)
        for axes in _groups(levels, len(passing) + len(failing))
        if (clean := _clean_cells(axes, passing, failing))
    ]
    chosen: list[tuple[Cell, dict[Cell, int]]] = []
    everything = left = (1 << len(failing)) - 1
    while left and len(chosen) < MOST:
        best: tuple[float, int, Cell, dict[Cell, int]] | None = None
        for axes, clean in groups:
            for cells in _choices(clean, left):
                gain = sum([(bits & left).bit_count() for bits in cells.values()])
                price = (_cost(levels, axes, len(cells)) + 0.1) / gain
                if best is None or (price, len(axes)) < best[:2]:
                    best = (price, len(axes), axes, cells)
        if best is None:
            break
        chosen.append(best[2:])
        for bits in best[3].values():
            left &= ~bits
    for one in list(chosen):  # what came later may have made an earlier one superfluous
        others = [bits for other in chosen if other is not one for bits in other[1].values()]
        if not any(bits & ~_union(others) for bits in one[1].values()):
            chosen.remove(one)
    for whole in [(axes, clean) for axes, clean in groups if _union(clean.values()) == everything]:
        if left or _total(levels, [whole]) < _total(levels, chosen):
            chosen, left = [whole], 0
    suspects = [
        Suspect(axes, tuple(sorted(cells)), _union(cells.values()).bit_count(), _cost(levels, axes, len(cells)))
        for axes, cells in chosen
    ]
    return sorted(suspects, key=lambda suspect: (-suspect.failing, suspect.cost, suspect.axes)), left.bit_count()


def _total(levels: Sequence[int], chosen: Iterable[tuple[Cell, dict[Cell, int]]]) -> float:
    return sum([_cost(levels, axes, len(cells)) for axes, cells in chosen])


def _union(bitsets: Iterable[int]) -> int:
    return reduce(or_, bitsets, 0)


def _groups(levels: Sequence[int], rows: int) -> Iterator[Cell]:
    """Groups of axes of up to three; fewer where that would take too long for so many rows. Not axes of one value."""
    several = [axis for axis, n in enumerate(levels) if n > 1]
    for size in group_sizes(len(several), max(len(several), 20 * GROUPS // rows)):
        if size <= 3:
            yield from combinations(several, size)


def _clean_cells(axes: Cell, passing: Sequence[Cell], failing: Sequence[Cell]) -> dict[Cell, int]:
    """The combinations of these axes that failing cases hold and no passing one, each with the set of those cases."""
    cells: dict[Cell, int] = {}
    for number, row in enumerate(failing):
        cell = tuple([row[axis] for axis in axes])
        cells[cell] = cells.get(cell, 0) | 1 << number
    for row in passing:
        cells.pop(tuple([row[axis] for axis in axes]), None)
        if not cells:
            break
    return cells


def _choices(clean: dict[Cell, int], left: int) -> Iterator[dict[Cell, int]]:
    """The best combination alone, and all that explain something that is left."""
    useful = {cell: bits for cell, bits in clean.items() if bits & left}
    if useful:
        most = max(useful, key=lambda cell: ((useful[cell] & left).bit_count(), cell))
        yield {most: useful[most]}
        if len(useful) > 1:
            yield useful


# ---------------------------------------------------------------- words


def suspect_text(suspect: Suspect, axes: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """The suspect in words, a text for each block of combinations: ``k in (2880, 2888) and padded_a=True``."""
    texts = []
    for block in _blocks(suspect.cells):
        parts = []
        for axis, chosen in zip(suspect.axes, block, strict=True):
            name, words = axes[axis]
            values = [words[level] for level in chosen[:VALUES]]
            values += [f"{len(chosen) - VALUES:,} more"] if len(chosen) > VALUES else []
            parts.append(f"{name}={values[0]}" if len(values) == 1 else f"{name} in ({', '.join(values)})")
        texts.append(" and ".join(parts))
    return texts


def _blocks(cells: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    """The combinations as few products of levels: joined along one axis after another, whichever order joins most."""
    width = len(cells[0])
    best: list[tuple[Cell, ...]] = []
    for turn in range(width):
        blocks: set[tuple[Cell, ...]] = {tuple([(level,) for level in cell]) for cell in cells}
        for axis in [*range(turn, width), *range(turn)]:
            joined: dict[tuple[Cell, ...], list[int]] = {}
            for block in blocks:
                joined.setdefault((*block[:axis], *block[axis + 1 :]), []).extend(block[axis])
            blocks = {(*rest[:axis], tuple(sorted(own)), *rest[axis:]) for rest, own in joined.items()}
        if not best or len(blocks) < len(best):
            best = sorted(blocks)
    return best


def finding_lines(nodeid: str, axes: Sequence[tuple[str, Sequence[str]]], finding: Finding, extra: int) -> list[str]:
    """What the terminal shows of one function: counts and no more; nothing where nothing failed.

    ``extra``: how many of the cases ran only to tell suspects apart.
    """
    if not finding.failed:
        return []
    ran = finding.passed + finding.failed
    head = f"{nodeid}: {finding.failed:,} of {counted(ran, 'case')} failed"
    if not finding.passed:
        return [f"{nodeid}: all {counted(ran, 'case')} failed"] if ran > 1 else []
    head += f" ({ran - extra:,} chosen + {extra:,} to isolate)" if extra else ""
    if not finding.suspects:
        return [f"{head}; no value or small combination is theirs alone"]
    lines = [head]
    for suspect in finding.suspects[:TOLD]:
        texts = suspect_text(suspect, axes)
        told = ", or ".join(texts[:TOLD]) + (f", or {len(texts) - TOLD:,} more" if texts[TOLD:] else "")
        lines.append(
            f"  {suspect.failing:,} of {counted(finding.failed, 'failure')} {'has' if suspect.failing == 1 else 'have'}"
            f" {told}; 0 of {counted(finding.passed, 'passing case')} {'does' if finding.passed == 1 else 'do'}"
        )
    if finding.suspects[TOLD:]:
        lines.append(f"  {counted(len(finding.suspects) - TOLD, 'more combination')} for the other failures")
    if finding.unexplained:
        lines.append(f"  {counted(finding.unexplained, 'failure')} share every small combination with passing cases")
    for rival in finding.rivals[:TOLD]:
        lines.append(f"  just as well: {suspect_text(rival, axes)[0]}")
    if finding.rivals[TOLD:]:
        lines.append(f"  and {counted(len(finding.rivals) - TOLD, 'other combination')} no larger")
    return lines


def smallest_failing(finding: Finding, failed: Sequence[Row]) -> Row:
    """The failing case to look at first: of those that hold the first suspect the first in product order."""
    first = finding.suspects[:1]
    return min([row for row in failed if all(one.holds(row) for one in first)] or failed, key=tuple)
