"""``run_ranks``: a body in every rank of a fresh group of processes, with a verdict for each.

A rank passes only if it says so itself. The parent waits on message pipes and process sentinels together, so that
a crash is seen at once; nothing that it does can block on a rank.
"""

from __future__ import annotations

import os
import selectors
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar, Literal

from testkit._loaded import loaded
from testkit.errors import ProcessesError
from testkit.processes import _guardian
from testkit.processes import _rank_main as child
from testkit.processes._family import TAG, carriers
from testkit.processes._ladder import Ended, stop
from testkit.processes._verdict import Rank, RanksFailed, look_at, verdict

GRACE = 1.0
"""Seconds that the other ranks have, after one failed, to say what happened to them."""

LATE_STACK = 0.5
"""Seconds after the time limit in which a rank's own clock still writes its stack."""

_environment = threading.Lock()


def run_ranks(
    body: Callable[..., Any],
    world_size: int,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    startup_timeout: float = 120.0,
    start: Literal["spawn"] = "spawn",
    env: Mapping[str, str] | None = None,
    ladder: tuple[float, float, float] = (5.0, 5.0, 5.0),
) -> list[Any]:
    """Run ``body`` in ``world_size`` fresh processes at once; what each returned, by rank.

    ``body`` (a function, local ones and closures included) and its ``args`` and ``kwargs`` travel by value. It gets
    ``rank``, ``world_size`` and ``rendezvous`` (a ``file://`` address for ``init_process_group``) by keyword if it
    names them; RANK, LOCAL_RANK and WORLD_SIZE are in its environment, with ``env`` over them. ``startup_timeout``
    seconds count until every rank has imported what it needs, then ``timeout`` seconds for the bodies; ``ladder``
    has the seconds of the three rungs on which what is left is ended, descendants included.

    Raises ``RanksFailed`` with the first failing rank's cause, the state of all, tracebacks, output and stacks, if a
    rank raises, ends without saying that it is done, or is late; ``ProcessesError`` for arguments that cannot be
    used, before any rank starts. If all ranks skip, the test skips.
    """
    _check(body, world_size, timeout, startup_timeout, start, ladder)
    payload = _Travelling(body, tuple(args), dict(kwargs or {}))
    payload.try_out()
    group = _Group(payload, world_size, timeout, startup_timeout, dict(env or {}), ladder)
    return group.run()


def _check(
    body: object, world_size: object, timeout: float, startup_timeout: float, start: object, ladder: Sequence[float]
) -> None:
    where = "argument of run_ranks"
    if not callable(body):
        raise ProcessesError(f"body is {body!r}, not a function", where, "give a function")
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ProcessesError(f"world_size is {world_size!r}, not a whole number from 1 up", where, "give 1 or more")
    for name, seconds in (("timeout", timeout), ("startup_timeout", startup_timeout)):
        if not seconds > 0:
            raise ProcessesError(f"{name} is {seconds!r}", where, "give seconds above 0")
    if start != "spawn":
        raise ProcessesError(f"start is {start!r}, and only 'spawn' is available yet", where, "leave start out")
    if len(ladder) != 3 or not all(seconds >= 0 for seconds in ladder):
        raise ProcessesError(f"ladder is {ladder!r}", where, "give seconds for join, terminate and kill, 0 or more")


class _Travelling:
    """The body and its arguments, pickled by value each time a rank is spawned."""

    def __init__(self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.body, self.args, self.kwargs = body, args, kwargs

    def try_out(self) -> None:
        """Refuse by name what cannot travel, before any rank starts."""
        parts = [("the body", self.body), *((f"argument {n}", value) for n, value in enumerate(self.args))]
        parts += [(f"argument {name!r}", value) for name, value in self.kwargs.items()]
        for name, value in parts:
            error = self._refusal(value)
            if error is not None:
                problem = f"{name}, a {type(value).__qualname__}, cannot be sent to ranks"
                raise ProcessesError(
                    f"{problem}: {type(error).__name__}: {error}", "run_ranks", "build it inside the body"
                ) from error

    def _refusal(self, value: object) -> Exception | None:
        try:
            self._dumps(value)
        except Exception as error:  # noqa: BLE001 - a foreign __reduce__ may raise anything
            # multiprocessing's own objects travel only while a process is being spawned
            return None if isinstance(error, RuntimeError) and "inheritance" in str(error) else error
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return child.Payload, (self._dumps((self.body, self.args, self.kwargs)),)

    def _dumps(self, value: object) -> bytes:
        import io
        from collections import ChainMap
        from multiprocessing.reduction import ForkingPickler

        import cloudpickle

        class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
            dispatch_table: ClassVar[Any] = ChainMap(
                {CodeType: _with_file(cloudpickle.Pickler.dispatch_table[CodeType])},
                dict(ForkingPickler(io.BytesIO()).dispatch_table),
                cloudpickle.Pickler.dispatch_table,
            )

        module = sys.modules.get(getattr(self.body, "__module__", None) or "")
        if module is None or module.__name__ in {"__main__", *cloudpickle.list_registry_pickle_by_value()}:
            module = None
        else:  # by value, so that a rewritten assert keeps its message and no rank imports the test module
            cloudpickle.register_pickle_by_value(module)
        try:
            buffer = io.BytesIO()
            Pickler(buffer).dump(value)
            return buffer.getvalue()
        finally:
            if module is not None:
                cloudpickle.unregister_pickle_by_value(module)


def _with_file(reduce: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    """cloudpickle drops the file that code comes from; tracebacks and stacks in a rank show their lines with it."""

    def reduced(code: Any) -> tuple[Any, ...]:
        build, parts, *rest = reduce(code)
        return build, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts), *rest

    return reduced


class _Group:
    def __init__(
        self,
        payload: _Travelling,
        world_size: int,
        timeout: float,
        startup_timeout: float,
        env: dict[str, str],
        ladder: tuple[float, float, float],
    ) -> None:
        self.payload, self.world_size, self.env, self.ladder = payload, world_size, env, ladder
        self.timeout, self.startup_timeout = timeout, startup_timeout
        self.tag = f"ranks-{os.getpid()}-{uuid.uuid4().hex}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"testkit-ranks-{os.getpid()}-"))
        self.ranks: list[Rank] = []
        self.selector = selectors.DefaultSelector()
        self.late = ""

    def run(self) -> list[Any]:
        try:
            try:
                _guardian.guard_tag(self.tag)  # if this process is killed, its ranks end too
                self._start()
                self._until(lambda: all(rank.started for rank in self.ranks), self.startup_timeout, "start")
                if not self._failed():
                    for rank in self.ranks:
                        rank.go()
                    self._until(lambda: all(rank.settled for rank in self.ranks), self.timeout, "finish")
                if self._failed():
                    self._until(lambda: all(rank.settled for rank in self.ranks), GRACE, "")
            except BaseException:
                self._end(join=0, terminate=0)
                raise
            ended = self._end(join=0 if self._failed() else self.ladder[0], terminate=self.ladder[1])
            return self._judge(ended)
        finally:
            _guardian.forget_tag(self.tag)
            self.selector.close()
            for rank in self.ranks:
                rank.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self) -> list[Any]:
        return [rank.process for rank in self.ranks if rank.process.pid is not None]

    def _failed(self) -> bool:
        return bool(self.late) or any(rank.failed for rank in self.ranks)

    def _start(self) -> None:
        from multiprocessing import get_context, resource_tracker

        context = get_context("spawn")
        resource_tracker.ensure_running()  # else the first rank's start would begin it, and it would carry our tag
        for number in range(self.world_size):
            message, says = context.Pipe(duplex=False)
            hears, word = context.Pipe(duplex=False)
            place = child.Place(
                rank=number,
                world_size=self.world_size,
                rendezvous=f"file://{self.folder}/rendezvous",
                env={
                    "RANK": str(number),
                    "LOCAL_RANK": str(number),
                    "WORLD_SIZE": str(self.world_size),
                    **self.env,
                },
                output=str(self.folder / f"output-{number}"),
                stack=str(self.folder / f"stack-{number}"),
                timeout=self.timeout,
            )
            process = context.Process(target=child.main, args=(place, self.payload, says, hears), daemon=False)
            rank = Rank(number, process, message, word, Path(place.output), Path(place.stack))
            self.ranks.append(rank)
            with _environment, _spawning(self.tag):
                process.start()
            says.close()
            hears.close()
            os.set_blocking(message.fileno(), False)
            self.selector.register(message.fileno(), selectors.EVENT_READ, rank.read)
            self.selector.register(process.sentinel, selectors.EVENT_READ, rank.look)

    def _until(self, reached: Callable[[], bool], seconds: float, what: str) -> None:
        """Take in messages and deaths until ``reached``, a rank failed, or the time is over (then all is late)."""
        deadline = time.monotonic() + seconds
        failed_before = self._failed()
        while not reached() and (failed_before or not self._failed()):
            left = deadline - time.monotonic()
            if left <= 0:
                if what:
                    self._late(what, seconds)
                return
            for key, _ in self.selector.select(left):
                if not key.data():
                    self.selector.unregister(key.fileobj)

    def _late(self, what: str, seconds: float) -> None:
        self.late = f"did not {what} in {seconds:.1f} s"
        waiting = [rank for rank in self.ranks if not (rank.started if what == "start" else rank.settled)]
        for rank in waiting:
            rank.late = True
            rank.state = look_at(rank.process.pid)  # before any signal, which would change it
        deadline = time.monotonic() + LATE_STACK
        while what == "finish" and time.monotonic() < deadline and not all(rank.has_stack() for rank in waiting):
            time.sleep(0.02)

    def _end(self, *, join: float, terminate: float) -> list[Ended]:
        """End the ranks, then whoever carries their tag: what a rank that has ended by now left in another session."""
        kill = self.ladder[2]
        ended = stop(self._processes(), join=join, terminate=terminate, kill=kill)
        left = stop(carriers(self.tag), join=0, terminate=terminate, kill=kill)
        return [*ended, *(replace(one, descendant=True) for one in left)]

    def _judge(self, ended: list[Ended]) -> list[Any]:
        for rank in self.ranks:
            rank.read()
        if self._failed():
            raise RanksFailed(*verdict(self.ranks, ended, self.late))
        skipped = [rank for rank in self.ranks if rank.skipped is not None]
        xfailed = [rank for rank in self.ranks if rank.xfailed is not None]
        pytest = loaded("pytest")
        for some, word in ((skipped, "skip"), (xfailed, "xfail")):
            if len(some) == self.world_size and pytest is not None:
                reason = some[0].skipped if word == "skip" else some[0].xfailed
                getattr(pytest, word)(reason)
            if some:
                names = ", ".join(f"rank {rank.number}" for rank in some)
                raise RanksFailed(
                    f"{names} of {self.world_size} called {word} and the others did not",
                    "run_ranks",
                    f"let all ranks {word}, or none",
                    "",
                )
        import pickle

        return [pickle.loads(rank.result) for rank in self.ranks]


@contextmanager
def _spawning(tag: str) -> Any:
    """While a rank is spawned: the run's tag is in the environment, and ``__main__`` is hidden from it.

    multiprocessing would import the main module once more in each rank: slow for a test runner, and endless for a
    script without a ``__name__`` guard. What the body needs of it travels by value.
    """
    main = sys.modules["__main__"]
    hidden = {name: vars(main)[name] for name in ("__spec__", "__file__") if name in vars(main)}
    before = os.environ.get(TAG)
    os.environ[TAG] = tag
    for name in hidden:
        setattr(main, name, None) if name == "__spec__" else delattr(main, name)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)
        if before is None:
            del os.environ[TAG]
        else:
            os.environ[TAG] = before
