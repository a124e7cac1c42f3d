"""The 24 ways in which a rank misbehaves, one row each, with the verdict that each must get, under both starts.

Rank 1 misbehaves. The rows run with two ranks, and with eight under ``make test-long``.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import KitWarning, ProcessesError
from testkit.processes import RanksFailed, _session, run_ranks

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sessions and /proc are Linux's"),
    pytest.mark.usefixtures("nothing_is_left"),
]

RUNGS = (1.0, 1.0, 1.0)
LIMIT = 2.0
NOW = 2.0
NOISE = 3.0
"""Seconds that a busy machine may take away from us."""


@dataclass
class Fault:
    """``says``: the first line after "rank 1 of N", None if the test passes; ``shows``: patterns in the rest, or in
    the warning of what was left; ``within``: seconds from the fault to the verdict."""

    number: int
    body: Callable[..., Any]
    says: str | None
    shows: tuple[str, ...] = ()
    within: float = NOW
    args: tuple[Any, ...] = ()
    result: Any = None


def happens(moment: str) -> None:
    """From now the verdict's seconds count (CLOCK_MONOTONIC is the same in all processes)."""
    Path(moment).write_text(str(time.monotonic()))


def raises(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        raise ValueError("planted")


def sleeps(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        time.sleep(60)


def spins_with_the_lock(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        re.match(r"(a|a)+$", "a" * 60 + "b")  # for ever, inside one call into C


def sleeps_with_the_lock(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        ctypes.PyDLL(None).sleep(60)


def ignores_sigterm(rank: int, moment: str) -> None:
    if rank == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        happens(moment)
        time.sleep(60)


def leaves_a_grandchild(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def leaves_a_double_fork(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        code = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", code]).wait()


def leaves_without_a_word(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        os._exit(0)


def exits_with_three(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        sys.exit(3)


def segfaults(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        ctypes.string_at(0)


def is_killed(rank: int, moment: str) -> None:
    if rank == 1:
        time.sleep(1.2)  # so that its memory was looked at
        happens(moment)
        os.kill(os.getpid(), signal.SIGKILL)


def exits_before_a_barrier(rank: int, moment: str, channel: Any) -> None:
    if rank == 1:
        happens(moment)
        sys.exit(0)
    channel.barrier()


def raises_before_a_barrier(rank: int, moment: str, channel: Any) -> None:
    if rank == 1:
        happens(moment)
        raise KeyError("planted")
    channel.barrier()


def never_runs(rank: int, moment: str, lock: Any) -> None:
    raise AssertionError("never reached")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class NeedsTwo(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raises_what_cannot_be_pickled(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        raise Unpicklable


def raises_what_cannot_be_rebuilt(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        raise NeedsTwo(1, 2)


def returns_much(rank: int, moment: str) -> bytes:
    happens(moment)
    return bytes([rank]) * 64_000_000


def fills_a_queue_of_its_own(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        multiprocessing.get_context("spawn").Queue().put(bytes(64_000_000))


def is_killed_while_sending(rank: int, moment: str) -> bytes:
    if rank == 1:
        write = os.write

        def cut(fd: int, data: Any) -> int:
            if len(data) < 1_000_000:
                return write(fd, data)
            write(fd, data[:1000])
            happens(moment)
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        os.write = cut  # type: ignore[assignment]
    return bytes(2_000_000)


def all_raise(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
    else:
        while not os.path.exists(moment):
            time.sleep(0.01)
        time.sleep(0.3)
    raise ValueError(f"rank {rank} speaks")


def leaves_a_thread(rank: int, moment: str) -> None:
    if rank == 1:
        happens(moment)
        threading.Thread(target=time.sleep, args=(60,), name="left running").start()


def floods(rank: int, moment: str) -> None:
    if rank == 1:
        for stream in (sys.stdout, sys.stderr):
            for _ in range(50):
                stream.write("x" * 999_999 + "\n")
        happens(moment)
        raise RuntimeError("after the flood")


class NeedsAModule:
    """Its rebuilding imports a module, which fails in a rank only."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def __reduce__(self) -> Any:
        return _import_it, (self.moment,)


def _import_it(moment: str) -> None:
    if os.environ.get("RANK") == "1":
        happens(moment)
        importlib.import_module("no_such_module_anywhere")


def cannot_import(rank: int, moment: str, needs: Any) -> None:
    raise AssertionError("never reached")


def leaves_shared_memory(rank: int, moment: str) -> None:
    if rank == 1:
        shared_memory.SharedMemory(create=True, size=4096, name=f"testkit_fault_{os.getpid()}")
        happens(moment)
        os.kill(os.getpid(), signal.SIGKILL)


AT_THE_LIMIT = f"did not finish in {LIMIT} s"
UNTIL_THE_LIMIT = LIMIT + sum(RUNGS) + 1.0
FAULTS = [
    Fault(1, raises, "raised ValueError: planted", ("rank 1: traceback", "in raises", "ValueError: planted")),
    Fault(2, sleeps, AT_THE_LIMIT, ("sleeping, .* MiB", "in sleeps"), UNTIL_THE_LIMIT),
    Fault(3, spins_with_the_lock, AT_THE_LIMIT, (r"\d+ % of a core", "in spins_with_the_lock"), UNTIL_THE_LIMIT),
    Fault(4, sleeps_with_the_lock, AT_THE_LIMIT, ("in sleeps_with_the_lock",), UNTIL_THE_LIMIT),
    Fault(5, ignores_sigterm, AT_THE_LIMIT, (r"SIGKILL .*, ignored SIGTERM for 1\.\d s",), UNTIL_THE_LIMIT),
    Fault(6, leaves_a_grandchild, None, (r"process \d+ \(.*time\.sleep\(60\)\), ended by SIGTERM",), NOW + 1),
    Fault(7, leaves_a_double_fork, None, (r"process \d+ \(.*os\.setsid\(\).*\), ended by SIGTERM",), NOW + 1),
    Fault(8, leaves_without_a_word, "ended without a result, exit code 0", ("exit 0",)),
    Fault(9, exits_with_three, "ended without a result, exit code 3", ("exit 3",)),
    Fault(10, segfaults, "ended without a result, SIGSEGV", ("Segmentation fault", "in segfaults")),
    Fault(11, is_killed, "ended without a result, SIGKILL", (r"had \d+ MiB",)),
    Fault(12, exits_before_a_barrier, "ended without a result, exit code 0", ("stopped because of rank 1",)),
    Fault(13, raises_before_a_barrier, "raised KeyError: 'planted'", ("stopped because of rank 1", "traceback")),
    Fault(14, never_runs, "argument 1, a lock, cannot be sent", (), args=(threading.Lock(),)),
    Fault(15, raises_what_cannot_be_pickled, "raised Unpicklable: holds a lock", ("in raises_what_cannot_be_p",)),
    Fault(16, raises_what_cannot_be_rebuilt, "raised NeedsTwo: 1 and 2", ("in raises_what_cannot_be_rebuilt",)),
    Fault(17, returns_much, None, (), result=lambda rank: bytes([rank]) * 64_000_000),
    Fault(18, fills_a_queue_of_its_own, None, ("rank 1 itself, kept from ending",), sum(RUNGS) + 1),
    Fault(19, is_killed_while_sending, "ended while sending its result, SIGKILL"),
    Fault(20, all_raise, "raised ValueError: rank 1 speaks", ("(?s)rank 1: traceback.*rank 0: traceback",)),
    Fault(21, leaves_a_thread, None, (r"kept from ending by 1 thread \(left running\)",), sum(RUNGS) + 1),
    Fault(22, floods, "raised RuntimeError: after the flood", (r"\(99,99\d,\d+ bytes left out\)",)),
    Fault(23, cannot_import, "raised ModuleNotFoundError: No module named 'no_such_m", ("in _import_it",)),
    Fault(24, leaves_shared_memory, "ended without a result, SIGKILL", (r"left behind: shared memory testkit_fault_",)),
]


@pytest.mark.parametrize("start", ["spawn", "preload"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number:02}-{fault.body.__name__}")
@pytest.mark.parametrize("world_size", [2, pytest.param(8, marks=pytest.mark.long)])
def test_a_fault_gets_its_verdict(fault: Fault, start: Any, world_size: int, tmp_path: Path) -> None:
    moment = tmp_path / "moment"
    args = (str(moment), *fault.args)
    if fault.body is cannot_import:
        args = (str(moment), NeedsAModule(str(moment)))

    def run() -> list[Any]:
        return run_ranks(fault.body, world_size, args=args, timeout=LIMIT, ladder=RUNGS, start=start)

    if fault.number == 14:
        with pytest.raises(ProcessesError, match=f"^processes: {fault.says}"):
            run()
        return
    if fault.says is None:
        results, text = _passed(run, warned=bool(fault.shows))
        assert results == [fault.result(rank) if fault.result else None for rank in range(world_size)]
    else:
        with pytest.raises(RanksFailed, match=f"^processes: rank 1 of {world_size} {re.escape(fault.says)}") as caught:
            run()
        text = str(caught.value)
    seconds = time.monotonic() - float(moment.read_text())
    for pattern in fault.shows:
        assert re.search(pattern, text), text
    assert seconds < fault.within + NOISE


def _passed(run: Callable[[], list[Any]], *, warned: bool) -> tuple[list[Any], str]:
    if not warned:
        return run(), ""
    with pytest.warns(KitWarning, match="processes: left behind by ranks that passed") as record:
        results = run()
    return results, "\n".join(str(one.message) for one in record)


# ---------------------------------------------------------------- with torch


def waits_in_a_collective(rank: int, world_size: int, rendezvous: str, folder: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)
    if rank == 0:
        time.sleep(60)
    dist.all_reduce(torch.zeros(1))


def dies_in_a_collective(rank: int, world_size: int, rendezvous: str, folder: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)
    dist.all_reduce(torch.zeros(1))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(1))


def waits_for_a_stale_build_lock(rank: int, folder: str) -> None:
    """pytorch/pytorch#189245: a build that was killed left its lock file, and every later one waits for ever."""
    if rank == 1:
        from torch.utils.file_baton import FileBaton

        FileBaton(f"{folder}/ext/lock").wait()


def leaves_shared_tensors(rank: int, folder: str) -> None:
    """torch's manager process removes them, and is ended with the rank."""
    import torch.multiprocessing

    if rank == 1:
        torch.multiprocessing.set_sharing_strategy("file_system")
        torch.zeros(1000).share_memory_()
        os.kill(os.getpid(), signal.SIGKILL)


WITH_TORCH = [
    (waits_in_a_collective, "did not finish in 4.0 s", "(?s)rank 1: stack.*in all_reduce"),
    (dies_in_a_collective, "ended without a result, SIGKILL", "rank 0 "),
    (waits_for_a_stale_build_lock, "did not finish in 4.0 s", r"rank 1 waits .*ext/lock"),
    (leaves_shared_tensors, "ended without a result, SIGKILL", "rank 1 "),
]


@pytest.mark.parametrize("start", ["spawn", "preload"])
@pytest.mark.parametrize(("body", "says", "shows"), WITH_TORCH, ids=[row[0].__name__ for row in WITH_TORCH])
def test_a_fault_with_torch_gets_its_verdict(
    body: Callable[..., Any], says: str, shows: str, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(_session, "current", _session.Settings(preload=("torch.distributed",)))
    (tmp_path / "ext").mkdir()
    (tmp_path / "ext" / "lock").touch()
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    timeout = 4.0 if "4.0" in says else 60.0
    with pytest.raises(RanksFailed, match=f"^processes: ranks? (0, 1|0|1) of 2 {re.escape(says)}") as caught:
        run_ranks(body, 2, args=(str(tmp_path),), timeout=timeout, ladder=RUNGS, start=start, env=env)
    assert re.search(shows, str(caught.value)), str(caught.value)
