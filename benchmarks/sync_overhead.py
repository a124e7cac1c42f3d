"""What do testkit.syncs' ``allow`` and ``forbid`` cost where they are off? Ratios from one run.

    python benchmarks/sync_overhead.py --rounds 15

``with allow("why")`` against a bare ``with`` on a shared ``contextlib.nullcontext``, a decorated function against the
bare one: decorated and switched off later, and decorated under TESTKIT_SYNCS=off. The variants alternate, so that a
machine that gets slower slows all alike. ``--torch`` imports torch and its compiler first; then each ``allow`` makes a
new object, since the compiler enters none that was made outside of what it compiles. What an open region costs is
printed without a limit.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

CALLS = 100_000
WANTED = {"with allow(...)": 1.6, "decorated": 5.0}
NOTHING = contextlib.nullcontext()


def variants() -> dict[str, Callable[[], None]]:
    """By name, each doing its thing ``CALLS`` times."""
    from testkit.syncs import allow, forbid
    from testkit.syncs._switch import switch

    def bare() -> None:
        pass

    decorated = forbid()(bare)
    switch(on=False)

    def with_bare() -> None:
        for _ in range(CALLS):
            with NOTHING:
                pass

    def with_allow() -> None:
        for _ in range(CALLS):
            with allow("why"):
                pass

    def call_bare() -> None:
        for _ in range(CALLS):
            bare()

    def call_decorated() -> None:
        for _ in range(CALLS):
            decorated()

    return {
        "bare with": with_bare,
        "with allow(...)": with_allow,
        "bare call": call_bare,
        "decorated": call_decorated,
    }


def nanoseconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) / CALLS * 1e9


def region_cost() -> tuple[float, float]:
    """Nanoseconds of an entry and exit of ``forbid()`` and, inside one, of ``allow``."""
    from testkit.syncs import allow, forbid
    from testkit.syncs._switch import switch

    switch(on=True)
    rounds = 500
    with forbid():
        start = time.perf_counter()
        for _ in range(rounds):
            with allow("why"):
                pass
        inside = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(rounds):
        with forbid():
            pass
    return (time.perf_counter() - start) / rounds * 1e9, inside / rounds * 1e9


def untouched() -> bool:
    """Whether a decorator returns the function itself where the environment says off at import."""
    code = "from testkit.syncs import allow, forbid\ndef f(): pass\nprint(forbid()(f) is f and allow('x')(f) is f)"
    environment = {**os.environ, "TESTKIT_SYNCS": "off"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--torch", action="store_true")
    wish = parser.parse_args()
    if wish.torch:
        importlib.import_module("torch._dynamo")
    every = variants()
    spent: dict[str, list[float]] = {name: [] for name in every}
    for number in range(wish.rounds):
        for name in every if number % 2 else reversed(every):
            spent[name].append(nanoseconds(every[name]))
    print(
        f"{CALLS:,} calls, {wish.rounds} rounds, off; torch {'imported' if 'torch' in sys.modules else 'not imported'}"
    )
    for name, figures in spent.items():
        print(
            f"  {name:<16} median {statistics.median(figures):7.1f} ns  from {min(figures):.1f} to {max(figures):.1f}"
        )
    for base, name in (("bare with", "with allow(...)"), ("bare call", "decorated")):
        ratio = statistics.median(a / b for a, b in zip(spent[name], spent[base], strict=True))
        print(f"  {name:<16} {ratio:5.2f} times {base:<10} wanted <= {WANTED[name]}")
    print(f"  under TESTKIT_SYNCS=off a decorator returns the function untouched: {untouched()}")
    entered, inside = region_cost()
    print(f"  on: forbid() {entered / 1000:.1f} us, allow() inside it {inside / 1000:.1f} us an entry")


if __name__ == "__main__":
    main()
