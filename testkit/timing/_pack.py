"""Packing rows of pieces into shards: whole rows first, rows that do not fit cut into contiguous runs.

A *row* is a module's pieces in order; a run of it costs its shard the run's seconds, and the set-up of the module
unless the shard pays that already. Among shards that have room, best-fit decreasing takes the fullest; what fits
nowhere is cut where the most room is, and the rest of it waits for its turn by size. The smallest length of a shard
for which that works is found by bisection, as in MultiFit (Coffman, Garey and Johnson, An application of bin-packing
to multiprocessor scheduling, SIAM J. Comput. 7, 1978). Everything is counted in whole microseconds, so that no sum
depends on its order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

Setups = Mapping[str, int]
"""Microseconds that a module's set-up costs each shard that touches it."""


@dataclass(slots=True)
class Row:
    """Pieces that stay in order; a run of them is ``sums[end] - sums[first]`` microseconds long."""

    modules: tuple[str, ...]
    """One, or several where one piece has tests of several modules."""
    setup: int
    """What all of these cost a shard that pays for none of them yet."""
    sums: list[int]
    apart: int = 0
    """How many tests of its one piece should not share a shard with others of their kind."""

    @property
    def pieces(self) -> int:
        return len(self.sums) - 1


class Run(NamedTuple):
    """Pieces ``first`` to ``end`` of a row."""

    row: int
    first: int
    end: int


@dataclass(slots=True)
class _Shards:
    """Shards in the making."""

    rows: Sequence[Row]
    setups: Setups
    runs: list[list[Run]]
    load: list[int]
    touched: list[set[str]]
    homes: dict[str, list[int]] = field(default_factory=dict)
    """The shards that pay a module's set-up already."""
    by_load: list[tuple[int, int]] = field(default_factory=list)
    """(load, -shard), in order."""

    @classmethod
    def empty(cls, rows: Sequence[Row], setups: Setups, count: int) -> _Shards:
        shards = cls(rows, setups, [[] for _ in range(count)], [0] * count, [set() for _ in range(count)])
        shards.by_load = [(0, -shard) for shard in reversed(range(count))]
        return shards

    def length(self, run: Run) -> int:
        sums = self.rows[run.row].sums
        return sums[run.end] - sums[run.first]

    def cost(self, shard: int, run: Run) -> int:
        touched = self.touched[shard]
        return self.length(run) + sum([self.setups[m] for m in self.rows[run.row].modules if m not in touched])

    def full(self, run: Run) -> int:
        """What a run costs a shard that pays none of its set-ups yet."""
        row = self.rows[run.row]
        return row.sums[run.end] - row.sums[run.first] + row.setup

    def put(self, shard: int, run: Run) -> None:
        del self.by_load[bisect_left(self.by_load, (self.load[shard], -shard))]
        self.load[shard] += self.cost(shard, run)
        insort(self.by_load, (self.load[shard], -shard))
        self.runs[shard].append(run)
        for module in self.rows[run.row].modules:
            if module not in self.touched[shard]:
                self.touched[shard].add(module)
                self.homes.setdefault(module, []).append(shard)

    def at_home(self, run: Run) -> list[int]:
        """The shards that pay a set-up of ``run`` already."""
        return [shard for module in self.rows[run.row].modules for shard in self.homes.get(module, ())]

    def where_it_fits(self, run: Run, cap: int, *, spread: bool) -> int | None:
        """A shard that pays the set-up already, else the fullest (or emptiest) that has room for all of ``run``."""
        fitting = [shard for shard in self.at_home(run) if self.load[shard] + self.cost(shard, run) <= cap]
        if fitting:
            return min(fitting, key=lambda shard: (self.load[shard] if spread else -self.load[shard], shard))
        room = cap - self.full(run)
        place = 0 if spread else bisect_right(self.by_load, (room, 1)) - 1
        load, shard = self.by_load[max(0, place)]
        return -shard if load <= room else None

    def part_that_fits(self, run: Run, cap: int) -> tuple[int, int] | None:
        """The shard with the most room for a beginning of ``run``, and where that beginning ends."""
        length, sums = self.length(run), self.rows[run.row].sums
        choice = (*self.at_home(run), self.emptiest)
        room, shard = max((cap - self.load[shard] - self.cost(shard, run) + length, -shard) for shard in choice)
        end = bisect_right(sums, sums[run.first] + room, run.first, run.end + 1) - 1
        return (-shard, end) if end > run.first else None

    @property
    def emptiest(self) -> int:
        return -self.by_load[0][1]


def bound(rows: Sequence[Row], setups: Setups, count: int) -> int:
    """Microseconds that no division among ``count`` shards can beat.

    If no shard takes longer than T, a module with W of tests and a set-up of s is touched by at least
    ceil(W / (T - s)) of them. T is too small while the tests and all those set-ups exceed ``count`` times T, or
    while one piece with its set-ups exceeds T.
    """
    work = {module: 0 for row in rows for module in row.modules}
    for row in rows:
        if len(row.modules) == 1:  # a piece of several modules may pay for each only once
            work[row.modules[0]] += row.sums[-1]
    total = sum(row.sums[-1] for row in rows) + sum(setups[module] for module in work)
    piece = max(longest(row) for row in rows)
    low, high = max(piece, -(-total // count)), max(piece, total)
    # Modules that fit into one shard at ``low`` owe no second set-up.
    large = [(spent, setups[m]) for m, spent in work.items() if setups[m] and spent + setups[m] > low]
    while low < high:
        middle = (low + high) // 2
        again = sum(setup * (-(-spent // (middle - setup)) - 1) for spent, setup in large if spent)
        if total + again <= count * middle:
            high = middle
        else:
            low = middle + 1
    return low


def longest(row: Row) -> int:
    """Microseconds of a row's longest piece with its set-ups."""
    return row.setup + max([end - first for first, end in pairwise(row.sums)])


def pack(rows: Sequence[Row], setups: Setups, count: int) -> list[list[Run]]:
    """The runs of each of ``count`` shards: every piece in exactly one; none empty if there are enough pieces.

    Where whole rows come out more than 1 % above the bound, rows are first cut around their longest pieces, and again
    around shorter ones: long pieces fill shards better when nothing hangs on them. Finer cuts must gain 0.5 %.
    """
    start = _Shards.empty(rows, setups, count)
    _keep_apart(start)
    floor = max(bound(rows, setups, count), max(start.load))
    runs = _stretches(rows, floor)
    best = _shortest(start, runs, floor)
    for part in (2, 4, 8, 16):
        if 100 * max(best.load) <= 101 * floor:
            break
        finer = _stretches(rows, floor // part)
        found = _shortest(start, finer, floor)
        if 1000 * max(found.load) < 995 * max(best.load):
            runs, best = finer, found
    # The same length, but always the emptiest shard: one long piece then leaves the others evenly filled.
    best = _fill(start, runs, max(best.load), spread=True) or best
    _fill_empty(best)
    return best.runs


def _stretches(rows: Sequence[Row], limit: int) -> list[Run]:
    """Each row as one run, or cut around its pieces longer than ``limit``."""
    runs = []
    for number, row in enumerate(rows):
        if not row.apart:
            long = [place for place, (first, end) in enumerate(pairwise(row.sums)) if end - first > limit]
            cuts = sorted({0, row.pieces, *long, *[place + 1 for place in long]})
            runs += [Run(number, first, end) for first, end in pairwise(cuts)]
    return runs


def _shortest(start: _Shards, runs: Sequence[Run], floor: int) -> _Shards:
    """The shortest shards, to about 1/400, that packing ``runs`` finds from ``floor`` on."""
    failed, cap, step = floor - 1, floor, 1 + floor // 400
    found = _fill(start, runs, cap, spread=False)
    while found is None:  # at the length of everything together it works
        failed, cap, step = cap, cap + step, 2 * step
        found = _fill(start, runs, cap, spread=False)
    while cap - failed > 1 + floor // 400:
        middle = (cap + failed) // 2
        better = _fill(start, runs, middle, spread=False)
        if better is None:
            failed = middle
        else:
            found, cap = better, middle
    return found


def _keep_apart(shards: _Shards) -> None:
    """Deal the pieces that should be apart, longest first, where they cost least; no shard gets more than its share.

    What a piece costs includes the set-ups that the shard does not pay yet, so modules stay together where they can.
    """
    apart = [0] * len(shards.load)
    marked = [number for number, row in enumerate(shards.rows) if row.apart]
    share = -(-sum(shards.rows[number].apart for number in marked) // len(apart))
    for number in sorted(marked, key=lambda n: (-shards.rows[n].sums[-1], n)):
        run, more = Run(number, 0, 1), shards.rows[number].apart
        free = [n for n, has in enumerate(apart) if has + more <= share]
        if free:
            shard = min(free, key=lambda n: (shards.load[n] + shards.cost(n, run), n))
        else:  # a unit larger than what is left anywhere
            shard = min(range(len(apart)), key=lambda n: (apart[n], n))
        apart[shard] += more
        shards.put(shard, run)


def _fill(start: _Shards, runs: Sequence[Run], cap: int, *, spread: bool) -> _Shards | None:
    """All ``runs`` in shards no longer than ``cap``; None where this way of packing finds no such shards."""
    shards = _Shards.empty(start.rows, start.setups, len(start.load))
    for shard, placed in enumerate(start.runs):
        for run in placed:
            shards.put(shard, run)
    # Longest first; the number of the row settles ties, so that nothing depends on an address or a hash.
    waiting = [(-shards.full(run), run) for run in runs]
    heapq.heapify(waiting)
    while waiting:
        _, run = heapq.heappop(waiting)
        home = shards.where_it_fits(run, cap, spread=spread)
        if home is not None:
            shards.put(home, run)
            continue
        part = shards.part_that_fits(run, cap)
        if part is None:
            return None
        shard, end = part
        shards.put(shard, Run(run.row, run.first, end))
        rest = Run(run.row, end, run.end)
        heapq.heappush(waiting, (-shards.full(rest), rest))
    return shards


def _fill_empty(shards: _Shards) -> None:
    """Give each empty shard half of a run of the longest shard that has more than one piece; no shard gets longer."""
    pieces = [sum(run.end - run.first for run in runs) for runs in shards.runs]
    for shard in [shard for shard, number in enumerate(pieces) if not number]:
        givers = [number for number, has in enumerate(pieces) if has > 1]
        if not givers:
            return
        giver = max(givers, key=lambda number: (shards.load[number], -number))
        runs = shards.runs[giver]
        run = max(runs, key=lambda run: (shards.length(run), run))
        runs.remove(run)
        if run.end - run.first > 1:
            sums = shards.rows[run.row].sums
            half = bisect_left(sums, (sums[run.first] + sums[run.end]) // 2, run.first + 1, run.end - 1)
            runs.append(Run(run.row, run.first, half))
            run = Run(run.row, half, run.end)
        _refresh(shards, giver)
        shards.put(shard, run)
        pieces[shard] = run.end - run.first
        pieces[giver] -= pieces[shard]


def _refresh(shards: _Shards, shard: int) -> None:
    """Count a shard anew after a run was taken from it."""
    runs, shards.runs[shard] = shards.runs[shard], []
    for module in shards.touched[shard]:
        shards.homes[module].remove(shard)
    shards.touched[shard] = set()
    del shards.by_load[bisect_left(shards.by_load, (shards.load[shard], -shard))]
    shards.load[shard] = 0
    insort(shards.by_load, (0, -shard))
    for run in runs:
        shards.put(shard, run)
