"""What runs in a rank: its own session, its own output, the body, and one message that says how it went.

Imported in the spawned child before anything of the user's. The parent never unpickles an exception of ours: a
failure travels as text. Messages are a kind (one byte), a length (8 bytes) and so many bytes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import io
import os
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from testkit.processes import _leaks

STARTED, DONE, FAILED, SKIPPED, XFAILED, THREADS, HELD, DEBUGGED = b"s", b"d", b"f", b"k", b"x", b"t", b"m", b"b"
HEADER = struct.Struct("!cQ")

LONGEST = 1e6
"""Seconds; faulthandler's clock takes no time limit far above."""
MOST = 100_000
"""Characters of a traceback that travel, from its end."""
OFFERED = ("rank", "world_size", "rendezvous", "channel")
"""What a body gets by name."""


@dataclass(frozen=True)
class Place:
    """Where a rank stands: its number, how many there are, its environment, its files, its time and its parent.

    ``alone``: the only process, which is not called a rank and is offered nothing by name.
    """

    rank: int
    world_size: int
    rendezvous: str
    channel: str
    env: dict[str, str]
    output: str
    stack: str
    tracker: str
    timeout: float
    alone: bool
    parent: int


class Payload:
    """A file with the body, its arguments and the warning filters, pickled by value.

    In a file, since a spawned child gets its pickle through a pipe, and whoever writes there waits for it for ever.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def load(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[Any]]:
        import pickle

        with open(self._path, "rb") as file:
            loaded: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[Any]] = pickle.load(file)
        return loaded


def main(place: Place, payload: Payload, says: Any, hears: Any) -> None:
    """Run one rank. ``says`` is the write end of its message pipe, ``hears`` the read end of the parent's word."""
    if hasattr(os, "setsid"):
        os.setsid()
    output = os.open(place.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (_stream(fd) for fd in (1, 2))
    faulthandler.enable()
    os.environ |= place.env
    _leaks.redirect(place.tracker)
    fd = says.fileno()
    sys.breakpointhook = partial(_debug, place, fd)
    try:
        body, args, kwargs, filters = payload.load()
        given = arranged(body, args, kwargs, _offered(place, body))
        _filter_warnings(filters)
        _send(fd, STARTED, b"")
        if not os.read(hears.fileno(), 1):
            os._exit(1)  # the parent is gone
        data = _pickled(_run(place, given, body), place.rank)
        _send(fd, THREADS, "\n".join(_threads()).encode(errors="replace"))
        _send(fd, HELD, " ".join(map(str, _leaks.held_here())).encode())
        _send(fd, DONE, data)
    except Exception as error:  # noqa: BLE001 - whatever the body raises is its verdict
        _send(fd, *_failure(error))
    except BaseException as error:
        # skip(), xfail() and fail() of a test runner are no Exception; an exit or an interrupt stays one
        if isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit)):
            raise
        _send(fd, *_failure(error))
    finally:
        _flush()


def _stream(fd: int) -> Any:
    return os.fdopen(fd, "w", buffering=1, closefd=False, encoding="utf-8", errors="backslashreplace")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _run(place: Place, given: inspect.BoundArguments, body: Callable[..., Any]) -> Any:
    """What the body returns. A process that it forked is not the rank, though it comes here: it ends."""
    rank = os.getpid()
    with open(place.stack, "w") as stack:
        if place.timeout < LONGEST:  # a C thread of its own writes the stack, also while the interpreter lock is held
            faulthandler.dump_traceback_later(max(0.05, place.timeout - 0.1), file=stack)
        try:
            result = body(*given.args, **given.kwargs)
        except BaseException as error:
            if os.getpid() != rank:
                _leave_fork(error)
            raise
        finally:
            if os.getpid() == rank:
                faulthandler.cancel_dump_traceback_later()
                _save_coverage()
        if os.getpid() != rank:
            _leave_fork(None)
    return result


def _leave_fork(error: BaseException | None) -> NoReturn:
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(type(error), error, error.__traceback__)
    _flush()
    os._exit(code)


def _filter_warnings(filters: Sequence[Any]) -> None:
    """Make them the filters of this process, in their order."""
    import warnings

    warnings.resetwarnings()
    for action, message, category, module, line in reversed(filters):
        texts = [getattr(pattern, "pattern", pattern) or "" for pattern in (message, module)]
        warnings.filterwarnings(action, texts[0], category, texts[1], line)


def _save_coverage() -> None:
    """What was measured so far goes to its file now: a rank that is killed later runs no exit hook."""
    if (coverage := sys.modules.get("coverage")) and (current := coverage.Coverage.current()):
        current.save()


def _threads() -> list[str]:
    """The names of other threads that will keep this process alive."""
    others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
    return [thread.name for thread in others if not thread.daemon]


def _debug(place: Place, fd: int, *_: Any, **__: Any) -> None:
    """``breakpoint()`` in a rank: pdb on the terminal that the run was started from, with the time limit off."""
    import pdb

    import psutil

    name = psutil.Process(place.parent).terminal()
    if not name:
        raise RuntimeError("breakpoint() in a rank needs a terminal, and this run has none")
    faulthandler.cancel_dump_traceback_later()
    _send(fd, DEBUGGED, b"")
    terminal = io.TextIOWrapper(open(name, "r+b", buffering=0), write_through=True)  # noqa: SIM115 - pdb keeps it
    print(f"\nrank {place.rank} of {place.world_size}, pid {os.getpid()}", file=terminal)
    debugger = pdb.Pdb(stdin=terminal, stdout=terminal)
    debugger.prompt = f"(rank {place.rank}) "
    debugger.set_trace(sys._getframe(1))


def arranged(
    body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], offered: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The body's arguments, with what it asks for of ``offered``; ``args`` fill the other parameters in order.

    Raises ``TypeError`` if it cannot be called so.
    """
    signature = inspect.signature(body)
    parameters = signature.parameters.values()
    wanted = {p.name: offered[p.name] for p in parameters if p.name in offered and p.name not in kwargs}
    others = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in wanted]
    if wanted and len(args) <= len(others):
        return signature.bind(**{**dict(zip(others, args, strict=False)), **kwargs, **wanted})
    return signature.bind(*args, **{**kwargs, **wanted})


def _offered(place: Place, body: Callable[..., Any]) -> dict[str, Any]:
    if place.alone:
        return {}
    offered: dict[str, Any] = {name: getattr(place, name) for name in OFFERED}
    if "channel" in inspect.signature(body).parameters:
        from testkit.processes._channel import Channel

        offered["channel"] = Channel(place.channel, place.rank, place.world_size)
    return offered


def _pickled(result: object, rank: int) -> bytes:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(result)
    except Exception as error:  # noqa: BLE001 - a foreign __reduce__ may raise anything
        kind = type(result).__qualname__
        raise TypeError(
            f"rank {rank} returned a {kind}, which cannot be sent: {type(error).__name__}: {error}"
        ) from None
    return data


def _failure(error: BaseException) -> tuple[bytes, bytes]:
    """The kind of message and its text: a headline, a null byte, the traceback."""
    names = {cls.__qualname__ for cls in type(error).__mro__}
    of_pytest = "OutcomeException" in names
    if (of_pytest and "Skipped" in names) or any(cls.__module__ == "unittest.case" for cls in _skips(error)):
        return SKIPPED, _text(error).encode(errors="replace")
    if of_pytest and "XFailed" in names:
        return XFAILED, _text(error).encode(errors="replace")
    headline = f"{type(error).__qualname__}: {_text(error)}".rstrip(": ")
    inside = error.__traceback__
    while inside is not None and inside.tb_frame.f_code.co_filename == __file__:  # ours say nothing
        inside = inside.tb_next
    try:
        trace = "".join(traceback.format_exception(type(error), error, inside))
    except Exception as broken:  # noqa: BLE001 - a foreign __str__ may raise anything
        trace = "".join(traceback.format_tb(inside)) + f"(the error cannot be shown: {type(broken).__name__})"
    trace = trace if len(trace) <= MOST else f"({len(trace) - MOST:,} characters left out)\n{trace[-MOST:]}"
    headline = headline.replace("\0", "\\0")[:MOST]
    return FAILED, f"{headline}\0{trace}".encode(errors="replace")


def _skips(error: BaseException) -> list[type]:
    return [cls for cls in type(error).__mro__ if cls.__name__ == "SkipTest"]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        return "(no text)"


def _send(fd: int, kind: bytes, data: bytes) -> None:
    message = memoryview(HEADER.pack(kind, len(data)) + data)
    while message:
        message = message[os.write(fd, message) :]
