"""What a run was asked to do about time: the options and ini keys, read once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testkit import _settings
from testkit.errors import TimingError
from testkit.timing._budget import Budget, parse_budget, parse_seconds


@dataclass(slots=True)
class Wishes:
    """``shard`` is ``"2/4"`` where this run is one of several. None: not asked for."""

    folder: Path | None = None
    budget: Budget | None = None
    slow: float | None = None
    shard: str = ""

    @property
    def measured(self) -> bool:
        """Whether every test is to be measured."""
        return self.folder is not None or self.budget is not None


def path_finder(config: Any, what: str) -> Callable[[str, str], Path]:
    """For ``_settings.resolve``: a path from where pytest was started, or in an ini key, from the ini file."""

    def find(raw: str, source: str) -> Path:
        if not raw.strip():
            raise TimingError(f"no {what} is named", source, f"name a {what}, or leave it out")
        file = config.inipath.parent if config.inipath else config.rootpath
        return Path((file if " ini " in source else config.invocation_params.dir) / Path(raw).expanduser())

    return find


def seen_from(folder: Path, path: Path) -> str:
    """``path`` as a reader in ``folder`` would write it."""
    shown = os.path.relpath(path, folder)
    return str(path) if shown.startswith("..") else shown


def read_wishes(config: Any) -> Wishes:
    """From pytest's ``Config``. Raises TimingError for values that make no sense."""
    nowhere: Path | None = None
    unlimited: Budget | None = None
    never: float | None = None
    return Wishes(
        _settings.resolve(config, "--timing-dir", path_finder(config, "folder"), nowhere).value,
        _settings.resolve(config, "--timing-budget", parse_budget, unlimited).value,
        _settings.resolve(config, "--timing-slow", parse_seconds, never).value,
    )
