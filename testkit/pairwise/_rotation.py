"""``--pairwise-seed=auto``: another seed for each CI run, the same on all its shards, workers and attempts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from testkit.errors import PairwiseError

AUTO = "auto"

OWN = "TESTKIT_RUN_ID"
"""Also what testkit.timing calls a run by; it comes first."""

RUN_IDS = (OWN, "GITHUB_RUN_ID", "CI_PIPELINE_ID", "BUILDKITE_BUILD_ID", "CIRCLE_WORKFLOW_ID")
"""Variables that are the same in all jobs of a CI run and, so that a re-run repeats its cases, in all attempts."""

IN_A_PLAN = "pairwise_seed"
"""The key of a file of ``testkit timing plan`` that holds the seed of the ids which it divides."""

SEEDS = 1_000_000
"""Seeds are 0 to one less: short enough to be typed, and two runs of a thousand have the same one with 0.1 %."""


def seed_of_run(environ: Mapping[str, str], plan: Path | None, where: str) -> tuple[int, str]:
    """The seed and what it is from: the seed in the file ``plan``, or a digest of the CI run's id.

    The plan comes first, as it fits only the cases that its seed chose. Raises ``PairwiseError`` where neither is had:
    a seed by chance would differ from shard to shard.
    """
    if plan is not None:
        stored = _stored(plan, where)
        if stored is not None:
            return stored, str(plan)
    for name in RUN_IDS:
        if environ.get(name):
            return int.from_bytes(hashlib.sha256(environ[name].encode()).digest()[:8], "big") % SEEDS, name
    lacking = "" if plan is None else f", and {plan} holds no {IN_A_PLAN}"
    raise PairwiseError(
        f"seed {AUTO!r}, but none of {', '.join(RUN_IDS)} is set{lacking}",
        where,
        f"set {OWN} to one text in all jobs of the run, or give --timing-plan=FILE with a {IN_A_PLAN}, or a number",
    )


def _stored(plan: Path, where: str) -> int | None:
    try:
        data = json.loads(plan.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problem = f"cannot read the seed from {plan}: {getattr(error, 'strerror', None) or error}"
        raise PairwiseError(problem, where, "make the plan again: testkit timing plan") from error
    seed = data.get(IN_A_PLAN) if isinstance(data, dict) else None
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        problem = f"{plan} has {seed!r} as its {IN_A_PLAN}, not a whole number from 0 up"
        raise PairwiseError(problem, where, "make the plan again: testkit timing plan")
    return seed
