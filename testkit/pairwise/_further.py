"""What failed and what passed, and further cases of a function that failed, run in the same session to tell why.

The loop over the tests is pytest's own, with the further cases of a function right after its last collected one, so
that fixtures of wider scopes live on. pytest tears down by the test that comes next: where it is sure that a further
case follows, that one is named, else the next collected test. Then fixtures may be set up once more, never too few
torn down. session, items and reports come as they are.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from testkit._text import counted
from testkit.pairwise._model import Row
from testkit.pairwise._suspects import find_suspects, finding_lines, smallest_failing

if TYPE_CHECKING:
    from testkit.pairwise._metafunc import Call
    from testkit.pairwise._model import Model
    from testkit.pairwise._suspects import Finding
    from testkit.pairwise._tally import Tally

PHASES = ("call", "setup", "teardown")
PASSED = "passed"
SKIPPED = "skipped"
SUGGESTED = 12
"""Further cases that are suggested: enough for nine in ten faults of two and three values (benchmarks/isolation.py)."""


class Verdicts:
    """What the reports say of each node id: passed, or the phase that failed. A skip, an expected failure: neither."""

    def __init__(self, reports: Iterable[Any] = ()) -> None:
        self._of: dict[str, str] = {}
        for report in reports:
            self.add(report)

    def add(self, report: Any) -> None:
        if report.failed:
            if self._of.get(report.nodeid, PASSED) == PASSED:
                # a crashed worker's report has no phase of pytest's
                self._of[report.nodeid] = report.when if report.when in PHASES else "call"
        elif report.passed and report.when == "call" and not hasattr(report, "context"):
            self._of.setdefault(report.nodeid, PASSED)

    def failed(self, nodeid: str) -> bool:
        return self._of.get(nodeid, PASSED) != PASSED

    def rows(self, tests: Iterable[tuple[str, Sequence[int]]]) -> tuple[list[Row], list[Row], list[Row]]:
        """Cases that passed, that failed, and others, of tests as (node id, case).

        Failed is what failed in the first of the phases call, set-up and teardown that any of these tests failed in:
        a set-up that failed says nothing about the values where bodies failed too.
        """
        verdicts = [(list(row), self._of.get(nodeid)) for nodeid, row in tests]
        phase = next((phase for phase in PHASES if any(verdict == phase for _, verdict in verdicts)), "")
        failed = [row for row, verdict in verdicts if verdict == phase]
        known = set(map(tuple, failed))
        passed = [row for row, verdict in verdicts if verdict == PASSED and tuple(row) not in known]
        return passed, failed, [row for row, verdict in verdicts if verdict not in (phase, PASSED)]


class Function:
    """One thinned function: how its cases are made, and the further ones that were (node id -> case).

    ``starts``: what another plugin made of the function before, such as a case for each of its own values.
    """

    def __init__(self, tally: Tally, calls: Sequence[Call], where: Any, starts: Sequence[Any], limit: int) -> None:
        self.tally = tally
        self.calls = calls
        self.where = where
        self.start = next(iter(starts), None)
        # Which of several starts a case failed with is not among the axes, so a further case with one may mislead.
        self.several = len(starts) > 1
        self.left = 0 if self.several else limit
        self.further: dict[str, Row] = {}
        self._items: dict[tuple[int, ...], Any] = {}
        self._model: Model | None = None

    def next_row(self, verdicts: Verdicts, row: Row | None = None, outcome: str = "") -> Row | None:
        """The case to run next, also if ``row`` comes to this ``outcome``."""
        passed, failed, others = verdicts.rows(cases_of(self.tally, self.further))
        if row is not None:
            {PASSED: passed, "failed": failed}.get(outcome, others).append(row)
        if not failed or not passed:
            return None
        from testkit.pairwise._isolate import next_case

        return next_case(self._space(), passed, failed, others)

    def _space(self) -> Model:
        if self._model is None:
            from testkit.pairwise._plan import make_model

            axes = [call.axis for call in self.calls if call.thinned]
            self._model = make_model(axes, strength=1, full=(), where=self.where)
        return self._model

    def item(self, row: Row, sibling: Any) -> Any:
        """The test of this case as pytest makes it, beside one that it collected."""
        if tuple(row) not in self._items:
            callspec = self._callspec(row)
            item = type(sibling).from_parent(
                sibling.parent,
                name=f"{sibling.originalname}[{callspec.id}]",
                callspec=callspec,
                fixtureinfo=sibling._fixtureinfo,
                keywords={callspec.id: True},
                originalname=sibling.originalname,
            )
            item.ihook.pytest_itemcollected(item=item)
            self._items[tuple(row)] = item
        return self._items[tuple(row)]

    def _callspec(self, row: Row) -> Any:
        from testkit.pairwise._metafunc import joined

        levels = iter(row)
        alone = []
        for call in self.calls:
            position = 0
            if call.thinned:
                first = call.axis.first_positions[next(levels)]
                same = [at for at, other in enumerate(call.axis.first_position_of) if other == first]
                position = next((at for at in same if at not in call.idle), first)
            alone.append(call.alone[position])
        return reduce(joined, alone, self.start)


class Further:
    """Registered with pytest where ``--pairwise-isolate`` asks for further cases."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.functions: dict[str, Function] = {}
        self.verdicts = Verdicts()

    def watch(self, tally: Tally, calls: Sequence[Call], where: Any, starts: Sequence[Any]) -> None:
        """A function was thinned; ``starts``: what pytest knew of its cases before."""
        self.functions[tally.nodeid] = Function(tally, calls, where, starts, self.limit)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.verdicts.add(report)

    # Not pytest's loop with cases after it: by then everything is torn down, and would be set up again for each.
    def pytest_runtestloop(self, session: Any) -> bool | None:
        option = session.config.option
        collected = not session.testsfailed or option.continue_on_collection_errors
        if (
            not self.functions
            or option.collectonly
            or not collected
            or session.config.pluginmanager.hasplugin("dsession")
        ):
            return None
        last = {function_of(item): number for number, item in enumerate(session.items)}
        for number, item in enumerate(session.items):
            following = session.items[number + 1] if number + 1 < len(session.items) else None
            function = self.functions.get(function_of(item))
            if function is None or last[function_of(item)] != number:
                run(session, item, following)
                continue
            run(session, item, self._sure(function, item, None) or following)
            self._run_further(session, function, item, following)
        return True

    def _run_further(self, session: Any, function: Function, sibling: Any, following: Any) -> None:
        while function.left > 0:
            row = function.next_row(self.verdicts)
            if row is None:
                return
            function.left -= 1
            item = function.item(row, sibling)
            function.further[item.nodeid] = row
            session.testscollected += 1
            run(session, item, self._sure(function, sibling, row) or following)

    def _sure(self, function: Function, sibling: Any, row: Row | None) -> Any:
        """A further case, if one will follow the test that runs now, whatever becomes of it."""
        if function.left <= 0:
            return None
        if row is None:
            row = next((list(case) for nodeid, case in cases_of(function.tally, {}) if nodeid == sibling.nodeid), None)
        likely: Row | None = None
        for outcome in (SKIPPED, "failed", PASSED) if row else ():
            likely = function.next_row(self.verdicts, row, outcome)
            if likely is None:
                return None
        return function.item(likely, sibling) if likely else None


def run(session: Any, item: Any, nextitem: Any) -> None:
    """What pytest's loop does with each test."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def function_of(item: Any) -> str:
    """The node id of an item's function."""
    return f"{getattr(item.parent, 'nodeid', '')}::{getattr(item, 'originalname', '')}"


def cases_of(tally: Tally, further: Mapping[str, Row]) -> list[tuple[str, Sequence[int]]]:
    """All tests of a function with their cases."""
    return [*((nodeid, tally.cases[case]) for nodeid, case in tally.tests), *further.items()]


def failure_lines(config: Any, tallies: Iterable[Tally], verdicts: Verdicts, further: Further | None) -> list[str]:
    """What the failing cases of each function share, and the first command to run; nothing where nothing failed."""
    lines: list[str] = []
    open_functions: list[tuple[bool, str]] = []
    for tally in tallies:
        function = further.functions.get(tally.nodeid) if further else None
        tests = cases_of(tally, function.further if function else {})
        passed, failed, _ = verdicts.rows(tests)
        if not failed:
            continue
        finding = find_suspects([len(texts) for _, texts in tally.axes], passed, failed)
        lines += finding_lines(tally.nodeid, tally.axes, finding, len(function.further) if function else 0)
        first = list(smallest_failing(finding, failed))
        # of the tests of one case some may have passed, where another plugin or a repeated value makes several
        nodeid = next(nodeid for nodeid, row in tests if list(row) == first and verdicts.failed(nodeid))
        if passed:
            lines.append(f"  smallest failing case: pytest {shlex.quote(as_typed(config, nodeid))}")
        if function and function.several and passed:
            lines.append("  no further cases: another plugin makes several tests of each case")
        elif finding.suspects and not (function and function.further) and not _certain(tally, finding, failed):
            open_functions.append((finding.settled, tally.nodeid))
    distributed = config.pluginmanager.hasplugin("dsession")
    if open_functions and (further is None or distributed):
        limit = further.limit if further else SUGGESTED
        settled, nodeid = min(open_functions, key=lambda one: one[0])  # the first whose suspects are in doubt
        command = f"pytest {shlex.quote(as_typed(config, nodeid))} --pairwise-isolate={limit}"
        alone = "without -n; " if distributed else ""
        aim = "to confirm what is suspected" if settled else "to tell suspects apart"
        lines.append(f"next: {command}  ({alone}up to {counted(limit, 'further case')}, {aim})")
    return lines


def _certain(tally: Tally, finding: Finding, failed: Sequence[Row]) -> bool:
    """Is there one suspect, and share the failing cases that hold it nothing else? No larger combination fits then."""
    if not finding.settled or len(finding.suspects) > 1:
        return False
    axes, cells = finding.suspects[0].axes, finding.suspects[0].cells
    others = [axis for axis, (_, texts) in enumerate(tally.axes) if axis not in axes and len(texts) > 1]
    holding = [[row for row in failed if tuple([row[axis] for axis in axes]) == cell] for cell in cells]
    return all(len({row[axis] for row in rows}) > 1 for rows in holding for axis in others)


def as_typed(config: Any, nodeid: str) -> str:
    """The node id from where pytest was called."""
    path, *names = nodeid.split("::")
    return "::".join([os.path.relpath(config.rootpath / path, config.invocation_params.dir), *names])
