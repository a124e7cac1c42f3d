"""``testkit environment``: show this machine, and say how two of them differ.

Exit code 0: done, and nothing that matters differs. 1: something does. 2: bad input, said in two lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testkit._command import Parser
from testkit.environment._diff import as_json, as_markdown, cell, differences, value_text
from testkit.environment._snapshot import Facts, from_json, snapshot, to_json
from testkit.errors import MachineError

DIFFERENT = 1


def main(argv: Sequence[str]) -> int:
    """Run one verb; MachineError for bad input."""
    try:
        given = _parser().parse_args(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    if given.verb == "show":
        facts = snapshot()
        print(_table(facts) if given.format == "markdown" else to_json(facts), end="")
        return 0
    found = differences(_read(given.before), _read(given.after))
    names = (str(given.before), str(given.after))
    print(as_markdown(found, names) if given.format == "markdown" else as_json(found))
    return DIFFERENT if any(one.matters for one in found) else 0


class _Parser(Parser):
    refusal = MachineError


def _parser() -> _Parser:
    parser = _Parser(prog="testkit environment", description="What machine this is, and how two differ.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = verbs.add_parser("show", help="print what this machine is, each fact with how it was read")
    diff = verbs.add_parser("diff", help="say how two machines differ; exit with 1 if something that matters does")
    for name in ("before", "after"):
        diff.add_argument(name, type=Path, metavar="FILE", help="what show --format json printed")
    for verb in (show, diff):
        verb.add_argument("--format", choices=("markdown", "json"), default="markdown", help="default: %(default)s")
    return parser


def _table(facts: Facts) -> str:
    rows = []
    for name, fact in facts.items():
        value = f"{len(fact.value or ())} packages" if name == "packages" else value_text(name, fact.value)
        rows.append(f"| {name} | {value} | {cell(fact.how)} |\n")
    return "".join(["| fact | value | read from |\n", "|---|---|---|\n", *rows])


def _read(path: Path) -> Facts:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineError(f"cannot read {path}: {reason}", "command line", "name what show printed") from None
    return from_json(text, f"in {path}")
