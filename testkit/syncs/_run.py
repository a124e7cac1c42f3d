"""What a pytest run under watch has found, over all its workers: figures, the JSON of a census, the closing lines."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testkit._text import counted

if TYPE_CHECKING:
    from testkit._settings import Setting
    from testkit.syncs._sites import Site
    from testkit.syncs._watch import Outcome

VARIABLE = "TESTKIT_SYNCS"
SENT = ("tests", "unfinished", "blind", "unverified", "unjudged")


class Run:
    """What a run asks for, and what it has found. ``path``: where the JSON of a census goes, "" for nowhere."""

    def __init__(self, action: Setting[str], path: str, root: str) -> None:
        self.action, self.path, self.root = action, path, root
        self.off = action.value == "off" or os.environ.get(VARIABLE) == "off"
        self.census = action.value == "census"
        self.tests: dict[str, list[dict[str, Any]]] = {}  # by node id, of tests in which waits could be seen
        self.unfinished: dict[str, list[dict[str, Any]]] = {}  # of those whose body was skipped or failed
        self.blind: dict[str, str] = {}  # of others, why not
        self.unverified: list[str] = []  # those of them with a marker
        self.unjudged: list[str] = []  # marked, and everything is off
        self.missing: set[str] = set()  # workers whose evidence has not arrived

    def add(self, nodeid: str, outcomes: list[Outcome], is_marked: bool) -> list[dict[str, Any]]:
        """Take in what the processes of one test saw; all waits together as rows for JSON."""
        from testkit.syncs._census import merged
        from testkit.syncs._sites import as_row

        sites = merged(site for outcome in outcomes for site in outcome.sites)
        rows = [as_row(site, self.root) for site in sites]
        # What went unseen beside waits that were seen; or nothing could be seen in any of the processes.
        blind = next((outcome.blind for outcome in outcomes if outcome.blind and (outcome.sites or not sites)), "")
        for earlier in (self.tests, self.unfinished, self.blind):
            earlier.pop(nodeid, None)  # a test that is run again counts as it went the last time
        if not all(outcome.finished for outcome in outcomes):
            self.unfinished[nodeid] = rows
        elif blind:
            self.blind[nodeid] = blind
            if rows:
                self.unfinished[nodeid] = rows
            self.unverified += [nodeid] if is_marked else []
        else:
            self.tests[nodeid] = rows
        return rows

    def plain(self) -> dict[str, Any]:
        """For the way from a worker to the controller."""
        return {name: getattr(self, name) for name in SENT}

    def merge(self, sent: dict[str, Any]) -> None:
        """Take in what ``plain`` of a worker gave."""
        for name in ("tests", "unfinished", "blind"):
            getattr(self, name).update(sent[name])
        for name in ("unverified", "unjudged"):
            getattr(self, name).extend(sent[name])

    def sites(self) -> list[Site]:
        """All waits of the run, the same ones added up."""
        from testkit.syncs._census import merged
        from testkit.syncs._sites import from_row

        every = (*self.tests.values(), *self.unfinished.values())
        return merged(from_row(row) for rows in every for row in rows)

    def write(self) -> str:
        """Write the JSON of the census; what went wrong, or ""."""
        from testkit.syncs import _report
        from testkit.syncs._sites import from_row

        tests = {name: [from_row(row) for row in rows] for name, rows in sorted(self.tests.items())}
        try:
            path = Path(self.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_report.dumps(_report.document(self.sites(), self.root, tests)), encoding="utf-8")
        except OSError as error:
            return f"{self.path} cannot be written: {error.strerror or error}"
        return ""

    def saw_nothing(self) -> bool:
        """Whether tests ran under a census and in none of them a wait could have been seen."""
        return self.census and bool(self.blind) and not self.tests

    def lines(self) -> list[str]:
        """What is said at the end, besides the census itself."""
        said = []
        if self.unjudged:
            source = f"{VARIABLE}=off" if self.action.value != "off" else self.action.source
            said.append(f"syncs: {_tests(self.unjudged)} marked no_gpu_sync not judged: all is off ({source})")
        if self.unverified:
            reason = Counter(self.blind.values()).most_common(1)
            why = f": {reason[0][0]}" if reason else ""
            said.append(f"syncs: {_tests(self.unverified)} marked no_gpu_sync verified nothing{why}")
        if self.missing and (self.census or said):
            said.append(f"syncs: {', '.join(sorted(self.missing))} did not report, and their tests are not in this")
        return said

    def census_lines(self) -> list[str]:
        """The census of the run for people."""
        from testkit.syncs import _report

        said = _report.lines(self.sites(), self.root)
        if self.saw_nothing():
            said = [f"syncs: no test of {len(self.blind):,} ran where a wait could be seen"]
        for reason, number in Counter(self.blind.values()).most_common():
            said.append(f"syncs: {counted(number, 'test')} without sight: {reason}")
        if self.unfinished:
            tests = counted(len(self.unfinished), "test")
            said.append(f"syncs: {tests} did not finish, or not in sight; what was seen of their waits is listed")
        where = f", written to {self.path}" if self.path else ", written nowhere: no cache, and no --syncs-json"
        said.append(f"syncs: {counted(len(self.tests), 'test')} listed{where} ({self.action.source})")
        return said


def _tests(names: list[str]) -> str:
    return counted(len(set(names)), "test")
