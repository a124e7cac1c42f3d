"""What ranks leave in shared memory: found by what they told their ledger, and nobody else's."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from testkit.processes import _leaks as leaks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")

SHM = Path("/dev/shm")
LIMIT = 30.0

Run = Callable[..., Any]


class ByValue:
    """A function for a spawned process, which cannot import the module of a test."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (cloudpickle.dumps(self.function),)


def as_rank(ledger: str, body: Callable[..., None], *args: Any) -> None:
    leaks.redirect(ledger)
    body(*args)


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[leaks.Tracker]:
    """A ledger that begins now; nothing stays in /dev/shm whatever the test finds."""
    before = leaks.snapshot()
    tracker = leaks.Tracker(tmp_path / "ledger")
    yield tracker
    told = {word for line in Path(tracker.path).read_text().splitlines() for word in line.split(":")}
    for name in leaks.snapshot() - before:
        if f"/{name.removeprefix('sem.')}" in told or f"-{os.getpid()}-" in name:
            (SHM / name).unlink(missing_ok=True)


@pytest.fixture
def run(tracker: leaks.Tracker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a function in a spawned rank until it ends; its exit code."""
    main = sys.modules["__main__"]  # which is not imported again in each
    monkeypatch.setattr(main, "__spec__", None, raising=False)
    monkeypatch.delattr(main, "__file__", raising=False)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])

    def run(body: Callable[..., None], *args: Any) -> Any:
        target: Any = ByValue(as_rank)
        process = multiprocessing.get_context("spawn").Process(target=target, args=(tracker.path, ByValue(body), *args))
        process.start()
        process.join(LIMIT)
        process.kill()
        return process.exitcode

    yield run
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def segment(size: int = 4096, name: str | None = None) -> shared_memory.SharedMemory:
    return shared_memory.SharedMemory(name=name, create=True, size=size)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def own(kind: str) -> str:
    """A name that holds our pid, so that no other test has it and the fixture removes it."""
    return f"{kind}-{os.getpid()}-{os.urandom(4).hex()}"


# ---------------------------------------------------------------- what multiprocessing made


def test_a_segment_of_a_killed_rank_is_removed_and_named(tracker: leaks.Tracker, run: Run) -> None:
    def body(note: str) -> None:
        Path(note).write_text(segment(4096).name)
        killed()

    note = Path(tracker.path).with_name("note")
    assert run(body, str(note)) == -signal.SIGKILL
    name = note.read_text()
    assert (SHM / name).exists()
    assert tracker.remove() == [f"shared memory {name} (4,096 bytes)"]
    assert not (SHM / name).exists()
    assert tracker.remove() == []


def test_a_semaphore_of_a_killed_rank_is_removed_and_named(tracker: leaks.Tracker, run: Run) -> None:
    def body() -> None:
        lock = multiprocessing.get_context("spawn").Lock()
        lock.acquire()
        killed()

    assert run(body) == -signal.SIGKILL
    ((kind, name),) = tracker.leftovers()
    assert (kind, name[:4]) == ("semaphore", "/mp-")
    assert (SHM / f"sem.{name[1:]}").exists()
    assert tracker.remove() == [f"semaphore {name}"]
    assert not (SHM / f"sem.{name[1:]}").exists()


def test_what_a_rank_unlinks_itself_is_nothing(tracker: leaks.Tracker, run: Run) -> None:
    def body() -> None:
        mine = segment()
        mine.close()
        mine.unlink()
        globals()["queue"] = multiprocessing.get_context("spawn").Queue()  # unlinked by an exit hook

    assert run(body) == 0
    assert Path(tracker.path).read_text().count("\nUNREGISTER:") >= 4
    assert tracker.remove() == []


def test_descendants_of_a_rank_tell_the_ledger_however_they_start(tracker: leaks.Tracker, run: Run) -> None:
    def grandchild(size: int) -> None:
        segment(size)
        killed()

    def lets_go_of_the_tracker() -> None:  # as newer Pythons do in the child of a plain fork
        resource: Any = resource_tracker._resource_tracker
        os.close(resource._fd)
        resource._fd = None

    def body(grandchild: Callable[[int], None]) -> None:
        for size, start in enumerate(("spawn", "forkserver", "fork"), 1):
            target: Any = ByValue(grandchild) if start != "fork" else grandchild
            context: Any = multiprocessing.get_context(start)
            process = context.Process(target=target, args=(size,))
            process.start()
            process.join(LIMIT)
        if not os.fork():
            grandchild(4)
        os.wait()

    assert run(body, ByValue(grandchild)) == 0
    assert [text.split(" (")[1] for text in tracker.remove()] == [f"{size} bytes)" for size in (1, 2, 3, 4)]

    def forks(grandchild: Callable[[int], None], ledger: str, lets_go: Callable[[], None]) -> None:
        if not os.fork():
            os.register_at_fork(after_in_child=lets_go)
            leaks.redirect(ledger)
            if not os.fork():
                grandchild(5)
            os.wait()
            os._exit(0)
        os.wait()

    assert run(forks, ByValue(grandchild), tracker.path, ByValue(lets_go_of_the_tracker)) == 0
    assert [text.split(" (")[1] for text in tracker.remove()] == ["5 bytes)"]


def test_a_segment_of_ours_that_a_killed_rank_attached_to_stays(tracker: leaks.Tracker, run: Run) -> None:
    before = segment()
    during = None

    def body(*names: str) -> None:
        globals()["attached"] = [shared_memory.SharedMemory(name=name) for name in names]
        killed()

    closed = leaks.Tracker(Path(tracker.path).with_name("later"))  # begins when ``before`` is there
    tracker.path = closed.path
    try:
        during = segment()
        before.close()
        assert run(body, before.name, during.name) == -signal.SIGKILL
        assert tracker.remove() == []
        assert (SHM / before.name).exists()
        assert (SHM / during.name).exists()
    finally:
        for one in (before, during):
            if one is not None:
                one.close()
                one.unlink()


def test_a_segment_that_was_there_and_is_made_anew_is_the_ranks(tracker: leaks.Tracker, run: Run) -> None:
    def body(name: str) -> None:
        old = shared_memory.SharedMemory(name=name)
        old.unlink()
        segment(8192, name)
        killed()

    stale = segment(4096, own("testkit"))
    stale.close()
    tracker.path = leaks.Tracker(Path(tracker.path).with_name("later")).path
    assert run(body, stale.name) == -signal.SIGKILL
    assert tracker.remove() == [f"shared memory {stale.name} (8,192 bytes)"]


def test_a_segment_that_a_rank_handed_to_us_is_ours(tracker: leaks.Tracker, run: Run) -> None:
    def body(name: str) -> None:
        mine: Any = segment(4096, name)
        mine.buf[0] = 7
        mine.close()

    name = own("testkit")
    assert run(body, name) == 0
    ours: Any = shared_memory.SharedMemory(name=name)
    assert tracker.remove() == []
    assert ours.buf[0] == 7
    ours.close()
    ours.unlink()


def test_a_segment_that_a_rank_gave_away_by_hand_is_left(tracker: leaks.Tracker, run: Run) -> None:
    def body(name: str) -> None:
        segment(4096, name)
        resource_tracker.unregister(f"/{name}", "shared_memory")

    name = own("testkit")
    assert run(body, name) == 0
    assert tracker.remove() == []
    assert (SHM / name).exists()


def test_two_who_attach_and_one_who_unregisters_do_not_hide_a_segment(tracker: leaks.Tracker, run: Run) -> None:
    def makes(name: str) -> None:
        segment(4096, name)
        killed()

    def attaches(name: str) -> None:  # and keeps its tracker from unlinking it, as was needed before track=False
        shared_memory.SharedMemory(name=name)
        resource_tracker.unregister(f"/{name}", "shared_memory")

    name = own("testkit")
    run(makes, name)
    run(attaches, name)
    assert tracker.remove() == [f"shared memory {name} (4,096 bytes)"]


def test_queues_and_locks_of_ours_work_in_a_rank_and_stay_ours(tracker: leaks.Tracker, run: Run) -> None:
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    lock = context.Lock()

    def body(queue: Any, lock: Any) -> None:
        with lock:
            queue.put("hello")

    assert run(body, queue, lock) == 0
    assert queue.get(timeout=LIMIT) == "hello"
    assert tracker.remove() == []
    assert (SHM / f"sem.{lock._semlock.name[1:]}").exists()  # type: ignore[attr-defined]
    assert lock.acquire(timeout=LIMIT)


def test_a_segment_of_another_process_is_not_blamed(tracker: leaks.Tracker, run: Run) -> None:
    code = (
        "import sys; from multiprocessing.shared_memory import SharedMemory\n"
        "mine = SharedMemory(create=True, size=10); print(mine.name, flush=True); sys.stdin.read(); mine.unlink()"
    )

    def body(name: str) -> None:
        globals()["attached"] = shared_memory.SharedMemory(name=name)
        segment(20)
        killed()

    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        try:
            assert run(body, name) == -signal.SIGKILL
            (removed,) = tracker.remove()
            assert removed.endswith("(20 bytes)")
            assert (SHM / name).exists()
        finally:
            other.stdin.close()
            assert other.wait(LIMIT) == 0


def test_our_tracker_does_not_complain_about_what_ranks_removed_or_left(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os, sys\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "from testkit.processes import _leaks\n"
        "def rank(path, name):\n"
        "    _leaks.redirect(path)\n"
        "    SharedMemory(name=name).unlink()\n"
        "    SharedMemory(create=True, size=30, name=name + 'x')\n"
        "    SharedMemory(create=True, size=30, name=name + 'y')\n"
        "    os._exit(5)\n"
        "if __name__ == '__main__':\n"
        "    ours = SharedMemory(create=True, size=10)\n"
        "    tracker = _leaks.Tracker(sys.argv[1])\n"
        "    process = multiprocessing.get_context('spawn').Process(target=rank, args=(sys.argv[1], ours.name))\n"
        "    process.start(), process.join()\n"
        "    SharedMemory(name=ours.name + 'x').close()\n"
        "    assert process.exitcode == 5 and len(tracker.remove()) == 2\n"
    )
    command = [sys.executable, str(script), str(tmp_path / "ledger")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------- the ledger


def test_a_rank_lets_go_of_the_tracker_that_it_inherited(tracker: leaks.Tracker, run: Run) -> None:
    def body(ledger: str) -> None:
        resource: Any = resource_tracker._resource_tracker
        inherited = resource._fd
        leaks.redirect(ledger)
        try:
            os.fstat(inherited)
        except OSError:
            os._exit(5)

    assert run(body, tracker.path) == 5


def test_a_ledger_that_nobody_reads_stops_no_rank_and_tears_no_line(tracker: leaks.Tracker, run: Run) -> None:
    def body() -> None:
        for _ in range(3):
            if not os.fork():
                for number in range(2000):  # a pipe holds 64 KiB
                    resource_tracker.register(f"/testkit-{os.getpid()}-{number}", "shared_memory")
                os._exit(0)
        for _ in range(3):
            os.wait()

    assert run(body) == 0
    lines = Path(tracker.path).read_text().splitlines()[1:]
    assert sum(line.startswith("REGISTER:/testkit-") and line.endswith(":shared_memory") for line in lines) == 6000
    assert sum(line != "PROBE:0:noop" for line in lines) == 6000
    assert tracker.remove() == []  # none of them exists


def test_names_with_a_colon_or_in_base64_are_read_and_a_torn_line_is_passed_over(tracker: leaks.Tracker) -> None:
    names = [own("test:kit"), own("testkit"), own("testkit")]
    for name in names:
        (SHM / name).write_bytes(b"1234")
    code = base64.urlsafe_b64encode(f"/{names[1]}".encode()).decode()
    said = {"cmd": "REGISTER", "rtype": "shared_memory", "base64_name": code}
    with open(tracker.path, "a") as file:
        file.write(f"REGISTER:/{names[0]}:shared_memory\n{json.dumps(said)}\n")
        file.write('{"cmd":"PROBE","rtype":"noop"}\nREGISTER:/testPROBE:0:noop\nREGISTER\n{"cmd"\n\xff\n')
        file.write(f"REGISTER:/../{names[2]}:shared_memory\nREGISTER:/{names[2]}:dummy\nREGISTER:/..:shared_memory\n")
    assert tracker.remove() == [f"shared memory {name} (4 bytes)" for name in names[:2]]
    assert (SHM / names[2]).exists()


def test_whoever_takes_up_a_ledger_needs_the_standard_library_alone(tracker: leaks.Tracker, run: Run) -> None:
    def body() -> None:
        segment(50)
        killed()

    run(body)
    code = "import sys; sys.path.append(sys.argv[1]); import _leaks; print(*_leaks.Tracker(sys.argv[2]).remove())"
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(leaks.__file__).parent), str(tracker.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout.startswith("shared memory ")
    assert done.stdout.endswith(" (50 bytes)\n")
    assert tracker.remove() == []


def test_where_there_is_no_such_folder_nothing_is_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(leaks, "SUPPORTED", False)
    resource: Any = resource_tracker._resource_tracker
    before = resource._fd
    leaks.redirect(tmp_path / "none")
    assert resource._fd == before
    assert leaks.snapshot() == set()
    assert leaks.Tracker(tmp_path / "ledger").remove() == []
    assert leaks.strangers(set(), [1], set()) == []


# ---------------------------------------------------------------- files that no ledger knows


@pytest.fixture
def make() -> Iterator[Callable[[str], str]]:
    """Make a file of 4 bytes in /dev/shm under a name."""
    made: list[Path] = []

    def make(name: str) -> str:
        made.append(SHM / name)
        made[-1].write_bytes(b"1234")
        return name

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def ended() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait(LIMIT)
    return process.pid


def ours(texts: list[str], *names: str) -> list[str]:
    """Others use this machine too; what is said about these names."""
    return [text for text in texts if any(name in text for name in names)]


def test_a_file_with_the_pid_of_an_ended_process_is_removed(make: Callable[[str], str]) -> None:
    before, pid = leaks.snapshot(), ended()
    name = make(f"torch_{pid}_3219_0")
    found = ours(leaks.strangers(before, [pid], set()), name)
    assert found == [f"file /dev/shm/{name} (4 bytes), removed"]
    assert not (SHM / name).exists()


def test_what_the_cuda_driver_leaves_goes_without_a_word(make: Callable[[str], str]) -> None:
    before, pid = leaks.snapshot(), ended()
    mine, other = make(f"cuda.shm.0.{pid:x}.1"), make(f"cuda.shm.0.{os.getpid():x}.1")
    assert ours(leaks.strangers(before, [pid], set()), mine, other) == []
    assert not (SHM / mine).exists()
    assert (SHM / other).exists()


def test_a_zombie_has_ended(make: Callable[[str], str]) -> None:
    before = leaks.snapshot()
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        name = make(f"torch_{process.pid}_3219_0")
        (found,) = ours(leaks.strangers(before, [process.pid], set()), name)
    assert found.endswith(", removed")


def test_a_file_with_the_pid_of_a_running_process_is_only_named(make: Callable[[str], str]) -> None:
    before, pid = leaks.snapshot(), os.getpid()
    name = make(f"torch_{pid}_3219_0")
    (found,) = ours(leaks.strangers(before, [pid], set()), name)
    assert found.endswith(f", not removed: process {pid} still runs")
    assert (SHM / name).exists()


def test_only_the_first_number_in_a_name_is_a_pid(make: Callable[[str], str]) -> None:
    before, pid = leaks.snapshot(), ended()
    names = [make(f"torch_{os.getpid()}_{pid}_0"), make(f"testkit{os.getpid()}x{pid}"), make(f"a{pid}-{os.getpid()}")]
    assert ours(leaks.strangers(before, [pid], set()), *names) == []
    assert all((SHM / name).exists() for name in names)


def test_a_file_without_a_pid_of_the_group_is_its_own_only_if_a_rank_held_it(make: Callable[[str], str]) -> None:
    before, pid = leaks.snapshot(), ended()
    held, other, named = make(f"nccl-{os.urandom(4).hex()}x"), make(f"x-{os.urandom(4).hex()}x"), make(f"torch_{pid}_0")
    inode = (SHM / held).stat().st_ino
    with open(SHM / held):
        assert inode in leaks.held_here()
        assert ours(leaks.strangers(before, [ended()], {inode}), held, other, named) == []
    assert inode not in leaks.held_here()
    found = ours(leaks.strangers(before, [ended()], {inode}), held, other, named)
    assert found == [f"file /dev/shm/{held} (4 bytes), removed"]
    assert (SHM / other).exists()
    assert (SHM / named).exists()


def test_a_file_of_another_user_is_passed_over(make: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    before, pid = leaks.snapshot(), ended()
    name = make(f"torch_{pid}_3219_0")
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ours(leaks.strangers(before, [pid], set()), name) == []
    assert (SHM / name).exists()


def test_a_file_that_was_there_or_that_somebody_holds_is_nobodys_leak(make: Callable[[str], str]) -> None:
    pid = ended()
    old, opened, mapped = make(f"torch_{pid}_0_0"), make(f"torch_{pid}_1_0"), f"sem.loky-{pid}-0"
    before = leaks.snapshot() - {opened}
    module: Any = import_module("_multiprocessing")
    semaphore = module.SemLock(0, 1, 1, f"/loky-{pid}-0", False)
    with open(SHM / opened):
        assert ours(leaks.strangers(before, [pid], set()), old, opened, mapped) == []
    del semaphore
    assert len(ours(leaks.strangers(before, [pid], set()), old, opened, mapped)) == 2


def test_a_folder_is_named_and_never_removed() -> None:
    before, pid = leaks.snapshot(), ended()
    folder = SHM / f"torch_{pid}"
    folder.mkdir()
    try:
        found = ours(leaks.strangers(before, [pid], set()), folder.name)
        assert found == [f"/dev/shm/{folder.name} (no plain file), not removed"]
    finally:
        folder.rmdir()
