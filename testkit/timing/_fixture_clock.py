"""What each fixture's own set-up and teardown takes, without the fixtures that it asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from testkit.timing._clock import Nested
from testkit.timing._run import Fixture

FUNCTION = "function"

ALONE = 0.001
"""Seconds from which a fixture of one test gets a row of its own; shorter ones are added up by file."""


class FixtureClock:
    """Follows the fixtures of one process and hands their rows to ``emit``.

    A fixture for more than one test is emitted after its set-up, without ``teardown_start``, and once more as a whole
    after its teardown, with the same ``start``: what is known of it must not be lost when the process dies.
    ``shared`` adds up the own seconds of such fixtures, which are no test's.
    """

    def __init__(self, worker: str, emit: Callable[[Fixture], None]) -> None:
        self.shared = 0.0
        self._worker = worker
        self._emit = emit
        self._nested = Nested()
        self.enter = self._nested.enter
        self._up: dict[Any, Fixture] = {}
        self._ending: dict[Any, int] = {}
        self._short: dict[tuple[str, str], Fixture] = {}
        self._file = ""

    def set_up(self, fixture: Any, depth: int, request: Any, node: str) -> None:
        """The set-up of pytest's ``FixtureDef`` that ``enter`` began is over."""
        begin, own = self._nested.leave(depth)
        if fixture in self._up:  # set up again without a teardown, as by plugins that run tests again
            self._down(self._up.pop(fixture))
        name, scope = fixture.argname, fixture.scope
        param = shown_param(name, request, fixture.ids) if hasattr(request, "param") else ""
        row = self._up[fixture] = Fixture(name, scope, param, node, self._worker, begin, own)
        if scope != FUNCTION:
            self.shared += own
            self._emit(replace(row))

    def tear_down(self, fixture: Any) -> None:
        """The teardown begins: everything that was set up on top of the fixture is gone by now."""
        self._ending[fixture] = self.enter()

    def torn_down(self, fixture: Any) -> None:
        """The teardown is over, if one had begun: pytest 8.0 says so once more for each fixture that asked for it."""
        depth = self._ending.pop(fixture, None)
        if depth is None:
            return
        row = self._up.pop(fixture)
        row.teardown_start, row.teardown = self._nested.leave(depth)
        if row.scope != FUNCTION:
            self.shared += row.teardown
        self._down(row)

    def at_file(self, file: str) -> None:
        """The next fixtures are for tests of ``file``."""
        if file != self._file:
            self._emit_short()
            self._file = file

    def finish(self) -> None:
        """Emit what is left."""
        for row in self._up.values():
            self._down(row)
        self._up.clear()
        self._emit_short()

    def _down(self, row: Fixture) -> None:
        if row.scope != FUNCTION:
            if row.teardown_start is not None:
                self._emit(row)
        elif row.setup + row.teardown >= ALONE:
            self._emit(row)
        else:
            total = self._short.setdefault((row.name, row.param), row)
            if total is not row:
                total.node = self._file
                total.setup += row.setup
                total.teardown += row.teardown
                total.teardown_start = None
                total.count += 1

    def _emit_short(self) -> None:
        for row in self._short.values():
            self._emit(row)
        self._short.clear()


def shown_param(name: str, request: Any, ids: Any) -> str:
    """The parameter of the fixture ``name`` as pytest would write it into an id."""
    value, index = request.param, getattr(request, "param_index", 0)
    try:
        if isinstance(ids, tuple) and index < len(ids) and isinstance(ids[index], str):
            return str(ids[index])
        if value is None or issubclass(type(value), (str, int, float, bool)):
            return str(value)
        called = object.__getattribute__(value, "__name__")  # a __getattr__ of its class may do anything
        if isinstance(called, str):
            return called
    except Exception:  # noqa: BLE001 - a parameter is the suite's, and so is what its __str__ raises
        pass
    return f"{name}{index}"
