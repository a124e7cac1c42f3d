"""What a stub was given and what was read of it, and the error for what it does not have."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import Any

from testkit.errors import KernelsError
from testkit.kernels import _reads
from testkit.kernels._known import Known, known_of, nearest
from testkit.kernels._reads import Drift, Reads, current_test
from testkit.kernels._source import Place, place_of_frame

__tracebackhide__ = True  # pytest shows the line that asked, not ours

RECORD = "_testkit_record"
"""The slot of a stub that holds its record; it does not show in ``vars()``."""
WHOLE = {"__dict__", "_parameters", "_buffers", "_modules"}
"""Who reads one of these may read every attribute."""


class Stub:
    """Every stub whose reads are watched is one."""

    __slots__ = ()


Evidence = tuple[tuple[str, object], ...]
"""Labels, and what a message shows for them: text, or something with a ``shown`` of its own."""


class StubError(KernelsError, AttributeError):
    """A stub was asked for something that it was not given. ``evidence`` shows who asked and who would have set it."""

    def __init__(self, problem: str, where: str = "", fix: str = "", evidence: Evidence = ()) -> None:
        super().__init__(problem, where, fix)
        self.evidence = evidence

    def __str__(self) -> str:
        # Read only now: code that asks with a default pays for no message.
        lines = [f"  {label:<10} {getattr(what, 'shown', what)}" for label, what in self.evidence]
        return "\n".join([self.headline, *lines, f"next: {self.fix}"])


@dataclass(frozen=True)
class _Unknown:
    """Says of a name that the class does not have it; the search for the nearest waits until somebody reads it."""

    known: Known
    name: str

    @property
    def shown(self) -> str:
        like = self.known.nearest(self.name)
        return f"has no {self.name} either, by its source{like and f'; nearest is {like}'}"


class Record:
    """The record of one stub of ``cls``; ``instance``: the object that a namespace takes what it was not given from."""

    def __init__(self, cls: type, maker: str, place: Place, given: dict[str, Any], instance: object = None) -> None:
        self.cls, self.instance = cls, instance
        self.known: Known = known_of(cls)
        self.reads = Reads(cls.__name__, maker, place, set(given))
        self.shared = _reads.run.site(self.reads) if _reads.run is not None else None
        self.defaults: dict[str, Any] = {}
        self.touched = False
        self._noted: set[tuple[str, str, int, str]] = set()
        self.parent: tuple[Record, str] | None = None
        for name, value in given.items():
            inner = record_of(value)
            if inner is not None:
                inner.found_in(self, name)

    def __deepcopy__(self, memo: object) -> Record:
        return self  # a copy of the stub is read in its place

    def found_in(self, parent: Record, name: str) -> None:
        """This stub is, or was read as, attribute ``name`` of another."""
        if self.parent is not None and self.parent[0] is parent and self.parent[1] == name:
            return
        self.parent = (parent, name)
        for mine, other in ((self.reads, parent.reads), (self.shared, parent.shared)):
            if mine is not None and other is not None:
                mine.inside.add((other.key, name))

    def path(self, name: str) -> tuple[Record, str]:
        """The stub that the reading began at, and the dotted path from there."""
        record, names, seen = self, [name], {id(self)}
        while record.parent is not None and id(record.parent[0]) not in seen:
            record, step = record.parent
            seen.add(id(record))
            names.append(step)
        return record, ".".join(reversed(names))

    def saw(self, name: str) -> None:
        for reads in (self.reads, self.shared):
            if reads is not None:
                reads.read.add(name)

    def saw_all(self) -> None:
        for reads in (self.reads, self.shared):
            if reads is not None:
                reads.read |= self.reads.given

    def seen(self, name: str, value: object, frame: FrameType) -> None:
        """Code in ``frame`` has read ``name``, and got ``value``."""
        self.touched = True
        if name in self.reads.given:
            if name not in self.reads.read:
                self.saw(name)
            inner = record_of(value)
            if inner is not None:
                inner.found_in(self, name)
        elif name in WHOLE and not busy() and frame.f_globals.get("__name__") != "functools":
            self.saw_all()

    def took_default(self, name: str, place: Place) -> None:
        """Nobody gave ``name``, and code went on without: drift, if each real instance has it."""
        for reads in (self.reads, self.shared):
            if reads is not None:
                reads.asked.add(name)
        origin, test = self.known.names.get(name), current_test()
        key = (name, place.file, place.line, test)
        if origin is None or not origin.sure or key in self._noted:
            return
        self._noted.add(key)
        path = self.path(name)[1]
        drift = Drift("defaulted", self.cls.__name__, path, str(place), place.text, str(origin))
        for reads in (self.reads, self.shared):
            if reads is not None:
                reads.defaulted.setdefault(drift, set()).add(test)

    def missing(self, name: str, frame: FrameType, said: str = "") -> StubError:
        """The error for who asks for ``name`` in ``frame``; it counts as defaulted until it fails the test."""
        place = place_of_frame(frame)
        self.touched = True
        self.took_default(name, place)
        root, path = self.path(name)
        origin = self.known.names.get(name)
        lines: list[tuple[str, object]] = [("asked for", place)]
        lines.append(("a real one", origin or _Unknown(self.known, name)))
        lines += [("__getattr__", said)] if said else []
        lines.append(("the stub", self.reads.place))
        owner = self.cls.__name__
        of = f", an attribute of {owner}" if root is not self else ""
        problem = f"the stub of {root.cls.__name__} has no {path}{of}"
        fix = f"give it: {self.reads.maker}({owner}, {name}=...)" if origin else "correct the name where it is read"
        error = StubError(problem, f"read in {frame.f_code.co_name}, {place}", fix, tuple(lines))
        error.name, error.obj = name, None  # else Python fills them in, and keeps the stub alive
        return error

    def explained(self, failure: AttributeError, values: dict[str, Any]) -> AttributeError:
        """``failure`` happened inside an attribute: where a plain namespace below the stub lacks something, by path."""
        tail = failure.__traceback__
        while tail is not None and tail.tb_next is not None:
            tail = tail.tb_next
        steps = _steps_to(failure.obj, values) if type(failure.obj) is SimpleNamespace else []
        if not steps or tail is None or failure.name is None:
            return failure
        root, path = self.path(".".join([*steps, failure.name]))
        place = Place(tail.tb_frame.f_code.co_filename, tail.tb_lineno, tail.tb_lineno)
        like = nearest(failure.name, vars(failure.obj))
        lines: list[tuple[str, object]] = [("asked for", place), ("the stub", self.reads.place)]
        lines += [("nearest is", like)] if like else []
        problem = f"the stub of {root.cls.__name__} has no {path}, an attribute of a plain SimpleNamespace"
        fix = f"give it, or write testkit.kernels.namespace(...) for {'.'.join(steps)}: it knows its class"
        error = StubError(problem, f"read in {tail.tb_frame.f_code.co_name}, {place}", fix, tuple(lines))
        error.name, error.obj = failure.name, None
        return error


def _steps_to(target: object, values: dict[str, Any], depth: int = 4) -> list[str]:
    """The names that lead to ``target`` through plain namespaces; [] if none do."""
    for name, value in values.items():
        if value is target:
            return [name]
        if type(value) is SimpleNamespace and depth:
            steps = _steps_to(target, vars(value), depth - 1)
            if steps:
                return [name, *steps]
    return []


def record_of(value: object) -> Record | None:
    """The record of a stub; None for anything else, and for a stub that is only being made."""
    if not issubclass(type(value), Stub):
        return None
    try:
        record: Record = object.__getattribute__(value, RECORD)
    except AttributeError:
        return None
    return record


def plain(stub: object, name: str) -> object:
    """The value of an attribute that a stub was given, past its record; None if it was deleted."""
    try:
        return object.__getattribute__(stub, name)
    except AttributeError:
        return None


class _Here(threading.local):
    def __init__(self) -> None:
        self.busy: set[tuple[int, str]] = set()
        self.error: AttributeError | None = None


here = _Here()
"""What this thread is doing inside of stubs. ``busy``: whose ``__getattr__`` or ``__setattr__`` runs, for which name;
``error``: what ``__getattribute__`` has just raised, for ``__getattr__``, which Python calls next."""


def busy() -> bool:
    return bool(here.busy)


def unknown_name(known: Known, owner: str, name: str, where: str) -> KernelsError:
    """The refusal of a name that the class does not have."""
    like = known.nearest(name)
    hint = f"; its class: {known.place.shown}" if known.place else ""
    hint = f"; nearest is {like}, {known.names[like]}" if like else hint
    fix = f"write {like}, or " if like else "take it out, or "
    fix += f"annotate {name} in a subclass if other code sets it"
    return KernelsError(f"{owner} has no attribute {name}{hint}", where, fix)


def made_at(depth: int) -> Place:
    """The line of the caller, ``depth`` frames above who asks."""
    return place_of_frame(sys._getframe(depth + 1))
