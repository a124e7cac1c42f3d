"""A region around each call of a function; around each step of a generator, since others run between its steps."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from testkit.errors import SyncsError
from testkit.syncs import _switch

__tracebackhide__ = True  # pytest shows the line that waits, not ours

F = TypeVar("F", bound=Callable[..., Any])


class Call(NamedTuple):
    """The region of one call: open within ``step()``, as often as needed; ``end()`` comes once, after it returned."""

    step: Callable[[], AbstractContextManager[Any]]
    end: Callable[[], None]


def decorated(function: F, name: str, begin: Callable[[], Call]) -> F:
    """``function`` with the region that ``begin()`` makes for each call; ``name`` is for messages."""
    if isinstance(function, (type, staticmethod, classmethod, property)) or not callable(function):
        kind = "a class" if isinstance(function, type) else f"{type(function).__name__} {function!r}"
        raise SyncsError(f"{name} cannot decorate {kind}", fix=f"put @{name} directly on a function or method")
    if inspect.isasyncgenfunction(function):
        wrapper: Callable[..., Any] = _async_generator(function, begin)
    elif inspect.iscoroutinefunction(function):
        wrapper = _coroutine(function, begin)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(function, begin)
    else:
        wrapper = _plain(function, begin)
    return functools.wraps(function)(wrapper)  # type: ignore[return-value]  # it has the signature of the function


def _plain(function: Any, begin: Callable[[], Call]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _switch.off or _switch.compiling():
            return function(*args, **kwargs)
        region = begin()
        with region.step():
            result = function(*args, **kwargs)
        region.end()
        return result

    return _with_the_signature(function, call)


def _with_the_signature(function: Any, guarded: Callable[..., Any]) -> Callable[..., Any]:
    """``guarded`` behind a function of the same parameters: to pass ``*args, **kwargs`` on costs eight bare calls.

    There only the switch is asked. A function that has other than plain parameters gets ``guarded`` itself.
    """
    if not inspect.isfunction(function):
        return guarded
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    starred = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    if starred or code.co_posonlyargcount or {"_function", "_guarded", "_switch"} & set(names):
        return guarded
    positional, keywords = names[: code.co_argcount], names[code.co_argcount :]
    parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    given = ", ".join([*positional, *(f"{name}={name}" for name in keywords)])
    lines = ["if _switch.off:", f"    return _function({given})", f"return _guarded({given})"]
    source = "\n    ".join([f"def call({parameters}):", *lines])
    space: dict[str, Any] = {"_function": function, "_guarded": guarded, "_switch": _switch}
    space |= {"__name__": __name__, "__tracebackhide__": True}
    exec(compile(source, __file__, "exec"), space)
    call: Any = space["call"]
    call.__defaults__, call.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return call  # type: ignore[no-any-return]  # made by exec


def _coroutine(function: Any, begin: Callable[[], Call]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        if _switch.off or _switch.compiling():
            return await function(*args, **kwargs)
        region = begin()
        with region.step():
            result = await function(*args, **kwargs)
        region.end()
        return result

    return call


def _generator(function: Any, begin: Callable[[], Call]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        if _switch.off or _switch.compiling():
            return (yield from generator)
        region = begin()
        step: Callable[[], Any] = functools.partial(next, generator)
        while True:
            try:
                with region.step():
                    item = step()
            except StopIteration as stop:
                region.end()
                return stop.value
            try:
                step = functools.partial(generator.send, (yield item))
            except GeneratorExit:
                with region.step():
                    generator.close()
                raise
            except BaseException as error:  # noqa: BLE001  # a generator must get whatever is thrown into it
                step = functools.partial(generator.throw, error)

    return call


def _async_generator(function: Any, begin: Callable[[], Call]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        generator = function(*args, **kwargs)
        region = None if _switch.off or _switch.compiling() else begin()
        step: Callable[[], Any] = generator.__anext__
        while True:
            try:
                if region is None:
                    item = await step()
                else:
                    with region.step():
                        item = await step()
            except StopAsyncIteration:
                if region is not None:
                    region.end()
                return
            try:
                step = functools.partial(generator.asend, (yield item))
            except GeneratorExit:
                await generator.aclose()
                raise
            except BaseException as error:  # noqa: BLE001  # a generator must get whatever is thrown into it
                step = functools.partial(generator.athrow, error)

    return call
