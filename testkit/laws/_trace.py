"""Which Python functions a call runs, and how often: what two calls share, and what a step repeats.

Functions are told by their code objects, so that methods, closures and partials are seen as what they are. Functions
of C, other threads and other processes are not seen.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

LIBRARIES = sys.stdlib_module_names | {"_pytest", "hypothesis", "numpy", "pytest", "testkit", "torch"}
"""Whose functions are tools, whoever calls them."""


class Trace:
    """The calls of Python functions while ``run`` runs one. What functions of ``leave`` call is not looked at."""

    def __init__(self, leave: Iterable[CodeType] = ()) -> None:
        self._leave = frozenset(leave)
        self._stack: list[CodeType | None] = []
        self._left = 0  # frames of ``leave``, and below them, on the stack
        self.calls: Counter[CodeType] = Counter()
        self.callers: dict[CodeType, set[CodeType | None]] = {}
        self.reached: set[CodeType] = set()
        """The functions of ``leave`` that were called."""

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``, watched. A profiler that is at work pauses meanwhile."""
        before = sys.getprofile()
        self._stack, self._left = [], 0
        sys.setprofile(self._see)
        try:
            return function(*args)
        finally:
            sys.setprofile(before)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code: CodeType | None = frame.f_code
            if self._left or code in self._leave:
                self._left += 1
                self.reached |= {frame.f_code} & self._leave
            elif is_library(frame.f_globals.get("__name__")):
                code = None
            else:
                self.calls[frame.f_code] += 1
                self.callers.setdefault(frame.f_code, set()).add(self._stack[-1] if self._stack else None)
            self._stack.append(code)
        elif event == "return" and self._stack:
            self._stack.pop()
            self._left -= self._left > 0


def is_library(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES


def with_inner(code: CodeType) -> Iterator[CodeType]:
    """``code`` and the code of functions that are defined in it: decorators run an inner one."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_inner(constant)


def named(code: CodeType) -> str:
    """``Cache.lookup at cache.py:12``; before Python 3.11 code does not know its class."""
    return f"{name_of(code)} at {Path(code.co_filename).name}:{code.co_firstlineno}"


def name_of(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]
