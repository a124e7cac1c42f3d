"""The remap kernel against a loop, in bits, at the sizes where index arithmetic breaks."""

import pytest
import torch
from index_remap.remap import TILE, WIDEST, remap, remap_atomic, remap_owned

from testkit.kernels import (
    assert_batch_invariant,
    assert_bits_equal,
    assert_deterministic,
    guarded,
    layouts,
    sizes_around_powers_of_two,
)

ROWS, BLOCKS = 3, 40
BORDERS = sizes_around_powers_of_two(1, 2 * WIDEST + 1, tiles=TILE)
POWERS = [2**k for k in range(9)]
KERNELS = [remap_owned, remap_atomic]


def make_inputs(width, seed, block_size=16, kept=0.8):
    """Positions of which a share ``kept`` has a slot; of the others half are -1 and half beyond the table."""
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS, width)
    inside = torch.randint(BLOCKS * block_size, shape, generator=generator)
    outside = torch.where(torch.rand(shape, generator=generator) < 0.5, -1, inside + BLOCKS * block_size)
    positions = torch.where(torch.rand(shape, generator=generator) < kept, inside, outside)
    table = torch.randperm(ROWS * BLOCKS, generator=generator).reshape(ROWS, BLOCKS)
    return positions.int(), table.int(), block_size


def reference(positions, table, block_size):
    """Slots in order, -1 behind them, and in a last column their number."""
    rows = []
    for row, blocks in zip(positions.tolist(), table.tolist(), strict=True):
        slots = [blocks[p // block_size] * block_size + p % block_size for p in row if 0 <= p < BLOCKS * block_size]
        rows.append(slots + [-1] * (len(row) - len(slots)) + [len(slots)])
    return torch.tensor(rows, dtype=torch.int32)


def returning(kernel):
    """The kernel as a function whose result is that of ``reference``."""

    def run(positions, table, block_size):
        slots, counts = torch.empty_like(positions), positions.new_empty(len(positions))
        kernel(positions, table, block_size, slots, counts)
        return torch.cat([slots, counts[:, None]], dim=1)

    return run


@pytest.mark.pairwise
@pytest.mark.parametrize("block_size", [1, 16, 48])
@pytest.mark.parametrize("kept", [0.0, 0.8, 1.0])
def test_every_position_has_its_slot_at_every_border(block_size, kept):
    assert_bits_equal(
        returning(remap),
        reference,
        unordered=True,  # rows without an owner are
        make_inputs=lambda width, seed: make_inputs(width, seed, block_size, kept),
        sizes=BORDERS,
        seeds=range(2),
    )


def test_a_row_with_an_owner_keeps_its_order():
    assert_bits_equal(returning(remap), reference, make_inputs=make_inputs, sizes=POWERS, seeds=range(2))


@pytest.mark.pairwise
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layout", layouts("contiguous", "strided", "padded", "transposed", "misaligned"))
@pytest.mark.parametrize("width", [TILE, 2 * WIDEST])
def test_positions_and_table_may_lie_anyhow(kernel, layout, width):
    positions, table, block_size = make_inputs(width, seed=0)
    found = returning(kernel)(layout(positions), layout(table), block_size)
    assert_bits_equal(found, reference(positions, table, block_size), unordered=True)


@pytest.mark.parametrize("gap", [0, 5])
@pytest.mark.parametrize("width", [1, TILE - 1, TILE, TILE + 1, WIDEST])
def test_each_element_of_the_output_is_written_and_nothing_else(width, gap):
    inputs = make_inputs(width, seed=1)
    counts = torch.empty(ROWS, dtype=torch.int32)
    with guarded((ROWS, width), torch.int32, stride=(width + gap, 1), inputs=inputs[:2]) as slots:
        remap(*inputs, slots, counts)


def test_without_the_atomic_each_call_gives_the_same_bits_and_each_row_is_on_its_own():
    positions, table, block_size = make_inputs(WIDEST, seed=2)
    owned = returning(remap_owned)
    assert_deterministic(lambda: owned(positions, table, block_size), runs=3)
    assert_batch_invariant(lambda *rows: owned(*rows, block_size), positions, table)


def test_with_the_atomic_the_order_is_any():
    positions, table, block_size = make_inputs(2 * WIDEST, seed=3)
    atomic = returning(remap_atomic)
    with pytest.raises(AssertionError, match="gives other bits than the first"):
        assert_deterministic(lambda: atomic(positions, table, block_size), runs=10)
