"""Walks a function's body in the order of its source, and tells what it surely evaluates from what it may."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Step = tuple[ast.AST, bool]
Part = tuple[Sequence[ast.AST], bool]

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
LEAVES = (ast.Return, ast.Break, ast.Continue)
DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def flow(body: Sequence[ast.AST], hide: Iterable[str], sure: bool = True) -> Iterator[Step]:
    """Every node of ``body``, and whether each call evaluates it that ends without an exception.

    Branches, bodies of loops, of ``try`` and of ``with`` (which may suppress an error), and what follows an early
    ``return`` are not sure. A function within that has a parameter named in ``hide`` is left out: there the name means
    something else.
    """
    hidden = frozenset(hide)
    for node in body:
        yield from _node(node, hidden, sure)
        # A guard that raises is no reason for doubt: who came past it did not raise.
        sure = sure and not any(isinstance(part, LEAVES) for part in _same_function(node))


def _same_function(node: ast.AST) -> Iterator[ast.AST]:
    todo = [node]
    while todo:
        part = todo.pop()
        if not isinstance(part, DEFINES):
            yield part
            todo += ast.iter_child_nodes(part)


def _node(node: ast.AST, hide: frozenset[str], sure: bool) -> Iterator[Step]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and parameters(node.args) & hide:
        return
    yield node, sure
    for children, certain in _parts(node):
        yield from flow(children, hide, sure and certain)


def _parts(node: ast.AST) -> list[Part]:
    """The parts of a node, and whether who evaluates the node evaluates them."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        last = node.orelse if isinstance(node.orelse, list) else [node.orelse]
        return [([node.test], True), (node.body if isinstance(node.body, list) else [node.body], False), (last, False)]
    if isinstance(node, (ast.For, ast.AsyncFor)):
        runs = isinstance(node.iter, (ast.Tuple, ast.List)) and bool(node.iter.elts)
        return [([node.iter], True), ([node.target], runs), (node.body, runs), (node.orelse, False)]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [(node.items, True), (node.body, False)]
    if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":  # TryStar exists since Python 3.11
        attempt: Any = node
        return [([*attempt.body, *attempt.handlers, *attempt.orelse], False), (attempt.finalbody, True)]
    if isinstance(node, ast.Match):
        return [([node.subject], True), (node.cases, False)]
    if isinstance(node, (ast.BoolOp, ast.Compare)):
        first = node.values[:1] if isinstance(node, ast.BoolOp) else [node.left, *node.comparators[:1]]
        rest = node.values[1:] if isinstance(node, ast.BoolOp) else node.comparators[1:]
        return [(first, True), (rest, False)]
    if isinstance(node, COMPREHENSIONS):
        inner = [child for child in ast.iter_child_nodes(node) if child is not node.generators[0]]
        head = node.generators[0]
        return [([head.iter], True), ([head.target, *head.ifs, *inner], False)]
    if isinstance(node, DEFINES):
        return [(list(ast.iter_child_nodes(node)), False)]
    return [(list(ast.iter_child_nodes(node)), True)]


def parameters(arguments: ast.arguments) -> set[str]:
    """The names of all parameters."""
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in named if argument is not None}
