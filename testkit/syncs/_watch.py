"""The body of a test under watch: what it waited for, whether that is too much, and whether anything could be seen.

The watch is put around the body itself and not around pytest's call of it: an async body runs in a context of its own,
and the body of a test in ranks or in a fresh process runs in another process, from which the outcome comes by a file.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import current_thread
from typing import Any

from testkit._text import counted
from testkit.errors import SyncsError
from testkit.syncs import _report
from testkit.syncs._census import Census, merged, watching
from testkit.syncs._fixes import advice
from testkit.syncs._naming import plain_name
from testkit.syncs._objection import HostWaits
from testkit.syncs._region import Found, Region
from testkit.syncs._sight import blind, simulations
from testkit.syncs._sites import Site, as_row, from_row, site_of

__tracebackhide__ = True  # pytest shows the line of the test, not ours


@dataclass(frozen=True)
class Terms:
    """How one test is watched.

    ``at_most``: waits that its marker tolerates, None without a marker. ``warns``: more of them are told and no error.
    ``census``: list them all. ``strict``: that nothing could be seen is an error. ``root``: what paths are relative to.
    ``folder``: where another process leaves its outcome.
    """

    at_most: int | None
    warns: bool
    census: bool
    strict: bool
    root: str
    folder: str
    home: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Outcome:
    """What was seen in one process. ``blind``: why nothing could be seen there, "" if something could.

    ``over``: what is said of more waits than the marker tolerates, "" if there are not. ``finished``: whether the body
    ran to its end; one that was skipped or failed says nothing of the waits after that.
    """

    sites: tuple[Site, ...]
    blind: str
    over: str
    finished: bool


def watched(body: Callable[..., Any], terms: Terms, tell: Callable[[Outcome], None]) -> Callable[..., Any]:
    """``body``, sync or async, with the watch around it; ``tell`` gets the outcome if it runs in this process."""
    telling = Telling(tell)
    if inspect.iscoroutinefunction(body):

        @functools.wraps(body)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with watch(terms, telling):
                return await body(*args, **kwargs)

        return run_async

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        with watch(terms, telling):
            return body(*args, **kwargs)

    return run


class Telling:
    """Where an outcome goes in this process; it stays behind when it is pickled."""

    def __init__(self, tell: Callable[[Outcome], None] | None) -> None:
        self.tell = tell

    def __reduce__(self) -> tuple[Any, ...]:
        return Telling, (None,)


@contextmanager
def watch(terms: Terms, telling: Telling) -> Iterator[None]:
    """Watch the block, tell the outcome, and judge it: OverBudget unless that is only to be told, or Unverified."""
    from testkit.syncs._guard import region

    seen = Census()
    guard = Region("count", where="from marker no_gpu_sync")
    before = simulations()
    error, finished = None, False
    try:
        with ExitStack() as stack:
            if terms.census:
                stack.enter_context(watching(seen))
            if terms.at_most is not None:
                stack.enter_context(region(guard))
            yield
        finished = True
    finally:
        sites = tuple(seen.sites if terms.census else sites_of(guard.found))
        error = over_budget(guard.found, terms) if len(guard.found) > (terms.at_most or 0) else None
        unseen = seen._unseen or ("" if sites else blind(before))
        outcome = Outcome(sites, unseen, "" if error is None else str(error), finished)
        if telling.tell is not None and os.getpid() == terms.home:
            telling.tell(outcome)
        else:
            _leave(outcome, terms)
    if outcome.blind and terms.strict and terms.at_most is not None:
        fix = "run it where waits can be seen, in simulated() or with a GPU, or leave --syncs=error out"
        raise Unverified(f"nothing was verified: {outcome.blind}", "from marker no_gpu_sync", fix)
    if error is not None and not terms.warns:
        raise error


class OverBudget(HostWaits):
    """A test has waited more often than its marker tolerates."""


class Unverified(SyncsError):
    """A test whose marker was to be verified ran where nothing can be seen."""


def over_budget(found: list[Found], terms: Terms) -> OverBudget:
    """The error that names each site with its fix."""
    sites = sites_of(found)
    allowed = f"{counted(terms.at_most, 'wait')} allowed" if terms.at_most else "no wait is allowed"
    problem = f"the host waited {counted(len(found), 'time')} at {counted(len(sites), 'site')}, {allowed}"
    evidence = "\n".join(_report.blocks(sites, terms.root))
    fix = "do as the fixes say, or put a wait that must be into allow(reason)"
    if any(site.operator == "?" for site in sites):
        fix += "; --syncs=census names the operators"
    return OverBudget(problem, "from marker no_gpu_sync", fix, evidence)


def sites_of(found: list[Found]) -> list[Site]:
    """Waits as sites, the same ones added up."""
    thread = current_thread().name
    return merged(
        site_of(
            replace(one.seen, operator=plain_name(one.seen.operator)),
            one.place,
            fix=advice(one.seen, one.place.outside),
            thread=thread,
            allowed=one.allowed,
            seconds=None,
        )
        for one in found
    )


def _leave(outcome: Outcome, terms: Terms) -> None:
    """For the process that waits for this one."""
    rows = [as_row(site, terms.root) for site in outcome.sites]
    os.makedirs(terms.folder, mode=0o700, exist_ok=True)
    path = Path(terms.folder) / f"{uuid.uuid4().hex}.json"
    path.with_suffix(".part").write_text(json.dumps({**vars(outcome), "sites": rows}), encoding="utf-8")
    path.with_suffix(".part").replace(path)


def collected(folder: str) -> list[Outcome]:
    """What other processes have left there since the last call."""
    found = []
    for path in sorted(Path(folder).glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        found.append(Outcome(**{**row, "sites": tuple(map(from_row, row["sites"]))}))
        path.unlink()
    return found
