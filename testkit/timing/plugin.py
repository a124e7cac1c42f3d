"""pytest's side of testkit.timing: options, the moments that are measured, the run file, budgets, slow tests.

Nothing here acts unless one of the options or ini keys is there.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import platform
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from _pytest import python as _python

from testkit import _settings
from testkit.errors import TimingError
from testkit.timing import hooks
from testkit.timing._clock import Clock

if TYPE_CHECKING:
    from testkit.timing._budget import Budget
    from testkit.timing._division import Division
    from testkit.timing._record import Recorder
    from testkit.timing._run import Whole
    from testkit.timing._wishes import Wishes

PER_TEST, GATHERING, SLOW = "testkit.timing.per_test", "testkit.timing.gathering", "testkit.timing.slow"
DIVIDING = "testkit.timing.dividing"

DIVIDES = ("--timing-shard", "--timing-plan", "--timing-order")

# Options with which pytest shows or collects and runs no test; --setup-plan sets the last one too.
NO_TEST_RUNS = ("collectonly", "showfixtures", "show_fixtures_per_test", "setuponly")

# parametrize makes a fixture of each argument, which does nothing.
OF_A_PARAMETER = getattr(_python, "get_direct_param_fixture_func", None)

WISHES = pytest.StashKey["Wishes"]()
WHOLE = pytest.StashKey["Whole"]()
"""All that was collected, set by whoever leaves out a part of it that runs elsewhere, as a shard does."""


def pytest_addoption(parser: pytest.Parser) -> None:
    add = _settings.add_option
    add(parser, "--timing-dir", metavar="DIR", help="record where the time of this run goes, in a new file in DIR")
    slow_help = "say which tests run longer than that, while they run"
    add(parser, "--timing-slow", metavar="SECONDS", help=slow_help)
    budget_help = "fail what takes longer: test=30s,file=5m,run=20m, or some of these"
    add(parser, "--timing-budget", metavar="LIMITS", action="append", help=budget_help)
    shard_help = "run one part of the collected tests: 2/4, or auto where the CI system says which"
    add(parser, "--timing-shard", metavar="I/N|auto", help=shard_help)
    add(parser, "--timing-plan", metavar="FILE", help="divide as testkit timing plan did, or refuse to run")
    history_help = "run files of the past, by whose times tests are divided and ordered"
    add(parser, "--timing-history", metavar="DIR", help=history_help)
    add(parser, "--timing-order", metavar="slowest", help="the slowest tests first, under xdist's --dist load")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hooks)


def pytest_configure(config: pytest.Config) -> None:
    from testkit.timing._wishes import read_wishes

    try:
        wishes = config.stash[WISHES] = read_wishes(config)
        _register_division(config, wishes)
    except TimingError as error:
        raise pytest.UsageError(str(error)) from error
    if not any(config.getoption(name, False) for name in NO_TEST_RUNS):
        _register(config, wishes)


def _register_division(config: pytest.Config, wishes: Wishes) -> None:
    """Where tests are left out or ordered, and where it is recorded which of them stay together."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    asked = (_settings.resolve(config, option, lambda *_: True, False).value for option in DIVIDES)
    if worker is None and not (wishes.folder or any(asked)):
        return
    from testkit.timing._division import TASK, Division
    from testkit.timing._nodes import naming
    from testkit.timing._task import Task, read_task

    if worker is None:
        task = read_task(config, wishes.folder)
        wishes.shard = task.shard
    elif TASK in worker:
        task = Task.from_text(worker[TASK])
    else:
        return
    division = Division(task, naming(config), worker)
    config.pluginmanager.register(Dividing(config, division), DIVIDING)
    if worker is None and distributes(config):
        config.pluginmanager.register(division)
        if task.order and config.option.maxschedchunk is None:
            config.option.maxschedchunk = 1  # larger chunks give one worker all the slowest


def distributes(config: pytest.Config) -> bool:
    """Whether xdist is here. Others' optional hooks of its names exist without it, but have no specification."""
    return getattr(getattr(config.hook, "pytest_configure_node", None), "spec", None) is not None


def _register(config: pytest.Config, wishes: Wishes) -> None:
    """What was asked for, in the processes that need it."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    register = config.pluginmanager.register
    if wishes.slow is not None and worker is None:
        register(Slow(wishes.slow), SLOW)
    if not wishes.measured:
        return
    from testkit.timing._record import Recorder
    from testkit.timing._run import MAIN
    from testkit.timing._wire import ON_THE_WIRE

    if worker is not None and ON_THE_WIRE not in worker:
        return  # the controller has another testkit, or none
    elsewhere = worker is not None and worker[ON_THE_WIRE] != platform.node()
    recorder = Recorder(MAIN if worker is None else worker["workerid"], elsewhere=elsewhere)
    config.add_cleanup(recorder.finish)
    register(PerTest(config, recorder), PER_TEST)
    if worker is None:
        register(Gathering(config, recorder, wishes), GATHERING)
    else:
        register(ToController(recorder))
    if wishes.budget is not None and wishes.budget.test is not None:
        register(OfATest(recorder, wishes.budget))


class PerTest:
    """Measures what happens in this process. Registered as a plugin only when asked for."""

    def __init__(self, config: pytest.Config, recorder: Recorder) -> None:
        from testkit.timing._nodes import naming

        self._recorder = recorder
        self._name = naming(config)
        self._folders: set[str] = set()
        recorder.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self._recorder.begin_test(self._name(item.nodeid), getattr(item, "execution_count", 1))
        return (yield from self._phase(0))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        return (yield from self._phase(1))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        return (yield from self._phase(2))

    def _phase(self, phase: int) -> Generator[None, object, object]:
        letter = "f"
        self._recorder.begin_phase()
        try:
            result = yield
            letter = "p"
        except pytest.skip.Exception:
            letter = "s"
            raise
        finally:
            self._recorder.end_phase(phase, letter)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        if fixturedef.func is OF_A_PARAMETER:
            return (yield)
        node = self._name(request.node.nodeid)
        depth = self._recorder.fixtures.enter()
        try:
            return (yield)
        finally:
            self._recorder.fixture_is_up(fixturedef, depth, request, node)

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self._recorder.fixture_is_down(fixturedef)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, object, object]:
        file = collector.nodeid.partition("::")[0]
        if isinstance(collector, pytest.Module) and hasattr(collector, "_getobj"):
            collector._getobj = self._recorder.importing(file, collector._getobj)  # type: ignore[method-assign]
        elif "::" not in collector.nodeid and not isinstance(collector, pytest.File):
            self._folders.add(file)
        depth = self._recorder.begin_collecting()
        try:
            return (yield)
        finally:
            self._recorder.end_collecting(depth, file)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        whole = session.config.stash.get(WHOLE, None)
        self._recorder.collected(self._folders, whole)
        gathering: Gathering | None = session.config.pluginmanager.get_plugin(GATHERING)
        if gathering is not None:
            gathering.collected([self._name(item.nodeid) for item in session.items], whole)

    def pytest_testkit_record(self, kind: str, nodeid: str, data: Any) -> None:
        self._recorder.announce(kind, self._name(nodeid), data)


class Dividing:
    """Leaves out what other shards run, and orders what is left. Registered only when asked for."""

    def __init__(self, config: pytest.Config, division: Division) -> None:
        self._config = config
        self._division = division
        self._on_worker = hasattr(config, "workerinput")

    @pytest.hookimpl(wrapper=True, trylast=True)  # after all that the suite leaves out itself
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        result = yield
        stops = session.testsfailed and not self._config.getoption("continue_on_collection_errors")
        if stops or not (items or self._division.task.plan):
            return result  # pytest says itself what is wrong
        try:
            whole = self._division.divide(items, self._config.hook)
        except TimingError as error:
            if not self._on_worker:
                raise pytest.UsageError(str(error)) from error
            # Raised on a worker it would not reach the user; with no test to run, xdist ends by itself.
            items.clear()
            self._division.refused = str(error)
            session.shouldfail = error.headline
            return result
        if whole is not None:
            self._config.stash[WHOLE] = whole
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._on_worker:
            self._division.send(self._config.workeroutput)  # type: ignore[attr-defined]  # xdist's
        elif self._division.refused:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        elif self._division.empty and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._division.lines:
            terminalreporter.write_line(line)
        for line in self._division.refused.splitlines():
            terminalreporter.write_line(line, red=True)


class ToController:
    """On a worker: rows travel with the reports, so that a crash loses no more than the test it hits."""

    def __init__(self, recorder: Recorder) -> None:
        from testkit.timing._wire import ON_THE_WIRE

        self._recorder = recorder
        self._attribute = ON_THE_WIRE

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._recorder.outbox:
            setattr(report, self._attribute, self._recorder.packed())  # pytest sends every attribute of a report

    @pytest.hookimpl(wrapper=True, trylast=True)  # after the last teardown, before xdist sends the output
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self._recorder.finish()
            session.config.workeroutput[self._attribute] = self._recorder.packed()  # type: ignore[attr-defined]  # xdist's


class Gathering:
    """Where the run is controlled: brings rows and reports together, in a run file if there is to be one."""

    def __init__(self, config: pytest.Config, recorder: Recorder, wishes: Wishes) -> None:
        from testkit.timing._budget import Budget
        from testkit.timing._gather import Gatherer
        from testkit.timing._nodes import Nodes, naming

        self._config = config
        self._wishes = wishes
        self._recorder = recorder
        self._name = naming(config)
        self._gatherer = Gatherer(Clock.now(), Clock.epoch(), wishes.budget or Budget())
        self._over: list[str] = []
        if distributes(config):
            nodes = Nodes(self._gatherer, self._name, sharded=bool(wishes.shard))
            config.pluginmanager.register(nodes)

    def pytest_sessionstart(self) -> None:
        if self._wishes.folder is not None:
            argv = [str(word) for word in self._config.invocation_params.args]
            try:
                self._gatherer.open(self._wishes.folder, self._wishes.shard, argv, pytest.__version__)
            except TimingError as error:
                raise pytest.UsageError(str(error)) from error

    def collected(self, ids: list[str], whole: Whole | None) -> None:
        """This process collected, and will run, ``ids``."""
        self._gatherer.main_is_ready()
        self._gatherer.collected(ids, whole)

    def pytest_runtest_logstart(self) -> None:
        self._gatherer.begins(self._recorder.worker)  # of other processes xdist does not say which one it is

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        worker = self._gatherer.take_from(report)
        if self._recorder.outbox:
            self._gatherer.take(self._recorder.worker, self._recorder.drain())
        result = yield  # other plugins may say now that the test is run again
        self._gatherer.report(worker, self._name(report.nodeid), report)
        return result

    @pytest.hookimpl(wrapper=True, trylast=True)  # after pytest's own, which tears down what is left
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self._recorder.finish()
            self._gatherer.take(self._recorder.worker, self._recorder.drain())
            self._over = [str(error) for error in self._gatherer.settle()]
            if self._over and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._gatherer.close(int(session.exitstatus))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._gatherer.lines(self._config.invocation_params.dir):
            terminalreporter.write_line(line)
        for text in self._over:
            for line in text.splitlines():
                terminalreporter.write_line(line, red=True)

    def pytest_unconfigure(self) -> None:
        self._gatherer.abandon()  # a run that never came to its end


class OfATest:
    """Fails a test that passed and took longer than a test may. Registered only where there is such a budget."""

    def __init__(self, recorder: Recorder, budget: Budget) -> None:
        self._recorder = recorder
        self._budget = budget

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        test = self._recorder.current
        if call.when == "call" and test is not None and report.passed and not hasattr(report, "wasxfail"):
            error = self._budget.over(item.nodeid, "test", test.setup + test.call)
            if error is not None:
                failed = pytest.CallInfo.from_call(partial(pytest.fail, str(error), pytrace=False), when="call")
                assert failed.excinfo is not None
                report.outcome = "failed"
                report.longrepr = item.repr_failure(failed.excinfo)
        return report


class Slow:
    """Says which tests run for long. Registered only when asked for, where the terminal is."""

    def __init__(self, seconds: float) -> None:
        from testkit.timing._slow import SlowWatch

        self._watch = SlowWatch(seconds)

    @pytest.hookimpl(trylast=True)  # pytest captures nothing at this moment
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        from testkit.timing._slow import PastCapture

        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            terminal = PastCapture(reporter)
            session.config.add_cleanup(terminal.close)
            self._watch.start(terminal.say)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._watch.begin(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._watch.end(nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        self._watch.end(crashitem)  # xdist says no end of such a test

    def pytest_unconfigure(self) -> None:
        self._watch.stop()
