"""What was given to stubs and what was read of them, in one test or in a run, and the drift that shows in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field
from typing import Any

from testkit.kernels._known import nearest
from testkit.kernels._source import Place


@dataclass(frozen=True)
class Drift:
    """One way in which a stub no longer is what its class makes.

    ``kind``: "unread" (given, and nothing read it), "defaulted" (not given; code that asked took a default or its
    other branch, and an instance made by the class would have had it), "missing" (read, not given) or "unknown" (the
    class has no such name). ``attribute`` is the dotted path from the stub; ``owner`` the class that has it or should;
    ``where`` the ``file:line`` that reads it, or that makes the stub, and ``line`` its source; ``origin`` where a
    real instance gets it, or for an unread one the name like it that was asked for.
    """

    kind: str
    owner: str
    attribute: str
    where: str
    line: str = ""
    origin: str = ""

    def __str__(self) -> str:
        says = {
            "unread": "is given and nothing read it",
            "defaulted": "is not given, and who asked went on with a default",
            "missing": "is read and not given",
            "unknown": "is given, and its class has no such name",
        }[self.kind]
        label = "asked for was" if self.kind == "unread" else "a real one:"
        more = f"; {label} {self.origin}" if self.origin else ""
        return f"{self.owner}: {self.attribute} {says}: {self.where}{': ' if self.line else ''}{self.line}{more}"


@dataclass
class Reads:
    """What is known about the stub made at ``place``, or about all that were made there in a run.

    ``asked``: the names that it did not have; ``defaulted``: the drift in them, with the tests where it happened;
    ``inside``: the stubs that have it as an attribute, and which; ``tests``: those that made it.
    """

    owner: str
    maker: str
    place: Place
    given: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    defaulted: dict[Drift, set[str]] = field(default_factory=dict)
    inside: set[tuple[str, str]] = field(default_factory=set)
    tests: set[str] = field(default_factory=set)

    @property
    def key(self) -> str:
        return f"{self.maker}({self.owner}) at {self.place.file}:{self.place.line}"

    def unread(self, path: Callable[[str], str]) -> Iterator[Drift]:
        """What was given and not read; ``path`` makes the dotted path of a name."""
        for name in sorted(self.given - self.read):
            like = nearest(name, self.asked)
            yield Drift("unread", self.owner, path(name), str(self.place), self.place.text, like)


class Run:
    """All stubs of a run, by the line that made them: helpers make one stub for tests that read different parts."""

    def __init__(self) -> None:
        self.sites: dict[str, Reads] = {}

    def site(self, reads: Reads) -> Reads:
        """What is known about the place of ``reads``, a stub that is being made."""
        site = self.sites.setdefault(reads.key, Reads(reads.owner, reads.maker, reads.place))
        site.given |= reads.given
        site.tests.add(current_test())
        return site

    def drift(self, unfinished: set[str], unread: bool) -> list[Drift]:
        """The drift, without what happened in tests that are ``unfinished``; ``unread``: was enough of the run seen
        to say what nothing reads?"""
        found = []
        for site in self.sites.values():
            found += [drift for drift, tests in site.defaulted.items() if tests - unfinished]
            holders = [(self.sites[key], name) for key, name in sorted(site.inside) if key in self.sites]
            told = bool(holders) and not any(name in holder.read for holder, name in holders)  # of what holds it
            if unread and not told and not site.tests & unfinished:
                way = [holders[0][1]] if holders else []
                found += site.unread(lambda name, way=way: ".".join([*way, name]))  # type: ignore[misc]
        return list(dict.fromkeys(found))

    def plain(self) -> list[dict[str, Any]]:
        """As lists and text, for a worker of a distributed run to send."""
        return [
            {
                "made": [site.owner, site.maker, *astuple(site.place)],
                "sets": [sorted(names) for names in _sets(site)],
                "inside": [list(pair) for pair in sorted(site.inside)],
                "defaulted": [[list(astuple(drift)), sorted(tests)] for drift, tests in site.defaulted.items()],
            }
            for site in self.sites.values()
        ]

    def merge(self, sent: list[dict[str, Any]]) -> None:
        """Add what a worker sent."""
        for entry in sent:
            owner, maker, *place = entry["made"]
            new = Reads(owner, maker, Place(*place))
            site = self.sites.setdefault(new.key, new)
            for names, more in zip(_sets(site), entry["sets"], strict=True):
                names.update(more)
            site.inside |= {(key, name) for key, name in entry["inside"]}
            for drift, tests in entry["defaulted"]:
                site.defaulted.setdefault(Drift(*drift), set()).update(tests)


def _sets(site: Reads) -> list[set[str]]:
    return [site.given, site.read, site.asked, site.tests]


run: Run | None = None
"""Where stubs report to besides their own record, while a run with --kernels-drift lasts."""


def current_test() -> str:
    """The node id that pytest has put into the environment, or ""."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
