"""The report for a terminal: a verdict, three facts, ten rows, and what the rest adds up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testkit._text import counted, table
from testkit.timing._facts import Facts, facts_of, headline, three_facts
from testkit.timing._rows import ENOUGH, Row
from testkit.timing._run import Run
from testkit.timing._say import percent, shown, spent
from testkit.timing._trend import Series

NAME = 90
"""Characters of a row's name; a terminal is not much wider."""

MOST_NOTES = 10


def text_report(runs: Iterable[Run]) -> str:
    """The newest CI run in ``runs`` in some twenty lines, without a line end after the last."""
    facts = facts_of(runs)
    lines = [headline(facts)]
    lines += table(three_facts(facts))
    if facts.hint:
        lines.append(f"next: {facts.hint}")
    lines += _rows(facts)
    lines += _slower(facts)
    notes = [*facts.problems, *facts.notes]
    lines += [f"  note: {note}" for note in notes[:MOST_NOTES]]
    if len(notes) > MOST_NOTES:
        lines.append(f"  and {counted(len(notes) - MOST_NOTES, 'note')} more")
    return "\n".join(lines)


def _rows(facts: Facts) -> list[str]:
    rows = [row for row in facts.top if row.seconds > 0]
    if not rows:
        return []
    most, rest = rows[:ENOUGH], rows[ENOUGH:]
    cells = [(spent(row.seconds), percent(row.seconds, facts.spent), shown(row.name, NAME), about(row)) for row in most]
    lines = ["", f"most time, by {facts.level}", *_numbers_right(cells, 2)]
    if rest:
        seconds = sum(row.seconds for row in rest)
        lines.append(f"  and {len(rest):,} more: {spent(seconds)}, {percent(seconds, facts.spent)}")
    return lines


def about(row: Row) -> str:
    """Tests, failures and cause of a row."""
    each = f" of {spent((row.setup + row.call + row.teardown) / row.tests)}" if row.tests else ""
    tests = f"{counted(row.tests, 'test')}{each}" if row.tests > 1 else ""
    bad = f"{row.bad:,} failed" if row.bad else ""
    return "; ".join(filter(None, [tests, bad, row.cause()]))


def _slower(facts: Facts) -> list[str]:
    found = facts.slower
    if not found:
        return []
    cells = [(spent(one.last), shown(one.name, NAME), usually(one)) for one in found[:ENOUGH]]
    lines = ["", "slower than in the runs before", *_numbers_right(cells, 1)]
    if len(found) > ENOUGH:
        lines.append(f"  and {counted(len(found) - ENOUGH, 'more file')}")
    return lines


def usually(series: Series) -> str:
    """``usually 55.1 s to 1 min 06 s``."""
    return f"usually {spent(series.band[0])} to {spent(series.band[2])}" if series.band else ""


def _numbers_right(cells: Sequence[tuple[str, ...]], columns: int) -> list[str]:
    widths = [max(len(line[column]) for line in cells) for column in range(columns)]
    right = [[*map(str.rjust, line[:columns], widths), *line[columns:]] for line in cells]
    return table(right)
