"""Every wait of a block of code, as a list of sites with what to write instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import current_thread
from typing import TextIO

from testkit.syncs import _report
from testkit.syncs._fixes import advice
from testkit.syncs._naming import UNKNOWN, Call, Now, named, naming
from testkit.syncs._region import Found, Region
from testkit.syncs._sight import blind, simulations
from testkit.syncs._sites import Site, joined, site_of

Key = tuple[str, str, str, str, "str | None"]
"""What makes two waits the same site: operator, line, function, kind, and the reason that allows them."""


class Census:
    """What was seen so far; it stays readable when its block has ended.

    An operator that waits several times inside counts once; bytes and seconds are sums over all counts of a site.
    ``blind``: why nothing could have been seen, or some waits not, known when the block has ended; else "".
    """

    def __init__(self) -> None:
        self.blind = ""
        self._unseen = ""
        self._sites: dict[Key, Site] = {}
        self._now = Now(self._finished)
        self._last: tuple[int, Key] | None = None  # the operator that torch last warned of, and its site

    @property
    def sites(self) -> list[Site]:
        """The dearest first: by measured seconds, else by count, then bytes; allowed ones last."""
        return _report.by_cost(self._sites.values())

    def text(self, root: str | os.PathLike[str] = ".") -> str:
        """The list for people, with paths relative to ``root``."""
        return "\n".join(_report.lines(self.sites, os.path.abspath(root), self.blind))

    def print(self, file: TextIO | None = None) -> None:
        """Write ``text()`` to ``file``, or to standard output."""
        (file or sys.stdout).write(self.text() + "\n")

    def to_json(self, root: str | os.PathLike[str] = ".") -> str:
        """What ``testkit syncs diff`` reads."""
        return _report.dumps(_report.document(self.sites, os.path.abspath(root), blind=self.blind))

    def _add(self, found: Found) -> None:
        now = self._now
        seen = named(found.seen, now)
        call = now.call if found.seen.operator == UNKNOWN else None
        site = site_of(
            seen,
            found.place,
            fix=advice(seen, found.place.outside),
            thread=current_thread().name,
            allowed=found.allowed,
            seconds=None if call is None else 0.0,
        )
        key = _key(site)
        if call is not None:
            if self._last == (call.number, key):
                return
            self._last = (call.number, key)
        self._sites[key] = joined(self._sites.get(key), site)

    def _finished(self, call: Call, seconds: float) -> None:
        """The operator that torch warned of has returned; what it took is what the host waited, or a little more."""
        if self._last is None or self._last[0] != call.number:
            return
        site = self._sites[self._last[1]]
        if site.seconds is not None:
            self._sites[self._last[1]] = replace(site, seconds=site.seconds + seconds)


@contextmanager
def census() -> Iterator[Census]:
    """List all waits of the block, on this thread, whether forbidden, allowed or neither.

    Yields a ``Census``: ``sites``, ``text()``, ``print()``, ``to_json()``. Operators are named by two modes of torch,
    which cost some 20 microseconds a call; what runs in C++ alone, an extension or compiled code, is "?" with its
    line. Other threads are not listed: open a census in each. It works where guards are switched off, too.
    """
    seen, before = Census(), simulations()
    try:
        with watching(seen):
            yield seen
    finally:
        seen.blind = seen._unseen or ("" if seen.sites else blind(before))


@contextmanager
def watching(seen: Census) -> Iterator[None]:
    """Let ``seen`` collect while the block runs; several blocks may follow each other."""
    from testkit.syncs._guard import region

    one = Region("census", sink=seen._add, where="census()")
    try:
        with region(one), naming(seen._now):
            yield
    finally:
        seen._unseen = seen._unseen or one.unseen


def merged(several: Iterable[Site]) -> list[Site]:
    """Sites of several censuses as one list, the same ones added up."""
    sites: dict[Key, Site] = {}
    for site in several:
        sites[_key(site)] = joined(sites.get(_key(site)), site)
    return _report.by_cost(sites.values())


def _key(site: Site) -> Key:
    return site.operator, site.where, site.function, site.kind, site.allowed
