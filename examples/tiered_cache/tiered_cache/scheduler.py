"""A prefix cache in miniature with a slow tier, from which blocks are promoted while their request waits.

A lookup scans the blocks of a prompt, so it is done once for a request; while a promotion is under way the scheduler
asks only whether it is done, and after DEADLINE steps it computes the blocks itself. FAULTS are planted mistakes; the
environment variable TIERED_CACHE_FAULT activates one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum

VARIABLE = "TIERED_CACHE_FAULT"
FAULTS = {
    "retry-for-pending": "a hit that is pending counts as a try that failed: the prefix is scanned again in each step",
    "no-deadline": "the scheduler waits for a promotion for ever",
    "deadline-restarts": "each step that waits begins the wait anew",
    "rescan-for-each-block": "the scan begins at the first block for each block",
}
DEADLINE = 5
"""Steps that a request waits for its promotion."""


class Hit(Enum):
    NOW = "the blocks are in the fast tier"
    PENDING = "they are being promoted"
    RETRY = "ask again in the next step"


@dataclass
class SlowTier:
    """Promotes the blocks of a request in ``steps`` questions."""

    steps: int = 3
    asked: dict[str, int] = field(default_factory=dict)

    def promoted(self, request: str) -> bool:
        self.asked[request] = self.asked.get(request, 0) + 1
        return self.asked[request] > self.steps


@dataclass
class Cache:
    tier: SlowTier
    fault: str = ""

    def lookup(self, request: str, blocks: int) -> Hit:
        """What the cache has of a prompt of so many blocks."""
        for last in range(blocks):
            self.scan(0 if self.fault == "rescan-for-each-block" else last, last + 1)
        if self.tier.promoted(request):
            return Hit.NOW
        return Hit.RETRY if self.fault == "retry-for-pending" else Hit.PENDING

    def scan(self, first: int, end: int) -> None:
        """Hash these blocks and look for them."""


@dataclass
class Scheduler:
    cache: Cache
    waiting: dict[str, int] = field(default_factory=dict)
    """The blocks of each request that has not begun."""
    pending: dict[str, int] = field(default_factory=dict)
    """The steps that each has waited for a promotion."""

    def step(self) -> list[str]:
        """The requests that begin to run."""
        begin = [request for request, blocks in self.waiting.items() if self._ready(request, blocks)]
        for request in begin:
            del self.waiting[request]
            self.pending.pop(request, None)
        return begin

    def _ready(self, request: str, blocks: int) -> bool:
        if request not in self.pending:
            found = self.cache.lookup(request, blocks)
            if found is Hit.PENDING:
                self.pending[request] = 0
            return found is Hit.NOW
        if self.cache.fault != "deadline-restarts":
            self.pending[request] += 1
        late = self.pending[request] >= DEADLINE and self.cache.fault != "no-deadline"
        return late or self.cache.tier.promoted(request)


def new(steps: int = 3) -> Scheduler:
    """A scheduler over a slow tier that needs so many questions; with a planted fault if the variable names one."""
    fault = os.environ.get(VARIABLE, "")
    if fault and fault not in FAULTS:
        raise ValueError(f"{fault} is no planted fault; these are: {', '.join(FAULTS)}")
    return Scheduler(Cache(SlowTier(steps), fault))
