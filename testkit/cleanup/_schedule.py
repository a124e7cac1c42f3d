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
    means that only those are cleaned after. ``limited``: with scope "function", only where memory asks for it.
    ``leaks``: each module ends with a clean-up of its own, after which something is measured.
    """

    def __init__(self, scope: str | None, *, limited: bool = False, leaks: bool = False) -> None:
        self.scope = scope
        self.limited = limited
        self.leaks = leaks
        self.wanted: set[Hashable] = set()
        self._module_owes = False
        self._session_owes = False

    def after_test(
        self, module: Hashable, *, ran: bool, marked: bool, leaving: bool, last: bool, full: bool = False
    ) -> str:
        """Which clean-up is due now, as one of SCOPES or "memory", or "" for none.

        ``ran``: the test was not skipped at set-up. ``marked``: it is not to be cleaned after. ``leaving``: the
        next test is in another module. ``last``: there is no next test. ``full``: memory asks for one.
        """
        if ran:
            self.began(module)
        if last and self._session_owes:
            return self.at_end()
        if leaving and self.leaks:
            return self.at_end()
        each = self._scope_of(module) == "function"
        regular = not (each and self.limited)
        if self._module_owes and regular and each and ran and not marked:
            return "function"
        if self._module_owes and regular and leaving:
            return "module"
        if ran and not marked and full:
            return "memory"
        if not regular:
            self._module_owes = self.leaks  # below the limit no clean-up is owed but the one before a measurement
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
        if due in ("module", "session") or (due and not self.leaks):
            self._module_owes = False

    def _scope_of(self, module: Hashable) -> str | None:
        return "module" if module in self.wanted else self.scope
