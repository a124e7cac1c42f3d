"""The simulation behind the order of tests: that it is one, and what it promises of the recorded suites."""

from __future__ import annotations

import importlib.util
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_packing.py"


@pytest.fixture(scope="module")
def packing() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("gpu_packing", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_packing"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_packing"]


def made(packing: ModuleType, *tests: tuple[float, int]) -> list[Any]:
    return [packing.Replayed("m", seconds, memory) for seconds, memory in tests]


def audit(replay: Any, size: int) -> None:
    """Each test ran once, for its seconds, and no card ever held more than ``size``."""
    assert sorted(span.test for span in replay.spans) == list(range(len(replay.tests)))
    changes = defaultdict(list)
    for span in replay.spans:
        seconds, memory = replay.tests[span.test].seconds, replay.tests[span.test].memory
        assert span.end - span.start == pytest.approx(seconds, abs=1e-9)
        changes[span.card] += [(span.start, 1, memory), (span.end, 0, -memory)]
    for card in changes.values():
        held = 0
        for _, _, memory in sorted(card):  # what ends at a moment ends before what starts then
            held += memory
            assert held <= size


@pytest.mark.parametrize("seed", range(12))
def test_cards_are_never_over_full_and_nothing_ends_before_the_bound(packing: ModuleType, seed: int) -> None:
    chance = random.Random(seed)
    tests = made(packing, *((chance.expovariate(1), chance.randint(1, 10)) for _ in range(chance.randint(1, 60))))
    cards, workers = chance.randint(1, 4), chance.randint(1, 12)
    options = {"chunk": chance.choice([None, 1, 5]), "pinned": chance.random() < 0.7, "patience": chance.choice([0, 3])}
    replay = packing.Replay(packing.ordered(tests, workers), cards, workers, size=10, **options)
    audit(replay, 10)
    assert replay.failed == 0
    assert replay.makespan >= packing.bound(tests, cards, workers, 10) - 1e-9


def test_the_same_suite_is_replayed_alike(packing: ModuleType) -> None:
    tests = packing.sixty(7)
    assert tests == packing.sixty(7)
    one, other = (packing.Replay(packing.ordered(tests, 8), 2, 8) for _ in range(2))
    assert one.spans == other.spans


def test_one_worker_takes_as_long_as_all_tests_together(packing: ModuleType) -> None:
    tests = packing.sixty(3)
    replay = packing.Replay(tests, 1, 1)
    assert replay.makespan == pytest.approx(sum(test.seconds for test in tests))
    assert [span.test for span in replay.spans] == list(range(60))


def test_tests_of_more_than_half_a_card_run_one_after_the_other(packing: ModuleType) -> None:
    tests = made(packing, *((1.0, 6) for _ in range(10)))
    for workers in (1, 4, 10):
        replay = packing.Replay(tests, 1, workers, size=10)
        assert replay.makespan == pytest.approx(10, abs=10 * packing.LOOK)


def test_where_all_fits_nobody_waits(packing: ModuleType) -> None:
    tests = made(packing, *((seconds / 7, 1) for seconds in range(1, 40)))
    with_ledger = packing.Replay(tests, 2, 6, size=10)
    without = packing.Replay(tests, 2, 6, size=10, ledger=False)
    assert with_ledger.makespan == without.makespan
    assert without.failed == 0


def test_without_a_ledger_what_finds_no_room_fails(packing: ModuleType) -> None:
    replay = packing.Replay(made(packing, (1, 6), (1, 6), (1, 6), (1, 4)), 1, 4, size=10, ledger=False)
    assert replay.failed == 2
    assert replay.makespan == 1


def test_a_large_test_is_passed_for_no_longer_than_patience(packing: ModuleType) -> None:
    tests = made(packing, (1, 5), (1, 5), (2, 10), *((1.3, 5) for _ in range(40)))
    by_patience = {}
    for patience in (0.0, 4.0):
        replay = packing.Replay(tests, 1, 3, size=10, patience=patience)
        [large] = [span for span in replay.spans if replay.tests[span.test].memory == 10]
        assert large.start <= patience + 1.3 + 2 * packing.LOOK
        by_patience[patience] = large.start
    assert by_patience[0.0] < 4.0 < by_patience[4.0]


def test_workers_start_with_the_longest_tests(packing: ModuleType) -> None:
    tests = made(packing, *((float(seconds), 1) for seconds in range(1, 31)))
    replay = packing.Replay(packing.ordered(tests, 5), 1, 5, size=100)
    began = [replay.tests[span.test].seconds for span in replay.spans if span.start == 0]
    assert sorted(began) == [26, 27, 28, 29, 30]


def test_recorded_suites_come_close_to_their_bound(packing: ModuleType) -> None:
    """The figure that docs give, on the first seed: at most 1.10 times the bound on 1 to 8 cards."""
    found = []
    for rule in packing.RULES.values():
        for cards in (1, 2, 4, 8):
            for suite in packing.recorded().values():
                tests = rule(random.Random(packing.SEEDS[0]), suite)
                replay = packing.Replay(packing.ordered(tests, 8 * cards), cards, 8 * cards)
                found.append(replay.makespan / packing.bound(tests, cards, 8 * cards))
    assert len(found) == 36
    assert statistics.mean(found) <= 1.10
