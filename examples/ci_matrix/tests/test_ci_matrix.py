"""The wheel in the jobs of CI, and the recipe in every variant and strategy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ci_matrix.wheel import command, fetch, smoke

from testkit.matrix import load_recipe, parametrize_from, select_strategy

FILES = Path(__file__).parents[1] / "ci_matrix"
RECIPE = load_recipe(FILES / "recipe.yml", fetch)


def matrix(*words):
    argv = [sys.executable, "-m", "testkit", "matrix", *words]
    return subprocess.run(argv, cwd=FILES, capture_output=True, text=True, timeout=60)


def each_job(file):
    jobs = json.loads(matrix(file).stdout)
    return pytest.mark.parametrize("job", jobs, ids=["-".join(map(str, job.values())) for job in jobs])


@each_job("by_hand.yml")
def test_the_wheel_loads_in_a_job_chosen_by_hand(job):
    assert smoke(job) == "loaded"


@each_job("matrix.yml")
def test_the_wheel_loads_in_a_job_of_the_thinned_matrix(job):
    assert smoke(job) == "loaded"


def test_the_list_by_hand_is_known_to_miss_more_than_half_of_the_pairs():
    done = matrix("by_hand.yml", "--check", "--against", "matrix.yml")
    assert done.returncode == 1
    assert "8 jobs of image, gpu, python, torch hold 39 of 87 pairs, 48 missing:" in done.stdout


def test_the_thinned_matrix_misses_no_pair(tmp_path):
    (tmp_path / "jobs.json").write_text(matrix("matrix.yml").stdout)
    done = matrix(str(tmp_path / "jobs.json"), "--check", "--against", "matrix.yml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "hold 87 of 87 pairs" in done.stdout


@parametrize_from(RECIPE)
def test_each_variant_is_served_by_each_strategy(variant, strategy):
    argv = command(RECIPE.data, variant, strategy.settings)
    assert argv[:3] == ["serve", "org/moe-30b", f"--dtype={variant['dtype']}"]
    assert len(argv) > 3


def test_a_strategy_is_chosen_in_any_case_and_the_recommended_one_without_a_name():
    assert select_strategy(RECIPE, "DEP").settings["args"][0] == "--data-parallel-size=8"
    assert select_strategy(RECIPE).name == "tp"
