"""After a test: who is to blame for memory that ran out, and what a lost device does to the tests that follow."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from testkit.gpus import _after, _replaced
from testkit.gpus._after import blame, lost, ran_out
from testkit.gpus._budget import Budgets
from testkit.gpus._grant import Record
from testkit.gpus._keeper import Current, Keeper
from testkit.gpus._turn import Turn

GIB = 2**30
A, B = (f"GPU-{digit * 8}-682d-b506-9ad9-d1c595d6d2ad" for digit in "01")


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's."""


TRIED = OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10.00 GiB")


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (TRIED, True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("HIP out of memory."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("Triton: out of resource: shared memory"), False),
        (MemoryError("of the host"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_memory_that_ran_out_is_told_from_other_errors(error: Exception, is_it: bool) -> None:
    assert ran_out(error) is is_it


# Who is to blame


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``card(used=9, held=3)``: one card of 10 GiB, and what all and what this process have of it, in GiB."""

    def plant(*, used: float, held: float) -> None:
        cuda = SimpleNamespace(
            memory_reserved=lambda place: int(held * GIB), max_memory_allocated=lambda place: int(held * GIB)
        )
        monkeypatch.setattr(_after, "cuda_in_use", lambda: cuda)
        monkeypatch.setattr(_after, "used_memory", lambda devices: [int(used * GIB)])
        monkeypatch.setattr(_after, "total_memory", lambda devices: [10 * GIB])

    return plant


NEIGHBOUR = Record(1, "test_neighbour", "boot", ((4711, 1),), 1, 5 * GIB, False, {A: 10 * GIB}, (A,), True)
OURS = replace(NEIGHBOUR, owner="test_x", processes=((os.getpid(), 1),))


def turn(memory: float | None) -> Turn:
    return Turn(["0"], None if memory is None else int(memory * GIB), "marker gpus")


@pytest.mark.parametrize(
    ("memory", "used", "held", "beside", "verdict"),
    [
        (4, 10, 3, [NEIGHBOUR], "the test itself wanted 5.0 GiB, its budget is 4.0 GiB (from marker gpus)"),
        (6, 10, 3, [], "others on the card, with 7.0 GiB in use that nobody was granted"),
        (
            6,
            10,
            3,
            [NEIGHBOUR],
            "a neighbour beyond its budget, or others on the card, with 2.0 GiB in use that nobody was granted",
        ),
        (None, 10, 5, [NEIGHBOUR], "the test has no budget, and ran beside 1 neighbour of our own"),
        (None, 7, 7, [], "the test itself, which had the device alone and has no budget"),
        (None, 10, 10, [], "the test itself wanted 12.0 GiB, the card has 10.0 GiB"),
        (
            None,
            10,
            3,
            [replace(NEIGHBOUR, memory=1)],
            "tests without a budget ran beside it: 1 neighbour of our own",
        ),
        (6, 8, 3, [NEIGHBOUR], "fragmentation: what is free is in pieces, and nobody has more than was granted"),
    ],
)
def test_the_verdict_names_who_took_the_memory(
    card: Callable[..., None],
    memory: float | None,
    used: float,
    held: float,
    beside: list[Record],
    verdict: str,
) -> None:
    card(used=used, held=held)
    text = blame(TRIED, turn(memory), ["0"], [("0", OURS), *(("0", one) for one in beside)])
    assert text.splitlines()[0] == f"gpus: out of memory: {verdict}"


def test_figures_that_cannot_be_had_do_not_hide_the_failure(
    card: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    card(used=9, held=3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(_after, "used_memory", lambda devices: [])
    keeper = Keeper(Budgets(), everything=False)
    assert keeper.blamed(Current("test_x"), TRIED).startswith("gpus: out of memory, and who is to blame is not known: ")
    assert keeper.blamed(Current("test_x"), ValueError("of its own")) == ""


def test_the_figures_say_who_held_what(card: Callable[..., None]) -> None:
    card(used=9.5, held=3)
    unknown = replace(NEIGHBOUR, owner="test_unknown", memory=1, processes=((4712, 1), (4713, 1)))
    text = blame(TRIED, turn(6), ["0", "1"], [("0", OURS), ("0", NEIGHBOUR), ("0", unknown), ("1", NEIGHBOUR)])
    assert text.splitlines()[1:] == [
        "  GPU 0: 9.5 GiB of 10.0 GiB in use now, 3.0 GiB by this test",
        "  GPU 0: 6.0 GiB granted to this test (from marker gpus)",
        "  GPU 0: 5.0 GiB granted to test_neighbour (pid 4711)",
        "  GPU 0: an unknown part granted to test_unknown (pid 4712, 4713)",
    ]


# A lost device


class Cuda:
    """``errors`` are raised one by one; the last one again and again."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.waited_for: list[int] = []

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 1

    def device_count(self) -> int:
        return 4

    def memory_reserved(self, place: int) -> int:
        return int(place == 2)

    def synchronize(self, place: int) -> None:
        self.waited_for.append(place)
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        if error is not None:
            raise error


GONE = RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cuda]:
    def plant(*errors: Exception | None) -> Cuda:
        module: Any = ModuleType("torch")
        module.cuda = Cuda(*errors)
        monkeypatch.setitem(__import__("sys").modules, "torch", module)
        return module.cuda  # type: ignore[no-any-return]

    return plant


def test_an_error_that_comes_again_means_that_the_device_is_lost(torch: Callable[..., Cuda]) -> None:
    torch(GONE)
    assert lost() == "CUDA error: an illegal memory access was encountered"


def test_an_error_of_one_call_does_not(torch: Callable[..., Cuda]) -> None:
    torch(RuntimeError("CUDA error: invalid argument"), None)
    assert lost() == ""


def test_only_devices_in_use_are_waited_for_since_others_would_get_a_context(torch: Callable[..., Cuda]) -> None:
    cuda = torch(None)
    assert lost() == ""
    assert cuda.waited_for == [1, 2]


def test_neither_what_a_test_put_in_torchs_place_nor_an_open_graph_is_a_lost_device(
    torch: Callable[..., Cuda], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(AttributeError("planted"))
    assert lost() == ""
    torch(RuntimeError("CUDA error: operation not permitted when stream is capturing"))
    assert lost() == ""
    monkeypatch.setitem(__import__("sys").modules, "torch", ModuleType("torch"))
    assert lost() == ""


# In runs of pytest

# Loaded before our plugin: one card of 10 GiB, and a torch whose device the tests can break.
MACHINE = """
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from testkit.gpus import _amd, _nvml

_amd.SYS = Path("nowhere")
answers = {"uuids": ["GPU-00000000-682d-b506-9ad9-d1c595d6d2ad"], "memory": [[9 * 2**30, 10 * 2**30]]}
_nvml._ask = lambda what, *rest: answers.get(what)

broken = []

def synchronize(place=0):
    if broken:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

class OutOfMemoryError(RuntimeError):
    pass

torch = ModuleType("torch")
torch.__spec__ = ModuleSpec("torch", None)
torch.cuda = SimpleNamespace(
    is_initialized=lambda: True,
    device_count=lambda: 1,
    current_device=lambda: 0,
    synchronize=synchronize,
    empty_cache=synchronize,
    memory_allocated=lambda place: 0,
    memory_reserved=lambda place: 2**30,
    max_memory_allocated=lambda place: 2**30,
    reset_peak_memory_stats=lambda place: None,
    OutOfMemoryError=OutOfMemoryError,
)
sys.modules["torch"] = torch
"""

BREAKS = """
import os
import machine
import pytest
import torch

pytestmark = pytest.mark.gpus

def test_before(): pass

def test_breaks():
    machine.broken.append(True)
    torch.cuda.synchronize()

@pytest.mark.parametrize("n", range(4))
def test_after(n):
    torch.cuda.synchronize()
"""

SILENT = BREAKS.replace("append(True)\n    torch.cuda.synchronize()", "append(True)")

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    pytester.makepyfile(machine=MACHINE)

    def run(*args: str, plugins: tuple[str, ...] = ("xdist.plugin",)) -> pytest.RunResult:
        named = [part for name in ("machine", "testkit.gpus.plugin", *plugins) for part in ("-p", name)]
        return pytester.runpytest_subprocess(*named, "-p", "no:cacheprovider", "--strict-markers", *args, timeout=120)

    return run


WORKERS = [("-n1",), ("-n2",), ("-n2", "--dist=loadfile"), ("-n2", "--dist=worksteal")]


@pytest.mark.parametrize("args", WORKERS, ids=" ".join)
def test_under_xdist_the_test_at_fault_fails_alone_and_another_worker_runs_the_rest(
    run: Run, pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_it=BREAKS)
    result = run(*args, "-v", "--timing-dir=times", plugins=("xdist.plugin", "testkit.timing.plugin"))
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["FAILED test_it.py::test_breaks - RuntimeError: CUDA error: an illegal memory*"])
    result.stdout.re_match_lines(
        [
            r"gpus: gw\d lost its device in test_it.py::test_breaks \(CUDA error: an illegal memory access was "
            r"encountered\) and ended; its other tests run elsewhere"
        ]
    )
    assert "crashed while running" not in result.stdout.str()


@pytest.mark.parametrize("workers", ["-n1", "-n2"])
@pytest.mark.parametrize("dist", ["loadgroup", "loadscope"])
def test_where_scopes_are_handed_out_the_new_worker_does_not_wait_for_ever(
    run: Run, pytester: pytest.Pytester, workers: str, dist: str
) -> None:
    each = "".join(f"class TestAfter{n}:\n    def test_it(self): pass\n" for n in range(4))
    pytester.makepyfile(test_it=BREAKS.partition('@pytest.mark.parametrize("n"')[0] + each)
    result = run(workers, f"--dist={dist}")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["gpus: gw* lost its device in test_it.py::test_breaks *"])


@pytest.mark.parametrize("dist", ["load", "loadfile"])
def test_a_run_that_ends_since_no_worker_is_replaced_fails_also_where_the_loss_was_expected(
    run: Run, pytester: pytest.Pytester, dist: str
) -> None:
    pytester.makepyfile(test_it=BREAKS.replace("def test_breaks", "@pytest.mark.xfail\ndef test_breaks"))
    result = run("-n1", f"--dist={dist}", "--max-worker-restart=0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "gpus: gw0 lost its device in test_it.py::test_breaks (*) and ended; it is not replaced, and the run ends*",
            "next: leave --max-worker-restart out, or raise it",
        ]
    )


def test_a_lost_device_is_a_failure_of_the_test_though_an_earlier_try_of_it_failed(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytest.importorskip("pytest_rerunfailures")
    pytester.makepyfile(
        test_it=BREAKS.partition("def test_breaks")[0]
        + """
tries = []

def test_breaks():
    tries.append(True)
    assert len(tries) == 2
    machine.broken.append(True)
"""
    )
    result = run("--reruns=1", plugins=("pytest_rerunfailures",))
    result.stdout.fnmatch_lines(["gpus: this process can use no GPU any more: * (test_it.py::test_breaks)"])
    assert result.parseoutcomes() == {"passed": 2, "rerun": 1, "errors": 1}


def test_a_kernel_that_nobody_waited_for_fails_its_own_test(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SILENT)
    result = run("-n1")
    result.assert_outcomes(passed=6, errors=1)
    result.stdout.fnmatch_lines(
        [
            "gpus: this process can use no GPU any more: CUDA error: an illegal memory access was encountered"
            " (test_it.py::test_breaks)",
            "next: rerun this test alone, with CUDA_LAUNCH_BLOCKING=1",
            "ERROR test_it.py::test_breaks - *",
        ]
    )


def test_without_workers_the_run_stops_and_says_why(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=BREAKS)
    result = run()
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*gpus: this process can use no GPU any more in test_it.py::test_breaks (CUDA error*); with -n 1 others*"]
    )


def test_a_worker_that_crashes_otherwise_is_blamed_as_ever(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=BREAKS.replace("machine.broken.append(True)", "os._exit(3)"))
    result = run("-n1")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["*worker 'gw0' crashed while running 'test_it.py::test_breaks'*"])


def test_memory_that_ran_out_has_its_section(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import torch

        @pytest.mark.gpus
        def test_it():
            try:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            except RuntimeError as error:
                raise ValueError("no engine") from error

        @pytest.mark.gpus
        def test_other():
            raise ValueError("of its own")
        """
    )
    result = run()
    result.assert_outcomes(failed=2)
    assert [line for line in result.outlines if line.startswith(("gpus:", "  GPU"))] == [
        "gpus: out of memory: others on the card, with 8.0 GiB in use that nobody was granted",
        "  GPU 0: 9.0 GiB of 10.0 GiB in use now, 1.0 GiB by this test",
    ]


@pytest.mark.parametrize("lost", [True, False])
def test_what_is_sent_to_a_worker_that_has_left_ends_the_run_only_if_its_device_is_not_why(lost: bool) -> None:
    def closed(name: str, **arguments: object) -> None:
        raise OSError("cannot send (already closed?)")

    node = SimpleNamespace(sendcommand=closed)
    report = SimpleNamespace(node=node, **({"testkit_lost": "sticky"} if lost else {}))
    reporter = SimpleNamespace(stats={"failed": [report]})
    node.config = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda name: reporter))
    _replaced.outlive(node, "testkit_lost")
    with nullcontext() if lost else pytest.raises(OSError, match="already closed"):
        node.sendcommand("runtests", indices=[1])
