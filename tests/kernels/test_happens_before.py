"""The clocks of ``History`` against reachability in a graph of everything that happened, over random programs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

import pytest

from testkit.kernels._happens_before import Access, Block, History, Memory

HOST = "host"
STREAMS = ("main", "a", "b")


class Program:
    """A random program, told to a ``History`` and kept as a graph: nodes in order, edges from what is before."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.history = History("main")
        self.before: list[set[int]] = []
        self.accesses: list[tuple[int, Access]] = []
        self.last: dict[str, int] = {}
        self.events: dict[int, int] = {}
        self.block = Block("main")
        for step in range(30 if seed % 2 else 5):
            self.step(step)

    def node(self, *after: int | None) -> int:
        direct = {one for one in after if one is not None}
        self.before.append(direct.union(*(self.before[one] for one in direct)))
        return len(self.before) - 1

    def next_on(self, stream: str, *after: int | None) -> int:
        """What runs on a stream is after what ran there, and after what the host had waited for."""
        self.last[stream] = self.node(self.last.get(stream), self.last.get(HOST), *after)
        return self.last[stream]

    def step(self, number: int) -> None:
        stream, event = self.chance.choice(STREAMS), self.chance.randrange(3)
        kinds = {"access": 9, "record": 4, "wait": 4, "host event": 1, "host stream": 1, "host all": 0.3}
        (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
        if kind == "access":
            width = self.chance.choice([1, 2, 4])
            memory = Memory(self.chance.randrange(4), (width,), (1,), 1)
            time = self.history.runs(stream, "")
            access = Access(stream, time, self.chance.random() < 0.5, memory, f"step {number}", "")
            self.history.touches(self.block, access)
            self.accesses.append((self.next_on(stream), access))
        elif kind == "record":
            self.history.records(event, stream)
            self.events[event] = self.next_on(stream)
        elif kind == "wait":
            self.history.waits(stream, event, "")
            self.next_on(stream, self.events.get(event))
        elif kind == "host event":
            self.history.host_waits_for_event(event, "")
            self.last[HOST] = self.node(self.last.get(HOST), self.events.get(event))
        else:
            streams = STREAMS if kind == "host all" else (stream,)
            self.history.host_waits_for(None if kind == "host all" else stream, "")
            self.last[HOST] = self.node(self.last.get(HOST), *(self.last.get(one) for one in streams))

    def races(self) -> Iterator[tuple[str, str]]:
        for (first, one), (second, other) in combinations(self.accesses, 2):
            if (one.writes or other.writes) and one.memory.overlaps(other.memory) and first not in self.before[second]:
                yield one.what, other.what


@pytest.mark.parametrize("seed", range(60))
def test_races_are_those_of_the_graph(seed: int) -> None:
    """A later access stands for earlier ones of its kind, so pairs may be fewer; the second of each is never lost."""
    program = Program(seed)
    found = {(race.first.what, race.second.what) for race in program.history.races.values()}
    wanted = set(program.races())
    assert found <= wanted
    assert {second for _, second in found} == {second for _, second in wanted}


def test_programs_with_and_without_races_are_among_them() -> None:
    counts = [len(Program(seed).history.races) for seed in range(60)]
    assert min(counts) == 0
    assert max(counts) > 5


def test_freed_memory_is_the_owners_until_others_are_done() -> None:
    history, memory = History("main"), Memory(0, (8,), (1,), 1)
    block = Block("main")
    history.touches(block, Access("a", history.runs("a", ""), False, memory, "read", ""))
    history.frees(block)
    history.allocates(Access("b", 1, True, memory, "new", ""))  # another stream does not get it
    assert not history.races
    history.allocates(Access("main", 1, True, memory, "new", ""))
    assert [race.reused for race in history.races.values()] == [True]


@pytest.mark.parametrize("how", ["record_stream", "wait"])
def test_freed_memory_may_be_handed_out_when_others_are_done(how: str) -> None:
    history, memory = History("main"), Memory(0, (8,), (1,), 1)
    block = Block("main")
    history.touches(block, Access("a", history.runs("a", ""), False, memory, "read", ""))
    if how == "wait":
        history.records("event", "a")
        history.waits("main", "event", "")
    else:
        block.shared.add("a")
    history.frees(block)
    history.allocates(Access("main", 1, True, memory, "new", ""))
    assert not history.races
