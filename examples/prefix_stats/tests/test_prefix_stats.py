"""What the prefix cache counts arrives in the log, whatever the steps."""

import pytest
from prefix_stats.engine import Engine, PrefixCache, Stats

from testkit.laws import assert_conserved

SHORT, LONG = tuple(range(6)), tuple(range(20))


class Watched(PrefixCache):
    """Keeps what it counts, as nobody who drains it can."""

    def __init__(self):
        super().__init__()
        self.counted = Stats()

    def count(self, stats):
        super().count(stats)
        self.counted.add(stats)


def start():
    return Engine(cache=Watched())


def run(engine, prepare):
    """One step of the schedule: something happens, the engine steps, and this is what was counted meanwhile."""
    engine.cache.counted = Stats()
    prepare(engine)
    engine.step()
    return engine.cache.counted


STEPS = {
    "nothing new": lambda engine: None,
    "a short prompt": lambda engine: engine.add(SHORT),
    "a long prompt": lambda engine: engine.add(LONG),  # no output in its first step, and two have no room together
    "scheduled, then aborted": lambda engine: (engine.add(SHORT), engine.schedule(), engine.abort()),
}


def test_what_is_counted_is_recorded_for_every_schedule_of_steps():
    assert_conserved(run, lambda engine: engine.log, STEPS, start=start)


@pytest.mark.parametrize("prompts", [[SHORT] * 3, [LONG, LONG, SHORT], [LONG, SHORT, LONG]])
def test_every_prompt_is_answered_once(prompts):
    engine = Engine()
    for prompt in prompts:
        engine.add(prompt)
    said = []
    while engine.waiting or engine.running:
        said += engine.step()
    assert sorted(said) == sorted(prompt[-1] for prompt in prompts)
