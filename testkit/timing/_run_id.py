"""What a run is called: the same on all shards and attempts of one CI run, and never what another run is called."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from testkit.timing._run import Header
from testkit.timing._write import PARTIAL, SUFFIX, _stem

OWN = "TESTKIT_RUN_ID"
"""For CI systems that are not listed, and to tell jobs apart that the others give the same name."""

SYSTEMS = (
    # run, job (several jobs of a run record runs of their own), attempt, what the first attempt is numbered
    ("GITHUB_RUN_ID", "GITHUB_JOB", "GITHUB_RUN_ATTEMPT", 1),
    ("CI_PIPELINE_ID", "CI_JOB_NAME", "", 1),
    ("BUILDKITE_BUILD_ID", "BUILDKITE_STEP_ID", "BUILDKITE_RETRY_COUNT", 0),
    ("CIRCLE_WORKFLOW_ID", "CIRCLE_JOB", "", 1),
)

_PART = re.compile(r"[ :/]*\d+/\d+$")
"""GitLab names the jobs of one division ``test 1/4``."""


def name_run(environ: Mapping[str, str], folder: Path, shard: str, started: float) -> tuple[str, int]:
    """The run's id and the attempt, from CI variables or, without any, from date and chance.

    Where the CI system counts attempts, a file of the same attempt that lies in ``folder`` already is from another
    run of pytest in the same job, and the id gets a number. Where it does not, this is the next attempt.
    """
    run, attempt, counted = _from_ci(environ)
    if not run:
        stamp = datetime.fromtimestamp(started, tz=timezone.utc).strftime("%Y%m%dT%H%M%S")
        return f"{stamp}-{secrets.token_hex(3)}", 1
    name, number = run, 1
    while _taken(folder, Header(name, shard, attempt)):
        if counted:
            number += 1
            name = f"{run}-{number}"
        else:
            attempt += 1
    return name, attempt


def _from_ci(environ: Mapping[str, str]) -> tuple[str, int, bool]:
    """Run id, attempt, and whether somebody counted the attempt."""
    if environ.get(OWN):
        return environ[OWN], 1, False
    for run, job, attempt, first in SYSTEMS:
        if environ.get(run):
            parts = [environ[run], _PART.sub("", environ.get(job, ""))]
            count = environ.get(attempt, "")
            return "-".join(filter(None, parts)), int(count) + 1 - first if count.isdigit() else 1, count.isdigit()
    return "", 1, False


def _taken(folder: Path, header: Header) -> bool:
    stem = _stem(header)
    return any(os.path.lexists(folder / f"{stem}{SUFFIX}{ending}") for ending in ("", PARTIAL))
