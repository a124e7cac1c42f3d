"""``run_ranks``: what travels, and the verdict for each way in which a rank misbehaves."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testkit.errors import ProcessesError
from testkit.processes import RanksFailed, run_ranks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions and /proc are Linux's")

RUNGS = (1.0, 1.0, 1.0)
LIMIT = 1.5


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No process, file in /dev/shm or folder of ours outlives a test."""
    before = _shared_memory()
    yield
    assert not [process for process in psutil.process_iter() if _is_ours(process)]
    assert _shared_memory() <= before
    assert not list(Path(tempfile.gettempdir()).glob(f"testkit-ranks-{os.getpid()}-*"))


def _shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}  # those come and go anywhere


def _is_ours(process: psutil.Process) -> bool:
    """Does it run, and carry the tag of a group that this process started?"""
    try:
        tag = process.environ().get("TESTKIT_RUN_TAG", "")
        tracker = "multiprocessing.resource_tracker" in " ".join(process.cmdline())  # lives as long as we do
        return tag.startswith(f"ranks-{os.getpid()}-") and not tracker and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


# ---------------------------------------------------------------- what travels


def test_each_rank_returns_its_result_in_order() -> None:
    factor = 10  # a closure travels

    def body(rank: int, world_size: int, add: int, *, more: list[int]) -> tuple[int, int, int]:
        return rank * factor + add + sum(more), world_size, os.getpid()

    results = run_ranks(body, 3, args=(), kwargs={"add": 1, "more": [2, 3]})
    assert [result[:2] for result in results] == [(6, 3), (16, 3), (26, 3)]
    assert len({result[2] for result in results} | {os.getpid()}) == 4


def test_ranks_know_their_place_and_share_a_rendezvous() -> None:
    def body(rank: int, rendezvous: str) -> tuple[str, ...]:
        assert rendezvous.startswith("file://")
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "EXTRA")
        return (*(os.environ[name] for name in names), rendezvous)

    results = run_ranks(body, 2, env={"EXTRA": "x"})
    assert [result[:4] for result in results] == [("0", "0", "2", "x"), ("1", "1", "2", "x")]
    assert len({result[4] for result in results}) == 1
    assert "RANK" not in os.environ


def test_a_body_need_not_name_anything() -> None:
    assert run_ranks(lambda: "ok", 2) == ["ok", "ok"]


def test_each_rank_leads_a_session_of_its_own_and_the_start_method_stays() -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    assert run_ranks(lambda: os.getsid(0) == os.getpid(), 2) == [True, True]
    assert multiprocessing.get_start_method(allow_none=True) == before


def test_multiprocessing_queues_and_events_travel() -> None:
    context = multiprocessing.get_context("spawn")
    box, ready = context.Queue(), context.Event()

    def body(rank: int, box: Any, ready: Any) -> Any:
        if rank == 0:
            box.put("from 0")
            ready.set()
            return None
        assert ready.wait(10)
        return box.get(timeout=10)

    assert run_ranks(body, 2, args=(box, ready)) == [None, "from 0"]
    box.close()
    box.join_thread()


def test_assertions_of_a_test_module_keep_their_explanation() -> None:
    def body(rank: int) -> None:
        assert [1, 2, rank] == [1, 2, 5]

    with pytest.raises(
        RanksFailed, match=r"^processes: rank [01] of 2 raised AssertionError: assert \[1, 2, [01]\] =="
    ) as caught:
        run_ranks(body, 2)
    assert "assert [1, 2, rank] == [1, 2, 5]" in str(caught.value)
    assert f'File "{__file__}", line ' in str(caught.value)


def test_a_large_result_arrives_whole() -> None:
    assert run_ranks(lambda rank: bytes([rank]) * 64_000_000, 2) == [bytes([rank]) * 64_000_000 for rank in (0, 1)]


def test_torch_ranks_gather() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    del torch

    def body(rank: int, world_size: int, rendezvous: str) -> list[float]:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)
        total = torch.full((2,), float(rank + 1))
        dist.all_reduce(total)
        dist.destroy_process_group()
        return total.tolist()

    assert run_ranks(body, 2) == [[3.0, 3.0], [3.0, 3.0]]


# ---------------------------------------------------------------- how ranks fail


def raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("planted")


def hangs(rank: int) -> None:
    if rank == 1:
        time.sleep(60)


def spins_with_the_lock(rank: int) -> None:
    if rank == 1:
        ctypes.PyDLL(None).sleep(60)  # a C call that keeps the interpreter lock


def ignores_sigterm(rank: int) -> None:
    if rank == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)


def leaves_early(rank: int) -> None:
    if rank == 1:
        os._exit(0)


def exits_with_three(rank: int) -> None:
    if rank == 1:
        sys.exit(3)


def exits_with_zero(rank: int) -> None:
    if rank == 1:
        sys.exit(0)


def segfaults(rank: int) -> None:
    if rank == 1:
        ctypes.string_at(0)


def is_killed(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def raises_while_others_wait(rank: int) -> None:
    if rank == 1:
        raise KeyError("planted")
    time.sleep(60)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class NeedsTwo(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raises_what_cannot_be_pickled(rank: int) -> None:
    if rank == 1:
        raise Unpicklable


def raises_what_cannot_be_rebuilt(rank: int) -> None:
    if rank == 1:
        raise NeedsTwo(1, 2)


def returns_what_cannot_be_sent(rank: int) -> object:
    return threading.Lock() if rank == 1 else None


def floods(rank: int) -> None:
    if rank == 1:
        for _ in range(2_000):
            sys.stdout.write("x" * 1_000 + "\n")
        raise RuntimeError("after the flood")


def cannot_import(rank: int) -> None:
    import no_such_module_anywhere  # noqa: F401  # type: ignore[import-not-found]  # the fault


FAULTS: list[tuple[Callable[..., Any], str, str]] = [
    (raises, "raised ValueError: planted", "ValueError: planted"),
    (hangs, f"did not finish in {LIMIT} s", "in hangs"),
    (spins_with_the_lock, f"did not finish in {LIMIT} s", "in spins_with_the_lock"),
    (ignores_sigterm, f"did not finish in {LIMIT} s", "SIGKILL"),
    (leaves_early, "ended without a result, exit code 0", "exit 0"),
    (exits_with_three, "ended without a result, exit code 3", "exit 3"),
    (exits_with_zero, "ended without a result, exit code 0", "exit 0"),
    (segfaults, "ended without a result, SIGSEGV", "Segmentation fault"),
    (is_killed, "ended without a result, SIGKILL", "SIGKILL"),
    (raises_while_others_wait, "raised KeyError: 'planted'", "stopped because of rank 1"),
    (raises_what_cannot_be_pickled, "raised Unpicklable: holds a lock", "in raises_what_cannot_be_pickled"),
    (raises_what_cannot_be_rebuilt, "raised NeedsTwo: 1 and 2", "in raises_what_cannot_be_rebuilt"),
    (returns_what_cannot_be_sent, "raised TypeError: rank 1 returned a lock, which cannot be sent", "TypeError"),
    (floods, "raised RuntimeError: after the flood", "bytes left out"),
    (cannot_import, "raised ModuleNotFoundError: No module named 'no_such_module_anywhere'", "in cannot_import"),
]


@pytest.mark.parametrize(("body", "cause", "evidence"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
def test_a_fault_gets_its_verdict(body: Callable[..., Any], cause: str, evidence: str) -> None:
    with pytest.raises(RanksFailed, match=r"^processes: rank \d of 2 ") as caught:
        run_ranks(body, 2, timeout=LIMIT, ladder=RUNGS)
    headline = str(caught.value).splitlines()[0]
    number = "[01]" if body is cannot_import else "1"
    assert headline.replace("rank 0", "rank 1" if number != "1" else "rank 0").startswith(
        f"processes: rank 1 of 2 {cause}"
    )
    assert evidence in str(caught.value)


def test_ranks_that_never_start_are_late_by_the_start_limit() -> None:
    class Slow:
        def __reduce__(self) -> tuple[Any, ...]:
            return time.sleep, (60,)

    with pytest.raises(RanksFailed, match=r"^processes: rank 0 of 2 did not start in 1\.0 s"):
        run_ranks(lambda slow: None, 2, args=(Slow(),), startup_timeout=1.0, ladder=RUNGS)


def test_grandchildren_end_with_their_rank() -> None:
    def body(rank: int) -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid

    for pid in run_ranks(body, 2, ladder=RUNGS):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_grandchild_in_a_session_of_its_own_is_found_by_the_tag() -> None:
    def body(rank: int) -> int:
        code = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", code]).wait()
        return 1

    assert run_ranks(body, 2, ladder=RUNGS) == [1, 1]  # the fixture looks for what is left


def test_a_thread_that_keeps_a_rank_alive_is_cut_off() -> None:
    def body(rank: int) -> str:
        threading.Thread(target=time.sleep, args=(60,)).start()
        return "done"

    assert run_ranks(body, 2, ladder=RUNGS) == ["done", "done"]


def test_both_failures_are_shown_the_first_in_time_first(tmp_path: Path) -> None:
    spoken = tmp_path / "rank 1 raises now"

    def body(rank: int) -> None:
        if rank == 1:
            spoken.touch()
        else:
            while not spoken.exists():
                time.sleep(0.01)
            time.sleep(0.3)
        raise ValueError(f"rank {rank} speaks")

    with pytest.raises(RanksFailed, match=r"^processes: rank 1 of 2 raised ValueError: rank 1 speaks") as caught:
        run_ranks(body, 2, ladder=RUNGS)
    text = str(caught.value)
    assert text.index("--- rank 1: traceback") < text.index("--- rank 0: traceback")


def test_all_ranks_skip_is_a_skip_and_some_is_a_failure() -> None:
    def all_skip() -> None:
        pytest.skip("no GPU")

    def one_skips(rank: int) -> None:
        if rank == 1:
            pytest.skip("no GPU")

    with pytest.raises(pytest.skip.Exception, match="no GPU"):
        run_ranks(all_skip, 2)
    with pytest.raises(RanksFailed, match=r"^processes: rank 1 of 2 called skip and the others did not"):
        run_ranks(one_skips, 2)


def test_all_ranks_xfail_is_an_xfail() -> None:
    with pytest.raises(pytest.xfail.Exception, match="known"):
        run_ranks(lambda: pytest.xfail("known"), 2)


def test_an_interrupted_parent_leaves_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from testkit.processes import _ranks

    def interrupted(group: Any, *_: Any) -> None:
        raise KeyboardInterrupt("planted")

    monkeypatch.setattr(_ranks._Group, "_until", interrupted)
    with pytest.raises(KeyboardInterrupt, match="planted"):
        run_ranks(hangs, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"body": 3}, "body is 3, not a function"),
        ({"world_size": 0}, "world_size is 0, not a whole number from 1 up"),
        ({"world_size": True}, "world_size is True, not"),
        ({"timeout": 0}, "timeout is 0"),
        ({"startup_timeout": -1}, "startup_timeout is -1"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"start": "preload"}, "start is 'preload', and only 'spawn' is available yet"),
        ({"ladder": (1, 2)}, r"ladder is \(1, 2\)"),
        ({"args": (threading.Lock(),)}, "argument 0, a lock, cannot be sent to ranks: TypeError"),
        ({"kwargs": {"box": queue.Queue()}}, "argument 'box', a Queue, cannot be sent to ranks: TypeError"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_before_any_rank_starts(
    arguments: dict[str, Any], message: str
) -> None:
    given = {"body": raises, "world_size": 2, **arguments}
    with pytest.raises(ProcessesError, match=f"^processes: {message}"):
        run_ranks(given.pop("body"), given.pop("world_size"), **given)


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from testkit.processes import run_ranks\nprint(run_ranks(lambda rank: rank, 2))\n")
    root = Path(sys.modules["testkit"].__file__ or "").parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n"), done.stderr


ALONE = """
import os, subprocess, sys, time
from testkit.processes import run_ranks

def body(rank):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    loose = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    print(os.getpid(), child.pid, loose.pid, file=open(sys.argv[0] + f".{rank}", "w"), flush=True)
    os.rename(sys.argv[0] + f".{rank}", sys.argv[0] + f".pids{rank}")
    time.sleep(60)

run_ranks(body, 2)
"""


def test_ranks_and_what_they_started_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ALONE.replace("sys.argv[0]", repr(str(script))))
    root = Path(sys.modules["testkit"].__file__ or "").parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, str(script)], env=environment)
    files = [Path(f"{script}.pids{rank}") for rank in (0, 1)]
    _wait_for(lambda: all(file.exists() for file in files), 30)
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    assert len(pids) == 6
    process.kill()
    process.wait(10)
    _wait_for(lambda: not any(_runs(pid) for pid in pids), 2)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_for(reached: Callable[[], bool], seconds: float) -> None:
    """The feature's own limit: fails when ``reached`` is not so within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
