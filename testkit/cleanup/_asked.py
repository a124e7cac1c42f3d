"""What a run asks of clean-up, read from its options and ini keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from testkit import _settings
from testkit.cleanup import _memory, _steps, _wrap
from testkit.cleanup._schedule import parse_scope
from testkit.errors import CleanupError


@dataclass(frozen=True)
class Asked:
    """``scope`` is None where nothing but an imported fixture may ask for clean-ups. Sizes are in bytes."""

    scope: str | None
    steps: tuple[_steps.Step, ...]
    target: _wrap.Target | None
    before: tuple[str, ...]
    memory: int | None
    leaks: str
    leak_limit: int


def read(config: Any) -> Asked:
    """The settings of this run. Raises CleanupError that names the source of one that cannot be used."""
    no_steps: tuple[_steps.Step, ...] = ()
    nothing: tuple[str, ...] = ()
    no_target: _wrap.Target | None = None
    no_limit: int | None = None
    size = _settings.size(CleanupError)
    leak_modes = _settings.one_of(("off", "warn", "fail"), CleanupError)
    scope = _settings.resolve(config, "--cleanup-scope", parse_scope, "function")
    steps = _settings.resolve(config, "--cleanup-steps", _steps.parse, no_steps).value
    target = _settings.resolve(config, "--cleanup-wrap", _wrap.parse, no_target).value
    before = _settings.resolve(config, "--cleanup-before", _lines, nothing).value
    memory = _settings.resolve(config, "--cleanup-when-gpu-memory", size, no_limit).value
    leaks = _settings.resolve(config, "--cleanup-leaks", leak_modes, "off")
    leak_limit = _settings.resolve(config, "--cleanup-leak-limit", size, _memory.DEFAULT_LIMIT)
    measured = leaks.value != "off"
    if leaks.source == "default" and leak_limit.source != "default":
        raise CleanupError("a limit is set and nothing measures leaks", leak_limit.source, "set cleanup_leaks too")
    if measured and scope.value == "session":
        fix = "use cleanup_scope module or function, or cleanup_leaks off"
        raise CleanupError(
            "leaks are measured after a module's clean-up, and cleanup_scope is session", leaks.source, fix
        )
    where = scope.value
    if scope.source == "default" and (target is not None or (measured and not steps and memory is None)):
        where = "module"
    asked = bool(steps) or scope.source != "default" or target is not None or memory is not None or measured
    if before and not asked:
        fix = "set cleanup_steps, cleanup_wrap or cleanup_scope too"
        raise CleanupError("nothing says what a clean start is", "from ini cleanup_before", fix)
    if not steps and target is None:
        steps = _steps.DEFAULT
    return Asked(where if asked else None, steps, target, before, memory, leaks.value, leak_limit.value)


def _lines(raw: str | Iterable[str], source: str) -> tuple[str, ...]:
    lines = raw.splitlines() if isinstance(raw, str) else raw
    return tuple(line.strip() for line in lines if line.strip())


def is_file(line: str) -> bool:
    """Whether a line of ``cleanup_before`` is a pattern for files, not the name of a fixture."""
    return line.endswith(".py") or any(letter in line for letter in "/*?[")


def matches(path: str, line: str) -> bool:
    """Whether such a pattern means the file at ``path``, as node ids write it."""
    return fnmatchcase(path, line) or fnmatchcase(path, f"*/{line}")


def needs_clean_start(item: Any, before: Iterable[str], entering: bool) -> bool:
    """Whether a test is to start clean. ``entering``: no test of its file has been set up yet."""
    path = item.nodeid.partition("::")[0]
    for line in before:
        if is_file(line):
            if entering and matches(path, line):
                return True
        elif line in getattr(item, "fixturenames", ()):
            return True
    return False
