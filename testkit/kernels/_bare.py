"""``bare``: an instance of a class without its ``__init__``, which says what it lacks when real code asks for it."""

from __future__ import annotations

import sys
import weakref
from enum import Enum
from types import FrameType
from typing import Any, TypeVar

from testkit._loaded import loaded
from testkit.errors import KernelsError
from testkit.kernels._fields import NOTHING, default_of, field_names
from testkit.kernels._known import Known, known_of, member_of, reached
from testkit.kernels._record import (
    RECORD,
    WHOLE,
    Record,
    Stub,
    StubError,
    here,
    made_at,
    plain,
    record_of,
    unknown_name,
)
from testkit.kernels._source import Place, functions_of

__tracebackhide__ = True  # pytest shows the line that asked, not ours

T = TypeVar("T")


def bare(cls: type[T], /, *, exact: bool = False, **attributes: Any) -> T:
    """An instance of ``cls`` made by ``object.__new__``: no ``__init__`` ran, and it has ``attributes``.

    ``isinstance`` is true of it and all real methods, properties and descriptors work. It is of a generated subclass
    that watches reads: an attribute that it was not given raises ``StubError`` (an ``AttributeError``, so that
    ``hasattr`` and ``getattr`` with a default still work), which names the dotted path that was asked for, the line
    that asked, and the assignment in the real ``__init__``. Fields of a dataclass, pydantic model or attrs class that
    are not given have their real defaults. ``exact=True`` gives an instance of ``cls`` itself, without any of that.

    An ``nn.Module`` gets ``nn.Module.__init__`` first; parameters, buffers and modules are registered as such.
    ``__del__`` is not called when the instance ends, since nothing was acquired (with ``exact=True`` Python calls it).

    Raises ``KernelsError`` for a name that no code of the class sets and no annotation, slot or field declares, for a
    property without a setter, and for a class that cannot be made this way (an enumeration, a protocol, a subclass of
    a built-in type). Names are read from the source of ``cls`` and its bases once per class; where ``__init__`` sets
    names that are not written out (``setattr`` in a loop over its arguments), every name is accepted.
    """
    place = made_at(1)
    where = f"argument of bare, {place}"
    _refuse_what_cannot_be_made(cls, where)
    known = known_of(cls)
    setters = _checked(cls, known, attributes, where)
    made = cls if exact else _watched(cls)
    try:
        instance = object.__new__(made)
    except TypeError as error:  # abstract, or a subclass of a built-in type
        raise KernelsError(f"{cls.__name__} cannot be made bare: {error}", where, "make a real one") from None
    _begin(cls, instance)
    for name, value in attributes.items():
        if name not in setters:
            try:
                _set(cls, known, instance, name, value)
            except (AttributeError, TypeError, KeyError) as error:
                problem = f"{name} of {cls.__name__} cannot be set to a {type(value).__name__}: {error}"
                raise KernelsError(problem, where, "give what the class itself would set") from None
    if not exact:
        object.__setattr__(instance, RECORD, Record(cls, "bare", place, attributes))
    for name in setters:
        setattr(instance, name, attributes[name])
    return instance


def _refuse_what_cannot_be_made(cls: object, where: str) -> None:
    if not isinstance(cls, type):
        raise KernelsError(f"{cls!r} is no class", where, "give the class, or testkit.kernels.namespace(spec)")
    if issubclass(cls, Stub):
        raise KernelsError(f"{cls.__name__} is the class of a stub", where, "give the real class")
    if issubclass(cls, Enum):
        raise KernelsError(f"{cls.__name__} is an enumeration", where, "use one of its members")
    if vars(cls).get("_is_protocol", False):
        raise KernelsError(f"{cls.__name__} is a protocol", where, "give a class, or use testkit.kernels.namespace")
    if issubclass(cls, (tuple, int, bytes)):  # Python's own words for these are about slots
        raise KernelsError(f"{cls.__name__} is a value, which is made whole", where, "make a real one")


def _checked(cls: type, known: Known, attributes: dict[str, Any], where: str) -> list[str]:
    """The names that property setters take; raises for what the class does not have."""
    setters = []
    for name in attributes:
        if not known.accepts(name):
            raise unknown_name(known, cls.__name__, name, where)
        member = member_of(cls, name)[1]
        if isinstance(member, property):
            if member.fset is None:
                origin = known.names[name]
                problem = f"{name} of {cls.__name__} is a property without a setter, {origin}"
                raise KernelsError(problem, where, f"give what it reads{_read_by(cls, name)}")
            setters.append(name)
    return setters


def _read_by(cls: type, name: str) -> str:
    """``: cfg.backend, scale``, or "" if that is not known."""
    paths = {".".join(read.path): None for visit in reached(cls, [name]) for read in visit.facts.reads}
    longest = [path for path in paths if not any(other.startswith(f"{path}.") for other in paths)]
    return f": {', '.join(longest)}" if longest else ""


def _begin(cls: type, instance: object) -> None:
    """What instances need before anything can be set."""
    torch: Any = loaded("torch")
    if torch is not None and issubclass(cls, torch.nn.Module):
        torch.nn.Module.__init__(instance)
    if "__pydantic_fields__" in vars(cls):
        _begin_pydantic(cls, instance)


def _begin_pydantic(cls: type, instance: object) -> None:
    """All defaults at once, as ``model_construct`` sets them: ``model_dump`` looks into ``__dict__``."""
    private: list[str] = list(getattr(cls, "__private_attributes__", ()))
    defaults = {name: default_of(cls, name, instance) for name in [*vars(cls)["__pydantic_fields__"], *private]}
    there = {name: value for name, value in defaults.items() if value is not NOTHING}
    hidden = {name: there.pop(name) for name in private if name in there}
    object.__setattr__(instance, "__pydantic_fields_set__", set())
    object.__setattr__(instance, "__pydantic_extra__", None)
    object.__setattr__(instance, "__pydantic_private__", hidden if private else None)
    for name, value in there.items():
        object.__setattr__(instance, name, value)


def _set(cls: type, known: Known, instance: Any, name: str, value: object) -> None:
    """Set an attribute as the class holds it. ``object``'s way: a ``__setattr__`` may refuse, as frozen classes do."""
    torch: Any = loaded("torch")
    if torch is not None and issubclass(cls, torch.nn.Module):
        module: Any = torch.nn.Module
        how = known.names[name].how if name in known.names else ""
        if how == "buffer" and (value is None or isinstance(value, torch.Tensor)):
            module.register_buffer(instance, name, value)
        elif how == "parameter" and (value is None or isinstance(value, torch.nn.Parameter)):
            module.register_parameter(instance, name, value)
        else:
            module.__setattr__(instance, name, value)
    elif name in getattr(cls, "__private_attributes__", ()):
        instance.__pydantic_private__[name] = value
    else:
        if "__pydantic_fields__" in vars(cls) and name in field_names(cls):
            instance.__pydantic_fields_set__.add(name)
        object.__setattr__(instance, name, value)


_generated: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()
# Weak both ways: a subclass keeps its base, and a class made in a test should end with it.


def _watched(cls: type[T]) -> type[T]:
    """The subclass of ``cls`` that watches reads."""
    reference = _generated.get(cls)
    found = reference() if reference is not None else None
    if found is None:
        body = {
            "__slots__": (RECORD,),
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        }
        if hasattr(cls, "__del__"):
            body["__del__"] = _nothing  # type: ignore[assignment]
        # `type.__new__`, past the metaclass, and Watched first: no registry of subclasses gets to see it.
        try:
            found = type.__new__(type(cls), cls.__name__, (Watched, cls), body)
        except TypeError as error:
            raise KernelsError(f"{cls.__name__} cannot be watched: {error}", "bare", "give exact=True") from None
        _generated[cls] = weakref.ref(found)
    return found


def _nothing(self: object) -> None:
    """In the place of ``__del__``: it would release what was never acquired."""


class Watched(Stub):
    """What a generated class has before the real one in its MRO."""

    __slots__ = ()

    def __init_subclass__(cls, **options: object) -> None:
        """Nothing: not the hook of the real class."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            record = record_of(self)
            return type(self) if record is None else record.cls
        try:
            value = super().__getattribute__(name)
        except AttributeError as error:
            failure = error
        else:
            if name[:2] != "__" or name in WHOLE:
                record = record_of(self)
                if record is not None:
                    frame = sys._getframe(1)
                    record.seen(name, value, frame)
                    if name in record.known.shadowed:
                        _note_class_default(self, record, name, frame)
            return value
        return _answer(self, name, failure, sys._getframe(1))

    def __getattr__(self, name: str) -> Any:
        """Python calls it after ``__getattribute__`` has failed, which has asked the real one already."""
        error, here.error = here.error, None
        if error is not None:
            raise error
        return super().__getattr__(name)  # type: ignore[misc]  # there is one, or `here.error` were set

    def __setattr__(self, name: str, value: object) -> None:
        record = record_of(self)
        if record is None:
            super().__setattr__(name, value)
            return
        place = made_at(1)
        # The test's own file is held to the names; other code may set what it likes, as it may on a real one.
        if place.file == record.reads.place.file and not record.known.accepts(name):
            raise unknown_name(record.known, record.cls.__name__, name, str(place))
        key = (id(self), f"set {name}")
        here.busy.add(key)
        try:
            super().__setattr__(name, value)
        finally:
            here.busy.discard(key)


def _note_class_default(instance: object, record: Record, name: str, frame: FrameType) -> None:
    try:
        own = object.__getattribute__(instance, "__dict__")
    except AttributeError:
        own = {}
    if name not in own:
        code = frame.f_code
        record.took_default(name, Place(code.co_filename, frame.f_lineno, frame.f_lineno))


def _answer(instance: object, name: str, failure: AttributeError, frame: FrameType) -> Any:
    """Ordinary lookup failed: what the class's ``__getattr__`` or a field's default says, or the error."""
    record = record_of(instance)
    real = member_of(type(instance), "__getattr__", Watched)[1]
    if record is None or name.startswith("__"):
        here.error = failure if real is None else None
        raise failure
    said: AttributeError | None = None
    key = (id(instance), name)
    if real is not None and key not in here.busy:
        here.busy.add(key)
        try:
            value = real.__get__(instance, type(instance))(name)
        except AttributeError as error:
            said = error
        else:
            record.seen(name, value, frame)
            return value
        finally:
            here.busy.discard(key)
    default = default_of(record.cls, name, instance)
    if default is not NOTHING:
        object.__setattr__(instance, name, default)
        return default
    here.error = _error(instance, record, name, failure, said, frame)
    raise here.error from None


def _error(
    instance: object, record: Record, name: str, failure: AttributeError, said: AttributeError | None, frame: FrameType
) -> AttributeError:
    """The error that says most: of what lies deepest, not of the attribute around it."""
    if isinstance(failure, StubError):
        return failure
    if isinstance(said, StubError):
        return said
    member = member_of(record.cls, name)[1]
    if member is not None and functions_of(member):  # a property or the like: it was found, and failed inside
        return record.explained(failure, {given: plain(instance, given) for given in record.reads.given})
    return record.missing(name, frame, _own_words(record.cls, name, said))


def _own_words(cls: type, name: str, said: AttributeError | None) -> str:
    """What a class's ``__getattr__`` says, unless it says no more than Python does."""
    text = str(said) if said is not None else ""
    return "" if text == f"'{cls.__name__}' object has no attribute '{name}'" else text
