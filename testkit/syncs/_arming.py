"""How torch's own word of a wait reaches us: its sync debug mode at "warn", and a warnings filter that listens.

The filter comes first in ``warnings.filters`` and its message pattern is an object of ours: Python asks it about every
warning, on the thread that warns, before it shows, records, counts or raises anything. So nothing hangs on
``warnings.showwarning``, which ``catch_warnings(record=True)`` and ``pytest.warns`` replace, and a wait leaves no trace
in the registries of "once per location". Whoever changes or restores the filters tells ``warnings._filters_mutated``
(``_filters_mutated_lock_held`` since Python 3.14); while armed we listen there and put ours first again. Another thread
may be between the two, so meanwhile the module ``warnings`` takes no list that has not ours first, and adds behind it.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from testkit._loaded import loaded
from testkit.syncs import _imports
from testkit.syncs._region import notice, watched
from testkit.syncs._seen import Seen

__tracebackhide__ = True  # pytest shows the line that waits, not ours

# How the text begins: torch, torch_npu and torch_musa each put the name of their device into it. Our own messages may
# quote a source line that has these words further on.
SYNC = re.compile(r"called a synchronizing \w+ operation")
# torch says this once a process when its mode is set; under -W error it would end the test that set it first.
PROTOTYPE = "Synchronization debug mode is a prototype"
BACKENDS = ("cuda", "npu", "musa")
OFF, WARN, ERROR = 0, 1, 2
# Whose frames mean that torch's compiler is at work; none of them is there when compiled code just runs and waits.
COMPILER = ("torch._dynamo.convert_frame", "torch._inductor.runtime.benchmarking", "torch._inductor.cudagraph_trees")

_LOCK = threading.RLock()
_MUTATED = "_filters_mutated_lock_held" if hasattr(warnings, "_filters_mutated_lock_held") else "_filters_mutated"
_mutated: Callable[[], None] = getattr(warnings, _MUTATED)
_thread = threading.local()

_regions = 0
"""How many are open in this process. Changed under ``_LOCK``, as is all below."""
_prior: dict[str, int] = {}
"""The mode that each armed backend had before."""
_queued: set[str] = set()
"""Backends that will call us when they start."""


class _Ear:
    """Stands for the pattern of a filter; ``match`` is true for what nobody else should hear of."""

    def match(self, text: str) -> bool:
        if not _regions:
            return False  # left in a list that somebody had put aside meanwhile
        if text.startswith(PROTOTYPE):
            return True
        if SYNC.match(text) is None:
            return False
        if getattr(_thread, "muted", 0):
            return True
        if watched():
            if not compiler_waits():
                notice(Seen("?", "unknown"))
            return True
        if WARN not in _prior.values():
            return True  # torch warns only because we asked it to
        # The user's own mode: their warning, as if we were not here. Unless the version of the filters goes up,
        # "once per location" would keep the same line in a region from being heard.
        _tell_python()
        return False


_FILTER: Any = ("ignore", _Ear(), UserWarning, None, 0)


class muted:
    """Within it torch's warnings on this thread are nobody's business: who asked has seen the wait already."""

    def __enter__(self) -> None:
        _thread.muted = getattr(_thread, "muted", 0) + 1

    def __exit__(self, *_: object) -> None:
        _thread.muted -= 1


def arm() -> None:
    """One more region is open: listen. Called at each entry, since the filters may have changed without a word."""
    global _regions
    with _LOCK:
        _regions += 1
        if _regions == 1:
            _listen()
        _put_first()
    try:
        _arm_torch()
    except BaseException:
        disarm()
        raise
    if _regions == 1 and (not _prior or WARN in _prior.values()):
        _forget()


def _arm_torch() -> None:
    for name in BACKENDS:
        _raise_mode(name)


_imports.heard.append(_arm_torch)


def disarm() -> None:
    """One region less; with the last, everything is as it was before."""
    global _regions
    with _LOCK:
        _regions -= 1
        if not _regions:
            _disarm_torch()
            _stop_listening()


def blinded() -> str:
    """Why waits may have gone unheard on this thread in a region that is open still; "" if none did."""
    if any(_FILTER not in filters for filters in _lists()):
        return "the list warnings.filters was emptied inside it without a word"
    with _LOCK:
        for name in BACKENDS:
            module = _backend(name)
            if module is None:
                continue
            if name not in _prior:
                return f"torch.{name} came in without a word, by an import or by leaving simulated() inside it"
            if module.get_sync_debug_mode() == OFF:
                return f"torch.{name}.set_sync_debug_mode switched torch's warnings off inside it"
    return ""


def strict() -> str:
    """The backend whose mode is "error" by somebody else's wish; torch then raises by itself. "" if there is none."""
    return next((name for name, mode in _prior.items() if mode == ERROR), "")


class _Warnings(ModuleType):
    """The class of the module ``warnings`` while a region is open."""

    @property
    def filters(self) -> Any:
        return vars(self)["filters"]

    @filters.setter
    def filters(self, value: Any) -> None:
        _put_first_in(value)
        vars(self)["filters"] = value

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)  # cloudpickle asks for the exact class of a module


def _listen() -> None:
    _imports.watch()
    for name, _, ours in _REPLACED:
        setattr(warnings, name, ours)
    if type(warnings) is ModuleType:
        setattr(warnings, "__class__", _Warnings)  # noqa: B010  # mypy knows no module with a class of its own


def _stop_listening() -> None:
    _imports.unwatch()
    if getattr(warnings, "__class__", None) is _Warnings:
        setattr(warnings, "__class__", ModuleType)  # noqa: B010  # as above
    for name, original, ours in _REPLACED:
        if getattr(warnings, name) is ours:
            setattr(warnings, name, original)
    for filters in _lists():
        while _FILTER in filters:
            filters.remove(_FILTER)


def _heard_of_a_change() -> None:
    if _regions:
        _put_first()
    _mutated()


def _add_filter(*item: Any, append: bool) -> None:
    """Does what ``warnings._add_filter`` does, behind ours: there is no moment in which the new one comes first."""
    if append:
        _add(*item, append=append)
        return
    filters = _lists()[-1]
    filters[:] = [_FILTER, item, *(one for one in filters if one != item and one is not _FILTER)]
    _tell_python()


_add: Callable[..., None] = getattr(warnings, "_add_filter", lambda *_, **__: None)
_REPLACED: list[tuple[str, Any, Any]] = [(_MUTATED, _mutated, _heard_of_a_change)]
if hasattr(warnings, "_add_filter"):
    _REPLACED.append(("_add_filter", _add, _add_filter))


def _put_first() -> None:
    for filters in _lists():
        _put_first_in(filters)


def _put_first_in(filters: Any) -> None:
    # One step that leaves ours in the list at every moment; another one of it further down does nothing.
    if isinstance(filters, list) and (not filters or filters[0] is not _FILTER):
        filters.insert(0, _FILTER)


def _lists() -> list[list[Any]]:
    """The filters in force here: the process's, and the context's own where Python's warnings know contexts (3.14)."""
    every: list[list[Any]] = [warnings.filters]  # type: ignore[list-item]  # typeshed says Sequence; CPython wants a list
    of_context = getattr(warnings, "_get_filters", None)
    if of_context is not None:
        own = of_context()
        every += [own] if own is not warnings.filters else []
    return every


def _tell_python() -> None:
    lock = getattr(warnings, "_lock", None)
    if lock is None:
        _mutated()
    else:
        with lock:
            _mutated()


def _forget() -> None:
    """Take waits out of all "once per location" registries: in a region the same line must be heard.

    Without the user's own mode, or stand-ins for torch's warnings, none is in there. A new version of the filters would
    do it, too, but makes every other warning appear once more.
    """
    for module in tuple(sys.modules.values()):
        registry = getattr(module, "__dict__", {}).get("__warningregistry__")
        if isinstance(registry, dict):
            for key in [key for key in tuple(registry) if isinstance(key, tuple) and SYNC.match(str(key[0]))]:
                registry.pop(key, None)


def _backend(name: str) -> Any:
    """``torch.cuda`` or its like, if torch is loaded, was built for it and has started it; else None."""
    simulated: Any = loaded("testkit.syncs._simulated")
    if simulated is not None and simulated._inside:
        return None  # torch.cuda is its stand-in, which tells of waits itself; no real device is started for it
    module = _built(name)
    return module if module is not None and module.is_initialized() else None


def can_see() -> bool:
    """Whether there is a device here of whose waits torch would tell, started or not. Starts none."""
    # The count is had without the driver's runtime, whose start would keep the process from forking.
    return any(module.device_count() for name in BACKENDS if (module := _built(name)) is not None)


def _built(name: str) -> Any:
    module = getattr(loaded("torch"), name, None)
    compiled = getattr(module, "_is_compiled", lambda: hasattr(module, "set_sync_debug_mode"))
    return module if module is not None and compiled() and hasattr(module, "set_sync_debug_mode") else None


def _raise_mode(name: str) -> None:
    """Now, or when the backend starts: starting CUDA takes 300 MiB of the device, and forbids to fork."""
    module = _backend(name)
    if module is not None:
        _raise_mode_now(name, module)
        return
    module = _built(name)
    if hasattr(module, "_lazy_call") and name not in _queued and not module.is_initialized():
        _queued.add(name)
        # Not under our lock: torch's own is taken here, and is held where the callback runs.
        module._lazy_call(lambda: _raise_mode_now(name, module))


def _raise_mode_now(name: str, module: Any) -> None:
    with _LOCK:
        if _regions and name not in _prior:
            mode = _prior[name] = module.get_sync_debug_mode()
            if mode == OFF:
                module.set_sync_debug_mode(WARN)


def _disarm_torch() -> None:
    for name, mode in _prior.items():
        module = _backend(name)
        # Somebody who set another mode inside the region and left it so wanted it; only our own is taken back.
        if mode == OFF and module is not None and module.get_sync_debug_mode() == WARN:
            module.set_sync_debug_mode(OFF)
    _prior.clear()


def compiler_waits() -> bool:
    """Whether torch's compiler is at work on this thread: it may read constants, measure variants and record graphs."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in COMPILER:
            return True
        frame = frame.f_back
    return False
