"""From positions in a request to slots of a paged cache; two versions of a kernel, in torch as a GPU would run them.

FAULTS are planted mistakes; the environment variable INDEX_REMAP_FAULT activates one.
"""

from __future__ import annotations

import os
import random

import torch
from torch import Tensor

VARIABLE = "INDEX_REMAP_FAULT"
FAULTS = {
    "width-rounded-down": "a row of any width has one owner, which loads the power of two below it",
    "sum-in-8-bits": "the owner adds up places in eight bits",
    "lost-update": "two tiles read the counter before either adds to it",
    "last-tile-unmasked": "the last tile clears columns that the row does not have",
    "tail-unwritten": "nothing is written after the last slot of a row",
    "stride-ignored": "rows are taken to lie one directly after the other",
    "block-by-shift": "a shift finds the block, whatever its size",
    "padding-mapped": "-1 is a position like any other",
}
TILE = 32
"""Columns of one program of the atomic version."""
WIDEST = 256
"""Columns of the widest row that one program can own."""


def planted(fault: str) -> bool:
    active = os.environ.get(VARIABLE, "")
    if active and active not in FAULTS:
        raise ValueError(f"{active} is no planted fault; these are: {', '.join(FAULTS)}")
    return fault == active


def remap(positions: Tensor, table: Tensor, block_size: int, slots: Tensor, counts: Tensor) -> None:
    """Write the slots of ``positions`` to the front of each row of ``slots``, -1 behind; their number to ``counts``.

    ``positions``: rows x width, int32; -1 and what lies beyond the table have no slot. ``table``: rows x blocks, int32.
    ``slots`` is like ``positions``, ``counts`` has one int32 a row. Slots keep their order in rows that one program
    owns, of a power of two up to 256 columns; in others the order is any.
    """
    width = positions.shape[1]
    power = width <= WIDEST and width & (width - 1) == 0
    kernel = remap_owned if power or planted("width-rounded-down") else remap_atomic
    kernel(positions, table, block_size, slots, counts)


def remap_owned(positions: Tensor, table: Tensor, block_size: int, slots: Tensor, counts: Tensor) -> None:
    """One program a row: places are a prefix sum over all columns, and no counter is needed."""
    rows, width = positions.shape
    found = _slots(positions[:, : 1 << (width.bit_length() - 1)], table, block_size)
    places = (found >= 0).cumsum(1, dtype=torch.int8 if planted("sum-in-8-bits") else torch.int32)
    counts.copy_((found >= 0).sum(1))
    _clear(slots, rows, torch.arange(width))
    _store(slots, found, places.long() - 1)


def remap_atomic(positions: Tensor, table: Tensor, block_size: int, slots: Tensor, counts: Tensor) -> None:
    """Tiles of columns, in any order; each takes its places by one atomic add on its row's counter."""
    rows, width = positions.shape
    counts.zero_()
    tiles = [torch.arange(start, start + TILE) for start in range(0, width, TILE)]
    for columns in tiles:
        _clear(slots, rows, columns if planted("last-tile-unmasked") else columns[columns < width])
    before = counts.clone()
    for turn, columns in enumerate(random.sample(tiles, len(tiles))):
        found = _slots(positions[:, columns[columns < width]], table, block_size)
        if not (planted("lost-update") and turn % 2):
            before = counts.clone()
        counts += (found >= 0).sum(1)
        _store(slots, found, before[:, None] + (found >= 0).cumsum(1) - 1)


def _slots(positions: Tensor, table: Tensor, block_size: int) -> Tensor:
    block = positions // block_size
    if planted("block-by-shift"):
        block = positions >> (block_size.bit_length() - 1)
    there = (block < table.shape[1]) & ((positions >= 0) | planted("padding-mapped"))
    first = table.gather(1, block.clamp(0, table.shape[1] - 1).long()) * block_size
    return torch.where(there, first + positions % block_size, -1)


def _clear(slots: Tensor, rows: int, columns: Tensor) -> None:
    if not planted("tail-unwritten"):
        _write(slots, torch.arange(rows)[:, None], columns, torch.tensor(-1, dtype=slots.dtype))


def _store(slots: Tensor, found: Tensor, places: Tensor) -> None:
    row, column = (found >= 0).nonzero(as_tuple=True)
    _write(slots, row, places[row, column], found[row, column])


def _write(out: Tensor, row: Tensor, column: Tensor, values: Tensor) -> None:
    """As through a pointer: nothing holds ``row`` and ``column`` to the shape of ``out``."""
    memory = out.as_strided((out.untyped_storage().nbytes() // out.element_size(),), (1,), 0)
    pitch = out.shape[1] if planted("stride-ignored") else out.stride(0)
    memory[out.storage_offset() + row * pitch + column * out.stride(1)] = values
