"""A server for a test: how it starts, when it is ready and surely ours, how it fails, and that nothing is left.

Functions as servers are in test_server_callable.py, the end of servers in test_server_end.py,
odd servers and arguments in test_server_odd.py.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testkit.processes import _server_run
from testkit.processes._family import TAG, carriers
from testkit.processes._port import NoAnswer, ask, bound
from testkit.processes._server import Server, ServerError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions and /proc are Linux's")

# A server with phases; argv: kind of socket ("port" or "fd"), its number.
HTTP = """
import http.server, json, os, signal, socket, subprocess, sys, time
state = {"phase": "awake", "polls": 0}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        state["polls"] += 1
        if state["phase"] == "falling" and state["polls"] > 2:
            state["phase"] = "asleep"
        if self.path == "/crash":
            print("about to crash"); os.kill(os.getpid(), signal.SIGSEGV)
        if self.path == "/drip":
            self.send_response(200); self.end_headers()
            while True:
                self.wfile.write(b"."); time.sleep(0.05)
        if self.path == "/silent":
            time.sleep(60)
        known = self.path in ("/health", "/state", "/environment")
        self.answer(200 if known else 404, dict(os.environ) if self.path == "/environment" else state)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        state["polls"] = 0
        state["phase"] = json.loads(body)["phase"]
        self.answer(200, {"got": body.decode(), "type": self.headers["Content-Type"]})
    def answer(self, status, value):
        self.send_response(status); self.end_headers(); self.wfile.write(json.dumps(value).encode())
def serve(kind, number, handler=Handler):
    if kind == "fd":
        server = http.server.HTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
        server.socket.close()
        server.socket = socket.socket(fileno=number)
        server.server_address = server.socket.getsockname()
        server.server_name, server.server_port = server.server_address
    else:
        server = http.server.HTTPServer(("127.0.0.1", number), handler)
    print("serving on port", server.server_address[1])
    server.serve_forever()
"""
SERVE = HTTP + "serve(sys.argv[1], int(sys.argv[2]))"
SLEEP = "import time; time.sleep(60)"


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process that we started, and no temporary log, outlives a test."""
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(logs))
    tags: list[str] = []

    def recorded() -> uuid.UUID:
        tag = original()
        tags.append(tag.hex)
        return tag

    original = uuid.uuid4
    monkeypatch.setattr(uuid, "uuid4", recorded)
    yield
    assert [pid for tag in tags for pid in carriers(tag)] == []
    assert list(logs.iterdir()) == []


@pytest.fixture
def old_server() -> Iterator[tuple[int, int]]:
    """Pid and port of last job's server, which answers /health."""
    with bound() as holder:
        port = holder.getsockname()[1]
    old = subprocess.Popen(python(SERVE, "port", str(port)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert old.stdout is not None
    with old.stdout:
        while not ask_quietly(port):
            assert old.poll() is None
        yield old.pid, port
        assert old.poll() is None, "a server that is not ours was ended"
        old.kill()
        old.wait()


def ask_quietly(port: int) -> bool:
    try:
        return ask(port, "GET", "/health", timeout=5).status == 200
    except NoAnswer:
        return False


# Starting, and asking


@pytest.mark.parametrize("way", ["port", "fd"])
def test_a_server_gets_a_port_or_a_socket_and_answers(way: str) -> None:
    with Server(python(SERVE, way, f"{{{way}}}"), ready="/health") as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert server.get("/health").json() == {"phase": "awake", "polls": 2}
        assert server.get("/nowhere").status == 404
        assert psutil.pid_exists(server.pid)
    assert [ended.signal for ended in server.ended] == ["SIGTERM"]
    assert f"serving on port {server.port}" in server.log_tail()


def test_a_server_may_print_its_port() -> None:
    pattern = re.compile(r"serving on port (?P<port>\d+)$")
    with Server(python(SERVE, "port", "0"), ready=pattern) as server:
        assert server.get("/health").status == 200
        before = server.port
        server.restart()
        assert f"serving on port {server.port}" in server.log_tail()
        assert server.get("/health").status == 200, before


def test_readiness_may_be_a_function_which_may_ask_too_early() -> None:
    asked = []

    def awake(server: Server) -> bool:
        asked.append(server.pid)
        return bool(server.get("/state").json()["polls"] > 2)

    with Server(python(SERVE, "fd", "{fd}"), ready=awake) as server:
        assert len(asked) >= 3
        assert set(asked) == {server.pid}


def test_environment_is_added_and_may_name_the_port(tmp_path: Path) -> None:
    code = HTTP + "serve('port', int(os.environ['MY_PORT']))"
    with Server(python(code), ready="/health", env={"MY_PORT": "{port}"}, cwd=tmp_path) as server:
        seen = server.get("/environment").json()
        assert seen["MY_PORT"] == str(server.port)
        assert seen[TAG] == server.tag
        assert seen["PATH"] == os.environ["PATH"]
        assert os.readlink(f"/proc/{server.pid}/cwd") == str(tmp_path)
        assert os.getsid(server.pid) == server.pid


def test_a_restarted_server_is_another_process_on_the_same_port() -> None:
    with Server(python(SERVE, "port", "{port}"), ready="/health") as server:
        port, pid, tag = server.port, server.pid, server.tag
        server.restart()
        assert (server.port, server.pid == pid, server.tag == tag) == (port, False, False)
        assert server.get("/state").json()["polls"] == 2
    assert len(server.ended) == 2


def test_a_given_log_stays_and_holds_both_lives(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("last job\n")
    with Server(python(SERVE, "port", "{port}"), ready="/health", log=log) as server:
        server.restart()
        assert server.log_tail().count("serving on port") == 1
    assert log.read_text().count("serving on port") == 2
    assert "last job" not in log.read_text()


def test_phases_are_posted_and_waited_for() -> None:
    with Server(python(SERVE, "port", "{port}"), ready="/health") as server:
        answer = server.post("/phase", json={"phase": "falling"})
        assert answer.json() == {"got": '{"phase": "falling"}', "type": "application/json"}
        assert server.wait_for("/state", {"phase": "asleep"}).json()["polls"] == 3
        assert server.post("/phase", data='{"phase": "awake"}').json()["type"] is None
        assert server.wait_for("/state", lambda answer: answer.json()["phase"] == "awake").status == 200
        assert server.wait_for("/state", 200).status == 200
        assert server.wait_for(lambda server: server.get("/state").json()["phase"], "awake") == "awake"


def test_a_state_that_never_comes_fails_with_the_last_answer_and_the_output() -> None:
    with Server(python(SERVE, "port", "{port}"), ready="/health") as server:
        with pytest.raises(
            ServerError, match=r"/state was not \{'phase': 'gone'\} in 0\.3 s; .*status 200.*awake"
        ) as no:
            server.wait_for("/state", {"phase": "gone"}, timeout=0.3)
        assert "serving on port" in str(no.value)
        with pytest.raises(ServerError, match=r"last answer: status 404, .* \(KeyError: 'absent'\)"):
            server.wait_for("/nowhere", lambda answer: answer.json()["absent"], timeout=0.3)
        with pytest.raises(ServerError, match=r"last answer: status 200, .* \(AttributeError: .*absent'\)") as bug:
            server.wait_for("/state", lambda answer: answer.absent, timeout=0.3)
        assert isinstance(bug.value.__cause__, AttributeError)


# What is not ours: case O20. An old server answers the health check while ours dies as it binds:
# sgl-project/sglang#22000 (also sgl-project/sglang#31281 and #22103); a picked port is lost before the server binds it:
# modelcontextprotocol/python-sdk#1528


def test_a_port_in_use_is_reported_with_its_holder_before_the_start(
    old_server: tuple[int, int], tmp_path: Path
) -> None:
    pid, port = old_server
    log = tmp_path / "log"
    with (
        pytest.raises(ServerError, match=rf"^processes: port {port} is in use by pid {pid} \(.*python") as held,
        Server(python(SERVE, "port", str(port)), ready="/health", port=port, log=log),
    ):
        pass
    assert not log.exists()
    assert str(held.value).count("\n") == 1, "nothing was started that could have written"


def test_last_jobs_server_does_not_answer_for_ours_that_died(old_server: tuple[int, int]) -> None:
    """O20 as it was: the new server dies while it binds, and the old one says 200 all the time."""
    pid, port = old_server
    pattern = re.compile(r"will take port (?P<port>\d+)")
    code = HTTP + "print('will take port', sys.argv[2])\nserve(sys.argv[1], int(sys.argv[2]))"
    with (
        pytest.raises(ServerError, match=rf"(port {port}: pid {pid} .*; ours|before it was ready): exit 1,") as death,
        Server(python(code, "port", str(port)), ready=pattern),
    ):
        pass
    assert "Address already in use" in str(death.value)


def test_last_jobs_server_does_not_answer_for_ours_that_lives(old_server: tuple[int, int]) -> None:
    pid, port = old_server
    says = f"print('serving on port {port}', flush=True)\n{SLEEP}"
    with (
        pytest.raises(ServerError, match=rf"another process answers on the server's port {port}: pid {pid} .*it runs"),
        Server(python(says), ready=re.compile(r"on port (?P<port>\d+)")),
    ):
        pass


@pytest.mark.parametrize("held", ["once", "always"])
@pytest.mark.parametrize("late", [False, True], ids=["dies", "has not bound yet"])
def test_a_port_that_is_lost_before_the_start_is_tried_once_more_with_another(
    held: str, late: bool, old_server: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, port = old_server
    taken: list[int] = []

    class Lost:
        """A socket that was bound to the port just before somebody else took it."""

        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", port

        def close(self) -> None:
            pass

    def lossy(wanted: int) -> Any:
        taken.append(wanted)
        return Lost() if held == "always" or len(taken) == 1 else bound(wanted)

    monkeypatch.setattr(_server_run, "bound", lossy)
    # One that reads its models first would bind in a minute only.
    code = HTTP + f"if {late} and sys.argv[2] == '{port}': time.sleep(60)\nserve(sys.argv[1], int(sys.argv[2]))"
    server = Server(python(code, "port", "{port}"), ready="/health")
    if held == "once":
        with server:
            assert server.port != port
            assert server.get("/health").status == 200
    else:
        with pytest.raises(ServerError, match=rf"port {port}: pid {pid} |exit 1") as lost, server:
            pass
        assert ("Address already in use" in str(lost.value)) is not late
    assert len(taken) == 2


def test_a_worker_that_the_server_started_may_listen_for_it() -> None:
    code = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True)\n"
    with Server(python(code + SLEEP, "-c", SERVE, "port", "{port}"), ready="/health") as server:
        assert server.get("/health").status == 200
    assert [(ended.signal, ended.descendant) for ended in server.ended] == [("SIGTERM", False), ("SIGTERM", True)]


# How a start fails


@pytest.mark.parametrize(
    ("end", "how", "ready"),
    [
        ("sys.exit(3)", "exit 3", "/health"),
        ("sys.exit(0)", "exit 0", "/health"),
        ("os._exit(0)", "exit 0", re.compile("never")),
        ("os._exit(0)", "exit 0", lambda server: False),
        ("os.kill(os.getpid(), 11)", "SIGSEGV", "/health"),
    ],
)
def test_an_early_death_is_a_failure_whatever_its_code(end: str, how: str, ready: Any) -> None:
    code = f"import os, sys\nprint('loading shards', flush=True)\n{end}"
    message = (
        rf"^processes: the server ended by itself before it was ready: {how}, \d\.\d s after its start \(Server python"
    )
    with pytest.raises(ServerError, match=message) as death, Server(python(code, "{port}"), ready=ready):
        pass
    assert "loading shards" in str(death.value)
    assert "next: " in str(death.value)


def test_a_death_is_noticed_although_a_worker_holds_the_connection() -> None:
    code = HTTP + (
        "if os.fork(): time.sleep(0.3); os._exit(0)\n"
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); s.accept(); time.sleep(60)"
    )
    with (
        pytest.raises(ServerError, match=r"ended by itself before it was ready: exit 0, [01]\.\d s after"),
        Server(python(code, "{port}"), ready="/health", probe_timeout=20),
    ):
        pass


@pytest.mark.parametrize(("way", "seconds"), [("port", 1.0), ("fd", 0.5)])
def test_a_server_that_accepts_and_never_answers_is_named_as_such(way: str, seconds: float) -> None:
    code = HTTP + "if sys.argv[1] == 'port': s = socket.create_server(('127.0.0.1', int(sys.argv[2])))\n"
    with (
        pytest.raises(
            ServerError,
            match=rf"not ready in {seconds} s: port \d+ accepts connections but does not answer GET /health",
        ),
        Server(python(code + SLEEP, way, f"{{{way}}}"), ready="/health", startup_timeout=seconds, probe_timeout=0.4),
    ):
        pass


@pytest.mark.parametrize(
    ("code", "ready", "seconds", "seen"),
    [
        (SLEEP, "/health", 0.3, r"nothing listens on port \d+"),
        (SERVE, "/nowhere", 1.5, "GET /nowhere is answered with status 404"),
        (SERVE, "/drip", 1.5, "accepts connections but does not answer GET /drip"),
        (SERVE, re.compile("never said"), 0.3, "no whole line of its output matches 'never said'"),
        ("print('ready', flush=True)\n" + SLEEP, re.compile("ready"), 1.0, r"nothing listens on port \d+"),
        (SLEEP, lambda server: server.get("/state").status, 0.3, "ready raised ServerError: .*nothing listens on port"),
        (SERVE, lambda server: False, 0.3, "ready says no"),
    ],
)
def test_what_was_seen_last_says_why_a_server_was_not_ready(code: str, ready: Any, seconds: float, seen: str) -> None:
    with (
        pytest.raises(ServerError, match=f"not ready in {seconds} s: .*{seen}"),
        Server(python(code, "port", "{port}"), ready=ready, startup_timeout=seconds, probe_timeout=0.4),
    ):
        pass


def test_what_answers_without_http_is_named() -> None:
    code = (
        "import socket, sys\ns = socket.create_server(('127.0.0.1', int(sys.argv[1])))\nprint('mail is served')\n"
        "while True: c, _ = s.accept(); c.recv(999); c.sendall(b'220 mail\\r\\n'); c.close()"
    )
    with (
        Server(python(code, "{port}"), ready=re.compile("mail is served")) as server,
        pytest.raises(ServerError, match=r"what answers GET /health on port \d+ is not HTTP \(BadStatusLine"),
    ):
        server.get("/health")


def test_only_the_last_lines_are_shown() -> None:
    with (
        pytest.raises(ServerError, match="exit 0") as death,
        Server(python("for i in range(5000): print('line', i)"), ready=re.compile("never")),
    ):
        pass
    assert "its last 40 lines:\n    line 4960\n" in str(death.value)
    assert "line 4959" not in str(death.value)


# How it fails later


def test_a_crash_during_a_request_is_named_by_its_signal() -> None:
    with Server(python(SERVE, "port", "{port}"), ready="/health") as server:
        with pytest.raises(ServerError, match="ended by itself during GET /crash: SIGSEGV") as crash:
            server.get("/crash")
        assert "about to crash" in str(crash.value)
        with pytest.raises(ServerError, match=r"ended by itself while /state was waited for; .*SIGSEGV"):
            server.wait_for("/state", 200, timeout=60)
        assert [(ended.signal, ended.rung) for ended in server.stop()] == [("SIGSEGV", "join")]


@pytest.mark.parametrize("path", ["/silent", "/drip"])
def test_a_request_has_one_deadline_however_the_server_drips(path: str) -> None:
    with (
        Server(python(SERVE, "port", "{port}"), ready="/health") as server,
        pytest.raises(ServerError, match=rf"does not answer GET {path} in 0\.3 s"),
    ):
        server.get(path, timeout=0.3)


def test_after_the_block_the_server_is_not_running() -> None:
    with Server(python(SERVE, "port", "{port}"), ready="/health") as server:
        pass
    with pytest.raises(ServerError, match="the server is not running"):
        server.get("/health")
    assert server.stop() == []


def test_what_a_server_says_of_our_own_looks_is_counted_not_shown() -> None:
    with (
        pytest.raises(ServerError, match=r"was not 503 in") as failure,
        Server(python(SERVE, "port", "{port}"), ready="/health") as server,
    ):
        server.wait_for("/health", 503, timeout=1.0)
    assert "more like it before)" in str(failure.value)
    assert str(failure.value).count("GET /health") <= 3


def test_what_was_said_before_a_death_is_the_answer() -> None:
    answered = threading.Event()

    def answer() -> None:
        link, _ = listener.accept()
        with link:
            link.recv(1000)
            answered.set()  # before: who reads the answer must find it set
            link.sendall(b"HTTP/1.0 200 OK\r\n\r\nlast words")
            link.shutdown(socket.SHUT_WR)
            link.recv(1)

    def watch() -> None:
        assert not answered.is_set(), "dead, and its answer is there"

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        got = ask(listener.getsockname()[1], "GET", "/", timeout=30, watch=watch)
        thread.join(30)
    assert (got.status, got.text) == (200, "last words")
