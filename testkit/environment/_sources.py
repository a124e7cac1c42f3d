"""Where facts about a machine are read from: its files, its tools and this process, or stand-ins for them.

Reading never raises for what is not there: files without text, tools without output.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from testkit._loaded import loaded

LIMIT = 10.0
"""Seconds for a tool; a card that is lost can keep the driver's library waiting."""

NVIDIA = ("/proc/driver/nvidia", "/dev/dxg")
"""One of them is there where NVML can be."""

MOST_TEXT = 1 << 16
"""Bytes that are read of a file. /proc/cpuinfo of a large machine is long, and its first entry is enough."""


@dataclass(frozen=True)
class Fact:
    """``value``: text, a whole number (bytes for sizes), a list or a mapping; None if absent. ``how`` it was read."""

    value: Any
    how: str


def output_of(command: Sequence[str]) -> str:
    """What ``command`` prints; "" if it cannot be run, fails or takes too long."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, env=environ)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def libc_name() -> str:
    """``glibc 2.39``; "" for another C library."""
    with suppress(AttributeError, OSError, ValueError):
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    return ""


def usable_cpus() -> int:
    """The processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Sources:
    """``root``: where the machine's file system begins; ``search``: folders with packages, as in ``sys.path``."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    search: Sequence[str] = field(default_factory=lambda: sys.path)
    run: Callable[[Sequence[str]], str] = output_of
    module: Callable[[str], ModuleType | None] = loaded
    libc: Callable[[], str] = libc_name
    cpus: Callable[[], int] = usable_cpus

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str:
        """The beginning of a file, without blanks around it."""
        try:
            with self.at(path).open("rb") as stream:
                return stream.read(MOST_TEXT).decode(errors="replace").strip()
        except OSError:
            return ""

    def listed(self, path: str) -> list[str]:
        """Names in a folder, those with numbers in their order."""
        try:
            names = os.listdir(self.at(path))
        except OSError:
            return []
        return sorted(names, key=lambda name: [int(part) if part.isdigit() else 0 for part in re.split(r"(\d+)", name)])

    @cached_property
    def nvml(self) -> Any:
        """What ``_read_nvml.answer`` says in a process of its own; None without NVIDIA's driver."""
        from testkit.environment import _read_nvml

        if not any(self.at(path).exists() for path in NVIDIA):
            return None
        printed = self.run([sys.executable, "-I", "-S", _read_nvml.__file__])
        return json.loads(printed) if printed else None

    @cached_property
    def packages(self) -> dict[str, str]:
        """Versions of the distributions on ``search`` by normalised name, from the names of their folders.

        https://packaging.python.org/specifications/recording-installed-packages/. importlib.metadata would open every
        one of them: 70 ms for 54.
        """
        found: dict[str, str] = {}
        for folder in self.search:
            try:
                names = os.listdir(folder or ".")
            except OSError:
                continue
            for name in names:
                if told := re.fullmatch(r"([^-]+)-([^-]+)(?:-.*)?\.(?:dist|egg)-info", name):
                    found.setdefault(normalised(told[1]), told[2])
        return dict(sorted(found.items()))

    @cached_property
    def cached_libraries(self) -> dict[str, str]:
        """The first path of each library in the loader's cache, by soname."""
        # Users other than root often have no /sbin in PATH.
        printed = next(filter(None, (self.run([tool, "-p"]) for tool in ("/sbin/ldconfig", "ldconfig"))), "")
        found: dict[str, str] = {}
        for line in printed.splitlines():
            if told := re.match(r"\s+(\S+) \(.*\) => (/.+)", line):
                found.setdefault(told[1], told[2])
        return found

    def library(self, soname: str) -> str:
        """The file that the loader takes for ``soname``, without links; "" if it finds none."""
        folders = filter(None, self.environ.get("LD_LIBRARY_PATH", "").split(":"))
        for path in (*(f"{folder}/{soname}" for folder in folders), self.cached_libraries.get(soname, "")):
            if path and self.at(path).exists():
                return str(self.at(path).resolve())
        return ""


def normalised(name: str) -> str:
    """A distribution's name as https://packaging.python.org/specifications/name-normalization/ has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def numbers_in(text: str) -> str:
    """The first dotted number in ``text``: ``6.4.1-83`` gives ``6.4.1``; "" for none."""
    found = re.search(r"\d+(?:\.\d+)*", text)
    return found[0] if found else ""
