"""What a suite would gain from thinning and from clean-up put off, told from its collection alone: nothing runs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from glob import escape
from pathlib import Path

from testkit._evidence import Shown
from testkit._text import counted, table
from testkit.errors import PairwiseError
from testkit.pairwise._survey import PLUGIN, Fixture, Function, Survey

SHOWN = 10
"""Products, modules and reasons that are listed; the rest is counted."""

LINES = 20
"""With more modules to gain in, one line is suggested for all of them."""

COLLECTED = (0, 2)
"""pytest's exit codes of a collection that came to its end: without errors, and with some."""


class Uncollected(Shown, PairwiseError):
    """pytest itself could not collect; ``evidence`` is the end of what it said."""


def survey(arguments: Sequence[str], over: int) -> Survey:
    """Collect what ``arguments`` (paths, and options of pytest) name, in a child process of this Python.

    Products of more than ``over`` cases are thinned while they are collected, so that they are never built.
    PairwiseError if nothing could be collected.
    """
    with tempfile.TemporaryDirectory(prefix="testkit-adopt-") as folder:
        file, said = Path(folder, "survey.json"), Path(folder, "output.txt")
        command = [sys.executable, "-m", "testkit.pairwise._survey", str(file), "--collect-only", "-q", "--maxfail=0"]
        command += ["-p", PLUGIN, f"--pairwise-over={over}", "-o", f"cache_dir={folder}", *arguments]
        with said.open("wb") as output:
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        where = "collecting " + " ".join(arguments)
        if code not in COLLECTED or not file.exists():
            end = [line for line in said.read_text(encoding="utf-8", errors="replace").splitlines() if line][-SHOWN:]
            fix = "repair that; options of pytest stand after --, such as -- -o addopts= or -- --ignore=FOLDER"
            evidence = "\n".join(f"  {line}" for line in end)
            problem = "pytest found no test" if code == 5 else f"pytest ended with exit code {code}"
            raise Uncollected(problem, where, fix, evidence)
        found = Survey.read(file)
    if found.off:
        raise PairwiseError("thinning is off by --no-pairwise", where, "leave that option out of addopts")
    if not found.functions:
        reason = found.broken[0] if found.broken else ("", "nothing was selected")
        raise PairwiseError(f"no test could be collected: {': '.join(reason)}", where, "repair that first")
    return found


def report(found: Survey, over: int) -> list[str]:
    """What the command prints."""
    gains = sorted(_gains(found), key=lambda one: (one.kept - one.total, one.nodeid))
    modules = {one.module for one in found.functions}
    total = sum(one.total for one in found.functions)
    lines = [
        f"{counted(total, 'case')} of {counted(len(found.functions), 'function')} in {counted(len(modules), 'file')}, "
        f"collected in {found.seconds:.1f} s with products over {counted(over, 'case')} thinned"
    ]
    lines += _left_out(found)
    lines += ["", *_products(found, gains, over, total)]
    lines += ["", *_clean_up(found)]
    mixed = _both(found, gains)
    lines += ["", *mixed] if mixed else []
    pasted = ini_lines(found, over)
    if pasted:
        lines += ["", *_where(found), *pasted]
    return lines


def ini_lines(found: Survey, over: int) -> list[str]:
    """The lines to paste, in the language of the suite's configuration file."""
    modules = sorted({one.module for one in _gains(found)})
    few = [f"{_pattern(module)}::* over={over}" for module in modules]
    rules = few if len(modules) <= LINES else [f"* over={over}"]
    wrap = "" if found.wrapped else next((name for one in _paid(found) for name in _to_name(one)), "")
    if found.ini.endswith(".toml"):
        lines = ["pairwise_rules = [", *(f"    {json.dumps(rule)}," for rule in rules), "]"] if rules else []
        return lines + ([f"cleanup_wrap = {json.dumps(wrap)}"] if wrap else [])
    lines = ["pairwise_rules =", *(f"    {rule}" for rule in rules)] if rules else []
    return lines + ([f"cleanup_wrap = {wrap}"] if wrap else [])


def _where(found: Survey) -> list[str]:
    if not found.ini:
        return [f"Paste into a new {Path(found.root, 'pytest.ini')}:", "[pytest]"]
    return [f"Paste into {found.ini}, beside pytest's other keys:"]


def _pattern(module: str) -> str:
    """A file's name as a pattern of one word."""
    return "".join("?" if sign.isspace() else sign for sign in escape(module))


def _gains(found: Survey) -> list[Function]:
    return [one for one in found.functions if one.kept < one.total]


def _left_out(found: Survey) -> list[str]:
    lines = []
    for reason, listed in (("collecting failed", found.broken), ("they skip themselves here", found.absent)):
        if listed:
            lines.append(f"Not counted, since {reason}: {counted(len(listed), 'file or folder', 'files or folders')}")
            lines += table(listed[:SHOWN]) + _more(listed)
    if found.deselected:
        lines.append(f"Not counted, since they are deselected: {counted(found.deselected, 'function')}")
    return lines


def _more(listed: Sequence[object]) -> list[str]:
    return [f"  and {len(listed) - SHOWN:,} more"] if len(listed) > SHOWN else []


def _products(found: Survey, gains: Sequence[Function], over: int, total: int) -> list[str]:
    kept = sum(one.kept for one in found.functions)
    whole = [one for one in found.functions if one.total > over and one.kept == one.total]
    lines = [f"Products: {total:,} cases would be {kept:,}; {counted(len(gains), 'function')} would lose some"]
    rows = [
        (
            one.total,
            "->",
            one.kept,
            one.nodeid,
            ", ".join(f"{name} {values}" for name, values in one.axes if values > 1),
        )
        for one in gains[:SHOWN]
    ]
    lines += table(rows) + _more(gains)
    if whole:
        lines.append(
            f"  {counted(len(whole), 'function')} with more than {over:,} cases would keep all of them "
            "(two axes, or thinned already)"
        )
    return lines


def _paid(found: Survey) -> list[Fixture]:
    """The fixtures that clean up, those first that most cases pay for."""
    cleaning = [number for number, one in enumerate(found.fixtures) if any(one.calls.values())]
    cleaning.sort(key=lambda number: -_cases(found.functions, number))
    return [found.fixtures[number] for number in cleaning]


def _cases(functions: Iterable[Function], fixture: int) -> int:
    return sum(one.total for one in functions if fixture in one.fixtures and not one.exempt)


def _clean_up(found: Survey) -> list[str]:
    cleaning = _paid(found)
    if not cleaning:
        lines = ["Clean-up: no autouse fixture of function scope frees memory or process groups after its yield"]
    else:
        lines = ["Clean-up after every test, by autouse fixtures:"]
    rows: list[tuple[object, ...]] = []
    for one in cleaning:
        calls = ", ".join(f"{call} ({', '.join(ends)})" for call, ends in one.calls.items() if ends)
        rows.append((_cases(found.functions, found.fixtures.index(one)), "cases", _named(one), calls))
    lines += table(rows)
    lines += [f"  {one.name} cannot be put off: {_obstacle(one)}" for one in cleaning if _obstacle(one)]
    lines += [f"  {_condition(one)}" for one in cleaning if one.unsure and not _obstacle(one)]
    if len({one.name for one in cleaning}) > 1:
        lines.append("  cleanup_wrap takes one name: the first is put off, others stay after each test")
    if found.wrapped:
        lines.append(f"  cleanup_wrap = {found.wrapped} is set already")
    others = [one for one in found.fixtures if one not in cleaning]
    if others:
        names = ", ".join(_named(one) for one in others[:SHOWN])
        lines.append(f"Other code after a yield frees nothing, and is best left after each test: {names}")
        lines += _more(others)
    return lines


def _named(one: Fixture) -> str:
    return f"{one.name} ({one.file}:{one.line})"


def _obstacle(one: Fixture) -> str:
    """Why testkit.cleanup would refuse the fixture, and what can be named instead."""
    if one.inside:
        reason = "it yields from another generator" if one.inside == "yield from" else f"it yields inside {one.inside}"
    elif one.gone:
        reason = f"it takes {', '.join(one.gone)}, gone by then"
    else:
        return ""
    instead = _to_name(one)
    return f"{reason}; {instead[0]}, which it calls, can" if instead else f"{reason}; move the clean-up to a function"


def _condition(one: Fixture) -> str:
    """What the values of the suite's own fixtures have to be for the fixture to be put off."""
    named = [call for call in one.callables if one.calls[call]]
    fix = f"name {named[0]}" if named else "move the clean-up to a function of the conftest"
    return f"{one.name} can be put off only if {', '.join(one.unsure)} is True, a number or text; else {fix}"


def _to_name(one: Fixture) -> list[str]:
    """What ``cleanup_wrap`` may name for it: the fixture, or else a callable of its conftest."""
    if not one.inside and not one.gone:
        return [one.name]
    return [call for call in one.callables if one.calls[call]]


def _both(found: Survey, gains: Sequence[Function]) -> list[str]:
    """The modules that would gain both ways, and those in which only some tests pay."""
    cleaning = {found.fixtures.index(one) for one in _paid(found)}
    paying = [one for one in found.functions if cleaning & set(one.fixtures)]
    by_module: dict[str, list[Function]] = {}
    for one in found.functions:
        by_module.setdefault(one.module, []).append(one)
    thinned = {one.module for one in gains}
    rows: list[tuple[object, ...]] = []
    for module in {one.module for one in paying if not one.exempt} & thinned:
        inside = by_module[module]
        cleaned = sum(one.total for one in inside if cleaning & set(one.fixtures) and not one.exempt)
        rows.append((sum(one.total for one in inside), "->", sum(one.kept for one in inside), cleaned, "-> 1", module))
    rows.sort(key=lambda row: (-int(str(row[3])), str(row[5])))
    lines = ["Modules that would gain both ways (cases, clean-ups):"] if rows else []
    lines += table(rows[:SHOWN]) + _more(rows)
    marked = {one.module for one in paying if one.exempt} & {one.module for one in paying if not one.exempt}
    if marked:
        names = sorted(marked)
        lines.append(f"{counted(len(names), 'module')} with tests marked skip_global_cleanup beside tests that pay:")
        lines += [f"  {name}" for name in names[:SHOWN]] + _more(names)
    return lines
