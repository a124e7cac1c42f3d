"""Jobs in the formats of CI systems and of pytest, read back by readers of these formats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testkit.errors import MatrixError
from testkit.matrix._expand import expand, make_matrix
from testkit.matrix._formats import FORMATS, MOST, written

JOBS: list[dict[str, Any]] = [
    {"python-version": "3.10", "torch": 2.0, "compile": True, "image": {"name": "cuda", "tag": None}},
    {"python-version": "3.12", "cost": "5$ or $HOME", "note": 'say "hi": \\ #', "none": None},
]
VARIABLES = [
    {"PYTHON_VERSION": "3.10", "TORCH": "2", "COMPILE": "true", "IMAGE": '{"name": "cuda", "tag": null}'},
    {"PYTHON_VERSION": "3.12", "COST": "5$ or $HOME", "NOTE": 'say "hi": \\ #', "NONE": ""},
]


def test_github_gets_one_line_whose_json_is_a_matrix_of_these_jobs() -> None:
    name, _, value = written(JOBS, "github").partition("=")
    assert name == "matrix"
    assert "\n" not in value
    assert expand(make_matrix(json.loads(value), "")) == JOBS


def test_json_is_the_list_of_jobs() -> None:
    assert json.loads(written(JOBS, "json")) == JOBS


def test_gitlab_gets_a_hidden_job_with_a_variable_for_each_value() -> None:
    from ruamel.yaml import YAML

    text = written(JOBS, "gitlab")
    assert YAML(typ="safe", pure=True).load(text) == {".matrix": {"parallel": {"matrix": VARIABLES}}}
    assert text.splitlines()[:4] == [".matrix:", "  parallel:", "    matrix:", '      - PYTHON_VERSION: "3.10"']


def test_buildkite_gets_a_step_a_job_whose_values_the_upload_leaves_alone() -> None:
    steps = json.loads(written(JOBS, "buildkite"))["steps"]
    assert [step["label"] for step in steps] == ["3.10, 2, true, cuda", '3.12, 5$$ or $$HOME, say "hi": \\ #']
    assert {step["command"] for step in steps} == {"${MATRIX_COMMAND:?say what each job runs}"}
    assert [{name: text.replace("$$", "$") for name, text in step["env"].items()} for step in steps] == VARIABLES
    assert all("$" not in text.replace("$$", "") for step in steps for text in step["env"].values())


def test_pytest_gets_a_module_that_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(jobs=written([*JOBS, JOBS[0]], "pytest"))
    pytester.makepyfile(
        test_jobs=f"""
        from jobs import JOBS, each_job

        @each_job
        def test_job(job):
            assert job in {JOBS!r}
        """
    )
    result = pytester.runpytest_subprocess("-v", "-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*test_job?3.10-2-true-cuda? *", "*test_job?3.10-2-true-cuda@2? *"])


@pytest.mark.parametrize("format", MOST)
def test_more_jobs_than_a_system_takes_are_refused(format: str) -> None:
    jobs = [{"shard": number} for number in range(MOST[format] + 1)]
    assert written(jobs[:-1], format)
    with pytest.raises(MatrixError, match=rf"{len(jobs)} jobs, and {format} takes {MOST[format]}"):
        written(jobs, format)


@pytest.mark.parametrize("format", ["gitlab", "buildkite"])
@pytest.mark.parametrize("job", [{"a-b": 1, "a_b": 2}, {"4k": 1}, {"A": 1, "a": 2}])
def test_names_that_make_no_variables_of_their_own_are_refused(format: str, job: dict[str, int]) -> None:
    with pytest.raises(MatrixError, match=r"of job .* cannot be the variable '(A_B|4K|A)'"):
        written([job], format)


def test_every_format_takes_a_job_of_one_value() -> None:
    assert all(written([{"gpu": "l4"}], format) for format in FORMATS)
