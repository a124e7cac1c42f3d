"""Recipes: variants of what is tested, and strategies to run it by, some of them behind links."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit.errors import MatrixError
from testkit.matrix._expand import expand, make_matrix
from testkit.matrix._values import check_value, label, shown
from testkit.matrix._yaml import read_file

__tracebackhide__ = True  # pytest shows the line that called us, not ours

Settings = Mapping[str, Any]
Fetch = Callable[[str], Settings]
"""From a link, exactly as a recipe gives it, to what is there: a parsed mapping."""

SHAPE = "write variants, or strategies with recommended and alternatives"


@dataclass(frozen=True)
class Recipe:
    """A checked recipe.

    ``data``: all that was read; ``variants``: from a name to its settings or to a link; ``recommended``: the name of
    the recommended strategy, None if there are none; ``strategies``: from a name to its settings or to a link, the
    recommended one first; ``axes``: variants and strategies as the axes of a job matrix; ``where`` it was read.
    """

    data: Settings
    variants: dict[str, Settings | str]
    recommended: str | None
    strategies: dict[str, Settings | str]
    axes: dict[str, Any]
    where: str
    fetch: Fetch | None = field(default=None, repr=False)

    def follow(self, source: Settings | str, what: str) -> Settings:
        """``source``, or what is behind it if it is a link; ``MatrixError`` if nobody can fetch it."""
        if not isinstance(source, str):
            return source
        if self.fetch is None:
            fix = "give load_recipe a fetch function that opens it"
            raise MatrixError(f"{what} is the link {source!r}, and nothing fetches it", self.where, fix)
        found: Any = self.fetch(source)
        if not isinstance(found, Mapping):
            problem = f"fetch gave {shown(found)} for the link {source!r} of {what}"
            raise MatrixError(problem, self.where, "let it return the parsed mapping")
        return found


def load_recipe(source: str | os.PathLike[str] | Settings, fetch: Fetch | None = None) -> Recipe:
    """The recipe in a YAML, TOML or JSON file, or in a mapping.

    ``variants`` is a mapping from names to settings, a list of settings (with ``name``, or named by their values), or
    a mapping from axes, such as dtype, model and hardware, to lists, with ``include`` and ``exclude`` as in a job
    matrix. ``strategies`` holds ``recommended`` (a name, or settings with ``name``) and ``alternatives``: a mapping
    from names to settings or links, or a list of names or of settings with ``name``. A name without settings means
    the recipe itself. What an API has rendered for its recommended strategy may have the two at its top, as
    ``strategy`` and ``alternatives``.

    ``fetch(link)`` opens a link and returns a mapping. It gets the link as the recipe has it, and only when the
    variant or strategy behind it is asked for; no link is ever built here. Raises ``MatrixError`` that says what was
    read and what was expected.
    """
    data: Any
    if isinstance(source, Mapping):
        data, where = source, "in the given mapping"
    else:
        data, where = read_file(Path(source)), f"in {os.fspath(source)}"
    if not isinstance(data, Mapping):
        raise MatrixError(f"the recipe is {shown(data)}", where, SHAPE)
    if not {"variants", "strategies", "strategy"} & {*data}:
        keys = ", ".join(map(str, data)) or "no key"
        raise MatrixError(f"read {keys}, expected variants or strategies", where, SHAPE)
    variants, axes = _variants(data["variants"], where) if "variants" in data else ({}, {})
    recommended, strategies = _strategies(data, where)
    if strategies:
        axes = {**axes, "strategy": list(strategies)}
    return Recipe(data, variants, recommended, strategies, axes, where, fetch)


def is_recipe(data: Settings) -> bool:
    """Has this mapping variants or strategies, and not axes of these names?"""
    variants, strategies = data.get("variants"), data.get("strategies")
    listed = isinstance(variants, list) and any(isinstance(one, Mapping) for one in variants)
    named = listed or isinstance(variants, Mapping) or isinstance(strategies, Mapping)
    return named or isinstance(data.get("strategy"), str)


def _variants(raw: object, where: str) -> tuple[dict[str, Settings | str], dict[str, Any]]:
    """Variants by name, and the axes that they make."""
    if isinstance(raw, Mapping) and any(isinstance(value, list) for value in raw.values()):
        variants = _distinct([("-".join(label(job)), job) for job in expand(make_matrix(raw, where))], where)
        return variants, dict(raw)
    if isinstance(raw, Mapping):
        variants = _distinct([(name, _source(value, f"variant {name!r}", where)) for name, value in raw.items()], where)
    elif isinstance(raw, list):
        variants = _distinct([_named(one, place, where) for place, one in enumerate(raw)], where)
    else:
        raise MatrixError(f"variants is {shown(raw)}", where, "write a mapping from names to settings, or a list")
    if not variants:
        raise MatrixError("variants is empty", where, "write at least one")
    return variants, {"variant": list(variants)}


def _named(one: object, place: int, where: str) -> tuple[str, Settings]:
    if not isinstance(one, Mapping) or not one:
        raise MatrixError(f"variants[{place}] is {shown(one)}", where, "write a mapping of settings")
    check_value(one, f"variants[{place}]", where)
    name = one.get("name", "-".join(label(one)))
    if not isinstance(name, str) or not name:
        raise MatrixError(f"variants[{place}] has the name {name!r}", where, "write text")
    return name, one


def _source(value: object, what: str, where: str) -> Settings | str:
    if isinstance(value, Mapping) or (isinstance(value, str) and value):
        return value
    raise MatrixError(f"{what} is {shown(value)}", where, "write its settings, or the link to them")


def _distinct(named: list[tuple[Any, Any]], where: str) -> dict[str, Settings | str]:
    """Names as keys; names that differ in case only could not be told apart when one is chosen."""
    found: dict[str, Settings | str] = {}
    taken: dict[str, str] = {}
    for name, value in named:
        if not isinstance(name, str) or not name:
            raise MatrixError(f"the name {name!r} is no text", where, "quote it")
        twin = taken.setdefault(name.lower(), name)
        if name in found or twin != name:
            raise MatrixError(f"{twin!r} and {name!r} have one name", where, "give each a name of its own")
        found[name] = value
    return found


def _strategies(data: Settings, where: str) -> tuple[str | None, dict[str, Settings | str]]:
    """The name of the recommended strategy, and all strategies, that one first."""
    if "strategies" in data:
        block, key, what = data["strategies"], "recommended", "strategies.recommended"
        if not isinstance(block, Mapping):
            raise MatrixError(f"strategies is {shown(block)}", where, "write recommended and alternatives")
    elif "strategy" in data:
        block, key, what = data, "strategy", "strategy"
    else:
        return None, {}
    if key not in block:
        problem = f"strategies has {', '.join(map(str, block)) or 'no key'}, and not recommended"
        raise MatrixError(problem, where, "name the recommended strategy")
    name, settings = _strategy(block[key], data, what, where)
    others = _alternatives(block.get("alternatives"), data, where)
    if settings is data:  # a name alone: its settings may stand among the others
        same = [pair for pair in others if str(pair[0]).lower() == name.lower()]
        (name, settings), others = (same or [(name, data)])[0], [pair for pair in others if pair not in same]
    return name, _distinct([(name, settings), *others], where)


def _alternatives(raw: object, data: Settings, where: str) -> list[tuple[Any, Any]]:
    if raw is None:
        return []
    if isinstance(raw, Mapping):
        return [(name, _source(value, f"strategy {name!r}", where)) for name, value in raw.items()]
    if isinstance(raw, list):
        return [_strategy(one, data, f"alternatives[{place}]", where) for place, one in enumerate(raw)]
    fix = "write a mapping from names to settings or links, or a list of strategies"
    raise MatrixError(f"alternatives is {shown(raw)}", where, fix)


def _strategy(raw: object, data: Settings, what: str, where: str) -> tuple[str, Settings]:
    """A strategy by its name alone, which means the recipe itself, or by settings with a name."""
    name = raw.get("name") if isinstance(raw, Mapping) else raw
    if not isinstance(name, str) or not name:
        raise MatrixError(f"{what} is {shown(raw)}", where, "write a name, or settings with name")
    return name, raw if isinstance(raw, Mapping) else data
