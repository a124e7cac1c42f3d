"""``call_budget``: planted ways to call too often, each with the first call too many and where it came from."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest

from testkit.errors import LawsError
from testkit.laws import Budget, LawBroken, call_budget

Per = Any


class Request:
    """Has no hash, as dataclasses that compare."""

    def __init__(self, name: str, tokens: int) -> None:
        self.name, self.tokens = name, tokens

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and other.tokens == self.tokens

    def __repr__(self) -> str:
        return self.name

    __hash__ = None  # type: ignore[assignment]  # planted


class Cache:
    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.pending = True

    def lookup(self, request: Request, tokens: int = 0) -> int:
        return self.known.get(request.name, 0)

    def scan(self, request: Request, tokens: int) -> int:
        return tokens


class Scheduler:
    """Two requests wait; each is looked up once."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.waiting = [Request("r0", 64), Request("r1", 64)]

    def step(self) -> None:
        for request in self.waiting:
            self.schedule(request)

    def schedule(self, request: Request) -> None:
        self.cache.lookup(request, tokens=request.tokens)
        self.cache.scan(request, request.tokens)
        self.waiting = []


class RetriesEachStep(Scheduler):
    """RETRY where a pending hit was meant."""

    def schedule(self, request: Request) -> None:
        self.cache.lookup(request)


class LooksUpTwice(Scheduler):
    def schedule(self, request: Request) -> None:
        if self.cache.lookup(request) == 0:
            self.cache.lookup(request)


class LooksUpForEachBlock(Scheduler):
    def schedule(self, request: Request) -> None:
        for _ in range(request.tokens // 16):
            self.cache.lookup(request)


class LooksUpEveryPair(Scheduler):
    def schedule(self, request: Request) -> None:
        for other in self.waiting:
            self.cache.lookup(other)


class ScansFromTheStart(Scheduler):
    def schedule(self, request: Request) -> None:
        for done in range(0, request.tokens, 16):
            self.cache.scan(request, done + 16)


class FallsBackOnErrors(Scheduler):
    def schedule(self, request: Request) -> None:
        for _ in range(3):
            with suppress(KeyError):
                self.cache.lookup(request)
                raise KeyError("never there")


class CallsInASort(Scheduler):
    def step(self) -> None:
        self.waiting.sort(key=lambda request: self.cache.lookup(request))
        super().step()


class LooksUpInAThread(Scheduler):
    def schedule(self, request: Request) -> None:
        threads = [threading.Thread(target=self.cache.lookup, args=(request,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class LooksUpWhatIsDone(Scheduler):
    def schedule(self, request: Request) -> None:
        self.cache.lookup(request)
        self.cache.lookup(Request("done", 0))


def per_request(scheduler: Scheduler) -> Per:
    return "request"


def per_step(scheduler: Scheduler) -> Per:
    return scheduler, "step"


def per_name(scheduler: Scheduler) -> Per:
    return lambda request, tokens=0: request.name


BUGS: dict[type[Scheduler], tuple[str, Callable[[Scheduler], Per], float, str, str]] = {
    RetriesEachStep: ("lookup", per_request, 1, "3 calls for request r0, with a budget of 1", "schedule"),
    LooksUpTwice: ("lookup", per_step, 2, "4 calls for step 1, with a budget of 2", "schedule"),
    LooksUpForEachBlock: ("lookup", per_step, 2, "8 calls for step 1, with a budget of 2", "schedule"),
    LooksUpEveryPair: ("lookup", per_name, 3, "6 calls for key 'r0', with a budget of 3", "schedule"),
    ScansFromTheStart: ("scan", per_step, 128, "320 of work in 8 calls for step 1, with a budget of 128", "schedule"),
    FallsBackOnErrors: ("lookup", per_request, 3, "9 calls for request r0, with a budget of 3", "schedule"),
    CallsInASort: ("lookup", per_request, 1, "2 calls for request r0, with a budget of 1", "<lambda>"),
    LooksUpInAThread: ("lookup", per_request, 2, "9 calls for request r0, with a budget of 2", "run"),
    LooksUpWhatIsDone: ("lookup", per_name, 3, "6 calls for key 'done', with a budget of 3", "schedule"),
}
"""Each with the method, what it is counted by, the budget, the first line, and the function that calls."""


def work_of(request: Request, tokens: int) -> int:
    return tokens


def within(budget: Budget, block: Callable[[], object], times: int = 1) -> Budget:
    with budget:
        for _ in range(times):
            block()
    return budget


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_each_bug_is_found_with_the_first_call_beyond_the_budget(bug: type[Scheduler]) -> None:
    method, per, at_most, message, caller = BUGS[bug]
    scheduler = bug()
    work = work_of if "work" in message else None
    budget = call_budget(scheduler.cache, method, at_most=at_most, per=per(scheduler), work=work)
    with pytest.raises(LawBroken, match=rf"^laws: Cache\.{method}: {re.escape(message)}\n") as caught:
        within(budget, lambda: scheduler.step(), times=3)
    lines = caught.value.evidence
    assert any(re.match(rf"the first beyond it: call \d+, {method}\(", line) for line in lines)
    assert re.match(rf" +\d+  \S+\.py:\d+ in .*{caller}$", lines[lines.index("called from") + 1])
    assert method not in vars(scheduler.cache)


@pytest.mark.parametrize(
    ("per", "at_most"),
    [(per_request, 1), (per_step, 2), (per_name, 1), (lambda scheduler: None, 2), (lambda scheduler: None, 2.5)],
)
def test_a_scheduler_within_its_budget_passes(per: Callable[[Scheduler], Per], at_most: float) -> None:
    scheduler = Scheduler()
    budget = call_budget(scheduler.cache, "lookup", at_most=at_most, per=per(scheduler))
    within(budget, lambda: scheduler.step(), times=3)
    assert budget.calls == 2
    assert sum(budget.spent.values()) == 2


class Awaits:
    async def fetch(self, key: str) -> str:
        await asyncio.sleep(0)
        return key

    async def all(self) -> list[str]:
        return await asyncio.gather(*(self.fetch(key) for key in "abc"))


class Yields:
    def rows(self, table: str) -> Iterator[int]:
        yield from range(100)


class Recurses:
    def walk(self, depth: int) -> int:
        return depth and 1 + self.walk(depth - 1)


class Threaded:
    def __init__(self) -> None:
        self.done: list[int] = []

    def put(self, item: int) -> None:
        self.done.append(item)

    def run(self) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda item: self.put(item), range(100)))


class Remembers:
    def __init__(self) -> None:
        self.known: dict[int, int] = {}

    def compute(self, n: int) -> int:
        return n * n

    def get(self, n: int) -> int:
        if n not in self.known:
            self.known[n] = self.compute(n)
        return self.known[n]


HEALTHY: dict[str, tuple[Any, str, dict[str, Any], Callable[[Any], Any], Any]] = {
    "coroutines": (
        Awaits(),
        "fetch",
        {"at_most": 1, "per": "key"},
        lambda one: asyncio.run(one.all()),
        ["a", "b", "c"],
    ),
    "a generator": (Yields(), "rows", {"at_most": 1}, lambda one: sum(one.rows("t")), 4950),
    "recursion": (Recurses(), "walk", {"at_most": 1, "per": "depth"}, lambda one: one.walk(50), 50),
    "threads": (Threaded(), "put", {"at_most": 1, "per": "item"}, lambda one: one.run() or len(one.done), 100),
    "a memory": (
        Remembers(),
        "compute",
        {"at_most": 1, "per": "n"},
        lambda one: [one.get(3) for _ in range(9)],
        [9] * 9,
    ),
}


@pytest.mark.parametrize("system", HEALTHY)
def test_a_healthy_system_passes_and_does_what_it_did(system: str) -> None:
    target, method, how, run, result = HEALTHY[system]
    with call_budget(target, method, **how):
        assert run(target) == result


def test_the_failure_shows_all_that_is_beyond_the_budget() -> None:
    scheduler = RetriesEachStep()
    scheduler.waiting.append(Request("r2", 8))
    steps = iter([3, 2, 2])  # requests that wait

    def step() -> None:
        del scheduler.waiting[next(steps) :]
        scheduler.step()

    with pytest.raises(LawBroken, match="3 calls for request r0") as caught:
        within(call_budget(scheduler.cache, "lookup", at_most=2, per="request"), step, times=3)
    text = re.sub(r"\S*test_budget\.py:\d+ in (RetriesEachStep\.)?", "test_budget.py:N in ", str(caught.value))
    assert text.splitlines() == [
        "laws: Cache.lookup: 3 calls for request r0, with a budget of 2",
        "  request  calls",
        "  r0           3",
        "  r1           3",
        "  1 within it",
        "  the first beyond it: call 3, lookup(r0)",
        "  called from",
        "    6  test_budget.py:N in schedule",
        "next: look at the places above, the most frequent first, or raise at_most",
    ]


def test_objects_without_a_hash_are_told_by_what_they_are() -> None:
    """Two requests that are equal are still two."""
    scheduler = Scheduler()
    assert scheduler.waiting[0] == scheduler.waiting[1]
    with call_budget(scheduler.cache, "lookup", at_most=1, per="request") as budget:
        scheduler.step()
        scheduler.step()
    assert [repr(key) for key in budget.spent] == ["r0", "r1"]


def test_a_class_stands_for_all_its_objects_and_gets_them_as_first_argument() -> None:
    def block() -> None:
        for scheduler in (Scheduler(), Scheduler()):
            scheduler.schedule(scheduler.waiting[0])

    budget = within(call_budget(Cache, "lookup", at_most=1, per=lambda cache, request, tokens: cache), block)
    assert [type(key) for key in budget.spent] == [Cache, Cache]
    with pytest.raises(LawBroken, match=r"^laws: Cache\.lookup: 2 calls, with a budget of 1"):
        within(call_budget(Cache, "lookup", at_most=1), block)
    assert not hasattr(Cache.lookup, "__wrapped__")


class Kinds:
    @staticmethod
    def static(x: int) -> int:
        return x

    @classmethod
    def of_class(cls, x: int) -> tuple[type, int]:
        return cls, x

    def __getitem__(self, x: int) -> int:
        return x


class Child(Kinds):
    pass


def test_static_class_and_special_methods_and_functions_of_modules_keep_what_they_do() -> None:
    module = ModuleType("some.module")
    module.function = lambda x: x  # type: ignore[attr-defined]  # a module of ours
    checks: list[tuple[Any, str, Callable[[], Any], Any]] = [
        (Kinds, "static", lambda: Kinds.static(1), 1),
        (Kinds, "static", lambda: Child().static(1), 1),
        (Kinds, "of_class", lambda: Child.of_class(1), (Child, 1)),
        (Child, "of_class", lambda: Child.of_class(1), (Child, 1)),
        (Kinds, "__getitem__", lambda: Child()[1], 1),
        (module, "function", lambda: module.function(x=1), 1),
    ]
    for target, method, call, result in checks:
        before = dict(vars(target))
        with call_budget(target, method, at_most=1, per="x") as budget:
            assert call() == result
        assert (budget.calls, dict(budget.spent)) == (1, {1: 1})
        assert dict(vars(target)) == before
        with pytest.raises(LawBroken, match=f"{method}: 2 calls"):
            within(call_budget(target, method, at_most=1), call, times=2)


def test_a_frozen_object_can_be_watched() -> None:
    class Frozen:
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

        def call(self) -> int:
            return 1

    frozen = Frozen()
    with call_budget(frozen, "call", at_most=1):
        assert frozen.call() == 1
    assert vars(frozen) == {}


def test_a_loop_that_would_not_end_is_ended() -> None:
    cache, request = Cache(), Request("r0", 1)

    def endless() -> None:
        while True:
            with suppress(Exception):
                cache.lookup(request)

    with pytest.raises(LawBroken, match=r"2,001 calls, with a budget of 2\n  the block was ended there"):
        within(call_budget(cache, "lookup", at_most=2), endless)
    within(call_budget(cache, "lookup", at_most=1), lambda: cache.lookup(request))


def test_what_the_block_raises_comes_first() -> None:
    cache = Cache()

    def block() -> None:
        cache.lookup(Request("r0", 1))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        within(call_budget(cache, "lookup", at_most=0), block)
    assert "lookup" not in vars(cache)


def test_a_method_that_is_never_called_is_an_error_unless_that_is_the_budget() -> None:
    scheduler = Scheduler()
    with pytest.raises(LawsError, match=r"Cache\.lookup was never called in the block") as caught:
        within(call_budget(Cache(), "lookup", at_most=3), scheduler.step)
    assert not isinstance(caught.value, AssertionError)
    within(call_budget(scheduler.cache, "lookup", at_most=0), lambda: None)


def test_a_step_that_never_begins_is_an_error() -> None:
    scheduler = Scheduler()
    budget = call_budget(scheduler.cache, "lookup", at_most=3, per=(Scheduler(), "step"))
    with pytest.raises(LawsError, match=r"Scheduler\.step, which begins a step, was never called"):
        within(budget, scheduler.step)


@pytest.mark.parametrize(
    ("target", "method", "how", "message"),
    [
        (Cache(), "lokup", {}, r"Cache\.lokup has no such method .*\nnext: the nearest is lookup"),
        (Cache(), "known", {}, r"Cache\.known is not called"),
        (Cache(), len, {}, "method is <built-in function len>, not a name"),
        (Kinds(), "__getitem__", {}, r"looks up __getitem__ in the class.*\nnext: give the class: Kinds"),
        ((1, 2), "index", {}, "an object of tuple has no room"),
        (Cache(), "lookup", {"at_most": -1}, "at_most is -1"),
        (Cache(), "lookup", {"at_most": True}, "at_most is True"),
        (Cache(), "lookup", {"at_most": float("nan")}, "at_most is nan"),
        (Cache(), "lookup", {"per": "reqest"}, r"per is 'reqest', .*\nnext: it has: request, tokens"),
        (Cache(), "lookup", {"per": 3}, "per is 3"),
        (Cache(), "lookup", {"per": (1, 2, 3)}, r"per is \(1, 2, 3\)"),
        (Cache(), "lookup", {"per": (Cache(), "step")}, r"Cache\.step has no such method"),
        (Cache(), "lookup", {"work": 3}, "work is 3"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(target: Any, method: Any, how: Any, message: str) -> None:
    with pytest.raises(LawsError, match=message):
        call_budget(target, method, **{"at_most": 1, **how})


def test_a_class_of_c_is_refused() -> None:
    with pytest.raises(LawsError, match=r"list\.append cannot be replaced: cannot set"):
        within(call_budget(list, "append", at_most=1), lambda: None)


def test_work_that_is_no_amount_is_refused() -> None:
    cache = Cache()
    budget = call_budget(cache, "lookup", at_most=1, work=lambda request: None)  # type: ignore[arg-type,return-value]  # planted
    with pytest.raises(LawsError, match="work returned None"):
        within(budget, lambda: cache.lookup(Request("r0", 1)))
