"""How much GPU memory a test needs: what its marker says, else what it had at its peak in past runs, else a default."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit import _settings
from testkit.errors import KitError, KitWarning
from testkit.gpus._devices import model

QUANTILE = 0.95
"""Of a test's peaks in past runs; with fewer than twenty of them that is the largest."""

MARGIN = 1.1
"""A learned budget is that peak times this: allocators round up and keep pieces that nothing fits into."""

LAST = 20
"""Runs, the newest, that budgets are learned from."""

FROM_MARKER, LEARNED, DEFAULT = "marker gpus", "its past runs", "--gpus-default-memory"


@dataclass(frozen=True)
class Budgets:
    """What is known of tests by their ids, in bytes. ``peaks``: at their peak in past runs on such cards; 0: none.

    ``typical``: the peak of a test that runs at some moment, budgets weighed with seconds; None without any.
    ``seconds``: what tests took, for their order (see ``_order``), which travels by itself.
    """

    peaks: Mapping[str, int] = field(default_factory=dict)
    typical: int | None = None
    default: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    def of(self, nodeid: str, memory: int | None, *, marked: bool) -> tuple[int | None, str]:
        """Bytes that a test needs on each of its devices, and where that is from; None: nobody knows.

        ``memory`` is the marker's. A marked test that used none as far as its process was seen gets the default: what
        it starts, a server say, was not seen. One that is not marked may not use a GPU at all, and gets no default.
        """
        if memory is not None:
            return memory, FROM_MARKER
        peak = self.peaks.get(nodeid)
        if peak is None:  # xdist's loadgroup adds the group to the id
            peak = self.peaks.get(nodeid.rpartition("@")[0])
        if peak or (peak is not None and not marked):
            return budget(peak), LEARNED
        return self.default if marked else None, DEFAULT

    def to_text(self) -> str:
        """JSON, for workers; ``from_text`` reads it."""
        return json.dumps([dict(self.peaks), self.typical, self.default])

    @classmethod
    def from_text(cls, text: str) -> Budgets:
        return cls(*json.loads(text))


def budget(peak: int) -> int:
    """The bytes that a test should have which had ``peak`` in the past."""
    return math.ceil(peak * MARGIN)


def read_budgets(config: Any, devices: Sequence[str], default: int | None) -> Budgets:
    """What past runs in --timing-history, or else in --timing-dir, tell of tests on cards like ``devices``.

    Nothing where neither is set or nothing was recorded yet; whoever divides tests by them says what is wrong.
    """
    folder = _folder(config)
    return Budgets(default=default) if folder is None else learned(folder, model(devices), default)


def expected_memory(config: Any, devices: Sequence[str], default: int | None) -> int | None:
    """Bytes that a test of this run takes, for ``-n auto``; None where nothing is known."""
    budgets = read_budgets(config, devices, default)
    return default if budgets.typical is None else budget(budgets.typical)


def learned(folder: Path, card: str | None, default: int | None) -> Budgets:
    """Budgets from the run files in ``folder`` that were recorded on ``card`` (None: on cards of unknown model)."""
    from testkit.timing import read_folder

    try:
        with warnings.catch_warnings():  # said where the same files are read for plans
            warnings.simplefilter("ignore", KitWarning)
            runs = read_folder(folder)
    except (KitError, OSError):
        return Budgets(default=default)
    figures: dict[str, list[int]] = {}
    lasted: dict[str, list[float]] = {}
    weights: list[tuple[float, int]] = []
    for run in runs[-LAST:]:
        for timed in run.tests:
            worker = run.workers.get(timed.worker)
            where = (worker.machine if worker else {}).get("environment") or run.header.machine.get("environment")
            if timed.outcome != "skipped" and _model(where) == card:
                figures.setdefault(timed.id, []).append(timed.gpu)
                lasted.setdefault(timed.id, []).append(timed.seconds)
                weights += [(timed.seconds, timed.gpu)] if timed.gpu else []
    peaks = {name: sorted(values)[math.ceil(QUANTILE * len(values)) - 1] for name, values in figures.items()}
    seconds = math.fsum(spent for spent, _ in weights)
    typical = round(math.fsum(spent * peak for spent, peak in weights) / seconds) if seconds else None
    return Budgets(peaks, typical, default, {name: sorted(each)[len(each) // 2] for name, each in lasted.items()})


def _model(environment: Any) -> str | None:
    """The model of a recorded machine's cards; None where it is not known, or they differ."""
    cards = environment.get("gpus") if isinstance(environment, dict) else None
    found = {card.get("model") for card in cards or () if isinstance(card, dict)}
    return found.pop() if len(found) == 1 else None


def _folder(config: Any) -> Path | None:
    nowhere: Path | None = None
    file = config.inipath.parent if config.inipath else config.rootpath

    def find(raw: str, source: str) -> Path | None:
        """As testkit.timing finds them."""
        base = file if " ini " in source else config.invocation_params.dir
        return Path(base / Path(raw).expanduser()) if raw.strip() else None

    for option in ("--timing-history", "--timing-dir"):
        folder = _settings.resolve(config, option, find, nowhere).value
        if folder is not None and folder.exists():
            return folder
    return None
