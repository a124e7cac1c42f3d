"""Which names an instance of a class has, and where each comes from: read from the source, along the MRO."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from testkit.kernels._facts import Call, Facts, Write, facts_of, resolve
from testkit.kernels._fields import field_names, filled_names, passing_names
from testkit.kernels._source import Place, class_node, functions_of, own_functions, place_of

BEGINNINGS = ("__new__", "__init__", "__post_init__", "__attrs_post_init__", "model_post_init")
"""The methods that run before anybody gets an instance."""


@dataclass(frozen=True)
class Origin:
    """Where a name comes from.

    ``how``: assigned, buffer, parameter, module, declared, field, slot, class (an attribute of the class) or
    property; ``function``: the method that sets it, or "". ``early``: construction may set it; ``sure``: every
    instance has it afterwards. ``value``: what is assigned, where only one statement of construction assigns it.
    """

    owner: str
    how: str
    place: Place | None
    function: str = ""
    early: bool = False
    sure: bool = False
    value: ast.expr | None = None

    def __str__(self) -> str:
        """``layer.py:12: self.scale = scale``, and who does it, if that is not construction."""
        where = self.place.shown if self.place else f"class {self.owner}"
        if self.early or not self.function:
            return where
        return f"{where} (in {self.function}, which construction does not call)"


@dataclass(frozen=True)
class Known:
    """The names of a class, which begins at ``place``. ``opens``: where construction sets names that the source does
    not spell out.

    ``shadowed``: attributes of the class that construction surely replaces; ``changed``: what construction changes
    in place, by ``+=`` or the like.
    """

    names: dict[str, Origin]
    patterns: tuple[re.Pattern[str], ...]
    opens: tuple[Place, ...]
    shadowed: frozenset[str]
    changed: frozenset[str]
    place: Place | None

    def accepts(self, name: str) -> bool:
        """Can an instance have this name, as far as the source tells?"""
        return bool(name in self.names or self.opens or name.startswith("__") or self.has_pattern(name))

    def has_pattern(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self.patterns)

    def nearest(self, name: str) -> str:
        """The name that is most like ``name``, or ""."""
        return nearest(name, (other for other in self.names if not other.startswith("__")))


def nearest(name: str, names: Iterable[str]) -> str:
    """The one of ``names`` that is most like ``name``, else the shortest that contains it or is contained, or ""."""
    found = list(names)
    parts = [other for other in found if min(len(name), len(other)) > 2 and (name in other or other in name)]
    return next(iter(difflib.get_close_matches(name, found, 1)), min(parts, key=len, default=""))


_cache: WeakKeyDictionary[type, Known] = WeakKeyDictionary()


def known_of(cls: type) -> Known:
    """The names of ``cls``; read once a class."""
    found = _cache.get(cls)
    if found is None:
        # Plain data only: what refers to the class would keep it in the cache for ever.
        found = _cache[cls] = _read(cls)
    return found


def _read(cls: type) -> Known:
    names: dict[str, Origin] = {}
    for owner in reversed(cls.__mro__[:-1]):
        names.update(_of_body(owner))
    if not vars(cls).get("_is_protocol", False):  # elsewhere an annotation without a value sets nothing
        names = {n: replace(o, sure=o.sure and o.how != "declared") for n, o in names.items()}
    plain = {name for name, origin in names.items() if origin.how == "class"}
    fields = field_names(cls)
    for owner in cls.__mro__[:-1]:
        for function in own_functions(owner):
            for write in _writes(facts_of(function, owner)):
                if write.name not in names or names[write.name].how == "slot":
                    names[write.name] = _origin(write, owner, function)
    early: dict[str, list[Origin]] = {}
    patterns, opens = [], []
    visits = reached(cls, BEGINNINGS)
    for visit in visits:
        patterns += visit.facts.patterns
        opens += visit.facts.opens
        for write in visit.facts.writes:
            if not (write.place.file.startswith("<") and write.name in fields):  # generated: the field says more
                early.setdefault(write.name, []).append(_origin(write, visit.owner, visit.function, visit.sure))
    filled = filled_names(cls)
    for name, origins in early.items():
        # a property stays what it is; what its setter sets is among the others
        if name not in names or names[name].how != "property":
            names[name] = _first(origins, sure=name in filled)
    for name in {name for visit in visits for name in _deleted(visit.facts)} & names.keys():
        names[name] = replace(names[name], sure=False)
    changed = frozenset(name for visit in visits for name in visit.facts.changed)
    shadowed = {name for name in plain - fields if names[name].sure and names[name].how != "class"}
    regular = tuple(re.compile(pattern) for pattern in dict.fromkeys(patterns))
    definition = class_node(cls)
    place = Place(definition[0], definition[1].lineno, definition[1].lineno) if definition else None
    return Known(names, regular, tuple(opens), frozenset(shadowed), changed, place)


def _deleted(facts: Facts) -> set[str]:
    """What a function may have deleted, and does not surely set again."""
    again = {(w.name, number) for number, w in enumerate(facts.writes) if w.sure}
    return {name for name, at in facts.deleted.items() if not any(n == name and i >= at for n, i in again)}


def _writes(facts: Facts | None) -> list[Write]:
    return facts.writes if facts is not None else []


def _origin(write: Write, owner: type, function: FunctionType, sure: bool | None = None) -> Origin:
    """``sure`` None: not of construction."""
    function_name = f"{owner.__name__}.{function.__name__}"
    certain = bool(sure) and write.sure
    return Origin(owner.__name__, write.how, write.place, function_name, sure is not None, certain, write.value)


def _first(origins: list[Origin], sure: bool) -> Origin:
    """The one to show; its value only if no other assigns one."""
    best = next((origin for origin in origins if origin.sure), origins[0])
    value = best.value if len(origins) == 1 else None
    certain = sure or best.sure
    return Origin(best.owner, best.how, best.place, best.function, True, certain, value)


def _of_body(owner: type) -> Iterator[tuple[str, Origin]]:
    """The names that the class itself has: attributes and methods, slots, annotations and fields."""
    definition = class_node(owner)
    # of a property and its setter the first counts
    places = dict(reversed(list(_places(*definition)))) if definition else {}

    def origin(name: str, how: str, sure: bool) -> tuple[str, Origin]:
        return name, Origin(owner.__name__, how, places.get(name), "", sure, sure)

    slots = vars(owner).get("__slots__", ())
    own_slots = [mangled(name, owner) for name in ([slots] if isinstance(slots, str) else slots)]
    for name in own_slots:
        if not name.startswith("__"):
            yield origin(name, "slot", False)
    for name, member in vars(owner).items():
        if name not in own_slots:
            yield origin(name, "property" if isinstance(member, property) else "class", False)
    for name in getattr(owner, "__members__", ()):  # of an enumeration; not in vars() before Python 3.11
        yield origin(name, "class", False)
    for name in annotations_of(owner).keys() - passing_names(owner):
        if name not in vars(owner) or name in own_slots:
            yield origin(name, "declared", True)
    inherited = {name for base in owner.__bases__ for name in field_names(base)}
    for name in field_names(owner):
        if name in annotations_of(owner) or name not in inherited:
            yield origin(name, "field", name in filled_names(owner))


def mangled(name: str, owner: type) -> str:
    private = name.startswith("__") and not name.endswith("__")
    return f"_{owner.__name__.lstrip('_')}{name}" if private else name


def annotations_of(owner: type | FunctionType) -> dict[str, Any]:
    """The annotations in a class's own body, or of a function, as they are; a name that nobody has yet does no harm."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF))
    found = owner.__annotations__ if isinstance(owner, FunctionType) else vars(owner).get("__annotations__", {})
    return dict(found) if isinstance(found, dict) else {}  # of a metaclass it is a descriptor


def _places(file: str, definition: ast.ClassDef) -> Iterator[tuple[str, Place]]:
    todo: list[ast.stmt] = list(definition.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, Place(file, node.lineno, node.lineno)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((t.id, place_of(node, file)) for t in targets if isinstance(t, ast.Name))
        else:
            todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


@dataclass(frozen=True)
class Visit:
    """A function that works on the object; ``sure``: each run of what was asked for runs it."""

    function: FunctionType
    owner: type
    facts: Facts
    sure: bool
    blind: bool
    """It hands the object to code that cannot be followed."""


def reached(cls: type, names: Iterable[str]) -> list[Visit]:
    """The methods ``names`` of an instance of ``cls``, and what they call with it: methods of the class and of its
    bases, properties, other functions."""
    found: dict[tuple[FunctionType, int], Visit] = {}
    todo = [(function, owner, 0, True) for name in names for function, owner in _methods(cls, name)]
    while todo:
        function, owner, position, sure = todo.pop()
        before = found.get((function, position))
        if before is not None and (before.sure or not sure):
            continue
        facts = facts_of(function, owner, position) or _unreadable(function, owner)
        next_ones: list[tuple[FunctionType, type, int, bool]] = []
        blind = facts.escapes
        for call in facts.calls:
            targets = _targets(cls, call, function, owner)
            blind = blind or targets is None
            next_ones += [(target, of, at, sure and call.sure and _runs(target)) for target, of, at in targets or ()]
        for name, certain in [(r.path[0], r.sure) for r in facts.reads] + [(w.name, w.sure) for w in facts.writes]:
            if isinstance(member_of(cls, name)[1], property):
                next_ones += [(target, of, 0, sure and certain and _runs(target)) for target, of in _methods(cls, name)]
        found[function, position] = Visit(function, owner, facts, sure, blind)
        todo += next_ones
    return list(found.values())


def _runs(function: FunctionType) -> bool:
    """Does a call run the body? That of a generator or coroutine waits until somebody asks for it."""
    return not function.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)


def _unreadable(function: FunctionType, owner: type) -> Facts:
    """What must be said of a function without source: it may do anything, unless it is generated from fields."""
    code = function.__code__
    if code.co_filename.startswith("<") and field_names(owner):
        return Facts()
    return Facts(opens=[Place(code.co_filename, code.co_firstlineno, code.co_firstlineno)], escapes=True)


def _methods(cls: type, name: str, after: type | None = None) -> list[tuple[FunctionType, type]]:
    owner, member = member_of(cls, name, after)
    if isinstance(member, (staticmethod, classmethod)) and name != "__new__":
        return []  # their first argument is not the object
    return [(function, _class_cell(function, owner)) for function in functions_of(member)]


def member_of(cls: type, name: str, after: type | None = None) -> tuple[type, Any]:
    """The class of the MRO that has ``name`` in its body, and what is there; ``(object, None)`` if none has.

    ``after``: begin behind this class, as ``super()`` does.
    """
    mro = cls.__mro__
    for owner in mro[mro.index(after) + 1 if after in mro else 0 :]:
        if name in vars(owner):
            return owner, vars(owner)[name]
    return object, None


def _class_cell(function: FunctionType, owner: type) -> type:
    """The class that ``super()`` means in ``function``: a decorator may have put it elsewhere."""
    try:
        cell = resolve(function, ("__class__",))
    except LookupError:
        return owner
    return cell if isinstance(cell, type) else owner


def _targets(cls: type, call: Call, function: FunctionType, owner: type) -> list[tuple[FunctionType, type, int]] | None:
    """The functions that ``call`` may reach; None if nobody knows."""
    if call.kind != "other":
        after = owner if call.kind == "super" else None
        return [(target, of, 0) for target, of in _methods(cls, call.target[0], after)]
    try:
        found = resolve(function, call.target)
    except (LookupError, AttributeError):
        return None
    if found is getattr(object, call.target[-1], None):  # object.__init__(self) reads nothing
        return []
    if not isinstance(found, FunctionType):
        return None
    return [(target, _class_cell(target, owner), call.position) for target in functions_of(found)]
