"""What class an attribute of a configuration has, and what value it has by itself: by annotation, field and source."""

from __future__ import annotations

import ast
import sys
import types
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any

from testkit._loaded import loaded
from testkit.kernels._facts import dotted, resolve
from testkit.kernels._fields import NOTHING, default_of, field_names
from testkit.kernels._known import Origin, annotations_of, known_of, member_of
from testkit.kernels._source import functions_of, node_of

Resolve = Callable[[tuple[str, ...]], Any]


def class_of(cls: type, name: str) -> type | None:
    """The class of attribute ``name``: as annotated, or as ``__init__`` makes it; None if that is not one class."""
    for owner in cls.__mro__[:-1]:
        annotation = annotations_of(owner).get(name)
        if annotation is not None:
            return _one_class(annotation, lambda path, owner=owner: _in_module(owner, path))  # type: ignore[misc]
    origin = known_of(cls).names.get(name)
    function = _init_of(cls, origin)
    if origin is None or function is None or origin.value is None:
        return None

    def look_up(path: tuple[str, ...]) -> Any:
        return resolve(function, path)

    if isinstance(origin.value, ast.Call):
        return _one_class(origin.value.func, look_up)
    if isinstance(origin.value, ast.Name):
        return _one_class(annotations_of(function).get(origin.value.id), look_up)
    return None


def default_in(cls: type, name: str, instance: object) -> Any:
    """The value that ``name`` has where nobody says otherwise: of a field, a constant or default argument of
    ``__init__``, or the class; what the class computes is computed for ``instance``. ``NOTHING`` if there is none."""
    if name in known_of(cls).changed:  # what it ends as depends on what the instance was given
        return NOTHING
    value = default_of(cls, name, instance)
    if value is not NOTHING:
        return value
    origin = known_of(cls).names.get(name)
    if origin is not None and origin.how == "assigned" and origin.sure:
        return _assigned(cls, origin)
    owner, member = member_of(cls, name)
    if name in getattr(cls, "__members__", ()):
        return getattr(cls, name)
    if owner is object or name in field_names(cls) or isinstance(member, types.MemberDescriptorType):
        return NOTHING
    if is_promise(owner, member):
        return NOTHING
    return member.__get__(instance, cls) if hasattr(type(member), "__get__") else member


def is_promise(owner: type, member: Any) -> bool:
    """Is it a method or property that only subclasses fill in? A body of dots would answer None."""
    promises = vars(owner).get("_is_protocol", False) or getattr(member, "__isabstractmethod__", False)
    return bool(promises and functions_of(member))


def _assigned(cls: type, origin: Origin) -> Any:
    """The value of ``self.name = 16``, or of ``self.name = name`` where the argument has a default."""
    function = _init_of(cls, origin)
    if origin.value is None or _has_own_setattr(cls):
        return NOTHING
    if isinstance(origin.value, ast.Name) and function is not None:
        bound_again = _binds(function, origin.value.id)
        return NOTHING if bound_again else _default_argument(function, origin.value.id)
    try:
        return ast.literal_eval(origin.value)
    except (ValueError, TypeError):
        return NOTHING


def _has_own_setattr(cls: type) -> bool:
    """May ``self.name = value`` set another value? Not by what is generated for a frozen class, nor in a module."""
    owner, member = member_of(cls, "__setattr__")
    torch: Any = loaded("torch")
    written = [function for function in functions_of(member) if not function.__code__.co_filename.startswith("<")]
    return bool(written) and (torch is None or owner is not torch.nn.Module)


def _binds(function: FunctionType, name: str) -> bool:
    """Does the body bind ``name``, a parameter, again? Functions within count too: they may say ``nonlocal``."""
    node = node_of(function)
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Name) and part.id == name and not isinstance(part.ctx, ast.Load):
            return True
        if name in (getattr(part, key, None) for key in ("name", "asname", "rest")):  # import, except, def, case
            return True
    return False


def _default_argument(function: FunctionType, name: str) -> Any:
    # not `inspect.signature`: it evaluates annotations, which may name what is imported for type checkers only
    values = function.__defaults__ or ()
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = dict(zip(arguments[len(arguments) - len(values) :], values, strict=True))
    return {**defaults, **(function.__kwdefaults__ or {})}.get(name, NOTHING)


def _init_of(cls: type, origin: Origin | None) -> FunctionType | None:
    """``cls.__init__``, if the name is set there, and not by a base class with arguments of its own."""
    owner, member = member_of(cls, "__init__")
    functions = functions_of(member)
    here = origin is not None and functions and origin.function == f"{owner.__name__}.__init__"
    return functions[0] if here else None


def _one_class(annotation: Any, look_up: Resolve) -> type | None:
    """The class in ``Config``, ``"Config"``, ``Optional[Config]`` or ``Config | None``; None for anything else."""
    found: set[type | None] = set()
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            annotation = ast.parse(annotation, mode="eval").body
        except SyntaxError:
            return None
    if isinstance(annotation, ast.BinOp):  # Config | None
        found = {_one_class(side, look_up) for side in (annotation.left, annotation.right)}
    elif isinstance(annotation, ast.Subscript) and dotted(annotation.value)[-1:] in (("Optional",), ("Final",)):
        found = {_one_class(annotation.slice, look_up)}
    elif isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        found = {_one_class(annotation.value, look_up)}
    elif isinstance(annotation, ast.expr) and dotted(annotation):
        try:
            found = {_usable(look_up(dotted(annotation)))}
        except (LookupError, AttributeError):
            return None
    elif typing.get_origin(annotation) in (typing.Union, getattr(types, "UnionType", None), typing.Final):
        found = {_one_class(part, look_up) for part in typing.get_args(annotation)}
    else:
        found = {_usable(annotation)}
    classes = [cls for cls in found if cls is not None]
    return classes[0] if len(classes) == 1 else None


def _usable(value: Any) -> type | None:
    """``value``, if it is a class of the user's: a dictionary for a ``dict`` is not a nested configuration."""
    return value if isinstance(value, type) and value.__module__ != "builtins" and not issubclass(value, dict) else None


def _in_module(owner: type, path: tuple[str, ...]) -> Any:
    found: Any = vars(sys.modules[owner.__module__])[path[0]]
    for name in path[1:]:
        found = getattr(found, name)
    return found
