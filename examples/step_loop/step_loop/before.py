"""The loop as it is first written: right, and at eight lines the host waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from step_loop import runner
from step_loop.runner import END, UNWANTED, Batch


class Runner(runner.Runner):
    def build(self) -> Batch:
        starts, counts = torch.tensor([self.starts, self.counts], device=self.device)
        longest = (starts + counts).max().item()
        requests = torch.repeat_interleave(counts)
        first = counts.cumsum(0) - counts
        positions = torch.arange(len(requests), device=self.device) - first[requests] + starts[requests]
        table = self.table.to(self.device, non_blocking=True)
        return Batch(requests, positions, starts, counts, table, int(longest))

    def sample(self, hidden: Tensor, batch: Batch) -> Tensor:
        last = batch.positions == (batch.starts + batch.counts - 1)[batch.requests]
        logits = hidden[last] @ self.model.head.T
        logits[:, UNWANTED] = self.lowest
        for row, shortest in enumerate(self.shortest):
            if self.steps < shortest:
                logits[row, END] = float("-inf")
        return logits.argmax(1)

    def over(self) -> bool:
        return bool(self.stopped.cpu().all())
