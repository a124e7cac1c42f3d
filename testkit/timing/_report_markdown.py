"""The report in Markdown, for a step summary or a comment: whole rows only, below a limit of bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from testkit._text import counted
from testkit.timing._facts import Facts, facts_of, headline, three_facts
from testkit.timing._report_text import about, usually
from testkit.timing._rows import ENOUGH
from testkit.timing._run import Run
from testkit.timing._say import percent, shown, spent

LIMIT = 1 << 20
"""Bytes of a step's summary on GitHub; above it the whole of it is refused. A comment may have 65,536 characters."""

MOST_TESTS = 1_000
"""Tests that are listed at most: a summary of all of 10,000 takes a browser longer than the run file."""

_Table = tuple[str, tuple[str, ...], Sequence[tuple[str, ...]], int]
"""Title, columns, rows, and how many rows are not among them."""


def markdown_report(runs: Iterable[Run], limit: int = LIMIT) -> str:
    """The newest CI run in ``runs``; fewer than ``limit`` bytes of UTF-8, with a note of the rows that did not fit."""
    facts = facts_of(runs)
    lines = [f"### {_text(headline(facts))}", ""]
    lines += _rows(
        ("", "", ""), [(f"**{name}**", f"**{figure}**", _text(why)) for name, figure, why in three_facts(facts)]
    )
    if facts.hint:
        lines += ["", f"Next: {_text(facts.hint)}."]
    notes = [f"- {_text(note)}" for note in [*facts.problems, *facts.notes]]
    lines += ["", *notes] if notes else []
    room = limit - 1 - sum(len(line.encode()) + 1 for line in lines)
    tables = [_Fitted(*table, folded=place > 0) for place, table in enumerate(_tables(facts)) if table[2]]
    # What is at the top of the page gets its rows first, and every table gets to say what it left out.
    room -= sum(table.frame for table in tables)
    for table in tables:
        room -= table.take(room)
        lines += table.lines()
    text = "\n".join(lines)
    # Too little room even for titles: the verdict alone is better than a summary that is refused.
    return text if len(text.encode()) < limit else shown(headline(facts), max(0, limit // 4 - 4))


class _Fitted:
    """A table of which as many rows are kept as there is room for; ``frame`` is what it takes without any."""

    def __init__(
        self, title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], left: int, *, folded: bool
    ):
        self.title, self.columns, self.left, self.folded = title, columns, left, folded
        self.rows = rows
        self.kept = 0
        self.frame = sum(len(line.encode()) + 1 for line in self.lines()) + len("99,999,999")

    def take(self, room: int) -> int:
        """Keep the first rows that fit in ``room`` bytes; returns how many bytes they take."""
        taken = 0
        for row in self.rows:
            size = len(_row(row).encode()) + 1
            if taken + size > room:
                break
            taken += size
            self.kept += 1
        return taken

    def lines(self) -> list[str]:
        left = self.left + len(self.rows) - self.kept
        more = ["", f"{counted(left, 'row')} left out."] if left or not self.kept else []
        body = [*_rows(self.columns, self.rows[: self.kept]), *more]
        if not self.folded:
            return ["", f"**{self.title}**", "", *body]
        return ["", f"<details><summary>{self.title}</summary>", "", *body, "", "</details>"]


def _tables(facts: Facts) -> Iterator[_Table]:
    def row(name: str, seconds: float, *cells: str) -> tuple[str, ...]:
        return (spent(seconds), percent(seconds, facts.spent), _code(name), *cells)

    rows = [row(one.name, one.seconds, _text(about(one))) for one in facts.top if one.seconds > 0]
    yield f"Most time, by {facts.level}", ("Time", "Share", facts.level.capitalize(), ""), rows[:ENOUGH], 0
    slower = [(spent(one.last), _code(one.name), usually(one)) for one in facts.slower]
    yield "Slower than in the runs before", ("Time", "File", ""), slower, 0
    waste = [
        (_text(one.kind), spent(one.seconds), percent(one.seconds, facts.spent), _text(one.detail))
        for one in facts.waste
    ]
    yield "All waste", ("Kind", "Time", "Share", "What it is"), waste, 0
    yield "The rest of the rows", ("Time", "Share", facts.level.capitalize(), ""), rows[ENOUGH:], 0
    fixtures = [
        (
            _code(one.name),
            _text(shown(one.scope, 40)),
            spent(one.setup),
            spent(one.teardown),
            f"{one.count:,}",
            _text(one.where),
        )
        for one in facts.fixtures
    ]
    yield "Fixtures", ("Fixture", "Scope", "Set-up", "Teardown", "Times", "Where"), fixtures, 0
    tests = sorted(facts.tests.values(), key=lambda test: (-test.final.seconds, test.final.id))
    slowest = [(spent(test.final.seconds), test.verdict, _code(test.final.id)) for test in tests[:MOST_TESTS]]
    yield "Slowest tests", ("Time", "Outcome", "Test"), slowest, len(tests) - len(slowest)


def _rows(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [_row(columns), _row(("---",) * len(columns)), *map(_row, rows)]


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """``text`` as code in a table's cell: a fence longer than any in it, or entities where it has a bar.

    In a table even code is cut at a bar, and a backslash before it is read differently by different readers.
    """
    text = shown(text)
    if "|" in text:
        return f"<code>{_text(text)}</code>"
    fence = "`"
    while fence in text:
        fence += "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def _text(text: str) -> str:
    """``text`` with everything that Markdown or HTML would read as its own written out.

    GitHub looks for people and issues in what was rendered, so that an entity does not hide them; an element does.
    """
    return _SPECIAL.sub(lambda found: _AROUND.get(found[0], f"&#{ord(found[0])};"), text)


_AROUND = {"@": "<span>@</span>", "#": "<span>#</span>"}
_SPECIAL = re.compile(r"[^\w ,;()/+%.:-]|_|(?<=[wW]{3})\.|:(?!\s|$)")
