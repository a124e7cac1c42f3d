"""pytest's side of testkit.gpus: the marker ``gpus``, and each worker's part of the GPUs and of the cores.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator
from traceback import walk_tb
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from testkit import _settings
from testkit._announce import announce
from testkit._loaded import loaded
from testkit._marked import marked
from testkit.errors import GpusError, KitWarning
from testkit.gpus import _asked, _marker
from testkit.gpus._asked import CACHES, MEMORY, MISSING, OVER, USE, Run
from testkit.gpus._devices import allowed
from testkit.gpus._marker import Gpu, missing, shares

if TYPE_CHECKING:  # what shares devices and memory out is imported by the runs that ask for it
    from testkit.gpus._keeper import Current
    from testkit.gpus._pinning import Chosen

MARKER = "gpus"
MARKER_HELP = (
    f"{MARKER}(count=1, memory=None, exclusive=False): skip the test, or fail it with --gpus-missing=fail, where fewer "
    "than count GPUs are allowed; with ranks, each rank sees count of its own. It starts when memory, as '20GiB', is "
    "free on each, and with exclusive when nobody else is there."
)
RANKS = "ranks"
PER_TEST, PINNING, CACHING = "testkit.gpus.per_test", "testkit.gpus.pinning", "testkit.gpus.caching"
ORDERING = "testkit.gpus.ordering"
WORKER = "testkit_gpus"
"""What a worker is told in its ``workerinput``, and tells in its ``workeroutput``."""
DIST = "testkit_gpus_dist"
RUN_AGAIN = ("loadscope", "loadfile", "loadgroup")
"""With these xdist runs the test again that it takes for crashed; with others it does not."""
NO_TEST_RUNS = ("collectonly", "setupplan")
NO_ARGUMENTS = SimpleNamespace(args=(), kwargs={})
LEAST = 0.05
"""Seconds from which a wait is worth a word."""
LOST_HERE = "this process can use no GPU any more"
LEFT = 70
"""Exit code of a worker that lost its device."""
LOST = "testkit_gpus_lost"
"""Attribute of a report: the error after which the worker can use no device any more."""


def pytest_addoption(parser: pytest.Parser) -> None:
    add = _settings.add_option
    use_help = "give each worker of pytest-xdist its part of the allowed GPUs: auto (all), or some of them, as 0,1"
    add(parser, USE, metavar="auto|LIST", help=use_help)
    memory_help = f"GPU memory that a test is taken to need, as 2GiB: {USE} with -n auto starts no more workers"
    add(parser, MEMORY, metavar="SIZE", help=memory_help)
    missing_help = "what follows where a marked test needs more GPUs than there are: skip (default) or fail"
    add(parser, MISSING, metavar="ACTION", help=missing_help)
    over_help = (
        "what follows where a test takes more GPU memory than its budget: warn (default), or fail and be held to it"
    )
    add(parser, OVER, metavar="ACTION", help=over_help)
    caches_help = (
        "where compiled kernels are kept: shared (default), worker (each its own), or fresh (for this run alone)"
    )
    add(parser, CACHES, metavar="MODE", help=caches_help)


RUN = pytest.StashKey[Run]()
TORCH_CAME_FIRST = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """A conftest may import torch, which reads the variables then. Options are known, and not in ``option`` yet."""
    early_config.stash[TORCH_CAME_FIRST] = loaded("torch") is not None
    # a worker has its variables already; what it is told comes with pytest_configure
    if "PYTEST_XDIST_WORKER" not in os.environ:
        given = early_config.known_args_namespace
        _settle(early_config, lambda name, default=None: getattr(given, name, default))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    run = _settle(config)
    if hasattr(config, "workerinput"):
        _begin_worker(config)
        _order_tests(config, config.workerinput)
        return
    if run.chosen is not None:
        config.pluginmanager.register(Pinning(config, run, run.chosen), PINNING)
    if run.caches:
        _keep_caches(config, run)


def _settle(config: pytest.Config, getoption: Any = None) -> Run:
    """Read the settings once, as early as somebody asks."""
    if RUN not in config.stash:
        try:
            config.stash[RUN] = _asked.read(config, getoption)
        except GpusError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[RUN]


def _keep_caches(config: pytest.Config, run: Run) -> None:
    from testkit.gpus._caches import Caches, OfWorkers

    caches = Caches(run.caches, dict(os.environ))
    config.add_cleanup(caches.close)
    _asked.set_until_end(config, caches.variables("main"))
    config.pluginmanager.register(caches, CACHING)
    if hasattr(config.hook, "pytest_xdist_setupnodes"):
        config.pluginmanager.register(OfWorkers(config, caches))


def _begin_worker(config: pytest.Config) -> None:
    told: dict[str, Any] | None = config.workerinput.get(WORKER)  # type: ignore[attr-defined]
    if told is None:
        return
    if told["threads"] and config.stash.get(TORCH_CAME_FIRST, False):
        from testkit.gpus._threads import hold_torch

        hold_torch(told["threads"])
    config.stash[RUN].part = f", {told['part']}"
    before, _marker.beyond = _marker.beyond, (told["beyond"], told["said"])
    config.add_cleanup(lambda: setattr(_marker, "beyond", before))


def _order_tests(config: pytest.Config, told: dict[str, Any]) -> None:
    from testkit.gpus._order import SECONDS

    if SECONDS in told:
        config.pluginmanager.register(Ordering(told), ORDERING)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    run = _settle(config)
    if run.chosen is None or not run.chosen.devices or config.option.numprocesses != "auto":
        return None
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):  # the user's own number, which xdist reads
        return None
    from testkit.gpus import _auto, _threads
    from testkit.gpus._budget import expected_memory

    memory = expected_memory(config, run.chosen.devices, run.memory)
    auto = _auto.workers(run.chosen.devices, _threads.cores(), memory)
    run.slots = auto.slots
    run.auto = f"gpus: -n auto is {auto.count}: {auto.why}"
    return auto.count


class Pinning:
    """Gives the workers their parts. Registered as a plugin only where --gpus-use or its ini key is set."""

    def __init__(self, config: pytest.Config, run: Run, chosen: Chosen) -> None:
        from testkit.gpus._parts import Parts

        self._parts = Parts(config, run, chosen)

    def pytest_report_header(self) -> list[str]:
        return self._parts.header()

    # Variables in a spec are set as soon as the worker's process runs: before it loads pytest, plugins or conftests.
    # First, since xdist's own line on a terminal is open after it.
    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: list[Any]) -> None:
        lines = self._parts.assign(specs)
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and config.option.verbose >= 0 and not reporter.no_header:
            for line in lines:
                reporter.write_line(line)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        told = self._parts.told(node.gateway.spec)
        if told is not None:
            node.workerinput[WORKER] = told


class Ordering:
    """Starts the longest tests first. Registered as a plugin only in workers that are told what tests take."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after all that chooses and orders, or workers would differ
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, object, object]:
        result = yield
        from testkit.gpus._order import order_on_worker

        order_on_worker(self._told, items)
        return result


def pytest_collection_finish(session: pytest.Session) -> None:
    """The per-test hooks are for runs with a marker or a fixture of ours in them, or with --gpus-use."""
    config, run = session.config, session.config.stash[RUN]
    if config.pluginmanager.has_plugin(PER_TEST) or any(config.getoption(name, False) for name in NO_TEST_RUNS):
        return
    if marked(session.items, {MARKER}) or any(map(_has_fixture, session.items)) or (run.everything and allowed()):
        config.pluginmanager.register(PerTest(config, run), PER_TEST)


def _has_fixture(item: pytest.Item) -> bool:
    """Whether it asks for our ``gpu``: suites have fixtures of that name, too."""
    info = getattr(item, "_fixtureinfo", None)
    found = info.name2fixturedefs.get("gpu", ()) if info is not None else ()
    return any(getattr(one.func, "__module__", "") == __name__ for one in found[-1:])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    from testkit.gpus._replaced import outlive

    node.workerinput[DIST] = node.config.option.dist  # in the worker it is always "no"
    outlive(node, LOST)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = (getattr(node, "workeroutput", None) or {}).pop(WORKER, None)
    if told is not None:
        run = node.config.stash[RUN]
        run.waits += [tuple(wait) for wait in told["waits"]]
        run.notes += [note for note in told["notes"] if note not in run.notes]


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any) -> None:
    from testkit.gpus._replaced import told_before

    if note := told_before(crashitem, report, LOST):
        report.node.config.stash[RUN].notes.append(note)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in _asked.summary(config.stash[RUN]):
        terminalreporter.write_line(line)


class PerTest:
    """Sees to the devices and the memory of tests. Registered as a plugin only where some need it."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        from testkit.gpus._keeper import Keeper, read

        self._config, self._run = config, run
        told: dict[str, Any] = getattr(config, "workerinput", {}).get(WORKER) or {}
        self._keeper = Keeper(read(config, told.get("budgets"), run.memory), everything=run.everything)
        self._test: Current | None = None
        self._leaves = False
        config.add_cleanup(self._keeper.close)

    # Outside of the test, so that no clock of it runs: pytest's begin with its set-up.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        from testkit.gpus._keeper import is_skipped

        if self._leaves:
            os._exit(LEFT)
        marks = item.get_closest_marker(MARKER), item.get_closest_marker(RANKS)
        params = getattr(getattr(item, "callspec", None), "params", {})
        asks = not is_skipped(item)
        self._test = test = self._keeper.begin(item.nodeid, *marks, params, fixture=_has_fixture(item), asks=asks)
        if test.turn is not None and test.turn.waited >= LEAST:
            self._run.waits.append((test.turn.waited, item.nodeid))
            announce(self._config, "gpus", item.nodeid, test.turn.told())
        try:
            result = yield
        finally:
            self._test = None
            self._run.notes += self._keeper.end(test)
        if test.lost:
            self._leave(item, test)
        return result

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        test = self._test
        mark = item.get_closest_marker(MARKER) or (NO_ARGUMENTS if _has_fixture(item) else None)
        # testkit.processes gives each rank its share
        if mark is not None and item.get_closest_marker(RANKS) is None:
            shares(mark, 1, here=True)
        if test is not None and test.too_large:
            missing(test.too_large)
        if test is not None and isinstance(test.problem, GpusError):
            raise pytest.fail.Exception(str(test.problem), pytrace=False)
        if test is not None and test.problem is not None:
            raise test.problem

    # The second hook of this kind here; pytest looks only at names that begin so.
    @pytest.hookimpl(wrapper=True, specname="pytest_runtest_setup")
    def pytest_runtest_setup_explained(self, item: pytest.Item) -> Generator[None, object, object]:
        """Say more about a skip of ours, whoever set the test up, or make a failure of it."""
        try:
            return (yield)
        except pytest.skip.Exception as skip:
            if not any(frame.f_code is missing.__code__ for frame, _ in walk_tb(skip.__traceback__)):
                raise
            ranks = item.get_closest_marker(RANKS) is not None  # which are not held to the worker's part
            text = f"{skip.msg}{'' if ranks else self._run.part}"
        if self._run.fail:
            fix = f"use a machine that has them, or fewer workers, or leave {MISSING}=fail out"
            raise pytest.fail.Exception(str(GpusError(text, fix=fix)), pytrace=False)
        raise pytest.skip.Exception(text, _use_item_location=True)  # else all such skips are at this line of ours

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        test = self._test
        if test is None or test.turn is None:
            return (yield)
        from testkit.gpus._after import held_to, over

        with held_to(test.turn, strictly=self._run.strict):
            result = yield
            text = over(test.turn)
        if text and self._run.strict:
            fix = f"give its marker more memory, or leave {OVER}=fail out"
            raise pytest.fail.Exception(str(GpusError(text, item.nodeid, fix)), pytrace=False)
        if text:
            warnings.warn(KitWarning(f"gpus: {item.nodeid} {text}"), stacklevel=2)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        from testkit.gpus._after import lost

        test = self._test
        try:
            result = yield
        finally:
            error = lost()
            if test is not None:
                test.lost = error
        if error and test is not None and not test.failed:  # a kernel that nobody waited for
            fix = "rerun this test alone, with CUDA_LAUNCH_BLOCKING=1"
            raise pytest.fail.Exception(str(GpusError(f"{LOST_HERE}: {error}", item.nodeid, fix)), pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        from testkit.gpus._after import insist

        report = yield
        test = self._test
        if test is None:
            return report
        insist(report, call.excinfo and call.excinfo.value)
        # anew with each set-up: a test may be run again, and what failed before must not hide what is lost now
        test.failed = report.failed or (test.failed and call.when != "setup")
        if report.failed and call.excinfo is not None and (text := self._keeper.blamed(test, call.excinfo.value)):
            report.sections.append(("gpus", text))
        if call.when == "teardown" and test.lost:
            setattr(report, LOST, test.lost)  # xdist sends every attribute of a report
        return report

    def _leave(self, item: pytest.Item, test: Current) -> None:
        """After a test that has lost the device: what comes next in this process would fail, and be blamed."""
        told = getattr(self._config, "workerinput", None)
        if told is None:
            item.session.shouldfail = f"gpus: {LOST_HERE} in {item.nodeid} ({test.lost}); with -n 1 others would go on"
            return
        if (coverage := loaded("coverage")) and (current := coverage.Coverage.current()):
            current.save()
        self._leaves = told.get(DIST) in RUN_AGAIN  # as the next one begins
        if not self._leaves:
            os._exit(LEFT)  # before xdist hears that this one is over: it takes it for crashed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for device in self._keeper.unread:
            self._run.notes.append(f"gpus: memory of GPU {device} cannot be read, tests on it did not wait for any")
        if hasattr(self._config, "workerinput"):
            told = {"waits": [list(wait) for wait in self._run.waits], "notes": self._run.notes}
            self._config.workeroutput[WORKER] = told  # type: ignore[attr-defined]


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Gpu:
    """The GPU that this test was granted: ``gpu.device`` for torch, ``gpu.index``, and ``gpu.memory`` in bytes.

    Which is also marked ``gpus``, with ``memory="20GiB"``, waits until so much is free there.
    """
    per_test: PerTest | None = request.config.pluginmanager.get_plugin(PER_TEST)
    test: Current | None = per_test._test if per_test is not None else None
    if test is None or test.gpu is None:
        raise GpusError("gpu was asked for when the test had begun", request.node.nodeid, "name it in its arguments")
    return test.gpu
