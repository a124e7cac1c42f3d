"""What a run reads beside the code, and keeps for the next one: lock file, durations, history, rows that were found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testkit._text import counted
from testkit.errors import PairwiseError
from testkit.pairwise._axes import Axis
from testkit.pairwise._costs import CaseCosts, Durations, Measured, read_durations
from testkit.pairwise._history import History, Lessons, lessons, read_history
from testkit.pairwise._lockfile import Lock, Locked
from testkit.pairwise._request import Options

if TYPE_CHECKING:
    from testkit.pairwise._tally import Tally

Case = tuple[int, ...]
"""A level for each axis."""

CasesOf = Callable[[Iterable[str]], Mapping[str, Sequence[Case]]]
"""From what stands in the brackets of node ids to the cases of now with these ids."""

STORE = "testkit-pairwise"
"""Folder in pytest's cache with the rows of high effort."""


RUNS, CHOSEN = "testkit_pairwise_runs", "testkit_pairwise_chosen"
"""What goes to workers, and what comes back from them."""


@dataclass(frozen=True)
class About:
    """What the files say of one function, as ``plan_cases`` takes it."""

    locked: Locked | None = None
    costs: CaseCosts | None = None
    lessons: Lessons | None = None


@dataclass
class Files:
    """The files of one run; None for those that were not asked for.

    ``cache`` is pytest's, if there is one; the reader of the summary is in the folder ``here``.
    """

    lock: Lock | None = None
    durations: Durations | None = None
    history: History | None = None
    cache: Any = None
    here: Path = Path()
    written: bool = False

    @classmethod
    def read(cls, options: Options, cache: Any, runs: Sequence[str] | None = None) -> Files:
        """Raises ``PairwiseError`` that names the option for a file that cannot be used.

        ``runs`` are the files of the history that another process of this run read: all must read the same.
        """
        with naming(options.lock.source):
            lock = None if options.lock.value is None else Lock.read(options.lock.value)
        with naming(options.costs.source):
            durations = None if options.costs.value is None else read_durations(options.costs.value)
        with naming(options.history.source):
            history = None if options.history.value is None else read_history(options.history.value, runs)
        return cls(lock, durations, history, cache)

    def about(self, nodeid: str, axes: Sequence[Axis], cases_of: CasesOf) -> About:
        """What is known of a function (node id without brackets) with these axes of now."""
        return About(
            None if self.lock is None else self.lock.locked(nodeid, axes),
            None if self.durations is None else _costs(self.durations.of(nodeid), axes, cases_of),
            None if self.history is None else self._lessons(self.history, nodeid, axes, cases_of),
        )

    def _lessons(self, history: History, nodeid: str, axes: Sequence[Axis], cases_of: CasesOf) -> Lessons:
        return lessons(history.of(nodeid), axes, cases_of, history.reasons.get(nodeid, ""))

    def chose(self, nodeid: str, axes: Sequence[Axis], rows: Sequence[Sequence[int]]) -> None:
        """These cases (positions) were chosen for the function."""
        if self.lock is not None:
            self.lock.put(nodeid, axes, rows)

    def send(self, output: dict[str, Any]) -> None:
        """On a worker: what goes to the controller."""
        if self.lock is not None:
            output[CHOSEN] = self.lock.entries()

    def save(self, source: str) -> str:
        """Write the lock file, which ``source`` names, where the run is controlled; the refusal, or ""."""
        try:
            with naming(source):
                self.written = self.lock is not None and self.lock.save()
        except PairwiseError as error:
            return str(error)
        return ""

    def lines(self, options: Options, tallies: Iterable[Tally]) -> list[str]:
        """For the summary: what the cases depend on beside the code, and what became of the lock file."""
        lines = []
        if options.rotated:
            seed = options.seed.value
            origin = self._seen(options.rotated) if os.path.isabs(options.rotated) else options.rotated
            lines.append(f"seed {seed} from {origin}; again with --pairwise-seed={seed}")
        if self.durations is not None and not self.durations.functions:
            lines.append(f"no durations yet in {self._seen(self.durations.source)}")
        if self.history is not None:
            lines.append(_history_line(self.history, self._seen(self.history.source), list(tallies)))
        if self.lock is not None and self.written:
            file = self._seen(self.lock.path)
            lines.append(f"{file} was written: commit it, so that the next run chooses the same cases")
        return lines

    def _seen(self, path: str | Path) -> str:
        """The path as a reader in ``here`` would write it."""
        seen = os.path.relpath(path, self.here)
        return str(path) if seen.startswith("..") else seen

    def store(self) -> Path | None:
        """The folder for rows of high effort; None where pytest has no cache or cannot write there."""
        with suppress(OSError):
            return None if self.cache is None else Path(self.cache.mkdir(STORE))
        return None


class BetweenProcesses:
    """xdist's hooks where the run is controlled: workers read the same runs, and one of them says what it chose."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def pytest_configure_node(self, node: Any) -> None:
        if self.files.history is not None:
            node.workerinput[RUNS] = list(self.files.history.files)

    def pytest_testnodedown(self, node: Any) -> None:
        chosen = getattr(node, "workeroutput", {}).get(CHOSEN)
        if self.files.lock is not None and chosen:
            self.files.lock.take_in(chosen)


def open_files(config: Any, options: Options) -> Files:
    """The files that the options name, in whichever process of the run this is."""
    files = Files.read(options, getattr(config, "cache", None), getattr(config, "workerinput", {}).get(RUNS))
    files.here = config.invocation_params.dir
    if config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(BetweenProcesses(files))
    return files


@contextmanager
def naming(source: str) -> Iterator[None]:
    """A PairwiseError inside says where its file was named."""
    try:
        yield
    except PairwiseError as error:
        error.where = error.where or source
        raise


def _history_line(history: History, folder: str, tallies: Sequence[Tally]) -> str:
    """From which runs, and what they changed in the choice of all functions together."""
    if history.newest is None:
        return f"no history yet in {folder}"
    date = datetime.fromtimestamp(history.newest, tz=timezone.utc).strftime("%Y-%m-%d %H:%M")
    skipping = [tally.skipping for tally in tallies if tally.skipping]
    paper = sum(tally.owed - tally.planned for tally in tallies if tally.planned is not None)
    kept = sum(tally.kept for tally in tallies)
    failing = sum(tally.failing for tally in tallies)
    told = [
        f"{counted(sum(skipping), 'case')} of {counted(len(skipping), 'function')} skipped and are left for last",
        f"{counted(paper, 'owed tuple')} on paper only: no case that is expected to run holds one",
        f"{counted(kept, 'case')} kept{f' of the {failing:,}' if kept < failing else ''} that failed",
    ]
    found = [text for text, number in zip(told, (sum(skipping), paper, failing), strict=True) if number]
    runs = counted(history.runs, "run")
    return f"{runs} in {folder}, the newest of {date} UTC: {'; '.join(found) or 'no case is left for last or kept'}"


def _costs(measured: Mapping[str, Measured], axes: Sequence[Axis], cases_of: CasesOf) -> CaseCosts:
    recorded = {case: measured[text] for text, cases in cases_of(measured).items() for case in cases}
    return CaseCosts([len(axis.first_positions) for axis in axes], recorded)
