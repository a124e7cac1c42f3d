"""A method that is watched, or answers something else, for the length of a block."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from testkit._text import table
from testkit.errors import LawsError
from testkit.laws._trace import name_of

__tracebackhide__ = True  # pytest shows the line that called us, not ours

OURS = __name__.rpartition(".")[0] + "."
Site = tuple[CodeType, int]
"""Code and a line in it."""
See = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Stop(BaseException):
    """Ends a loop of the system under test that would not end. No Exception: the loop may catch those."""


def title(target: Any, method: str) -> str:
    """``TieredCache.lookup`` for an object of TieredCache, that class, or a module of that name."""
    if isinstance(target, ModuleType):
        return f"{target.__name__.rpartition('.')[2]}.{method}"
    return f"{(target if isinstance(target, type) else type(target)).__name__}.{method}"


def checked_method(target: Any, method: object, where: str) -> Any:
    """What ``see`` of ``watched`` will get as original, of an attribute that is called and can be replaced."""
    if not isinstance(method, str):
        raise LawsError(f"method is {method!r}, not a name", where, 'give its name: "lookup"')
    found = getattr(target, method, None)
    if not callable(found):
        callables = [name for name in dir(target) if callable(inspect.getattr_static(target, name, None))]
        near = difflib.get_close_matches(method, callables, 1)
        problem = "has no such method" if not hasattr(target, method) else "is not called"
        fix = f"the nearest is {near[0]}" if near else "give the name of a method"
        raise LawsError(f"{title(target, method)} {problem}", where, fix)
    if not isinstance(target, (type, ModuleType)):
        if method.startswith("__") and method.endswith("__"):
            fix = f"give the class: {type(target).__name__}"
            raise LawsError(f"Python looks up {method} in the class, not in an object", where, fix)
        if not hasattr(target, "__dict__"):
            fix = f"give the class: {type(target).__name__}"
            raise LawsError(f"an object of {type(target).__name__} has no room for another {method}", where, fix)
    return _original(target, method)


def _original(target: Any, method: str) -> Any:
    static = inspect.getattr_static(target, method) if isinstance(target, type) else None
    return static.__func__ if isinstance(static, classmethod) else getattr(target, method)


@contextmanager
def watched(target: Any, method: str, see: See) -> Iterator[None]:
    """In the block calls of ``target.method`` become ``see(original, args, kwargs)``.

    ``args`` has the object first if ``target`` is a class and ``method`` one of its objects', the class of a class
    method.
    """
    original = _original(target, method)
    static = inspect.getattr_static(target, method) if isinstance(target, type) else None

    @functools.wraps(original)
    def seen(*args: Any, **kwargs: Any) -> Any:
        return see(original, args, kwargs)

    replacement: Any = seen
    if isinstance(static, (classmethod, staticmethod)):
        replacement = type(static)(seen)
    own = vars(target)
    there, before = method in own, own.get(method)
    # Past a __setattr__ of its class, which may be frozen, or a torch module's.
    put = functools.partial(setattr, target) if isinstance(target, type) else own.__setitem__
    try:
        put(method, replacement)
    except TypeError as error:
        raise LawsError(f"{title(target, method)} cannot be replaced: {error}", "", "give a class of Python") from error
    try:
        yield
    finally:
        if there:
            put(method, before)
        elif isinstance(target, type):
            delattr(target, method)
        else:
            own.pop(method, None)


def call_site() -> Site:
    """The nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(OURS):
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def places(sites: Counter[Site], limit: int) -> list[str]:
    """Lines: how many calls came from ``engine.py:41 in schedule``, most first."""
    rows: list[tuple[object, ...]] = []
    for (code, line), count in sites.most_common(limit):
        path = Path(code.co_filename)
        shown = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name
        rows.append((count, f"{shown}:{line} in {name_of(code)}"))
    more = [f"  and {len(sites) - limit} places more"] if len(sites) > limit else []
    return table(rows) + more
