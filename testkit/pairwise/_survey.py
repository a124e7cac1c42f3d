"""A suite as ``testkit pairwise adopt`` sees it: pytest collects it, and what was found goes into a JSON file.

Run as a child process, since whatever the suite imports must not stay with us::

    python -m testkit.pairwise._survey FILE PYTEST-ARGUMENTS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from inspect import isgeneratorfunction
from pathlib import Path
from time import perf_counter
from typing import Any

from testkit._settings import read_ini
from testkit.pairwise._tails import declines, gives_plain, tail_of

PLUGIN = "testkit.pairwise.plugin"
MARKER = "pairwise"
EXEMPT = "skip_global_cleanup"


@dataclass
class Function:
    """A collected function: cases of its full product, cases thinned, (name, values) of each axis where it is thinned.

    ``fixtures`` are positions in ``Survey.fixtures``; ``exempt`` tests are marked to skip the clean-up.
    """

    nodeid: str
    total: int
    kept: int
    axes: list[tuple[str, int]]
    fixtures: list[int]
    exempt: bool

    @property
    def module(self) -> str:
        return self.nodeid.partition("::")[0]


@dataclass
class Fixture:
    """An autouse fixture of function scope with code after its yield; see ``Tail``.

    ``gone``: arguments of pytest's own that are gone once the test is over; ``unsure``: those of the suite that are,
    unless their values are plain. ``callables``: calls that ini cleanup_wrap may name, being names of a conftest.
    """

    name: str
    file: str
    line: int
    calls: dict[str, list[str]]
    inside: str
    gone: list[str]
    unsure: list[str] = field(default_factory=list)
    callables: list[str] = field(default_factory=list)


@dataclass
class Survey:
    """All that was found. ``broken`` and ``absent`` are (node id, reason) of what failed to collect or skipped itself.

    ``ini`` is the configuration file, ``wrapped`` what ini cleanup_wrap names already, ``off`` that thinning is off.
    """

    root: str
    ini: str
    seconds: float
    off: bool
    wrapped: str
    deselected: int
    functions: list[Function] = field(default_factory=list)
    fixtures: list[Fixture] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)
    absent: list[tuple[str, str]] = field(default_factory=list)

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Survey:
        data = json.loads(file.read_text(encoding="utf-8"))
        functions = [Function(**one) for one in data.pop("functions")]
        return cls(functions=functions, fixtures=[Fixture(**one) for one in data.pop("fixtures")], **data)


class Surveyor:
    """A pytest plugin object; its hooks are found by their names."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.broken: list[tuple[str, str]] = []
        self.absent: list[tuple[str, str]] = []
        self.deselected: set[str] = set()
        self.start = 0.0

    def pytest_collection(self) -> None:
        self.start = perf_counter()

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken.append((report.nodeid, _last_line(str(report.longrepr))))
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.absent.append((report.nodeid, str(reason).removeprefix("Skipped: ")))

    def pytest_deselected(self, items: Sequence[Any]) -> None:
        self.deselected.update(map(_function_id, items))

    def pytest_runtestloop(self, session: Any) -> None:
        """The collection is whole; nothing else is wanted of this run."""
        config = session.config
        plugin = config.pluginmanager.get_plugin(PLUGIN)
        thinning = config.stash[plugin.THINNING]
        looker = Looker(session)
        by_function: dict[str, list[Any]] = {}
        for item in session.items:
            by_function.setdefault(_function_id(item), []).append(item)
        Survey(
            root=str(config.rootpath),
            ini=str(config.inipath or ""),
            seconds=perf_counter() - self.start,
            off=thinning.options.off,
            wrapped=str(read_ini(config, "cleanup_wrap")),
            deselected=len(self.deselected - set(by_function)),
            functions=[_function(nodeid, items, thinning, looker) for nodeid, items in by_function.items()],
            fixtures=looker.found,
            broken=self.broken,
            absent=self.absent,
        ).write(self.file)


class Looker:
    """Finds the autouse fixtures with code after their yield, once for each collector and once for each fixture."""

    def __init__(self, session: Any) -> None:
        import pytest

        self.found: list[Fixture] = []
        self._root = session.config.rootpath
        self._manager = session._fixturemanager
        self._by_id = pytest.version_tuple[:2] < (8, 1)
        self._names: dict[Any, list[str]] = {}
        self._position: dict[Any, int | None] = {}
        self._declines: dict[Any, bool] = {}

    def of(self, item: Any) -> Iterator[int]:
        """Positions in ``found`` of the fixtures that this test pays for."""
        parent, info = item.parent, getattr(item, "_fixtureinfo", None)
        if info is None:
            return
        if parent not in self._names:
            names = self._manager._getautousenames(parent.nodeid if self._by_id else parent)
            self._names[parent] = list(dict.fromkeys(names))
        for name in self._names[parent]:
            definitions = info.name2fixturedefs.get(name)
            if not definitions or definitions[-1].scope != "function":
                continue
            definition = definitions[-1]
            if definition.func not in self._position:
                self._position[definition.func] = self._look(name, definition, info.name2fixturedefs)
            position = self._position[definition.func]
            if position is not None and not self._decided_against(definition, info.name2fixturedefs):
                yield position

    def _decided_against(self, definition: Any, others: dict[str, Any]) -> bool:
        for function in [others[argname][-1].func for argname in definition.argnames if others.get(argname)]:
            if function not in self._declines:
                self._declines[function] = declines(function)
            if self._declines[function]:
                return True
        return False

    def _look(self, name: str, definition: Any, others: dict[str, Any]) -> int | None:
        function = definition.func
        if function.__module__.split(".")[0] in ("_pytest", "testkit"):
            return None
        tail = tail_of(function)
        if tail is None:
            return None
        code, code_globals = function.__code__, function.__globals__
        file = Path(code.co_filename)
        asked = [(argname, others[argname][-1]) for argname in definition.argnames if others.get(argname)]
        self.found.append(
            Fixture(
                name=name,
                file=str(file.relative_to(self._root)) if file.is_relative_to(self._root) else str(file),
                line=code.co_firstlineno,
                calls={call: list(found) for call, found in tail.calls.items()},
                inside=tail.inside,
                gone=[
                    argname
                    for argname, one in asked
                    if one.func.__module__.startswith("_pytest.") and one.scope != "session"
                ],
                unsure=[
                    argname
                    for argname, one in asked
                    if not one.func.__module__.startswith("_pytest.")
                    and (one.scope != "session" or isgeneratorfunction(one.func))
                    and not gives_plain(one.func)
                ],
                callables=[call for call in tail.calls if file.name == "conftest.py" and call in code_globals],
            )
        )
        return len(self.found) - 1


def _function(nodeid: str, items: Sequence[Any], thinning: Any, looker: Looker) -> Function:
    first, tally = items[0], thinning.tallies.get(nodeid)
    asked = first.get_closest_marker(MARKER) is not None or thinning.rules.of(nodeid) is not None
    thinned = tally is not None and not asked
    return Function(
        nodeid=nodeid,
        total=tally.total if thinned else len(items),
        kept=tally.chosen if thinned else len(items),
        axes=[(name, len(levels)) for name, levels in tally.axes] if thinned else [],
        fixtures=list(looker.of(first)),
        exempt=first.get_closest_marker(EXEMPT) is not None,
    )


def _function_id(item: Any) -> str:
    name = getattr(item, "originalname", None)
    return f"{item.parent.nodeid}::{name}" if name else str(item.nodeid)


def _last_line(text: str) -> str:
    """The line of a failure's text that names the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or lines or ["unknown"])[-1]


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code."""
    import pytest

    file, *rest = arguments
    return int(pytest.main(list(rest), plugins=[Surveyor(Path(file))]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
