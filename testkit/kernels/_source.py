"""Where code is written: the syntax tree of a function or class, and the text of a line."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial, partialmethod
from types import CodeType, FrameType, FunctionType
from typing import Any

WIDTH = 100
"""Characters of a statement that a message shows."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    """A statement in a file, or a line that runs; ``str()`` is ``layer.py:17``, relative where that is shorter."""

    file: str
    line: int
    last: int

    def __str__(self) -> str:
        return f"{_short(self.file, os.getcwd())}:{self.line}"

    @property
    def text(self) -> str:
        """The source in one line, cut to ``WIDTH``; "" if nobody has it."""
        lines = linecache.getlines(self.file)[self.line - 1 : self.last]
        text = " ".join(" ".join(lines).split())
        return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."

    @property
    def shown(self) -> str:
        """``layer.py:17: self.scale = scale``."""
        return f"{self}: {self.text}" if self.text else str(self)


def place_of(node: ast.AST, file: str) -> Place:
    first: int = node.lineno  # type: ignore[attr-defined]  # only statements and expressions are asked for
    last: int = node.end_lineno  # type: ignore[attr-defined]
    return Place(file, first, last)


def place_of_frame(frame: FrameType) -> Place:
    """The line that runs in ``frame``."""
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_lineno)


@lru_cache(maxsize=256)
def _short(file: str, folder: str) -> str:
    near = os.path.relpath(file, folder) if os.path.isabs(file) else file
    return file if near.startswith("..") else near


@dataclass(frozen=True)
class File:
    """The functions of a file by the line of their code objects, and its classes by qualified name."""

    functions: dict[int, list[FunctionNode]]
    classes: dict[str, list[ast.ClassDef]]


@lru_cache(maxsize=32)
def parsed(file: str) -> File:
    """What ``file`` holds; nothing if it cannot be read or parsed."""
    found = File({}, {})
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return found
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    while todo:
        node, prefix = todo.pop()
        if isinstance(node, ast.ClassDef):
            found.classes.setdefault(prefix + node.name, []).append(node)
            prefix = f"{prefix}{node.name}."
        elif isinstance(node, FunctionNode):
            # a code object begins at its first decorator
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.functions.setdefault(first, []).append(node)
            prefix = f"{prefix}{node.name}.<locals>."
        todo += [(child, prefix) for child in ast.iter_child_nodes(node)]
    return found


def node_of(function: FunctionType) -> FunctionNode | None:
    """The definition of ``function``, or None: it is a lambda, or was made by ``exec``, or its file is gone."""
    code: CodeType = function.__code__
    linecache.lazycache(code.co_filename, function.__globals__)  # finds the source in a zip file too
    for node in parsed(code.co_filename).functions.get(code.co_firstlineno, ()):
        if node.name == code.co_name:
            return node
    return None


def class_node(cls: type) -> tuple[str, ast.ClassDef] | None:
    """The file and the definition of ``cls``, or None."""
    lines = [function.__code__ for function in own_functions(cls)]
    files = [code.co_filename for code in lines]
    file = getattr(inspect.getmodule(cls), "__file__", None)
    files += [file] if file else []
    for file in dict.fromkeys(files):
        nodes = parsed(file).classes.get(cls.__qualname__, [])
        if len(nodes) > 1:  # one under `if` and one under `else`: the one that holds the functions
            inside = [n for n in nodes if any(n.lineno <= c.co_firstlineno <= (n.end_lineno or 0) for c in lines)]
            nodes = inside or nodes
        if nodes:
            return file, nodes[-1]
    return None


def own_functions(cls: type) -> list[FunctionType]:
    """The functions in the body of ``cls``, those of properties and class methods included."""
    return [function for member in vars(cls).values() for function in functions_of(member)]


def functions_of(member: object) -> list[FunctionType]:
    """The plain functions behind a member of a class: a method has one, a property up to three."""
    if isinstance(member, property):
        accessors: list[Callable[..., Any] | None] = [member.fget, member.fset, member.fdel]
        return [function for accessor in accessors if accessor for function in functions_of(accessor)]
    if isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    elif isinstance(member, (partial, partialmethod, cached_property)):
        member = member.func
    unwrapped = inspect.unwrap(member) if callable(member) else member
    return [unwrapped] if isinstance(unwrapped, FunctionType) else []
