"""Where the loop waits, that the fixed one does not, and that both say the same."""

import json
import linecache
import random
from pathlib import Path

import pytest
import torch
from census import HERE, PROMPTS, RUNNERS, SHORTEST, chosen, device_for, taken
from step_loop.runner import END, UNWANTED, VOCABULARY

from testkit.syncs import allow

pytestmark = pytest.mark.fresh_process  # a process keeps its simulated device

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
on_each_device = pytest.mark.parametrize("kind", ["simulated", pytest.param("gpu", marks=NO_GPU)])

FIXES = {
    "torch.tensor(": "values that never change: build the tensor once per device and keep it",
    ".item()": "derive the number from what the host knows exactly",
    "repeat_interleave(": "pass output_size=",
    "non_blocking=True": "non_blocking=True does nothing for pageable memory",
    "hidden[last]": "the number of elements must be known: keep the full shape",
    "logits[:, UNWANTED]": "the list becomes an index tensor and is copied each time",
    "logits[row, END]": "a number from the host is copied for this: x[i].fill_(number)",
    ".cpu()": "keep on the CPU what the host reads",
}
"""What is in each line that waits, and how its fix begins."""
RECORDED = Path(__file__).parent / "waits.json"


def random_batch(seed):
    drawn = random.Random(seed)
    wanted = [token for token in range(VOCABULARY) if token not in (END, *UNWANTED)]
    prompts = [drawn.choices(wanted, k=drawn.randint(1, 12)) for _ in range(drawn.randint(1, 5))]
    return prompts, [drawn.randint(0, 6) for _ in prompts]


def rows(census):
    return {(site["where"], site["operator"], site["fix"]) for site in json.loads(census)["sites"]}


@on_each_device
def test_the_census_names_eight_lines_each_with_its_fix(kind):
    with device_for(kind) as device:
        sites = taken("before", device).sites
    assert len(sites) == len(FIXES)
    for site in sites:
        path, line = site.where.rsplit(":", 1)
        source = linecache.getline(path, int(line))
        (fix,) = (fix for words, fix in FIXES.items() if words in source)
        assert site.fix.startswith(fix), source
    assert len({site.where for site in sites}) == len(FIXES)


@on_each_device
def test_the_census_is_that_which_was_recorded(kind):
    with device_for(kind) as device:
        found = rows(taken("before", device).to_json(HERE))
    recorded = rows(RECORDED.read_text())
    assert found - recorded == set()
    assert recorded - found == set()


@on_each_device
@pytest.mark.no_gpu_sync
def test_the_host_never_waits(kind):
    with device_for(kind) as device:
        with allow("models are made once"):
            running = chosen()(PROMPTS, SHORTEST, device)
        running.run()
        with allow("the answers are read when all is done"):
            assert [len(answer) for answer in running.answers()] == [2, 12, 6]


@on_each_device
def test_both_loops_give_the_same_answers(kind):
    lengths = set()
    with device_for(kind) as device:
        for prompts, shortest in [(PROMPTS, SHORTEST), *map(random_batch, range(4))]:
            slow, fast = (runner(prompts, shortest, device) for runner in RUNNERS.values())
            slow.run()
            fast.run()
            answers = slow.answers()
            assert answers == fast.answers()
            assert not {END, *UNWANTED} & {token for answer in answers for token in answer}
            assert all(len(answer) >= least for answer, least in zip(answers, shortest, strict=True))
            assert slow.steps <= fast.steps
            if kind == "simulated":  # copies arrive at once
                assert fast.steps <= slow.steps + 1
            lengths |= set(map(len, answers))
    assert len(lengths) > 5
