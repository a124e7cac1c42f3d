"""Jobs as text for the systems that run them. What a system would refuse is refused here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from testkit.errors import MatrixError
from testkit.matrix._values import Job, as_text, label

MOST = {"github": 256, "gitlab": 200, "buildkite": 500}
"""Jobs of one matrix (GitHub, GitLab), steps of one uploaded file (Buildkite), as their documentation has it."""

COMMAND = "${MATRIX_COMMAND:?say what each job runs}"
"""``buildkite-agent pipeline upload`` puts the variable's value here, or stops with this message."""


def written(jobs: Sequence[Job], format: str) -> str:
    """``jobs`` in one of ``FORMATS``; ``MatrixError`` for more of them than the system takes."""
    most = MOST.get(format)
    if most is not None and len(jobs) > most:
        problem = f"{len(jobs):,} jobs, and {format} takes {most}"
        raise MatrixError(problem, f"--format={format}", "use a lower strength, or split the matrix")
    return FORMATS[format](jobs)


def _github(jobs: Sequence[Job]) -> str:
    """A line for ``$GITHUB_OUTPUT``: ``fromJSON`` of it is a matrix that has nothing but ``include``."""
    return "matrix=" + json.dumps({"include": list(jobs)}, separators=(",", ":"))


def _json(jobs: Sequence[Job]) -> str:
    return json.dumps(list(jobs), indent=2)


def _gitlab(jobs: Sequence[Job]) -> str:
    """A file to include: a hidden job that others extend. JSON's texts are YAML's, in double quotes."""
    lines = [".matrix:", "  parallel:", "    matrix:"]
    for job in jobs:
        pairs = [f"{name}: {json.dumps(text)}" for name, text in _variables(job).items()]
        lines += ["      - " + pairs[0], *("        " + pair for pair in pairs[1:])]
    return "\n".join(lines)


def _buildkite(jobs: Sequence[Job]) -> str:
    """A pipeline to upload, with a step a job. A build matrix of theirs takes 12 adjustments, too few for a list."""
    steps = [
        {
            "label": _literal(", ".join(label(job))),
            "command": COMMAND,
            "env": {name: _literal(text) for name, text in _variables(job).items()},
        }
        for job in jobs
    ]
    return json.dumps({"steps": steps}, indent=2)


def _literal(text: str) -> str:
    return text.replace("$", "$$")  # the upload would take it for a variable


def _variables(job: Job) -> dict[str, str]:
    """The job as environment variables: ``python-version`` is PYTHON_VERSION."""
    found: dict[str, str] = {}
    for name, value in job.items():
        variable = re.sub(r"\W", "_", name, flags=re.ASCII).upper()
        if variable in found or not re.match("[A-Z_]", variable):
            problem = f"{name!r} of job {', '.join(label(job))} cannot be the variable {variable!r}"
            raise MatrixError(problem, fix="rename it: a letter first, and no other name that differs in signs only")
        found[variable] = as_text(value)
    return found


def _pytest(jobs: Sequence[Job]) -> str:
    """A module with a decorator."""
    ids: dict[str, int] = {}
    lines = []
    for job in jobs:
        text = "-".join(label(job))
        ids[text] = ids.get(text, 0) + 1
        name = text if ids[text] == 1 else f"{text}@{ids[text]}"
        lines.append(f"    pytest.param({job!r}, id={name!r}),")
    head = ['"""Jobs of a matrix, by testkit matrix --format=pytest."""', "", "import pytest", "", "JOBS = ["]
    return "\n".join([*head, *lines, "]", 'each_job = pytest.mark.parametrize("job", JOBS)'])


FORMATS: dict[str, Callable[[Sequence[Job]], str]] = {
    "github": _github,
    "gitlab": _gitlab,
    "buildkite": _buildkite,
    "json": _json,
    "pytest": _pytest,
}
