"""``testkit timing``: report, compare, plan, verify, merge, prune, import, export and query run files.

Exit code 0: done, and nothing to complain of. 1: ``compare`` found something slower, or ``verify`` no proof. 2: bad
input, said in two lines.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from testkit._command import REFUSED, Parser, discard_output
from testkit._text import counted, table
from testkit.errors import KitWarning, TimingError
from testkit.timing._budget import parse_seconds
from testkit.timing._compare import Change, Comparison, Gate, compare, windows
from testkit.timing._exporters import FORMATS, export
from testkit.timing._history import BY, History, newest_ids, prune, rows
from testkit.timing._importers import read_foreign
from testkit.timing._merge import inventory, merge
from testkit.timing._plan import Plan, plan, shards_for
from testkit.timing._read import read, read_folder
from testkit.timing._run import Run, canonical
from testkit.timing._say import shown, spent
from testkit.timing._shard import plans_differ
from testkit.timing._verify import verify
from testkit.timing._write import write

FOUND = 1
ROWS = 10
PATHS = "run files, or folders with them in and below"

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMGT])i?B?)?")
_TOTAL = re.compile(r"(\d+)(?:/\d+)? tests? collected")


def main(argv: Sequence[str]) -> int:
    """Run one verb; TimingError for bad input."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a node id may hold what the terminal's encoding does not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        given = _parser().parse_args(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KitWarning)
        try:
            code: int = given.run(given)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as head, has seen enough
            discard_output()
            code = REFUSED
        except OSError as error:  # a full disk behind it; errors of named files say which
            if error.filename is None:
                discard_output()
            what = "write the output" if error.filename is None else f"use {error.filename}"
            raise TimingError(f"cannot {what}: {error.strerror or error}", "command line") from error
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        print(text, file=sys.stderr)
    return code


class _Parser(Parser):
    refusal = TimingError


def _parser() -> _Parser:
    parser = _Parser(prog="testkit timing", description="Where CI time went: run files of --timing-dir.")
    verbs = parser.add_subparsers(dest="name", required=True, metavar="VERB")

    def add(name: str, run: Callable[[argparse.Namespace], int], help: str, paths: str = PATHS) -> _Parser:
        verb = verbs.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        verb.set_defaults(run=run)
        if paths:
            verb.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=paths)
        return verb

    def add_into(verb: _Parser) -> None:
        verb.add_argument("--into", type=Path, required=True, metavar="DIR", help="the folder to write to")

    verb = add("report", _report, "say where the time of the newest run went")
    verb.add_argument("--markdown", action="store_true", help="for a step summary, cut below its limit")
    verb.add_argument("--annotations", action="store_true", help="GitHub annotations, within their limits")
    verb.add_argument("--html", type=Path, metavar="FILE", help="also write one self-contained page")
    _add_compare(add("compare", _compare, "find what became slower, and exit with 1 if something did", ""))
    _add_plan(add("plan", _plan, "divide tests among shards, by the times of past runs"))
    verb = add("verify", _verify, "prove that the shards of one run ran every test exactly once, or exit with 1")
    verb.add_argument("--plan", type=Path, metavar="FILE", help="name what no shard ran by the ids of this plan")
    add_into(add("merge", _merge, "copy run files into one folder, after a check"))
    verb = add("prune", _prune, "delete the run files of old runs; the newest run always stays", "")
    verb.add_argument("folder", type=Path, metavar="DIR")
    verb.add_argument("--keep", type=_from_1, metavar="N", help="keep the N newest runs")
    verb.add_argument("--days", type=_positive, metavar="D", help="delete runs older than D days")
    add_into(add("import", _import, "turn durations and reports of other tools into run files", "their files"))
    verb = add("export", _export, "write run files in another tool's format")
    verb.add_argument("--format", choices=sorted(FORMATS), required=True)
    verb.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")
    verb = add("query", _query, "ask in SQL, with DuckDB", "")
    verb.add_argument("sql", metavar="SQL", help="such as: 'from tests order by seconds desc limit 10'")
    verb.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=PATHS)
    verb.add_argument("--csv", action="store_true", help="instead of a table")
    return parser


def _add_compare(verb: _Parser) -> None:
    gate = Gate()
    verb.add_argument("base", type=Path, metavar="BASE", help="a run file or folder; alone, its newest runs are judged")
    verb.add_argument("head", type=Path, metavar="HEAD", nargs="?", help="a run file or folder")
    verb.add_argument("--by", choices=BY, default="test", help="default: %(default)s")
    help = f"slower by this share, such as 25%% (default {gate.relative:.0%}%)"
    verb.add_argument("--relative", type=_share, default=gate.relative, metavar="SHARE", help=help)
    help = f"and by this time (default {gate.seconds:g}s)"
    verb.add_argument("--seconds", type=_seconds, default=gate.seconds, metavar="TIME", help=help)
    help = f"how many of the newest runs are judged (default {gate.head})"
    verb.add_argument("--runs", type=_from_1, default=gate.head, metavar="N", help=help)
    help = f"in how many of them it must show (default {gate.above})"
    verb.add_argument("--above", type=_from_1, metavar="N", help=help)
    help = f"how many runs before make the median (default {gate.base})"
    verb.add_argument("--median", type=_from_1, default=gate.base, metavar="N", help=help)


def _add_plan(verb: _Parser) -> None:
    number = verb.add_mutually_exclusive_group(required=True)
    number.add_argument("--shards", type=_from_1, metavar="N")
    number.add_argument("--target", type=_seconds, metavar="TIME", help="as few shards as take no longer, such as 20m")
    help = "what pytest --collect-only -q printed (default: what the newest run was to run)"
    verb.add_argument("--ids", type=Path, metavar="FILE", help=help)
    help = "the plan file to write (default %(default)s)"
    verb.add_argument("--output", type=Path, default=Path("timing-plan.json"), metavar="FILE", help=help)
    verb.add_argument("--quantile", type=_share, default=0.5, metavar="Q", help="0.9 plans with cautious times")
    help = "the seed that chose the ids, for shards with --pairwise-seed=auto"
    verb.add_argument("--pairwise-seed", type=_from_0, metavar="N", help=help)
    help = "what each shard takes beside its tests (default: as in past runs)"
    verb.add_argument("--fixed", type=_seconds, metavar="TIME", help=help)
    help = "GPU memory of a shard, such as 80G: tests that need over half of it are spread"
    verb.add_argument("--memory", type=_size, metavar="SIZE", help=help)


def _report(given: argparse.Namespace) -> int:
    runs = _runs(given.paths)
    if given.html:
        from testkit.timing._report_html import html_report

        _save(given.html, html_report(runs))
    if given.markdown:
        from testkit.timing._report_markdown import markdown_report

        print(markdown_report(runs))
    if given.annotations:
        from testkit.timing._annotations import annotations

        print("\n".join(annotations(runs)))
    if not (given.markdown or given.annotations):
        from testkit.timing._report_text import text_report

        print(text_report(runs))
        if given.html:
            print(f"\npage: {given.html}")
    return 0


def _compare(given: argparse.Namespace) -> int:
    above = min(Gate().above, given.runs) if given.above is None else given.above
    gate = Gate(given.relative, given.seconds, given.runs, above, given.median)
    runs = _runs([given.base])
    if given.head is None:
        found, notes = rows(runs, given.by, gate.head)
        base, head = windows(found, gate)
        if not any(base.values()):
            problem = f"{given.base} has no run before the newest {gate.head} that are judged"
            raise TimingError(problem, fix="record more runs, or judge fewer: --runs 1 --above 1")
    else:
        new = _runs([given.head])
        own = {run.header.run for run in new}
        before = [run for run in runs if run.header.run not in own]
        if not before:
            problem = f"{given.base} has no run that is not in {given.head}"
            raise TimingError(problem, fix="compare different runs, or one folder's newest runs: leave out HEAD")
        (base, notes), (head, more) = rows(before, given.by), rows(new, given.by)
        notes += more
    result = compare(base, head, gate)
    if len(result.removed) > result.compared:
        notes.append("more than half of the base is gone: is the head of the same suite, and all of it?")
    print("\n".join(_compared(result, given.by, [*notes, *result.notes()])))
    return 0 if result.ok else FOUND


def _compared(result: Comparison, by: str, notes: Sequence[str]) -> list[str]:
    number = f"{len(result.slower):,} of {counted(result.compared, by)} slower, {len(result.faster):,} faster"
    lines = [f"{number} ({result.gate})"]
    for title, changes in (("slower", result.slower), ("faster", result.faster)):
        if changes:
            lines += [f"{title}:", *table([_change(change) for change in changes[:ROWS]])]
            lines += [f"  and {len(changes) - ROWS:,} more"] if len(changes) > ROWS else []
    for title, names in (("new", result.added), ("gone", result.removed)):
        if names:
            more = ", ..." if len(names) > 3 else ""
            lines.append(f"{title}: {len(names):,} ({', '.join(shown(name) for name in names[:3])}{more})")
    return [*lines, *(f"note: {note}" for note in notes)]


def _change(change: Change) -> tuple[str, ...]:
    ratio = f"{change.ratio:.2f}x" if change.base else ""
    return f"{change.lost:+.2f} s", f"{spent(change.base)} -> {spent(change.head)}", ratio, shown(change.name)


def _plan(given: argparse.Namespace) -> int:
    runs = _runs(given.paths)
    history = History.of(runs, ", ".join(map(str, given.paths)), given.quantile)
    ids = _listed(given.ids) if given.ids else newest_ids(runs)
    estimates = history.estimates(ids)
    tests = history.tests(estimates)
    fixed = history.fixed if given.fixed is None else given.fixed
    shards = given.shards or shards_for(tests, given.target, fixed=fixed, memory=given.memory)
    made = plan(tests, shards, fixed=fixed, memory=given.memory)
    _save(given.output, made.to_json({} if given.pairwise_seed is None else {"pairwise_seed": given.pairwise_seed}))
    longest = max(made.seconds)
    print(f"{counted(len(ids), 'test')} on {counted(shards, 'shard')}, the longest {spent(longest)}: {given.output}")
    above = spent(longest - made.bound)
    print(f"  {above} above what no plan can beat; {spent(fixed)} of each is start, collection and the like")
    numbers = [counted(len(names), "test") for names in made.shards]
    lines = [(f"{n}/{shards}", spent(made.seconds[n - 1]), numbers[n - 1]) for n in range(1, shards + 1)]
    print("\n".join(table(lines[:ROWS])))
    if shards > ROWS:
        print(f"  and {shards - ROWS} more")
    notes = [*estimates.notes(time.time()), *made.notes]
    if history.workers > 1:
        notes.append(f"times are of one worker; the newest run had {history.workers}, which share a shard's time")
    print("\n".join(f"note: {note}" for note in notes), end="\n" if notes else "")
    return 0


def _listed(path: Path) -> list[str]:
    """The ids in ``path``: a list, or what ``pytest --collect-only -q`` printed."""
    fix = "write it with: pytest --collect-only -q > FILE"
    lines = _load(path).splitlines()
    end = lines.index("") if "" in lines else len(lines)
    ids, rest = lines[:end], lines[end:]
    wrong = next((line for line in ids if "::" not in line or line.startswith((" ", "<", "="))), None)
    if wrong is not None:
        raise TimingError(f"{wrong[:80]!r} is no node id", f"in {path}", fix)
    told = [(found, line) for line in rest if (found := _TOTAL.search(line))]
    if any(rest) and (not told or int(told[-1][0][1]) != len(ids) or "error" in told[-1][1]):
        last = told[-1][1] if told else next(filter(None, rest))
        raise TimingError(f"{counted(len(ids), 'id')} and then {last[:80]!r}", f"in {path}", fix)
    if not ids:
        raise TimingError("no node id", f"in {path}", fix)
    if len({*ids}) < len(ids):
        raise TimingError("an id twice", f"in {path}", fix)
    return [canonical(name) for name in ids]


def _verify(given: argparse.Namespace) -> int:
    runs = _runs(given.paths)
    ids = None
    if given.plan:
        ids = [name for shard in Plan.from_json(_load(given.plan), str(given.plan)).shards for name in shard]
    result = verify(runs, ids=ids)
    print("\n".join(result.lines()))
    if not result.ok:
        print("\n".join(plans_differ(inventory(runs)[0].newest.values())))
    return 0 if result.ok else FOUND


def _merge(given: argparse.Namespace) -> int:
    new = merge(_there(given.paths), given.into)
    print(f"{counted(len(new), 'run file')} copied to {given.into}")
    names = {run.header.run for run in map(read, new)}
    for one in inventory(read_folder(given.into)):
        if one.run in names:
            print("\n".join(one.lines()))
    return 0


def _prune(given: argparse.Namespace) -> int:
    if given.keep is None and given.days is None:
        raise TimingError("nothing says what is old", "command line", "give --keep=N, --days=D or both")
    _there([given.folder])
    gone = prune(given.folder, time.time(), keep=given.keep, days=given.days)
    print(f"{counted(len(gone), 'run file')} deleted in {given.folder}")
    return 0


def _import(given: argparse.Namespace) -> int:
    for path in _there(given.paths):
        for run in read_foreign(path):
            target = write(given.into, run)
            print(f"{path}: {counted(len(run.tests), 'test')} of {run.header.origin} in {target}")
            print("".join(f"note: {note}\n" for note in run.notes), end="")
    return 0


def _export(given: argparse.Namespace) -> int:
    text = export(_runs(given.paths), given.format)
    if given.output:
        _save(given.output, text)
    else:
        print(text, end="")
    return 0


def _query(given: argparse.Namespace) -> int:
    from testkit.timing._query import query

    print(query(_runs(given.paths), given.sql, as_csv=given.csv))
    return 0


def _runs(paths: Sequence[Path]) -> list[Run]:
    return [run for path in _there(paths) for run in read_folder(path)]


def _there(paths: Sequence[Path]) -> Sequence[Path]:
    for path in paths:
        if not path.exists():
            raise TimingError(f"{path} does not exist", "command line", "name run files, or a folder with them")
    return paths


def _load(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TimingError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", "command line") from error


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TimingError(f"cannot write {path}: {error.strerror or error}", "command line") from error


def _seconds(text: str) -> float:
    return 0.0 if text in ("0", "0s") else parse_seconds(text, "command line")


def _size(text: str) -> float:
    """``80G``, ``512 MiB``: powers of 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise TimingError(f"{text!r} is no size", "command line", "write it as 80G or 512M")
    return float(found[1]) * float(1024 ** " KMGT".index(found[2] or " "))


def _share(text: str) -> float:
    """``25%`` or ``0.25``."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise TimingError(f"{text!r} is no share", "command line", "write it as 25% or 0.25")
    return share


def _from_1(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise TimingError(f"{text!r} is no number from 1", "command line")
    return int(text)


def _from_0(text: str) -> int:
    if not text.isdecimal():
        raise TimingError(f"{text!r} is no number from 0", "command line")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise TimingError(f"{text!r} is no number above 0", "command line")
    return number
