"""pytest's side of testkit.processes: markers ``ranks`` and ``fresh_process``, options, fixture ``server``.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from testkit import _settings
from testkit._marked import marked
from testkit.errors import KitError, ProcessesError
from testkit.processes import _session

if TYPE_CHECKING:  # what runs ranks and servers is imported by the tests that have some
    from testkit.processes._group import Terms
    from testkit.processes._servers import Servers

__tracebackhide__ = True  # pytest shows the message, not our frames

RANKS, FRESH = "ranks", "fresh_process"
RANKS_HELP = (
    "ranks(world_size, *, timeout=60.0, startup_timeout=120.0, start='spawn', env=None, ladder=(5.0, 5.0, 5.0)): "
    "run the test in that many processes at once; it gets rank, world_size, rendezvous and channel if it names them."
)
FRESH_HELP = "fresh_process(timeout=60.0, env=None): run the test in a fresh, spawned process."
DEFAULTS: dict[str, Any] = {"startup_timeout": 120.0, "env": None, "ladder": (5.0, 5.0, 5.0)}
PER_TEST = "testkit.processes.per_test"
GIVEN_LATER = "given by the rank"


def pytest_addoption(parser: pytest.Parser) -> None:
    add = _settings.add_option
    add(parser, "--ranks-timeout", metavar="SECONDS", help="time limit of ranks and fresh_process tests (default 60)")
    start_help = "how their processes start: spawn (default), or preload, forked from a helper"
    add(parser, "--ranks-start", metavar="START", help=start_help)
    leaks_help = "what follows when ranks that passed left something: off, warn (default) or fail"
    add(parser, "--ranks-leaks", metavar="ACTION", help=leaks_help)
    preload_help = 'modules that the helper of start="preload" imports once, one a line'
    _settings.add_ini(parser, "ranks_preload", preload_help, "linelist")


def pytest_configure(config: pytest.Config) -> None:
    for line in (RANKS_HELP, FRESH_HELP):
        config.addinivalue_line("markers", line)
    try:
        timeout = _settings.resolve(config, "--ranks-timeout", _seconds, 60.0).value
        start = _settings.resolve(
            config, "--ranks-start", _settings.one_of(_session.STARTS, ProcessesError), "spawn"
        ).value
        leaks = _settings.resolve(
            config, "--ranks-leaks", _settings.one_of(_session.LEAKS, ProcessesError), "warn"
        ).value
        none: tuple[str, ...] = ()
        preload = _settings.resolve(config, "--ranks-preload", _modules, none).value
    except ProcessesError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[SETTINGS] = {**DEFAULTS, "timeout": timeout, "start": start}
    before = _session.current
    # pytest too: a rewritten assert needs it, and most bodies do
    _session.current = _session.Settings(leaks, ("pytest", *preload))
    config.add_cleanup(lambda: _session.end(before))


def _seconds(raw: str, source: str) -> float:
    try:
        seconds = float(raw)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ProcessesError(f"timeout is {raw!r}", source, "give seconds above 0")
    return seconds


def _modules(raw: list[str], source: str) -> tuple[str, ...]:
    for name in raw:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ProcessesError(f"{name!r} is no name of a module", source, "give one dotted name a line")
    return tuple(raw)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The per-test hooks are for runs with a marker of ours in them."""
    manager = session.config.pluginmanager
    if not manager.has_plugin(PER_TEST) and marked(session.items, {RANKS, FRESH}):
        manager.register(PerTest(session.config.stash[SETTINGS]), PER_TEST)


class PerTest:
    """Runs marked tests elsewhere. Registered as a plugin only when a marker was seen."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._terms: dict[pytest.Item, Terms] = {}
        self._ran: set[pytest.Item] = set()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:  # after skip marks, before fixtures
        from testkit.processes._rank_main import OFFERED

        mark = _mark(item)
        if mark is None:
            return
        terms = self._terms[item] = _terms(item, mark, self._settings)
        self._ran.discard(item)
        if not terms.alone:  # pytest sets up no fixture for what is there already
            funcargs: dict[str, Any] = item.funcargs  # type: ignore[attr-defined]  # a Function: _terms saw to it
            funcargs.update({name: GIVEN_LATER for name in OFFERED if name not in _params(item)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        from testkit.processes._group import Group
        from testkit.processes._rank_main import OFFERED

        terms = self._terms.get(pyfuncitem)
        if terms is None:
            return None
        self._ran.add(pyfuncitem)
        names: tuple[str, ...] = pyfuncitem._fixtureinfo.argnames
        later = () if terms.alone else OFFERED
        values = {name: pyfuncitem.funcargs[name] for name in names if name not in later}
        attempt = getattr(pyfuncitem, "execution_count", 1)  # pytest-rerunfailures counts it
        where = f"attempt {attempt}" if attempt > 1 else ""
        Group(terms, pyfuncitem.obj, (), values, where, "fixture", _by_value(pyfuncitem)).run()
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        result = yield
        if item in self._terms and item not in self._ran:
            mark = "a fresh_process" if self._terms[item].alone else "a ranks"
            problem = f"{item.nodeid} is {mark} test, and something else ran it, here in pytest's process"
            raise ProcessesError(problem, "", "make it a plain test function or method, neither async nor of unittest")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        shows = report.failed or hasattr(report, "wasxfail")
        if item in self._terms and shows and call.excinfo and isinstance(call.excinfo.value, KitError):
            # Our own frames say nothing that the message does not.
            error = call.excinfo.value
            shown: Any = call.excinfo.getrepr(style="value", chain=False)
            if crash := getattr(shown, "reprcrash", None):
                crash.message = str(error)
            report.longrepr = shown
        if call.when == "teardown":
            self._terms.pop(item, None)
        return report


SETTINGS = pytest.StashKey[Mapping[str, Any]]()


def _mark(item: pytest.Item) -> pytest.Mark | None:
    marks = [mark for name in (RANKS, FRESH) if (mark := item.get_closest_marker(name)) is not None]
    if len(marks) > 1:
        _refuse("the test is marked ranks and fresh_process", "markers", "leave one out; ranks are fresh processes")
    return marks[0] if marks else None


def _refuse(problem: str, where: str, fix: str) -> None:
    pytest.fail(str(ProcessesError(problem, where, fix)), pytrace=False)


def _terms(item: pytest.Item, mark: pytest.Mark, settings: Mapping[str, Any]) -> Terms:
    from testkit.processes._ranks import checked_terms

    where = f"from marker {mark.name}"
    if not isinstance(item, pytest.Function) or hasattr(item, "_testcase") or inspect.iscoroutinefunction(item.obj):
        what = "an async function" if isinstance(item, pytest.Function) else f"a {type(item).__name__}"
        what = "a method of a TestCase" if hasattr(item, "_testcase") else what
        _refuse(f"marker {mark.name} is on {what}", where, "mark a plain test function or method")
    try:
        allowed = {"timeout", "env"} if mark.name == FRESH else {"timeout", "start", *DEFAULTS}
        if strange := sorted(set(mark.kwargs) - allowed - {"world_size"}):
            fix = f"known are {', '.join(sorted(allowed))}"
            raise ProcessesError(f"{strange[0]} is not known", where, fix)
        chosen = {**settings, **mark.kwargs}
        if mark.name == FRESH:
            if mark.args or "world_size" in mark.kwargs:
                raise ProcessesError(f"{mark.args or mark.kwargs} was given", where, "give timeout, env or nothing")
            # Never from the helper: what the test is for may be the very import that the helper has done.
            terms = replace(checked_terms(1, where=where, **{**chosen, "start": "spawn"}), alone=True)
            return terms if item.get_closest_marker("gpus") is None else replace(terms, started=_hold)
        size = _world_size(item, mark, chosen.pop("world_size", None), where)
        terms = checked_terms(size, where=where, **chosen)
    except ProcessesError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    return _on_gpus(item, terms)


def _world_size(item: pytest.Item, mark: pytest.Mark, named: object, where: str) -> object:
    """The marker's, or the parameter ``world_size`` of the test."""
    from testkit.processes._rank_main import OFFERED

    params = _params(item)
    for name in OFFERED:
        if name in params and name != "world_size":
            problem = f"{name} is parametrized, and each rank has its own"
            raise ProcessesError(problem, where, "give the axis another name")
        if name not in params and name in item._fixtureinfo.name2fixturedefs:  # type: ignore[attr-defined]
            problem = f"{name} is a fixture of this suite, and each rank has its own"
            raise ProcessesError(problem, where, "give the fixture another name")
    given = [*mark.args, *([] if named is None else [named])]
    given += [params["world_size"]] if "world_size" in params else []
    if not given:
        raise ProcessesError("no world size is given", where, "write ranks(2), or parametrize world_size")
    if len(given) > 1:
        problem = f"the world size is given more than once: {', '.join(map(repr, given))}"
        raise ProcessesError(problem, where, "give it in the marker or as a parameter")
    return given[0]


def _on_gpus(item: pytest.Item, terms: Terms) -> Terms:
    """In a test marked ``gpus`` each rank sees GPUs of its own, and has the test's memory; too few GPUs skip it."""
    mark = item.get_closest_marker("gpus")
    if mark is None:
        return terms
    from testkit.gpus import shares

    return replace(terms, rank_env=shares(mark, terms.world_size), started=_hold)


def _hold(pid: int) -> None:
    from testkit.gpus import hold

    hold(pid)


def _params(item: pytest.Item) -> Mapping[str, Any]:
    params: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return params


def _by_value(item: pytest.Function) -> list[ModuleType]:
    """Modules that a rank could not import under the same name, or not as pytest did: they travel by value."""
    from testkit.processes._travel import importable

    plugins = item.config.pluginmanager.get_plugins()
    conftests = [p for p in plugins if isinstance(p, ModuleType) and (p.__file__ or "").endswith("conftest.py")]
    modules = [item.module, *conftests]
    if item.config.getoption("importmode") == "importlib":
        root = f"{item.config.rootpath}{os.sep}"
        inside = [m for m in list(sys.modules.values()) if str(getattr(m, "__file__", "")).startswith(root)]
        modules += [module for module in inside if not importable(module.__name__)]
    return modules


class _Outcome:
    """Registered while a test has servers: did its call fail?"""

    def __init__(self, node: pytest.Item) -> None:
        self._node, self.failed = node, False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed and report.nodeid == self._node.nodeid


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Start servers for this test: ``server(program, ready="/health")``, a command line or a function of yours.

    Each is ready when returned, and ends with the test. Takes what ``testkit.processes.Server`` takes.
    """
    from testkit.processes._servers import Servers

    servers, outcome = Servers(), _Outcome(request.node)
    manager = request.config.pluginmanager
    manager.register(outcome)
    try:
        yield servers
    finally:
        manager.unregister(outcome)
        sys.stdout.write(servers.tails())  # pytest shows it if the test failed
        servers.close(failed=outcome.failed)
