"""The strategies of a recipe, and the choice of one."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from testkit.errors import MatrixError
from testkit.matrix._recipe import Recipe, Settings
from testkit.matrix._values import shown

__tracebackhide__ = True  # pytest shows the line that called us, not ours


@dataclass(frozen=True)
class Strategy:
    """A chosen strategy: its ``name`` as the recipe spells it, and its ``settings``, fetched if they were a link."""

    name: str
    settings: Settings


def strategy_sources(recipe: Recipe) -> dict[str, Settings | str]:
    """All strategies of a recipe, from a name to settings or to a link: the recommended one, then the alternatives.

    Raises ``MatrixError`` for a recipe that has none.
    """
    if not isinstance(recipe, Recipe):
        raise MatrixError(f"the recipe is {shown(recipe)}", fix="give what load_recipe returns")
    if not recipe.strategies:
        fix = "write strategies with recommended and alternatives"
        raise MatrixError("the recipe has no strategies", recipe.where, fix)
    return dict(recipe.strategies)


def select_strategy(recipe: Recipe, name: str | None = None) -> Strategy:
    """The strategy of that ``name``, in any case. Without a name: asks at a terminal, else the recommended one.

    Raises ``MatrixError`` with the choices for a name that is none of them, and for a link that leads to another
    strategy.
    """
    sources = strategy_sources(recipe)
    if name is None:
        name = _asked(sources) if _at_a_terminal() else next(iter(sources))
    found = _match(name, sources)
    if found is None:
        raise MatrixError(f"the recipe has no strategy {name!r}", recipe.where, f"choose one: {', '.join(sources)}")
    settings = recipe.follow(sources[found], f"strategy {found!r}")
    said = settings.get("strategy", found)
    if isinstance(sources[found], str) and (not isinstance(said, str) or said.lower() != found.lower()):
        problem = f"the link {sources[found]!r} of strategy {found!r} leads to strategy {shown(said)}"
        raise MatrixError(problem, recipe.where, "correct the link, or what fetches it")
    return Strategy(found, settings)


def _match(name: object, sources: dict[str, Settings | str]) -> str | None:
    return next((one for one in sources if isinstance(name, str) and one.lower() == name.lower()), None)


def _at_a_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _asked(sources: dict[str, Settings | str]) -> str:
    """The user's choice; an empty line, or the end of the input, takes the recommended one."""
    recommended, *others = sources
    sys.stderr.write(f"strategies: {', '.join([f'{recommended} (recommended)', *others])}\n")
    while True:
        sys.stderr.write(f"which [{recommended}]? ")
        sys.stderr.flush()
        answer = sys.stdin.readline().strip() or recommended
        if _match(answer, sources) is not None:
            return answer
        sys.stderr.write(f"{answer!r} is none of them\n")
