"""The servers of one test: started one by one, ended together, the last one first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from testkit.errors import KitError
from testkit.processes._output import ServerError
from testkit.processes._server import Server

__tracebackhide__ = True  # pytest shows the line that called us, not ours


class Servers:
    """Call it as you would ``Server``; ``close`` ends all that it returned."""

    def __init__(self) -> None:
        self._started: list[Server] = []

    def __call__(self, program: Sequence[str] | Callable[..., Any], **options: Any) -> Server:
        """Start a server and return it when it is ready; takes and raises what ``Server`` does."""
        server = Server(program, **options)
        server.__enter__()
        self._started.append(server)
        return server

    def tails(self) -> str:
        """The last lines of each server under its name that no failure has shown, for a report."""
        parts = [(server.name, server.log_tail()) for server in self._started if not server.told]
        return "".join(f"--- last lines of {name}\n{tail}\n" for name, tail in parts if tail)

    def close(self, *, failed: bool = False) -> None:
        """End all, the last first, every one though others fail. ``failed``: the test has failed, and a server of
        which a failure has told already is not told of again.

        Raises the first problem, a server that had ended by itself included; the others are in its evidence.
        """
        problems = []
        while self._started:
            server = self._started.pop()
            told = failed and server.told
            problem = _closed(server)
            if problem is not None and not (told and isinstance(problem, ServerError)):
                problems.append(problem)
        for problem in problems:
            if len(problems) == 1 or not isinstance(problem, Exception):
                raise problem
        if problems:
            raise _together(problems)


def _closed(server: Server) -> BaseException | None:
    try:
        server.__exit__(None, None, None)
    except BaseException as error:  # noqa: BLE001 - Ctrl-C too: none is left running for it
        return error
    return None


def _together(problems: Sequence[BaseException]) -> ServerError:
    first, *others = problems
    texts = [
        f"--- and: {error if isinstance(error, KitError) else f'{type(error).__name__}: {error}'}" for error in others
    ]
    if not isinstance(first, KitError):
        return ServerError(f"{type(first).__name__}: {first}", "", "", "\n".join(texts))
    evidence = [first.evidence] if isinstance(first, ServerError) and first.evidence else []
    return ServerError(first.problem, first.where, first.fix, "\n".join([*evidence, *texts]))
