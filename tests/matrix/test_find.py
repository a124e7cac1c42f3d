"""Where the matrix is in a file, and what its expressions stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import MatrixError
from testkit.matrix._dynamic import evaluated
from testkit.matrix._expand import expand
from testkit.matrix._find import matrix_of

WORKFLOW = """
on: push
jobs:
  lint:
    runs-on: ubuntu-24.04
  test:
    strategy:
      fail-fast: false
      matrix:
        gpu: [l4, h100]
"""


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str, name: str = "ci.yml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


JOBS = [{"gpu": "l4"}, {"gpu": "h100"}]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (WORKFLOW, "ci.yml"),
        ("matrix: {gpu: [l4, h100]}\nother: 1", "a.yml"),
        ("gpu: [l4, h100]", "a.yml"),
        ('gpu = ["l4", "h100"]', "a.toml"),
        ('[{"gpu": "l4"}, {"gpu": "h100"}]', "a.json"),
        ('{"include": [{"gpu": "l4"}, {"gpu": "h100"}]}', "a.json"),
        ('matrix: >-\n  ${{ fromJSON(\'{"gpu": ["l4", "h100"]}\') }}', "a.yml"),
    ],
)
def test_a_matrix_is_found_in_a_workflow_under_matrix_alone_or_as_jobs(file: Any, text: str, name: str) -> None:
    assert expand(matrix_of(file(text, name))) == JOBS


def test_a_recipes_axes_are_its_variants_and_its_strategies(file: Any) -> None:
    named = "variants: {bf16: {dtype: bfloat16}, fp8: {dtype: float8}}\n"
    chosen = "strategies: {recommended: tp, alternatives: [ep]}\n"
    assert matrix_of(file(named + chosen)).axes == {"variant": ["bf16", "fp8"], "strategy": ["tp", "ep"]}
    crossed = "variants: {dtype: [bf16, fp8], gpu: [l4, h100], exclude: [{dtype: fp8, gpu: l4}]}\n"
    matrix = matrix_of(file(crossed + chosen))
    assert matrix.axes == {"dtype": ["bf16", "fp8"], "gpu": ["l4", "h100"], "strategy": ["tp", "ep"]}
    assert len(expand(matrix)) == 6
    assert matrix_of(file("{strategy: tp, alternatives: {ep: /ep.json}}")).axes == {"strategy": ["tp", "ep"]}


def test_axes_that_are_called_variants_or_strategy_are_axes(file: Any) -> None:
    assert matrix_of(file("variants: [a, b]\nstrategy: [c]")).axes == {"variants": ["a", "b"], "strategy": ["c"]}


def test_of_several_matrices_in_a_workflow_one_is_chosen_by_its_job(file: Any) -> None:
    path = file(WORKFLOW + "  docs:\n    strategy: {matrix: {os: [a]}}\n")
    assert expand(matrix_of(path, "docs")) == [{"os": "a"}]
    with pytest.raises(MatrixError, match=r"2 jobs have a matrix .*\nnext: choose one: --job=test or docs"):
        matrix_of(path)
    with pytest.raises(MatrixError, match=r"job 'lint' has no strategy.matrix .*\nnext: choose one"):
        matrix_of(path, "lint")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("jobs: {lint: {runs-on: x}, docs: 1}", "none of the jobs lint, docs has strategy.matrix"),
        ("text", "the file holds 'text' .*\nnext: write a workflow, a recipe"),
        ("", "the file holds None"),
        ("name: CI\nsteps: [a]", "axis 'name' is 'CI'"),
        ("matrix:", "the matrix is None"),
        ("[1, 2]", r"include\[0\] is 1"),
    ],
)
def test_a_file_without_a_matrix_says_what_it_holds(file: Any, text: str, problem: str) -> None:
    with pytest.raises(MatrixError, match=problem) as refused:
        matrix_of(file(text))
    assert "ci.yml" in refused.value.where


def test_a_job_is_named_only_for_a_workflow(file: Any) -> None:
    with pytest.raises(MatrixError, match="--job=test, and there are no jobs"):
        matrix_of(file("gpu: [l4]"), "test")


# expressions

GIVEN = {"needs.plan.outputs.matrix": json.dumps({"gpu": ["l4", "h100"]}), "inputs.python-version": "3.12"}


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("${{ fromJSON(needs.plan.outputs.matrix) }}", {"gpu": ["l4", "h100"]}),
        ("${{fromjson( needs.plan.outputs.matrix )}}", {"gpu": ["l4", "h100"]}),
        ({"python": "${{ fromJSON('[\"3.10\", 3.11]') }}"}, {"python": ["3.10", 3.11]}),
        ({"include": ["${{ fromJSON('{\"note\": \"it''s\"}') }}"]}, {"include": [{"note": "it's"}]}),
        (["py${{ inputs.python-version }}-${{ 'x' }}"], ["py3.12-x"]),
        ("${{ inputs.python-version }}", "3.12"),
        ('${{ fromJSON(\'{"a": {"b": {}}}\') }}', {"a": {"b": {}}}),
        ("${{ 'a}}' }}-${{ 'b' }}", "a}}-b"),
        (["plain $x {{ y }}", 1, None, True], ["plain $x {{ y }}", 1, None, True]),
    ],
)
def test_an_expression_is_replaced_by_what_it_stands_for(value: Any, result: Any) -> None:
    assert evaluated(value, GIVEN, "matrix", "") == result


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            "${{ fromJSON(needs.plan.outputs.gpus) }}",
            r"matrix comes from needs.plan.outputs.gpus, which only the run knows \(in ci.yml\)\n"
            "next: give its value: --set needs.plan.outputs.gpus=VALUE",
        ),
        ({"a": ["x", "${{ github.ref }}"]}, r"matrix.a\[1\] comes from github.ref"),
        ({"a": "${{ fromJSON(inputs.python-version && '[1]') }}"}, r"matrix.a is .*more than fromJSON of a name"),
        ("${{ fromJSON('[1') }}", r"matrix is fromJSON of '\[1', which is no JSON: "),
    ],
)
def test_an_expression_that_only_the_run_knows_is_never_guessed(value: Any, problem: str) -> None:
    with pytest.raises(MatrixError, match=problem):
        evaluated(value, GIVEN, "matrix", "in ci.yml")
