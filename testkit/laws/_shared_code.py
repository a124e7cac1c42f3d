"""Is an oracle independent of what it judges? What both run, and copies of one in the other.

A shared formula agrees with itself. But two sides may well share a helper, and should share a constant. So code that
computes nothing (a property that returns an attribute) is free, and what else may be shared is named by the user.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

from testkit.errors import LawsError
from testkit.laws._trace import Trace, name_of, named, with_inner
from testkit.laws._values import shown

__tracebackhide__ = True  # pytest shows the line that called us, not ours

READS = ("LOAD_", "STORE_", "RETURN_", "RESUME", "COPY_FREE_VARS", "PUSH_NULL", "NOP")
"""Instructions, by how their names begin, of code that only hands out or keeps what is there."""
COPY = 12
"""Instructions from which on equal code counts as a copy; two of ``-(-a // b)`` are no evidence."""


def codes_of(item: Any, where: str) -> frozenset[CodeType]:
    """The code of a function, method, property or class, and of what is defined in it."""
    if isinstance(item, type):
        parts = [part for part in vars(item).values() if _functions(part)]
    else:
        parts = [item]
    codes = frozenset(code for part in parts for function in _functions(part) for code in with_inner(function))
    if not codes:
        fix = "name functions, methods, properties or classes that are written in Python"
        raise LawsError(f"shared has {shown(item)}, whose code cannot be seen", where, fix)
    return codes


def _functions(part: Any) -> list[CodeType]:
    if isinstance(part, property):
        found = [part.fget, part.fset]
    else:  # functools.cached_property, staticmethod and bound methods, functools.wraps
        found = [part, getattr(part, "func", None), getattr(part, "__func__", None), getattr(part, "__wrapped__", None)]
    return [code for each in found if isinstance(code := getattr(each, "__code__", None), CodeType)]


def shared_code(one: Trace, other: Trace) -> tuple[list[str], list[str]]:
    """Functions that both ran and that compute something, without those that they call, and copies; their names.

    ``one`` and ``other`` are what the predictor and the oracle ran.
    """
    both = {code for code in one.calls.keys() & other.calls.keys() if _computes(code)}
    outermost = {code for code in both if not one.callers[code] <= both or not other.callers[code] <= both} or both
    # What nobody of ours called is the predictor itself, and to name that as shared would end the check.
    names = [] if any(None in one.callers[code] for code in outermost) else sorted(map(name_of, outermost))
    lines = {f"both run {named(code)}" for code in outermost}
    originals = {_fingerprint(code): code for code in _long(one.calls.keys() - other.calls.keys())}
    for code in _long(other.calls.keys() - one.calls.keys()):
        if original := originals.get(_fingerprint(code)):
            lines.add(f"{named(code)} is a copy of {named(original)}")
            names = []
    return sorted(lines), names


def not_reached(shared: Sequence[Any], codes: Iterable[frozenset[CodeType]], trace: Trace) -> list[str]:
    """Those of ``shared``, by name, whose code ``trace`` did not reach."""
    pairs = zip(shared, codes, strict=True)
    left = [item.fget if isinstance(item, property) else item for item, code in pairs if not code & trace.reached]
    return [getattr(item, "__name__", shown(item)) for item in left]


def _computes(code: CodeType) -> bool:
    """Is it neither a property that hands out an attribute, nor what objects do by themselves, nor generated?"""
    by_itself = code.co_name.startswith("__") and code.co_name.endswith("__") and code.co_name != "__call__"
    generated = code.co_filename == "<string>" or code.co_filename.startswith("<attrs generated")
    if by_itself or generated:  # of dataclasses, as well
        return False
    return not all(found.opname.startswith(READS) for found in dis.get_instructions(code))


def _long(codes: Iterable[CodeType]) -> list[CodeType]:
    return [code for code in codes if _computes(code) and sum(1 for _ in dis.get_instructions(code)) >= COPY]


def _fingerprint(code: CodeType) -> tuple[object, ...]:
    """What a copy has in common with its original: all but names of its own, docstring and places."""
    done = []
    for found in dis.get_instructions(code):
        constant = _fingerprint(found.argval) if isinstance(found.argval, CodeType) else found.argrepr
        done.append((found.opname, constant if found.opcode in dis.hasconst else found.arg))
    return tuple(done), code.co_names, code.co_argcount
