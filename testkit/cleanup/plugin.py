"""pytest's side of testkit.cleanup: settings, the marker, and the moments at which a clean-up may run.

Nothing here acts on a test unless clean-up was asked for by an option, an ini key or the imported fixture.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from testkit import _settings
from testkit._announce import announce
from testkit.cleanup import _asked, _look_up, _memory, _now, _release, _steps, _wrap
from testkit.cleanup._figures import Figures
from testkit.cleanup._schedule import Schedule
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
    wrap_help = (
        "[module:]name of the suite's own clean-up fixture, or of a callable of a conftest: put off to the scope's end"
    )
    _settings.add_ini(parser, "cleanup_wrap", wrap_help)
    before_help = "fixtures and files (patterns) whose tests need a clean start, one a line"
    _settings.add_ini(parser, "cleanup_before", before_help, "linelist")
    memory_help = "clean up after a test where so much GPU memory is still allocated, such as 2GiB"
    _settings.add_ini(parser, "cleanup_when_gpu_memory", memory_help)
    _settings.add_ini(parser, "cleanup_leaks", "off (default), warn or fail where a module leaves GPU memory allocated")
    _settings.add_ini(parser, "cleanup_leak_limit", "what a module may leave, such as 64MiB (default 256MiB)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    try:
        asked = _asked.read(config)
    except CleanupError as error:
        raise pytest.UsageError(str(error)) from error
    cleaner = Cleaner(asked)
    config.stash[CLEANER] = cleaner
    _now.begin(asked.steps or _steps.DEFAULT, cleaner.figures)
    config.add_cleanup(_now.end)
    if asked.scope is not None:
        _watch_tests(config)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Whoever imported the fixture did so by now, and its first test must find the per-test hooks in place."""
    if FIXTURES in sys.modules:
        _watch_tests(session.config)
    if session.config.pluginmanager.has_plugin(PER_TEST):
        session.config.stash[CLEANER].look_up(session)


def _watch_tests(config: pytest.Config) -> None:
    """Register the cleaner, once, unless --setup-only or --setup-plan (which sets the former) lets no test run."""
    if not config.getoption("setuponly", False) and not config.pluginmanager.has_plugin(PER_TEST):
        cleaner = config.stash[CLEANER]
        config.pluginmanager.register(cleaner, PER_TEST)
        if cleaner.wraps is not None:
            config.pluginmanager.register(Putter(cleaner.wraps), f"{PER_TEST}.wrap")


class Putter:
    """Puts off what ``cleanup_wrap`` names. Registered only where it is set."""

    def __init__(self, wraps: _wrap.Wraps) -> None:
        self.wraps = wraps

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, object, object]:
        if not self.wraps.means(fixturedef):
            return (yield)
        arguments = {name: request.getfixturevalue(name) for name in fixturedef.argnames}
        refusal = self.wraps.refusal(fixturedef, request, arguments)
        if refusal is not None:
            fixturedef._finalizers.clear()  # pytest calls them only for what was set up, and expects none next time
            pytest.fail(str(refusal), pytrace=False)
        result = yield
        wanted = request.node.get_closest_marker(MARKER) is None and _wrap.decided(arguments)
        self.wraps.take(fixturedef, fixturedef._finalizers, wanted)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        self.wraps.during_teardown = True
        try:
            return (yield)
        finally:
            self.wraps.during_teardown = False

    # A run that was cut short tears down what is left here, before the cleaner's own hook, the innermost one.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        self.wraps.during_teardown, self.wraps.late = True, False
        try:
            return (yield)
        finally:
            self.wraps.during_teardown = False


class Cleaner:
    """Cleans up when it is due. Registered as a plugin, under the name PER_TEST, only when asked for."""

    def __init__(self, asked: _asked.Asked) -> None:
        self.asked = asked
        self.figures = Figures()
        measured = asked.leaks != "off"
        self.schedule = Schedule(asked.scope, limited=asked.memory is not None, leaks=measured)
        self.wraps = None if asked.target is None else _wrap.Wraps(asked.target)
        self.memory = _memory.Watch(asked.memory, asked.leak_limit if measured else None)
        self.workers: dict[str, bool] = {}  # of a distributed run: whether its figures have arrived
        self._ran = False
        self._dirty = False  # whether a test ran since the last clean-up that did something
        self._module: object = None
        self._entering = False  # whether no test of this module has been set up yet
        self._refusal: CleanupError | None = None
        self._deselected: set[Any] = set()  # collectors of tests that were
        self._items: list[pytest.Item] = []  # all since the last clean-up
        self._last: pytest.Item | None = None
        self._failure: _release.Failure | None = None
        self._interrupt: BaseException | None = None

    def look_up(self, session: pytest.Session) -> None:
        """Find what the settings name, now that conftests and modules are there; put a named callable off."""
        config = session.config
        whole = getattr(config, "workerinput", {}).get(WHOLE, _settings.is_whole(config))
        try:
            unknown = _look_up.unknown(session, self.asked, self.wraps, self._deselected)
            if unknown and whole:  # else the name may be of another folder
                raise unknown[0]
            notes = [*unknown, *_look_up.unmatched(session, self.asked, self._deselected)] if whole else unknown
            self.figures.notes.update({f"{error.problem} of this run ({error.where})": 1 for error in notes})
        except CleanupError as error:
            self._refusal = error  # each test fails with it: an error from here would be a worker's internal error

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """What ``-k`` leaves out is there all the same."""
        self._deselected.update(item.parent for item in items)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give a test its clean start. Not ``tryfirst``: a test that is skipped by its marks needs none."""
        if self._refusal is not None:
            pytest.fail(str(self._refusal), pytrace=False)
        entering, self._entering = self._entering, False
        if self._dirty and _asked.needs_clean_start(item, self.asked.before, entering):
            self._items.pop()  # nothing of this test is to be released
            try:
                problems = self._clean(item.config, "entry", f"before {item.nodeid}")
            finally:
                self._items.append(item)
            if problems:
                pytest.fail("\n".join(problems), pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "setup":
            # pytest sets up a method under @unittest.skip, and unittest then runs nothing of it
            skipped = report.skipped or getattr(getattr(item, "obj", None), "__unittest_skip__", False)
            self._ran = self._ran or not skipped
            if self.wraps is not None and not skipped:
                self.wraps.ran += 1
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
        if module is not self._module:
            self._module, self._entering = module, True
            self.memory.enter(module)
        if _asks(item):  # its body never runs where a fixture before it fails
            self.schedule.wanted.add(module)
        try:
            result = yield
        except BaseException as error:
            self.schedule.began(module)
            self._interrupt = error  # pytest_sessionfinish cleans up
            raise
        if self._ran:
            self._dirty = True
            self.figures.see("tests")
        elif self.wraps is not None and self.wraps.owes:
            self.schedule.began(module)
            self._dirty = True
        session = item.session
        ending = bool(session.shouldfail or session.shouldstop)
        last = nextitem is None and not ending  # when ending, fixtures may outlive this test, until the session ends
        leaving = last or (nextitem is not None and module_of(nextitem) is not module)
        if leaving and self.memory.more():  # also where fixtures took it and every test was skipped
            self.schedule.began(module)
        due = self.schedule.after_test(
            module,
            ran=self._ran,
            marked=item.get_closest_marker(MARKER) is not None,
            leaving=leaving,
            last=last,
            full=self._ran and self.memory.full(),
        )
        if due:
            self._report(self._clean(session.config, due, f"after {item.nodeid}"))
        return result

    def finish(self, session: pytest.Session) -> None:
        """What an interrupted run or clean-up still owes, and the last failure for ``pdb.pm()``."""
        interrupt, self._interrupt = self._interrupt, None
        _release.release_interrupt(interrupt)
        del interrupt
        due = self.schedule.at_end()
        if self.wraps is not None and (self.wraps.late or self.wraps.calls()):
            due = due or "module"
        try:
            problems = self._clean(session.config, due, "at the end of the run") if due else []
            self._report(problems)
            if problems and session.exitstatus == 0:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        except KeyboardInterrupt:  # raised from here it would cost the run its summary
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if self.wraps is not None:
            self.wraps.drop()
        if self.memory.gpu:
            self.figures.see("gpu")
        if self._failure is not None:
            self._failure.restore()

    def _clean(self, config: pytest.Config, reason: str, when: str) -> list[str]:
        """Release what the tests hold and run the steps. Returns what went wrong, as texts for a report."""
        self._failure = _release.release_failure() or self._failure
        for finished in self._items:
            _release.release_item(finished)
        self._items.clear()
        start = reason == "entry"
        if not start:  # where this test's own records are gathered already
            _release.release_records(config.pluginmanager.get_plugin("logging-plugin"))
        steps, works = self.asked.steps, bool(self.asked.steps)
        if self.wraps is not None:
            works = works or start or self.wraps.wanted()
            self.wraps.owes = False  # where Ctrl-C ends this clean-up, the schedule owes it still
            steps = (*self.wraps.steps(clean_start=start), *(steps or (_steps.DEFAULT if start else ())))
        outcomes = self._run(config, reason, steps) if steps else []
        self.schedule.cleaned(reason)
        self._dirty = self._dirty and not works
        self.memory.cleaned()
        problems = []
        if (error := _steps.problem(outcomes)) is not None:
            problems.append(f"{error.headline}\n{_steps.evidence(outcomes, when)}\n\nnext: {error.fix}")
        if reason == "module":
            problems += self._leaks()
        return problems

    def _run(self, config: pytest.Config, reason: str, steps: tuple[_steps.Step, ...]) -> list[_steps.Outcome]:
        try:
            outcomes = self.figures.clean(reason, steps)
        except KeyboardInterrupt as interrupt:
            self._interrupt = interrupt  # owed still: pytest_sessionfinish cleans up
            raise
        for outcome in outcomes:
            nodeid = self._last.nodeid if self._last is not None else ""
            announce(config, "cleanup", nodeid, {"step": outcome.step.name, "seconds": outcome.seconds})
        return outcomes

    def _leaks(self) -> list[str]:
        """What the module that was cleaned after leaves: into the summary, and an error if it is to fail."""
        left, module = self.memory.leave(), self._last.nodeid.partition("::")[0] if self._last is not None else ""
        if not left:
            return []
        self.figures.leaks[module] = self.figures.leaks.get(module, 0) + left
        if self.asked.leaks != "fail":
            return []
        fix = "free it when the module ends, or raise cleanup_leak_limit"
        problem = f"{module} left {_memory.shown(left)} of GPU memory allocated"
        return [str(CleanupError(problem, "from ini cleanup_leaks", fix))]

    def _report(self, problems: list[str]) -> None:
        """Each problem as an error at the tear-down of the last test."""
        item = self._last
        for text in problems if item is not None else ():
            assert item is not None
            call = pytest.CallInfo.from_call(functools.partial(pytest.fail, text, pytrace=False), when="teardown")
            report = pytest.TestReport.from_item_and_call(item, call)
            report.sections = []  # captured output of the test, which its own reports show
            item.ihook.pytest_runtest_logreport(report=report)


CLEANER = pytest.StashKey[Cleaner]()
PER_TEST = "testkit.cleanup.per_test"
FIXTURES = "testkit.cleanup.fixtures"
WHOLE = "testkit_cleanup_whole"


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
def pytest_configure_node(node: Any) -> None:
    node.workerinput[WHOLE] = _settings.is_whole(node.config)


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
    elif asked:
        assert cleaner.schedule.scope is not None
        lines = cleaner.figures.whole(cleaner.schedule.scope, cleaner.asked.memory, cleaner.asked.leaks != "off")
    for line in lines:
        terminalreporter.write_line(line)
