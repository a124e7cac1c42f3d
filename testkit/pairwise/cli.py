"""``testkit pairwise report``: what all shards of a run covered together, from their run files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from testkit.errors import KitError, PairwiseError
from testkit.pairwise._tally import Tally, shortfall, summary_lines

KIND = "pairwise"
"""What the plugin announces its tallies as."""


def main(argv: Sequence[str]) -> int:
    """0; 1 if less than ``--fail-under`` ran; 2 for bad input, nothing found included."""
    parser = argparse.ArgumentParser(prog="testkit pairwise", description="Coverage of thinned functions.")
    report = parser.add_subparsers(dest="verb", required=True).add_parser(
        "report", help="what the runs recorded with --timing-dir covered together, such as the shards of one run"
    )
    report.add_argument("paths", nargs="+", metavar="PATH", help="run files, or folders of them")
    report.add_argument("--fail-under", type=float, metavar="PERCENT", help="exit with 1 if a smaller share ran")
    report.add_argument("--missing", action="store_true", help="list the owed tuples that did not run")
    options = parser.parse_args(argv)
    try:
        tallies = together(_recorded(options.paths))
    except KitError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for line in summary_lines(tallies, ran=True, missing=options.missing, hint=False):
        print(line)
    short = "" if options.fail_under is None else shortfall(tallies, options.fail_under, "from --fail-under")
    if short:
        sys.stderr.write(f"{short}\n")
    return 1 if short else 0


def _recorded(paths: Iterable[str]) -> list[Tally]:
    from testkit.timing import read, read_folder

    tallies = []
    for path in map(Path, paths):
        for run in read_folder(path) if path.is_dir() else [read(path)]:
            data: list[Any] = [record.data for record in run.records if record.kind == KIND]
            tallies += [Tally(**one) for one in data]
    if not tallies:
        where, fix = ", ".join(paths), "record the shards with --timing-dir, and give that folder"
        raise PairwiseError("no thinned function is recorded", where, fix)
    return tallies


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
