"""A census on paper: lines for people, JSON for the next run, and how two of them differ."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from testkit._text import counted
from testkit.errors import SyncsError
from testkit.syncs._fixes import cautions
from testkit.syncs._sites import Site, as_row, from_row, short

FORMAT = "testkit_syncs"
VERSION = 1
MADE_BY = "give a file of --syncs=census, or what census().to_json() returned"
SIGHT = "take it where waits can be seen, in simulated() or with a GPU"


def by_cost(sites: Iterable[Site]) -> list[Site]:
    """Forbidden ones before allowed ones, then by measured seconds, then by count and bytes."""
    return sorted(
        sites,
        key=lambda one: (
            one.allowed is not None,
            one.seconds is None,
            -(one.seconds or 0.0),
            -one.count,
            -(one.bytes or 0),
            one.where,
            one.operator,
        ),
    )


def lines(sites: list[Site], root: str | os.PathLike[str], blind: str = "") -> list[str]:
    """The census for people, in the order of ``sites``; ``blind``: why there could be none."""
    if not sites:
        return [
            f"syncs: no wait of the host could be seen: {blind}" if blind else "syncs: no wait of the host was seen"
        ]
    waits = counted(sum(one.count for one in sites), "time")
    known = sum(one.seconds is not None for one in sites)
    order = "count, then bytes (no time was measured)"
    if known:
        order = "measured time" + ("" if known == len(sites) else ", the unmeasured after it by count")
    found = [f"syncs: the host waited {waits} at {counted(len(sites), 'site')}, sorted by {order}"]
    return found + blocks(sites, root) + ([f"syncs: {blind}"] if blind else [])


def blocks(sites: list[Site], root: str | os.PathLike[str]) -> list[str]:
    """Three lines a site, then the cautions."""
    found = [line for site in sites for line in _block(site, root)]
    return found + [f"  caution: {caution}" for caution in cautions(one.fix for one in sites)]


def _block(site: Site, root: str | os.PathLike[str]) -> list[str]:
    facts = [site.kind + (f" ({site.detail})" if site.detail else "")]
    if site.seconds is not None:
        facts.append(f"{site.seconds * 1e3:.3f} ms")
    if site.bytes is not None:
        facts.append(f"{site.bytes:,} B")
    if site.direction is not None:
        facts.append(site.direction)
    if site.test is not None and site.test != site.where:
        facts.append(f"test {short(site.test, root)}")
    if site.threads != ("MainThread",):
        facts.append(f"thread {', '.join(site.threads)}")
    end = f"allowed: {site.allowed}" if site.allowed is not None else f"fix: {site.fix}"
    return [
        f"  {site.count:,} x {site.operator}  {short(site.where, root)} in {site.function}",
        f"    {', '.join(facts)}",
        f"    {end}",
    ]


def document(
    sites: Iterable[Site],
    root: str | os.PathLike[str],
    tests: Mapping[str, Iterable[Site]] | None = None,
    blind: str = "",
) -> dict[str, Any]:
    """What a file holds: all sites, and of a run for each test how often it waited where; {} for one that did not."""
    found: dict[str, Any] = {FORMAT: VERSION, "sites": [as_row(site, root) for site in sites], "blind": blind}
    if tests is not None:
        found["tests"] = {name: dict(_counts(waits, root)) for name, waits in tests.items()}
    return found


def dumps(found: Mapping[str, Any]) -> str:
    return json.dumps(found, indent=1)


def _counts(sites: Iterable[Site], root: str | os.PathLike[str] = "") -> Counter[str]:
    """How often each site waited, allowed ones left out."""
    counts: Counter[str] = Counter()
    for site in sites:
        if site.allowed is None:
            counts[_name(site, root)] += site.count
    return counts


def _name(site: Site, root: str | os.PathLike[str] = "") -> str:
    """What a site is called in another run. Lines of code move, so it holds no line number."""
    return f"{short(site.where, root).rpartition(':')[0]} in {site.function}: {site.operator}"


@dataclass(frozen=True)
class Taken:
    """A census read back. ``tests`` is None where it was not of a pytest run."""

    sites: tuple[Site, ...]
    tests: dict[str, dict[str, int]] | None


def read(text: str, where: str) -> Taken:
    """What ``dumps`` wrote; SyncsError, with ``where``, for anything else, and where nothing could be seen."""
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or FORMAT not in found:
            raise ValueError("it is no census")
        if found[FORMAT] != VERSION:
            raise ValueError(f"its format is {found[FORMAT]!r}, known is {VERSION}")
        sites = tuple(from_row(row) for row in found["sites"])
        if found["blind"]:
            raise SyncsError(f"nothing could be seen when this was taken: {found['blind']}", where, SIGHT)
        tests = found.get("tests")
        if tests is not None:
            tests = {str(test): {str(name): _count(n) for name, n in waits.items()} for test, waits in tests.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"no {error} is there" if isinstance(error, KeyError) else str(error)
        raise SyncsError(f"this is not a whole census: {problem}", where, MADE_BY) from None
    return Taken(sites, tests)


def _count(number: Any) -> int:
    if type(number) is not int or number < 1:
        raise ValueError(f"a count of {number!r}")
    return number


@dataclass(frozen=True)
class Difference:
    """How often one site waited before and after; ``worse`` fails the comparison. ``site`` is one with a fix."""

    name: str
    before: int
    after: int
    worse: bool
    site: Site | None


def differences(base: Taken, head: Taken) -> list[Difference]:
    """Sites that are new, wait more often, less often or no more; worse ones first. Allowed waits do not count.

    Censuses of runs are compared over the tests that are in both, so that a new test does not make a site worse;
    a site that only new tests reach is new. SyncsError where there is nothing to compare.
    """
    if (base.tests is None) != (head.tests is None):
        raise SyncsError("one census is of a pytest run and the other is not", "command line", MADE_BY)
    before, after = _counts(base.sites), _counts(head.sites)
    known = set(before)
    if base.tests is not None and head.tests is not None:
        both = sorted(set(base.tests) & set(head.tests))
        if not both:
            raise SyncsError("no test is in both censuses", "command line", "take both of the same tests")
        new = Counter({name: count for name, count in after.items() if name not in known})
        before, after = (_total(tests, both) for tests in (base.tests, head.tests))
        after.update({name: count for name, count in new.items() if name not in after})
    by_name = {_name(site): site for site in (*base.sites, *head.sites)}
    found = []
    for name in sorted({*before, *after}):
        old, now = before[name], after[name]
        if old != now:
            found.append(Difference(name, old, now, now > old, by_name.get(name)))
    return sorted(found, key=lambda one: not one.worse)


def _total(tests: Mapping[str, Mapping[str, int]], chosen: Iterable[str]) -> Counter[str]:
    total: Counter[str] = Counter()
    for test in chosen:
        total.update(tests[test])
    return total
