"""Which CI jobs to run: job matrices thinned to every pair, and recipes with variants and strategies."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.matrix._parametrize import parametrize_from as parametrize_from
    from testkit.matrix._recipe import Recipe as Recipe
    from testkit.matrix._recipe import load_recipe as load_recipe
    from testkit.matrix._strategy import Strategy as Strategy
    from testkit.matrix._strategy import select_strategy as select_strategy
    from testkit.matrix._strategy import strategy_sources as strategy_sources

_HOMES = {
    "Recipe": "_recipe",
    "Strategy": "_strategy",
    "load_recipe": "_recipe",
    "parametrize_from": "_parametrize",
    "select_strategy": "_strategy",
    "strategy_sources": "_strategy",
}

__all__ = ["Recipe", "Strategy", "load_recipe", "parametrize_from", "select_strategy", "strategy_sources"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
