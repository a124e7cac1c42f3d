"""The report as GitHub annotations, within their limits: what a reader of a pull request should see at once."""

# No `from __future__ import annotations` here: it would bind the name of the one function that this module is for.

from collections.abc import Iterable, Sequence

from testkit._text import counted
from testkit.timing._facts import Facts, facts_of, headline
from testkit.timing._lanes import BAD
from testkit.timing._report_text import usually
from testkit.timing._rows import file_of
from testkit.timing._run import Run
from testkit.timing._say import percent, shown, spent

MOST = 10
"""Annotations of one kind that GitHub takes from a step; what is beyond is dropped there without a word."""

LARGE = 0.1
"""Share of all worker time from which a kind of waste is worth a warning."""

TITLE = "Where the time went"


def annotations(runs: Iterable[Run]) -> list[str]:
    """Workflow commands for standard output: errors, warnings, then one notice with the verdict.

    At most ten of a kind; the last of them says how many were left out.
    """
    facts = facts_of(runs)
    errors = [_line("error", problem) for problem in facts.problems]
    if facts.state == "ran no test" or (facts.exit_status and not facts.failed):
        errors.append(_line("error", headline(facts)))
    for nodeid, test in facts.tests.items():
        if test.verdict in BAD:
            where = " and ".join(test.final.failed_in)
            took = f"{test.verdict}{f' in {where}' if where else ''} after {spent(test.final.seconds)}"
            errors.append(_line("error", f"{shown(nodeid)}: {took}", file_of(nodeid)))
    warnings = [
        _line("warning", f"{shown(one.name)} took {spent(one.last)}, {usually(one)}", one.name) for one in facts.slower
    ]
    for one in facts.waste:
        if one.seconds >= LARGE * facts.spent:
            cost = f"{one.kind}: {spent(one.seconds)}, {percent(one.seconds, facts.spent)}"
            warnings.append(_line("warning", "; ".join(filter(None, [cost, one.hint]))))
    return [*_most("error", errors), *_most("warning", warnings), _line("notice", _summary(facts))]


def _summary(facts: Facts) -> str:
    return f"{headline(facts)}{f'. Next: {facts.hint}' if facts.hint else ''}"


def _most(kind: str, lines: Sequence[str]) -> list[str]:
    if len(lines) <= MOST:
        return list(lines)
    left = len(lines) - MOST + 1
    return [*lines[: MOST - 1], _line(kind, f"and {counted(left, f'more {kind}')}")]


def _line(kind: str, message: str, file: str = "") -> str:
    place = f"file={_escaped(file, ':,')}," if file and file == shown(file) else ""
    return f"::{kind} {place}title={_escaped(TITLE, ':,')}::{_escaped(message)}"


def _escaped(text: str, also: str = "") -> str:
    """As GitHub's toolkit writes workflow commands: percent first, and in properties what would end them."""
    for char in "%\r\n" + also:
        text = text.replace(char, f"%{ord(char):02X}")
    return text
