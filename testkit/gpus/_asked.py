"""What a run was asked to do about GPUs: the options and ini keys, read once, and what they come to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from testkit import _settings
from testkit._loaded import loaded
from testkit.errors import GpusError
from testkit.gpus import _marker

if TYPE_CHECKING:  # what shares devices out is imported by the runs that ask for it
    from testkit.gpus._pinning import Chosen

USE, MEMORY, MISSING = "--gpus-use", "--gpus-default-memory", "--gpus-missing"
OVER, CACHES = "--gpus-over", "--gpus-caches"
ACTIONS, OVERS, MODES = ("skip", "fail"), ("warn", "fail"), ("shared", "worker", "fresh")


@dataclass
class Run:
    """What was asked for, and what it comes to here. ``chosen`` is None where nothing acts: not asked, or a worker.

    ``everything``: tests without a marker take turns, too. ``fail``: what is missing fails. ``strict``: who takes more
    than its budget fails.
    """

    chosen: Chosen | None = None
    asked: str = ""
    everything: bool = False
    fail: bool = False
    strict: bool = False
    memory: int | None = None
    caches: str = ""  # "": not asked
    slots: list[str] = field(default_factory=list)  # as for _pinning.spread
    auto: str = ""  # why -n auto is what it is
    part: str = ""  # in a worker: what its devices are a part of
    waits: list[tuple[float, str]] = field(default_factory=list)  # seconds, and which test waited
    notes: list[str] = field(default_factory=list)  # for the end of the run


def read(config: Any, getoption: Callable[..., Any] | None = None) -> Run:
    """From pytest's ``Config``; narrows our own environment to a list. Raises ``GpusError`` for bad values."""
    options = getoption or config.getoption
    settings = SimpleNamespace(getoption=options, getini=config.getini, _parser=config._parser)
    nothing: tuple[str, ...] | None = None
    unknown: int | None = None

    def word(option: str, words: tuple[str, ...], default: str) -> str:
        return _settings.resolve(settings, option, _settings.one_of(words, GpusError), default).value

    run = Run(
        fail=word(MISSING, ACTIONS, "skip") == "fail",
        strict=word(OVER, OVERS, "warn") == "fail",
        memory=_settings.resolve(settings, MEMORY, _marker.size, unknown).value,
        caches=word(CACHES, MODES, ""),
    )
    use = _settings.resolve(settings, USE, _entries, nothing)
    if use.value is None:
        return run
    run.everything = True
    if not hasattr(config, "workerinput"):
        from testkit.gpus._pinning import AUTO, choose

        run.chosen = choose(use.value, use.source, os.environ)
        run.slots = run.chosen.devices
        run.asked = f"{use.source.removeprefix('from ')}={','.join(use.value) or AUTO}"
        torch = loaded("torch")
        if run.chosen.narrower and torch is not None and torch.cuda.is_initialized():
            problem, fix = "torch has started CUDA before the list could be set", "load it first, with -p testkit"
            raise GpusError(problem, use.source, fix)
        set_until_end(config, run.chosen.narrower)
    return run


def _entries(raw: str, source: str) -> tuple[str, ...]:
    from testkit.gpus._pinning import parse

    return parse(raw, source)


def set_until_end(config: Any, variables: Mapping[str, str]) -> None:
    """Set variables of our environment until the end of the run."""
    before = {name: os.environ.get(name) for name in variables}

    def restore() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    config.add_cleanup(restore)
    os.environ.update(variables)


def summary(run: Run) -> list[str]:
    """What is said at the end of a run."""
    if not run.waits:
        return run.notes
    seconds, test = max(run.waits)
    total = sum(seconds for seconds, _ in run.waits)
    tests, longest = f"{len(run.waits):,} tests waited", f", the longest {seconds:.1f} s: {test}"
    if len(run.waits) == 1:
        tests, longest = f"{test} waited", ""
    return [f"gpus: {tests} {total:.1f} s for GPU memory{longest}", *run.notes]
