"""Thinning without edits: the lines of ini ``pairwise_rules``, which say how functions without the marker are thinned.

A line is ``PATTERN [strength=N] [full=NAMES] [where=module:function] [over=N]``. The pattern is fnmatch's, over the
whole node id without parameters, ``*`` also matches slashes. Of the lines that match the last one counts, whole.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any

from testkit.errors import PairwiseError

if TYPE_CHECKING:
    from testkit.pairwise._predicates import Predicate

KEY = "pairwise_rules"
SETTINGS = ("strength", "full", "where", "over")


@dataclass(frozen=True)
class IniRule:
    """One line. ``where`` is the name of a predicate, imported when the first function is thinned by it."""

    pattern: str
    source: str
    strength: int | None = None
    full: str = ""
    where: str = ""
    over: int = 0

    def predicate(self) -> Predicate | None:
        """What ``where`` names, or PairwiseError."""
        if not self.where:
            return None
        module, _, attributes = self.where.partition(":")
        try:
            found: Any = reduce(getattr, attributes.split("."), import_module(module))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a module that skips itself at import would skip the tests too
            problem = f"where={self.where} cannot be imported: {type(error).__name__}: {error}"
            raise PairwiseError(problem, self.source, "name a function of an importable module") from error
        if not callable(found):
            raise PairwiseError(f"where={self.where} is {found!r}, not a predicate", self.source, "name a function")
        predicate: Predicate = found
        return predicate


class Rules:
    """All lines of a run, and which of them matched a function so far."""

    def __init__(self, rules: Iterable[IniRule] = ()) -> None:
        self._rules = [(re.compile(translate(rule.pattern)), rule) for rule in rules]
        self._matched: set[str] = set()
        self._asked = False

    def __bool__(self) -> bool:
        return bool(self._rules)

    def of(self, nodeid: str) -> IniRule | None:
        """The line for a function, by its node id without parameters."""
        self._asked = True
        matching = [rule for pattern, rule in self._rules if pattern.match(nodeid)]
        self._matched.update(rule.source for rule in matching)
        return matching[-1] if matching else None

    def unmatched(self) -> list[str]:
        """A note for each line that matched nothing, if there was anything to match."""
        rules = [rule for _, rule in self._rules if self._asked and rule.source not in self._matched]
        return [f"{rule.pattern!r} matched no collected function without the marker ({rule.source})" for rule in rules]


def parse_rules(lines: str | Iterable[str]) -> Rules:
    """The ini key's lines; raises PairwiseError that names the line."""
    if isinstance(lines, str):  # where another plugin made the ini key plain text
        lines = lines.splitlines()
    return Rules([_rule(line, f"from ini {KEY}, line {n}") for n, line in enumerate(lines, 1) if line.strip()])


def _rule(line: str, source: str) -> IniRule:
    pattern, *words = line.split()
    given: dict[str, str] = {}
    if pattern.split("=")[0] in SETTINGS:
        raise PairwiseError(f"{line.strip()!r} begins with a setting", source, "put a pattern of node ids before it")
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not value:
            fix = "write PATTERN name=value ..., without spaces in between; in a pattern ? stands for a space"
            raise PairwiseError(f"{word!r} is no setting", source, fix)
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"use {', '.join(SETTINGS)}"
            raise PairwiseError(f"a rule has no setting {name!r}", source, fix)
        if name in given:
            raise PairwiseError(f"{name} stands twice", source, "give it once")
        given[name] = value
    where = given.get("where", "")
    if where and not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", where):
        raise PairwiseError(f"where is {where!r}", source, "write where=module:function")
    return IniRule(
        pattern,
        source,
        strength=_number("strength", given, source),
        full=given.get("full", ""),
        where=where,
        over=_number("over", given, source) or 0,
    )


def _number(name: str, given: dict[str, str], source: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise PairwiseError(f"{name} is {text!r}, not a whole number from 1 up", source, "use 1 or more")
    return int(text)
