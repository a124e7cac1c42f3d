"""The waits that torch does not warn of: staged ``non_blocking`` copies, and ``synchronize`` of devices and events.

The driver copies from and to pageable memory through a buffer of its own, and waits for it; torch does the same with a
pinned tensor whose elements it must rearrange. While a region looks at copies, ``Tensor.to``, ``cuda`` and ``copy_``
and the ``synchronize`` functions are wrapped; copies made in C++ or in compiled code do not pass here.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from testkit._loaded import loaded
from testkit.syncs import _imports
from testkit.syncs._arming import compiler_waits, muted
from testkit.syncs._region import notice, watched, watches_copies
from testkit.syncs._seen import Seen
from testkit.syncs._waits import rearranged

if TYPE_CHECKING:
    from torch import Tensor

__tracebackhide__ = True  # pytest shows the line that waits, not ours

BACKENDS = ("cuda", "xpu", "npu", "musa", "accelerator")
# A capture begins with a synchronize of the device, which belongs to capturing and not to the step.
CAPTURE = "torch.cuda.graphs"
OURS = "_testkit_syncs"
"""An attribute of functions that tell of their waits themselves, ours and the simulated device's."""

_LOCK = threading.RLock()
_thread = threading.local()
_users = 0
_simulated = 0
_patched: dict[tuple[int, str], tuple[Any, Any, bool]] = {}
"""By owner and name: the owner, what it had, and whether that was in its own ``__dict__``."""


def staged(src: Tensor, dst: Tensor, non_blocking: bool, pinned: Callable[[Tensor], bool] | None = None) -> str | None:
    """Whether a ``non_blocking`` copy of ``src`` to ``dst`` makes the host wait all the same, and why.

    "pageable": the host's side is not pinned. "gapped": it is pinned, but torch rearranges its elements first, since it
    has gaps, as a strided slice has, or another order than the other side, as a transposed tensor may have. None: it
    is asynchronous, empty, not between host and device, or blocking anyway.
    ``pinned`` answers for ``is_pinned`` where that cannot be asked.
    """
    if not non_blocking or (src.device.type == "cpu") == (dst.device.type == "cpu"):
        return None
    host = src if src.device.type == "cpu" else dst
    if host.numel() == 0 or "meta" in (src.device.type, dst.device.type):
        return None
    if not (host.is_pinned() if pinned is None else pinned(host)):
        return "pageable"
    return "gapped" if rearranged(src, dst, host) else None


def leave_to_simulation(active: bool) -> None:
    """The simulated device sees each copy below Python; while it is active the wrapped copies are silent."""
    global _simulated
    with _LOCK:
        _simulated += 1 if active else -1


def wrap() -> None:
    """One more region looks at copies."""
    global _users
    with _LOCK:
        _users += 1
        _wrap_torch()


def _wrap_torch() -> None:
    with _LOCK:
        if _users and not _simulated:
            _wrap_tensors()
        if _users:
            _wrap_synchronize()


_imports.heard.append(_wrap_torch)


def unwrap() -> None:
    """One less; with the last, torch has its own functions again."""
    global _users
    with _LOCK:
        _users -= 1
        if _users:
            return
        for (_, name), (owner, original, own) in _patched.items():
            if not getattr(vars(owner).get(name), OURS, False):
                continue  # somebody has put another one over ours
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
        _patched.clear()


def _put(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name, None)
    if original is None or getattr(original, OURS, False):
        return
    wrapper = make(original)
    setattr(wrapper, OURS, True)
    _patched[id(owner), name] = (owner, original, name in vars(owner))
    setattr(owner, name, wrapper)


def _wrap_tensors() -> None:
    torch = loaded("torch")
    if torch is None:
        return
    for name, asked in (("to", _asked_to), ("cuda", _asked_cuda), ("copy_", _asked_copy)):
        _put(torch.Tensor, name, functools.partial(_copying, name, asked))


def _wrap_synchronize() -> None:
    torch = loaded("torch")
    for backend in BACKENDS:
        module = getattr(torch, backend, None)
        if module is None:
            continue
        _put(module, "synchronize", functools.partial(_waiting, f"torch.{backend}.synchronize", torch_warns=False))
        for kind in ("Stream", "Event"):
            owner = getattr(module, kind, None)
            if isinstance(owner, type) and owner.__module__.startswith(f"torch.{backend}"):
                make = functools.partial(_waiting, f"{kind}.synchronize", torch_warns=kind == "Stream")
                _put(owner, "synchronize", make)


def _copying(name: str, asked: Callable[..., bool], original: Any) -> Any:
    torch: Any = loaded("torch")
    # Bound here: the compiler follows what it finds on Tensor, knows this function, and so reads no state of ours.
    compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def copying(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(self, *args, **kwargs)
        if _simulated or getattr(_thread, "inside", False) or not watches_copies() or not asked(*args, **kwargs):
            return original(self, *args, **kwargs)
        _thread.inside = True  # a mode or subclass of torch gets ours as the function to call, and calls it
        try:
            result = original(self, *args, **kwargs)
        finally:
            _thread.inside = False
        src, dst = (args[0] if args else kwargs["src"], self) if name == "copy_" else (self, result)
        _judge(name, src, dst)
        return result

    return copying


def _judge(name: str, src: Tensor, dst: Tensor) -> None:
    if name != "copy_" and dst.device.type == "cpu":
        return  # torch makes the new tensor pinned
    kind = staged(src, dst, True)
    if kind is not None and not compiler_waits():
        size, direction = src.numel() * src.element_size(), "H2D" if src.device.type == "cpu" else "D2H"
        notice(Seen(f"Tensor.{name}", kind, f"non_blocking {direction}", size, direction), copies=True)


def _asked_to(*args: Any, **kwargs: Any) -> bool:
    """In each form of ``to`` the first bool by position is ``non_blocking``."""
    return bool(next((one for one in args if isinstance(one, bool)), kwargs.get("non_blocking", False)))


def _asked_cuda(device: Any = None, non_blocking: bool = False, **_: Any) -> bool:
    return bool(non_blocking)


def _asked_copy(src: Any, non_blocking: bool = False) -> bool:
    return bool(non_blocking)


def _waiting(operator: str, original: Any, *, torch_warns: bool) -> Any:
    torch: Any = loaded("torch")
    compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def waiting(*args: Any, **kwargs: Any) -> Any:
        if compiling() or not watched():
            return original(*args, **kwargs)
        with muted():  # torch warns of a stream's, and would be heard without a name
            result = original(*args, **kwargs)
        capturing = sys._getframe(1).f_globals.get("__name__") == CAPTURE
        if (torch_warns or watches_copies()) and not capturing and not compiler_waits():
            notice(Seen(operator, "synchronize"), copies=not torch_warns)
        return result

    return waiting
