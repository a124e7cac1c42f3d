"""``forbid`` and ``allow``: regions in which the host must not wait for the device, and those in which it may.

Both work as ``with`` blocks and as decorators of functions, generators, and their async forms, and do nothing under
``torch.compile``. ``TESTKIT_SYNCS=off`` in the environment of the import takes them out for good: a decorator then
returns the function itself.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from testkit._text import counted
from testkit.errors import KitWarning, SyncsError
from testkit.syncs import _arming, _copies, _switch
from testkit.syncs._decorate import Call, decorated
from testkit.syncs._objection import caught, listed
from testkit.syncs._region import Allowed, Region, innermost, pop, push

__tracebackhide__ = True  # pytest shows the line that waits, not ours

F = TypeVar("F", bound=Callable[..., Any])

FORBID_MODES = ("error", "warn", "census")

_first_entries: set[tuple[str, int]] = set()
_LOCK = threading.Lock()


class _Nothing:
    """What ``forbid`` and ``allow`` return while off: one object for all, unless torch's compiler is there."""

    __slots__ = ()

    def __enter__(self) -> Region:
        return _EMPTY

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        return None

    def __call__(self, function: F) -> F:
        return function


_EMPTY = Region()
_NOTHING = _Nothing()


def forbid(mode: str = "error", at_most: int = 0, copies: bool = True) -> Forbid:
    """A region in which the host must not wait for the device: ``with forbid() as region:`` or ``@forbid()``.

    ``mode``: "error" raises ``SyncsError`` at the wait (after it: torch tells when the operation returns), "warn" warns
    (``KitWarning``), "census" collects the waits in ``region.found`` and warns of all at the end. ``at_most`` waits are
    tolerated per entry of the region; the next one is an error that names all. Where what the block calls catches that
    error and goes on, the block ends with it. ``copies=False`` leaves out what torch
    itself does not see: staged ``non_blocking`` copies and ``synchronize`` of the device and of events.

    It speaks for the thread and asyncio task that entered it: not for threads or executors started inside, which are
    never interrupted. The innermost region decides. Raises ``SyncsError`` for arguments that it cannot use.
    """
    if _switch.off or _switch.compiling():
        return _NOTHING if "torch._dynamo" not in sys.modules else _Nothing()  # type: ignore[return-value]  # as good
    _check(mode, at_most, copies)
    return Forbid(mode, at_most, copies, _line(sys._getframe(1)))


def allow(reason: str, first_only: bool = False) -> Allow:
    """A region in which the host may wait, ``with allow("why"):`` or ``@allow("why")``: no guard around it hears it.

    A census lists the wait with the ``reason``. ``first_only``: only for the first entry at this place of the source
    (or of this function) in the process, as for what is set up once. A ``forbid`` inside it forbids again.
    """
    if _switch.off or _switch.compiling():
        # torch.compile enters an object of this class only where it sees it made.
        return _NOTHING if "torch._dynamo" not in sys.modules else _Nothing()  # type: ignore[return-value]  # as good
    if not isinstance(reason, str) or not reason.strip():
        raise SyncsError(f"allow() needs a reason, not {reason!r}", fix='say why the host must wait: allow("metrics")')
    if not isinstance(first_only, bool):
        raise SyncsError(f"first_only is {first_only!r}", "allow()", "use True or False")
    caller = sys._getframe(1)
    return Allow(reason, (caller.f_code.co_filename, caller.f_lineno) if first_only else None)


def sight() -> str:
    """One sentence on what can be seen in this process: which build of torch this is, and what it does not tell."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return "torch is not imported: only the simulated device and testkit's own observers are heard"
    copies = "staged non_blocking copies and synchronize() made from Python are seen"
    if getattr(torch.version, "hip", None):
        return f"ROCm: torch warns of its own waits as with CUDA; {copies}"
    for name in _arming.BACKENDS:
        if (module := getattr(torch, name, None)) is not None and module.is_available():
            return f"{name}: torch warns of its own waits, not of other libraries'; {copies}"
    if getattr(torch, "xpu", None) is not None and torch.xpu.is_available():
        return f"XPU: torch does not warn of waits there; only {copies}"
    return "no device that torch could wait for (a CPU-only build or machine): only the simulated device is seen"


class region:
    """A ``Region`` is open within it: entered, torch armed, copies wrapped. Entered again, it goes on counting."""

    __slots__ = ("_one",)

    def __init__(self, one: Region) -> None:
        self._one = one

    def __enter__(self) -> Region:
        self._one.frame = self._one.frame or sys._getframe(1)
        # The last is what cannot fail: a region that nobody leaves would go on forbidding.
        _arming.arm()
        try:
            if self._one.copies:
                _copies.wrap()
        except BaseException:
            _arming.disarm()
            raise
        push(self._one)
        return self._one

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        one = self._one
        pop(one)
        one.frame = None
        if one.copies:
            _copies.unwrap()
        blind, strict = _arming.blinded(), _arming.strict()
        _arming.disarm()
        if isinstance(error, RuntimeError) and strict and _arming.SYNC.search(str(error)):
            problem = f"the host waits for the device, and torch raised by itself: {error}"
            origin = f'torch.{strict}.set_sync_debug_mode("error") was set outside of {one.where}'
            raise SyncsError(
                problem, origin, "set it to 0 there: budgets, allow and census cannot act over it"
            ) from error
        one.unseen = f"waits may have gone unseen: {blind}" if blind else ""
        one.look_for_lost()
        if error is None and one.lost:
            raise caught(one.found, one.at_most, one.where)
        if error is None and blind and one.mode != "census":
            raise SyncsError(one.unseen, one.where, "take that out of the region")


class Forbid:
    """What ``forbid()`` returns."""

    __slots__ = ("_make", "_open")

    def __init__(self, mode: str, at_most: int, copies: bool, caller: str) -> None:
        where = f"forbid({'' if mode == 'error' else repr(mode)}) at {caller}"
        self._make = functools.partial(Region, mode, at_most, copies, where=where)
        self._open: list[Region] = []

    def __enter__(self) -> Region:
        one = self._make()
        one.frame = sys._getframe(1)
        region(one).__enter__()
        self._open.append(one)
        return one

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        one = innermost(self._open)
        self._open.remove(one)
        region(one).__exit__(kind, error, traceback)
        if error is None:
            _tell(one)

    def __call__(self, function: F) -> F:
        return decorated(function, "forbid()", self._begin)

    def _begin(self) -> Call:
        one = self._make()
        return Call(lambda: region(one), lambda: _tell(one))


class Allow:
    """What ``allow(reason)`` returns."""

    __slots__ = ("_open", "_reason", "_site")

    def __init__(self, reason: str, site: tuple[str, int] | None) -> None:
        self._reason = reason
        self._site = site
        self._open: list[Allowed] = []

    def __enter__(self) -> None:
        one = Allowed(self._reason)
        push(one)
        one.closed = self._site is not None and not _is_first(self._site)
        self._open.append(one)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        one = innermost(self._open)
        self._open.remove(one)
        pop(one)

    def __call__(self, function: F) -> F:
        code = getattr(function, "__code__", None)
        site = None if self._site is None or code is None else (code.co_filename, code.co_firstlineno)

        def begin() -> Call:
            hidden = site is None or _is_first(site)
            return Call((lambda: Allow(self._reason, None)) if hidden else (lambda: _NOTHING), lambda: None)

        return decorated(function, "allow()", begin)


def _is_first(site: tuple[str, int]) -> bool:
    with _LOCK:
        new = site not in _first_entries
        _first_entries.add(site)
    return new


def _tell(one: Region) -> None:
    """The list of a ``forbid("census")``, whose reader may hold no region to read it from."""
    if one.mode == "census" and (one.found or one.unseen):
        import warnings

        text = f"syncs: the host waits {counted(len(one.found), 'time')} ({one.where})\n{listed(one.found)}"
        text += f"\n{one.unseen}" if one.unseen else ""
        path, _, line = one.found[0].place.outside.rpartition(":") if one.found else ("", "", "")
        warnings.warn_explicit(text, KitWarning, path or "<unknown>", int(line or 0), registry={})


def _check(mode: object, at_most: object, copies: object) -> None:
    if callable(mode):
        raise SyncsError("forbid got a function instead of a mode", "@forbid", "write @forbid()")
    if mode not in FORBID_MODES:
        raise SyncsError(f"mode is {mode!r}", "forbid()", f"use one of {', '.join(FORBID_MODES)}")
    if type(at_most) is not int or at_most < 0:
        raise SyncsError(f"at_most is {at_most!r}", "forbid()", "use a number of waits, 0 or more")
    if at_most and mode == "census":
        raise SyncsError(
            f"at_most={at_most} means nothing to a census", "forbid()", 'use "error" or "warn", or no at_most'
        )
    if not isinstance(copies, bool):
        raise SyncsError(f"copies is {copies!r}", "forbid()", "use True or False")


def _line(frame: FrameType) -> str:
    from testkit.syncs._sites import short

    return short(f"{frame.f_code.co_filename}:{frame.f_lineno}", os.getcwd())
