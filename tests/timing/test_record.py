"""The cores of recording: clocks, fixtures, libraries, names of runs, budgets, and rows that meet their reports."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from testkit.errors import TimingError
from testkit.timing._budget import Budget, parse_budget, parse_seconds, shown
from testkit.timing._clock import Clock, Nested, offset_of
from testkit.timing._fixture_clock import ALONE, FixtureClock
from testkit.timing._gather import Gatherer, letter_of
from testkit.timing._libraries import Libraries, gpu_peak
from testkit.timing._nodes import Nodes, without_group
from testkit.timing._read import read, read_folder
from testkit.timing._record import Recorder, peak_memory
from testkit.timing._run import Collected, Fixture, Imported, Jit, Record, Run, Timed, Whole, Worker
from testkit.timing._run_id import name_run
from testkit.timing._slow import PastCapture, SlowWatch
from testkit.timing._wire import pack, unpack

NASTY = 'a\x1b\ud800\n"test_x[é]'


class Hands:
    """A clock that goes on only when told."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    def spend(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(Clock, "now", staticmethod(hands))
    return hands


# Clocks


def test_no_replacement_of_the_time_functions_reaches_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, lambda: 0.0)
    before = Clock.now()
    assert Clock.now() > before > 0
    assert Clock.epoch() > 1e9


def test_no_module_of_ours_has_a_time_function_among_its_names() -> None:
    """freezegun replaces such names in every module that is loaded."""
    import sys

    real = (time.time, time.perf_counter, time.monotonic, time.sleep)
    ours = {name: module for name, module in sys.modules.items() if name.startswith("testkit.timing.")}
    assert len(ours) > 10
    found = [(name, key) for name, module in ours.items() for key, value in vars(module).items() if value in real]
    assert not found


def test_a_span_loses_what_lies_in_it(hands: Hands) -> None:
    spans = Nested()
    outer = spans.enter()
    hands.spend(1)
    inner = spans.enter()
    hands.spend(10)
    assert spans.leave(inner) == (101, 10)
    hands.spend(2)
    assert spans.leave(outer) == (100, 3)


def test_a_span_that_nobody_ended_ends_with_the_one_around_it(hands: Hands) -> None:
    spans = Nested()
    outer = spans.enter()
    lost = spans.enter()
    hands.spend(5)
    assert spans.leave(outer) == (100, 5)
    assert spans.leave(lost)[1] == 0


def test_the_offset_of_another_clock_lies_within_its_shortest_round_trip() -> None:
    # It is 50 s behind; messages take 1 s there, 3 s back, later 0.25 s and 0.25 s.
    assert offset_of([(100, 51, 104), (200, 150.25, 200.5)]) == pytest.approx(50.0)
    assert abs(offset_of([(100, 51, 104)]) - 50) <= 2


def test_clocks_that_may_be_the_same_are_the_same() -> None:
    assert offset_of([(100, 100.9, 101)]) == 0.0


# Fixtures


def fixture(name: str, scope: str = "function") -> Any:
    return SimpleNamespace(argname=name, scope=scope, ids=None)


class Definition(SimpleNamespace):
    """pytest's FixtureDef as far as it is looked at; it compares by identity, and so can be a key."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def definition(name: str, scope: str = "function", ids: Any = None) -> Any:
    return Definition(argname=name, scope=scope, ids=ids)


REQUEST = SimpleNamespace()


def fixture_clock() -> tuple[FixtureClock, list[Fixture]]:
    rows: list[Fixture] = []
    clock = FixtureClock("gw0", rows.append)
    clock.at_file("a.py")
    return clock, rows


def used(clock: FixtureClock, hands: Hands, known: Any, setup: float, teardown: float, request: Any = REQUEST) -> None:
    depth = clock.enter()
    hands.spend(setup)
    clock.set_up(known, depth, request, "a.py::test_x")
    clock.tear_down(known)
    hands.spend(teardown)
    clock.torn_down(known)


def test_a_shared_fixture_is_told_after_its_set_up_and_as_a_whole(hands: Hands) -> None:
    clock, rows = fixture_clock()
    used(clock, hands, definition("engine", "module"), 2, 1)
    half = Fixture("engine", "module", "", "a.py::test_x", "gw0", 100, 2)
    assert rows == [half, Fixture("engine", "module", "", "a.py::test_x", "gw0", 100, 2, 1, 102)]
    assert clock.shared == 3


def test_short_fixtures_of_a_function_are_added_up_by_file(hands: Hands) -> None:
    clock, rows = fixture_clock()
    for _ in range(3):
        used(clock, hands, definition("tmp"), ALONE / 4, ALONE / 4)
    used(clock, hands, definition("long"), ALONE, 0)
    used(clock, hands, definition("once"), ALONE / 4, 0)
    assert [(row.name, row.count) for row in rows] == [("long", 1)]
    clock.at_file("b.py")
    assert [(row.name, row.count, row.node) for row in rows[1:]] == [("tmp", 3, "a.py"), ("once", 1, "a.py::test_x")]
    assert rows[1].setup == pytest.approx(3 * ALONE / 4)
    assert rows[1].teardown_start is None
    assert clock.shared == 0


def test_an_end_that_is_told_more_than_once_counts_once(hands: Hands) -> None:
    """pytest 8.0 says so once more for each fixture that asked for the one that ended."""
    clock, rows = fixture_clock()
    known = definition("engine", "module")
    used(clock, hands, known, 2, 1)
    hands.spend(7)
    clock.torn_down(known)
    assert len(rows) == 2
    assert clock.shared == 3


def test_a_fixture_that_was_never_torn_down_is_told_all_the_same(hands: Hands) -> None:
    clock, rows = fixture_clock()
    known = definition("value")
    for _ in range(2):  # the second time without a teardown in between, as when a test is run again
        depth = clock.enter()
        hands.spend(1)
        clock.set_up(known, depth, REQUEST, "a.py::test_x")
    clock.finish()
    assert [(row.setup, row.teardown_start) for row in rows] == [(1, None), (1, None)]


@pytest.mark.parametrize(
    ("param", "ids", "text"),
    [("fp16", None, "fp16"), (None, None, "None"), (2.5, None, "2.5"), (Hands, None, "Hands")]
    + [([1], None, "engine1"), ([1], ("zero", "one"), "one"), ([1], ("zero",), "engine1")],
)
def test_a_parameter_is_shown_as_in_an_id(hands: Hands, param: Any, ids: Any, text: str) -> None:
    clock, rows = fixture_clock()
    request = SimpleNamespace(param=param, param_index=1)
    used(clock, hands, definition("engine", "module", ids), 1, 1, request)
    assert rows[-1].param == text


class Hostile:
    """Its text and its attributes are errors, also the one that ``isinstance`` looks at."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyError(name)

    def __str__(self) -> str:
        raise KeyError("planted")


class HostileText(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise KeyError("planted")


@pytest.mark.parametrize("made", [Hostile, HostileText])
def test_a_parameter_that_raises_when_looked_at_is_shown_by_number(hands: Hands, made: Any) -> None:
    clock, rows = fixture_clock()
    request = SimpleNamespace(param=made(), param_index=1)
    used(clock, hands, definition("engine", "module"), 1, 1, request)
    assert rows[-1].param == "engine1"


# The recorder


def test_what_goes_wrong_while_measuring_is_a_row_and_told_once(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder("gw0")
    monkeypatch.setattr(recorder, "_libraries", None)
    recorder.begin_test("a.py::test_x", 1)
    recorder.begin_test("a.py::test_x", 1)
    (row,) = recorder.drain()
    assert isinstance(row, Record)
    assert row.kind == "not recorded"
    assert row.data["problem"].startswith("AttributeError: ")


def test_an_interrupt_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt("planted")

    recorder = Recorder("gw0")
    monkeypatch.setattr(recorder.fixtures, "set_up", interrupt)
    with pytest.raises(KeyboardInterrupt, match="planted"):
        recorder.fixture_is_up(None, 0, REQUEST, "a.py::test_x")
    assert not recorder.outbox


def test_neither_a_replaced_getrusage_nor_another_platform_changes_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    before = peak_memory()
    monkeypatch.setattr(resource, "getrusage", None)
    monkeypatch.setattr("sys.platform", "win32")
    assert peak_memory() >= before > 1 << 20


def test_rows_that_cannot_travel_are_said_to_be_lost() -> None:
    recorder = Recorder("gw0")
    recorder.outbox.append(Record("odd", data={"any": object()}))
    (row,) = unpack(recorder.packed())
    assert isinstance(row, Record)
    assert (row.kind, "is not plain" in row.data["problem"]) == ("not recorded", True)


def test_a_test_is_not_billed_for_what_it_shares(hands: Hands) -> None:
    recorder = Recorder("main")
    engine = definition("engine", "module")
    recorder.begin_test("a.py::test_x", 1)
    recorder.begin_phase()
    depth = recorder.fixtures.enter()
    hands.spend(10)
    recorder.fixtures.set_up(engine, depth, REQUEST, "a.py")
    hands.spend(1)
    recorder.end_phase(0, "p")
    recorder.begin_phase()
    hands.spend(2)
    recorder.end_phase(1, "p")
    recorder.begin_phase()
    hands.spend(3)
    recorder.fixtures.tear_down(engine)
    hands.spend(20)
    recorder.fixtures.torn_down(engine)
    recorder.end_phase(2, "p")
    (test,) = [row for row in recorder.drain() if isinstance(row, Timed)]
    assert (test.start, test.setup, test.call, test.teardown) == (110, 1, 2, 3)
    assert test.rss > 1 << 20


def test_the_garbage_collector_is_timed_by_test_and_left_alone_afterwards(hands: Hands) -> None:
    import gc

    before = list(gc.callbacks)
    recorder = Recorder("main")
    recorder.start()
    try:
        recorder.begin_test("a.py::test_x", 1)
        (listener,) = [callback for callback in gc.callbacks if callback not in before]
        listener("start", {})
        hands.spend(0.25)
        listener("stop", {})
        recorder.begin_phase()
        recorder.end_phase(2, "p")
        (test,) = [row for row in recorder.drain() if isinstance(row, Timed)]
        assert test.gc == 0.25
    finally:
        recorder.finish()
        recorder.finish()
    assert gc.callbacks == before


def test_what_is_announced_with_its_seconds_began_so_long_ago(hands: Hands) -> None:
    recorder = Recorder("main")
    recorder.announce("cleanup", "a.py::test_x", {"step": "gc", "seconds": 4.0, "odd": {1}})
    recorder.announce("plan", "", ["no", "seconds"])
    step, plan = recorder.drain()
    assert isinstance(step, Record)
    assert isinstance(plan, Record)
    assert (step.start, step.data) == (96, {"step": "gc", "seconds": 4.0, "odd": "{1}"})
    assert plan.start == 100


def test_what_is_announced_together_ran_one_after_another(hands: Hands) -> None:
    recorder = Recorder("main")
    recorder.announce("cleanup", "", {"step": "long ago", "seconds": 1.0})
    hands.spend(50)
    for seconds in (4.0, 2.0, 3.0):
        recorder.announce("cleanup", "", {"seconds": seconds})
    assert [row.start for row in recorder.drain() if isinstance(row, Record)] == [99, 141, 145, 147]


def test_rows_come_through_the_wire_as_they_were() -> None:
    rows = [
        Timed(NASTY, "gw0", 1.5, 0.1, 0.2, 0.3, 4096, "pff", 2, 0.01, 7, Jit(1.5, 2, 3)),
        Timed("plain"),
        Fixture(NASTY, "module", NASTY, "a.py", "gw0", 1.0, 2.0, 3.0, None, 4),
        Collected("a.py", "gw0", 1.0),
        Imported("a.py", "gw0", 0.5),
        Record("kind", NASTY, {"any": [1, None, "thing"]}, "gw0", 2.0),
        Worker("gw0", "host", 42, machine={"cpus": 2}),
        Whole.of([NASTY, "b.py::test_y"]),
    ]
    text = pack(rows)
    assert text.isascii()
    assert unpack(text) == rows


# Libraries


@pytest.fixture
def libraries() -> Iterator[Libraries]:
    libraries = Libraries()
    yield libraries
    libraries.close()


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> Any:
    import sys

    made: Any = ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the libraries is loaded, whatever else this process has imported."""
    import sys

    for name in ("torch", "torch._guards", "torch._dynamo.utils", "torch.utils.cpp_extension", "triton"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("bare")
def test_without_the_libraries_nothing_was_compiled(libraries: Libraries) -> None:
    assert libraries.take() is None
    assert gpu_peak() == 0


@pytest.mark.usefixtures("bare")
def test_triton_tells_its_compilations_to_us_and_to_whoever_listened_before(
    monkeypatch: pytest.MonkeyPatch, libraries: Libraries
) -> None:
    heard: list[bool] = []
    knobs = SimpleNamespace(listener=lambda **facts: heard.append(facts["cache_hit"]))
    module(monkeypatch, "triton", knobs=SimpleNamespace(compilation=knobs))
    before = knobs.listener
    libraries.look()
    libraries.look()
    for hit in (False, False, True):
        knobs.listener(src="", times=SimpleNamespace(total=500_000), cache_hit=hit)
    assert libraries.take() == Jit(1.5, 2, 1)
    assert libraries.take() is None
    assert heard == [False, False, True]
    libraries.close()
    assert knobs.listener is before


@pytest.mark.usefixtures("bare")
def test_an_older_triton_is_timed_between_its_hooks(
    monkeypatch: pytest.MonkeyPatch, hands: Hands, libraries: Libraries
) -> None:
    function = SimpleNamespace(cache_hook=None, compiled_hook=None)
    module(monkeypatch, "triton", runtime=SimpleNamespace(jit=SimpleNamespace(JITFunction=function)))
    libraries.look()
    hook: Any = function.cache_hook
    assert hook(key="k") is False  # True would stop the compilation
    hands.spend(3)
    hook = function.compiled_hook
    assert not hook(key="k")
    assert libraries.take() == Jit(3.0, 1, 0)
    libraries.close()
    assert function.cache_hook is function.compiled_hook is None


@pytest.mark.usefixtures("bare")
def test_kernels_that_inductor_compiles_count_once(monkeypatch: pytest.MonkeyPatch, libraries: Libraries) -> None:
    knobs = SimpleNamespace(listener=None)
    module(monkeypatch, "triton", knobs=SimpleNamespace(compilation=knobs))
    module(monkeypatch, "torch._guards", CompileContext=SimpleNamespace(current_compile_id=lambda: "0/0"))
    libraries.look()
    listener: Any = knobs.listener
    listener(times=SimpleNamespace(total=500_000), cache_hit=False)
    assert libraries.take() is None


@pytest.mark.usefixtures("bare")
def test_inductor_is_read_between_looks_also_after_a_reset(
    monkeypatch: pytest.MonkeyPatch, libraries: Libraries
) -> None:
    times: dict[str, list[float]] = {"_compile.compile_inner": [2.0], "other": [50.0]}
    counters = {"inductor": {"fxgraph_cache_miss": 1}}
    module(monkeypatch, "torch._dynamo.utils", compilation_time_metrics=times, counters=counters)
    assert libraries.take() == Jit(2.0, 1, 0)
    times["_compile.compile_inner"].append(3.0)
    times["backward._backward_impl"] = [0.5]
    counters["inductor"] |= {"fxgraph_cache_miss": 2, "fxgraph_cache_hit": 4}
    assert libraries.take() == Jit(3.5, 1, 4)
    times.clear()  # torch._dynamo.reset()
    counters.clear()
    assert libraries.take() is None
    times["_compile.compile_inner"] = [1.0, 0.25]
    counters["inductor"] = {"fxgraph_cache_miss": 1}
    assert libraries.take() == Jit(1.25, 1, 0)


@pytest.mark.usefixtures("bare")
def test_an_extension_is_compiled_if_its_files_change_and_else_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, hands: Hands, libraries: Libraries, tmp_path: Path
) -> None:
    def build(name: str, build_directory: str, fail: bool = False) -> str:
        hands.spend(5)
        if fail:
            raise RuntimeError("planted")
        (Path(build_directory) / f"{name}.so").touch(exist_ok=False)
        return name

    def load(name: str, build_directory: str) -> str:
        hands.spend(1)
        return name

    extension = module(monkeypatch, "torch.utils.cpp_extension", _jit_compile=build)
    libraries.look()
    assert extension._jit_compile("one", str(tmp_path)) == "one"
    with pytest.raises(RuntimeError, match="planted"):
        extension._jit_compile("two", build_directory=str(tmp_path), fail=True)
    assert libraries.take() == Jit(10.0, 1, 1)
    libraries.close()
    assert extension._jit_compile is build
    extension._jit_compile = load
    other = Libraries()
    other.look()
    extension._jit_compile("one", str(tmp_path / "not there"))
    assert other.take() == Jit(1.0, 0, 1)
    other.close()


@pytest.mark.usefixtures("bare")
def test_what_a_test_puts_in_a_librarys_place_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, libraries: Libraries
) -> None:
    knobs = SimpleNamespace(listener=None)
    module(monkeypatch, "triton", knobs=SimpleNamespace(compilation=knobs))
    module(monkeypatch, "torch.utils.cpp_extension", _jit_compile=type)  # without a signature
    module(monkeypatch, "torch._dynamo.utils", compilation_time_metrics=5)
    libraries.look()
    assert knobs.listener is not None
    assert libraries.take() is None


class Cuda:
    def __init__(self, peaks: list[int], ready: bool = True) -> None:
        self.peaks, self.ready = peaks, ready

    def is_initialized(self) -> bool:
        return self.ready

    def device_count(self) -> int:
        return len(self.peaks)

    def max_memory_allocated(self, device: int) -> int:
        if self.peaks[device] < 0:
            raise RuntimeError("device lost")
        return self.peaks[device]

    def reset_peak_memory_stats(self, device: int) -> None:
        self.peaks[device] = 1


@pytest.mark.usefixtures("bare")
def test_gpu_memory_is_the_peak_of_one_device_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "torch", cuda=Cuda([5 << 20, 9 << 20]))
    assert gpu_peak() == 9 << 20
    assert gpu_peak() == 1


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("cuda", [Cuda([7], ready=False), Cuda([-1]), Cuda([]), None, SimpleNamespace()], ids=range(5))
def test_without_cuda_in_use_there_is_no_gpu_memory(monkeypatch: pytest.MonkeyPatch, cuda: Any) -> None:
    module(monkeypatch, "torch", cuda=cuda)
    assert gpu_peak() == 0


# What a run is called


def test_without_ci_a_run_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = {name_run({}, tmp_path, "", 0.0) for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("19700101T000000-") and attempt == 1 for name, attempt in names)


@pytest.mark.parametrize(
    ("environ", "run", "attempt"),
    [
        ({"GITHUB_RUN_ID": "77", "GITHUB_JOB": "gpu", "GITHUB_RUN_ATTEMPT": "3"}, "77-gpu", 3),
        ({"CI_PIPELINE_ID": "77", "CI_JOB_NAME": "unit tests 2/4"}, "77-unit tests", 1),
        ({"BUILDKITE_BUILD_ID": "b-7", "BUILDKITE_STEP_ID": "s", "BUILDKITE_RETRY_COUNT": "0"}, "b-7-s", 1),
        ({"BUILDKITE_BUILD_ID": "b-7", "BUILDKITE_RETRY_COUNT": "2"}, "b-7", 3),
        ({"CIRCLE_WORKFLOW_ID": "w", "CIRCLE_JOB": "test"}, "w-test", 1),
        ({"TESTKIT_RUN_ID": "mine", "GITHUB_RUN_ID": "77"}, "mine", 1),
    ],
)
def test_a_run_is_named_by_its_ci_system(tmp_path: Path, environ: dict[str, str], run: str, attempt: int) -> None:
    assert name_run(environ, tmp_path, "1/4", 0.0) == (run, attempt)


def test_a_shard_that_runs_again_is_the_next_attempt_where_nobody_counts(tmp_path: Path) -> None:
    environ = {"CIRCLE_WORKFLOW_ID": "w"}
    (tmp_path / "w.2of4.1.timing.jsonl.partial").touch()
    assert name_run(environ, tmp_path, "2/4", 0.0) == ("w", 2)
    assert name_run(environ, tmp_path, "3/4", 0.0) == ("w", 1)


def test_a_second_run_of_pytest_in_one_job_is_no_second_attempt(tmp_path: Path) -> None:
    environ = {"GITHUB_RUN_ID": "77", "GITHUB_RUN_ATTEMPT": "2"}
    (tmp_path / "77.2.timing.jsonl").touch()
    assert name_run(environ, tmp_path, "", 0.0) == ("77-2", 2)


def test_runs_of_one_name_that_begin_at_once_are_different_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTKIT_RUN_ID", "same")
    both_have_looked = threading.Barrier(2, timeout=60)
    first = threading.local()

    def name(*args: Any) -> tuple[str, int]:
        named = name_run(*args)
        if not hasattr(first, "is_over"):
            first.is_over = True
            both_have_looked.wait()
        return named

    monkeypatch.setattr("testkit.timing._gather.name_run", name)

    def begin(_: int) -> None:
        gatherer = Gatherer(Clock.now(), 1000.0, Budget())
        gatherer.open(tmp_path, "", [], pytest.__version__)
        gatherer.close(0)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(begin, range(2)))
    found = {Path(run.path).name: (run.header.run, run.header.attempt) for run in read_folder(tmp_path)}
    assert found == {"same.1.timing.jsonl": ("same", 1), "same.2.timing.jsonl": ("same", 2)}


# Budgets


def test_a_budget_is_read_from_words_or_lines() -> None:
    expected = Budget(30.0, 300.0, 1200.0, "from x")
    assert parse_budget("test=30s,file=5m run=20m", "from x") == expected
    assert parse_budget(["run=20 m".replace(" ", ""), "test=30", "file=300s"], "from x") == expected
    assert parse_budget("\ntest=30s\nfile=5m\nrun=20m\n", "from x") == expected
    assert parse_budget("file=1.5h", "from x") == Budget(None, 5400.0, None, "from x")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("suite=3s", "budget 'suite=3s' is not known"),
        ("test", "budget 'test' is not known"),
        ("test=1s test=2s", "the budget of a test is given twice"),
        ("", "no budget in ''"),
        ("test=", "'' is no time"),
        ("test=-1s", "'-1s' is no time"),
        ("test=0", "'0' is no time"),
        ("test=3parsec", "'3parsec' is no time"),
        ("test=nan", "'nan' is no time"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(text: str, problem: str) -> None:
    with pytest.raises(TimingError, match=rf"timing: {problem}.* \(from ini timing_budget\)"):
        parse_budget(text, "from ini timing_budget")


def test_both_figures_are_said_and_never_look_alike() -> None:
    budget = Budget(test=30.0, source="from --timing-budget")
    assert budget.over("a.py::test_x", "test", 30.0) is None
    assert budget.over("a.py", "file", 1e9) is None
    error = budget.over("a.py::test_x", "test", 30.004)
    assert str(error) == (
        "timing: a.py::test_x took 30.004 s, its budget is 30 s (from --timing-budget)\n"
        "next: make it faster, or raise test=30 s"
    )


def test_seconds_are_shown_short() -> None:
    assert [shown(value) for value in (0.043, 1.0, 59.9994, 300.0, 1234.56)] == [
        "0.043 s",
        "1 s",
        "59.999 s",
        "300 s",
        "1,234.6 s",
    ]
    assert parse_seconds("300 ms", "") == 0.3


# Slow tests


def test_a_slow_test_is_named_at_each_multiple_while_it_runs(hands: Hands) -> None:
    lines: list[str] = []
    said = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        said.set()

    watch = SlowWatch(0.01)
    watch.begin("a.py::test_quick")
    watch.begin("a.py::test_slow")
    watch.end("a.py::test_quick")
    watch.start(say)
    try:
        for spent in (0.015, 0.02):
            hands.spend(spent)
            assert said.wait(60)
            said.clear()
        watch.end("a.py::test_slow")
    finally:
        watch.stop()
    hands.spend(1)
    assert lines == ["SLOW [> 0.01 s] a.py::test_slow", "SLOW [> 0.03 s] a.py::test_slow"]


def reporter(terminal: Any, column: int) -> Any:
    """pytest's, which left its terminal in that column."""
    return SimpleNamespace(_tw=SimpleNamespace(_file=terminal, width_of_current_line=column), currentfspath="a.py")


def test_a_line_goes_past_what_captures_and_begins_a_new_one(tmp_path: Path) -> None:
    with (tmp_path / "terminal").open("w", encoding="utf-8") as terminal:
        terminal.write("a.py ..")
        terminal.flush()
        known = reporter(terminal, 7)
        past = PastCapture(known)
        past.say("SLOW one")
        past.say("SLOW tw\u00f6 \ud800")
        terminal.write(".")
        terminal.flush()
        known._tw.width_of_current_line = 8
        past.say("SLOW three")
        past.close()
        past.close()
    lines = ["a.py ..", "SLOW one", "SLOW tw\u00f6 \\ud800", ".", "SLOW three", ""]
    assert (tmp_path / "terminal").read_text("utf-8").split("\n") == lines
    assert known.currentfspath is None


def test_a_terminal_that_is_no_file_is_written_to_as_it_is() -> None:
    terminal = io.StringIO()
    past = PastCapture(reporter(terminal, 0))
    past.say("SLOW one")
    past.close()
    assert terminal.getvalue() == "SLOW one\n"


# Rows and reports


class Desk:
    """A gatherer with a run file, and reports as pytest makes them."""

    def __init__(self, folder: Path, hands: Hands, budget: Budget) -> None:
        self.hands = hands
        self.gatherer = Gatherer(hands(), 1000.0, budget)
        self.gatherer.open(folder, "", ["-q"], pytest.__version__)

    def report(self, nodeid: str, when: str, outcome: str = "passed", worker: str = "gw0", **more: Any) -> None:
        known = {"when": when, "outcome": outcome, "duration": 0.5, outcome: True}
        report = SimpleNamespace(**{"passed": False, "failed": False, "skipped": False, **known, **more})
        self.gatherer.report(worker, nodeid, report)

    def ran(self, nodeid: str, row: Timed | None = None) -> None:
        """All reports of a test that passed; its row, if there is one, comes with the last."""
        self.report(nodeid, "setup")
        self.report(nodeid, "call")
        if row is not None:
            self.gatherer.take("gw0", [row])
        self.report(nodeid, "teardown")

    def run(self) -> Run:
        self.gatherer.settle()
        self.gatherer.close(0)
        assert self.gatherer.writer is not None
        return read(self.gatherer.writer.path)


@pytest.fixture
def desk(tmp_path: Path, hands: Hands) -> Desk:
    return Desk(tmp_path, hands, Budget())


def test_a_row_takes_its_outcome_from_the_reports_and_the_clock_of_the_run(desk: Desk) -> None:
    desk.gatherer.worker(Worker("gw0", offset=40.0))
    desk.ran("a.py::test_x", Timed("a.py::test_x", "gw0", start=62.0, setup=1, call=2, teardown=3))
    (test,) = desk.run().tests
    assert test == Timed("a.py::test_x", "gw0", 2.0, 1, 2, 3)


def test_what_ran_where_nobody_measures_has_pytests_own_seconds(desk: Desk) -> None:
    desk.hands.spend(10)
    desk.ran("a.py::test_x")
    (test,) = desk.run().tests
    assert test == Timed("a.py::test_x", "gw0", 9.5, 0.5, 0.5, 0.5)


def test_all_reports_may_come_after_the_row_as_with_reruns(desk: Desk) -> None:
    for attempt, outcome in ((1, "rerun"), (2, "passed")):
        desk.gatherer.take("gw0", [Timed("a.py::test_x", "gw0", 100.0, attempt=attempt)])
        for when in ("setup", "call", "teardown"):
            desk.report("a.py::test_x", when, outcome if when == "call" else "passed")
    assert [(test.phases, test.attempt) for test in desk.run().tests] == [("prp", 1), ("ppp", 2)]


def test_attempts_that_were_never_reported_are_reruns(desk: Desk) -> None:
    rows = [Timed("a.py::test_x", "gw0", 100.0, phases="pfp"), Timed("a.py::test_x", "gw0", 101.0, attempt=2)]
    desk.gatherer.take("gw0", rows)
    desk.ran("a.py::test_x")
    assert [test.phases for test in desk.run().tests] == ["prp", "ppp"]


def test_an_attempt_of_which_not_all_is_reported_keeps_what_its_row_says(desk: Desk) -> None:
    desk.gatherer.take("gw0", [Timed("a.py::test_x", "gw0", 100.0, phases="pff")])
    desk.report("a.py::test_x", "setup")
    desk.report("a.py::test_x", "call", "rerun")
    desk.gatherer.take("gw0", [Timed("a.py::test_x", "gw0", 101.0, attempt=2)])
    for when in ("setup", "call", "teardown"):
        desk.report("a.py::test_x", when)
    assert [test.phases for test in desk.run().tests] == ["prf", "ppp"]


def test_one_more_failure_of_the_teardown_is_the_same_tests(desk: Desk) -> None:
    """Clean-up that fails after a test reports so, when all of the test has been reported."""
    desk.ran("a.py::test_x", Timed("a.py::test_x", "gw0", 100.0))
    desk.report("a.py::test_x", "teardown", "failed")
    desk.ran("a.py::test_y", Timed("a.py::test_y", "gw0", 101.0))
    assert [(test.id, test.phases) for test in desk.run().tests] == [("a.py::test_x", "ppf"), ("a.py::test_y", "ppp")]


def test_subtests_are_parts_of_their_test(desk: Desk) -> None:
    desk.report("a.py::test_x", "setup")
    desk.report("a.py::test_x", "call", "failed", context="one of them")
    desk.report("a.py::test_x", "call")
    desk.report("a.py::test_x", "teardown")
    assert [test.phases for test in desk.run().tests] == ["ppp"]


@pytest.mark.parametrize(
    ("reported", "phases", "phase"), [(0, "f--", "setup"), (1, "pf-", "call"), (2, "ppf", "teardown")]
)
def test_a_crash_is_a_failure_of_the_phase_that_ran(desk: Desk, reported: int, phases: str, phase: str) -> None:
    desk.ran("a.py::test_before", Timed("a.py::test_before", "gw0", 100.0))
    for when in ("setup", "call", "teardown")[:reported]:
        desk.report("a.py::test_x", when)
    desk.hands.spend(7)
    desk.report("a.py::test_x", "???", "failed")
    run = desk.run()
    assert [(test.id, test.phases) for test in run.tests] == [("a.py::test_before", "ppp"), ("a.py::test_x", phases)]
    assert run.tests[1].seconds == pytest.approx(7 + reported * 0.5)
    assert run.records == [Record("crash", "a.py::test_x", {"phase": phase, "seconds": 7.0}, "gw0", 0.0)]


def test_shared_fixtures_of_a_process_that_died_are_kept(desk: Desk) -> None:
    whole = Fixture("kept", "module", "", "a.py", "gw0", 101.0, 2.0, 1.0, 105.0)
    half = Fixture("kept", "module", "", "a.py", "gw0", 101.0, 2.0)
    lost = Fixture("lost", "session", "", "", "gw0", 100.0, 3.0)
    desk.gatherer.take("gw0", [half, lost, whole])
    run = desk.run()
    assert [(row.name, row.start, row.setup, row.teardown_start) for row in run.fixtures] == [
        ("kept", 1.0, 2.0, 5.0),
        ("lost", 0.0, 3.0, None),
    ]


def test_an_interrupted_test_did_not_run(desk: Desk) -> None:
    desk.report("a.py::test_x", "setup")
    desk.gatherer.take("gw0", [Record("interrupted", "a.py::test_x", {}, "gw0", 100.0)])
    run = desk.run()
    assert run.tests == []
    assert [record.kind for record in run.records] == ["interrupted"]


def test_the_first_to_say_what_was_collected_counts(desk: Desk) -> None:
    desk.gatherer.collected(["a.py::test_x"], None, whole_follows=True)
    desk.gatherer.take("gw0", [Whole.of(["a.py::test_x", "a.py::test_y"])])
    desk.gatherer.collected(["z.py::test_z"], None)
    desk.gatherer.take("gw1", [Whole.of(["other"])])
    run = desk.run()
    assert run.selected == ["a.py::test_x"]
    assert run.whole == Whole.of(["a.py::test_x", "a.py::test_y"])


def test_a_file_is_billed_for_its_tests_and_what_they_share(tmp_path: Path, hands: Hands) -> None:
    desk = Desk(tmp_path, hands, Budget(file=5.0, run=60.0, source="from x"))
    desk.gatherer.take("gw0", [Fixture("m", "module", "", "a.py", "gw0", 100.0, 2.5, 9.0)])
    desk.gatherer.take("gw0", [Fixture("s", "session", "", "", "gw0", 100.0, 50.0)])
    desk.ran("a.py::test_x", Timed("a.py::test_x", "gw0", 100.0, 1.0, 2.0, 50.0))
    desk.ran("b.py::test_y", Timed("b.py::test_y", "gw0", 100.0, 2.0, 3.0, 50.0))
    hands.spend(61)
    assert [error.problem for error in desk.gatherer.settle()] == [
        "a.py took 5.5 s, its budget is 5 s",
        "the run took 61 s, its budget is 60 s",
    ]


@pytest.mark.parametrize(
    ("outcome", "more", "letter"),
    [
        ("passed", {}, "p"),
        ("failed", {}, "f"),
        ("skipped", {}, "s"),
        ("rerun", {}, "r"),
        ("skipped", {"wasxfail": "known"}, "x"),
        ("passed", {"wasxfail": "known"}, "X"),
    ],
)
def test_each_outcome_has_its_letter(outcome: str, more: dict[str, Any], letter: str) -> None:
    flags = {name: name == outcome for name in ("passed", "failed", "skipped")}
    assert letter_of(SimpleNamespace(outcome=outcome, **flags, **more)) == letter


def test_what_goes_wrong_while_gathering_is_said_and_what_came_before_is_kept(desk: Desk) -> None:
    desk.ran("a.py::test_x", Timed("a.py::test_x", "gw0", 100.0))
    desk.gatherer.begins("gw0")
    desk.gatherer.take_text("gw0", "no rows")
    desk.gatherer.take("gw0", [None])  # type: ignore[list-item]
    desk.ran("a.py::test_y", Timed("a.py::test_y", "gw0", 101.0))
    run = desk.run()
    assert [test.id for test in run.tests] == ["a.py::test_x"]
    assert not run.complete
    (line,) = desk.gatherer.lines(Path())
    assert re.match(r"timing: 2 tests in .*; the record is not whole: JSONDecodeError: Expecting value", line)


def test_a_budget_of_tests_that_was_not_watched_is_no_pass(tmp_path: Path, hands: Hands) -> None:
    gatherer = Gatherer(hands(), 1000.0, Budget(test=5.0, source="from x"))
    gatherer.take("gw1", [Record("not recorded", "", {"problem": "KeyError: planted"}, "gw1", 100.0)])
    (error,) = gatherer.settle()
    assert error.headline == (
        "timing: budgets of tests and files could not be watched: gw1: KeyError: planted (from x)"
    )


# The three facts


def test_a_run_ends_with_its_tests_seconds_and_largest_waste(desk: Desk) -> None:
    rows = [Imported("a.py", "gw0", 4.0), Collected("a.py", "gw0", 5.0)]
    desk.gatherer.take("gw0", [*rows, Record("cleanup", "", {"seconds": 3.5}, "gw0", 0.0)])
    desk.ran("a.py::test_x", Timed("a.py::test_x", "gw0", 100.0, jit=Jit(2.0, 1, 0), gc=1.0))
    desk.hands.spend(12)
    desk.gatherer.settle()
    totals = desk.gatherer.totals
    assert totals.wasted() == {
        "imports": 4.0,
        "collection": 1.0,
        "clean-up": 3.5,
        "compilation": 2.0,
        "garbage collection": 1.0,
    }
    assert totals.line() == "1 test in 12.0 s, largest waste: imports 4.00 s"


def test_workers_waste_time_before_the_first_test_and_after_their_last(desk: Desk) -> None:
    desk.gatherer.worker(Worker("gw0", ready=101.0))
    desk.gatherer.worker(Worker("gw1", ready=109.0))
    desk.ran("a.py::test_x", Timed("a.py::test_x", "gw0", 110.0, call=1.0))
    desk.gatherer.take("gw1", [Timed("a.py::test_y", "gw1", 110.0, call=21.0)])
    desk.gatherer.settle()
    wasted = desk.gatherer.totals.wasted()
    assert wasted["collection barrier"] == 10.0
    assert wasted["idle at the end"] == 20.0
    assert desk.gatherer.totals.line().endswith("largest waste: idle at the end 20.0 s over 2 workers")


def test_no_waste_is_named_where_there_is_none(desk: Desk) -> None:
    desk.ran("a.py::test_x", Timed("a.py::test_x", "gw0", 100.0))
    desk.gatherer.settle()
    assert desk.gatherer.totals.line() == "1 test in 0 s"


# xdist


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("a.py::test_x@group", "a.py::test_x"),
        ("a.py::test_x[p@q]@group@home", "a.py::test_x[p@q]"),
        ("a.py::test_x[p@q]", "a.py::test_x[p@q]"),
        ("at@home/a.py::test_x", "at@home/a.py::test_x"),
        ("at@home/a.py", "at@home/a.py"),
    ],
)
def test_the_group_that_xdist_adds_is_no_part_of_the_name(nodeid: str, name: str) -> None:
    assert without_group(nodeid) == name


@pytest.mark.parametrize("where", ["remote_exec", "receive", "waitclose"])
def test_a_worker_that_does_not_say_what_time_it_is_breaks_no_run(desk: Desk, where: str) -> None:
    def late(*_: Any) -> Any:
        raise TimeoutError("no item after 30 seconds")

    channel = SimpleNamespace(send=lambda _: None, receive=lambda timeout: 1e6, waitclose=lambda timeout: None)
    gateway = SimpleNamespace(id="gw0", remote_exec=lambda source: channel)
    setattr(gateway if where == "remote_exec" else channel, where, late)
    nodes = Nodes(desk.gatherer, str, sharded=False)
    nodes.pytest_xdist_newgateway(gateway)
    nodes.pytest_configure_node(SimpleNamespace(gateway=gateway, workerinput={}))
    run = desk.run()
    text = "clock of gw0 not known: TimeoutError: no item after 30 seconds"
    assert run.workers["gw0"].offset == 0
    assert [(record.kind, record.worker, record.data) for record in run.records] == [("note", "gw0", {"text": text})]
    assert desk.gatherer.lines(Path())[0] == f"timing: {text}"
    assert run.complete


def test_a_worker_is_asked_what_time_it_is(desk: Desk) -> None:
    class Channel:
        def send(self, _: None) -> None:
            desk.hands.spend(0.001)

        def receive(self, timeout: float) -> float:
            desk.hands.spend(0.001)
            return desk.hands() - 500.001

        def waitclose(self, timeout: float) -> None:
            pass

    gateway = SimpleNamespace(id="gw0", remote_exec=lambda source: Channel())
    node = SimpleNamespace(gateway=gateway, workerinput={}, workeroutput={"testkit_timing": pack([Timed("t", "gw0")])})
    nodes = Nodes(desk.gatherer, str, sharded=False)
    nodes.pytest_xdist_setupnodes()
    nodes.pytest_xdist_newgateway(gateway)
    nodes.pytest_configure_node(node)
    desk.hands.spend(2)
    nodes.pytest_xdist_node_collection_finished(node, ["t"])
    nodes.pytest_testnodedown(node)
    nodes.pytest_testnodedown(node)
    run = desk.run()
    worker = run.workers["gw0"]
    assert worker.offset == pytest.approx(500, abs=0.01)
    assert (worker.started, worker.ready) == (None, pytest.approx(2.01))
    assert len(run.tests) == 1
    assert run.selected == ["t"]
