"""pytest's side of testkit.pairwise: the marker, the options, thinning at collection, the summary of what ran.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from testkit._announce import announce
from testkit._settings import add_ini, add_option, is_whole, read_ini, resolve
from testkit.errors import PairwiseError
from testkit.pairwise._request import Options, Request, marked_request, read_options, unmarked_request
from testkit.pairwise._rules import Rules, parse_rules

if TYPE_CHECKING:
    from testkit.pairwise._files import Files
    from testkit.pairwise._further import Further, Verdicts
    from testkit.pairwise._metafunc import CaseOf
    from testkit.pairwise._named import Named
    from testkit.pairwise._plan import Known
    from testkit.pairwise._tally import Tally

MARKER = "pairwise"
MARKER_HELP = (
    f"{MARKER}(strength=None, *, full=(), where=None, keep=(), seed=None, effort=None): run a covering array of the "
    "parametrize axes (by default every pair of values that some allowed case holds) instead of the full product."
)
ON_THE_WIRE = "testkit_pairwise"


def pytest_addoption(parser: pytest.Parser) -> None:
    add_option(parser, "--no-pairwise", ini=False, action="store_true", help="run the full product of every function")
    add_option(parser, "--pairwise-strength", metavar="N", help="cover every N-tuple of values (default 2)")
    add_option(parser, "--pairwise-seed", metavar="N|auto", help="another, equally valid choice of cases (default 0)")
    add_option(parser, "--pairwise-effort", metavar="default|high|N", help="moves to spend on fewer cases")
    add_option(parser, "--pairwise-over", metavar="N", help="also thin unmarked functions with more than N cases")
    add_option(
        parser,
        "--pairwise-report",
        action="store_const",
        const="true",
        help="list the owed tuples that did not run, with the reason",
    )
    add_option(
        parser, "--pairwise-fail-under", metavar="PERCENT", help="fail if a smaller share of the owed tuples ran"
    )
    add_option(
        parser,
        "--pairwise-isolate",
        metavar="N",
        help="run up to N further cases of each thinned function that failed, to tell which values are behind it",
    )
    add_option(parser, "--pairwise-engine", metavar="testkit|allpairspy", help="what chooses the cases")
    add_option(parser, "--pairwise-lock", metavar="FILE", help="keep the chosen cases there; then lists only grow")
    add_option(parser, "--pairwise-costs", metavar="FILE|DIR", help="durations by which cheaper cases are preferred")
    add_option(parser, "--pairwise-history", metavar="DIR", help="learn from the run files there what skips and fails")
    rules_help = "also thin unmarked functions: PATTERN [strength=N] [full=NAMES] [where=module:function] [over=N]"
    add_ini(parser, "pairwise_rules", rules_help, "linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    try:
        options = read_options(config)
        rules = parse_rules(read_ini(config, "pairwise_rules"))
        config.stash[THINNING] = thinning = Thinning(config, options, rules)
        if not options.off and options.files:
            thinning.files  # noqa: B018 - read now, so that a bad one is a usage error
    except PairwiseError as error:
        raise pytest.UsageError(str(error)) from error
    if options.rotated:
        config.option.testkit_pairwise_seed = str(options.seed.value)  # which xdist's workers are given


class Thinning:
    """One process's thinned functions, what was ``refused`` at collection, and what fell short at the end: of the
    limit, or a lock file not written."""

    def __init__(self, config: pytest.Config, options: Options, rules: Rules) -> None:
        self.config = config
        self.options = options
        self.rules = rules
        self.tallies: dict[str, Tally] = {}
        self.shortfall = ""
        self.refused: list[str] = []
        self.known: Known = {}
        self.verdicts: Verdicts | None = None
        self.further: Further | None = None
        if options.isolate.value is not None and not hasattr(config, "workerinput"):
            from testkit.pairwise._further import Further

            self.further = Further(options.isolate.value)
            config.pluginmanager.register(self.further)
        self._case_of: dict[str, CaseOf] = {}
        self._named: Named | None = None

    def request(self, definition: pytest.Function) -> Request | None:
        """How to thin this function, or None."""
        if self.options.off:
            return None
        marker = definition.get_closest_marker(MARKER)
        if marker is not None:
            return marked_request(marker, self.options, own=any(mark is marker for mark in definition.own_markers))
        rule = self.rules.of(definition.nodeid) if self.rules else None
        return None if rule is None and self.options.over.value is None else unmarked_request(self.options, rule)

    @cached_property
    def files(self) -> Files:
        """What this run reads beside the code."""
        from testkit.pairwise._files import open_files

        return open_files(self.config, self.options)

    def named(self, definition: pytest.Function) -> set[str]:
        """Cases of this function that the user asked for by node id."""
        if self._named is None:
            from testkit.pairwise._named import Named

            self._named = Named(self.config)
        return self._named.of(definition)

    def add(self, tally: Tally, case_of: CaseOf) -> None:
        if not self.tallies and hasattr(self.config, "workerinput"):
            self.config.pluginmanager.register(ToController(self))
        self.tallies[tally.nodeid] = tally
        self._case_of[tally.nodeid] = case_of

    def collect(self, items: Iterable[pytest.Item]) -> None:
        """Learn which tests are left, under the node ids that they have now."""
        for item in items if self.tallies else ():
            function = f"{getattr(item.parent, 'nodeid', '')}::{getattr(item, 'originalname', '')}"
            if function in self.tallies:
                callspec = getattr(item, "callspec", None)
                case = self._case_of[function](callspec.params) if callspec else None
                self.tallies[function].collect(item.nodeid, case)

    def settle(self, reports: Iterable[object]) -> None:
        """Learn from all reports of the run what became of each case; from a worker's, what was thinned at all."""
        from testkit.pairwise._tally import Tally

        of_tests = [report for report in reports if isinstance(report, pytest.TestReport)]
        for text in next((plan for report in of_tests if (plan := getattr(report, ON_THE_WIRE, None))), ()):
            tally = Tally.from_text(text)
            self.tallies.setdefault(tally.nodeid, tally)
        if self.tallies:
            from testkit.pairwise._further import Verdicts

            self.verdicts = Verdicts(of_tests)
        function_of = {nodeid: tally.nodeid for tally in self.tallies.values() for nodeid in tally.fates}
        found: dict[str, list[tuple[str, str]]] = {function: [] for function in self.tallies}
        for report in of_tests if function_of else ():
            function = function_of.get(report.nodeid)
            fate = fate_of(report) if function else None
            if function and fate:
                found[function].append((report.nodeid, fate))
        for function, fates in found.items():
            self.tallies[function].settle(fates)


THINNING = pytest.StashKey[Thinning]()


# Innermost wrapper: it sees the parametrize calls of every hook, and outer wrappers see its result.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    thinning = metafunc.config.stash[THINNING]
    with refusing(thinning, f"marker of {metafunc.definition.nodeid}"):
        request = thinning.request(metafunc.definition)
    if request is None:
        return (yield)
    from testkit.pairwise._metafunc import Recorder, thin

    recorder = Recorder(metafunc)
    try:
        result = yield
    finally:
        calls = recorder.stop()
    starts = metafunc._calls  # what a hook that is not ours may have made of the function
    with refusing(thinning, request.place_of(metafunc.definition.nodeid)):
        thinned = thin(metafunc, calls, request, thinning.named(metafunc.definition), thinning.known, thinning.files)
    if thinned is not None:
        thinning.add(*thinned)
        if thinning.further is not None:
            thinning.further.watch(thinned[0], calls, request.where, starts)
    return result


@contextmanager
def refusing(thinning: Thinning, place: str) -> Generator[None, None, None]:
    """A PairwiseError inside fails the collection of this file, in two lines and with no traceback."""
    try:
        yield
    except PairwiseError as error:
        error.where = error.where or place
        thinning.refused.append(str(error))
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> None:
    """``pairwise(predicate)`` marks the predicate, which then swallows the test below it: say so."""
    marks = getattr(obj, "pytestmark", None) if inspect.isfunction(obj) else None
    if not marks or not any(getattr(mark, "name", "") == MARKER for mark in marks):
        return
    home = getattr(collector.obj, "__module__", None) or collector.obj.__name__
    elsewhere = getattr(obj, "__module__", home) != home
    names = [name, *(other for other, value in vars(collector.obj).items() if value is obj)]
    if not elsewhere and not any(collector.istestfunction(obj, other) for other in names):
        error = PairwiseError(
            f"the marker stands on {name!r}, which is not a test",
            f"in {collector.nodeid}",
            "give predicates as where=, or name the function as a test",
        )
        collector.config.stash[THINNING].refused.append(str(error))
        raise pytest.fail.Exception(str(error), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Whoever names a function of a refused file is told last that pytest found none: say after it why not."""
    try:
        return (yield)
    except pytest.UsageError as error:
        error.args += tuple(session.config.stash[THINNING].refused)
        raise


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[THINNING].collect(session.items)


class ToController:
    """On an xdist worker: the plan goes out once, with the first report. Registered when something was thinned."""

    def __init__(self, thinning: Thinning) -> None:
        self.thinning = thinning
        self._sent = False

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self, report: object) -> Generator[None, Any, Any]:
        data = yield
        if not self._sent and isinstance(report, pytest.TestReport):
            self._sent = True
            data[ON_THE_WIRE] = [tally.to_text() for tally in self.thinning.tallies.values()]
        return data


# pytest keeps every report for its own summary, so that no hook of ours has to see each test.
@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    thinning = config.stash[THINNING]
    reports = getattr(config.pluginmanager.get_plugin("terminalreporter"), "stats", None)
    if config.option.collectonly or thinning.options.off:
        return
    if hasattr(config, "workerinput"):
        if thinning.options.lock.value is not None:
            thinning.files.send(config.workeroutput)  # type: ignore[attr-defined]  # xdist's
        return
    if thinning.options.lock.value is not None:
        thinning.shortfall = thinning.files.save(thinning.options.lock.source)
        if thinning.shortfall and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if reports is not None:
        thinning.settle(report for listed in reports.values() for report in listed)
        for tally in thinning.tallies.values():
            announce(config, MARKER, tally.nodeid, asdict(tally))
    limit = thinning.options.fail_under
    if is_shard(config):
        return  # the limit is for all shards together
    judged = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    if limit.value is not None and session.exitstatus in judged:
        from testkit.pairwise._tally import shortfall

        if reports is None:
            problem = "the limit needs the terminal reporter, which is switched off or replaced"
            sys.stderr.write(f"{PairwiseError(problem, limit.source, 'leave out one of them')}\n")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        short = shortfall(thinning.tallies.values(), limit.value, limit.source)
        if short:
            thinning.shortfall += f"\n{short}" if thinning.shortfall else short
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    config = terminalreporter.config
    thinning = config.stash[THINNING]
    limit = thinning.options.fail_under
    if thinning.options.off and limit.value is not None:
        text = f"pairwise: off (--no-pairwise), so the limit of {limit.value:g} % ({limit.source}) holds nothing"
        terminalreporter.write_line(text)
    # Files that failed or skipped themselves at import, or were not reached, leave out what some rules are for.
    told = [report for outcome in ("error", "skipped") for report in terminalreporter.stats.get(outcome, ())]
    cut = exitstatus == pytest.ExitCode.INTERRUPTED or any(isinstance(one, pytest.CollectReport) for one in told)
    stale = thinning.rules.unmatched() if is_whole(config) and not cut else []
    if not thinning.tallies and not thinning.shortfall and not stale:
        return
    from testkit.pairwise._tally import summary_lines

    lines = stale + summary_lines(
        thinning.tallies.values(),
        ran=not config.option.collectonly,
        missing=thinning.options.report.value,
        hint=not thinning.shortfall,
        shard=is_shard(config),
    )
    if thinning.options.files or thinning.options.rotated:
        lines += thinning.files.lines(thinning.options, thinning.tallies.values())
    if is_shard(config) and limit.value is not None:
        lines.append(f"the limit of {limit.value:g} % ({limit.source}) is for all shards together:")
        lines.append(f"next: testkit pairwise report DIR --fail-under {limit.value:g}, over their --timing-dir")
    if thinning.verdicts is not None:
        from testkit.pairwise._further import failure_lines

        lines += failure_lines(config, thinning.tallies.values(), thinning.verdicts, thinning.further)
    if lines or thinning.shortfall:
        terminalreporter.section("pairwise", sep="-")
        for line in lines:
            terminalreporter.line(line)
        for line in thinning.shortfall.splitlines():
            terminalreporter.line(line, red=True)


def is_shard(config: pytest.Config) -> bool:
    """Is this run one part of a suite that others run the rest of?"""
    return bool(resolve(config, "--timing-shard", lambda raw, _: str(raw), "").value)


def fate_of(report: pytest.TestReport) -> str | None:
    """What this report says became of a case: ran (its call phase ended), or why it did not; None if nothing."""
    if hasattr(report, "context"):  # one of several subtests; the test's own report follows
        return None
    expected = hasattr(report, "wasxfail")
    reason = str(getattr(report, "wasxfail", "")).removeprefix("reason: ").removeprefix("[NOTRUN] ")
    if report.when == "call":
        if not report.skipped or (expected and not _gave_up(report)):
            return "ran"
        return f"called pytest.xfail: {reason}" if expected else _skip_reason(report)
    if report.when == "setup":
        if report.skipped:
            return f"marked xfail(run=False): {reason}".rstrip(": ") if expected else _skip_reason(report)
        return "set-up failed" if report.failed else "never finished"
    return None if report.when == "teardown" else "its worker crashed"


def _gave_up(report: pytest.TestReport) -> bool:
    """Did the body call ``pytest.xfail``, which ends it like a skip, or did a mark expect the failure?"""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", "")).startswith("_pytest.outcomes.XFailed")


def _skip_reason(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return f"skipped: {reason.removeprefix('Skipped: ')}"
