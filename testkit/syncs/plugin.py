"""pytest's side of testkit.syncs: the marker ``no_gpu_sync``, ``--syncs`` and the census of a run.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testkit import _settings
from testkit._announce import announce
from testkit._marked import marked
from testkit.errors import KitWarning, SyncsError
from testkit.syncs._run import VARIABLE, Run

if TYPE_CHECKING:  # what watches tests is imported by runs that have something to watch
    from testkit.syncs._watch import Outcome, Terms

MARKER = "no_gpu_sync"
MARKER_HELP = (
    f"{MARKER}(at_most=0): the test fails if the host waits for the device more often than that in its body; "
    "all places are named, each with what to write instead."
)
OPTION, JSON = "--syncs", "--syncs-json"
ACTIONS = ("off", "warn", "error", "census")
PER_TEST = "testkit.syncs.per_test"
OUTPUT = "testkit_syncs"


def pytest_addoption(parser: pytest.Parser) -> None:
    help = (
        "what follows when a no_gpu_sync test waits too often: error (default; given, it also fails tests in which no "
        "wait could be seen), warn, or off, which also switches forbid() and allow() off; census: list all waits of "
        "the run, and change no verdict"
    )
    _settings.add_option(parser, OPTION, metavar="ACTION", help=help)
    json_help = "where --syncs=census writes its JSON (default: testkit/syncs.json in pytest's cache)"
    _settings.add_option(parser, JSON, metavar="FILE", help=json_help)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    try:
        action = _settings.resolve(config, OPTION, _settings.one_of(ACTIONS, SyncsError), "error")
        path = _settings.resolve(config, JSON, _path, "")
        if path.value and action.value != "census" and path.source == f"from {JSON}":
            raise SyncsError(f"{path.value} would hold nothing", path.source, f"give {OPTION}=census as well")
        if os.environ.get(VARIABLE) == "off" and action.source != "default" and action.value != "off":
            problem = f"{OPTION}={action.value} contradicts {VARIABLE}=off"
            raise SyncsError(problem, f"{action.source}; the environment", "leave one of them out")
    except SyncsError as error:
        raise pytest.UsageError(str(error)) from error
    run = config.stash[RUN] = Run(action, path.value, str(config.rootpath))
    run.census = run.census and not config.getoption("collectonly", False)
    if action.value == "off":
        _switch_off(config)
    elif run.census:
        run.path = run.path or _default_path(config)
        _watch_tests(config, run)


def _switch_off(config: pytest.Config) -> None:
    """Also in processes that tests start, until this run ends."""
    from testkit.syncs import _switch

    was, before = _switch.switch(False), os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "off"

    def back() -> None:
        _switch.switch(was)
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before

    config.add_cleanup(back)


def _default_path(config: pytest.Config) -> str:
    """In pytest's cache; "" where that is switched off."""
    cache = getattr(config, "cache", None)
    return "" if cache is None else str(cache.mkdir("testkit") / "syncs.json")


def _path(raw: str, source: str) -> str:
    if Path(raw).is_dir():
        raise SyncsError(f"{raw!r} is a folder", source, "name a file")
    return raw


RUN = pytest.StashKey[Run]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """The per-test hooks are for runs with a marker of ours in them, or with a census."""
    if marked(session.items, {MARKER}):
        _watch_tests(session.config, session.config.stash[RUN])


def _watch_tests(config: pytest.Config, run: Run) -> None:
    if not config.pluginmanager.has_plugin(PER_TEST):
        config.pluginmanager.register(PerTest(run), PER_TEST)


class PerTest:
    """Watches the bodies of tests. Registered as a plugin only when a marker or the census asks for it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        # Made by the process that leaves something in it; most runs have none.
        self._folder = os.path.join(tempfile.gettempdir(), f"testkit-syncs-{uuid.uuid4().hex}")
        self._problems: list[str] = []

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        _budget(item)  # a marker that cannot be used fails its test, whatever --syncs says

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        budget = _budget(item)
        if self._run.off:
            self._run.unjudged += [item.nodeid] if budget is not None else []
            return (yield)
        if budget is None and not self._run.census:
            return (yield)
        from testkit.syncs._watch import OverBudget, Unverified

        outcomes: list[Outcome] = []
        try:
            with _watched(item, self._terms(budget), outcomes.append):
                result = yield
        except (OverBudget, Unverified) as error:  # no line of a traceback says more
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        except Exception as error:
            outcomes += self._from_elsewhere()
            if verdict := _of_another_process(outcomes, error):
                raise pytest.fail.Exception(verdict, pytrace=False) from None
            raise
        finally:
            outcomes += self._from_elsewhere()
            if outcomes:
                self._tell(item, outcomes, budget is not None)
        if not outcomes:
            fix = "make it a plain test function or method, or take the marker away"
            raise SyncsError(f"something else ran {item.nodeid}, and nobody watched it", f"marker {MARKER}", fix)
        return result

    def _terms(self, budget: int | None) -> Terms:
        from testkit.syncs._watch import Terms

        action = self._run.action
        return Terms(
            at_most=budget,
            warns=action.value == "warn",
            census=self._run.census,
            strict=action.value == "error" and action.source != "default",
            root=self._run.root,
            folder=self._folder,
        )

    def _from_elsewhere(self) -> list[Outcome]:
        from testkit.syncs._watch import collected

        return collected(self._folder)

    def _tell(self, item: pytest.Item, outcomes: list[Outcome], is_marked: bool) -> None:
        rows = self._run.add(item.nodeid, outcomes, is_marked)
        if rows:
            announce(item.config, "syncs", item.nodeid, {"waits": sum(row["count"] for row in rows), "sites": rows})
        if self._run.action.value == "warn":
            for outcome in outcomes:
                if outcome.over:
                    item.warn(KitWarning(outcome.over))

    # Innermost wrapper: after all tests, before a worker sends its output.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
            if output is not None:
                output[OUTPUT] = self._run.plain()
            elif self._run.census:
                problem = self._run.write() if self._run.path else ""
                self._problems += [problem] if problem else []
                if session.exitstatus == 0 and (problem or self._run.saw_nothing()):
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._run.census:
            return
        terminalreporter.section("syncs census", red=self._run.saw_nothing())
        for line in [*self._run.census_lines(), *(f"syncs: {problem}" for problem in self._problems)]:
            terminalreporter.write_line(line)


def _budget(item: pytest.Item) -> int | None:
    """What the marker tolerates; None without one. A marker that cannot be used fails the test."""
    mark = item.get_closest_marker(MARKER)
    if mark is None:
        return None
    where, fix = f"from marker {MARKER}", f"write {MARKER}(at_most=N) with a whole number from 0 on"
    strange = sorted(set(mark.kwargs) - {"at_most"})
    values = [*mark.args, *mark.kwargs.values()]
    error = None
    if strange:
        error = SyncsError(f"there is no argument {strange[0]!r}", where, fix)
    elif len(values) > 1:
        error = SyncsError(f"at_most is given {len(values)} times: {values}", where, fix)
    elif values and (type(values[0]) is not int or values[0] < 0):
        error = SyncsError(f"at_most is {values[0]!r}", where, fix)
    elif not isinstance(item, pytest.Function):
        error = SyncsError(f"marker {MARKER} is on a {type(item).__name__}", where, "mark a test function or method")
    if error is not None:
        raise pytest.fail.Exception(str(error), pytrace=False)
    return values[0] if values else 0


def _of_another_process(outcomes: list[Outcome], error: Exception) -> str:
    """What the watch in another process said, if that alone failed the test there; "" otherwise.

    ``error`` is told by the processes plugin and wraps the same words in those about the process.
    """
    if len(outcomes) != 1 or not outcomes[0].finished or not outcomes[0].over:
        return ""
    return outcomes[0].over if outcomes[0].over.partition("\n")[0] in str(error) else ""


class _watched:
    """The body of ``item`` is watched when it is called within; an item without a body of its own is watched whole."""

    def __init__(self, item: pytest.Item, terms: Terms, tell: Any) -> None:
        from testkit.syncs import _watch

        self._item: Any = item
        self._body = item.obj if isinstance(item, pytest.Function) else None
        if self._body is not None:
            self._watched = _watch.watched(self._body, terms, tell)
        else:
            self._whole = _watch.watch(terms, _watch.Telling(tell))

    def __enter__(self) -> None:
        if self._body is not None:
            self._item.obj = self._watched
        else:
            self._whole.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._body is not None:
            self._item.obj = self._body
        else:
            self._whole.__exit__(*error)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    node.config.stash[RUN].missing.add(node.gateway.id)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    run = node.config.stash[RUN]
    output = getattr(node, "workeroutput", None)
    if output is not None and node.gateway.id in run.missing:  # an interrupted worker goes down twice
        run.missing.discard(node.gateway.id)
        if OUTPUT in output:  # a worker without a marked test has nothing to say
            run.merge(output[OUTPUT])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for line in config.stash[RUN].lines():
        terminalreporter.write_line(line)
