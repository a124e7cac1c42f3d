"""How a server ends: by the ladder, by itself and unasked, with its GPUs' memory, and several of them together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psutil
import pytest

from testkit.errors import KitWarning, ProcessesError
from testkit.processes import Server, ServerError, _gpu_memory
from testkit.processes._family import TAG
from testkit.processes._servers import Servers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions and /proc are Linux's")

MIB = 2**20
UP = re.compile("^up")


def sleeps() -> None:
    sys.stdout.write("up\n")
    time.sleep(60)


def running(program: Any = sleeps, **options: Any) -> Server:
    return Server(program, ready=UP, **options)


def kill(server: Server, number: int = signal.SIGKILL) -> None:
    """End the server behind its back, and wait until it has."""
    process = psutil.Process(server.pid)
    process.send_signal(number)
    deadline = time.monotonic() + 30
    while process.status() != psutil.STATUS_ZOMBIE:  # nobody here reaps it
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert [child for child in psutil.Process().children() if child.environ().get(TAG, "").startswith("server-")] == []


# By the ladder


def test_a_server_that_ignores_terminate_is_killed() -> None:
    def stubborn() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleeps()

    with running(stubborn, ladder=(0, 0.2, 5)) as server:
        pass
    assert [(ended.signal, ended.rung) for ended in server.ended] == [("SIGKILL", "kill")]


def test_a_server_may_be_given_time_to_end_by_itself() -> None:
    def brief() -> None:
        sys.stdout.write("up\n")
        sys.stdout.flush()
        time.sleep(0.5)

    with running(brief, ladder=(30, 5, 5)) as server:
        pass
    assert [(ended.exit_code, ended.rung) for ended in server.ended] == [(0, "join")]


def test_orphans_of_a_server_that_died_are_ended_also_from_a_session_of_their_own() -> None:
    def leaves_an_orphan() -> None:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        sys.stdout.write(f"up {subprocess.Popen(command, start_new_session=True).pid}\n")
        time.sleep(60)

    with running(leaves_an_orphan) as server:
        orphan = int(server.log_tail().split()[1])
        kill(server)
        assert psutil.Process(orphan).status() != psutil.STATUS_ZOMBIE
        server.stop()
    assert [(ended.pid == orphan, ended.rung) for ended in server.ended] == [(False, "join"), (True, "terminate")]


def test_a_failing_block_ends_the_server_and_its_failure_shows_the_output() -> None:
    with pytest.raises(AssertionError, match="wrong answer") as wrong, running() as server:
        raise AssertionError("wrong answer")
    assert server.ended
    if sys.version_info >= (3, 11):
        assert wrong.value.__notes__ == ["the last lines of the server:\nup"]


def test_an_interrupt_while_starting_leaves_nothing() -> None:
    def interrupted(server: Server) -> bool:
        raise KeyboardInterrupt

    server = Server(sleeps, ready=interrupted, port=1)
    with pytest.raises(KeyboardInterrupt, match=r"^$"), server:
        pass
    assert [ended.signal for ended in server.ended] == ["SIGTERM"]


def test_a_server_is_entered_once_at_a_time() -> None:
    with running() as server:
        with pytest.raises(ProcessesError, match=r"the server runs already \(Server sleeps\)"), server:
            pass
        assert server.stop()
        with server:  # after its end it may be started again
            assert psutil.pid_exists(server.pid)
        assert server.stop() == []


# By itself, unasked


@pytest.mark.parametrize(
    ("leave", "how"),
    [(lambda: os._exit(0), "exit 0"), (lambda: sys.exit(3), "exit 3"), (lambda: os.kill(os.getpid(), 11), "SIGSEGV")],
)
def test_a_server_that_ended_by_itself_fails_its_block_whatever_its_code(leave: Callable[[], None], how: str) -> None:
    def ends() -> None:
        sys.stdout.write("up\n")
        sys.stdin.read()
        signal.sigwait([signal.SIGUSR1])
        leave()

    def blocked() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        ends()

    message = rf"^processes: the server ended by itself inside the block: {how}, \d+\.\d s after its start \(Server"
    with pytest.raises(ServerError, match=message) as death, running(blocked) as server:
        kill(server, signal.SIGUSR1)
    assert "next: read the end of its output above; if the test wanted it to end, call stop()" in str(death.value)
    assert "its last " in str(death.value)
    assert len(server.ended) == 1


def test_a_test_that_wanted_the_server_to_end_says_so_with_stop() -> None:
    with running() as server:
        kill(server, signal.SIGTERM)
        assert [(ended.signal, ended.rung) for ended in server.stop()] == [("SIGTERM", "join")]
    with running() as server:
        kill(server)
        server.stop()
        server.restart()
        assert psutil.pid_exists(server.pid)
    assert [ended.signal for ended in server.ended] == ["SIGKILL", "SIGTERM"]


def test_a_restart_does_not_pass_over_a_death() -> None:
    with running() as server:
        kill(server)
        with pytest.raises(ServerError, match="the server ended by itself before its restart: SIGKILL"):
            server.restart()


def test_a_death_is_told_again_at_the_end_though_a_request_has_told_it() -> None:
    def told_of_it(server: Server) -> None:
        kill(server)
        with pytest.raises(ServerError, match="ended by itself before GET /: SIGKILL"):
            server.get("/")

    with pytest.raises(ServerError, match="inside the block: SIGKILL"), running() as server:
        told_of_it(server)


def fails_after_death(server: Server, error: Exception) -> None:
    kill(server)
    raise error


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are of Python 3.11")
def test_the_exception_of_a_block_is_kept_and_gets_a_note_of_the_death() -> None:
    with pytest.raises(ValueError, match="of the test") as own, running() as server:
        fails_after_death(server, ValueError("of the test"))
    death, tail = own.value.__notes__
    assert re.match(r"processes: the server ended by itself inside the block: SIGKILL, \d+\.\d s", death)
    assert tail == "the last lines of the server:\nup"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are of Python 3.11")
def test_an_error_of_a_server_says_once_that_it_died() -> None:
    with pytest.raises(ServerError, match="of another server") as other, running() as server:
        fails_after_death(server, ServerError("of another server"))
    assert len(other.value.__notes__) == 1

    def asks_the_dead(server: Server) -> None:
        kill(server)
        server.get("/")

    with pytest.raises(ServerError, match="ended by itself before GET /") as own, running() as server:
        asks_the_dead(server)
    assert getattr(own.value, "__notes__", []) == []


# The memory of its GPUs


class Gpus:
    """Stands for testkit.gpus: ``readings`` are handed out one by one, the last one again and again."""

    def __init__(self, *readings: list[int] | None) -> None:
        self.readings = list(readings)
        self.asked: list[str] = []
        self.looks = 0

    def allowed(self, environ: Mapping[str, str] | None = None) -> list[str]:
        assert environ is not None
        self.asked.append(environ.get("CUDA_VISIBLE_DEVICES", ""))
        return [name for name in self.asked[-1].split(",") if name]

    def used_memory(self, devices: Sequence[str]) -> list[int] | None:
        self.looks += 1
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        assert reading is None or len(reading) == len(devices)
        return reading


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Gpus]:
    def put(*readings: list[int] | None) -> Gpus:
        fake, face = Gpus(*readings), types.ModuleType("testkit.gpus")
        vars(face).update(allowed=fake.allowed, used_memory=fake.used_memory, hold=lambda pid: None)
        monkeypatch.setitem(sys.modules, "testkit.gpus", face)
        return fake

    monkeypatch.setattr(_gpu_memory, "LIMIT", 0.3)
    monkeypatch.setattr(_gpu_memory, "LOOK_EVERY", 0.001)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    return put


def test_memory_that_comes_back_late_is_waited_for(gpus: Callable[..., Gpus], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu_memory, "LIMIT", 60.0)
    before = [1000 * MIB, 50 * MIB]
    falling = [[1000 * MIB, size * MIB] for size in (9000, 4000, 307)]
    fake = gpus(before, *falling, [1256 * MIB, 306 * MIB], [0, 0])
    with running(env={"CUDA_VISIBLE_DEVICES": "4,7"}):
        pass
    assert (fake.asked, fake.looks) == (["4,7"], 5)


def test_memory_that_does_not_come_back_is_reported_with_the_figures_of_each_gpu(gpus: Callable[..., Gpus]) -> None:
    gpus([1000 * MIB, 0, 2 * MIB], [1300 * MIB, 256 * MIB, 4096 * MIB])
    message = (
        r"^processes: GPU memory is not back 0\.3 s after the server ended: GPU 4 uses 1,300 MiB, before the start "
        r"1,000 MiB, GPU a uses 4,096 MiB, before the start 2 MiB \(Server sleeps\)\nnext: look for a process"
    )
    with pytest.warns(KitWarning, match=message) as told, running(env={"CUDA_VISIBLE_DEVICES": "4,7,a"}) as server:
        pass
    assert server.ended
    assert [warning.filename for warning in told] == [__file__]


def test_a_server_that_is_restarted_is_compared_with_its_last_start(gpus: Callable[..., Gpus]) -> None:
    fake = gpus([0], [1000 * MIB], [1000 * MIB])
    with running() as server, pytest.warns(KitWarning, match="GPU 9 uses 1,000 MiB, before the start 0 MiB"):
        server.restart()
    assert fake.asked == ["9", "9"]


@pytest.mark.parametrize(("devices", "readings", "looks"), [("", [[]], 0), ("0", [None], 1)])
def test_nothing_is_waited_for_where_nothing_is_known(
    devices: str, readings: list[Any], looks: int, gpus: Callable[..., Gpus]
) -> None:
    fake = gpus(*readings)
    with running(env={"CUDA_VISIBLE_DEVICES": devices}):
        pass
    assert fake.looks == looks


def test_memory_that_cannot_be_read_any_more_is_reported(gpus: Callable[..., Gpus]) -> None:
    gpus([0], None)
    with pytest.warns(KitWarning, match="it cannot be read any more"), running():
        pass


def test_a_death_is_told_before_memory_that_is_not_back(gpus: Callable[..., Gpus]) -> None:
    gpus([0], [1000 * MIB])
    with pytest.raises(ServerError, match="inside the block: SIGKILL") as death, running() as server:
        kill(server)
    assert isinstance(death.value.__cause__, KitWarning), "warnings are errors here"
    assert server.ended


# Several together


def test_servers_are_returned_ready_and_ended_the_last_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers()
    first = servers(sleeps, ready=UP)
    second = servers([sys.executable, "-c", "import time; print('up', 2); time.sleep(60)"], ready=UP, ladder=(0, 9, 9))
    assert first.pid != second.pid
    assert re.fullmatch(
        r"--- last lines of Server sleeps\nup\n--- last lines of Server \S*python\S* -c .*\nup 2\n", servers.tails()
    )
    order: list[str] = []
    monkeypatch.setattr(Server, "stop", _recorded(Server.stop, order))
    servers.close()
    assert order == [second.name, first.name]
    assert [ended.signal for ended in first.ended + second.ended] == ["SIGTERM", "SIGTERM"]
    servers.close()
    assert servers.tails() == ""


def _recorded(stop: Callable[[Server], Any], order: list[str]) -> Callable[[Server], Any]:
    def recorded(server: Server) -> Any:
        order.append(server.name)
        return stop(server)

    return recorded


def test_a_server_that_does_not_start_is_not_kept() -> None:
    servers = Servers()
    with pytest.raises(ServerError, match="exit 0"):
        servers(lambda: None, ready=UP)
    with pytest.raises(ProcessesError, match="ready is None"):
        servers(sleeps, ready=None)
    servers.close()


def test_all_are_ended_though_some_died_and_every_death_is_told() -> None:
    servers = Servers()
    alive, one, stopped, two = (servers(sleeps, ready=UP) for _ in range(4))
    kill(one)
    kill(two, signal.SIGSEGV)
    kill(stopped)
    stopped.stop()
    with pytest.raises(ServerError, match="inside the block: SIGSEGV") as deaths:
        servers.close()
    text = str(deaths.value)
    assert text.index("SIGSEGV") < text.index(
        "--- and: processes: the server ended by itself inside the block: SIGKILL"
    )
    assert text.count("ended by itself") == 2
    assert [ended.signal for ended in alive.ended] == ["SIGTERM"]


def test_other_errors_of_several_servers_are_told_together_and_an_interrupt_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[BaseException] = []

    def stop(server: Server) -> Any:
        original(server)
        raise raised.pop(0)

    original = Server.stop
    monkeypatch.setattr(Server, "stop", stop)
    servers = Servers()
    for errors, expected, message in (
        ([OSError("disk full")], OSError, "^disk full$"),
        ([OSError("disk full"), KitWarning("of a GPU")], ServerError, "(?s)OSError: disk full.*and: KitWarning: of a"),
        ([OSError("disk full"), KeyboardInterrupt("now")], KeyboardInterrupt, "now"),
    ):
        started = [servers(sleeps, ready=UP) for _ in errors]
        raised[:] = errors
        with pytest.raises(expected, match=message):
            servers.close()
        assert all(server.ended for server in started)


def test_a_run_without_gpus_does_not_warn() -> None:
    with warnings.catch_warnings(record=True) as told, running(env={"CUDA_VISIBLE_DEVICES": ""}):
        pass
    assert told == []


def test_a_crash_after_the_last_answer_fails_the_block() -> None:
    with pytest.raises(ServerError, match="the server ended by itself inside the block: SIGKILL"), running() as server:
        os.kill(server.pid, signal.SIGKILL)
