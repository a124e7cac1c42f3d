"""pytest's side of testkit.kernels: ``--kernels-drift``, which judges every stub of a run.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from testkit import _settings
from testkit._text import counted
from testkit.errors import KernelsError

if TYPE_CHECKING:
    from testkit.kernels._reads import Drift, Run

ACTIONS = ("off", "warn", "fail")
JUDGE = "testkit.kernels.judge"
OUTPUT = "testkit_kernels"


def pytest_addoption(parser: pytest.Parser) -> None:
    drift_help = "what follows when stubs of bare or namespace have drifted: off (default), warn or fail"
    _settings.add_option(parser, "--kernels-drift", metavar="ACTION", help=drift_help)


def pytest_configure(config: pytest.Config) -> None:
    try:
        action = _settings.resolve(config, "--kernels-drift", _settings.one_of(ACTIONS, KernelsError), "off")
    except KernelsError as error:
        raise pytest.UsageError(str(error)) from error
    if action.value == "off":
        return
    from testkit.kernels import _reads  # not for runs that did not ask: it brings the reader of source

    before, _reads.run = _reads.run, _reads.Run()
    config.pluginmanager.register(Judge(_reads.run, action), JUDGE)
    config.add_cleanup(lambda: setattr(_reads, "run", before))


class Judge:
    """Judges at the end, when all tests that share a stub have read it. Registered only when asked for."""

    def __init__(self, run: Run, action: _settings.Setting[str]) -> None:
        self._run, self._action = run, action
        self._unfinished: set[str] = set()  # tests that may not have read all they would
        self._failed = False
        self._missing: set[str] = set()  # workers whose evidence has not arrived

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed
        if report.outcome != "passed" or hasattr(report, "wasxfail"):
            self._unfinished.add(report.nodeid)
        elif report.when == "call":
            self._unfinished.discard(report.nodeid)  # a rerun that passed

    def _drift(self) -> list[Drift]:
        return self._run.drift(self._unfinished, unread=not self._failed and not self._missing)

    # Innermost wrapper: before a worker sends its output, and after all fixtures are gone.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
            if output is not None:
                output[OUTPUT] = self._run.plain()
            elif self._action.value == "fail" and session.exitstatus == 0 and self._drift():
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        self._missing.add(node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        sent = (getattr(node, "workeroutput", None) or {}).get(OUTPUT)
        if sent is not None:
            self._run.merge(sent)
            self._missing.discard(node.gateway.id)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        found = self._drift()
        number = counted(len(self._run.sites), "place")
        if found:
            terminalreporter.section(
                "stub drift", red=self._action.value == "fail", yellow=self._action.value == "warn"
            )
            for drift in found:
                terminalreporter.write_line(str(drift))
        line = f"kernels: {counted(len(found), 'drift')} in {number} that make stubs ({self._action.source})"
        if not self._run.sites:
            line = "kernels: no stub was made, so none was judged"
        if self._missing:
            line += f"; {', '.join(sorted(self._missing))} did not report, so what nothing reads is not judged"
        elif self._failed and self._run.sites:
            line += "; what nothing reads is not judged, since tests failed"
        terminalreporter.write_line(line)
