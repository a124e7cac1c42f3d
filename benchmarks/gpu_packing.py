"""How full tests keep shared GPUs: recorded suites replayed on 1, 2, 4 and 8 cards, beside what is possible.

    python benchmarks/gpu_packing.py

pytest-xdist's own scheduler hands out the tests, testkit's own rule grants the memory, and time is made up: a worker
runs its queue in order and knows the next test before it starts one, waits while its memory is not granted, and looks
again as often as testkit does. Starting up takes no time here.

The seconds are those of tests/data/gpus/suites.json. Memory was not recorded there. Cards hold 139 GiB, as an NVIDIA
H200 does, and a test takes (seeded)

    even     5 to 60 GiB, any amount alike
    modules  what its module takes, 1 to 48 GiB, times 0.5 to 2, both evenly by their logarithm
    few      1 to 4 GiB, and each tenth 40 to 100 GiB

The bound is the greatest of the longest test, seconds times memory over the memory of all cards, and seconds over
workers. It may not be reachable: memory cannot be cut to fit.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from xdist.remote import Producer
from xdist.scheduler import LoadScheduling

from testkit.gpus._grant import Record, reserves, starts
from testkit.gpus._ledger import LATER, LATER_LOOK, LOOK, PATIENCE
from testkit.gpus._order import start_order
from testkit.gpus._pinning import spread

SUITES = Path(__file__).resolve().parents[1] / "tests" / "data" / "gpus" / "suites.json"
GIB = 2**30
CARD = 139 * GIB
SEEDS = (1, 2, 3)


class Replayed(NamedTuple):
    """A test: its module, seconds, bytes on a card."""

    module: str
    seconds: float
    memory: int


Tests = list[Replayed]
Rule = Callable[[random.Random, Sequence[tuple[str, float]]], Tests]


# ------------------------------------------------------------------ a run of pytest-xdist without its processes


class Worker:
    """What the scheduler sees of a worker, and the worker's loop: it starts a test when it knows the next one."""

    def __init__(self, place: int, run: Replay, cards: list[str]) -> None:
        self.gateway = SimpleNamespace(id=f"gw{place}")
        self.place, self.run, self.cards = place, run, cards
        self.shutting_down = False
        self.queue: deque[int | None] = deque()  # None: shut down
        self.test: int | None = None
        self.coming: int | None = None
        self.busy = False
        self.began = 0.0

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.queue.extend(indices)
        self.run.at(self.run.now, self.go_on)

    def shutdown(self) -> None:
        self.shutting_down = True
        self.queue.append(None)
        self.run.at(self.run.now, self.go_on)

    def go_on(self) -> None:
        if self.busy:
            return
        if self.test is None and self.queue and self.queue[0] is not None:
            self.test = self.queue.popleft()
        if self.test is not None and self.queue:
            self.coming, self.busy, self.began = self.queue.popleft(), True, self.run.now
            self.run.begin(self, self.test)

    def end(self) -> None:
        self.test, self.coming, self.busy = self.coming, None, False
        self.run.at(self.run.now, self.go_on)


class Span(NamedTuple):
    """A test that ran: ``start`` is when its memory was granted."""

    test: int
    card: str
    start: float
    end: float


class Replay:
    """A run of ``tests``, in this order, by ``workers`` on ``cards`` of ``size`` bytes each.

    ``chunk``: --maxschedchunk. Without ``ledger`` nobody waits: a test whose memory is not there fails, in the time
    that it would have taken. Without ``pinned`` workers see all cards. ``makespan``: seconds; ``failed``: tests.
    """

    def __init__(
        self,
        tests: Tests,
        cards: int,
        workers: int,
        *,
        chunk: int | None = 1,
        ledger: bool = True,
        pinned: bool = True,
        patience: float = PATIENCE,
        size: int = CARD,
    ) -> None:
        self.tests, self.size, self.ledger, self.patience = tests, size, ledger, patience
        self.now, self.failed = 0.0, 0
        self.spans: list[Span] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._events_seen = self._number = 0
        self._records: dict[str, Record] = {}
        self._waiting: dict[str, tuple[float, Worker]] = {}
        self._used = dict.fromkeys(map(str, range(cards)), 0)
        shares = spread(workers, list(self._used)) if pinned else [list(self._used)] * workers
        config: Any = SimpleNamespace(getoption={"maxschedchunk": chunk}.get, getvalue=lambda _: ["popen"] * workers)
        self._scheduler = LoadScheduling(config, Producer("replay", enabled=False))
        everybody = [Worker(place, self, share) for place, share in enumerate(shares)]
        for worker in everybody:
            self._scheduler.add_node(worker)
        for worker in everybody:
            self._scheduler.add_node_collection(worker, [str(place) for place in range(len(tests))])
        self._scheduler.schedule()
        while self._events:
            self.now, _, act, arguments = heapq.heappop(self._events)
            act(*arguments)
        assert not self._scheduler.has_pending
        self.makespan = max((span.end for span in self.spans), default=0.0)

    def at(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        self._events_seen += 1
        heapq.heappush(self._events, (when, self._events_seen, act, arguments))

    def begin(self, worker: Worker, test: int) -> None:
        memory = self.tests[test].memory
        if self.ledger:
            self._number += 1
            name = f"{self._number:09}"
            totals = dict.fromkeys(worker.cards, self.size)
            self._records[name] = Record(self._number, "", "", ((worker.place, 0),), 1, memory, False, totals)
            self._waiting[name] = (self.now, worker)
            self._look(name)
            self.at(self.now + self.patience, self._look, name)
            return
        card = min(worker.cards, key=self._used.__getitem__)
        if self._used[card] + memory > self.size:
            self.failed += 1
            card = ""
        else:
            self._used[card] += memory
        self.at(self.now + self.tests[test].seconds, self._end, worker, test, card, self.now)

    def _look(self, name: str) -> None:
        """As ``Ticket.poll`` does."""
        if name not in self._waiting:
            return
        since, worker = self._waiting[name]
        ticket = self._records[name]
        # who has no card in common does not count, and there are many
        near = {one: record for one, record in self._records.items() if record.totals.keys() & ticket.totals.keys()}
        if cards := starts(near, name):
            del self._waiting[name]
            self._records[name] = replace(ticket, cards=cards, granted=True)
            assert worker.test is not None
            self.at(self.now + self.tests[worker.test].seconds, self._end, worker, worker.test, name, self.now)
            if ticket.cards not in ((), cards):
                self._others_look(ticket)
        elif not ticket.cards and self.now >= since + self.patience:
            self._records[name] = replace(ticket, cards=reserves(near, name))

    def _others_look(self, changed: Record) -> None:
        """Whoever waits for one of these cards looks when it looks next."""
        for name, (since, _) in self._waiting.items():
            if self._records[name].totals.keys() & set(changed.cards):
                waited = self.now - since
                pause = LOOK if waited < LATER else LATER_LOOK
                self.at(since + pause * (int(waited / pause) + 1), self._look, name)

    def _end(self, worker: Worker, test: int, what: str, start: float) -> None:
        """``what``: the grant, or the card if there is no ledger; "" for one that failed."""
        if self.ledger:
            record = self._records.pop(what)
            self.spans.append(Span(test, record.cards[0], start, self.now))
            self._others_look(record)
        else:
            self.spans.append(Span(test, what, start, self.now))
            if what:
                self._used[what] -= self.tests[test].memory
        worker.end()
        self._scheduler.mark_test_complete(worker, test, self.now - worker.began)


def bound(tests: Tests, cards: int, workers: int, size: int = CARD) -> float:
    """Seconds below which no order, no grants and no scheduler can come."""
    longest = max(test.seconds for test in tests)
    memory = math.fsum(test.seconds * test.memory for test in tests) / (size * cards)
    return max(longest, memory, math.fsum(test.seconds for test in tests) / workers)


def ordered(tests: Tests, workers: int, known: Sequence[float] | None = None) -> Tests:
    """As testkit starts them; ``known``: seconds to go by, if not those that they will take."""
    seconds = [test.seconds for test in tests] if known is None else known
    return [tests[place] for place in start_order(seconds, [""] * len(tests), workers)]


# ------------------------------------------------------------------ suites


def recorded(run: int = 0) -> dict[str, list[tuple[str, float]]]:
    """Module and seconds of each test, by suite; ``run`` 1 is the second recording, of those that have one."""
    suites = json.loads(SUITES.read_text(encoding="utf-8"))
    return {
        name: [(module, spent) for module, runs in modules.items() for spent in runs[run]]
        for name, modules in suites.items()
        if all(len(runs) > run for runs in modules.values())
    }


def even(chance: random.Random, tests: Sequence[tuple[str, float]]) -> Tests:
    return [Replayed(module, spent, int(chance.uniform(5, 60) * GIB)) for module, spent in tests]


def by_module(chance: random.Random, tests: Sequence[tuple[str, float]]) -> Tests:
    def alike(low: float, high: float) -> float:
        return math.exp(chance.uniform(math.log(low), math.log(high)))

    usual = {module: alike(1, 48) for module in sorted({module for module, _ in tests})}
    return [Replayed(module, spent, int(usual[module] * alike(0.5, 2) * GIB)) for module, spent in tests]


def few(chance: random.Random, tests: Sequence[tuple[str, float]]) -> Tests:
    return [
        Replayed(module, spent, int((chance.uniform(40, 100) if chance.random() < 0.1 else chance.uniform(1, 4)) * GIB))
        for module, spent in tests
    ]


RULES: dict[str, Rule] = {"even": even, "modules": by_module, "few": few}


def sixty(seed: int) -> Tests:
    """60 tests of 5 to 60 GiB and 0.2 to 3 s."""
    chance = random.Random(seed)
    return even(chance, [("", chance.uniform(0.2, 3)) for _ in range(60)])


# ------------------------------------------------------------------ tables


def mean(figures: Sequence[float]) -> str:
    return f"{statistics.mean(figures):.2f} ({max(figures):.2f})"


def beside(each: int = 8) -> None:
    """Makespan over the bound, beside what people do without a ledger."""
    print(f"makespan / bound, mean (worst) of 3 suites and {len(SEEDS)} seeds, {each} workers a card")
    heads = ("serial", "one a card", "% devices", "fail there", "as collected", "testkit")
    print(f"  {'':14}" + "".join(f"{head:>16}" for head in heads))
    everything: list[float] = []
    for name, rule in RULES.items():
        for cards in (1, 2, 4, 8):
            columns: list[list[float]] = [[] for _ in heads]
            workers = each * cards
            for suite in recorded().values():
                for seed in SEEDS:
                    tests = rule(random.Random(seed), suite)
                    least = bound(tests, cards, workers)
                    free = Replay(tests, cards, workers, chunk=None, ledger=False)
                    columns[0].append(sum(test.seconds for test in tests) / least)
                    columns[1].append(Replay(tests, cards, cards, chunk=None).makespan / least)
                    columns[2].append(free.makespan / least)
                    columns[3].append(free.failed / len(tests))
                    columns[4].append(Replay(tests, cards, workers, chunk=None).makespan / least)
                    columns[5].append(Replay(ordered(tests, workers), cards, workers).makespan / least)
            cells = [mean(column) for column in columns]
            cells[3] = f"{statistics.mean(columns[3]):.1%}"
            print(f"  {name:8}{cards:2} GPU" + "".join(f"{cell:>16}" for cell in cells))
            everything += columns[5]
    print(f"  testkit, mean of all: {statistics.mean(everything):.3f}\n")


def from_the_run_before() -> None:
    """Ordered by the first recording, replayed with the seconds of the second."""
    print("  ordered by one recording, replayed with the next (torchmetrics, joblib): makespan / bound")
    suites, next_time = recorded(), recorded(1)
    for name, rule in RULES.items():
        cells = []
        for cards in (1, 2, 4, 8):
            found = []
            for suite, spent in next_time.items():
                tests = rule(random.Random(1), spent)
                known = [seconds for _, seconds in suites[suite]]
                there = Replay(ordered(tests, 8 * cards, known), cards, 8 * cards)
                found.append(there.makespan / bound(tests, cards, 8 * cards))
            cells.append(f"{cards} GPU {mean(found)}")
        print(f"  {name:8}  " + "  ".join(cells))


def workers_a_card() -> None:
    """How many are worth it; over the bound of the cards alone, so that rows compare."""
    print("\n  workers a card: makespan / bound without workers, mean of the suites on 1 and 2 cards; 20 suites of 60")
    for each in (2, 4, 6, 8, 12, 16):
        cells = []
        for name, rule in RULES.items():
            found = []
            for cards in (1, 2):
                for suite in recorded().values():
                    tests = rule(random.Random(1), suite)
                    there = Replay(ordered(tests, each * cards), cards, each * cards)
                    found.append(there.makespan / bound(tests, cards, 10**9))
            cells.append(f"{name} {statistics.mean(found):.2f}")
        made = [sixty(seed) for seed in range(20)]
        found = [Replay(ordered(tests, each), 1, each).makespan / bound(tests, 1, 10**9) for tests in made]
        print(f"  {each:4}  " + "  ".join(cells) + f"  60 tests {statistics.mean(found):.3f}")


def what_if() -> None:
    """Other rules than testkit's, for who would change them."""
    print("\n  what if: makespan / bound, mean of the suites on 1, 2 and 4 cards, 8 workers a card")
    cases: dict[str, dict[str, Any]] = {
        f"as it is: pinned, later ones pass for {PATIENCE:.0f} s": {},
        "later ones never pass": {"patience": 0.0},
        "later ones pass for 30 s": {"patience": 30.0},
        "later ones always pass": {"patience": math.inf},
        "each worker sees all cards": {"pinned": False},
        "each sees all, later ones pass for 30 s": {"pinned": False, "patience": 30.0},
    }
    for case, options in cases.items():
        cells = []
        for name, rule in RULES.items():
            found = []
            for cards in (1, 2, 4):
                for suite in recorded().values():
                    tests = rule(random.Random(1), suite)
                    there = Replay(ordered(tests, 8 * cards), cards, 8 * cards, **options)
                    found.append(there.makespan / bound(tests, cards, 8 * cards))
            cells.append(f"{name} {mean(found)}")
        print(f"  {case:42}  " + "  ".join(cells))


def main() -> None:
    beside()
    from_the_run_before()
    workers_a_card()
    what_if()


if __name__ == "__main__":
    main()
