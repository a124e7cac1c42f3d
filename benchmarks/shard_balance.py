"""The longest shard against what is possible: ours beside pytest-split's two algorithms, from one run.

    python benchmarks/shard_balance.py
    python benchmarks/shard_balance.py --stdin < request.json

Suites made here from fixed seeds, exact durations, without and with module set-ups that every shard which touches the
module pays. Each division is scored by the same few lines; the bound is the greater of an even share and the longest
test with its set-up, each set-up counted once. pytest-split knows no set-ups; its column is missing where it is not
installed. Then the same with estimates that are wrong or missing, under a memory limit, and the seconds of plans for
50,000 tests.

``--stdin`` is for other people's simulators: it reads {"shards": N, "tests": [{"id", "module", "est" (seconds or
null), "setup"}]} and prints {"shards": [[id, ...], ...]}. A test without an estimate borrows one.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from testkit.timing._estimate import Past, estimate
from testkit.timing._plan import plan

SHARDS = (4, 8, 16, 32, 64)
SETUPS = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5)
Tests = list[dict[str, Any]]
Division = list[list[str]]


# ------------------------------------------------------------------ suites


def made(seed: int, modules: int, tests: int, seconds: Callable[[random.Random, int, bool], float]) -> Tests:
    """``tests`` tests in modules of uneven size; ``seconds`` is told the module and whether the test is its first."""
    chance, seen = random.Random(seed), set[int]()
    homes = sorted(chance.choices(range(modules), [(k + 1) ** -0.7 for k in range(modules)], k=tests))
    found = []
    for number, home in enumerate(homes):
        length = max(1e-4, seconds(chance, home, home not in seen))
        seen.add(home)
        module = f"tests/test_{home:04}.py"
        found.append({"id": f"{module}::test[{number}]", "module": module, "seconds": length, "setup": 0.0})
    return found


def suites() -> dict[str, Tests]:
    return {
        "unit tests, few slow": made(11, 200, 8000, lambda r, m, first: r.lognormvariate(-3, 1.8)),
        "kernels, alike in a module": made(12, 50, 9000, lambda r, m, first: (m % 13 + 1) * r.uniform(0.05, 0.15)),
        "first test compiles": made(13, 120, 5000, lambda r, m, first: 45.0 if first else r.lognormvariate(-2, 1)),
        "a few end-to-end tests": made(
            14, 80, 3000, lambda r, m, first: r.uniform(60, 240) if r.random() < 0.02 else r.lognormvariate(-3, 1)
        ),
        "one giant test": made(15, 60, 2000, lambda r, m, first: 400.0 if m == 7 and first else r.expovariate(2)),
    }


def with_setups(tests: Tests, share: float) -> Tests:
    """Set-ups that take ``share`` of the seconds of all tests together, unevenly over the modules."""
    chance = random.Random(16)
    weights = {module: chance.lognormvariate(0, 1) for module in sorted({test["module"] for test in tests})}
    scale = share * sum(test["seconds"] for test in tests) / sum(weights.values())
    return [{**test, "setup": weights[test["module"]] * scale} for test in tests]


# ------------------------------------------------------------------ dividers and their score


def ours(tests: Tests, shards: int) -> Division:
    known = {test["id"]: test["seconds"] for test in tests}
    if None in known.values():
        found = estimate(known, [Past(known, 0.0)])
        tests = [{**test, "seconds": found.seconds[test["id"]]} for test in tests]
    return plan(tests, shards).shards


def pytest_split() -> dict[str, Callable[[Tests, int], Division]]:
    """Its two algorithms, called as its plugin calls them: with items in the order of collection."""
    try:
        from pytest_split.algorithms import Algorithms
    except ImportError:
        print("pytest-split is not installed: pip install pytest-split shows it beside ours\n")
        return {}

    def divider(name: str) -> Callable[[Tests, int], Division]:
        def divide(tests: Tests, shards: int) -> Division:
            items = [SimpleNamespace(nodeid=test["id"]) for test in tests]
            known = {test["id"]: test["seconds"] for test in tests if test["seconds"] is not None}
            groups = Algorithms[name].value(shards, items, known)
            return [[item.nodeid for item in group.selected] for group in groups]

        return divide

    return {"split chunks": divider("duration_based_chunks"), "split least": divider("least_duration")}


def score(tests: Tests, division: Sequence[Sequence[str]]) -> float:
    """Seconds of the longest shard over the bound."""
    known = {test["id"]: test for test in tests}
    setups = {test["module"]: test["setup"] for test in tests}
    assert sorted(name for shard in division for name in shard) == sorted(known), "not every test in one shard"
    longest = max(
        sum(known[name]["seconds"] for name in shard) + sum(setups[m] for m in {known[n]["module"] for n in shard})
        for shard in division
    )
    even = (sum(test["seconds"] for test in tests) + sum(setups.values())) / len(division)
    return longest / max(even, *(test["seconds"] + test["setup"] for test in tests))


# ------------------------------------------------------------------ tables


def balance(dividers: dict[str, Callable[[Tests, int], Division]]) -> None:
    print("longest shard / bound, geometric mean (worst) over the suites: " + "; ".join(suites()))
    for share in SETUPS:
        print(f"\n  module set-ups: {share:.0%} of test time")
        print(f"  {'':14}" + "".join(f"{f'N={shards}':>14}" for shards in SHARDS))
        there = [with_setups(tests, share) for tests in suites().values()]
        for name, divide in dividers.items():
            cells = []
            for shards in SHARDS:
                scores = [score(tests, divide(tests, shards)) for tests in there]
                cells.append(f"{statistics.geometric_mean(scores):.3f} ({max(scores):.2f})")
            print(f"  {name:14}" + "".join(f"{cell:>14}" for cell in cells))


def wrong_estimates(dividers: dict[str, Callable[[Tests, int], Division]]) -> None:
    """Divide by wrong estimates, score by the truth: set-ups of 10 % of test time, three seeds a suite."""

    def each_test(chance: random.Random, tests: Tests) -> Tests:
        return [{**test, "seconds": test["seconds"] * chance.uniform(0.7, 1.3)} for test in tests]

    def each_module(chance: random.Random, tests: Tests) -> Tests:
        factors = {module: chance.uniform(0.7, 1.3) for module in sorted({test["module"] for test in tests})}
        return [{**test, "seconds": test["seconds"] * factors[test["module"]]} for test in tests]

    def new_tests(chance: random.Random, tests: Tests) -> Tests:
        return [{**test, "seconds": None} if chance.random() < 0.1 else test for test in tests]

    def new_modules(chance: random.Random, tests: Tests) -> Tests:
        modules = sorted({test["module"] for test in tests})
        new = set(chance.sample(modules, len(modules) // 10))
        return [{**test, "seconds": None} if test["module"] in new else test for test in tests]

    cases = {
        "each test off by up to 30 %": each_test,
        "each module off by up to 30 %": each_module,
        "10 % of the tests new": new_tests,
        "10 % of the modules new": new_modules,
    }
    there = [with_setups(tests, 0.1) for tests in suites().values()]
    for shards in (8, 32):
        print(f"\n  wrong estimates, N={shards}, set-ups of 10 %" + "".join(f"{name:>16}" for name in dividers))
        for case, spoil in cases.items():
            cells = []
            for divide in dividers.values():
                scores = [score(t, divide(spoil(random.Random(n), t), shards)) for t in there for n in range(3)]
                cells.append(f"{statistics.geometric_mean(scores):.3f} ({max(scores):.2f})")
            print(f"  {case:38}" + "".join(f"{cell:>16}" for cell in cells))


def memory() -> None:
    """What it costs to deal tests evenly that cannot run beside each other; the bound does not know about them."""
    print("\n  ours under a memory limit, set-ups of 10 %; share of tests that need more than half of it")
    for share in (0.005, 0.05):
        cells = []
        for shards in SHARDS:
            scores = []
            for tests in suites().values():
                chance = random.Random(18)
                hungry = [{**t, "memory": 60 if chance.random() < share else 10} for t in with_setups(tests, 0.1)]
                scores.append(score(hungry, plan(hungry, shards, memory=100).shards))
            cells.append(f"{statistics.geometric_mean(scores):.3f} ({max(scores):.2f})")
        print(f"  {share:<14.1%}" + "".join(f"{cell:>14}" for cell in cells))


def speed() -> None:
    print("\nseconds of a plan for 50,000 tests, median of 3")
    for modules in (1, 100, 2_000, 50_000):
        chance = random.Random(17)
        tests = [
            {"id": f"t_{n % modules:05}.py::test[{n}]", "module": f"t_{n % modules:05}.py", "setup": 0.1}
            | {"seconds": chance.lognormvariate(-2, 2)}
            for n in range(50_000)
        ]
        cells = []
        for shards in (8, 64, 512):
            times = []
            for _ in range(3):
                began = time.process_time()
                plan(tests, shards)
                times.append(time.process_time() - began)
            cells.append(f"N={shards} {statistics.median(times):.2f} s")
        print(f"  {modules:6,} modules  " + "  ".join(cells))


def from_stdin() -> None:
    request = json.load(sys.stdin)
    tests = [{**test, "seconds": test["est"]} for test in request["tests"]]
    json.dump({"shards": ours(tests, request["shards"])}, sys.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stdin", action="store_true", help="divide the tests of a JSON request")
    if parser.parse_args().stdin:
        from_stdin()
        return
    dividers = {"ours": ours, **pytest_split()}
    balance(dividers)
    wrong_estimates(dividers)
    memory()
    speed()


if __name__ == "__main__":
    main()
