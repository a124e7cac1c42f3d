"""How many processor cores this process may use, and each worker's part of them as libraries read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from testkit._loaded import loaded

GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

OMP = "OMP_NUM_THREADS"
GO_BY_OMP = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables of libraries that otherwise take OMP_NUM_THREADS."""

COMPILE = "TORCHINDUCTOR_COMPILE_THREADS"


def cores() -> int:
    """The processors that this process may run on, or fewer, in whole ones, where its control groups hold it to less.

    That is sched_getaffinity(2), and cpu.max (version 2) or cpu.cfs_quota_us over cpu.cfs_period_us (version 1) of
    the group and of all above it. At least 1.
    """
    try:
        own = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        own = os.cpu_count() or 1
    quota = _quota()
    return own if quota is None else max(1, min(own, int(quota)))


def threads(workers: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold each of ``workers`` processes to its part of the cores; none that ``environ`` has."""
    number = str(max(1, cores() // workers))
    # Who gave OMP_NUM_THREADS alone meant those that go by it, too.
    names = (COMPILE,) if environ.get(OMP) else (OMP, *GO_BY_OMP, COMPILE)
    return {name: number for name in names if not environ.get(name)}


def hold_torch(number: int) -> None:
    """Hold a torch that has been imported before its variable was set to ``number`` threads."""
    torch = loaded("torch")
    if torch is not None:
        torch.set_num_threads(number)


def _quota() -> float | None:
    """Processors by the tightest quota; None where there is none."""
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return None
    found: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = GROUPS / "cpu" if controllers else GROUPS
        inside = root / path.lstrip("/")
        for folder in (inside, *inside.parents):
            found += _limit(folder)
            if folder == root:
                break
    return min(found, default=None)


def _limit(folder: Path) -> list[float]:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
        except (OSError, ValueError):
            continue
        if quota.isdigit() and int(period) > 0:  # else "max", or -1
            return [int(quota) / int(period)]
    return []
