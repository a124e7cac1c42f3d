"""Let go of what finished tests still hold, so that a clean-up can free it.

After a test, its item keeps the arguments (when interrupted), the instance with all attributes, and a failure
keeps every frame it passed through alive in ``sys.last_*``. An item that is run once more rebuilds all of it.
"""

from __future__ import annotations

import gc
import inspect
import sys
from contextlib import suppress
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType, TracebackType
from typing import Any

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def release_item(item: Any) -> None:
    """Drop the arguments, the instance and the leftover errors of a test item that is torn down."""
    if hasattr(item, "_request"):
        item._request = False  # what the runner itself writes after an uninterrupted test
        item.funcargs = None
    attributes = vars(item)
    bound_to = getattr(attributes.get("_obj"), "__self__", None)
    if hasattr(item.parent, "newinstance") and bound_to is not None and not isinstance(bound_to, type):
        item._obj = None
        attributes.pop("_instance", None)
    attributes.pop("_excinfo", None)
    globs = getattr(attributes.get("dtest"), "globs", None)
    if isinstance(globs, dict):
        globs.clear()  # as doctest does after a test that passed


def release_records(logging_plugin: Any) -> None:
    """Forget the log records of the last tear-down; they may refer to what it tore down.

    The runner would forget them when the next test is set up.
    """
    for name in ("caplog_handler", "report_handler"):
        reset = getattr(getattr(logging_plugin, name, None), "reset", None)
        if callable(reset):
            reset()


@dataclass(frozen=True)
class Failure:
    """Where a test failed, for ``pdb.pm()``: stack and message, but no local variable and nothing the error held."""

    error: BaseException
    traceback: TracebackType | None

    def restore(self) -> None:
        """Set ``sys.last_*`` again."""
        sys.last_type = type(self.error)
        sys.last_value = self.error
        sys.last_traceback = self.traceback
        if sys.version_info >= (3, 12):
            sys.last_exc = self.error


def release_failure() -> Failure | None:
    """Take the last failure out of ``sys.last_*``, empty its frames, and return what is safe to keep."""
    error = getattr(sys, "last_value", None)
    traceback = getattr(sys, "last_traceback", None)
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    if not isinstance(error, BaseException):
        return None
    kept = _bare(error)
    kept.__traceback__ = traceback
    del error  # nothing of this call may hold it while frames are emptied
    if traceback is not None:
        _empty(traceback)
    return Failure(kept, traceback)


def release_interrupt(error: BaseException | None) -> None:
    """Empty the frames that an interrupt went through; the runner holds on to it until the process ends."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if error.__traceback__ is not None:
            _empty(error.__traceback__)
        error = error.__context__


def _bare(error: BaseException) -> BaseException:
    """An error of the same type and text that refers to nothing, or a RuntimeError that names both."""
    kind = type(error)
    try:
        text = str(error)
        copy = kind.__new__(kind, text)
        if str(copy) == text:
            return copy
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  # foreign classes may do anything here
        text = "(its message cannot be read)"
    return RuntimeError(f"{kind.__name__}: {text}")


def _empty(traceback: TracebackType) -> None:
    """Clear the failed frames, and the finished callers that they keep alive."""
    inner: TracebackType | None = traceback
    while inner is not None:
        _clear(inner.tb_frame)
        inner = inner.tb_next
    caller: FrameType | None = traceback.tb_frame.f_back
    while caller is not None:
        _clear(caller)
        caller = caller.f_back


def _clear(frame: FrameType) -> None:
    if _suspended(frame):
        return  # clearing it would close its generator, which is not ours to close
    with suppress(RuntimeError):  # still running, so not what failed
        frame.clear()
        len(frame.f_locals)  # before Python 3.13 a report that showed locals left a copy, which only this refreshes


def _suspended(frame: FrameType) -> bool:
    """Whether this is a generator or coroutine that caught what failed in it, and may go on."""
    if not frame.f_code.co_flags & _GENERATORS or sys.version_info >= (3, 13):  # where clear() refuses by itself
        return False
    if sys.version_info >= (3, 11):
        # All that a frame refers to, such as its code, belongs to the generator until that ends.
        return all(one is not frame.f_code for one in gc.get_referents(frame))
    owners = (GeneratorType, CoroutineType, AsyncGeneratorType)
    return any(type(one) in owners for one in gc.get_referrers(frame))  # a generator that ended drops its frame
