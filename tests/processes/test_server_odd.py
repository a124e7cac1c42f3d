"""Servers that write much, listen elsewhere, prompt or go to the background; logs, ready functions, arguments."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from testkit.errors import ProcessesError
from testkit.processes import Answer, Server, ServerError, _output
from testkit.processes._family import TAG
from testkit.processes._output import Output
from testkit.processes._port import NoAnswer, ask, bound

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sessions and /proc are Linux's")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/crash":
            say("its last words")
            os.kill(os.getpid(), 11)
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(b'{"phase": "awake"}')


class Chatty(Handler):
    def do_GET(self) -> None:
        for _ in range(200):
            say("x" * 100)
        while self.path == "/endless":
            say("y" * 100)
        super().do_GET()


def say(line: str, end: str = "\n") -> None:
    sys.stdout.write(line + end)
    sys.stdout.flush()


def serve(port: int) -> None:
    server = HTTPServer(("127.0.0.1", port), Handler)
    say(f"serving on port {port}")
    server.serve_forever()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert [child for child in psutil.Process().children() if child.environ().get(TAG, "").startswith("server-")] == []


# Case O19. Pipes that are read at the end only: a server blocks while it writes its log, and ignores SIGTERM.
# dhis2-chap/chap-core#567 (also mlrun/mlrun#9951, anthropics/skills#1396, huggingface/text-generation-inference#1963)


@pytest.fixture
def chatty() -> Iterator[Server]:
    def chats(port: int) -> None:
        for number in range(4000):
            say(f"loading shard {number} {'.' * 80}")
        HTTPServer(("127.0.0.1", port), Chatty).serve_forever()

    with Server(chats, ready="/health", startup_timeout=10) as server:
        yield server


def test_a_server_that_writes_much_is_ready_soon_and_answers(chatty: Server) -> None:
    assert [chatty.get("/health").status for _ in range(50)] == [200] * 50
    assert chatty.log_tail(3).startswith("x")


def test_a_server_that_writes_all_the_time_ends_on_the_terminate_rung(chatty: Server) -> None:
    with pytest.raises(ServerError, match=r"does not answer GET /endless"):
        chatty.get("/endless", timeout=0.5)
    assert "y" * 100 in chatty.log_tail(2)
    assert [(ended.signal, ended.rung) for ended in chatty.stop()] == [("SIGTERM", "terminate")]


def test_the_last_words_of_a_server_that_wrote_much_are_in_the_failure(chatty: Server) -> None:
    with pytest.raises(
        ServerError, match=r"(?s)SIGSEGV.*its last 40 lines:\n +x{100}\n.* its last words\n.*Fatal Python"
    ):
        chatty.get("/crash")
    chatty.stop()


def test_standard_input_is_not_inherited() -> None:
    code = (
        "import os, sys, time; print('reads', repr(sys.stdin.read()), os.readlink('/proc/self/fd/0')); time.sleep(60)"
    )
    with Server([sys.executable, "-c", code], ready=re.compile("^reads '' /dev/null$")):
        pass


# Where it listens


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback here")


@needs_ipv6
def test_a_server_that_listens_elsewhere_is_told_where() -> None:
    with bound() as holder:
        other = holder.getsockname()[1]

    def elsewhere(port: int) -> None:
        with socket.create_server(("::1", port), family=socket.AF_INET6):
            serve(other)

    places = rf"\[::1\]:\1, 127\.0\.0\.1:{other}|127\.0\.0\.1:{other}, \[::1\]:\1"
    with (
        pytest.raises(ServerError, match=rf"nothing listens on port (\d+); it listens on ({places}) \(Server"),
        Server(elsewhere, ready="/health", startup_timeout=3),
    ):
        pass


@needs_ipv6
def test_a_server_on_all_addresses_of_both_families_is_ours() -> None:
    def everywhere(port: int) -> None:
        HTTPServer.address_family = socket.AF_INET6
        HTTPServer(("::", port), Handler).serve_forever()

    with Server(everywhere, ready="/health") as server:
        assert server.get("/health").status == 200


def test_a_server_that_goes_to_the_background_is_told_to_stay_and_ended() -> None:
    def daemon(port: int) -> None:
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        serve(port)

    server = Server(daemon, ready=lambda server: False)
    with pytest.raises(ServerError, match=r"before it was ready: exit 0, .*; pid \d+ .*, runs on \(Server") as gone:
        server.__enter__()
    assert "next: keep it in the foreground" in str(gone.value)
    assert server.ended[-1].descendant or len(server.ended) > 1


def test_a_port_that_nobody_has_is_not_asked_for_itself() -> None:
    """TCP connects a port to itself if that port happens to be the one that we ask from."""
    with socket.socket() as lone:
        lone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        lone.bind(("127.0.0.1", 0))
        with pytest.raises(NoAnswer, match="nothing listens on port"):
            ask(lone.getsockname()[1], "GET", "/", timeout=1)


# What it writes


def test_a_prompt_may_say_that_the_server_is_ready() -> None:
    def prompts() -> None:
        say("on port 1\nready> ", end="")
        time.sleep(60)

    with Server(prompts, ready=re.compile("^ready> $")) as server:
        assert server.log_tail() == "on port 1\nready> "


def test_half_a_line_is_a_prompt_only_when_it_has_stood_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(_output, "time", SimpleNamespace(monotonic=lambda: now))
    output = Output(tmp_path / "log", "a test")
    with output.opened() as file:
        for written, seconds, lines, prompt in (
            ("", 0.0, [], ""),
            ("one\nrea", 9.0, ["one"], ""),
            ("", 0.4, [], ""),
            ("dy", 0.4, [], ""),
            ("", 0.6, [], "ready"),
            ("!\n", 0.1, ["ready!"], ""),
            ("", 9.0, [], ""),
        ):
            file.write(written.encode())
            file.flush()
            now += seconds
            assert (output.new_lines(), output.prompt()) == (lines, prompt)


def test_a_port_is_read_from_a_whole_line_only() -> None:
    def half() -> None:
        say("on port 80", end="")
        time.sleep(60)

    with (
        pytest.raises(ServerError, match=r"not ready in 0\.8 s: no whole line of its output matches 'on port"),
        Server(half, ready=re.compile(r"on port (?P<port>\d+)"), startup_timeout=0.8),
    ):
        pass


@pytest.mark.parametrize(("pattern", "found"), [(r"on port (?P<port>\w+)", "'none'"), ("on port|(?P<port>x)", "None")])
def test_a_port_that_is_no_number_is_refused(pattern: str, found: str) -> None:
    def says_none() -> None:
        say("on port none")
        time.sleep(60)

    with (
        pytest.raises(ServerError, match=rf"the group port of ready matched {found}, which is no port"),
        Server(says_none, ready=re.compile(pattern)),
    ):
        pass


def test_a_log_is_found_from_any_folder_and_may_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Server(serve, ready="/health", log="server.log") as server:
        monkeypatch.chdir("/")
        assert "serving on port" in server.log_tail()
        (tmp_path / "server.log").unlink()
        with pytest.raises(ServerError, match=r"(?s)SIGSEGV.*it wrote nothing"):
            server.get("/crash")
        server.stop()
        server.restart()
        assert "serving on port" in (tmp_path / "server.log").read_text()


def test_a_log_in_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match=r"could not be started: .*No such file or directory: '.*/absent/log'"),
        Server(serve, ready="/health", log=tmp_path / "absent" / "log"),
    ):
        pass


def test_words_with_quotes_and_braces_arrive_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s "here" {fast}'
    folder.mkdir()
    words = ['{"port": 1}', "a b", "'", '"', "{}", "{port"]
    code = "import os, sys, time; print(os.getcwd(), sys.argv[1:], flush=True); time.sleep(60)"
    program = [sys.executable, "-c", code, *words]
    with Server(program, ready=re.compile(re.escape(f"{folder} {words}")), cwd=folder, log=folder / "lo'g") as server:
        assert (folder / "lo'g").read_text().strip() == server.log_tail()
    with Server(serve, ready="/health") as server:
        assert server.get('/it\'s?of="y"&{port}').status == 404


# What a ready function may do


def test_a_ready_function_may_raise_anything_until_the_server_is_there() -> None:
    class Refused(Exception):
        """As an HTTP library's own, which is no OSError."""

    asked: list[None] = []

    def early(server: Server) -> bool:
        asked.append(None)
        if len(asked) < 3:
            raise Refused("not yet")
        return True

    with Server(serve, ready=early) as server:
        assert server.get("/health").status == 200

    def always(server: Server) -> bool:
        raise Refused("never\nat all")

    with (
        pytest.raises(ServerError, match=r"not ready in 0\.3 s: ready raised Refused: never \(Server") as late,
        Server(serve, ready=always, startup_timeout=0.3),
    ):
        pass
    assert isinstance(late.value.__cause__, Refused)


def test_a_ready_function_that_asks_wrongly_is_told_at_once() -> None:
    with (
        pytest.raises(ProcessesError, match=r"path is 'health' \(argument of Server\.get\)"),
        Server(serve, ready=lambda server: server.get("health").status == 200),
    ):
        pass


# What cannot be used


@pytest.mark.parametrize(
    ("argv", "options", "message"),
    [
        ("python -m http.server", {"ready": "/"}, "argv is 'python -m http.server'"),
        ([], {"ready": "/"}, r"argv is \[\]"),
        (["server", "{port}"], {"ready": "health"}, "ready is 'health'"),
        (["server", "{port}"], {"ready": None}, "ready is None"),
        (["server", "{port}"], {"ready": lambda: True}, "ready cannot be called with the server: too many"),
        (["server", "{port}"], {"ready": re.compile(b"up")}, r"ready is re.compile\(b'up'\)"),
        (["server", "{port}"], {"ready": "/is it up"}, r"path is '/is it up' \(ready, argument of Server\)"),
        (["server"], {"ready": "/health"}, "nothing says the server's port"),
        (["server"], {"ready": lambda server: True}, "nothing says the server's port"),
        (["server"], {"ready": "/", "port": 0}, "port is 0"),
        (["server"], {"ready": "/", "port": 65536}, "port is 65536"),
        (["server", "{port}"], {"ready": "/", "startup_timeout": 0}, "startup_timeout is 0"),
        (["server", "{port}"], {"ready": "/", "probe_timeout": float("nan")}, "probe_timeout is nan"),
        (["server", "{port}"], {"ready": "/", "ladder": (1, -1, 1)}, r"ladder is \(1, -1, 1\)"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(argv: Any, options: Any, message: str) -> None:
    with pytest.raises(ProcessesError, match=f"^processes: {message}"):
        Server(argv, **options)


@pytest.mark.parametrize("options", [{}, {"cwd": "/no/such/server"}])
def test_a_program_or_folder_that_is_not_there_is_named(options: Any) -> None:
    program = [sys.executable if options else "/no/such/server", "{port}"]
    with (
        pytest.raises(ServerError, match=r"could not be started: .*'/no/such/server'"),
        Server(program, ready="/health", **options),
    ):
        pass


def test_a_body_is_given_once_a_timeout_is_positive_and_a_path_can_be_sent() -> None:
    with Server(serve, ready="/health") as server:
        with pytest.raises(ProcessesError, match="json and data are both given"):
            server.post("/phase", json={}, data=b"")
        with pytest.raises(ProcessesError, match=r"timeout is 0 \(GET /health\)"):
            server.get("/health", timeout=0)
        with pytest.raises(ProcessesError, match=r"timeout is nan \(argument of Server\.wait_for\)"):
            server.wait_for("/health", 200, timeout=float("nan"))
        for path in ("health", "/sp ace", "/ümlaut", "/line\n"):
            with pytest.raises(ProcessesError, match=r"path is '.*' \(argument of Server\.post\)\nnext: begin it with"):
                server.post(path)
        with pytest.raises(ValueError, match="status 200, and no JSON: 'x'"):
            Answer(200, b"x").json()
