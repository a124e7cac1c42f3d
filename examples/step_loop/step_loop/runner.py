"""What both loops share: a model of one attention layer over a paged cache, the requests, and their blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

VOCABULARY, WIDTH, BLOCK, LONGEST = 24, 16, 4, 32
END = 0
"""The token that ends an answer."""
UNWANTED = [5, 11, 17]
"""Tokens that no answer may hold."""


class Batch(NamedTuple):
    """What one step works on. ``requests``, ``positions``: of each token, int64; the others have a row a request.

    ``starts``: how many tokens lie in the cache already; ``counts``: how many are new. ``table``: blocks of the
    cache. ``longest``: tokens of the longest request, new ones included.
    """

    requests: Tensor
    positions: Tensor
    starts: Tensor
    counts: Tensor
    table: Tensor
    longest: int


class Model:
    def __init__(self, blocks: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(14)
        self.embedding, self.place, self.head = (
            torch.randn(rows, WIDTH, generator=generator).to(device) for rows in (VOCABULARY, LONGEST, VOCABULARY)
        )
        self.cache = torch.zeros(blocks * BLOCK, WIDTH, device=device)

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """What the layer says of each token, tokens x WIDTH; ``tokens``: int64, one for each of the batch."""
        x = self.embedding[tokens] + self.place[batch.positions]
        self.cache[self._slots(batch.table[batch.requests], batch.positions[:, None])[:, 0]] = x
        columns = torch.arange(batch.longest, device=x.device)[None]
        keys = self.cache[self._slots(batch.table[batch.requests], columns.expand(len(x), -1))]
        scores = (keys * x[:, None]).sum(2).masked_fill_(columns > batch.positions[:, None], float("-inf"))
        return (scores.softmax(1)[:, :, None] * keys).sum(1)

    def _slots(self, table: Tensor, positions: Tensor) -> Tensor:
        return table.gather(1, positions // BLOCK) * BLOCK + positions % BLOCK


class Runner(ABC):
    """Answers all of ``prompts`` at once, one token a step each, always with the likeliest.

    ``shortest``: how many tokens each answer must have at least.
    """

    def __init__(self, prompts: list[list[int]], shortest: list[int], device: torch.device) -> None:
        self.shortest, self.device = shortest, device
        blocks = LONGEST // BLOCK
        self.model = Model(len(prompts) * blocks, device)
        self.free = list(range(len(prompts) * blocks))
        self.table = torch.zeros(len(prompts), blocks, dtype=torch.int64)
        self.prompts, self.starts, self.counts = prompts, [0] * len(prompts), [len(prompt) for prompt in prompts]
        padded = [prompt + [END] * (LONGEST - len(prompt)) for prompt in prompts]
        self.tokens = torch.tensor(padded, device=device)
        self.lowest = torch.full((), float("-inf"), device=device)
        self.stopped = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        self.steps = 0

    def run(self) -> None:
        """Step until every answer has ended, or until one has no more room."""
        while max(self.starts) + 1 < LONGEST:
            self.step()
            if self.over():
                break

    def step(self) -> None:
        self._allocate()
        batch = self.build()
        hidden = self.model.forward(self.tokens[batch.requests, batch.positions], batch)
        chosen = self.sample(hidden, batch)
        self.tokens.scatter_(1, (batch.starts + batch.counts)[:, None], chosen[:, None])
        self.stopped |= chosen == END
        self.starts = [start + count for start, count in zip(self.starts, self.counts, strict=True)]
        self.counts = [1] * len(self.starts)
        self.steps += 1

    def answers(self) -> list[list[int]]:
        """The tokens behind each prompt, up to its end. Reads them from the device."""
        rows = self.tokens.tolist()
        found = [row[len(prompt) :] for row, prompt in zip(rows, self.prompts, strict=True)]
        return [row[: row.index(END)] if END in row else row for row in found]

    @abstractmethod
    def build(self) -> Batch:
        """Metadata of the next step."""

    @abstractmethod
    def sample(self, hidden: Tensor, batch: Batch) -> Tensor:
        """One token a request, int64."""

    @abstractmethod
    def over(self) -> bool:
        """Whether every answer has ended, as far as the host knows."""

    def _allocate(self) -> None:
        for row, (start, count) in enumerate(zip(self.starts, self.counts, strict=True)):
            for block in range(-(-start // BLOCK), -(-(start + count) // BLOCK)):
                self.table[row, block] = self.free.pop()
