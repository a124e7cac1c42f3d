"""Find the fixtures and callables that settings name, once a run has collected its tests."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from testkit.cleanup._asked import Asked, is_file, matches
from testkit.cleanup._wrap import Target, Wraps, yields
from testkit.errors import CleanupError


def unknown(session: Any, asked: Asked, wraps: Wraps | None, deselected: Iterable[Any]) -> list[CleanupError]:
    """An error for each name that is nowhere in this run. A callable that is found is put off until the run ends.

    ``deselected``: the collectors of tests that were, whose fixtures count too. What is found and cannot be put off is
    raised as CleanupError.
    """
    errors = []
    parents = {item.parent for item in session.items}.union(deselected)
    if wraps is not None and not _is_fixture(session, parents, wraps.target):
        conftests = [one for one in session.config.pluginmanager.get_plugins() if _is_conftest(one)]
        found = [one for one in conftests if wraps.target.is_in(one.__name__) and hasattr(one, wraps.target.name)]
        for conftest in found:
            session.config.add_cleanup(wraps.replace(conftest))
        if not found:
            names = _fixture_names(session).union(*(vars(one) for one in conftests))
            errors.append(_error(wraps.target, "is no fixture, and no callable of a conftest", names))
    for line in asked.before:
        if not is_file(line) and not _definitions(session, parents, line):
            errors.append(_error(Target(line, "", "from ini cleanup_before"), "is no fixture", _fixture_names(session)))
    return errors if session.items else []


def _is_fixture(session: Any, parents: Iterable[Any], target: Target) -> bool:
    named = [one for one in _definitions(session, parents, target.name) if target.is_in(one.func.__module__)]
    if named and not any(yields(one.func) for one in named):
        raise target.error("is a fixture without a yield, so no code follows that could be put off")
    return bool(named)


def unmatched(session: Any, asked: Asked, deselected: Iterable[Any]) -> list[CleanupError]:
    """An error for each pattern of ``cleanup_before`` that no file of this run matches."""
    paths = {node.nodeid.partition("::")[0] for node in (*session.items, *deselected)}
    lines = [line for line in asked.before if is_file(line) and not any(matches(path, line) for path in paths)]
    return [CleanupError(f"{line} matches no file", "from ini cleanup_before") for line in lines if paths]


def _definitions(session: Any, parents: Iterable[Any], name: str) -> list[Any]:
    """The fixtures of this name that tests of these collectors see, whether or not they use them."""
    import pytest

    by_id = pytest.version_tuple[:2] < (8, 1)
    find = session._fixturemanager.getfixturedefs
    return [one for parent in parents for one in find(name, parent.nodeid if by_id else parent) or ()]


def _fixture_names(session: Any) -> set[str]:
    return {name for item in session.items for name in getattr(item, "fixturenames", ())}


def _is_conftest(plugin: object) -> bool:
    return isinstance(plugin, ModuleType) and Path(plugin.__file__ or "").name == "conftest.py"


def _error(target: Target, problem: str, names: Iterable[str]) -> CleanupError:
    close = get_close_matches(target.name, list(names), n=1)
    fix = f"did you mean {close[0]}?" if close else "name a fixture of the suite"
    return target.error(problem, fix)
