"""Does a stub still fit its class, by source alone: nothing is run, so that no GPU is needed."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from testkit.errors import KernelsError
from testkit.kernels._facts import Path, Read
from testkit.kernels._fields import NOTHING, field_names, has_default
from testkit.kernels._known import Known, Visit, known_of, member_of, nearest, reached
from testkit.kernels._reads import Drift
from testkit.kernels._record import Record, record_of
from testkit.kernels._source import functions_of, node_of
from testkit.kernels._types import default_in, is_promise

__tracebackhide__ = True  # pytest shows the line that asked, not ours

IN_A_MODULE = ("_parameters", "_buffers", "_modules")


def fit(stub: Any, runs: Sequence[str], where: str) -> list[Drift]:
    """The drift of ``stub``, if its methods ``runs`` were called: what they surely read, as far as one can follow.

    What only a branch, a loop, ``try``, ``with``, or a generator or coroutine that they call reads is not counted as
    missing, since a run need not come there.
    """
    record = record_of(stub)
    cls = record.cls if record is not None else type(stub)
    values = _values(stub)
    made = str(record.reads.place) if record is not None else where
    line = record.reads.place.text if record is not None else ""
    known = known_of(cls)
    given = record.reads.given if record is not None else values.keys()  # of a stub of ours other code may set more
    unknown = [name for name in sorted(given) if not known.accepts(name)]
    found = [Drift("unknown", cls.__name__, name, made, line, _nearest(known, name)) for name in unknown]
    if not runs:
        return found
    for name in runs:
        _refuse_what_cannot_be_read(cls, name, where)
    visits = reached(cls, runs)
    written = {write.name for visit in visits for write in visit.facts.writes}
    for visit in visits:
        for read in visit.facts.reads:
            if visit.sure and read.sure and read.path[0] not in written:
                found += _lack(stub, cls, read)
    if not any(visit.blind for visit in visits):
        found += _unread(known, known.names.keys() & given, [*visits, *reached(cls, ["__getattr__"])], made, line)
    return list(dict.fromkeys(found))


def _nearest(known: Known, name: str) -> str:
    like = known.nearest(name)
    return str(known.names[like]) if like else known.place.shown if known.place else ""


def _refuse_what_cannot_be_read(cls: type, name: str, where: str) -> None:
    functions = functions_of(member_of(cls, name)[1])
    if not functions:
        like = nearest(name, vars(cls))
        raise KernelsError(f"{cls.__name__} has no method {name}", where, f"write {like}" if like else "correct runs")
    if node_of(functions[0]) is None:
        raise KernelsError(f"the source of {cls.__name__}.{name} cannot be found", where, "run the method instead")


def _values(stub: Any) -> dict[str, Any]:
    """What the instance itself holds."""
    try:
        values = dict(object.__getattribute__(stub, "__dict__"))
    except AttributeError:
        values = {}
    for part in IN_A_MODULE:
        if isinstance(values.get(part), dict):
            values.update(values[part])
    for owner in type(stub).__mro__:
        for name, member in vars(owner).items():
            if isinstance(member, types.MemberDescriptorType) and not name.startswith(("__", "_testkit")):
                try:
                    values[name] = member.__get__(stub)
                except AttributeError:
                    continue
    return values


def _unread(known: Known, given: set[str], visits: Sequence[Visit], made: str, line: str) -> Iterator[Drift]:
    read = {read.path[0] for visit in visits for read in visit.facts.reads}
    for name in sorted(given - read):
        if known.names[name].function != "Module.__init__":  # what nn.Module itself keeps
            yield Drift("unread", known.names[name].owner, name, made, line)


def _lack(stub: Any, cls: type, read: Read) -> Iterator[Drift]:
    """What is missing on the way along a path that is read."""
    value: Any = stub
    for depth, name in enumerate(read.path):
        record = record_of(value)
        if record is not None:
            cls = record.cls
        elif type(value) is SimpleNamespace:
            cls = SimpleNamespace
        elif depth:
            return  # a real object, which is what it is
        values = _values(value)
        if name in values:
            value = values[name]
            continue
        if not name.startswith("__") and not _offers(cls, record, name):
            yield from _drift(cls, read, read.path[: depth + 1], depth == len(read.path) - 1)
        return


def _drift(cls: type, read: Read, path: Path, last: bool) -> Iterator[Drift]:
    origin = None if cls is SimpleNamespace else known_of(cls).names.get(path[-1])
    shown = str(origin) if origin is not None else ""
    attribute = ".".join(path)
    if not read.default or not last:
        yield Drift("missing", cls.__name__, attribute, str(read.place), read.place.text, shown)
    elif origin is not None and origin.sure:
        yield Drift("defaulted", cls.__name__, attribute, str(read.place), read.place.text, shown)


def _offers(cls: type, record: Record | None, name: str) -> bool:
    """Has a stub the name without having been given it? Properties are not computed for the answer."""
    owner, member = member_of(cls, name)
    if record is not None and record.reads.maker == "namespace":
        if name in getattr(record.instance, "__dict__", ()):
            return True
        if not functions_of(member):
            unchanged = name not in known_of(cls).changed
            return (unchanged and has_default(cls, name)) or default_in(cls, name, None) is not NOTHING
    if is_promise(owner, member):
        return False
    if has_default(cls, name):
        return True
    if name not in known_of(cls).names and member_of(cls, "__getattr__")[1] is not None:
        return True  # it may answer for another object
    if owner is object or isinstance(member, types.MemberDescriptorType) or name in field_names(cls):
        return hasattr(object, name)
    return True
