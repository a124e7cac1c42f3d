"""``${{ }}`` in a matrix: ``fromJSON`` of a literal, or of a value that the caller knows; nothing is guessed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from testkit.errors import MatrixError

_EXPRESSION = re.compile(r"\$\{\{\s*((?:'[^']*'|[^'])*?)\s*\}\}")  # a literal may hold the closing braces
_FROM_JSON = re.compile(r"fromJSON\(\s*(.*?)\s*\)", re.DOTALL | re.IGNORECASE)
_LITERAL = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


def evaluated(value: Any, given: Mapping[str, str], what: str, where: str) -> Any:
    """``value`` with its expressions replaced.

    ``given``: from a context's name, such as ``needs.setup.outputs.matrix``, to its text. ``fromJSON`` of a name or
    of a quoted literal gives what that JSON says; a name alone gives its text, also amid other text. Raises
    ``MatrixError`` for a name that is not given and for an expression of any other form.

    Source: "Evaluate expressions in workflows and actions" in GitHub's documentation: literals in single quotes,
    doubled inside; function names in any case.
    """
    if isinstance(value, Mapping):
        return {name: evaluated(part, given, f"{what}.{name}", where) for name, part in value.items()}
    if isinstance(value, list):
        return [evaluated(part, given, f"{what}[{place}]", where) for place, part in enumerate(value)]
    if not isinstance(value, str):
        return value
    whole = _EXPRESSION.fullmatch(value)
    call = _FROM_JSON.fullmatch(whole[1]) if whole else None
    if call:
        text = _text(call[1], given, what, where)
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            fix = "give it the text that the run would see"
            raise MatrixError(f"{what} is fromJSON of {text[:80]!r}, which is no JSON: {error}", where, fix) from error
    return _EXPRESSION.sub(lambda found: _text(found[1], given, what, where), value)


def _text(expression: str, given: Mapping[str, str], what: str, where: str) -> str:
    literal = _LITERAL.fullmatch(expression)
    if literal:
        return literal[1].replace("''", "'")
    if expression in given:
        return given[expression]
    if _NAME.fullmatch(expression):
        problem = f"{what} comes from {expression}, which only the run knows"
        raise MatrixError(problem, where, f"give its value: --set {expression}=VALUE")
    problem = f"{what} is ${{{{ {expression} }}}}, more than fromJSON of a name or a literal"
    raise MatrixError(problem, where, "write the matrix that it gives into a file, and name that")
