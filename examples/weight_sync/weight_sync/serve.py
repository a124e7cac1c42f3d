"""An inference engine in miniature behind HTTP: ``python -m weight_sync.serve PORT``.

FAULTS are planted mistakes; the environment variable WEIGHT_SYNC_FAULT activates one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VARIABLE = "WEIGHT_SYNC_FAULT"
FAULTS = {
    "killed-in-update": "SIGKILL while it loads, as from a machine that is out of memory",
    "pause-without-drain": "pause answers while generations still run",
    "update-while-running": "weights change under a running generation",
    "checksum-unread": "damaged weights are taken",
    "resume-forgotten": "resume answers and changes nothing",
}
TOKEN_SECONDS = 0.005


class Refused(Exception):
    """A request that does not fit the phase, or is wrong in itself."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def digest(weights: list[float]) -> str:
    """SHA-256 of the weights as JSON, in hexadecimal."""
    return hashlib.sha256(json.dumps(weights).encode()).hexdigest()


class Engine:
    """Running, pausing until the last generation has ended, paused, and running again."""

    def __init__(self) -> None:
        self.fault = os.environ.get(VARIABLE, "")
        if self.fault and self.fault not in FAULTS:
            raise ValueError(f"{self.fault} is no planted fault; these are: {', '.join(FAULTS)}")
        self._changed, self._abort = threading.Condition(), threading.Event()
        self._phase, self._running = "running", 0
        self._version, self._weights = 0, [0.0]

    def state(self) -> dict[str, Any]:
        return {"phase": self._phase, "version": self._version, "running": self._running}

    def generate(self, tokens: int = 8) -> dict[str, Any]:
        """So many tokens, each a weight; fewer if a pause aborts them."""
        with self._changed:
            if self._phase != "running":
                raise Refused(503, f"the engine is {self._phase}")
            self._running += 1
        said: list[float] = []
        try:
            while len(said) < tokens and not self._abort.wait(TOKEN_SECONDS):
                said.append(self._weights[len(said) % len(self._weights)])
        finally:  # or one that failed would be drained for ever
            with self._changed:
                self._running -= 1
                if not self._running and self._phase == "pausing":
                    self._phase = "paused"
                    self._changed.notify_all()
        return {"tokens": said, "end": "length" if len(said) == tokens else "aborted"}

    def pause(self, mode: str = "drain") -> dict[str, Any]:
        """Refuse new generations; answer when those that run have ended, by themselves or at once (mode "abort")."""
        if mode not in ("drain", "abort"):
            raise Refused(400, f'mode is {mode!r}; give "drain" or "abort"')
        with self._changed:
            if self._phase == "running":
                idle = not self._running or self.fault == "pause-without-drain"
                self._phase = "paused" if idle else "pausing"
            if mode == "abort":
                self._abort.set()
            self._changed.wait_for(lambda: self._phase != "pausing")
            return self.state()

    def update(self, version: int, weights: list[float], checksum: str) -> dict[str, Any]:
        """Take new weights while paused; if they are damaged the old ones stay."""
        with self._changed:
            if self._phase != "paused" and self.fault != "update-while-running":
                raise Refused(409, f"the engine is {self._phase}; pause it first")
            logging.info("loading %d weights of version %d", len(weights), version)
            if self.fault == "killed-in-update":
                os.kill(os.getpid(), signal.SIGKILL)
            if digest(weights) != checksum and self.fault != "checksum-unread":
                raise Refused(422, f"the weights of version {version} do not have the checksum {checksum[:12]}")
            self._version, self._weights = version, weights
            return self.state()

    def resume(self) -> dict[str, Any]:
        with self._changed:
            if self._phase != "paused":
                raise Refused(409, f"the engine is {self._phase}")
            self._abort.clear()
            self._phase = "paused" if self.fault == "resume-forgotten" else "running"
            return self.state()


class Handler(BaseHTTPRequestHandler):
    engine: Engine

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        if self.command != "GET":  # who waits for a state asks often; the end of the log is for what changed it
            super().log_request(code, size)

    def do_GET(self) -> None:
        self._answer({"/health": dict, "/state": self.engine.state}, b"")

    def do_POST(self) -> None:
        calls = {f"/{name}": getattr(self.engine, name) for name in ("generate", "pause", "update", "resume")}
        self._answer(calls, self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, calls: dict[str, Any], body: bytes) -> None:
        try:
            if self.path not in calls:
                raise Refused(404, f"there is no {self.path}")
            status, answer = 200, calls[self.path](**json.loads(body or b"{}"))
        except Refused as refused:
            status, answer = refused.status, {"error": str(refused)}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    Handler.engine = Engine()
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
