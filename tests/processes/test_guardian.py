"""The guardian: what is registered ends with us however we end, and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from testkit.errors import ProcessesError
from testkit.processes import _guardian as guardian
from testkit.processes._family import TAG

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions and /proc are Linux's")

MARK = "TESTKIT_GUARDIAN_TEST"  # carried by every process of one test, whatever it forks and whichever session it makes
NOTHING_LEFT = 2.0  # seconds after SIGKILL: the feature's own limit
PATIENCE = 20.0  # seconds for something that must happen at some time

# What the subprocess that plays pytest can use. `start` waits until the code says a line, or has ended.
PLAY = f"""
import os, signal, subprocess, sys, threading, time
from testkit.processes import _guardian as guardian

SLEEP = "print('ready', flush=True); import time; time.sleep(600)"

def start(code=SLEEP, tag=None, **options):
    options = {{"start_new_session": True, **options}}
    env = os.environ | ({{"{TAG}": tag}} if tag else {{}})
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, env=env, **options)
    child.stdout.readline()
    return child
"""
STAY = "\nprint('ready', flush=True)\ntime.sleep(600)\n"

GRANDCHILD = """
import os, time
if os.fork() == 0:
    print('ready', flush=True)
time.sleep(600)
"""
ORPHAN = """
import os, time
if os.fork() == 0:
    print('ready', flush=True)
    time.sleep(600)
"""
ESCAPED = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('ready', flush=True)
        time.sleep(600)
"""
STUBBORN = """
import signal, time
for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(name, signal.SIG_IGN)
print('ready', flush=True)
time.sleep(600)
"""
FORKING = """
import os, time
print('ready', flush=True)
while True:
    if os.fork() == 0:
        time.sleep(0.3)
        os._exit(0)
    time.sleep(0.002)
"""

# What pytest did before it got SIGKILL, and how many processes of that must have been there.
STARTED = {
    "a child in a session of its own": ("guardian.guard_session(start().pid)", 1),
    "a grandchild": (f"guardian.guard_session(start({GRANDCHILD!r}).pid)", 2),
    "a grandchild whose parent has ended": (
        f"child = start({ORPHAN!r}); guardian.guard_session(child.pid); child.wait()",
        1,
    ),
    "a double fork into a session of its own": (f"guardian.guard_tag('run-1'); start({ESCAPED!r}, 'run-1').wait()", 1),
    "a child that ignores signals": (f"guardian.guard_session(start({STUBBORN!r}).pid)", 1),
    "a child that forks all the time": (f"guardian.guard_session(start({FORKING!r}).pid)", 2),
    "in the background, SIGINT ignored": (
        "signal.signal(signal.SIGINT, signal.SIG_IGN); guardian.guard_session(start().pid)",
        1,
    ),
    "from a thread that has ended": (
        "t = threading.Thread(target=lambda: guardian.guard_session(start().pid)); t.start(); t.join()",
        1,
    ),
    "a fork without exec": (
        "pid = os.fork()\nif pid == 0:\n    os.setsid(); time.sleep(600)\nguardian.guard_session(pid)",
        1,
    ),
    "the guardian was asked to end": (
        "guardian.guard_session(start().pid)\n"
        "for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n    os.kill(guardian._link.guardian, name)",
        1,
    ),
    "the guardian was killed and needed again": (
        "guardian.guard_session(start().pid); os.kill(guardian._link.guardian, signal.SIGKILL)\n"
        "guardian.guard_session(start().pid)",
        2,
    ),
    "the guardian was stopped and needed again": (
        "guardian.guard_session(start().pid); os.kill(guardian._link.guardian, signal.SIGSTOP)\n"
        "while guardian._sent(guardian._link, 'tag never'):\n    pass\n"  # until the pipe is full
        "guardian.guard_session(start().pid)",
        2,
    ),
}


def living() -> dict[int, str]:
    """Pid and command line of whatever this test started and still runs."""
    found = {process.pid: command_line(process) for process in psutil.process_iter() if process.pid != os.getpid()}
    return {pid: command for pid, command in found.items() if command is not None}


def command_line(process: psutil.Process) -> str | None:
    """None if it has ended or is not of this test."""
    with suppress(psutil.Error, OSError):
        entries = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        if f"{MARK}={os.environ[MARK]}".encode() in entries and process.status() != psutil.STATUS_ZOMBIE:
            return " ".join(process.cmdline())
    return None


def guardians() -> list[int]:
    return [pid for pid, command in living().items() if str(guardian.__file__) in command]


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for something that must come true within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, living()
        time.sleep(0.01)


Play = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(MARK, f"{os.getpid()}-{time.monotonic_ns()}")
    yield
    guardian.close()
    for pid in living():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not living())


@pytest.fixture
def play() -> Iterator[Play]:
    """A subprocess that plays pytest: it runs code with PLAY in front, and we wait until it says a line."""
    started: list[subprocess.Popen[str]] = []

    def play(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", PLAY + code], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield play
    for process in started:
        process.kill()
        process.wait(5)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def bystander() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A process of ours, in a session of its own, that nobody registered; ended afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def bystander(**environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "600"], start_new_session=True, env=os.environ | environment)
        started.append(process)
        return process

    yield bystander
    for process in started:
        process.kill()
        process.wait(5)


@pytest.mark.parametrize("case", STARTED)
def test_nothing_is_left_when_pytest_gets_sigkill(case: str, play: Play) -> None:
    code, processes = STARTED[case]
    pytest_process = play(code + STAY)
    assert len(living()) >= processes + 2, "they, pytest and its guardian"
    pytest_process.kill()
    until(lambda: not living(), NOTHING_LEFT)


def test_what_is_registered_ends_at_a_normal_exit_and_what_was_forgotten_stays(play: Play) -> None:
    process = play(
        "kept, forgotten, never, tagged = start(), start(), start(), start(tag='run-2')\n"
        "for child in (kept, forgotten):\n    guardian.guard_session(child.pid)\n"
        "guardian.guard_tag('run-2'); guardian.forget_tag('run-2'); guardian.forget_session(forgotten.pid)\n"
        "print('ready', flush=True); print(forgotten.pid, never.pid, tagged.pid, flush=True)\n"
    )
    assert process.stdout is not None
    stay = {int(pid) for pid in process.stdout.readline().split()}
    assert process.wait(PATIENCE) == 0
    assert set(living()) == stay


@pytest.mark.parametrize(
    "keeper",
    [
        "if os.fork() == 0:\n    os.setsid(); time.sleep(600)\n",
        "start(close_fds=False)\n",
        "threading.Thread(target=lambda: os.fork() or time.sleep(600)).start()\n",
    ],
    ids=["fork", "exec-close_fds-False", "fork-in-a-thread"],
)
def test_a_child_that_outlives_us_does_not_hide_our_end_from_the_guardian(keeper: str, play: Play) -> None:
    process = play("ward = start(); guardian.guard_session(ward.pid)\n" + keeper + STAY)
    until(lambda: len(living()) == 4)  # pytest, ward, keeper, guardian
    process.kill()
    until(lambda: len(living()) == 1, NOTHING_LEFT)


def test_a_fork_while_the_guardian_is_being_started_does_not_keep_its_pipe_open(play: Play) -> None:
    process = play(
        "ward = start()\n"
        "thread = threading.Thread(target=guardian.guard_session, args=[ward.pid]); thread.start()\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n        os.setsid(); time.sleep(600)\n"
        "    time.sleep(0.0005)\n"
        "thread.join()\n"
        "print('ready', flush=True); print(ward.pid, flush=True); time.sleep(600)\n"
    )
    assert process.stdout is not None
    ward = int(process.stdout.readline())
    process.kill()
    until(lambda: ward not in living() and not guardians(), NOTHING_LEFT)
    assert living(), "the forked ones stay"


def test_a_forked_child_has_a_guardian_of_its_own(play: Play) -> None:
    process = play(
        "ward = start(); guardian.guard_session(ward.pid)\n"
        "if os.fork() == 0:\n"
        "    guardian.guard_session(start().pid)\n"
        "    print('ready', flush=True); print(os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert len(guardians()) == 2
    os.kill(child, signal.SIGKILL)
    until(lambda: len(living()) == 3, NOTHING_LEFT)  # pytest, its ward and its guardian
    assert len(guardians()) == 1
    process.kill()
    until(lambda: not living(), NOTHING_LEFT)


def test_bystanders_with_another_tag_or_session_survive(
    play: Play, bystander: Callable[..., subprocess.Popen[bytes]]
) -> None:
    others = [bystander(), bystander(**{TAG: "run-30"}), bystander(OTHER=f"{TAG}=run-3")]
    process = play("guardian.guard_tag('run-3'); guardian.guard_session(start(tag='run-3').pid)" + STAY)
    process.kill()
    until(lambda: set(living()) == {other.pid for other in others}, NOTHING_LEFT)


def test_a_pid_that_was_given_out_again_is_left_alone(bystander: Callable[..., subprocess.Popen[bytes]]) -> None:
    """The guardian's script alone, told of a process that had this pid before, and of one that has it now."""
    other, ward = bystander(), bystander()
    command = [sys.executable, "-I", "-S", str(guardian.__file__), TAG]
    found = guardian._read(ward.pid)
    assert found
    told = f"session {other.pid} {found[2] - 1000}\nsession {ward.pid} {found[2]}\n"
    done = subprocess.run(command, input=told, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert done.stdout.strip().isdecimal()
    until(lambda: not guardians(), NOTHING_LEFT)
    assert ward.wait(PATIENCE) == -signal.SIGKILL
    assert set(living()) == {other.pid}


def test_members_of_a_session_are_told_from_strangers_by_start_times() -> None:
    table = {
        1: (False, 1, 0),
        7: (False, 7, 70),  # another process now has the pid that led session 7
        8: (False, 7, 80),
        20: (True, 20, 200),  # a leader that ended and was not waited for
        21: (False, 20, 210),
        31: (False, 30, 310),  # its leader is gone
        32: (False, 30, 290),  # older than the session
        40: (False, 5, 400),  # registered before it had its session
        50: (False, 30, 500),
    }
    sessions = {1: 0, 7: 60, 20: 200, 30: 300, 40: 400}
    assert guardian.members(table, sessions, spared={1, 50}) == {21, 31, 40}


def test_the_guardian_is_no_child_keeps_nothing_open_and_has_its_own_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TAG, "outer")
    guardian.guard_tag("run-4")
    (pid,) = guardians()
    assert psutil.Process(pid).ppid() != os.getpid()
    assert os.getsid(pid) not in (os.getsid(0), os.getpid())
    assert TAG.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    deadline = time.monotonic() + 5
    while (opened := _opened(pid)).keys() != {0, 1, 2}:  # just started, it holds for a moment what it came with
        assert time.monotonic() < deadline, opened
        time.sleep(0.01)
    assert opened.pop(0).startswith("pipe:")
    assert opened == {1: "/dev/null", 2: "/dev/null"}


def _opened(pid: int) -> dict[int, str]:
    found = {}
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found[int(fd.name)] = os.readlink(fd)
    return found


def test_readers_of_our_output_see_its_end_while_the_guardian_runs(play: Play) -> None:
    process = play("guardian.guard_tag('run-5'); print('ready', flush=True); os.close(1); time.sleep(600)")
    assert process.stdout is not None
    assert process.stdout.read() == ""
    assert guardians()


def test_one_guardian_serves_all_and_close_may_be_called_twice() -> None:
    guardian.close()
    assert not guardians()
    guardian.guard_tag("run-6")
    guardian.guard_tag("run-7")
    assert len(guardians()) == 1
    guardian.close()
    assert not guardians()
    guardian.close()
    guardian.guard_tag("run-6")
    assert len(guardians()) == 1


def test_forgetting_what_was_never_registered_starts_no_guardian() -> None:
    guardian.forget_session(12345)
    guardian.forget_tag("never")
    assert not guardians()


def test_a_process_that_ended_and_was_waited_for_is_not_registered() -> None:
    process = subprocess.Popen(["true"], start_new_session=True)
    process.wait(PATIENCE)
    guardian.guard_session(process.pid)
    assert not guardians()


def test_nothing_is_written_into_a_file_that_took_our_descriptor(tmp_path: Path) -> None:
    guardian.guard_tag("run-8")
    assert guardian._link is not None
    taken = guardian._link.fd
    with open(tmp_path / "other", "wb") as other:
        os.dup2(other.fileno(), taken)
        guardian.guard_tag("run-9")
        guardian.close()
        os.close(taken)  # still open: whose it is has been looked at
    assert (tmp_path / "other").read_bytes() == b""


@pytest.mark.parametrize("which", ["negative", "0", "1", "ours", "our session's"])
def test_pid_1_and_our_own_session_are_refused(which: str) -> None:
    pid = {"negative": -1, "0": 0, "1": 1, "ours": os.getpid(), "our session's": os.getsid(0)}[which]
    with pytest.raises(ProcessesError, match=rf"^processes: pid {pid} cannot be guarded .*\nnext: give a child's pid"):
        guardian.guard_session(pid)


@pytest.mark.parametrize("tag", ["", "two words", "line\n", "é", "x" * 201])
def test_a_tag_that_is_no_word_is_refused(tag: str) -> None:
    with pytest.raises(ProcessesError, match=r"^processes: run tag .* cannot be guarded .*\nnext: give one ASCII word"):
        guardian.guard_tag(tag)


def test_the_tag_that_we_were_started_with_is_refused() -> None:
    code = "from testkit.processes._guardian import guard_tag; guard_tag('outer')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | {TAG: "outer"}, capture_output=True, text=True, timeout=PATIENCE)
    assert f"processes: run tag 'outer' is our own ({TAG} of this process)\nnext: make a new tag" in done.stderr


@pytest.mark.parametrize(("executable", "problem"), [("/no/python", "No such file"), ("/bin/false", "exit 1")])
def test_a_guardian_that_cannot_start_is_named(
    executable: str, problem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", executable)
        pattern = rf"^processes: the guardian did not start: .*{problem}.*{executable}\)\nnext: see what this prints"
        with pytest.raises(ProcessesError, match=pattern):
            guardian.guard_tag("run-10")
    assert set(os.listdir("/proc/self/fd")) == before
    guardian.guard_tag("run-11")  # it can be started now
    assert len(guardians()) == 1
