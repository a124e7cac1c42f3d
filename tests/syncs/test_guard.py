"""forbid and allow: what they do where, for whom, how often. A plain warning with torch's text stands for a wait."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from testkit.errors import KitWarning, SyncsError
from testkit.syncs import _arming, _region, _switch, allow, forbid, sight
from testkit.syncs._guard import region
from testkit.syncs._region import Region
from testkit.syncs._seen import Seen

TEXT = "called a synchronizing CUDA operation (Triggered internally at somewhere.)"
WAITS = "the host waits for the device"


def wait() -> None:
    warnings.warn(TEXT, UserWarning, stacklevel=2)


def in_a_thread(body: Callable[[], Any]) -> Any:
    """What ``body`` returns, or the exception that it raised."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(body())
        except Exception as error:  # noqa: BLE001  # whatever it is, the test looks at it
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert answers, "the thread did not end"
    return answers[0]


def test_a_wait_is_an_error_that_names_the_line_the_region_and_a_fix() -> None:
    with pytest.raises(SyncsError, match=WAITS) as caught, forbid():
        wait()
    headline, fix = str(caught.value).split("\n")
    assert "test_guard.py" in headline
    assert " in wait (forbid() at " in headline
    assert "'warnings.warn(TEXT, UserWarning, stacklevel=2)' at " in headline  # nobody named the operator
    assert fix.startswith("next: ")


def test_a_region_without_a_wait_is_silent() -> None:
    with forbid() as seen:
        assert _region.current() is seen
    assert seen.found == []
    assert _region.current() is None


def test_warn_warns_at_the_line_that_waits_each_time() -> None:
    def body() -> None:
        for _ in range(2):
            wait()

    with pytest.warns(KitWarning, match=WAITS) as caught, forbid("warn"):
        body()
    assert [warning.filename for warning in caught] == [__file__] * 2


def test_a_message_that_quotes_a_waiting_line_is_no_wait_itself() -> None:
    def body() -> None:
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)

    with pytest.warns(KitWarning, match="called a synchronizing CUDA operation") as caught, forbid("warn"):
        body()
    assert len(caught) == 1


def test_census_lists_all_and_forbids_nothing() -> None:
    @allow("metrics")
    def measure() -> None:
        wait()

    block = forbid("census")
    seen = block.__enter__()
    wait()
    measure()
    with pytest.warns(KitWarning, match=r"waits 2 times \(forbid\('census'\) at"):
        block.__exit__(None, None, None)
    assert [found.allowed for found in seen.found] == [None, "metrics"]


def test_a_budget_tolerates_that_many_and_then_names_all() -> None:
    with forbid(at_most=2):
        wait()
        wait()
        with pytest.raises(SyncsError, match=r"3 times, 2 allowed") as caught:
            wait()
    text = str(caught.value)
    assert len([line for line in text.split("\n") if line.startswith("  3 x 'warnings.warn(TEXT")]) == 1, text


def test_waits_of_one_line_are_one_line_of_the_message_with_their_number() -> None:
    def other() -> None:
        warnings.warn(TEXT, UserWarning, stacklevel=1)

    with forbid(at_most=1001):
        for _ in range(1000):
            wait()
        other()
        with pytest.raises(SyncsError, match="1002 times, 1001 allowed") as caught:
            wait()
    lines = str(caught.value).split("\n")
    assert [line.split(" x ")[0] for line in lines if " x '" in line] == ["  1,001", "  1"]


def test_a_message_lists_so_many_places_and_counts_the_rest() -> None:
    body = compile("\n".join(["notice(seen)"] * 30), "many.py", "exec")
    with pytest.raises(SyncsError, match="30 times, 29 allowed") as caught, forbid(at_most=29):
        exec(body, {"notice": _region.notice, "seen": Seen("aten.item", "read")})
    lines = str(caught.value).split("\n")
    assert sum("  1 x aten.item (read) at many.py:" in line for line in lines) == 20
    assert "  and 10 waits at other places" in lines


def carries_on() -> None:
    """As production code does."""
    with contextlib.suppress(Exception):
        wait()


LOSING = {
    "called": lambda: forbid_around(carries_on),
    "decorated": lambda: forbid()(carries_on)(),
    "a later one is caught by the block itself": lambda: forbid_around(carries_on, and_wait=True),
}


def forbid_around(body: Callable[[], None], and_wait: bool = False) -> None:
    with forbid():
        body()
        if and_wait:
            with pytest.raises(SyncsError, match=WAITS):
                wait()


@pytest.mark.parametrize("how", LOSING)
def test_an_error_that_the_guarded_code_swallows_is_raised_at_the_end(how: str) -> None:
    with pytest.raises(SyncsError, match="something inside caught that error"):
        LOSING[how]()


def test_another_error_is_not_covered_by_a_swallowed_one() -> None:
    def body() -> None:
        with forbid():
            carries_on()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        body()


def test_an_error_that_the_block_itself_expects_is_not_raised_again() -> None:
    with forbid() as seen, pytest.raises(SyncsError, match=WAITS):
        wait()
    with forbid(), pytest.raises(SyncsError, match=WAITS):
        wait()
    assert seen.frame is None


def test_tasks_whose_errors_are_gathered_as_values_are_the_blocks_own_business() -> None:
    async def waits() -> None:
        wait()

    async def main() -> list[Any]:
        with forbid():
            return await asyncio.gather(asyncio.create_task(waits()), return_exceptions=True)

    assert [type(one).__name__ for one in asyncio.run(main())] == ["HostWaits"]


def test_what_waits_in_allow_is_not_heard_by_the_guard_around_it() -> None:
    with forbid() as seen, allow("a reason"):
        wait()
        assert _region.current() is None
    assert seen.found == []


def test_a_line_that_was_allowed_first_is_forbidden_afterwards() -> None:
    def here() -> None:
        warnings.warn(TEXT, UserWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("default")  # once per location
        with allow("outside of any region"), pytest.warns(UserWarning, match="synchronizing"):
            here()
        with forbid():
            with allow("inside"):
                here()
            with pytest.raises(SyncsError, match=WAITS):
                here()


def test_regions_leave_once_per_location_of_other_warnings_alone() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        for _ in range(3):
            with forbid():
                warnings.warn("something else", UserWarning, stacklevel=1)
    assert [str(one.message) for one in heard] == ["something else"]


def test_the_innermost_region_decides() -> None:
    with pytest.warns(KitWarning, match=WAITS), forbid(), forbid("warn"):
        wait()
    with pytest.raises(SyncsError, match=WAITS), forbid("warn"), allow("not what is inside"), forbid():
        wait()


def test_a_census_around_a_guard_hears_what_the_guard_refuses() -> None:
    heard: list[_region.Found] = []
    with region(Region("census", sink=heard.append)):
        with pytest.raises(SyncsError, match=WAITS), forbid():
            wait()
        with forbid(), allow("why"):
            wait()
        wait()
    assert [found.allowed for found in heard] == [None, "why", None]


def test_another_thread_is_never_policed() -> None:
    with forbid() as seen:
        assert in_a_thread(wait) is None
        with ThreadPoolExecutor(1) as pool:
            pool.submit(wait).result(30)
    assert seen.found == []


def test_an_allow_in_another_thread_does_not_open_this_one() -> None:
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with allow("mine alone"):
            inside.set()
            done.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(30)
    try:
        with pytest.raises(SyncsError, match=WAITS), forbid():
            wait()
    finally:
        done.set()
        thread.join(30)


def test_a_thread_that_inherits_the_context_is_not_policed() -> None:
    """asyncio.to_thread and the threads of free-threaded Python run in a copy of the context."""
    with forbid() as seen:
        copy = contextvars.copy_context()
        assert in_a_thread(lambda: copy.run(_region.watched)) is False
        assert in_a_thread(lambda: copy.run(_region.notice, Seen("x", "read"))) is None
    assert seen.found == []


def test_a_region_of_another_thread_forbids_there() -> None:
    def body() -> None:
        with forbid():
            wait()

    assert isinstance(in_a_thread(body), SyncsError)


def test_tasks_started_inside_are_policed_and_others_are_not() -> None:
    async def main() -> list[Any]:
        go = asyncio.Event()

        async def child() -> None:
            await go.wait()
            _region.notice(Seen("x", "read"))

        before = asyncio.create_task(child())
        with forbid():
            inside = asyncio.create_task(child())
            go.set()
            answers = await asyncio.gather(before, inside, return_exceptions=True)
            answers += await asyncio.gather(asyncio.to_thread(_region.notice, Seen("x", "read")))
        late = asyncio.create_task(child())
        return [type(one) for one in answers] + [await late]

    first, second, third, fourth = asyncio.run(main())
    assert first is type(None)
    assert issubclass(second, SyncsError)
    assert (third, fourth) == (type(None), None)


def test_a_task_that_outlives_its_region_is_free() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def child() -> None:
            await go.wait()
            _region.notice(Seen("x", "read"))

        with forbid():
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        go.set()
        await task

    asyncio.run(main())


def test_a_region_may_be_left_in_another_context() -> None:
    """As the halves of an asynchronous fixture are run."""
    block = forbid()
    block.__enter__()
    contextvars.copy_context().run(block.__exit__, None, None, None)
    assert not _region.watched()


def test_a_decorated_function_keeps_its_name_and_is_guarded_at_each_call() -> None:
    @forbid(at_most=1)
    def step(times: int) -> int:
        """Its own words."""
        for _ in range(times):
            wait()
        return times

    assert (step.__name__, step.__doc__) == ("step", "Its own words.")
    assert step(1) == step(1) == 1
    with pytest.raises(SyncsError, match="2 times, 1 allowed"):
        step(2)


def test_a_decorated_function_takes_its_arguments_as_before_on_and_off() -> None:
    class Model:
        @forbid()
        def step(self, a: int, b: int = 2, *, c: int, d: int = 4) -> tuple[int, ...]:
            return a, b, c, d

    @forbid()
    def open_ended(a: int, /, *rest: int, **named: int) -> tuple[Any, ...]:
        return a, rest, named

    was = _switch.off
    for on in (True, False):
        _switch.switch(on=on)
        try:
            assert Model().step(1, c=3) == Model().step(b=2, a=1, c=3, d=4) == (1, 2, 3, 4)
            assert open_ended(1, 2, a=3) == (1, (2,), {"a": 3})
            with pytest.raises(TypeError, match="'c'"):
                Model().step(1)  # type: ignore[call-arg]
        finally:
            _switch.switch(on=not was)
    assert list(inspect.signature(Model.step).parameters) == ["self", "a", "b", "c", "d"]


def test_a_decorated_coroutine_is_guarded_across_its_awaits() -> None:
    @forbid()
    async def step() -> None:
        await asyncio.sleep(0)
        wait()

    assert inspect.iscoroutinefunction(step)
    with pytest.raises(SyncsError, match=WAITS):
        asyncio.run(step())


def test_a_decorated_generator_is_guarded_in_its_steps_and_not_between_them() -> None:
    @forbid(at_most=1)
    def steps() -> Iterator[int]:
        got = yield 1
        assert got == "sent"
        wait()
        try:
            yield 2
        except KeyError:
            yield 3
        wait()

    generator = steps()
    assert inspect.isgeneratorfunction(steps)
    assert next(generator) == 1
    assert not _region.watched()
    assert generator.send("sent") == 2  # type: ignore[attr-defined]
    assert generator.throw(KeyError("thrown")) == 3  # type: ignore[attr-defined]
    with pytest.raises(SyncsError, match="2 times, 1 allowed"):
        next(generator)


def test_a_decorated_generator_returns_and_closes_as_before() -> None:
    ends: list[str] = []

    @forbid()
    def steps() -> Iterator[int]:
        try:
            yield 1
        finally:
            ends.append("closed")
        return 5  # the value of `yield from`

    generator = steps()
    next(generator)
    generator.close()  # type: ignore[attr-defined]
    assert ends == ["closed"]

    def outer() -> Iterator[Any]:
        yield (yield from steps())

    assert list(outer()) == [1, 5]


def test_a_decorated_asynchronous_generator_is_guarded_in_its_steps() -> None:
    @forbid()
    async def steps() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(0)
        wait()

    async def main() -> None:
        async for _ in steps():
            assert not _region.watched()

    with pytest.raises(SyncsError, match=WAITS):
        asyncio.run(main())


def test_allow_decorates_as_well() -> None:
    @allow("warm-up")
    def step() -> None:
        wait()

    with forbid():
        step()


def test_first_only_is_per_place_in_the_source() -> None:
    def once() -> None:
        with allow("set up once", first_only=True):
            wait()

    def another() -> None:
        with allow("set up once", first_only=True):
            wait()

    with forbid() as seen:
        once()
        another()
        with pytest.raises(SyncsError, match=WAITS):
            once()
    assert len(seen.found) == 1


def test_first_only_of_a_decorator_is_per_function() -> None:
    @allow("set up once", first_only=True)
    def once() -> None:
        wait()

    with forbid():
        once()
        with pytest.raises(SyncsError, match=WAITS):
            once()


BAD = [
    (lambda: forbid(mode="loud"), "mode is 'loud'"),
    (lambda: forbid(mode=True), "mode is True"),
    (lambda: forbid(at_most=True), "at_most is True"),
    (lambda: forbid(at_most=-1), "at_most is -1"),
    (lambda: forbid(at_most=1.0), r"at_most is 1\.0"),
    (lambda: forbid("census", at_most=1), "at_most=1 means nothing to a census"),
    (lambda: forbid(copies=1), "copies is 1"),
    (lambda: forbid(wait), "got a function instead of a mode"),
    (lambda: allow(""), "needs a reason, not ''"),
    (lambda: allow(wait), "needs a reason, not <function wait"),
    (lambda: allow("why", first_only=1), "first_only is 1"),
    (lambda: forbid()(int), "cannot decorate a class"),
    (lambda: allow("why")(staticmethod(wait)), "cannot decorate staticmethod"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_argument_is_refused_with_its_value(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SyncsError, match=message):
        call()


def test_one_object_may_be_entered_again_and_by_several_threads() -> None:
    forbidding, allowing = forbid(), allow("shared by all")
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with forbidding, allowing:
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with forbidding as outer, allowing:
        thread.start()
        assert inside.wait(30)
        with forbidding as inner:
            assert _region.current() is inner
            with allowing:
                wait()
        leave.set()
        thread.join(30)
        wait()
    assert outer.found == inner.found == []


def test_the_filters_and_the_hook_are_as_before_afterwards() -> None:
    before = list(warnings.filters)
    with forbid(), forbid("warn"):
        assert warnings.filters != before
    assert list(warnings.filters) == before


def test_a_filter_list_that_comes_back_later_holds_nothing_that_acts() -> None:
    block, catching = forbid(), warnings.catch_warnings()
    block.__enter__()
    catching.__enter__()
    block.__exit__(None, None, None)
    catching.__exit__(None, None, None)
    with pytest.warns(UserWarning, match="called a synchronizing"):
        wait()


def test_filters_replaced_inside_without_a_word_hear_waits_all_the_same() -> None:
    before = warnings.filters
    theirs: list[Any] = [("ignore", None, Warning, None, 0)]
    try:
        with forbid():
            warnings.filters = theirs
            with pytest.raises(SyncsError, match=WAITS):
                wait()
    finally:
        warnings.filters = before
    assert theirs == [("ignore", None, Warning, None, 0)]
    assert type(warnings) is type(sys)


def test_filters_emptied_inside_without_a_word_are_an_error() -> None:
    emptied = pytest.raises(SyncsError, match=r"may have gone unseen: the list warnings\.filters was emptied")
    with warnings.catch_warnings(), emptied, forbid():
        warnings.filters[:] = []  # type: ignore[index]  # a list, whatever typeshed says


def test_functions_that_use_warnings_travel_to_other_processes_from_inside() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    with forbid():
        assert cloudpickle.loads(cloudpickle.dumps(warnings)) is warnings


def test_filters_are_added_and_removed_inside_as_ever() -> None:
    def names() -> list[str]:
        return [one[0] for one in warnings.filters if one is not _arming._FILTER]

    with warnings.catch_warnings():
        warnings.resetwarnings()
        with forbid():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("error", ImportWarning)
            warnings.filterwarnings("always", category=FutureWarning, append=True)
            warnings.simplefilter("ignore", DeprecationWarning)  # comes first again, and is there once
            warnings.filterwarnings("always", category=FutureWarning, append=True)
            assert names() == ["ignore", "error", "always"]
        assert names() == ["ignore", "error", "always"]
        assert len(warnings.filters) == 3


def test_threads_that_catch_warnings_meanwhile_hide_nothing() -> None:
    stop, interval = threading.Event(), sys.getswitchinterval()

    def churn() -> None:
        while not stop.is_set():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")

    thread, before = threading.Thread(target=churn), warnings.filters
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(200):
            with pytest.raises(SyncsError, match=WAITS), forbid():
                wait()
            with forbid():
                pass
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join(30)
        warnings.filters = before


@pytest.fixture
def switched_off() -> Iterator[None]:
    was = _switch.switch(on=False)
    yield
    _switch.switch(on=was)


@pytest.mark.usefixtures("switched_off")
def test_switched_off_all_regions_are_one_null_context() -> None:
    if "torch._dynamo" not in sys.modules:
        assert forbid() is allow("why") is allow("another")
    with pytest.warns(UserWarning, match="called a synchronizing"), forbid() as seen:
        wait()
    assert seen.found == []
    assert forbid()(wait) is wait


def test_what_was_decorated_before_the_switch_asks_at_each_call() -> None:
    @forbid()
    def step() -> None:
        _region.notice(Seen("x", "read"))

    was = _switch.switch(on=False)
    step()
    _switch.switch(on=was)
    with pytest.raises(SyncsError, match=WAITS):
        step()


CHILD = """
import sys
from testkit.syncs import allow, forbid
def f(): pass
print(forbid()(f) is f, allow("x")(f) is f, forbid() is allow("y"), "torch" in sys.modules, "pytest" in sys.modules)
"""


def child(value: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", _switch.VARIABLE: value, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_environment_takes_regions_out_and_nothing_heavy_is_imported() -> None:
    assert child("off").stdout.split() == ["True", "True", "True", "False", "False"]
    assert child("").stdout.split() == ["False", "False", "False", "False", "False"]


def test_an_unknown_word_in_the_environment_is_refused() -> None:
    assert "syncs: TESTKIT_SYNCS is 'of' (the environment)" in child("of").stderr


def test_sight_says_what_can_be_seen_here() -> None:
    assert "simulated device" in sight() or "torch warns" in sight()


def test_torchs_note_about_its_prototype_is_swallowed_while_arming() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with forbid():
            warnings.warn("Synchronization debug mode is a prototype feature and ...", UserWarning, stacklevel=1)


@pytest.mark.parametrize("device", ["NPU", "MUSA"])
def test_the_texts_of_other_backends_are_known(device: str) -> None:
    with pytest.raises(SyncsError, match=WAITS), forbid():
        warnings.warn(f"called a synchronizing {device} operation", UserWarning, stacklevel=1)


class FakeBackend:
    """What ``torch.cuda`` offers to a guard."""

    def __init__(self, mode: int = 0, started: bool = True) -> None:
        self.mode, self.started = mode, started
        self.modes: list[int] = []
        self.queued: list[Callable[[], None]] = []

    def is_initialized(self) -> bool:
        return self.started

    def is_available(self) -> bool:
        return True

    def get_sync_debug_mode(self) -> int:
        return self.mode

    def set_sync_debug_mode(self, mode: int) -> None:
        self.mode = mode
        self.modes.append(mode)

    def _lazy_call(self, call: Callable[[], None]) -> None:
        self.queued.append(call)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    fake = FakeBackend()
    monkeypatch.setattr(_arming, "_built", lambda name: fake if name == "cuda" else None)
    return fake


def test_torch_is_armed_once_for_nested_regions_and_gets_its_mode_back(backend: FakeBackend) -> None:
    with forbid(), forbid("warn"):
        assert backend.mode == _arming.WARN
    assert backend.modes == [_arming.WARN, _arming.OFF]


def test_while_the_simulated_device_stands_in_no_real_backend_is_armed(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = pytest.importorskip("testkit.syncs._simulated")
    monkeypatch.setattr(simulated, "_inside", 1)
    with forbid():
        pass
    assert backend.modes == []
    assert backend.queued == []


def test_a_mode_that_somebody_sets_inside_stays(backend: FakeBackend) -> None:
    with forbid():
        backend.mode = _arming.ERROR
    assert backend.mode == _arming.ERROR


def test_torch_switched_off_inside_is_an_error(backend: FakeBackend) -> None:
    with pytest.raises(SyncsError, match=r"torch\.cuda\.set_sync_debug_mode switched"), forbid():
        backend.mode = _arming.OFF


def test_the_users_own_error_mode_is_kept_and_named(backend: FakeBackend) -> None:
    backend.mode = _arming.ERROR
    with pytest.raises(SyncsError, match=r'set_sync_debug_mode\("error"\) was set outside') as caught, forbid():
        raise RuntimeError("called a synchronizing CUDA operation")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert backend.modes == []


def test_the_users_own_warnings_are_heard_outside_of_regions(backend: FakeBackend) -> None:
    backend.mode = _arming.WARN
    with warnings.catch_warnings(record=True) as heard, forbid() as seen:
        warnings.simplefilter("default")
        in_a_thread(wait)
        with pytest.raises(SyncsError, match=WAITS):
            wait()
    assert [str(one.message) for one in heard] == [TEXT]
    assert len(seen.found) == 1
    assert backend.mode == _arming.WARN


def test_warnings_that_only_we_asked_for_are_not_shown_to_others(backend: FakeBackend) -> None:
    with warnings.catch_warnings(record=True) as heard, forbid():
        warnings.simplefilter("always")
        in_a_thread(wait)
    assert heard == []


def test_a_backend_that_starts_inside_is_armed_then(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_arming, "_queued", set())
    backend.started = False
    with forbid():
        assert backend.mode == _arming.OFF
        backend.started = True
        for call in backend.queued:
            call()
        assert backend.mode == _arming.WARN
    assert backend.mode == _arming.OFF
    for call in backend.queued:  # no region is open any more
        call()
    assert backend.mode == _arming.OFF
