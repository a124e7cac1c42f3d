"""pytest's side of testkit.cleanup: settings, the marker, and the moments at which a clean-up may run.

Nothing here acts on a test unless clean-up was asked for by an option, an ini key or the imported fixture.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

from testkit import _settings
from testkit._announce import announce
from testkit.cleanup import _now, _release, _steps
from testkit.cleanup._figures import Figures
from testkit.cleanup._schedule import Schedule, parse_scope
from testkit.errors import CleanupError

MARKER = "skip_global_cleanup"
MARKER_HELP = (
    f"{MARKER}: no clean-up after this test; one follows when the run leaves its module. "
    "Does nothing where no clean-up is configured."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    _settings.add_option(
        parser,
        "--cleanup-scope",
        metavar="SCOPE",
        help="clean up after each function (default), module or session; without cleanup_steps the steps are gc, torch",
    )
    steps_help = "clean-up steps, one a line: gc, torch or package.module:function"
    _settings.add_ini(parser, "cleanup_steps", steps_help, "linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    no_steps: tuple[_steps.Step, ...] = ()
    try:
        scope = _settings.resolve(config, "--cleanup-scope", parse_scope, "function")
        steps = _settings.resolve(config, "--cleanup-steps", _steps.parse, no_steps)
    except CleanupError as error:
        raise pytest.UsageError(str(error)) from error
    asked = steps.value or scope.source != "default"
    cleaner = Cleaner(steps.value or _steps.DEFAULT, scope.value if asked else None)
    config.stash[CLEANER] = cleaner
    _now.begin(cleaner.steps, cleaner.figures)
    config.add_cleanup(_now.end)
    if asked:
        _watch_tests(config)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Whoever imported the fixture did so by now, and its first test must find the per-test hooks in place."""
    if FIXTURES in sys.modules:
        _watch_tests(session.config)


def _watch_tests(config: pytest.Config) -> None:
    """Register the cleaner, once, unless --setup-only or --setup-plan (which sets the former) lets no test run."""
    if not config.getoption("setuponly", False) and not config.pluginmanager.has_plugin(PER_TEST):
        config.pluginmanager.register(config.stash[CLEANER], PER_TEST)


class Cleaner:
    """Cleans up when it is due. Registered as a plugin, under the name PER_TEST, only when asked for."""

    def __init__(self, steps: tuple[_steps.Step, ...], scope: str | None) -> None:
        self.steps = steps
        self.figures = Figures()
        self.schedule = Schedule(scope)
        self.workers: dict[str, bool] = {}  # of a distributed run: whether its figures have arrived
        self._ran = False
        self._items: list[pytest.Item] = []  # all since the last clean-up
        self._last: pytest.Item | None = None
        self._failure: _release.Failure | None = None
        self._interrupt: BaseException | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "setup":
            # pytest sets up a method under @unittest.skip, and unittest then runs nothing of it
            skipped = report.skipped or getattr(getattr(item, "obj", None), "__unittest_skip__", False)
            self._ran = self._ran or not skipped
        elif call.when == "call":
            self._failure = None  # pytest dropped the one before when this test began
        return report

    # Outermost and after the yield: any earlier and pytest still holds the last test's arguments.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        self._ran = False
        self._items.append(item)
        self._last = item
        module = module_of(item)
        if _asks(item):  # its body never runs where a fixture before it fails
            self.schedule.wanted.add(module)
        try:
            result = yield
        except BaseException as error:
            self.schedule.began(module)
            self._interrupt = error  # pytest_sessionfinish cleans up
            raise
        session = item.session
        ending = bool(session.shouldfail or session.shouldstop)
        last = nextitem is None and not ending  # when ending, fixtures may outlive this test, until the session ends
        due = self.schedule.after_test(
            module,
            ran=self._ran,
            marked=item.get_closest_marker(MARKER) is not None,
            leaving=last or (nextitem is not None and module_of(nextitem) is not module),
            last=last,
        )
        if due:
            self._clean(session.config, due, f"after {item.nodeid}")
        return result

    def finish(self, session: pytest.Session) -> None:
        """What an interrupted run or clean-up still owes, and the last failure for ``pdb.pm()``."""
        interrupt, self._interrupt = self._interrupt, None
        _release.release_interrupt(interrupt)
        del interrupt
        due = self.schedule.at_end()
        try:
            if due and not self._clean(session.config, due, "at the end of the run") and session.exitstatus == 0:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        except KeyboardInterrupt:  # raised from here it would cost the run its summary
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if self._failure is not None:
            self._failure.restore()

    def _clean(self, config: pytest.Config, reason: str, when: str) -> bool:
        """Release what the tests hold, run the steps, and report a failed one as an error of the last test."""
        self._failure = _release.release_failure() or self._failure
        for finished in self._items:
            _release.release_item(finished)
        self._items.clear()
        _release.release_records(config.pluginmanager.get_plugin("logging-plugin"))
        try:
            outcomes = self.figures.clean(reason, self.steps)
        except KeyboardInterrupt as interrupt:
            self._interrupt = interrupt  # owed still: pytest_sessionfinish cleans up
            raise
        for outcome in outcomes:
            nodeid = self._last.nodeid if self._last is not None else ""
            announce(config, "cleanup", nodeid, {"step": outcome.step.name, "seconds": outcome.seconds})
        self.schedule.cleaned(reason)
        error = _steps.problem(outcomes)
        item = self._last
        if error is None or item is None:
            return error is None
        text = f"{error.headline}\n{_steps.evidence(outcomes, when)}\n\nnext: {error.fix}"
        call = pytest.CallInfo.from_call(lambda: pytest.fail(text, pytrace=False), when="teardown")
        report = pytest.TestReport.from_item_and_call(item, call)
        report.sections = []  # captured output of the test, which its own reports show
        item.ihook.pytest_runtest_logreport(report=report)
        return False


CLEANER = pytest.StashKey[Cleaner]()
PER_TEST = "testkit.cleanup.per_test"
FIXTURES = "testkit.cleanup.fixtures"


def module_of(item: pytest.Item) -> pytest.File | pytest.Session:
    """The collector that stands for the item's module; files that are not Python count as modules too."""
    return item.getparent(pytest.File) or item.session


def _asks(item: pytest.Item) -> bool:
    """Whether the imported fixture, under any name, is among those that ``item`` is set up with."""
    info: Any = getattr(item, "_fixtureinfo", None)
    if info is None or FIXTURES not in sys.modules:
        return False
    for name in info.names_closure:
        for definition in reversed(info.name2fixturedefs.get(name, ())):
            if getattr(definition.func, "__module__", "") == FIXTURES:
                return True
            if name not in definition.argnames:
                break  # it replaces those before it
    return False


# Innermost wrapper: after pytest tore down what was left, before the summary and before a worker sends its figures.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        config = session.config
        cleaner = config.stash[CLEANER]
        if config.pluginmanager.has_plugin(PER_TEST):
            cleaner.finish(session)
        output: dict[str, Any] | None = getattr(config, "workeroutput", None)
        if output is not None:
            output["testkit_cleanup"] = cleaner.figures.plain()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    node.config.stash[CLEANER].workers[node.gateway.id] = False


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    cleaner = node.config.stash[CLEANER]
    figures = (getattr(node, "workeroutput", None) or {}).get("testkit_cleanup")
    if figures is not None and not cleaner.workers.get(node.gateway.id):  # an interrupted worker goes down twice
        cleaner.figures.merge(figures)
        cleaner.workers[node.gateway.id] = True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    cleaner = config.stash[CLEANER]
    lines = cleaner.figures.lines()
    asked = cleaner.schedule.scope is not None and not config.option.collectonly
    missing = [name for name, arrived in cleaner.workers.items() if not arrived]
    if missing and (lines or asked):
        lines.append(f"cleanup: figures of {', '.join(missing)} are missing (not finished)")
    elif asked and not lines:
        lines = [f"cleanup: no clean-up ({cleaner.schedule.scope}), since no test ran"]
    for line in lines:
        terminalreporter.write_line(line)
