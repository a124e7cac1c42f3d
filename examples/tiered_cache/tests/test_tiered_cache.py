"""What a pending promotion costs, and that nobody waits for it for ever."""

import pytest
from tiered_cache.scheduler import new

from testkit.laws import assert_terminates, call_budget


@pytest.fixture
def scheduler():
    scheduler = new()
    scheduler.waiting = {"short": 2, "long": 64}
    return scheduler


def run(scheduler, steps=10):
    for _ in range(steps):
        scheduler.step()
    assert not scheduler.waiting


def test_a_prefix_is_looked_up_once_for_a_request(scheduler):
    with call_budget(scheduler.cache, "lookup", at_most=1, per="request"):
        run(scheduler)


def test_each_block_is_scanned_once(scheduler):
    with call_budget(scheduler.cache, "scan", at_most=2 + 64, work=lambda first, end: end - first):
        run(scheduler)


def test_a_step_asks_once_for_each_request_that_waits(scheduler):
    with call_budget(scheduler.cache.tier, "promoted", at_most=2, per=(scheduler, "step")):
        run(scheduler)


def test_nobody_waits_for_a_promotion_that_never_completes(scheduler):
    def step():
        scheduler.step()
        return not scheduler.waiting

    assert_terminates(step, max_steps=20, stuck=(scheduler.cache.tier, "promoted", False))
