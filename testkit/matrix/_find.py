"""Where the job matrix is in a file: a workflow, a recipe, a list of jobs, or axes alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testkit.errors import MatrixError
from testkit.matrix._dynamic import evaluated
from testkit.matrix._expand import Matrix, make_matrix
from testkit.matrix._recipe import is_recipe, load_recipe
from testkit.matrix._values import shown
from testkit.matrix._yaml import read_file


def matrix_of(path: Path, job: str | None = None, given: Mapping[str, str] | None = None) -> Matrix:
    """The job matrix in the file at ``path``.

    A workflow has it at ``jobs.ID.strategy.matrix``, where ``job`` is the ID if several jobs have one; any other
    file may have it under ``matrix``. A recipe's axes are its variants and its strategies. A list is one of jobs.
    Else the mapping itself is the matrix. ``given``: values for its expressions, see ``evaluated``.
    """
    data = read_file(path)
    where = f"in {path}"
    if isinstance(data, Mapping) and isinstance(data.get("jobs"), Mapping):
        job, raw = _of_a_workflow(data["jobs"], job, where)
        where = f"{where}, job {job}"
    elif job is not None:
        raise MatrixError(f"--job={job}, and there are no jobs", where, "leave --job out")
    elif isinstance(data, Mapping) and "matrix" in data:
        raw = data["matrix"]
    elif isinstance(data, Mapping) and is_recipe(data):
        raw = load_recipe(path).axes
    elif isinstance(data, list):
        raw = {"include": data}
    elif isinstance(data, Mapping):
        raw = data
    else:
        problem = f"the file holds {shown(data)}"
        raise MatrixError(problem, where, "write a workflow, a recipe, a list of jobs, or axes with lists of values")
    return make_matrix(evaluated(raw, given or {}, "matrix", where), where)


def _of_a_workflow(jobs: Mapping[str, Any], job: str | None, where: str) -> tuple[str, Any]:
    found = {}
    for name, body in jobs.items():
        strategy = body.get("strategy") if isinstance(body, Mapping) else None
        if isinstance(strategy, Mapping) and "matrix" in strategy:
            found[name] = strategy["matrix"]
    if not found:
        raise MatrixError(f"none of the jobs {', '.join(map(str, jobs))} has strategy.matrix", where, "add one")
    if job is None and len(found) > 1:
        raise MatrixError(f"{len(found)} jobs have a matrix", where, f"choose one: --job={' or '.join(found)}")
    name = next(iter(found)) if job is None else job
    if name not in found:
        raise MatrixError(f"job {name!r} has no strategy.matrix", where, f"choose one: --job={' or '.join(found)}")
    return name, found[name]
