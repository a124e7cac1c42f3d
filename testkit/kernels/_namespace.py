"""``namespace``: a ``SimpleNamespace`` for a configuration, which knows the class that it stands for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from testkit.errors import KernelsError
from testkit.kernels._fields import NOTHING
from testkit.kernels._known import known_of
from testkit.kernels._record import (
    RECORD,
    WHOLE,
    Record,
    Stub,
    StubError,
    made_at,
    record_of,
    unknown_name,
)
from testkit.kernels._source import Place
from testkit.kernels._types import class_of, default_in

__tracebackhide__ = True  # pytest shows the line that asked, not ours


def namespace(spec: Any, /, **attributes: Any) -> SimpleNamespace:
    """A ``SimpleNamespace`` that stands for ``spec`` and has ``attributes``.

    ``spec`` is a class (a dataclass, a pydantic model, a ``Protocol``, any other) or an instance. What is not given is
    what ``spec`` says: an instance's own value, a field's default or factory, a constant or default argument of
    ``__init__``, an attribute of the class; properties and methods of the class run on the namespace. There is no
    default where construction rebinds the argument or changes the attribute (``+=``), or the class has a
    ``__setattr__`` of its own (that of ``nn.Module`` aside), which may set something else. What is left raises
    ``StubError`` (an ``AttributeError``) when it is read, with the dotted path that was asked for, the line that asked
    and where a real one gets it; reads by ``getattr`` with a default and ``hasattr`` are recorded.

    A dictionary for an attribute that is itself an object, by its annotation or in the instance, becomes a namespace
    for that; the names of a plain ``SimpleNamespace`` there are checked.

    Raises ``KernelsError`` for a name that ``spec`` does not know, at any depth, and for a spec without any names.
    """
    return _made(spec, attributes, made_at(1), "")


def _made(spec: Any, attributes: Mapping[str, Any], place: Place, prefix: str) -> Namespace:
    """``prefix`` is the dotted path of a nested one."""
    where = f"argument of namespace, {place}"
    cls, instance = (spec, None) if isinstance(spec, type) else (type(spec), spec)
    if spec is None or cls in (type, object) or (cls.__module__ == "builtins" and not hasattr(spec, "__dict__")):
        raise KernelsError(f"spec is {spec!r}, which names nothing", where, "give the class, or an instance")
    if issubclass(cls, Stub):
        raise KernelsError("spec is a stub", where, "give the real class, or a real instance")
    values: dict[str, Any] = {}
    for name, value in attributes.items():
        _check(cls, instance, name, where, prefix)
        values[name] = _nested(cls, instance, name, value, place, f"{prefix}{name}.")
    made = Namespace(**values)
    object.__setattr__(made, RECORD, Record(cls, "namespace", place, values, instance))
    return made


def _check(cls: type, instance: object, name: str, where: str, prefix: str = "") -> None:
    if not known_of(cls).accepts(name) and not (instance is not None and name in _own(instance)):
        owner = f"{cls.__name__} (at {prefix[:-1]})" if prefix else cls.__name__
        raise unknown_name(known_of(cls), owner, name, where)


def _own(instance: object) -> dict[str, Any]:
    values: dict[str, Any] = getattr(instance, "__dict__", {})
    return values


def _nested(cls: type, instance: object, name: str, value: Any, place: Place, prefix: str) -> Any:
    if type(value) not in (dict, SimpleNamespace):
        return value
    real = getattr(instance, name, None) if instance is not None else None
    spec = real if real is not None and hasattr(real, "__dict__") else class_of(cls, name)
    if spec is None:
        return value
    if isinstance(value, dict):
        return _made(spec, value, place, prefix)
    inner = spec if isinstance(spec, type) else type(spec)
    for key, deeper in vars(value).items():
        _check(inner, None if isinstance(spec, type) else spec, key, f"argument of namespace, {place}", prefix)
        if isinstance(deeper, SimpleNamespace):
            _nested(inner, None, key, deeper, place, f"{prefix}{key}.")
    return value


class Namespace(Stub, SimpleNamespace):
    """Made by ``namespace``."""

    __slots__ = (RECORD,)

    def __getattribute__(self, name: str) -> Any:
        try:
            value = super().__getattribute__(name)
        except AttributeError as error:
            failure = error
        else:
            if name[:2] != "__" or name in WHOLE:
                record = record_of(self)
                if record is not None:
                    record.seen(name, value, sys._getframe(1))
            return value
        record = record_of(self)
        if record is None or name.startswith("__"):
            raise failure
        record.touched = True
        value = _default(self, record, name)
        if value is NOTHING:
            raise record.missing(name, sys._getframe(1)) from None
        return value

    def __setattr__(self, name: str, value: object) -> None:
        record = record_of(self)
        if record is not None:
            place = made_at(1)
            # The test's own file is held to the names; other code may set what it likes, as it may on a real one.
            if place.file == record.reads.place.file:
                _check(record.cls, record.instance, name, str(place))
        super().__setattr__(name, value)

    def __copy__(self) -> Namespace:
        return _copied(self, vars(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Namespace:
        import copy

        return _copied(self, copy.deepcopy(vars(self), memo))

    def __repr__(self) -> str:
        record = record_of(self)
        owner = [record.cls.__name__] if record is not None else []
        values = [f"{name}={value!r}" for name, value in object.__getattribute__(self, "__dict__").items()]
        return f"namespace({', '.join(owner + values)})"


def _copied(original: Namespace, values: dict[str, Any]) -> Namespace:
    """What is read of a copy counts for the original."""
    made = Namespace(**values)
    record = record_of(original)
    if record is not None:
        object.__setattr__(made, RECORD, record)
    return made


def _default(made: Namespace, record: Record, name: str) -> Any:
    """What the spec says for a name that was not given."""
    if name in record.defaults:
        return record.defaults[name]
    if record.instance is not None and name in _own(record.instance):
        return _own(record.instance)[name]
    try:
        value = default_in(record.cls, name, made)
    except StubError:
        raise
    except AttributeError as error:
        raise record.explained(error, object.__getattribute__(made, "__dict__")) from None
    if name in record.known.names and record.known.names[name].how != "property":
        record.defaults[name] = value  # a factory is called once
    return value
