"""Ranks that do nothing, under ``run_ranks`` and as bare spawned processes; and stuck groups of growing size.

    python benchmarks/ranks.py [--repeat 5]

Groups of two ranks, interleaved; CPU seconds are those of the children and of this process, user plus system. A stuck
group has one rank that raises and others that ignore SIGTERM, with rungs of 1 s: its seconds must not grow with it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import statistics
import time
from collections.abc import Callable

from testkit.processes import RanksFailed, run_ranks

GROUPS = 10


def nothing() -> None:
    """The body of a rank that only starts and ends."""


def stuck(rank: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 1:
        raise ValueError("planted")
    time.sleep(60)


def ours() -> None:
    run_ranks(nothing, 2)


def bare() -> None:
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=os.getpid) for _ in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()


def cpu_of(call: Callable[[], None]) -> float:
    def spent() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    before = spent()
    for _ in range(GROUPS):
        call()
    return spent() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    ours()  # the guardian and the resource tracker start once
    pairs = [(cpu_of(ours), cpu_of(bare)) for _ in range(repeat)]
    ratio = statistics.median(mine / other for mine, other in pairs)
    print(f"{GROUPS} groups of 2 ranks, median CPU seconds of {repeat} interleaved runs")
    print(f"  run_ranks   {statistics.median(mine for mine, _ in pairs):.3f}  {ratio:.2f}x the bare processes")
    print(f"  bare spawn  {statistics.median(other for _, other in pairs):.3f}")
    for size in (2, 8):
        began, verdict = time.monotonic(), "no failure was seen"
        try:
            run_ranks(stuck, size, ladder=(1, 1, 1))
        except RanksFailed as failed:
            verdict = failed.problem
        print(f"  {size} ranks, stuck: {time.monotonic() - began:.1f} s, {verdict}")


if __name__ == "__main__":
    main()
