"""The same loop after the fixes that the census names: the host never waits."""

from __future__ import annotations

import torch
from torch import Tensor

from step_loop import runner
from step_loop.runner import END, UNWANTED, Batch
from testkit.syncs import to_device


class Runner(runner.Runner):
    def __init__(self, prompts: list[list[int]], shortest: list[int], device: torch.device) -> None:
        super().__init__(prompts, shortest, device)
        self.unwanted = torch.tensor(UNWANTED, device=device)
        self.all_stopped = torch.zeros((), dtype=torch.bool, pin_memory=True)
        self.arrived = torch.cuda.Event()

    def build(self) -> Batch:
        starts, counts = to_device([self.starts, self.counts], self.device)
        longest = max(start + count for start, count in zip(self.starts, self.counts, strict=True))
        requests = torch.repeat_interleave(counts, output_size=sum(self.counts))
        first = counts.cumsum(0) - counts
        positions = torch.arange(len(requests), device=self.device) - first[requests] + starts[requests]
        table = to_device(self.table, self.device)
        return Batch(requests, positions, starts, counts, table, longest)

    def sample(self, hidden: Tensor, batch: Batch) -> Tensor:
        last = batch.counts.cumsum(0) - 1
        logits = hidden[last] @ self.model.head.T
        logits.index_fill_(1, self.unwanted, float("-inf"))
        for row, shortest in enumerate(self.shortest):
            if self.steps < shortest:
                logits[row, END].fill_(float("-inf"))
        return logits.argmax(1)

    def over(self) -> bool:
        """Known some steps late, when the copy of an earlier step has arrived; what was done since then is cut off."""
        if not self.arrived.query():
            return False  # the buffer is in use
        known = bool(self.all_stopped)
        self.all_stopped.copy_(self.stopped.all(), non_blocking=True)
        self.arrived.record()
        return known
