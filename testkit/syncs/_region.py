"""Which regions a thread and task is in, and what a wait means there: nothing, a warning, an error, an entry of a list.

Regions lie in a ``ContextVar``, so each asyncio task has its own. They act only on the thread that entered them: the
contexts of ``asyncio.to_thread`` and of free-threaded Python's threads are copies that would bring regions along.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from testkit.errors import KitWarning
from testkit.syncs._seen import Seen

__tracebackhide__ = True  # pytest shows the line that waits, not ours

if TYPE_CHECKING:
    from testkit.syncs._sites import Place

MODES = ("error", "warn", "census", "count")
"""error, warn: what a wait beyond the budget does; the innermost of them decides. census: listens to all. count: keeps
in ``found`` what no ``allow`` inside it hides, also what a guard inside it tolerates, and leaves the judgement to its
owner; guards outside it still decide."""


class Found(NamedTuple):
    """A wait and its place; ``allowed`` is the reason of the ``allow`` region that hides it from guards, or None."""

    seen: Seen
    place: Place
    allowed: str | None


class Region:
    """What one ``forbid`` or ``census`` block asks for, and what was found in it so far.

    ``at_most`` waits are tolerated. ``copies`` tells whether staged copies and ``synchronize`` are looked at, too.
    ``sink`` gets each ``Found`` as it happens, on the thread that waits. ``where``: who opened it, for messages.
    ``unseen``: why a census may have missed some, known at its end; other regions raise it. ``frame`` is the one whose
    ``with`` block it is, while open; ``lost``: what that block called has caught an error of ours and gone on.
    """

    __slots__ = (
        "at_most",
        "closed",
        "copies",
        "found",
        "frame",
        "lost",
        "mode",
        "owner",
        "raised",
        "sink",
        "unseen",
        "where",
    )

    def __init__(
        self,
        mode: str = "error",
        at_most: int = 0,
        copies: bool = True,
        sink: Callable[[Found], None] | None = None,
        where: str = "",
    ) -> None:
        self.mode = mode
        self.at_most = at_most
        self.copies = copies
        self.sink = sink
        self.where = where
        self.owner = 0
        self.closed = True
        self.found: list[Found] = []
        self.unseen = ""
        self.frame: FrameType | None = None
        self.raised: tuple[BaseException, list[FrameType]] | None = None
        self.lost = False

    def look_for_lost(self) -> None:
        """Whether the last error was caught below our block: an ``except Exception`` there would make it green."""
        if self.raised is not None:
            error, below = self.raised
            head = error.__traceback__  # begins with the frame that caught it
            self.lost = self.lost or (head is not None and any(head.tb_frame is one for one in below))
            self.raised = None


class Allowed:
    """What one ``allow`` block says; it hides waits from the guards around it."""

    __slots__ = ("closed", "owner", "reason")

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.owner = 0
        self.closed = True


E = TypeVar("E", Region, Allowed)
_STACK: ContextVar[tuple[Region | Allowed, ...]] = ContextVar("testkit_syncs", default=())


def push(entry: Region | Allowed) -> None:
    """Enter it, on this thread and in this task."""
    entry.owner = get_ident()
    entry.closed = False
    _STACK.set((*_STACK.get(), entry))


def pop(entry: Region | Allowed) -> None:
    """Leave it, wherever it is: it may have been entered in another context, as fixtures of async tests are."""
    entry.closed = True  # also for tasks that were started inside and run on
    _STACK.set(tuple(one for one in _STACK.get() if one is not entry))


def innermost(among: list[E]) -> E:
    """Of these open entries the one that was entered last here; the last of all if none was, as in another context."""
    return next((one for one in reversed(_STACK.get()) if one in among), among[-1])


def _mine() -> Iterator[Region | Allowed]:
    """The entries that act here, innermost first."""
    me = get_ident()
    for entry in reversed(_STACK.get()):
        if entry.owner == me and not entry.closed:
            yield entry


def watched() -> bool:
    """Whether a wait on this thread is anybody's business now, be it only that of an ``allow``."""
    return bool(_STACK.get()) and next(_mine(), None) is not None


def current() -> Region | None:
    """The innermost region here that forbids; None outside, or where an ``allow`` hides it."""
    for entry in _mine():
        if isinstance(entry, Allowed):
            return None
        if entry.mode != "census":
            return entry
    return None


def watches_copies() -> bool:
    """Whether a region here looks at staged copies and at ``synchronize``."""
    return bool(_STACK.get()) and any(isinstance(entry, Region) and entry.copies for entry in _mine())


def notice(seen: Seen, *, copies: bool = False) -> None:
    """The host has waited on this thread: tell each census here, then do what the innermost guard says.

    ``copies``: found by what only regions with ``copies=True`` look at. Raises ``SyncsError`` beyond the budget of a
    region of mode "error"; warns (``KitWarning``, at the line outside torch) in one of mode "warn".
    """
    entries = [one for one in _mine() if isinstance(one, Allowed) or one.copies or not copies]
    if not any(isinstance(one, Region) for one in entries):
        return
    from testkit.syncs._sites import place

    where = place()
    guard: Region | None = None
    allowed: str | None = None
    hidden = False
    for entry in entries:
        if isinstance(entry, Allowed):
            hidden = True
            allowed = entry.reason if guard is None and allowed is None else allowed
        elif entry.mode == "census":
            _keep(entry, Found(seen, where, allowed))
        elif entry.mode == "count":
            if not hidden:
                _keep(entry, Found(seen, where, None))
        elif guard is None and allowed is None:
            guard = entry
            _keep(entry, Found(seen, where, None))
    if guard is not None and len(guard.found) > guard.at_most:
        _object(guard)


def _keep(region: Region, found: Found) -> None:
    region.found.append(found)
    if region.sink is not None:
        region.sink(found)


def _object(guard: Region) -> None:
    from testkit.syncs._objection import objection

    error = objection(guard.found, guard.at_most, guard.where)
    if guard.mode == "error":
        guard.look_for_lost()
        guard.raised = error, _below(guard.frame)
        raise error
    import warnings

    path, _, line = guard.found[-1].place.outside.rpartition(":")
    # A registry of its own: "once per location" would hide the second region that this line waits in.
    warnings.warn_explicit(str(error), KitWarning, path or "<unknown>", int(line or 0), registry={})


def _below(block: FrameType | None) -> list[FrameType]:
    """The frames that are called by that one now; none if it is not running, as that of a fixture."""
    frame: FrameType | None = sys._getframe(1)
    below = []
    while frame is not None and frame is not block:
        below.append(frame)
        frame = frame.f_back
    return below if frame is not None else []
