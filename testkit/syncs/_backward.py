"""Errors in a backward pass on the simulated device, which torch would answer by ending the process.

torch leaves a failed kernel of a backward pass with Python's error still set, and asks the device guard for the type of
its device on the way out. A guard that is written in Python fails then, where nothing may fail (``noexcept``). So the
error is kept here, taken from Python before the guard answers, and raised when the pass has returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import wraps
from typing import Any

__tracebackhide__ = True  # pytest shows the line that called us, not ours

_failed: list[BaseException] = []
_depth = 0
_clear = ctypes.pythonapi.PyErr_Clear
_clear.argtypes, _clear.restype = (), None


def failed(error: BaseException) -> None:
    """A call on the device failed with ``error``, which is on its way up."""
    if _depth:
        _failed.append(error)


def device_guard() -> Any:
    """The guard that torch's C++ code asks about the device."""
    import torch

    kind = torch._C._autograd.DeviceType.PrivateUse1

    class Guard(torch._C._acc.DeviceGuard):
        def type_(self) -> Any:
            if _failed:  # nothing that looks at Python's error may stand before this
                _clear()
            return kind

    return Guard()


def whole(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` of torch's engine, on the calling thread, raising what failed on the device."""

    @wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        global _depth
        import torch

        _depth += 1
        try:
            # The threads that torch starts at the first pass of a process know only the devices of that moment; and a
            # wait in the pass is the caller's.
            with torch.autograd.set_multithreading_enabled(False):
                result = run(*args, **kwargs)
        except SystemError:  # "returned NULL without setting an exception", as it was taken away
            if _failed:
                raise _failed[-1] from None
            raise
        finally:
            _depth -= 1
            if not _depth:
                _failed.clear()
        return result

    return call
