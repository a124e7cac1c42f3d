"""Fields with real defaults: of dataclasses, pydantic models, attrs classes and named tuples."""

from __future__ import annotations

import dataclasses
from typing import Any

from testkit._loaded import loaded

NOTHING: Any = object()
"""There is no default."""


def field_names(cls: type) -> set[str]:
    """The fields that an instance of ``cls`` has; none if it is no class with fields."""
    if dataclasses.is_dataclass(cls):
        return {entry.name for entry in dataclasses.fields(cls)}  # without InitVar and ClassVar
    if entries := _pydantic(cls):
        return {*entries, *getattr(cls, "__private_attributes__", ())}
    if attributes := getattr(cls, "__attrs_attrs__", None):
        return {attribute.name for attribute in attributes}
    return set(getattr(cls, "_fields", ())) if issubclass(cls, tuple) else set()


def filled_names(cls: type) -> set[str]:
    """The fields that the constructor of ``cls`` surely sets: not those with ``init=False`` and without a default."""
    if dataclasses.is_dataclass(cls):
        taken = {entry.name for entry in dataclasses.fields(cls) if entry.init}
    elif entries := _pydantic(cls):
        private = getattr(cls, "__private_attributes__", {}).items()
        return {
            *entries,
            *(name for name, entry in private if entry.default_factory or not _is_undefined(entry.default)),
        }
    elif attributes := getattr(cls, "__attrs_attrs__", None):
        taken = {attribute.name for attribute in attributes if attribute.init}
    else:
        return field_names(cls)
    return taken | {name for name in field_names(cls) if has_default(cls, name)}


def passing_names(cls: type) -> set[str]:
    """What is annotated in a dataclass, and is no attribute afterwards: an ``InitVar`` without a default."""
    listed: dict[str, Any] = getattr(cls, "__dataclass_fields__", {})
    return {name for name in set(listed) - field_names(cls) if not hasattr(cls, name)}


def has_default(cls: type, name: str) -> bool:
    """Would ``default_of`` find one? Calls no factory, which might need a device."""
    if dataclasses.is_dataclass(cls):
        found = [entry for entry in dataclasses.fields(cls) if entry.name == name]
        return any(not (e.default is e.default_factory is dataclasses.MISSING) for e in found)
    if entries := _pydantic(cls):
        return name in entries and not entries[name].is_required()
    if attributes := getattr(cls, "__attrs_attrs__", None):
        attr: Any = loaded("attr")
        return any(attribute.name == name and attribute.default is not attr.NOTHING for attribute in attributes)
    return issubclass(cls, tuple) and name in getattr(cls, "_field_defaults", {})


def default_of(cls: type, name: str, instance: object) -> Any:
    """What the constructor of ``cls`` would give field ``name``, factories called, or ``NOTHING``.

    ``instance`` is what a factory of attrs gets that takes the object itself.
    """
    if dataclasses.is_dataclass(cls):
        return _of_dataclass(cls, name)
    if entries := _pydantic(cls):
        return _of_pydantic(cls, entries, name)
    for attribute in getattr(cls, "__attrs_attrs__", ()):
        if attribute.name == name:
            return _of_attrs(attribute.default, instance)
    return getattr(cls, "_field_defaults", {}).get(name, NOTHING) if issubclass(cls, tuple) else NOTHING


def _of_dataclass(cls: type, name: str) -> Any:
    entry = {entry.name: entry for entry in dataclasses.fields(cls)}.get(name)
    if entry is None:
        return NOTHING
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return NOTHING if entry.default is dataclasses.MISSING else entry.default


def _pydantic(cls: type) -> dict[str, Any]:
    # not `model_fields`: an ordinary class may have an attribute of that name
    fields = vars(cls).get("__pydantic_fields__")
    return fields if isinstance(fields, dict) else {}


def _of_pydantic(cls: type, entries: dict[str, Any], name: str) -> Any:
    entry = entries.get(name, getattr(cls, "__private_attributes__", {}).get(name))
    if entry is None or (name in entries and entry.is_required()):
        return NOTHING
    if entry.default_factory is not None:
        # one that takes the other fields cannot be called before they are there
        return NOTHING if getattr(entry, "default_factory_takes_validated_data", False) else entry.default_factory()
    value = entry.get_default()  # a copy, or pydantic's own word for none
    return NOTHING if _is_undefined(value) else value


def _is_undefined(value: Any) -> bool:
    return type(value).__name__ == "PydanticUndefinedType"


def _of_attrs(default: Any, instance: object) -> Any:
    attr: Any = loaded("attr")
    if default is attr.NOTHING:
        return NOTHING
    if isinstance(default, attr.Factory):
        return default.factory(instance) if default.takes_self else default.factory()
    return default
