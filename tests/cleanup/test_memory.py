"""Clean-ups that GPU memory asks for, and modules that leave some; a stand-in for torch counts what tests hold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from testkit.cleanup import _memory
from testkit.cleanup._memory import MIB, Watch, allocated, shown
from testkit.cleanup._schedule import Schedule

Run = Callable[..., pytest.RunResult]

XDIST = ("testkit.cleanup.plugin", "xdist.plugin")

# In place of torch: two devices, whose memory is held by objects that only a collection frees.
FAKE_GPU = """
import gc
import sys
import types
import weakref

LIVE = [0, 0]
PEAK = []


class Device:
    started = True

    def is_initialized(self): return self.started
    def device_count(self): return len(LIVE)
    def memory_allocated(self, index): return LIVE[index]
    def empty_cache(self): pass


torch = types.ModuleType("torch")
torch.cuda = Device()
sys.modules["torch"] = torch
gc.disable()  # collections happen in clean-ups alone


class Tensor:
    def __init__(self):
        self.me = self


def free(index, size):
    LIVE[index] -= size


def tensor(mib, index=0):
    made = Tensor()
    LIVE[index] += mib << 20
    PEAK.append(sum(LIVE))
    weakref.finalize(made, free, index, mib << 20)
    return made
"""

GPU_CONFTEST = """
import pytest
import fake_gpu


@pytest.fixture(scope="module")
def model():
    return fake_gpu.tensor(3000)


def pytest_unconfigure():
    print("peak:", max(fake_gpu.PEAK, default=0) >> 20, "MiB")
"""

LEAKY = """
import pytest
from fake_gpu import tensor

@pytest.mark.parametrize("i", range(21))
def test_it(i):
    tensor(200, 0)
    tensor(100, 1)
"""
KEEPS = """
from fake_gpu import tensor
KEPT = []
def test_1(): KEPT.append(tensor(150))
def test_2(): KEPT.append(tensor(150))
"""
CLEAN = "from fake_gpu import tensor\ndef test_1(): tensor(500)\ndef test_2(): pass"


@pytest.fixture
def gpu(pytester: pytest.Pytester, run: Run) -> Callable[..., pytest.RunResult]:
    """Run with the stand-in and these ini lines."""
    pytester.makepyfile(fake_gpu=FAKE_GPU)
    pytester.makeconftest(GPU_CONFTEST)

    def gpu(*lines: str, args: tuple[str, ...] = (), plugins: tuple[str, ...] = XDIST[:1]) -> pytest.RunResult:
        pytester.makeini("\n".join(["[pytest]", "pythonpath = .", *lines]))
        return run(*args, plugins=plugins)

    return gpu


# When memory asks


def test_a_suite_that_leaks_300_mib_a_test_cleans_every_seventh_test(pytester: pytest.Pytester, gpu: Run) -> None:
    pytester.makepyfile(LEAKY)
    result = gpu("cleanup_when_gpu_memory = 2GiB")
    result.assert_outcomes(passed=21)
    result.stdout.fnmatch_lines(["cleanup: 3 clean-ups (memory) in * s: gc * s, torch * s", "peak: 2100 MiB"])


@pytest.mark.parametrize("scope", ["module", "session"])
def test_with_a_wider_scope_memory_asks_in_between(pytester: pytest.Pytester, gpu: Run, scope: str) -> None:
    pytester.makepyfile(LEAKY)
    result = gpu("cleanup_when_gpu_memory = 2GiB", f"cleanup_scope = {scope}")
    number = {"module": "2 memory, 1 module", "session": "2 memory, 1 session"}[scope]
    result.stdout.fnmatch_lines([f"cleanup: 3 clean-ups ({number}) in *", "peak: 2100 MiB"])


def test_what_a_clean_up_cannot_free_asks_once(pytester: pytest.Pytester, gpu: Run) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.parametrize('i', range(9))\ndef test_it(model, i): pass")
    gpu("cleanup_when_gpu_memory = 2GiB").stdout.fnmatch_lines(["cleanup: 1 clean-up (memory) in *"])


def test_below_the_size_nothing_is_cleaned_and_the_summary_says_so(pytester: pytest.Pytester, gpu: Run) -> None:
    pytester.makepyfile(LEAKY)
    result = gpu("cleanup_when_gpu_memory = 20GiB")
    result.stdout.fnmatch_lines(
        ["cleanup: no clean-up (function), since GPU memory stayed below 20,480 MiB (21,474,836,480 bytes)"]
    )


def test_marked_tests_are_not_cleaned_after_whatever_they_hold(pytester: pytest.Pytester, gpu: Run) -> None:
    pytester.makepyfile(
        "import pytest\nfrom fake_gpu import tensor\n@pytest.mark.skip_global_cleanup\ndef test_1(): tensor(5000)\n"
        "def test_2(): pass\ndef test_3(): pass"
    )
    gpu("cleanup_when_gpu_memory = 2GiB").stdout.fnmatch_lines(["cleanup: 1 clean-up (memory) in *"])


def test_what_is_put_off_runs_when_memory_asks(pytester: pytest.Pytester, gpu: Run) -> None:
    pytester.makeconftest(
        GPU_CONFTEST + "\n\n@pytest.fixture(autouse=True)\ndef cleanup_fixture():\n    yield\n"
        "    import gc\n    gc.collect()\n"
    )
    pytester.makepyfile(LEAKY)
    result = gpu("cleanup_when_gpu_memory = 2GiB", "cleanup_wrap = cleanup_fixture")
    result.stdout.fnmatch_lines(["cleanup: 3 clean-ups (2 memory, 1 module) in *", "peak: 2100 MiB"])


@pytest.mark.parametrize("torch", ["torch.cuda.started = False", "del sys.modules['torch']"])
def test_without_a_gpu_the_summary_says_so_once(pytester: pytest.Pytester, gpu: Run, torch: str) -> None:
    pytester.makepyfile("def test_1(): pass")
    with (pytester.path / "fake_gpu.py").open("a") as file:
        file.write(f"\n{torch}\n")
    result = gpu("cleanup_when_gpu_memory = 2GiB", "cleanup_leaks = fail", "cleanup_scope = function")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "cleanup: 1 clean-up (module) in *",
            "cleanup: no test used a GPU through torch, so cleanup_leaks had nothing to measure",
        ]
    )
    result = gpu("cleanup_when_gpu_memory = 2GiB")
    result.stdout.fnmatch_lines(["cleanup: no clean-up (function), since no test used a GPU through torch"])
    assert result.stdout.str().count("cleanup:") == 1


# Leaks


def test_a_module_that_leaves_memory_is_named_with_the_bytes(pytester: pytest.Pytester, gpu: Run) -> None:
    pytester.makepyfile(test_a=CLEAN, test_b=KEEPS, test_c=CLEAN)
    result = gpu("cleanup_leaks = warn")
    result.assert_outcomes(passed=6)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "cleanup: 3 clean-ups (module) in *",
            "cleanup: test_b.py left 300 MiB (314,572,800 bytes) of GPU memory allocated",
        ]
    )
    assert result.stdout.str().count(" left ") == 1


@pytest.mark.parametrize("mode", ["warn", "fail"])
def test_a_module_whose_tests_all_skip_is_named_too(pytester: pytest.Pytester, gpu: Run, mode: str) -> None:
    takes = (
        "import pytest\nfrom fake_gpu import tensor\nKEPT = []\n"
        "@pytest.fixture\ndef absent():\n    KEPT.append(tensor(300))\n    pytest.skip('planted')\n"
        "def test_1(absent): pass\n"
    )
    pytester.makepyfile(test_a=CLEAN, test_b=takes, test_c=CLEAN)
    result = gpu(f"cleanup_leaks = {mode}")
    result.assert_outcomes(passed=4, skipped=1, errors=int(mode == "fail"))
    line = "cleanup: test_b.py left 300 MiB (314,572,800 bytes) of GPU memory allocated"
    result.stdout.fnmatch_lines(["cleanup: 3 clean-ups (module) in *", line])


@pytest.mark.parametrize("workers", [(), ("-n2", "--dist=loadfile")], ids=["", "xdist"])
def test_a_leak_may_fail_the_last_test_of_its_module(
    pytester: pytest.Pytester, gpu: Run, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_a=CLEAN, test_b=KEEPS)
    result = gpu("cleanup_leaks = fail", args=workers, plugins=XDIST if workers else XDIST[:1])
    result.assert_outcomes(passed=4, errors=1)
    line = "test_b.py left 300 MiB (314,572,800 bytes) of GPU memory allocated"
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_2*",
            f"cleanup: {line} (from ini cleanup_leaks)",
            "next: free it when the module ends, or raise cleanup_leak_limit",
            f"cleanup: {line}",
        ]
    )


@pytest.mark.parametrize(("limit", "leaks"), [("299MiB", True), ("300MiB", False)])
def test_what_a_module_may_leave_is_a_setting(pytester: pytest.Pytester, gpu: Run, limit: str, leaks: bool) -> None:
    pytester.makepyfile(KEEPS)
    assert gpu("cleanup_leaks = fail", f"cleanup_leak_limit = {limit}").ret == leaks


@pytest.mark.parametrize(
    "line",
    [
        "cleanup_scope = function",
        "cleanup_when_gpu_memory = 100MiB",
        "cleanup_when_gpu_memory = 9GiB",
        "cleanup_steps = gc",
    ],
)
def test_leaks_are_measured_after_a_clean_up_whatever_else_cleans(
    pytester: pytest.Pytester, gpu: Run, line: str
) -> None:
    """The last test is skipped, and the fixture that ends with it leaves garbage: no leak."""
    skipped = "\nimport pytest\ndef test_3(model): pass\n@pytest.mark.skip\ndef test_4(): pass\n"
    pytester.makepyfile(test_a=CLEAN + skipped, test_b=KEEPS + skipped, test_c="def test_1(): pass")
    result = gpu("cleanup_leaks = warn", line)
    result.assert_outcomes(passed=7, skipped=2)
    result.stdout.fnmatch_lines(["cleanup: test_b.py left 300 MiB *"])
    assert result.stdout.str().count(" left ") == 1


def test_a_leak_of_a_run_cut_short_is_named_too(pytester: pytest.Pytester, gpu: Run) -> None:
    pytester.makepyfile(KEEPS + "\ndef test_3(model): assert 0\ndef test_4(): pass")
    result = gpu("cleanup_leaks = fail", args=("-x",))
    result.stdout.fnmatch_lines(["cleanup: *.py left 300 MiB (314,572,800 bytes) of GPU memory allocated"])


def test_a_module_that_is_entered_twice_is_named_once_with_the_sum(pytester: pytest.Pytester, gpu: Run) -> None:
    pytester.makeconftest(
        GPU_CONFTEST + "\n\ndef pytest_collection_modifyitems(items):\n    items.sort(key=lambda item: item.name)\n"
    )
    pytester.makepyfile(test_a=KEEPS, test_b=CLEAN)
    result = gpu("cleanup_leaks = warn", "cleanup_leak_limit = 1MiB")
    result.stdout.fnmatch_lines(["cleanup: 4 clean-ups *", "cleanup: test_a.py left 300 MiB *"])


@pytest.mark.parametrize(
    ("lines", "problem", "fix"),
    [
        (
            ["cleanup_leak_limit = 64MiB"],
            "a limit is set and nothing measures leaks (from ini cleanup_leak_limit)",
            "set cleanup_leaks too",
        ),
        (["cleanup_leaks = yes"], "'yes' is not known (from ini cleanup_leaks)", "give one of off, warn, fail"),
        (
            ["cleanup_leaks = fail", "cleanup_scope = session"],
            "leaks are measured after a module's clean-up, and cleanup_scope is session (from ini cleanup_leaks)",
            "use cleanup_scope module or function, or cleanup_leaks off",
        ),
        (
            ["cleanup_when_gpu_memory = 2G"],
            "'2G' has the unknown unit 'G' (from ini cleanup_when_gpu_memory)",
            "use B, KiB, *",
        ),
        (["cleanup_leak_limit = -1"], "'-1' is not a size (from ini cleanup_leak_limit)", "give a size *"),
    ],
)
def test_a_setting_that_cannot_be_used_stops_the_run(
    pytester: pytest.Pytester, gpu: Run, lines: list[str], problem: str, fix: str
) -> None:
    pytester.makepyfile("def test_1(): pass")
    result = gpu(*lines)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: cleanup: {problem}", f"next: {fix}"])


# The core without a runner


class Device:
    """An accelerator module of torch with two devices."""

    def __init__(self, started: bool, *held: int) -> None:
        self.started = started
        self.held = list(held)

    def is_initialized(self) -> bool:
        return self.started

    def device_count(self) -> int:
        return len(self.held)

    def memory_allocated(self, index: int) -> int:
        return self.held[index]


def plant(monkeypatch: pytest.MonkeyPatch, **devices: Device) -> None:
    torch = ModuleType("torch")
    vars(torch).update(devices)
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_memory_is_added_up_over_started_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, cuda=Device(True, 5, 7), xpu=Device(False, 100))
    assert allocated() == 12
    plant(monkeypatch, cuda=Device(False, 5), xpu=Device(True, 100))
    assert allocated() == 100
    plant(monkeypatch, cuda=Device(False, 5))
    assert allocated() is None
    monkeypatch.delitem(sys.modules, "torch")
    assert allocated() is None


def test_the_real_torch_is_asked_and_no_device_is_started() -> None:
    torch = pytest.importorskip("torch")
    started = torch.cuda.is_initialized()
    assert (allocated() is None) is not started
    assert torch.cuda.is_initialized() is started


def test_growth_since_the_last_clean_up_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(True, 0)
    plant(monkeypatch, cuda=device)
    watch = Watch(100, None)
    answers = []
    for held in (99, 100, 199, 50, 149, 150):
        device.held[0] = held
        answers.append(watch.full())
        if answers[-1]:
            watch.cleaned()  # which could free nothing
    assert answers == [False, True, False, False, False, True]
    assert watch.gpu


def test_a_leak_is_what_exceeds_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(True, 1000)
    plant(monkeypatch, cuda=device)
    watch = Watch(None, 10)
    assert watch.leave() == 0
    watch.enter("a")
    device.held[0] = 1010
    watch.enter("a")
    assert watch.leave() == 0
    watch.enter("b")
    device.held[0] = 1021
    assert watch.leave() == 11
    assert not watch.full()


def test_where_nothing_is_asked_no_device_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "allocated", SimpleNamespace())  # calling it would fail
    watch = Watch(None, None)
    watch.enter("a")
    watch.cleaned()
    assert (watch.full(), watch.leave(), watch.gpu) == (False, 0, False)


def test_a_size_is_shown_with_its_bytes() -> None:
    assert shown(1536 * MIB + 1) == "1,536 MiB (1,610,612,737 bytes)"


def due(schedule: Schedule, *tests: str) -> list[str]:
    """The clean-ups after tests such as "a" (ran in module a), "a full", "a marked full", "b skipped"."""
    answers = []
    for number, test in enumerate(tests):
        following = tests[number + 1][0] if number + 1 < len(tests) else ""
        answer = schedule.after_test(
            test[0],
            ran="skipped" not in test,
            marked="marked" in test,
            leaving=following != test[0],
            last=not following,
            full="full" in test,
        )
        schedule.cleaned(answer)
        answers.append(answer)
    return answers


ON, M, S, _ = "memory", "module", "session", ""


@pytest.mark.parametrize(
    ("scope", "leaks", "tests", "expected"),
    [
        ("function", False, ["a", "a full", "a", "b"], [_, ON, _, _]),
        ("function", False, ["a marked full", "a full skipped", "b marked"], [_, _, _]),
        ("function", True, ["a", "a full", "a skipped", "b skipped", "c full"], [_, ON, M, _, M]),
        ("module", False, ["a", "a full", "a", "b full"], [_, ON, M, M]),
        ("module", True, ["a full", "a skipped", "b full"], [ON, M, M]),
        ("session", False, ["a", "a full", "b skipped"], [_, ON, S]),
    ],
)
def test_a_clean_up_is_due_where_memory_asks(scope: str, leaks: bool, tests: list[str], expected: list[str]) -> None:
    schedule = Schedule(scope, limited=True, leaks=leaks)
    assert due(schedule, *tests) == expected
    assert schedule.at_end() == ""
