"""Blocks of a KV cache in miniature, and the formula by which a warm-up step knows how many there must be.

With speculative decoding a step proposes tokens beyond the next one, and room is kept for them: the look-ahead.
FAULTS are planted mistakes in the formula; the environment variable BLOCK_RESERVATION_FAULT activates one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

VARIABLE = "BLOCK_RESERVATION_FAULT"
FAULTS = {
    "no-look-ahead": "the formula forgets the room for proposed tokens",
    "prompt-only": "it adds that room to prompts and not to decode steps",
    "rounded-down": "a block that is used in part is not counted",
    "held-forgotten": "blocks that the request has already are predicted again",
}


@dataclass
class Config:
    """The one place for both numbers."""

    block_size: int = 4
    speculative: int = 3

    @property
    def look_ahead(self) -> int:
        """Tokens beyond the next one for which a step keeps room."""
        return self.speculative


@dataclass
class Allocator:
    """Gives blocks to one request, and takes them back."""

    config: Config = field(default_factory=Config)
    tokens: int = 0
    held: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=lambda: list(range(64)))

    def allocate(self, new_tokens: int) -> int:
        """Room for so many tokens more, and the look-ahead; how many blocks that took."""
        self.tokens += new_tokens
        before = len(self.held)
        while len(self.held) * self.config.block_size < self.tokens + self.config.look_ahead:
            self.held.append(self.free.pop())
        return len(self.held) - before

    def release(self) -> None:
        self.free += self.held
        self.tokens, self.held = 0, []


def blocks_to_reserve(allocator: Allocator, new_tokens: int) -> int:
    """How many blocks ``allocate`` will take, for a warm-up that must not touch the allocator."""
    fault = os.environ.get(VARIABLE, "")
    if fault and fault not in FAULTS:
        raise ValueError(f"{fault} is no planted fault; these are: {', '.join(FAULTS)}")
    ahead = allocator.config.look_ahead
    if fault == "no-look-ahead" or (fault == "prompt-only" and allocator.tokens):
        ahead = 0
    room = allocator.tokens + new_tokens + ahead
    size = allocator.config.block_size
    blocks = room // size if fault == "rounded-down" else -(-room // size)
    return max(0, blocks - (0 if fault == "held-forgotten" else len(allocator.held)))
