"""When a clean-up is due. Knows modules as opaque keys, and no test runner."""

from __future__ import annotations

from collections.abc import Hashable
from difflib import get_close_matches
from typing import Final

from testkit.errors import CleanupError

SCOPES: Final = ("function", "module", "session")


def parse_scope(text: str, source: str) -> str:
    """One of SCOPES, or an error that names ``source``."""
    if text in SCOPES:
        return text
    near = get_close_matches(text, SCOPES, n=1)
    hint = f"did you mean {near[0]}?" if near else "use function, module or session"
    raise CleanupError(f"unknown scope {text!r}", source, hint)


class Schedule:
    """Remembers whether a test ran since the last clean-up. What is due stays due until ``cleaned`` is told of it.

    ``scope`` holds for every module but those that asked for a clean-up at their own end (``wanted``). None
    means that only those are cleaned after.
    """

    def __init__(self, scope: str | None) -> None:
        self.scope = scope
        self.wanted: set[Hashable] = set()
        self._module_owes = False
        self._session_owes = False

    def after_test(self, module: Hashable, *, ran: bool, marked: bool, leaving: bool, last: bool) -> str:
        """Which clean-up is due now, as one of SCOPES, or "" for none.

        ``ran``: the test was not skipped at set-up. ``marked``: it is not to be cleaned after. ``leaving``: the
        next test is in another module. ``last``: there is no next test.
        """
        if ran:
            self.began(module)
        if last and self._session_owes:
            return self.at_end()
        if self._module_owes and ran and not marked and self._scope_of(module) == "function":
            return "function"
        if self._module_owes and leaving:
            return "module"
        return ""

    def began(self, module: Hashable) -> None:
        """A test of ``module`` ran, or was interrupted while it ran."""
        scope = self._scope_of(module)
        if scope == "session":
            self._session_owes = True
        elif scope is not None:
            self._module_owes = True

    def at_end(self) -> str:
        """Which clean-up is still due when no test follows, or "" for none."""
        return "session" if self._session_owes else "module" if self._module_owes else ""

    def cleaned(self, due: str) -> None:
        """The clean-up that was due ran to its end."""
        if due == "session":
            self._session_owes = False
        if due:
            self._module_owes = False

    def _scope_of(self, module: Hashable) -> str | None:
        return "module" if module in self.wanted else self.scope
