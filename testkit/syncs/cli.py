"""``testkit syncs diff``: does the host wait at a new place, or more often.

Exit code 0: no. 1: yes. 2: bad input, said in two lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testkit._command import Parser
from testkit._text import counted
from testkit.errors import SyncsError
from testkit.syncs._report import MADE_BY, Difference, Taken, differences, read

WORSE = 1


def main(argv: Sequence[str]) -> int:
    """Run one verb; SyncsError for bad input."""
    try:
        given = _parser().parse_args(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    base, head = _read(given.base), _read(given.head)
    found = differences(base, head)
    worse = [one for one in found if one.worse]
    print("\n".join(_lines(found, worse, base, head)))
    return WORSE if worse else 0


class _Parser(Parser):
    refusal = SyncsError


def _parser() -> _Parser:
    parser = _Parser(prog="testkit syncs", description="Where the host waits for the device, and what has changed.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    diff = verbs.add_parser("diff", help="exit with 1 if the host waits at a new site, or more often than before")
    for name, what in (("base", "the census to compare with"), ("head", "the census to judge")):
        diff.add_argument(name, type=Path, metavar=name.upper(), help=f"{what}, written by --syncs=census")
    return parser


def _lines(found: list[Difference], worse: list[Difference], base: Taken, head: Taken) -> list[str]:
    if base.tests is None or head.tests is None:
        scope = "two censuses"
    else:
        scope = counted(len(set(base.tests) & set(head.tests)), "test")
    result = [f"syncs: {counted(len(worse), 'site')} new or worse, over {scope}"]
    for one in found:
        word = "new" if one.before == 0 else "gone" if one.after == 0 else "more" if one.worse else "less"
        result.append(f"  {word}  {one.before} -> {one.after}  {one.name}")
        if one.worse and one.site is not None:
            result += [f"    at {one.site.where}", f"    fix: {one.site.fix}"]
    missing = 0 if base.tests is None or head.tests is None else len(set(base.tests) - set(head.tests))
    if missing:
        result.append(f"  {counted(missing, 'test')} of the base did not run in the head and are not compared")
    return result


def _read(path: Path) -> Taken:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SyncsError(f"cannot read {path}: {reason}", "command line", MADE_BY) from None
    return read(text, f"in {path}")
