"""Functions and values that travel to another process by value: pickled here, and refused by name if they cannot be.

By value means that no rank imports the test module: a rewritten ``assert`` keeps its explanation, and local
functions and closures work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, ModuleType
from typing import Any, ClassVar

from testkit.errors import ProcessesError
from testkit.processes import _rank_main as child

__tracebackhide__ = True  # pytest shows the line that called us, not ours


class Travelling:
    """A function and its arguments. ``by_value``: modules whose contents travel too, besides the function's own."""

    def __init__(
        self,
        body: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        by_value: Iterable[ModuleType] = (),
    ) -> None:
        self.body, self.args, self.kwargs = body, tuple(args), dict(kwargs or {})
        inner = body
        while isinstance(inner, partial):
            inner = inner.func
        own = sys.modules.get(getattr(inner, "__module__", None) or "")
        self._modules = [module for module in {own, *by_value} if module is not None and module.__name__ != "__main__"]

    def try_out(self, where: str, *, named: str = "argument") -> None:
        """Refuse by name what cannot travel. ``named``: what a keyword argument is called."""
        parts = [("the body", self.body), *((f"argument {n}", value) for n, value in enumerate(self.args))]
        parts += [(f"{named} {name!r}", value) for name, value in self.kwargs.items()]
        for name, value in parts:
            error = self._refusal(value)
            if error is not None:
                problem = f"{name}, a {type(value).__qualname__}, cannot be sent: {type(error).__name__}: {error}"
                fix = "build it inside the body"
                if "fork context" in str(error):
                    fix = 'make it with multiprocessing.get_context("spawn"), or use channel'
                raise ProcessesError(problem, where, fix) from None

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

    def data(self) -> bytes:
        """All of it, for ``Payload``."""
        return self._dumps((self.body, self.args, self.kwargs))

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled anew for each process, while it is being spawned: then multiprocessing's own objects travel.
        return child.Payload, (self.data(),)

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

        with _by_value(self._modules):
            buffer = io.BytesIO()
            Pickler(buffer).dump(value)
            return buffer.getvalue()


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
