"""What the warm-up reserves is what the allocator takes, at every step."""

import pytest
from block_reservation.blocks import Allocator, Config, blocks_to_reserve

from testkit.errors import LawsError
from testkit.laws import assert_same_answer

STEPS = {"prompt of 4": 4, "prompt of 9": 9, "decode": 1, "release": None}


def predict(allocator, tokens):
    return 0 if tokens is None else blocks_to_reserve(allocator, tokens)


def really(allocator, tokens):
    return allocator.release() or 0 if tokens is None else allocator.allocate(tokens)


@pytest.mark.parametrize("speculative", [0, 1, 3])
def test_the_warm_up_reserves_what_the_allocator_takes(speculative):
    assert_same_answer(
        predict,
        really,
        STEPS,
        start=lambda: Allocator(Config(speculative=speculative)),
        shared=(Config.look_ahead,),  # both have to read it; a number of one's own fails here
    )


def test_a_long_request_is_predicted_step_by_step():
    assert_same_answer(predict, really, [30, *[1] * 40], start=Allocator)


class FakeAllocator(Allocator):
    """The double of an earlier test: it takes what the formula says."""

    def allocate(self, new_tokens):
        taken = blocks_to_reserve(self, new_tokens)
        self.tokens += new_tokens
        self.held += [0] * taken
        return taken


def test_a_double_that_asks_the_formula_proves_nothing_and_is_refused():
    with pytest.raises(LawsError, match="oracle is no judge of predict: both run blocks_to_reserve"):
        assert_same_answer(predict, really, STEPS, start=FakeAllocator)
