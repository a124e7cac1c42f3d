"""``testkit matrix FILE``: expand and thin a job matrix for a CI system, or check an existing one.

The jobs go to standard output, everything else to standard error. Exit code 0: done, and nothing to complain of.
1: ``--check`` found tuples that no job holds. 2: bad input, said in two lines.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from testkit._command import REFUSED, Parser, discard_output
from testkit._text import counted
from testkit.errors import KitWarning, MatrixError
from testkit.matrix._check import check
from testkit.matrix._expand import Matrix
from testkit.matrix._find import matrix_of
from testkit.matrix._formats import FORMATS, written
from testkit.matrix._thin import Thinned, thin, tuple_noun

MISSING = 1


def main(argv: Sequence[str]) -> int:
    """Run the command; MatrixError for bad input."""
    try:
        given = _parser().parse_args(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KitWarning)
        try:
            code = _run(given)
            sys.stdout.flush()
        except RecursionError:
            raise MatrixError("lists are nested too deep, or hold themselves", str(given.file), "flatten it") from None
        except BrokenPipeError:  # the reader, such as head, has seen enough
            discard_output()
            code = REFUSED
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                print(text, file=sys.stderr)
    return code


class _Parser(Parser):
    refusal = MatrixError


def _parser() -> _Parser:
    parser = _Parser(prog="testkit matrix", description="Few CI jobs that hold every pair of their axes' values.")
    parser.add_argument("file", type=Path, metavar="FILE", help="a workflow, a recipe, axes with lists, or jobs")
    parser.add_argument("--strength", type=int, metavar="N", help="2 (default) holds all pairs, 3 all triples")
    parser.add_argument("--format", choices=FORMATS, help="default: json")
    parser.add_argument("--job", metavar="ID", help="the job of a workflow, if several have a matrix")
    help = "the value of a name in ${{ fromJSON(NAME) }}; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=help)
    help = "report what the matrix misses, and exit with 1 if it is something"
    parser.add_argument("--check", action="store_true", help=help)
    help = "with --check: the axes and the exclude that say what is owed"
    parser.add_argument("--against", type=Path, metavar="FILE", help=help)
    return parser


def _run(given: argparse.Namespace) -> int:
    if given.check and given.format:
        raise MatrixError("--check and --format together", "command line", "leave one out: --check writes no jobs")
    if given.against and not given.check:
        raise MatrixError("--against without --check", "command line", "add --check")
    matrix = matrix_of(given.file, given.job, dict(map(_pair, given.set)))
    if given.check:
        result = check(matrix, given.strength, matrix_of(given.against) if given.against else None)
        print("\n".join(result.lines()))
        return MISSING if result.missing else 0
    thinned = thin(matrix, given.strength)
    print(written(thinned.jobs, given.format or "json"))
    print(_summary(matrix, thinned), file=sys.stderr)
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise MatrixError(f"--set {text!r}", "command line", "write NAME=VALUE")
    return name, value


def _summary(matrix: Matrix, thinned: Thinned) -> str:
    jobs = counted(len(thinned.jobs), "job")
    if not matrix.axes:
        return f"{jobs}: there are no axes, and entries of include stay"
    owed = counted(thinned.owed, tuple_noun(thinned.strength))
    floor = f"; no list is shorter than {thinned.floor:,}" if thinned.floor < len(thinned.jobs) else ""
    return f"{counted(thinned.total, 'combination')} -> {jobs}, which hold all of {owed}{floor}"
