"""An offline engine in miniature: requests are admitted, computed in chunks, and say a token when their prompt is done.

What the prefix cache counted is drained once a step, and recorded. FAULTS are planted mistakes; the environment
variable PREFIX_STATS_FAULT activates one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

VARIABLE = "PREFIX_STATS_FAULT"
FAULTS = {
    "recorded-with-output-only": "a step without output drains its counts and drops them",
    "abort-forgets": "an abort clears what was counted and not yet drained",
    "retry-records-twice": "counts of a step in which a request was put back are recorded again with the next",
    "last-overwrites": "the log keeps the counts of the last step in place of their sum",
}
CHUNK, ROOM = 8, 24
"""Tokens of a request that one step computes, and tokens of running requests that there is room for."""


@dataclass
class Stats:
    """Prompt tokens that were asked for, and those that the cache knew."""

    queries: int = 0
    hits: int = 0

    def add(self, other: Stats) -> None:
        self.queries += other.queries
        self.hits += other.hits


class PrefixCache:
    def __init__(self) -> None:
        self._known: set[tuple[int, ...]] = set()
        self._stats = Stats()

    def admit(self, prompt: tuple[int, ...]) -> None:
        """Count a request that begins to run, and know its prefixes from now on."""
        known = max((len(prefix) for prefix in self._known if prompt[: len(prefix)] == prefix), default=0)
        self.count(Stats(len(prompt), known))
        self._known.add(prompt)

    def count(self, stats: Stats) -> None:
        self._stats.add(stats)

    def drain(self) -> Stats:
        stats, self._stats = self._stats, Stats()
        return stats


@dataclass
class Request:
    prompt: tuple[int, ...]
    computed: int = 0


@dataclass
class Engine:
    cache: PrefixCache = field(default_factory=PrefixCache)
    log: Stats = field(default_factory=Stats)
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fault = os.environ.get(VARIABLE, "")
        if self.fault and self.fault not in FAULTS:
            raise ValueError(f"{self.fault} is no planted fault; these are: {', '.join(FAULTS)}")
        self._again = Stats()

    def add(self, prompt: tuple[int, ...]) -> None:
        self.waiting.append(Request(prompt))

    def abort(self) -> None:
        """The newest request leaves, wherever it is."""
        if self.waiting or self.running:
            (self.waiting or self.running).pop()
        if self.fault == "abort-forgets":
            self.cache.drain()

    def schedule(self) -> bool:
        """Admit what there is room for; False if a request was put back."""
        while self.waiting:
            request = self.waiting[0]
            if sum(len(one.prompt) for one in self.running) + len(request.prompt) > ROOM:
                return False
            self.running.append(self.waiting.pop(0))
            self.cache.admit(request.prompt)
        return True

    def step(self) -> list[int]:
        """Schedule, compute, record; one token of each request that is done with its prompt."""
        all_fit = self.schedule()
        for request in self.running:
            request.computed += CHUNK
        done = [request for request in self.running if request.computed >= len(request.prompt)]
        self.running = [request for request in self.running if request not in done]
        self._record(self.cache.drain(), bool(done), all_fit)
        return [request.prompt[-1] for request in done]

    def _record(self, stats: Stats, output: bool, all_fit: bool) -> None:
        if self.fault == "recorded-with-output-only" and not output:
            return
        if self.fault == "last-overwrites":
            self.log = Stats()
        self.log.add(stats)
        if self.fault == "retry-records-twice":
            self.log.add(self._again)
            self._again = Stats() if all_fit else stats
