"""``channel``: values, barriers and events between ranks, and that nothing is lost whoever ends in the middle."""

from __future__ import annotations

import errno
import pickle
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import ProcessesError
from testkit.processes import _channel
from testkit.processes._board import Board
from testkit.processes._channel import Channel, packed

pytestmark = pytest.mark.skipif(not Board.SUPPORTED, reason="this platform has no Unix sockets")

PATIENCE = 30.0  # seconds for something that must happen at some time
LARGE = 64_000_000  # bytes; far more than a socket takes at once


class Runner:
    """A board and the loop that drives it, as the runner of ranks does it; clients are threads and processes."""

    def __init__(self, folder: Path, world_size: int = 2) -> None:
        self.selector = selectors.DefaultSelector()
        self.board = Board(self.selector, folder, world_size)
        self.channels = [Channel(self.board.address, rank, world_size) for rank in range(world_size)]
        self.pool = ThreadPoolExecutor(8)
        self.links: list[socket.socket] = []
        self.processes: list[subprocess.Popen[str]] = []

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for link in self.links:
            link.close()
        self.board.close()
        assert not self.selector.get_map()
        self.selector.close()
        self.pool.shutdown()

    def turn(self) -> None:
        for key, _ in self.selector.select(0.01):
            if not key.data():
                self.selector.unregister(key.fileobj)

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < deadline, self.board.waiting()
            self.turn()

    def begin(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call it in a thread; returns when the board has its request."""
        before = len(self.requests())
        future = self.pool.submit(call, *args)
        self.until(lambda: len(self.requests()) > before or future.done())
        return future

    def requests(self) -> list[str]:
        """What waits now."""
        return [text for texts in self.board.waiting().values() for text in texts.split(" and in ")]

    def end(self, future: Future[Any]) -> Any:
        self.until(future.done)
        return future.result()

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        return self.end(self.pool.submit(call, *args))

    def link(self, *parts: bytes) -> socket.socket:
        """A client that says what it likes."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.links.append(link)
        link.connect(self.board.address)
        for part in parts:
            link.sendall(part)
        link.settimeout(0)
        return link

    def hears(self, link: socket.socket, size: int = 1) -> bytes:
        """As much as has come when something has come; b"" at the end of the connection."""
        heard: list[bytes] = []

        def something() -> bool:
            try:
                heard.append(link.recv(size))
            except BlockingIOError:
                return False
            except ConnectionResetError:
                heard.append(b"")
            return True

        self.until(something)
        return heard[0]

    def process(self, code: str, rank: int = 0) -> subprocess.Popen[str]:
        """A fresh process with ``channel``; what it prints is its answer."""
        channel = f"channel = pickle.loads({pickle.dumps(self.channels[rank])!r})"
        code = f"import os, pickle, signal, sys\n{channel}\n{code}"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def says(self, process: subprocess.Popen[str]) -> str:
        self.until(lambda: process.poll() is not None)
        assert process.stdout is not None
        return process.stdout.read()


@pytest.fixture
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(tmp_path, getattr(request, "param", 2))
    yield runner
    runner.close()
    assert list(tmp_path.iterdir()) == []


def asks(operation: str, name: str, rank: object = 0) -> bytes:
    return packed({"operation": operation, "name": name, "rank": rank})


# ---------------------------------------------------------------- values


def test_values_come_in_the_order_of_their_key(runner: Runner) -> None:
    zero, one = runner.channels
    for number in range(5):
        runner.run(zero.put, number, "a")
        runner.run(one.put, -number)
    assert [runner.run(one.get, "a") for _ in range(5)] == [0, 1, 2, 3, 4]
    assert [runner.run(zero.get) for _ in range(5)] == [0, -1, -2, -3, -4]


def test_two_that_wait_get_one_value_each(runner: Runner) -> None:
    zero, one = runner.channels
    first, second = runner.begin(zero.get, "k"), runner.begin(one.get, "k")
    runner.run(one.put, "x", "k")
    assert runner.end(first) == "x"
    assert not second.done()
    runner.run(one.put, "y", "k")
    assert runner.end(second) == "y"
    assert runner.board.unread() == {}


def test_many_threads_of_many_ranks_lose_and_double_nothing(runner: Runner) -> None:
    def talk(rank: int) -> list[int]:
        channel = runner.channels[rank]
        got = []
        for number in range(20):
            channel.put(100 * rank + number, "k")
            got.append(channel.get("k"))
        return got

    talks = [runner.pool.submit(talk, rank) for rank in (0, 1, 0, 1)]
    got = [value for future in talks for value in runner.end(future)]
    assert sorted(got) == sorted(2 * [*range(20), *range(100, 120)])
    assert runner.board.unread() == {}


def test_a_large_value_arrives_whole_while_others_are_served(runner: Runner) -> None:
    zero, one = runner.channels
    value = bytes(range(256)) * (LARGE // 256)
    large = runner.pool.submit(zero.put, value, "large")
    runner.run(one.put, "small", "k")
    assert runner.run(one.get, "k") == "small"
    runner.end(large)
    assert runner.run(one.get, "large", 60.0) == value


def test_local_functions_travel(runner: Runner) -> None:
    factor = 3
    runner.run(runner.channels[0].put, lambda x: factor * x)
    assert runner.run(runner.channels[1].get)(5) == 15


rebuilt: list[str] = []


class Trap:
    """Unpickling it raises, and leaves a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _spring, ("planted",)


def _spring(text: str) -> None:
    rebuilt.append(text)
    raise ZeroDivisionError(text)


def test_the_board_never_unpickles_a_value(runner: Runner) -> None:
    rebuilt.clear()
    runner.run(runner.channels[0].put, Trap(), "k")
    assert runner.board.unread() == {"k": 1}
    assert rebuilt == []
    with pytest.raises(
        ProcessesError, match=r"value under 'k' cannot be rebuilt: ZeroDivisionError: planted .*rank 1"
    ) as caught:
        runner.run(runner.channels[1].get, "k")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert rebuilt == ["planted"]
    assert runner.board.unread() == {}


def test_what_cannot_be_sent_is_refused_before_anything_is(runner: Runner) -> None:
    with pytest.raises(ProcessesError, match="a generator put under 'k' cannot be sent: TypeError: cannot pickle"):
        runner.run(runner.channels[0].put, (x for x in "ab"), "k")
    assert runner.board.unread() == {}


def test_a_report_has_what_nobody_took(runner: Runner) -> None:
    for key in ("b", "a", "b"):
        runner.run(runner.channels[0].put, 1, key)
    assert runner.board.unread() == {"b": 2, "a": 1}
    runner.run(runner.channels[1].get, "a")
    assert runner.board.unread() == {"b": 2}


# ---------------------------------------------------------------- who ends in the middle


def test_a_value_is_not_lost_when_the_one_that_waited_is_killed(runner: Runner) -> None:
    process = runner.process("channel.get('k')")
    runner.until(lambda: bool(runner.requests()))
    process.kill()
    runner.until(lambda: not runner.requests())
    runner.run(runner.channels[1].put, "kept", "k")
    assert runner.run(runner.channels[1].get, "k") == "kept"


def test_a_value_that_was_sent_and_not_read_comes_back(runner: Runner) -> None:
    process = runner.process("channel.get('k')")
    runner.until(lambda: bool(runner.requests()))
    process.send_signal(signal.SIGSTOP)
    runner.run(runner.channels[1].put, "kept", "k")
    runner.run(runner.channels[1].put, "later", "k")
    assert not runner.requests()  # the kernel has all of the answer
    assert runner.board.unread() == {"k": 2}
    process.kill()
    process.wait()
    assert [runner.run(runner.channels[1].get, "k") for _ in range(2)] == ["kept", "later"]


def test_a_value_that_was_read_in_part_comes_back_whole_and_first(runner: Runner) -> None:
    zero, one = runner.channels
    value = b"x" * LARGE
    runner.run(zero.put, value, "k")
    runner.run(zero.put, "later", "k")
    link = runner.link(asks("get", "k"))
    assert runner.hears(link)
    link.close()
    assert runner.run(one.get, "k") == value
    assert runner.run(one.get, "k") == "later"


def test_values_that_come_back_keep_their_order(runner: Runner) -> None:
    for number in range(3):
        runner.run(runner.channels[0].put, number, "k")
    links = [runner.link(asks("get", "k")) for _ in range(2)]
    for link in links:
        assert runner.hears(link)
    for link in links:
        link.close()
        runner.turn()
    assert [runner.run(runner.channels[1].get, "k") for _ in range(3)] == [0, 1, 2]


def test_a_value_that_comes_back_goes_to_whoever_waits(runner: Runner) -> None:
    link = runner.link(asks("get", "k"))
    runner.until(lambda: bool(runner.requests()))
    waits = runner.begin(runner.channels[1].get, "k")
    runner.run(runner.channels[0].put, "x", "k")
    assert runner.hears(link)
    assert not waits.done()
    link.close()
    assert runner.end(waits) == "x"


def test_nothing_half_arrives_from_one_that_ends_in_the_middle_of_put(runner: Runner) -> None:
    head = packed({"operation": "put", "name": "k", "rank": 0}, 1_000)
    for said in (head[:3], head[:-1], head + b"half"):
        runner.link(said).close()
    runner.run(runner.channels[1].put, "whole", "k")
    assert runner.board.unread() == {"k": 1}
    assert runner.run(runner.channels[1].get, "k") == "whole"


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        _channel.SIZES.pack(2, 0) + b"no",
        _channel.SIZES.pack(60_000, 0) + b"[" * 60_000,
        packed(["put", "k", 0]),
        packed({"operation": "put", "name": "k"}),
        packed({"operation": "put", "name": "k", "rank": 0, "more": 1}),
        asks("steal", "k"),
        packed({"operation": ["get"], "name": "k", "rank": 0}),
        packed({"operation": "get", "name": None, "rank": 0}),
        asks("get", "k", rank=2),
        asks("get", "k", rank=-1),
        asks("get", "k", rank=True),
        asks("get", "nothing") + b"?",
        asks("get", "nothing") + _channel.TAKEN,
    ],
    ids=lambda said: repr(said[:40]),
)
def test_a_malformed_request_ends_its_own_connection_only(runner: Runner, said: bytes) -> None:
    waits = runner.begin(runner.channels[0].get, "k")
    assert runner.hears(runner.link(said)) == b""
    runner.run(runner.channels[1].put, "x", "k")
    assert runner.end(waits) == "x"


# ---------------------------------------------------------------- barriers and events


def test_a_barrier_lets_all_go_when_all_have_come_round_after_round(runner: Runner) -> None:
    zero, one = runner.channels
    for _ in range(3):
        first = runner.begin(zero.barrier)
        other = runner.begin(zero.barrier, "another")
        assert not first.done()
        runner.run(one.barrier)
        runner.end(first)
        assert not other.done()
        runner.run(one.barrier, "another")
        runner.end(other)


def test_a_rank_that_comes_twice_in_a_round_is_told_at_once(runner: Runner) -> None:
    zero, one = runner.channels
    first = runner.begin(zero.barrier, "b")
    with pytest.raises(ProcessesError, match=r"rank 0 waits in this barrier already \(channel\.barrier\('b'\)\)"):
        runner.run(zero.barrier, "b")
    runner.run(one.barrier, "b")
    runner.end(first)


def test_a_rank_that_is_killed_in_a_barrier_has_not_come(runner: Runner) -> None:
    process = runner.process("channel.barrier()", rank=0)
    runner.until(lambda: bool(runner.requests()))
    process.kill()
    runner.until(lambda: not runner.requests())
    one = runner.begin(runner.channels[1].barrier)
    assert not one.done()
    runner.run(runner.channels[0].barrier)
    runner.end(one)


def test_an_event_is_seen_by_all_and_stays(runner: Runner) -> None:
    zero, one = (channel.event("ready") for channel in runner.channels)
    assert not runner.run(one.is_set)
    waits = [runner.begin(event.wait) for event in (zero, one)]
    runner.run(runner.channels[0].event("other").set)
    assert not any(future.done() for future in waits)
    runner.run(zero.set)
    for future in waits:
        runner.end(future)
    runner.run(zero.set)
    runner.run(one.wait)
    assert runner.run(one.is_set)


# ---------------------------------------------------------------- limits and messages


@pytest.mark.parametrize("runner", [4], indirect=True)
@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_late_operation_says_how_long_it_waited_for_what(runner: Runner, timeout: float) -> None:
    channel = runner.channels[2]
    runner.begin(runner.channels[0].barrier, "b")
    for call, args, what in (
        (channel.get, ("weights",), "get('weights'): nobody put a value"),
        (channel.barrier, ("b",), "barrier('b'): ranks 1, 3 have not come"),
        (channel.event("e").wait, (), "event('e').wait(): nobody set it"),
    ):
        with pytest.raises(TimeoutError, match=f"^rank 2 waited {timeout} s in channel.{re.escape(what)}$"):
            runner.run(call, *args, timeout)
    assert list(runner.board.waiting()) == [0]


def test_no_time_at_all_is_enough_for_what_is_there(runner: Runner) -> None:
    zero = runner.channels[0]
    runner.run(zero.put, "x")
    runner.run(zero.event("e").set)
    assert runner.run(zero.get, "", 0) == "x"
    runner.run(zero.event("e").wait, 0)


def test_one_that_was_late_takes_nothing_away_and_may_come_again(runner: Runner) -> None:
    zero, one = runner.channels
    for call in (zero.get, zero.barrier):
        with pytest.raises(TimeoutError, match="rank 0 waited"):
            runner.run(call, "k", 0.01)
    runner.run(one.put, "x", "k")
    assert runner.run(zero.get, "k", 20.0) == "x"
    round_ = runner.begin(one.barrier, "k")
    runner.run(zero.barrier, "k")
    runner.end(round_)


def test_an_answer_counts_that_was_given_before_the_client_gave_up(runner: Runner) -> None:
    meets, gets = runner.link(asks("barrier", "b")), runner.link(asks("get", "k"))
    runner.until(lambda: len(runner.requests()) == 2)
    runner.run(runner.channels[1].barrier, "b")
    runner.run(runner.channels[1].put, "x", "k")
    for link in (meets, gets):
        link.sendall(_channel.GAVE_UP)
        assert b"late" not in runner.hears(link, 1_000)
    gets.sendall(_channel.TAKEN)
    assert runner.board.unread() == {}


def test_a_value_that_has_begun_to_arrive_may_take_longer_than_the_limit(runner: Runner) -> None:
    runner.run(runner.channels[1].put, b"x" * LARGE, "k")
    gets = runner.pool.submit(runner.channels[0].get, "k", 0.2)
    runner.until(lambda: any(caller.held for caller in runner.board._callers))
    runner.turn()  # the head of the answer is out
    time.sleep(0.3)  # the limit is over, and nobody has driven the board meanwhile
    assert len(runner.end(gets)) == LARGE


def test_a_client_that_stays_after_its_answer_does_not_keep_the_loop_busy(runner: Runner) -> None:
    link = runner.link(asks("is_set", "e"))
    assert runner.hears(link, 1_000)
    runner.turn()
    assert runner.selector.select(0) == []


def test_a_limit_holds_also_if_the_runner_is_stuck(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_channel, "ANSWER_LIMIT", 0.05)
    with pytest.raises(TimeoutError, match=r"waited 0\.01 s in .*: and the runner has not answered for 0\.05 s$"):
        runner.channels[0].get(timeout=0.01)  # nobody drives the board


def test_who_waits_for_what_is_told_by_rank(runner: Runner) -> None:
    zero, one = runner.channels
    assert runner.board.waiting() == {}
    runner.begin(one.get, "weights")
    runner.begin(zero.barrier)
    runner.begin(zero.event("go").wait)
    told = {rank: re.sub(r"\d+\.\d s", "N s", text) for rank, text in runner.board.waiting().items()}
    assert told == {
        0: "in channel.barrier('') for N s: rank 1 has not come and in channel.event('go').wait() for N s",
        1: "in channel.get('weights') for N s",
    }


@pytest.mark.parametrize("name", [1, None, b"k", "k" * 1_001], ids=lambda name: repr(name)[:10])
def test_a_name_that_cannot_be_used_is_shown(runner: Runner, name: Any) -> None:
    channel = runner.channels[1]
    shown = re.escape(repr(name)[:77])
    for call, where in (
        (lambda: channel.put(0, name), "channel.put"),
        (lambda: channel.get(name), "channel.get"),
        (lambda: channel.barrier(name), "channel.barrier"),
        (channel.event(name).set, "channel.event"),
    ):
        with pytest.raises(
            ProcessesError, match=rf"the name is {shown}(\.\.\.)? \({where} in rank 1\)\nnext: give a text"
        ):
            call()


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1"])
def test_a_limit_that_cannot_be_used_is_shown(runner: Runner, timeout: Any) -> None:
    with pytest.raises(ProcessesError, match=rf"timeout is {timeout!r} \(channel\.get in rank 0\)\nnext: give seconds"):
        runner.channels[0].get(timeout=timeout)


@pytest.mark.parametrize("name", ["\udc80 \U0001f600 \0", "\U0001f600" * 1_000], ids=["odd", "long"])
def test_any_text_is_a_name(runner: Runner, name: str) -> None:
    runner.run(runner.channels[0].put, "x", name)
    assert runner.board.unread() == {name: 1}
    assert runner.run(runner.channels[0].get, name) == "x"


# ---------------------------------------------------------------- processes, and the end


def test_a_rank_and_a_child_that_it_forks_may_talk_to_each_other(runner: Runner) -> None:
    rank = runner.process(
        "if os.fork() == 0:\n"
        "    channel.put(channel.get('down') + 1, 'up'); channel.event('done').set(); os._exit(0)\n"
        "channel.put(41, 'down'); channel.event('done').wait(); print(channel.get('up'), channel.rank)",
        rank=1,
    )
    assert runner.says(rank) == "42 1\n"


def test_processes_that_were_started_on_their_own_meet(runner: Runner) -> None:
    code = "channel.barrier(); channel.put(channel.rank, 'r'); channel.barrier(); print(channel.get('r', 0))"
    ranks = [runner.process(code, rank) for rank in (0, 1)]
    assert sorted(runner.says(rank) for rank in ranks) == ["0\n", "1\n"]
    assert runner.board.unread() == {}


def test_a_closed_board_lets_all_go_with_an_error(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    channel = runner.channels[0]
    waits = [runner.begin(call) for call in (channel.get, channel.barrier, channel.event("e").wait)]
    unheard = runner.pool.submit(channel.put, "x")
    runner.close()
    for future in (*waits, unheard):
        with pytest.raises(ProcessesError, match=r"^processes: the runner does not answer channel\..*rank 0, socket /"):
            future.result()
    with pytest.raises(
        ProcessesError, match=r"channel\.put\(key='k'\): FileNotFoundError.*\nnext: use the channel only while"
    ):
        channel.put("x", "k")


def test_a_folder_with_a_long_name_gets_its_socket_elsewhere_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    runner = Runner(folder)
    own = Path(runner.board.address).parent
    assert own.stat().st_mode & 0o777 == 0o700
    runner.run(runner.channels[0].put, "x")
    assert runner.run(runner.channels[1].get) == "x"
    runner.close()
    assert not own.exists()


def test_a_body_that_asks_for_a_channel_where_there_is_none_is_told_so() -> None:
    with pytest.raises(ProcessesError, match=r"no Unix sockets, which channel needs \(channel\)\nnext: run this on"):
        Channel("", 0, 2)


def test_no_descriptor_left_is_an_error_and_no_endless_loop(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(runner.board, "_listener", Full())
    with pytest.raises(ProcessesError, match=r"cannot take a request: .*Too many open files.*\nnext: raise the limit"):
        runner.run(runner.channels[0].put, "x")
    monkeypatch.undo()
