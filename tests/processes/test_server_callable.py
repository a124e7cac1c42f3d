"""A function as a server: what travels, what it is given, how it ends, and what is refused before anything starts."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from testkit.errors import ProcessesError
from testkit.processes import Server, ServerError
from testkit.processes._family import TAG

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions and /proc are Linux's")

GREETING = {"from": "the test module"}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Answers every GET with what ``told`` returns, as JSON."""

    told: Callable[[], Any] = staticmethod(lambda: GREETING)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(type(self).told()).encode())


def answer_on(sock: socket.socket, told: Callable[[], Any] = Handler.told) -> None:
    server = HTTPServer(
        sock.getsockname(), type("Told", (Handler,), {"told": staticmethod(told)}), bind_and_activate=False
    )
    server.socket.close()
    server.socket = sock
    server.serve_forever()


def answer(sock: socket.socket) -> None:
    answer_on(sock)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert [child for child in psutil.Process().children() if child.environ().get(TAG, "").startswith("server-")] == []


def test_a_function_gets_a_listening_socket() -> None:
    with Server(answer, ready="/") as server:
        assert server.get("/").json() == {"from": "the test module"}
        port = server.port
        server.restart()
        assert server.port == port
        assert server.get("/").status == 200
    assert [ended.signal for ended in server.ended] == ["SIGTERM", "SIGTERM"]


def test_a_function_gets_a_port_that_it_binds_itself() -> None:
    def serve(port: int) -> None:
        HTTPServer(("127.0.0.1", port), Handler).serve_forever()

    with Server(serve, ready="/") as server:
        assert server.get("/").json() == {"from": "the test module"}


def test_closures_defaults_and_partials_travel_and_the_test_module_is_not_imported() -> None:
    value = [1, 2]

    def serve(name: str, sock: socket.socket, port: int = 1, *rest: int, key: str = "k", **more: Any) -> None:
        def told() -> Any:
            return [name, value, port, key, rest, more, __name__ in sys.modules]

        answer_on(sock, told)

    with Server(functools.partial(serve, "n"), ready="/") as server:
        value.append(3)  # it travelled when the server was made
        assert server.get("/").json() == ["n", [1, 2], server.port, "k", [], {}, False]


def test_a_bound_method_and_a_callable_object_may_serve() -> None:
    class Service:
        def __init__(self, word: str) -> None:
            self.word = word

        def run(self, sock: socket.socket) -> None:
            answer_on(sock, lambda: self.word)

        def __call__(self, sock: socket.socket) -> None:
            self.run(sock)

    for program, word in ((Service("method").run, "method"), (Service("object"), "object")):
        with Server(program, ready="/") as server:
            assert server.get("/").json() == word


def test_it_runs_in_a_fresh_interpreter_of_its_own_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("word = 'imported'")
    (tmp_path / "pickle.py").write_text("raise SystemExit('the working directory was searched first')")
    monkeypatch.syspath_prepend(tmp_path / "on path")
    (tmp_path / "on path").mkdir()
    (tmp_path / "on path" / "from_our_path.py").write_text("word = 'imported'")

    def serve(sock: socket.socket) -> None:
        import from_our_path  # type: ignore[import-not-found]  # made above

        def told() -> Any:
            facts = [from_our_path.word, os.getsid(0) == os.getpid(), sys.stdin.read(), os.readlink("/proc/self/fd/0")]
            return [*facts, os.getcwd(), os.environ["WORD"], sys.argv[1:], "pytest" in sys.modules]

        answer_on(sock, told)

    with Server(serve, ready="/", cwd=tmp_path, env={"WORD": "{port}"}) as server:
        facts = ["imported", True, "", "/dev/null", str(tmp_path), str(server.port), [], False]
        assert server.get("/").json() == facts


def test_the_socket_is_not_handed_on_and_ours_is_closed() -> None:
    def serve(sock: socket.socket) -> None:
        answer_on(sock, lambda: [sock.get_inheritable(), sock.getsockname()[1]])

    with Server(serve, ready="/") as server:
        assert server.get("/").json() == [False, server.port]
        assert server.port not in {held.laddr.port for held in psutil.Process().net_connections("tcp")}


def test_a_function_that_is_given_no_port_prints_it_or_has_a_fixed_one() -> None:
    def prints() -> None:
        server = HTTPServer(("127.0.0.1", 0), Handler)
        sys.stdout.write(f"on port {server.server_port}\n")
        server.serve_forever()

    with Server(prints, ready=re.compile(r"on port (?P<port>\d+)")) as server:
        assert server.get("/").status == 200
        port = server.port

    def fixed() -> None:
        HTTPServer(("127.0.0.1", port), Handler).serve_forever()

    with Server(fixed, ready="/", port=port) as server:
        assert server.get("/").status == 200


def test_a_server_that_spawns_processes_of_multiprocessing_is_not_begun_again_by_them() -> None:
    def serve(sock: socket.socket) -> None:
        child = multiprocessing.get_context("spawn").Process(target=print, args=("the child prints",))
        child.start()
        child.join()
        answer_on(sock, lambda: child.exitcode)

    with Server(serve, ready="/") as server:
        assert server.get("/").json() == 0
        assert server.log_tail().count("the child prints") == 1


def test_a_port_that_a_function_loses_is_tried_once_more_with_another(tmp_path: Path) -> None:
    first = tmp_path / "first"

    def serve(port: int) -> None:
        if not first.exists():
            first.write_text(str(port))
            raise OSError(98, "Address already in use")
        HTTPServer(("127.0.0.1", port), Handler).serve_forever()

    with Server(serve, ready="/") as server:
        assert server.get("/").status == 200
        assert len(server.ended) == 1


def test_a_thread_that_is_not_a_daemon_keeps_the_server_up_after_its_function_returned() -> None:
    def serve(sock: socket.socket) -> None:
        threading.Thread(target=answer_on, args=(sock,)).start()

    with Server(serve, ready="/") as server:
        assert server.get("/").status == 200


# How it ends


def test_a_function_that_raises_leaves_its_traceback_with_its_lines() -> None:
    def serve(sock: socket.socket) -> None:
        raise LookupError("no such model")  # this very line is shown

    with pytest.raises(ServerError, match=r"ended by itself before it was ready: exit 1") as death:
        Server(serve, ready="/").__enter__()
    assert "(Server test_a_function_that_raises_leaves_its_traceback_with_its_lines.<locals>.serve)" in str(death.value)
    assert 'raise LookupError("no such model")  # this very line is shown' in str(death.value)
    assert "LookupError: no such model" in str(death.value)


def test_a_function_that_crashes_leaves_its_stack() -> None:
    def serve(sock: socket.socket) -> None:
        os.kill(os.getpid(), 11)

    with pytest.raises(ServerError, match="before it was ready: SIGSEGV") as death:
        Server(serve, ready="/").__enter__()
    assert "Fatal Python error: Segmentation fault" in str(death.value)
    assert "in serve" in str(death.value)


def test_a_function_that_returns_has_ended_by_itself() -> None:
    with pytest.raises(ServerError, match="ended by itself before it was ready: exit 0"):
        Server(lambda sock: None, ready="/").__enter__()

    def once(sock: socket.socket) -> None:
        for _ in range(2):  # the probe's, and the test's
            connection, _ = sock.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            connection.close()

    server = Server(once, ready="/", probe_timeout=30).__enter__()  # a probe that gave up would be one of the two
    assert server.get("/").status == 200
    psutil.wait_procs([psutil.Process(server.pid)], timeout=30)
    with pytest.raises(ServerError, match="ended by itself inside the block: exit 0"):
        server.__exit__(None, None, None)


def test_a_module_that_only_we_can_import_is_named_by_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("made_by_hand")
    exec("class Thing: pass", vars(module))
    monkeypatch.setitem(sys.modules, "made_by_hand", module)
    thing = module.Thing()

    def serve(sock: socket.socket) -> None:
        str(thing)

    with pytest.raises(ServerError, match="exit 1") as death:
        Server(serve, ready="/").__enter__()
    assert "No module named 'made_by_hand'" in str(death.value)


# What is refused before anything starts


def uses_a_global(sock: socket.socket) -> None:
    LOCK.acquire()


async def is_async(sock: socket.socket) -> None:
    pass


def is_a_generator(sock: socket.socket) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (uses_a_global, r"uses_a_global cannot be sent to a server, because of its variable LOCK, a lock: TypeError"),
        (lambda sock, model: None, r".*<lambda> needs model, which no server is given"),
        (lambda sock, /: None, r".*<lambda> needs sock, which no server is given"),
        (lambda: None, "nothing says the server's port"),
        (is_async, "calling is_async only makes a coroutine or a generator"),
        (functools.partial(is_a_generator), "calling is_a_generator only makes a coroutine or a generator"),
    ],
)
def test_a_function_that_cannot_serve_is_refused_by_name(program: Any, message: str) -> None:
    with pytest.raises(ProcessesError, match=f"^processes: {message}"):
        Server(program, ready="/")


@pytest.mark.parametrize("kind", ["socket", "pipe", "lock of multiprocessing"])
def test_what_only_this_process_has_is_refused_by_the_name_of_its_variable(kind: str) -> None:
    reads, writes = multiprocessing.Pipe()
    with socket.socket() as own, reads, writes:
        things = {"socket": own, "pipe": writes, "lock of multiprocessing": multiprocessing.get_context("spawn").Lock()}
        held = things[kind]

        def serve(sock: socket.socket) -> None:
            str(held)

        with pytest.raises(ProcessesError, match=r"cannot be sent to a server, because of its variable held, a \w+: "):
            Server(serve, ready="/")
