"""Which shard this job is, from the variables that CI systems set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from testkit.errors import TimingError
from testkit.timing._run import shard_numbers

AUTO = "auto"


class _System(NamedTuple):
    """Its two variables, and the number that it gives the first of several jobs."""

    name: str
    number: str
    total: str
    first: int


SYSTEMS = (
    _System("Bazel", "TEST_SHARD_INDEX", "TEST_TOTAL_SHARDS", 0),
    _System("Buildkite", "BUILDKITE_PARALLEL_JOB", "BUILDKITE_PARALLEL_JOB_COUNT", 0),
    _System("CircleCI", "CIRCLE_NODE_INDEX", "CIRCLE_NODE_TOTAL", 0),
    _System("GitLab CI", "CI_NODE_INDEX", "CI_NODE_TOTAL", 1),
    _System("Azure Pipelines", "SYSTEM_JOBPOSITIONINPHASE", "SYSTEM_TOTALJOBSINPHASE", 1),
)

FIX = "write --timing-shard=I/N; GitHub Actions and others have no such variables"


def shard_from(environ: Mapping[str, str], where: str) -> str:
    """The shard of this job as ``2/4``.

    CircleCI and Azure say 1 of 1 to a job that is alone; such a one gives way to another system's numbers, such as
    Bazel's inside of it. TimingError: no variables, half a pair, no numbers, two systems that disagree.
    """
    found = {system: shard for system in SYSTEMS if (shard := _shard(system, environ))}
    if not found:
        names = ", ".join(f"{system.number} ({system.name})" for system in SYSTEMS)
        raise TimingError(f"{AUTO}, but none of these variables is set: {names}", where, FIX)
    divided = {system: shard for system, shard in found.items() if shard != "1/1"} or found
    if len(set(divided.values())) > 1:
        told = ", ".join(f"{system.number} says {shard}" for system, shard in divided.items())
        raise TimingError(f"{AUTO}, and CI systems disagree: {told}", where, "write --timing-shard=I/N")
    return next(iter(divided.values()))


def _shard(system: _System, environ: Mapping[str, str]) -> str:
    number, total = environ.get(system.number, ""), environ.get(system.total, "")
    if not number and total in ("", "1"):  # GitLab counts the jobs of every job, and numbers parallel ones only
        return ""
    told = f"{system.number}={number}, {system.total}={total}"
    if not (number.isdecimal() and total.isdecimal()):
        raise TimingError(f"{system.name} does not say which shard this is: {told}", f"from {system.number}", FIX)
    shard = f"{int(number) + 1 - system.first}/{int(total)}"
    try:
        shard_numbers(shard)
    except TimingError:
        problem = f"{told} is not one of {system.first} to {int(total) - 1 + system.first}"
        raise TimingError(problem, f"{system.name} counts from {system.first}", FIX) from None
    return shard


def tell_bazel(environ: Mapping[str, str]) -> None:
    """Touch the file by which Bazel sees that a test program shards itself; without it Bazel fails the test."""
    path = environ.get("TEST_SHARD_STATUS_FILE")
    if path and environ.get("TEST_SHARD_INDEX"):
        try:
            Path(path).touch()
        except OSError as error:
            problem = f"cannot touch {path}: {error.strerror or error}"
            fix = "give a path that can be written, or unset it outside of Bazel"
            raise TimingError(problem, "from TEST_SHARD_STATUS_FILE", fix) from error
