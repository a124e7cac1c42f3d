"""Functions and values that travel to another process by value: pickled here, and refused by name if they cannot be.

By value means that no rank imports the test module: a rewritten ``assert`` keeps its explanation, and local
functions and closures work.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar

from testkit.errors import ProcessesError
from testkit.processes import _rank_main as child

__tracebackhide__ = True  # pytest shows the line that called us, not ours

_registry = threading.RLock()  # cloudpickle's list of modules is one for all threads


class Travelling:
    """A function and its arguments. ``by_value``: modules whose contents travel too, besides the function's own.

    If the function cannot be sent by value, for what its module holds (a compiled kernel, say), and its module can be
    imported by others, it travels by reference: the rank imports the module.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        by_value: Iterable[ModuleType] = (),
    ) -> None:
        self.body, self.args, self.kwargs = body, tuple(args), dict(kwargs or {})
        self.folder: Path | None = None
        """Where the files lie that carry it; set before it is sent."""
        self._inner = body
        while isinstance(self._inner, partial):
            self._inner = self._inner.func
        self._own = sys.modules.get(getattr(self._inner, "__module__", None) or "")
        modules = {module.__name__: module for module in [self._own, *by_value] if module is not None}
        self._modules = [module for name, module in modules.items() if name != "__main__"]

    def try_out(self, where: str, *, named: str = "argument") -> None:
        """Refuse by name what cannot travel. ``named``: what a keyword argument is called."""
        error = self._refusal(self.body)
        if error is not None and self._own is not None and importable(self._own.__name__):
            by_value, self._modules = self._modules, [module for module in self._modules if module is not self._own]
            if self._refusal(self.body) is not None:
                self._modules = by_value
            else:
                error = None
        if error is not None:
            name = f"the body{self._culprit()}"
            raise ProcessesError(*_refused(name, self.body, error, where)) from None
        parts = [*((f"argument {n}", value) for n, value in enumerate(self.args))]
        parts += [(f"{named} {name!r}", value) for name, value in self.kwargs.items()]
        for name, value in parts:
            if (error := self._refusal(value)) is not None:
                raise ProcessesError(*_refused(name, value, error, where)) from None

    def _culprit(self) -> str:
        """The first variable from outside that the body uses and that cannot be sent."""
        if not inspect.isfunction(self._inner):
            return ""
        used = inspect.getclosurevars(self._inner)
        for name, value in {**used.nonlocals, **used.globals}.items():
            if self._refusal(value) is not None:
                return f", for its variable {name}, a {type(value).__qualname__}"
        return ""

    def _refusal(self, value: object) -> Exception | None:
        from multiprocessing.context import get_spawning_popen, set_spawning_popen

        before = get_spawning_popen()
        set_spawning_popen(_Pretended())  # type: ignore[arg-type]  # multiprocessing asks it for no more
        try:
            self._dumps(value)
        except Exception as error:  # noqa: BLE001 - a foreign __reduce__ may raise anything
            return error
        finally:
            set_spawning_popen(before)
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled anew for each process, while it is being started: then multiprocessing's own objects travel.
        assert self.folder is not None
        number, path = tempfile.mkstemp(prefix="payload-", dir=self.folder)
        with open(number, "wb") as file:
            file.write(self._dumps((self.body, self.args, self.kwargs, _warning_filters())))
        return child.Payload, (path,)

    def _dumps(self, value: object) -> bytes:
        import io
        from collections import ChainMap
        from multiprocessing.reduction import ForkingPickler

        import cloudpickle

        class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
            dispatch_table: ClassVar[Any] = ChainMap(
                {CodeType: _with_file(cloudpickle.Pickler.dispatch_table[CodeType])},
                _reducers_of_multiprocessing(ForkingPickler(io.BytesIO()).dispatch_table),
                cloudpickle.Pickler.dispatch_table,
            )

        with _by_value(self._modules):
            buffer = io.BytesIO()
            Pickler(buffer).dump(value)
            return buffer.getvalue()


def importable(name: str) -> bool:
    """Could another process with our sys.path import this module?"""
    return PathFinder.find_spec(name.partition(".")[0], sys.path) is not None


def _refused(name: str, value: object, error: Exception, where: str) -> tuple[str, str, str]:
    fix = "build it inside the body"
    if "fork context" in str(error):
        fix = 'make it with multiprocessing.get_context("spawn"), or use channel'
    elif type(value).__module__.startswith("_pytest."):
        fix = "leave it out; what a rank prints is shown if it fails"
    what = "" if name.startswith("the body") else f", a {type(value).__qualname__},"
    return f"{name}{what} cannot be sent: {type(error).__name__}: {error}", where, fix


def _reducers_of_multiprocessing(table: Any) -> dict[Any, Any]:
    """Not torch's, which share a tensor's memory: a value that travels is a copy."""
    return {kind: reduce for kind, reduce in dict(table).items() if not _of(reduce, "torch")}


def _of(what: Any, package: str) -> bool:
    return str(getattr(what, "__module__", "")).partition(".")[0] == package


def _warning_filters() -> list[Any]:
    """The filters that hold here; pytest's own warnings are for pytest, and would be imported by each rank."""
    return [entry for entry in warnings.filters if not (_of(entry[2], "pytest") or _of(entry[2], "_pytest"))]


class _Pretended:
    """A process that is being spawned, as far as multiprocessing's objects ask: then they let themselves be pickled."""

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    def DupFd(self, fd: int) -> int:  # multiprocessing's name
        return fd


@contextmanager
def _by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """While something is pickled; what somebody else registered stays registered."""
    import cloudpickle

    with _registry:
        registered = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
        registered = [m for m in registered if sys.modules.get(m.__name__) is m]  # cloudpickle takes no other
        for module in registered:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def _with_file(reduce: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    """cloudpickle drops the file that code comes from; tracebacks and stacks in a rank show their lines with it."""

    def reduced(code: Any) -> tuple[Any, ...]:
        build, parts, *rest = reduce(code)
        return build, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts), *rest

    return reduced
