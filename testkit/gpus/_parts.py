"""What the controller of a run tells xdist's workers: their devices, their threads, and budgets for their tests."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from testkit._text import counted
from testkit.gpus import _order, _pinning, _threads
from testkit.gpus._asked import Run
from testkit.gpus._budget import Budgets, read_budgets
from testkit.gpus._pinning import Chosen


class Parts:
    """The workers' parts of what was chosen for a run."""

    def __init__(self, config: Any, run: Run, chosen: Chosen) -> None:
        self._config, self._run, self._chosen = config, run, chosen
        self._told: dict[int, dict[str, Any]] = {}  # by the spec's id(): a replaced worker has that of its predecessor

    def header(self) -> list[str]:
        """What is known before there are workers."""
        devices, said = self._chosen.devices, self._chosen.said
        if not devices:
            return [f"gpus: {self._run.asked} does nothing, found 0 GPUs {said}"]
        if not self._config.pluginmanager.has_plugin("dsession"):
            return [f"gpus: this process sees {_pinning.gpus(devices)} {said}, by {self._run.asked}"]
        return [self._run.auto] if self._run.auto else []

    def assign(self, specs: list[Any]) -> list[str]:
        """Put each worker's variables into its spec of execnet, and say who got what."""
        if not self._chosen.devices:
            return []
        here = _pinning.here(self._config, specs)
        pinned = [spec for spec in here if _pinning.VARIABLES.isdisjoint(spec.env)]  # else with --tx popen//env:...
        granted = _pinning.spread(len(pinned), self._run.slots)
        for spec, share in zip(pinned, granted, strict=True):
            spec.env.update(_pinning.shown(share, os.environ))
            part = f"this worker's part of {counted(len(self._chosen.devices), 'GPU')} ({self._run.asked})"
            beyond = _pinning.beyond(share, self._chosen.devices, os.environ)
            self._told[id(spec)] = {"part": part, "threads": 0, "beyond": beyond, "said": self._chosen.said}
        threads = ""
        for spec in here:
            variables = _threads.threads(len(here), {**os.environ, **spec.env})
            spec.env.update(variables)
            if variables.get(_threads.OMP) and id(spec) in self._told:
                threads = variables[_threads.OMP]
                self._told[id(spec)]["threads"] = int(threads)
        each = f", {counted(int(threads), 'thread')} each of {counted(_threads.cores(), 'core')}" if threads else ""
        lines = _pinning.lines(self._chosen, [spec.id for spec in pinned], granted, len(specs), each)
        known = self._known
        return lines + _order.send(self._config, known.seconds, memory=any(known.peaks.values()))

    def told(self, spec: Any) -> dict[str, Any] | None:
        """For the worker of ``spec``, in its ``workerinput``; None for one that is left alone."""
        told = self._told.get(id(spec))
        return None if told is None else {**told, "budgets": self._text}

    @cached_property
    def _known(self) -> Budgets:
        """Read once for all workers, some of which may see no run files."""
        return read_budgets(self._config, self._chosen.devices, self._run.memory)

    @cached_property
    def _text(self) -> str:
        return self._known.to_text()
