"""The ladder: which rung ends whom, what is found below, what is never touched."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testkit.errors import ProcessesError
from testkit.processes import Ended, stop
from testkit.processes import _family as family

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions and /proc are Linux's")

Start = Callable[..., "subprocess.Popen[str]"]

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
SLEEP = "import time; print('ready', flush=True); time.sleep(60)\n"
RUNGS = {"join": 0.0, "terminate": 0.3, "kill": 5.0}


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code in a session of its own and wait until it says a line; nothing is left afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, **options: Any) -> subprocess.Popen[str]:
        options = {"start_new_session": True, **options}
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip()
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(5)
        assert process.stdout is not None
        process.stdout.close()


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def written(file: Path) -> int:
    """The pid that a child writes into ``file`` before it says that it is ready."""
    return int(file.read_text())


def test_a_process_that_ends_by_itself_is_only_waited_for(start: Start) -> None:
    process = start("print('ready', flush=True); import sys; sys.exit(3)")
    (ended,) = stop([process], join=10)
    assert (ended.pid, ended.exit_code, ended.signal, ended.rung) == (process.pid, 3, None, "join")


def test_a_process_that_listens_ends_on_the_terminate_rung(start: Start) -> None:
    (ended,) = stop([start(SLEEP)], join=0)
    assert (ended.exit_code, ended.signal, ended.rung) == (-signal.SIGTERM, "SIGTERM", "terminate")


def test_ladder_kills_a_child_that_ignores_terminate(start: Start) -> None:
    (ended,) = stop([start(STUBBORN + SLEEP)], **RUNGS)
    assert (ended.exit_code, ended.signal, ended.rung) == (-signal.SIGKILL, "SIGKILL", "kill")
    assert ended.seconds >= RUNGS["terminate"]


def test_a_stopped_process_that_would_handle_sigterm_is_killed(start: Start) -> None:
    process = start("import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + SLEEP)
    process.send_signal(signal.SIGSTOP)
    (ended,) = stop([process], **RUNGS)
    assert ended.rung == "kill"


def test_all_processes_share_one_deadline_a_rung(start: Start) -> None:
    # pytorch/pytorch issue 41694: a wait for each process in turn adds up
    stuck = [start(STUBBORN + SLEEP) for _ in range(6)]
    began = time.monotonic()
    ended = stop(stuck, **RUNGS)
    assert time.monotonic() - began < 6 * RUNGS["terminate"]
    assert [e.rung for e in ended] == ["kill"] * 6


def test_processes_of_every_kind_are_ended_in_the_order_given(start: Start) -> None:
    sleeps = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    sleeps.start()
    forked.start()
    popen = start(SLEEP)
    other = psutil.Process(start(SLEEP).pid)
    ended = stop([sleeps, popen, other, forked], join=0)
    assert [e.pid for e in ended if not e.descendant] == [sleeps.pid, popen.pid, other.pid, forked.pid]
    assert {e.signal for e in ended if not e.descendant} == {"SIGTERM"}
    assert not any(runs(e.pid) for e in ended)


def with_grandchild(file: Path, then: str, **how: object) -> str:
    """Code that starts a child, which writes its pid to ``file`` and sleeps; ``then`` follows in the parent."""
    body = f"import os, time; open({str(file)!r} + '.part', 'w').write(str(os.getpid())); "
    body += f"os.rename({str(file)!r} + '.part', {str(file)!r}); time.sleep(60)"
    return (
        f"import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {body!r}], **{how!r})\n"
        f"while not os.path.exists({str(file)!r}): time.sleep(0.01)\n"
        f"print('ready', flush=True)\n{then}\n"
    )


def test_grandchildren_are_ended_and_reported(start: Start, tmp_path: Path) -> None:
    process = start(with_grandchild(tmp_path / "pid", "time.sleep(60)"))
    grandchild = written(tmp_path / "pid")
    ended = stop([process], join=0)
    assert [(e.pid, e.descendant, e.rung) for e in ended] == [
        (process.pid, False, "terminate"),
        (grandchild, True, "terminate"),
    ]
    assert not runs(grandchild)


def test_what_outlives_its_parent_in_the_session_is_found(start: Start, tmp_path: Path) -> None:
    process = start(with_grandchild(tmp_path / "pid", "os._exit(0)"))
    process.wait(10)
    ended = stop([process], join=0)
    assert [(e.pid, e.exit_code, e.rung) for e in ended if not e.descendant] == [(process.pid, 0, "join")]
    assert [e.pid for e in ended if e.descendant] == [written(tmp_path / "pid")]
    assert not runs(written(tmp_path / "pid"))


def test_what_left_the_session_is_found_by_the_tag(start: Start, tmp_path: Path) -> None:
    code = with_grandchild(tmp_path / "pid", "time.sleep(60)", start_new_session=True, stdout=subprocess.DEVNULL)
    # the middle process ends, so that no walk down the tree leads to the grandchild
    outer = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {code!r}.replace('time.sleep(60)\\n', 'os._exit(0)\\n')],"
        " stdout=subprocess.DEVNULL).wait()\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    process = start(outer, env={**os.environ, family.TAG: "one run"})
    grandchild = written(tmp_path / "pid")
    assert os.getsid(grandchild) == grandchild
    assert psutil.Process(grandchild).ppid() != process.pid
    ended = stop([process], join=0)
    assert grandchild in [e.pid for e in ended if e.descendant]
    assert not runs(grandchild)


def test_a_tag_that_we_carry_ourselves_ends_nobody_else(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(family.TAG, "our own run")
    bystander, process = start(SLEEP), start(SLEEP)
    assert [e.pid for e in stop([process], join=0)] == [process.pid]
    assert runs(bystander.pid)


def test_a_stubborn_grandchild_is_killed_though_its_parent_listens(start: Start, tmp_path: Path) -> None:
    code = with_grandchild(tmp_path / "pid", "time.sleep(60)").replace(
        "import os, time; open", "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open"
    )
    process = start(code)
    ended = stop([process], **RUNGS)
    assert {(e.descendant, e.rung) for e in ended} == {(False, "terminate"), (True, "kill")}
    assert not runs(written(tmp_path / "pid"))


def test_zombies_count_as_ended(start: Start, tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "pid = os.fork()\n"
        "if not pid: os._exit(0)\n"
        "while open(f'/proc/{pid}/stat').read().split()[2] != 'Z': time.sleep(0.01)\n"
        "print(pid, flush=True); time.sleep(60)"
    )
    process = start(code)
    zombie = psutil.Process(process.pid).children()[0]
    assert zombie.status() == psutil.STATUS_ZOMBIE
    (ended,) = stop([zombie], join=10)
    assert ended.rung == "join"
    assert [e.pid for e in stop([process], join=0)] == [process.pid]


def test_a_pid_that_was_given_out_again_is_left_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    bystander = start(SLEEP)
    before = psutil.Process(bystander.pid)
    monkeypatch.setattr(before, "_ident", (before.pid, 1.0))  # started at another time: another process
    (ended,) = stop([before], join=0)
    assert ended.rung == "join"
    assert runs(bystander.pid)


def test_an_ended_process_whose_pid_is_taken_ends_no_session(start: Start) -> None:
    bystander = start(SLEEP)
    done = start("print('ready', flush=True)")
    done.wait(10)
    done.pid = bystander.pid  # what the kernel may do once it was waited for
    (ended,) = stop([done], join=0)
    assert (ended.exit_code, ended.rung) == (0, "join")
    assert runs(bystander.pid)


def test_a_process_that_cannot_be_killed_is_named_and_not_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(STUBBORN + SLEEP)
    with monkeypatch.context() as patched:
        patched.setattr(process, "kill", lambda: None)
        (ended,) = stop([process], join=0, terminate=0.1, kill=0.2)
    assert ended == Ended(process.pid, None, None, "none", ended.seconds)
    assert ended.seconds >= 0.3


def test_an_interrupted_wait_kills_everything(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(STUBBORN + SLEEP)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt("planted")

    with monkeypatch.context() as patched:
        patched.setattr("testkit.processes._ladder.time.sleep", interrupted)
        with pytest.raises(KeyboardInterrupt, match="planted"):
            stop([process], join=10)
    assert process.wait(10) == -signal.SIGKILL


def test_nothing_to_stop_is_nothing() -> None:
    assert stop([]) == []


def test_what_is_no_process_is_refused() -> None:
    with pytest.raises(ProcessesError, match=r"^processes: 17 is no process that stop knows \(argument of stop\)"):
        stop([17])


def test_a_process_that_was_never_started_or_is_closed_is_refused() -> None:
    process = multiprocessing.get_context("spawn").Process(target=print)
    closed = multiprocessing.get_context("fork").Process(target=print)
    closed.start()
    closed.join()
    closed.close()
    with pytest.raises(ProcessesError, match=r"was never started, or is closed \(argument of stop\)"):
        stop([closed])
    with pytest.raises(ProcessesError, match=r"^processes: <SpawnProcess .* was never started, or is closed"):
        stop([process])


@pytest.mark.parametrize("name", ["join", "terminate", "kill"])
@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_limit_that_is_no_time_is_refused(name: str, seconds: float) -> None:
    with pytest.raises(ProcessesError, match=f"^processes: {name} is {seconds}"):
        stop([], **{name: seconds})
