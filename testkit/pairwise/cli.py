"""``testkit pairwise``: what shards covered together, lock files that begin afresh, what a suite would gain."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from testkit._text import counted
from testkit.errors import PairwiseError
from testkit.pairwise._adopt import report, survey
from testkit.pairwise._lockfile import forget
from testkit.pairwise._tally import Tally, shortfall, summary_lines

KIND = "pairwise"
"""What the plugin announces its tallies as."""


def main(argv: Sequence[str]) -> int:
    """0; 1 if less than ``--fail-under`` ran. Raises PairwiseError for bad input, nothing found included."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may hold what the terminal's encoding does not
        sys.stdout.reconfigure(errors="backslashreplace")
    at = list(argv).index("--") if list(argv[:1]) == ["adopt"] and "--" in argv else len(argv)
    options = _parser().parse_args(argv[:at])
    options.for_pytest = list(argv[at + 1 :])
    return {"adopt": _adopt, "relock": _relock, "report": _report}[options.verb](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="testkit pairwise", description="Coverage and lock files of thinned functions, and how to adopt a suite."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    report = verbs.add_parser(
        "report", help="what the runs recorded with --timing-dir covered together, such as the shards of one run"
    )
    report.add_argument("paths", nargs="+", metavar="PATH", help="run files, or folders of them")
    report.add_argument("--fail-under", type=float, metavar="PERCENT", help="exit with 1 if a smaller share ran")
    report.add_argument("--missing", action="store_true", help="list the owed tuples that did not run")
    relock = verbs.add_parser("relock", help="take cases out of a lock file, so that the next run chooses them afresh")
    relock.add_argument("file", metavar="FILE", help="the file of --pairwise-lock")
    relock.add_argument(
        "functions", nargs="*", metavar="FUNCTION", help="node ids without brackets, or patterns of them; default all"
    )
    adopt = verbs.add_parser(
        "adopt", help="what a suite would gain from thinning and from clean-up put off; it is collected, nothing runs"
    )
    adopt.add_argument(
        "paths", nargs="+", metavar="PATH", help="files or folders of the suite, and after -- any options of pytest"
    )
    adopt.add_argument("--over", type=_cases, default=100, metavar="N", help="thin larger products (default 100 cases)")
    return parser


def _adopt(options: argparse.Namespace) -> int:
    found = survey([*options.paths, *options.for_pytest], options.over)
    print("\n".join(report(found, options.over)))
    return 0


def _cases(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def _report(options: argparse.Namespace) -> int:
    runs, recorded = _recorded(options.paths)
    tallies = together(recorded)
    if len(runs) > 1:
        print(f"{counted(len(runs), 'run')} together ({', '.join(runs)}): what ran in any of them counts")
    for line in summary_lines(tallies, ran=True, missing=options.missing, hint=False):
        print(line)
    short = (
        "" if options.fail_under is None else shortfall(tallies, options.fail_under, "from --fail-under", "--missing")
    )
    if short:
        sys.stderr.write(f"{short}\n")
    return 1 if short else 0


def _relock(options: argparse.Namespace) -> int:
    cases, functions = forget(options.file, options.functions)
    print(
        f"{counted(cases, 'case')} of {counted(functions, 'function')} taken out of {options.file};"
        f" the next run with --pairwise-lock={options.file} chooses afresh"
    )
    return 0


def _recorded(paths: Iterable[str]) -> tuple[list[str], list[Tally]]:
    """What the runs are called that thinned anything, and all their tallies."""
    from testkit.timing import read, read_folder

    tallies: list[Tally] = []
    names: dict[str, None] = {}
    for path in map(Path, paths):
        for run in read_folder(path) if path.is_dir() else [read(path)]:
            data: list[Any] = [record.data for record in run.records if record.kind == KIND]
            tallies += [Tally(**one) for one in data]
            if data:
                names[run.header.run] = None
    if not tallies:
        where, fix = ", ".join(paths), "record the shards with --timing-dir, and give that folder"
        raise PairwiseError("no thinned function is recorded", where, fix)
    return list(names), tallies


def together(tallies: Iterable[Tally]) -> list[Tally]:
    """One tally a function. A case that ran in any of the runs ran; plans that differ are refused by name."""
    merged: dict[str, Tally] = {}
    for tally in tallies:
        first = merged.setdefault(tally.nodeid, tally)
        if first is tally:
            continue
        if (first.axes, first.cases, first.owed) != (tally.axes, tally.cases, tally.owed):
            problem = f"{tally.nodeid} was thinned in two ways in these runs"
            raise PairwiseError(problem, "", "give the shards of one run, made of one commit with the same options")
        first.take_in(tally)
    for tally in merged.values():
        tally.settle(())
    return list(merged.values())
