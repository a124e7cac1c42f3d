"""What one function does to the object it is given: which attributes it sets and reads, and whom it hands it to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from testkit.kernels._flow import COMPREHENSIONS, flow
from testkit.kernels._source import FunctionNode, Place, node_of, place_of

Path = tuple[str, ...]

REGISTERS = {
    "register_buffer": "buffer",
    "register_parameter": "parameter",
    "add_module": "module",
    "register_module": "module",
}
HARMLESS = {("type",), ("isinstance",), ("id",), ("super",)}
"""Built-in functions that read no attribute of what they are given."""


@dataclass(frozen=True)
class Write:
    """``self.name = value``; ``how``: assigned, declared, buffer, parameter or module."""

    name: str
    place: Place
    sure: bool
    how: str = "assigned"
    value: ast.expr | None = None


@dataclass(frozen=True)
class Read:
    """``self.cfg.dtype`` is ``("cfg", "dtype")``; ``default``: by ``getattr`` with a default, or ``hasattr``."""

    path: Path
    place: Place
    sure: bool
    default: bool = False


@dataclass(frozen=True)
class Call:
    """A call that hands the object on: ``self.name()``, ``super().name()``, or as argument ``position`` of another."""

    kind: str
    target: Path
    position: int
    sure: bool


@dataclass
class Facts:
    """``patterns``: names by regular expression, from f-strings; ``opens``: where any name may be set;
    ``changed``: names with an ``+=`` or the like; ``deleted``: names with the number of ``writes`` before the last
    deletion; ``escapes``: it is handed to code that nobody can follow."""

    writes: list[Write] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    opens: list[Place] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    deleted: dict[str, int] = field(default_factory=dict)
    escapes: bool = False


_cache: WeakKeyDictionary[FunctionType, dict[int, Facts | None]] = WeakKeyDictionary()


def facts_of(function: FunctionType, owner: type | None, position: int = 0) -> Facts | None:
    """The facts about the argument at ``position``; None if there is no source. ``owner``: the class it is of."""
    known = _cache.setdefault(function, {})
    if position not in known:
        node = node_of(function)
        known[position] = None if node is None else _Reader(function, node, owner, position).facts
    return known[position]


def resolve(function: FunctionType, path: Path) -> Any:
    """What the dotted name means in ``function``; raises ``LookupError`` or ``AttributeError``."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if path[0] in cells:
        try:
            found = cells[path[0]].cell_contents
        except ValueError as error:  # not bound yet
            raise LookupError(path[0]) from error
    else:
        found = function.__globals__[path[0]]
    for name in path[1:]:
        found = getattr(found, name)
    return found


def dotted(expression: ast.expr) -> Path:
    """``("torch", "nn", "Module")``, or () for anything but names and dots."""
    names: list[str] = []
    while isinstance(expression, ast.Attribute):
        names.append(expression.attr)
        expression = expression.value
    return (expression.id, *reversed(names)) if isinstance(expression, ast.Name) else ()


class _Reader:
    """Reads one function, once."""

    def __init__(self, function: FunctionType, node: FunctionNode, owner: type | None, position: int) -> None:
        self.facts = Facts()
        self._function, self._node, self._owner = function, node, owner
        self._file = function.__code__.co_filename
        scopes = function.__qualname__.split(".")[:-1]
        self._class = scopes[-1].lstrip("_") if scopes and scopes[-1] != "<locals>" else ""
        self._paths = self._names_of_the_object(position)
        self._values: dict[int, tuple[ast.expr | None, str]] = {}  # of targets: what they are given, and how
        self._handled: set[int] = set()  # nodes that a statement or call around them has explained
        self._place = place_of(node, self._file)
        self._loops = self._loop_variables()
        for part, sure in flow(node.body, self._paths):
            self._look(part, sure)
        self._settle_branches()

    def _names_of_the_object(self, position: int) -> dict[str, Path]:
        """The local names that stand for the object or for something in it: ``self``, and ``cfg = self.cfg``."""
        arguments = [argument.arg for argument in (*self._node.args.posonlyargs, *self._node.args.args)]
        assigned = [part for part in ast.walk(self._node) if isinstance(part, ast.Assign)]
        names: dict[str, Path] = {}
        if self._node.name == "__new__":  # there the object is what another __new__ returned
            made = (p for p in assigned if isinstance(p.value, ast.Call) and _last(p.value.func) == "__new__")
            names = {target.id: () for p in made for target in p.targets if isinstance(target, ast.Name)}
        elif position < len(arguments):
            names = {arguments[position]: ()}
        stored = [p.id for p in ast.walk(self._node) if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)]
        self._paths = names
        for part in assigned:
            path = self._path(part.value)
            target = part.targets[0]
            once = isinstance(target, ast.Name) and stored.count(target.id) == 1 and target.id not in arguments
            if path is not None and once and len(part.targets) == 1:
                names[dotted(target)[0]] = path
        return names

    def _path(self, expression: ast.AST) -> Path | None:
        names: list[str] = []
        while isinstance(expression, ast.Attribute):
            names.append(self._mangled(expression.attr))
            expression = expression.value
        if isinstance(expression, ast.Name) and expression.id in self._paths:
            return (*self._paths[expression.id], *reversed(names))
        return None

    def _is_object(self, expression: ast.AST) -> bool:
        return self._path(expression) == ()

    def _mangled(self, name: str) -> str:
        private = self._class and name.startswith("__") and not name.endswith("__")
        return f"_{self._class}{name}" if private else name

    def _look(self, node: ast.AST, sure: bool) -> None:
        if isinstance(node, ast.stmt):
            self._statement(node)
        elif isinstance(node, ast.Call):
            self._call(node, sure)
        elif isinstance(node, ast.Attribute):
            self._attribute(node, sure)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and self._is_dictionary(node.value):
            if isinstance(node.ctx, ast.Del):
                self._delete(node.slice)
            else:
                self._set(node.slice, sure, value=self._values.get(id(node), (None, ""))[0])
        elif isinstance(node, ast.Name) and node.id in self._paths and not self._paths[node.id]:
            self.facts.escapes |= isinstance(node.ctx, ast.Load) and id(node) not in self._handled

    def _statement(self, node: ast.stmt) -> None:
        simple = not hasattr(node, "body")
        self._place = place_of(node, self._file) if simple else Place(self._file, node.lineno, node.lineno)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._values[id(target)] = (node.value, "assigned")
            if self._is_object(node.value) and all(isinstance(target, ast.Name) for target in node.targets):
                self._handled.add(id(node.value))
        elif isinstance(node, ast.AnnAssign):
            self._values[id(node.target)] = (node.value, "assigned" if node.value else "declared")
        elif isinstance(node, ast.AugAssign):
            self._values[id(node.target)] = (None, "changed")
        elif isinstance(node, ast.Return) and node.value is not None and self._node.name == "__new__":
            self._handled.add(id(node.value))

    def _attribute(self, node: ast.Attribute, sure: bool) -> None:
        self._handled.add(id(node.value))
        path = self._path(node)
        if path is None:
            return
        value, how = self._values.get(id(node), (None, "assigned"))
        if isinstance(node.ctx, ast.Load) or how == "changed":
            self.facts.escapes |= path == ("__dict__",) and id(node) not in self._handled
            self.facts.reads.append(Read(path, place_of(node, self._file), sure))
            self.facts.changed |= set(path) if how == "changed" and len(path) == 1 else set()
        elif isinstance(node.ctx, ast.Del) and len(path) == 1:
            self.facts.deleted[path[0]] = len(self.facts.writes)
        elif isinstance(node.ctx, ast.Store) and len(path) == 1:
            if path == ("__dict__",):
                self._set_all([value] if value else [], (), sure)
            else:
                self.facts.writes.append(Write(path[0], self._place, sure and how != "declared", how, value))

    def _is_dictionary(self, expression: ast.expr) -> bool:
        """``self.__dict__`` or ``vars(self)``."""
        if isinstance(expression, ast.Call) and dotted(expression.func) == ("vars",):
            found = len(expression.args) == 1 and self._is_object(expression.args[0])
        else:
            found = self._path(expression) == ("__dict__",)
        if found:
            self._handled |= {id(expression), *map(id, ast.iter_child_nodes(expression))}
        return found

    def _call(self, node: ast.Call, sure: bool) -> None:
        function = node.func
        name = _last(function)
        on_super = isinstance(function, ast.Attribute) and _is_super(function.value)
        if _is_named(function, "setattr", "getattr", "hasattr", "delattr") and node.args:
            self._by_name(node, name, sure)
        elif name == "__setattr__" and len(node.args) == (2 if on_super else 3):
            if on_super or self._is_object(node.args[0]):
                self._handled.add(id(node.args[0]))
                self._set(node.args[-2], sure, value=node.args[-1])
        elif isinstance(function, ast.Attribute) and name == "update" and self._is_dictionary(function.value):
            self._set_all(node.args, node.keywords, sure)
        elif isinstance(function, ast.Attribute) and name == "pop" and self._is_dictionary(function.value):
            self._delete(*node.args[:1])
        elif isinstance(function, ast.Attribute) and self._is_object(function.value) and name in REGISTERS:
            self._set(node.args[0] if node.args else None, sure, how=REGISTERS[name])
        elif isinstance(function, ast.Attribute) and (on_super or self._is_object(function.value)):
            self.facts.calls.append(Call("super" if on_super else "self", (self._mangled(name),), 0, sure))
        for position, argument in enumerate(node.args):
            if self._is_object(argument) and id(argument) not in self._handled:
                self._hand_on(node, argument, position, sure)

    def _hand_on(self, node: ast.Call, argument: ast.expr, position: int, sure: bool) -> None:
        target = dotted(node.func)
        if target and target[0] not in self._paths:
            self._handled.add(id(argument))
            if target not in HARMLESS:
                self.facts.calls.append(Call("other", target, position, sure))

    def _by_name(self, node: ast.Call, name: str, sure: bool) -> None:
        path = self._path(node.args[0])
        if path is None or len(node.args) < 2:
            return
        self._handled.add(id(node.args[0]))
        if name in ("setattr", "delattr"):
            if not path and name == "delattr":
                self._delete(node.args[1])
            elif not path:
                self._set(node.args[1], sure, value=node.args[2] if len(node.args) > 2 else None)
            return
        keys = self._strings(node.args[1])
        self.facts.escapes |= keys is None and not path
        for key in keys or ():
            default = name == "hasattr" or len(node.args) > 2
            self.facts.reads.append(Read((*path, key), place_of(node, self._file), sure, default))

    def _set(self, key: ast.expr | None, sure: bool, how: str = "assigned", value: ast.expr | None = None) -> None:
        names = None if key is None else self._strings(key)
        if names is not None:
            self.facts.writes += [Write(name, self._place, sure, how, value) for name in names]
            return
        pattern = "" if key is None else _pattern(key)
        if pattern:
            self.facts.patterns.append(pattern)
        else:
            self.facts.opens.append(self._place)

    def _delete(self, *keys: ast.expr) -> None:
        self.facts.deleted.update((name, len(self.facts.writes)) for key in keys for name in self._strings(key) or ())
        self.facts.escapes = True  # a name may be computed, and ``pop`` returns what it removes

    def _set_all(self, values: Sequence[ast.expr], keywords: Sequence[ast.keyword], sure: bool) -> None:
        """The arguments of ``self.__dict__.update``."""
        for value in values:
            keys = value.keys if isinstance(value, ast.Dict) else [None]
            items: Sequence[ast.expr | None] = value.values if isinstance(value, ast.Dict) else [None]
            for key, item in zip(keys, items, strict=True):
                self._set(key, sure, value=item)
        for keyword in keywords:
            name = None if keyword.arg is None else ast.Constant(keyword.arg)
            self._set(name, sure, value=keyword.value)

    def _loop_variables(self) -> dict[int, list[str] | None]:
        """By node: the names that a variable goes through there; None if they are not written out."""
        found: dict[int, list[str] | None] = {}
        for node in ast.walk(self._node):  # inner loops come later, and count
            if not isinstance(node, (ast.For, *COMPREHENSIONS)):
                continue
            for loop in [node] if isinstance(node, ast.For) else node.generators:
                for variable, names in self._variables(loop.target, loop.iter):
                    uses = (part for part in ast.walk(node) if isinstance(part, ast.Name) and part.id == variable)
                    found.update((id(use), names) for use in uses)
        return found

    def _variables(self, target: ast.expr, over: ast.expr) -> Iterator[tuple[str, list[str] | None]]:
        """The variables of a loop, and the names that they go through."""
        variables = target.elts if isinstance(target, ast.Tuple) else [target]
        sources: list[ast.expr | None] = [None] * len(variables)
        called = _last(over.func) if isinstance(over, ast.Call) else ""
        if isinstance(target, ast.Tuple) and isinstance(over, ast.Call):
            if called == "enumerate" and over.args:
                sources[-1] = over.args[0]
            elif called == "zip" and len(over.args) == len(variables):
                sources = list(over.args)
            elif called == "items" and isinstance(over.func, ast.Attribute):
                sources[0] = over.func.value
        elif isinstance(target, ast.Tuple) and isinstance(over, (ast.Tuple, ast.List)):
            rows = [row.elts for row in over.elts if isinstance(row, ast.Tuple) and row.elts]
            sources[0] = ast.Tuple([row[0] for row in rows], ast.Load())
        elif isinstance(target, ast.Name):
            sources[0] = over
        for variable, source in zip(variables, sources, strict=True):
            if isinstance(variable, ast.Name):
                values: Any = None if source is None else self._constant(source)
                yield variable.id, [str(value) for value in values] if _are_names(values) else None

    def _strings(self, key: ast.expr) -> list[str] | None:
        """The names that ``key`` may be, if they are written out."""
        if id(key) in self._loops:
            return self._loops[id(key)]
        name = self._constant(key)
        return [name] if isinstance(name, str) else None

    def _constant(self, expression: ast.expr) -> Any:
        """The value of a literal, or of a constant of the module or class; None for anything else."""
        try:
            return ast.literal_eval(expression)
        except (ValueError, TypeError):
            pass
        path = dotted(expression)
        try:
            if path and path[0] in (*self._paths, "cls") and len(path) == 2:
                return getattr(self._owner, path[1], None)
            return resolve(self._function, path) if path else None
        except (LookupError, AttributeError):
            return None

    def _settle_branches(self) -> None:
        """What both branches of a sure ``if`` set, a call surely sets."""
        both: set[str] = set()
        for node, sure in flow(self._node.body, self._paths):
            if sure and isinstance(node, ast.If) and node.orelse:
                both |= self._surely(node.body) & self._surely(node.orelse)
        if both:
            settled = [Write(w.name, w.place, w.sure or w.name in both, w.how, w.value) for w in self.facts.writes]
            self.facts.writes = settled

    def _surely(self, body: Sequence[ast.stmt]) -> set[str]:
        found: set[str] = set()
        for node, sure in flow(body, self._paths):
            if sure and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                path = self._path(node)
                found |= set(path) if path is not None and len(path) == 1 else set()
            if sure and isinstance(node, ast.If) and node.orelse:
                found |= self._surely(node.body) & self._surely(node.orelse)
        if isinstance(body[-1], ast.Raise):  # who comes past this branch has set everything in the other
            found |= {write.name for write in self.facts.writes}
        return found


def _is_named(function: ast.expr, *names: str) -> bool:
    return isinstance(function, ast.Name) and function.id in names


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _is_named(node.func, "super")


def _last(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _are_names(values: Any) -> bool:
    sized = isinstance(values, (tuple, list, set, frozenset, dict))
    return sized and bool(values) and all(isinstance(value, str) for value in values)


def _pattern(key: ast.expr) -> str:
    """A regular expression for the names that an f-string or a sum makes; "" if they may be anything."""
    parts: list[ast.expr] = []
    if isinstance(key, ast.JoinedStr):
        parts = list(key.values)
    elif isinstance(key, ast.BinOp) and isinstance(key.op, ast.Add):
        parts = [key.left, key.right]
    written = [part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "" for part in parts]
    return "".join(re.escape(text) if text else ".+" for text in written) if any(written) else ""
