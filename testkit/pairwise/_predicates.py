"""`where=` predicates: their scope from their argument names, and what they allow."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from functools import cache, partial
from itertools import product
from math import prod
from typing import Any

from testkit.errors import PairwiseError
from testkit.pairwise._axes import Axis, unknown_name
from testkit.pairwise._ids import shown
from testkit.pairwise._space import Rule

Predicate = Callable[..., Any]

TABLE_CASES = 100_000
"""A predicate whose scope has at most this many combinations is tabulated; a larger one is asked as needed."""

LAZY_CASES = 1_000_000
"""A predicate asked as needed may be asked about this many different combinations, then it is an error."""


def listed(where: Predicate | Iterable[Predicate] | None) -> list[Predicate]:
    """The predicates of a ``where=`` argument, one or several, as a list."""
    if where is None:
        return []
    if callable(where):
        return [where]
    if not isinstance(where, Iterable):
        raise _not_callable("where", where)
    predicates = list(where)
    for position, predicate in enumerate(predicates):
        if not callable(predicate):
            raise _not_callable(f"where[{position}]", predicate)
    return predicates


def _not_callable(what: str, value: object) -> PairwiseError:
    return PairwiseError(
        f"{what} is {value!r}, not a predicate", fix="give a function of some of the arguments, or a list of them"
    )


def make_rule(predicate: Predicate, axes: Sequence[Axis]) -> Rule | bool:
    """The predicate as a rule over levels; its plain answer if it takes none of our arguments.

    A level is a position in ``axis.first_positions`` (a repeated value is one level).
    """
    name = predicate_name(predicate)
    used = _arguments(predicate, name, axes)
    scope = tuple(sorted({number for _, number, _ in used}))
    columns = [
        (scope.index(number), [axes[number].argument(argname, at) for at in axes[number].first_positions])
        for argname, number, _ in used
    ]
    called = [(argname, keyword) for argname, _, keyword in used]

    def allows(levels: tuple[int, ...]) -> bool:
        values = [column[levels[place]] for place, column in columns]
        return _ask(predicate, name, called, values)

    if not scope:
        return allows(())
    sizes = [len(axes[number].first_positions) for number in scope]
    if prod(sizes) > TABLE_CASES:
        return Rule(name, scope, cache(_counted(allows, name)), None)
    table = frozenset(levels for levels in product(*map(range, sizes)) if allows(levels))
    return Rule(name, scope, table.__contains__, table)


def _counted(allows: Callable[[tuple[int, ...]], bool], name: str) -> Callable[[tuple[int, ...]], bool]:
    asked = 0

    def counted(levels: tuple[int, ...]) -> bool:
        nonlocal asked
        asked += 1
        if asked > LAZY_CASES:
            raise PairwiseError(
                f"gave up on predicate {name} after asking it about {LAZY_CASES:,} combinations of its arguments",
                fix="give it fewer or smaller arguments, or split it into several with smaller scopes",
            )
        return allows(levels)

    return counted


def _ask(predicate: Predicate, name: str, called: Sequence[tuple[str, bool]], values: Sequence[object]) -> bool:
    """The predicate's answer; ``called`` holds for each value its argument name and whether it goes by keyword."""
    positional = [value for (_, keyword), value in zip(called, values, strict=True) if not keyword]
    named = {argname: value for (argname, keyword), value in zip(called, values, strict=True) if keyword}
    try:
        answer = predicate(*positional, **named)
        if answer is True or answer is False:
            return answer
        if not isinstance(answer, (Awaitable, Generator)):
            return bool(answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest.skip() and sys.exit() are no Exception
        asked = ", ".join(f"{argname}={shown(value)}" for (argname, _), value in zip(called, values, strict=True))
        problem = f"predicate {name} raised {type(error).__name__}: {error}, for {asked}"
        raise PairwiseError(
            " ".join(problem.split()),  # one line, whatever the values print
            fix="a predicate may be asked about any combination of its arguments: let it answer False",
        ) from error
    if isinstance(answer, (Coroutine, Generator)):
        answer.close()
    raise PairwiseError(
        f"predicate {name} answers with a {type(answer).__name__}, which is always true",
        fix="write it with plain def and return",
    )


def _arguments(predicate: Predicate, name: str, axes: Sequence[Axis]) -> list[tuple[str, int, bool]]:
    """(argument name, axis number, passed by keyword) for each parameter that an axis sets."""
    if inspect.iscoroutinefunction(predicate):
        raise PairwiseError(f"predicate {name} is async, so its answer is always true", fix="write it with plain def")
    try:
        parameters = list(inspect.signature(predicate).parameters.values())
    except (TypeError, ValueError) as error:
        raise PairwiseError(
            f"predicate {name} does not tell its argument names", fix="wrap it in a lambda that names them"
        ) from error
    owner = {argname: number for number, axis in enumerate(axes) for argname in axis.argnames}
    bound = predicate.keywords if isinstance(predicate, partial) else {}
    used = []
    skipped = False
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise PairwiseError(
                f"predicate {name} takes {parameter}, which says nothing about its scope",
                fix="name the arguments that it looks at",
            )
        if parameter.name in owner and parameter.name not in bound:
            keyword = parameter.kind is parameter.KEYWORD_ONLY or skipped
            used.append((parameter.name, owner[parameter.name], keyword))
        elif parameter.default is parameter.empty:
            raise unknown_name(f"predicate {name}", parameter.name, axes, arguments_only=True)
        else:
            skipped = True
    return used


def predicate_name(predicate: Predicate) -> str:
    """How messages name a predicate: its name, or for a lambda where it stands."""
    inner = predicate.func if isinstance(predicate, partial) else predicate
    name = getattr(inner, "__qualname__", type(inner).__qualname__).replace("<locals>.", "")
    code = getattr(inner, "__code__", None)
    if "<lambda>" in name and code is not None:
        return f"lambda at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return name
