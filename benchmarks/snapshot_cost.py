"""Seconds that an environment snapshot takes: 100 ms are promised without accelerators, 1 s with some.

python benchmarks/snapshot_cost.py [--repeat 10]
"""

from __future__ import annotations

import argparse
import statistics
import time

from testkit.environment import snapshot
from testkit.environment._snapshot import take
from testkit.environment._sources import Sources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=10)
    repeat = parser.parse_args().repeat
    taken = []
    for _ in range(repeat):
        began = time.perf_counter()
        take(Sources())
        taken.append(time.perf_counter() - began)
    cards = snapshot()["gpus"].value or []
    print(
        f"{len(cards)} accelerators: median {1000 * statistics.median(taken):.0f} ms, most {1000 * max(taken):.0f} ms"
    )


if __name__ == "__main__":
    main()
