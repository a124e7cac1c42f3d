"""``run_ranks``: a body in every rank of a fresh group of processes, with a verdict for each."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from testkit.errors import ProcessesError
from testkit.processes import _session
from testkit.processes._group import Group, Terms
from testkit.processes._rank_main import OFFERED, arranged

__tracebackhide__ = True  # pytest shows the line that called us, not ours

Start = Literal["spawn", "preload"]


def run_ranks(
    body: Callable[..., Any],
    world_size: int,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    startup_timeout: float = 120.0,
    start: Start = "spawn",
    env: Mapping[str, str] | None = None,
    ladder: tuple[float, float, float] = (5.0, 5.0, 5.0),
) -> list[Any]:
    """Run ``body`` in ``world_size`` fresh processes at once; what each returned, by rank.

    ``body`` (a function, local ones and closures included) and its ``args`` and ``kwargs`` travel by value. It gets
    ``rank``, ``world_size``, ``rendezvous`` (a ``file://`` address for ``init_process_group``) and ``channel`` by
    keyword if it names them; RANK, LOCAL_RANK and WORLD_SIZE are in its environment, with ``env`` over them.
    ``startup_timeout`` seconds count until every rank has imported what it needs, then ``timeout`` seconds for the
    bodies; ``ladder`` has the seconds of the three rungs on which what is left is ended, descendants included.
    ``start``: "spawn", or "preload" to fork each rank from a helper that has imported what ini ``ranks_preload`` names.

    Raises ``RanksFailed`` with the first failing rank's cause, the state of all, tracebacks, output and stacks, if a
    rank raises, ends without saying that it is done, or is late; ``ProcessesError`` for arguments that cannot be
    used, before any rank starts. If all ranks skip, the test skips.
    """
    if not callable(body):
        raise ProcessesError(f"body is {body!r}, not a function", "argument of run_ranks", "give a function")
    if inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body):
        what = f"calling {getattr(body, '__name__', 'body')} only makes a coroutine or a generator"
        raise ProcessesError(what, "argument of run_ranks", "call asyncio.run in it")
    try:
        arranged(body, args, kwargs or {}, dict.fromkeys(OFFERED))
    except TypeError as error:
        name, fix = getattr(body, "__name__", "body"), f"let it take {', '.join(OFFERED)}, or give args and kwargs"
        raise ProcessesError(f"{name} cannot be called: {error}", "argument of run_ranks", fix) from None
    except ValueError:
        pass  # a function of C whose parameters nobody knows
    terms = checked_terms(world_size, timeout, startup_timeout, start, env, ladder, "argument of run_ranks")
    return Group(terms, body, args, kwargs or {}).run()


def checked_terms(
    world_size: object,
    timeout: object,
    startup_timeout: object,
    start: object,
    env: object,
    ladder: object,
    where: str,
) -> Terms:
    """The terms of a group, from what somebody gave; raises ``ProcessesError`` for what cannot be used."""
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ProcessesError(f"world_size is {world_size!r}, not a whole number from 1 up", where, "give 1 or more")
    for name, seconds in (("timeout", timeout), ("startup_timeout", startup_timeout)):
        if not _is_number(seconds) or not 0 < seconds < math.inf:  # type: ignore[operator]  # a number by now
            raise ProcessesError(f"{name} is {seconds!r}", where, "give seconds above 0")
    if start not in _session.STARTS:
        raise ProcessesError(f"start is {start!r}", where, f"give one of {', '.join(_session.STARTS)}")
    if env is not None and not isinstance(env, Mapping):
        raise ProcessesError(f"env is {env!r}", where, 'give a dictionary, such as {"NCCL_DEBUG": "WARN"}')
    rungs = tuple(ladder) if isinstance(ladder, Sequence) and not isinstance(ladder, str) else ()
    if len(rungs) != 3 or not all(_is_number(seconds) and seconds >= 0 for seconds in rungs):
        raise ProcessesError(f"ladder is {ladder!r}", where, "give seconds for join, terminate and kill, 0 or more")
    words = {str(name): str(value) for name, value in (env or {}).items()}
    for name, value in words.items():
        if not name or "=" in name or "\0" in name + value:
            raise ProcessesError(f"env has the variable {name!r}", where, "give names without = and null bytes")
    return Terms(world_size, timeout, startup_timeout, start, words, rungs)  # type: ignore[arg-type]  # checked above


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
