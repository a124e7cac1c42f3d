"""``run_ranks``: what travels, and the verdict for each way in which a rank misbehaves."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import psutil
import pytest

from testkit.errors import KitWarning, ProcessesError
from testkit.processes import RanksFailed, run_ranks

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sessions and /proc are Linux's"),
    pytest.mark.usefixtures("nothing_is_left"),
]

RUNGS = (1.0, 1.0, 1.0)
LIMIT = 1.5


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


def exits_with_zero(rank: int) -> None:
    if rank == 1:
        sys.exit(0)


def returns_what_cannot_be_sent(rank: int) -> object:
    return threading.Lock() if rank == 1 else None


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (exits_with_zero, "ended without a result, exit code 0"),
        (returns_what_cannot_be_sent, "raised TypeError: rank 1 returned a lock, which cannot be sent"),
    ],
)
def test_a_rank_passes_only_if_its_result_arrives(body: Callable[..., Any], cause: str) -> None:
    """The faults of test_faults.py have siblings: vllm-project/vllm#41423, python/cpython#103061."""
    with pytest.raises(RanksFailed, match=f"^processes: rank 1 of 2 {cause}"):
        run_ranks(body, 2, timeout=LIMIT, ladder=RUNGS)


def test_what_a_rank_dies_of_after_it_was_done_is_named() -> None:
    def body(rank: int) -> str:
        if rank == 1:
            atexit.register(os.kill, os.getpid(), signal.SIGKILL)
        return "done"

    with pytest.warns(KitWarning, match="rank 1 ended by SIGKILL after it was done"):
        assert run_ranks(body, 2, ladder=RUNGS) == ["done", "done"]


def test_an_exit_hook_that_never_ends_is_cut_off() -> None:
    def body(rank: int) -> str:
        atexit.register(time.sleep, 60)
        return "done"

    with pytest.warns(KitWarning, match="rank 0 itself, kept from ending; rank 1 itself, kept from ending"):
        assert run_ranks(body, 2, ladder=RUNGS) == ["done", "done"]


def test_stuck_ranks_are_ended_by_one_ladder_for_all() -> None:
    """pytorch/pytorch#41694: rank 1 raises, the others ignore SIGTERM and hang at exit; waits must not add up."""

    def body(rank: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        atexit.register(time.sleep, 60)
        if rank == 1:
            raise ValueError("planted")
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(RanksFailed, match=r"^processes: rank 1 of 6 raised ValueError: planted") as caught:
        run_ranks(body, 6, ladder=(1, 1, 1))
    assert time.monotonic() - began < 30  # six waits of each rung would be more
    rows = [line for line in str(caught.value).splitlines() if line.startswith("  rank ")]
    assert len(rows) == 6
    assert all("SIGKILL" in row and "ignored SIGTERM for 1." in row for row in rows), rows


def test_ranks_that_never_start_are_late_by_the_start_limit() -> None:
    class Slow:
        def __reduce__(self) -> tuple[Any, ...]:
            return time.sleep, (60,)

    with pytest.raises(RanksFailed, match=r"^processes: ranks 0, 1 of 2 did not start in 1\.0 s"):
        run_ranks(lambda slow: None, 2, args=(Slow(),), startup_timeout=1.0, ladder=RUNGS)


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
    from testkit.processes import _group

    def interrupted(group: Any, *_: Any) -> None:
        raise KeyboardInterrupt("planted")

    monkeypatch.setattr(_group.Group, "_until", interrupted)
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
        ({"start": "fork"}, "start is 'fork'"),
        ({"env": 3}, "env is 3"),
        ({"ladder": (1, 2)}, r"ladder is \(1, 2\)"),
        ({"body": print, "args": (threading.Lock(),)}, "argument 0, a lock, cannot be sent: TypeError"),
        ({"args": (1, 2)}, "raises cannot be called: "),
        ({"body": lambda r: r}, "<lambda> cannot be called: missing a required argument: 'r'"),
        (
            {"body": print, "args": (multiprocessing.get_context("fork").Queue(),)},
            "argument 0, a Queue, cannot be sent: RuntimeError: .* fork context",
        ),
        (
            {"body": lambda box: box, "kwargs": {"box": queue.Queue()}},
            "argument 'box', a Queue, cannot be sent: TypeError",
        ),
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


# ---------------------------------------------------------------- what a review found


def test_a_rank_that_dies_before_it_reads_a_large_argument_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")  # no interpreter starts
    with pytest.raises(RanksFailed, match=r"rank 0 of 1 ended before it started, exit code 1"):
        run_ranks(lambda text: len(text), 1, args=("x" * 1_000_000,), startup_timeout=20, ladder=RUNGS)


BOTH = pytest.mark.parametrize("start", ["spawn", "preload"])


@BOTH
def test_a_process_that_a_rank_forked_does_not_speak_for_it(start: Any) -> None:
    def body() -> None:
        if os.fork() == 0:
            return
        os.wait()
        os._exit(3)

    with pytest.raises(RanksFailed, match="rank 0 of 1 ended without a result, exit code 3"):
        run_ranks(body, 1, timeout=20, ladder=RUNGS, start=start)


@BOTH
def test_a_process_that_a_rank_forked_may_leave_by_exit_or_error(start: Any) -> None:
    def body() -> list[int]:
        codes = []
        for end in (sys.exit, lambda: sys.exit(4), lambda: 1 / 0):
            pid = os.fork()
            if pid == 0:
                end()
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return codes

    assert run_ranks(body, 1, timeout=20, ladder=RUNGS, start=start) == [[0, 4, 1]]


@BOTH
def test_a_crash_is_seen_though_a_forked_process_lives_on(start: Any) -> None:
    def body() -> None:
        if os.fork() == 0:
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGSEGV)

    with pytest.raises(RanksFailed, match="rank 0 of 1 ended without a result, SIGSEGV"):
        run_ranks(body, 1, timeout=20, ladder=RUNGS, start=start)


def test_an_interrupt_while_ranks_end_leaves_nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from testkit.processes import _group

    name = f"testkit_review_{os.getpid()}"

    def body() -> None:
        shared_memory.SharedMemory(create=True, size=4096, name=name)

    ends: list[float] = []

    def interrupted(group: Any, *, join: float, terminate: float | None = None) -> Any:
        ends.append(join)
        if len(ends) == 1:
            raise KeyboardInterrupt("planted")
        return end(group, join=join, terminate=terminate)

    end = _group.Group._end
    monkeypatch.setattr(_group.Group, "_end", interrupted)
    with pytest.raises(KeyboardInterrupt, match="planted"):
        run_ranks(body, 1, ladder=RUNGS)
    assert len(ends) == 2
    assert not os.path.exists(f"/dev/shm/{name}")


class NotHere:
    def __reduce__(self) -> Any:
        return int, ("x",)


def test_a_result_that_cannot_be_rebuilt_names_its_rank() -> None:
    with pytest.raises(RanksFailed, match=r"rank 1 returned what cannot be rebuilt here: ValueError: invalid literal"):
        run_ranks(lambda rank: NotHere() if rank else None, 2)


@BOTH
def test_warning_filters_hold_in_ranks(start: Any) -> None:
    def body() -> None:
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    with pytest.raises(RanksFailed, match="raised DeprecationWarning: old"):  # all are errors in this suite
        run_ranks(body, 1, start=start)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "old", DeprecationWarning)
        assert run_ranks(body, 1, start=start) == [None]


@BOTH
def test_tensors_travel_as_copies(start: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.zeros(4)

    def body(rank: int, tensor: Any, channel: Any) -> float:
        tensor += rank + 1
        channel.barrier()
        return float(tensor.sum())

    assert run_ranks(body, 2, args=(tensor,), start=start) == [4.0, 8.0]
    assert not tensor.any()
    assert not tensor.is_shared()


def test_two_threads_may_run_ranks_at_once() -> None:
    results: dict[int, Any] = {}

    def one(number: int) -> None:
        results[number] = run_ranks(lambda rank: (number, rank), 2)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {number: [(number, 0), (number, 1)] for number in range(2)}


def test_what_a_rank_prints_need_not_be_text() -> None:
    assert run_ranks(lambda: print("\udcff"), 1) == [None]  # noqa: T201 - what is tested


def test_an_exit_code_after_done_is_named() -> None:
    def body() -> None:
        atexit.register(os._exit, 3)

    with pytest.warns(KitWarning, match="rank 0 ended with exit code 3 after it was done"):
        run_ranks(body, 1)


def test_an_endless_message_is_cut() -> None:
    def body() -> None:
        raise ValueError("x" * 3_000_000)

    with pytest.raises(RanksFailed, match=r"raised ValueError: x+\.\.\.") as caught:
        run_ranks(body, 1)
    assert len(str(caught.value)) < 300_000
    assert "characters left out" in str(caught.value)


def test_a_body_that_cannot_be_sent_names_the_variable() -> None:
    held = threading.Lock()
    with pytest.raises(ProcessesError, match=r"^processes: the body, for its variable held, a lock cannot be sent"):
        run_ranks(lambda: held, 1)


def test_a_user_class_named_skiptest_is_a_failure() -> None:
    class SkipTest(Exception):
        pass

    def body() -> None:
        raise SkipTest("no skip of a test runner")

    with pytest.raises(RanksFailed, match=r"raised .*SkipTest: no skip"):
        run_ranks(body, 1)


async def never() -> None: ...


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"body": never}, "calling never only makes a coroutine or a generator"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"env": {"A=B": "1"}}, "env has the variable 'A=B'"),
        ({"env": {"": "1"}}, "env has the variable ''"),
    ],
)
def test_more_that_cannot_be_used(arguments: dict[str, Any], message: str) -> None:
    given = {"body": hangs, **arguments}
    with pytest.raises(ProcessesError, match=f"^processes: {message}"):
        run_ranks(given.pop("body"), 2, **given)
