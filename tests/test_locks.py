"""The stale-lock watch: which lock a process waits for, who holds it, and silence where it waits for none."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testkit import _locks
from testkit._locks import polled, waits_on

pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system has no /proc/locks")

Start = Callable[..., "subprocess.Popen[str]"]

OPEN = "import fcntl, subprocess, sys, time; file = open(sys.argv[1], 'r+')\n"
READY = "print('ready', flush=True)\n"
SLEEP = "time.sleep(60)\n"

# Polls for the lock file that it is given with the tool's own code, and writes its stack to a second file at once.
BATON = """
import faulthandler, runpy, sys
faulthandler.dump_traceback_later(0.3, file=open(sys.argv[3], "w"))
print("ready", flush=True)
runpy.run_path(sys.argv[1])["FileBaton"](sys.argv[2], wait_seconds=60).wait()
"""
FILELOCK = """
import faulthandler, sys
import filelock
faulthandler.dump_traceback_later(0.3, file=open(sys.argv[3], "w"))
print("ready", flush=True)
getattr(filelock, sys.argv[1])(sys.argv[2]).acquire(poll_interval=60)
"""
HOLD = """
import sys, time
import filelock
lock = getattr(filelock, sys.argv[1])(sys.argv[2])
lock.acquire()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code with arguments and wait until it says a line; nothing is left afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip()
        return process

    yield start
    for process in started:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(5)
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "build.lock"
    path.touch()
    return path


def soon(look: Callable[[], list[str]]) -> list[str]:
    """What ``look`` says once it says something; at most ten seconds."""
    deadline = time.monotonic() + 10
    while not (texts := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return texts


def stack_of(file: Path) -> str:
    """A stack that a child writes, once it is whole."""
    return "\n".join(soon(lambda: file.read_text().splitlines() if "<module>" in file.read_text() else []))


@pytest.mark.parametrize(
    ("take", "kind"),
    [("fcntl.flock(file, fcntl.LOCK_EX)\n", "flock"), ("fcntl.lockf(file, fcntl.LOCK_EX)\n", "fcntl lock")],
)
def test_a_lock_is_named_with_its_age_and_its_holder(start: Start, file: Path, take: str, kind: str) -> None:
    holder = start(OPEN + take + READY + SLEEP, file)
    os.utime(file, (0, time.time() - 3 * 3600))
    waiter = start(OPEN + READY + take, file)
    (text,) = soon(lambda: waits_on(waiter.pid))
    beginning = f"waits for the {kind} of {file} (last written 3.0 h ago), held by pid {holder.pid} ({sys.executable}"
    assert text.startswith(beginning)
    assert waits_on(holder.pid) == []


def test_the_table_of_locks_is_enough_where_system_calls_cannot_be_read(
    start: Start, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_locks, "SYSTEM_CALLS", {})
    take = "fcntl.flock(file, fcntl.LOCK_EX)\n"
    holder = start(OPEN + take + READY + SLEEP, file)
    waiter = start(OPEN + READY + take, file)
    (text,) = soon(lambda: waits_on(waiter.pid))
    assert text.startswith(f"waits for the flock of {file} (")
    assert f"held by pid {holder.pid} (" in text


def test_a_process_that_waits_for_itself_is_told_so(start: Start, file: Path) -> None:
    take = "fcntl.flock(file, fcntl.LOCK_EX)\n"
    waiter = start(OPEN + take + READY + "again = open(sys.argv[1])\nfcntl.flock(again, fcntl.LOCK_EX)\n", file)
    (text,) = soon(lambda: waits_on(waiter.pid))
    assert text.endswith("held by this process itself, through another opening of the file")


def test_a_lock_that_outlived_its_holder_names_who_inherited_the_file(start: Start, file: Path) -> None:
    heir = "heir = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, pass_fds=[file.fileno()])\n"
    holder = start(OPEN + "fcntl.flock(file, fcntl.LOCK_EX)\n" + heir + "print(heir.pid, flush=True)\n", file)
    assert holder.wait(10) == 0
    (pid,) = soon(lambda: [str(one) for one in _locks._having_open(str(file))])
    try:
        other = start(OPEN + READY + "fcntl.flock(file, fcntl.LOCK_EX)\n", file)
        waiter = start(OPEN + READY + "fcntl.flock(file, fcntl.LOCK_EX)\n", file)
        assert soon(lambda: waits_on(other.pid))
        (text,) = soon(lambda: waits_on(waiter.pid))
        assert text.endswith(f"its holder is gone or not visible here; still open in pid {pid} (sleep 60)")
    finally:
        os.kill(int(pid), 9)


def test_nothing_is_said_of_a_process_that_waits_for_nothing(start: Start, file: Path) -> None:
    sleeper = start(OPEN + READY + SLEEP, file)
    assert waits_on(sleeper.pid) == []
    assert waits_on(os.getpid()) == []


def test_nothing_is_said_of_a_process_that_has_ended(start: Start) -> None:
    process = start("print('ready')")
    assert process.wait(10) == 0
    assert waits_on(process.pid) == []


def test_a_lock_of_a_process_that_may_not_be_looked_into_has_an_inode(monkeypatch: pytest.MonkeyPatch) -> None:
    table = "1: FLOCK  ADVISORY  WRITE 7 08:01:22 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 8 08:01:22 0 EOF\n"
    monkeypatch.setattr(_locks, "_text", lambda file: table if file.name == "locks" else "")
    monkeypatch.setattr(_locks, "_listed", lambda folder: [])
    assert waits_on(8) == ["waits for the flock of a file with inode 22"]


def test_every_line_of_the_table_is_read_and_what_is_no_file_lock_is_left_out() -> None:
    table = (
        "1: POSIX  ADVISORY  READ 5433 08:01:7864448 128 128\n"
        "2: FLOCK  ADVISORY  WRITE 2001 fe:00:7864554 0 EOF\n"
        "2: -> FLOCK  ADVISORY  WRITE 2002 fe:00:7864554 0 EOF\n"
        "2:  -> FLOCK  ADVISORY  READ 2003 fe:00:7864554 0 EOF\n"
        "3: OFDLCK ADVISORY  WRITE -1 fe:00:9 0 EOF\n"
        "4: LEASE  ACTIVE    READ 8 fe:00:10 0 EOF\n"
        "\n"
    )
    assert _locks._parse(table) == [
        _locks._Lock("fcntl lock", 5433, 7864448, False),
        _locks._Lock("flock", 2001, 7864554, False),
        _locks._Lock("flock", 2002, 7864554, True),
        _locks._Lock("flock", 2003, 7864554, True),
        _locks._Lock("fcntl lock", -1, 9, False),
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (12, "12 s"), (150, "2 min"), (9000, "2.5 h"), (345600, "4.0 days")]
)
def test_ages_have_the_unit_that_a_reader_would_choose(seconds: float, text: str) -> None:
    assert _locks.age(seconds) == text


def baton_of_torch() -> Path:
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("torch is not installed")
    return Path(torch.origin).parent / "utils" / "file_baton.py"


def test_a_lock_file_that_a_killed_build_left_is_named_with_its_age(start: Start, tmp_path: Path) -> None:
    lock = tmp_path / "py311_cpu" / "ext" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (0, 1000.0))
    (tmp_path / "stack").touch()
    waiter = start(BATON, baton_of_torch(), lock, tmp_path / "stack")
    stack = stack_of(tmp_path / "stack")
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert polled(stack, environ, now=1000.0 + 360 * 60) == [
        f"polls {lock}, a file that is the lock (last written 6.0 h ago), "
        "open in no process here; remove it if no other build runs"
    ]
    assert waits_on(waiter.pid) == []


STACK = 'Thread 0x1 (most recent call first):\n  File "{}", line 50 in {}\n  File "/suite/test_a.py", line 3 in f\n'
TORCH_WAITS = STACK.format("/lib/torch/utils/file_baton.py", "wait")


def test_a_lock_file_of_a_build_that_runs_names_the_builder(start: Start, tmp_path: Path) -> None:
    lock = tmp_path / ".cache" / "torch_extensions" / "py311_cpu" / "ext" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    builder = start(OPEN + READY + SLEEP, lock)
    (text,) = polled(TORCH_WAITS, {"HOME": str(tmp_path)}, time.time())
    assert f"open in pid {builder.pid} (" in text
    assert "remove" not in text


def test_without_a_lock_file_in_the_usual_places_they_are_named(tmp_path: Path) -> None:
    assert polled(TORCH_WAITS, {"XDG_CACHE_HOME": str(tmp_path)}, 0.0) == [
        f"polls a lock file, none found below {tmp_path}/torch_extensions; "
        "look for one in the extension's build_directory"
    ]


def test_kernels_of_aiter_have_their_lock_files_beside_its_code(tmp_path: Path) -> None:
    lock = tmp_path / "aiter" / "jit" / "build" / "lock_module_rmsnorm"
    lock.parent.mkdir(parents=True)
    lock.touch()
    stack = STACK.format(tmp_path / "aiter" / "jit" / "utils" / "file_baton.py", "wait")
    (text,) = polled(stack, {"HOME": str(tmp_path)}, time.time())
    assert text.startswith(f"polls {lock}, ")


def test_the_oldest_of_many_lock_files_come_first(tmp_path: Path) -> None:
    for number in range(_locks.MOST_SHOWN + 3):
        lock = tmp_path / f"ext{number}" / "lock"
        lock.parent.mkdir()
        lock.touch()
        os.utime(lock, (0, 1000.0 - number))
    texts = polled(TORCH_WAITS, {"TORCH_EXTENSIONS_DIR": str(tmp_path)}, 1000.0)
    assert len(texts) == _locks.MOST_SHOWN
    assert "/ext7/lock" in texts[0]


def test_the_search_for_lock_files_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_locks, "MOST_NAMES", 5)
    for number in range(20):
        (tmp_path / f"lock{number}").touch()
    assert len(_locks._below(str(tmp_path), 2, lambda name: True)) == 5


def test_a_soft_lock_whose_holder_is_gone_is_told_from_one_that_is_held(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("filelock")
    gone, held, free = tmp_path / "gone.lock", tmp_path / "held.lock", tmp_path / "free.lock"
    free.touch()
    killed = start(HOLD, "SoftFileLock", gone)
    end(killed)
    holder = start(HOLD, "SoftFileLock", held)
    if gone.read_text() == "":
        pytest.skip("this version of filelock writes no pid into its soft locks")
    (tmp_path / "stack").touch()
    start(FILELOCK, "SoftFileLock", held, tmp_path / "stack")
    environ = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    texts = polled(stack_of(tmp_path / "stack"), environ, time.time())
    mine = [text for text in texts if str(tmp_path) in text]
    assert [text.split(" (")[0] for text in mine] == [
        f"may poll {gone}, a file that is the lock",
        f"may poll {held}, a file that is the lock",
    ]
    assert mine[0].endswith(f"its holder, pid {killed.pid}, does not run here; remove it if no other build runs")
    assert f"held by pid {holder.pid} (" in mine[1]


def test_a_soft_lock_of_another_host_is_not_called_stale(tmp_path: Path) -> None:
    (tmp_path / "model.lock").write_text("4000000\nelsewhere\n")
    stack = STACK.format("/lib/filelock/_api.py", "acquire")
    texts = polled(stack, {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}, time.time())
    (text,) = [text for text in texts if str(tmp_path) in text]
    assert socket.gethostname() != "elsewhere"
    assert text.endswith("held by pid 4000000 on elsewhere")


def test_a_flock_that_filelock_polls_for_is_found_through_its_holder(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("filelock")
    lock = tmp_path / "kernel.lock"
    holder = start(HOLD, "FileLock", lock)
    (tmp_path / "stack").touch()
    waiter = start(FILELOCK, "FileLock", lock, tmp_path / "stack")
    texts = polled(stack_of(tmp_path / "stack"), {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}, time.time())
    (text,) = [text for text in texts if str(tmp_path) in text]
    assert text.startswith(f"may poll for the flock of {lock} (last written ")
    assert f"held by pid {holder.pid} (" in text
    assert waits_on(waiter.pid) == []  # it asks again and again instead


@pytest.mark.parametrize(
    "stack",
    [
        "",
        STACK.format("/lib/threading.py", "wait"),
        STACK.format("/lib/torch/utils/file_baton.py", "try_acquire"),
        STACK.format("/suite/test_filelock.py", "acquire"),
    ],
)
def test_nothing_is_looked_for_without_a_frame_that_waits_for_a_lock_file(
    stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(_locks, "_below")
    assert polled(stack, {}, 0.0) == []


def test_other_systems_have_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert waits_on(os.getpid()) == []
    assert polled(TORCH_WAITS, {}, 0.0) == []
