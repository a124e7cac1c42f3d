"""``testkit matrix``: what it prints, its exit code, and what it says of bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.__main__ import main

Command = Callable[..., tuple[int, str, str]]

CI = """
matrix:
  image: [cuda-12.4, cuda-12.8, rocm-6.4, cpu]
  gpu: [none, l4, h100, mi300x]
  python: ["3.10", "3.11", "3.12", "3.13", "3.14"]
  torch: ["2.6", "2.9", nightly]
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs ``testkit matrix ...`` in a folder with ci.yml: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    Path("ci.yml").write_text(CI)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["matrix", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_240_jobs_are_thinned_and_the_summary_stays_out_of_the_output(command: Command) -> None:
    code, out, err = command("ci.yml")
    jobs = json.loads(out)
    assert code == 0
    assert 20 <= len(jobs) <= 23
    assert err.startswith(f"240 combinations -> {len(jobs)} jobs, which hold all of 95 pairs")
    assert command("ci.yml", "--format=json") == (0, out, err)


def test_the_strength_says_how_many_values_come_together(command: Command) -> None:
    code, out, err = command("ci.yml", "--strength", "1")
    assert (code, len(json.loads(out))) == (0, 5)
    assert err == "240 combinations -> 5 jobs, which hold all of 16 values\n"
    assert "triples" in command("ci.yml", "--strength=3")[2]


@pytest.mark.parametrize(
    ("format", "first"),
    [("github", 'matrix={"include":['), ("gitlab", ".matrix:"), ("buildkite", "{"), ("pytest", '"""Jobs of a matrix')],
)
def test_each_format_goes_to_the_output(command: Command, format: str, first: str) -> None:
    code, out, _ = command("ci.yml", "--format", format)
    assert code == 0
    assert out.startswith(first)


def test_check_says_which_pairs_are_missing_and_exits_with_1(command: Command) -> None:
    Path("list.json").write_text(json.dumps([{"gpu": "l4", "torch": "2.6"}, {"gpu": "h100", "torch": "2.6"}]))
    Path("axes.toml").write_text('gpu = ["l4", "h100"]\ntorch = ["2.6", "2.9"]\n')
    code, out, err = command("list.json", "--check", "--against", "axes.toml")
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "2 jobs of gpu, torch hold 2 of 4 pairs, 2 missing:",
        "  gpu=l4, torch=2.9",
        "  gpu=h100, torch=2.9",
    ]


def test_what_was_thinned_passes_the_check_against_its_model(command: Command) -> None:
    Path("thinned.json").write_text(command("ci.yml")[1])
    code, out, _ = command("thinned.json", "--check", "--against=ci.yml")
    assert code == 0
    assert "hold 95 of 95 pairs" in out
    assert command("ci.yml", "--check")[:2] == (0, "240 jobs of image, gpu, python, torch hold 95 of 95 pairs\n")


def test_an_include_list_is_passed_on_and_said_to_be_one(command: Command) -> None:
    Path("list.json").write_text('[{"gpu": "l4"}]')
    assert command("list.json", "--format=github") == (
        0,
        'matrix={"include":[{"gpu":"l4"}]}\n',
        "1 job: there are no axes, and entries of include stay\n",
    )


def test_a_dynamic_matrix_needs_its_value(command: Command) -> None:
    Path("w.yml").write_text("jobs: {t: {strategy: {matrix: '${{ fromJSON(needs.plan.outputs.matrix) }}'}}}")
    code, out, err = command("w.yml")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "matrix: matrix comes from needs.plan.outputs.matrix, which only the run knows (in w.yml, job t)",
        "next: give its value: --set needs.plan.outputs.matrix=VALUE",
    ]
    code, out, _ = command("w.yml", "--set", 'needs.plan.outputs.matrix={"gpu": ["l4", "a=b"]}')
    assert (code, json.loads(out)) == (0, [{"gpu": "l4"}, {"gpu": "a=b"}])


def test_a_job_of_a_workflow_is_chosen(command: Command) -> None:
    Path("w.yml").write_text("jobs: {a: {strategy: {matrix: {x: [1]}}}, b: {strategy: {matrix: {y: [2]}}}}")
    assert json.loads(command("w.yml", "--job=b")[1]) == [{"y": 2}]


def test_a_version_that_became_a_number_is_said(command: Command) -> None:
    Path("n.yml").write_text("python: [3.10]")
    code, out, err = command("n.yml")
    assert (code, json.loads(out)) == (0, [{"python": 3.1}])
    assert "matrix: 3.10 is the number 3.1 (n.yml, line 1)\nnext: quote it if it is a version\n" in err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["none.yml"], "matrix: cannot read none.yml: No such file or directory"),
        ([], "matrix: the following arguments are required: FILE (command line)"),
        (["ci.yml", "--format=xml"], "matrix: argument --format: invalid choice: 'xml'"),
        (["ci.yml", "--strength=x"], "matrix: argument --strength: invalid int value: 'x'"),
        (["ci.yml", "--strength=5"], "matrix: strength 5 is not within 1 and 4"),
        (["ci.yml", "--check", "--format=json"], "matrix: --check and --format together"),
        (["ci.yml", "--against=ci.yml"], "matrix: --against without --check"),
        (["ci.yml", "--set=x"], "matrix: --set 'x'"),
    ],
)
def test_bad_input_is_two_lines_and_exit_2(command: Command, words: list[str], problem: str) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith(problem)
    assert second.startswith("next: ")


def test_help_exits_with_0(command: Command) -> None:
    code, out, _ = command("--help")
    assert code == 0
    assert "--against" in out


def test_a_reader_that_stops_reading_is_no_traceback(command: Command) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "testkit", "matrix", "ci.yml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 2
