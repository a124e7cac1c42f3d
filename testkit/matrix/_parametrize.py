"""A recipe as pytest parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from testkit.errors import MatrixError
from testkit.matrix._recipe import Recipe
from testkit.matrix._strategy import select_strategy
from testkit.matrix._values import shown

__tracebackhide__ = True  # pytest shows the line that called us, not ours

F = TypeVar("F", bound=Callable[..., Any])


def parametrize_from(recipe: Recipe) -> Callable[[F], F]:
    """Parametrize a test function over the recipe's variants, its strategies, or both.

    The function names what it wants: ``variant`` gets the settings of a variant, ``strategy`` a ``Strategy``; the
    ids are their names. Both are ordinary stacked ``parametrize`` marks, so that the marker ``pairwise`` sees two
    axes. Links are followed when the function is decorated. Raises ``MatrixError`` for a function that names neither
    and for one that names what the recipe does not have.
    """
    import pytest

    if not isinstance(recipe, Recipe):
        raise MatrixError(f"the recipe is {shown(recipe)}", fix="give what load_recipe returns")
    values: dict[str, Callable[[], dict[str, Any]]] = {
        "variant": lambda: {name: recipe.follow(one, f"variant {name!r}") for name, one in recipe.variants.items()},
        "strategy": lambda: {name: select_strategy(recipe, name) for name in recipe.strategies},
    }

    def decorate(function: F) -> F:
        if not inspect.isfunction(function):
            problem = f"parametrize_from decorates {shown(function)}"
            raise MatrixError(problem, recipe.where, "decorate the test functions")
        named = [name for name in values if name in inspect.signature(function).parameters]
        if not named:
            problem = f"{function.__name__} takes neither variant nor strategy"
            raise MatrixError(problem, recipe.where, "name one of them, or both, as an argument")
        decorated = function
        for name in named:
            found = values[name]()
            if not found:
                raise MatrixError(
                    f"{function.__name__} takes {name}, and the recipe has none", recipe.where, "add some"
                )
            params = [pytest.param(value, id=text) for text, value in found.items()]
            decorated = pytest.mark.parametrize(name, params)(decorated)
        return decorated

    return decorate
