"""What a fixture does after its yield, read from its source: does it clean up, by which calls, can that be put off?

Clean-up is told by what is called in the end, such as ``gc.collect`` or ``torch.cuda.empty_cache``, looked for through
the functions that the fixture calls. What restores a test's own state calls none of these, and is better left alone.
"""

from __future__ import annotations

import ast
import gc
import inspect
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

CLEANS = frozenset({"empty_cache", "ipc_collect", "destroy_process_group", "clear_caches"})
"""Last words of calls that free memory or end process groups; ``gc.collect`` is the other."""

DEEPEST = 4
"""Calls are followed so many functions deep,"""

MOST = 300
"""and so many functions altogether."""

_TRY = (ast.Try, getattr(ast, "TryStar", ast.Try))  # the latter since Python 3.11
_WITH = (ast.With, ast.AsyncWith)


@dataclass(frozen=True)
class Tail:
    """The code after a yield.

    ``calls``: what it calls, each with the calls that clean up in the end (none: it does not clean). ``inside``: the
    block that the yield stands in, "try" or "with", which closing the generator would run; "" if none.
    """

    calls: Mapping[str, tuple[str, ...]]
    inside: str


def tail_of(function: Callable[..., Any]) -> Tail | None:
    """The tail of a generator function; None if nothing follows its yield, or its source cannot be read."""
    tree = _tree(function) if inspect.isgeneratorfunction(function) else None
    if tree is None:
        return None
    found = list(_yields(tree, ""))
    if not found:
        return None
    end, inside, blocks = found[-1]
    after = [node for node in _own_nodes(tree) if isinstance(node, ast.stmt) and (node.lineno, node.col_offset) > end]
    if not after and not inside:
        return None
    calls = [call for node in [*after, *blocks] for call in _calls(node)]
    search, names = _Search(), _names(function, tree)
    return Tail({ast.unparse(call.func): tuple(sorted(search.reached(call.func, names))) for call in calls}, inside)


def declines(function: Callable[..., Any]) -> bool:
    """Is False all that a function returns? A decision fixture that is replaced by such a one says no for its tests."""
    tree = _tree(function)
    returned = [node.value for node in _own_nodes(tree) if isinstance(node, ast.Return)] if tree else []
    return bool(returned) and all(isinstance(one, ast.Constant) and one.value is False for one in returned)


def gives_plain(function: Callable[..., Any]) -> bool:
    """Does all that a function returns look like a plain value: a constant, a comparison, or annotated as one?"""
    tree = _tree(function)
    if tree is None:
        return False
    if tree.returns is not None and ast.unparse(tree.returns).strip("'") in ("bool", "int", "float", "str", "None"):
        return True
    returned = [node.value for node in _own_nodes(tree) if isinstance(node, ast.Return)]
    plain = (ast.Constant, ast.Compare)
    return all(
        isinstance(one, plain) or one is None or (isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not))
        for one in returned
    ) and not inspect.isgeneratorfunction(function)


def _yields(node: ast.AST, inside: str, blocks: tuple[ast.AST, ...] = ()) -> Iterator[tuple[Any, str, Any]]:
    """Where each yield ends, the innermost block that runs something after it, and the managers of with blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, (ast.Yield, ast.YieldFrom)):
            end = (child.end_lineno or child.lineno, child.end_col_offset or child.col_offset)
            yield end, "yield from" if isinstance(child, ast.YieldFrom) else inside, blocks
        within, managers = inside, blocks
        if isinstance(child, _TRY):
            within = "try"
        elif isinstance(child, _WITH):
            within, managers = "with", (*blocks, *(item.context_expr for item in child.items))
        yield from _yields(child, within, managers)


def _own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function that are not of a function defined in it."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from _own_nodes(child)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))


def _tree(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        source = inspect.getsource(function.__code__)
        # The source of a method is indented; to dedent it would change text of several lines in it.
        [whole] = ast.parse(f"if 1:\n{source}" if source[0].isspace() else source).body
    except (AttributeError, OSError, TypeError, SyntaxError, ValueError):
        return None
    first = whole.body[0] if isinstance(whole, ast.If) else whole
    return first if isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


class _Search:
    """Follows calls through the functions that names stand for. Nothing of the suite is called or looked up by code."""

    def __init__(self) -> None:
        self._known: dict[object, frozenset[str]] = {}

    def reached(self, call: ast.expr, names: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
        """The calls that clean up which this one leads to, itself included."""
        found = _meant(call, names)
        if found is gc.collect:
            return frozenset({"gc.collect"})
        text = ast.unparse(call)
        if text.rpartition(".")[2] in CLEANS:
            return frozenset({text})
        function = found.__func__ if isinstance(found, (MethodType, staticmethod, classmethod)) else found
        if not isinstance(function, FunctionType) or depth == DEEPEST:
            return frozenset()
        function = inspect.unwrap(function)
        if function not in self._known and len(self._known) < MOST:
            self._known[function] = frozenset()  # for a function that leads to itself
            tree = _tree(function)
            inner = _names(function, tree) if tree else {}
            found_by_call = [self.reached(call.func, inner, depth + 1) for call in _calls(tree)] if tree else []
            self._known[function] = frozenset().union(*found_by_call)
        return self._known.get(function, frozenset())


def _names(function: Any, tree: ast.AST) -> Mapping[str, Any]:
    """What the global names in a function stand for, and those that it imports."""
    imported: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            module = sys.modules.get(node.module or "")
            for alias in node.names:
                imported[alias.asname or alias.name] = vars(module).get(alias.name) if module else None
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                imported[alias.asname or name] = sys.modules.get(name)
    return ChainMap(imported, function.__globals__)


def _meant(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _meant(node.value, names)
        # Anything but a module or class may run code when an attribute is asked for.
        return vars(owner).get(node.attr) if isinstance(owner, (ModuleType, type)) else None
    return None
