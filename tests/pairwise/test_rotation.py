"""``--pairwise-seed=auto``: where the seed comes from, and that all processes of a run have the same one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.errors import PairwiseError
from testkit.pairwise._rotation import RUN_IDS, SEEDS, seed_of_run

SUITE = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("c", [1, 2, 3])
@pytest.mark.parametrize("b", [1, 2, 3])
@pytest.mark.parametrize("a", [1, 2, 3, 4])
def test_product(a, b, c):
    pass
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in RUN_IDS:
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(test_m=SUITE)

    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess("-p", "testkit.pairwise.plugin", *arguments)

    return run


def chosen(result: pytest.RunResult) -> list[str]:
    return sorted(set(re.findall(r"test_product\[[\d-]+\]", str(result.stdout))))


def test_the_seed_is_the_same_for_one_run_id_and_another_for_the_next() -> None:
    seeds = [seed_of_run({"GITHUB_RUN_ID": str(number)}, None, "")[0] for number in range(19_000, 19_100)]
    assert seeds[7] == seed_of_run({"GITHUB_RUN_ID": "19007"}, None, "")[0]
    assert len(set(seeds)) > 95
    assert all(0 <= seed < SEEDS for seed in seeds)


def test_our_own_variable_comes_first_and_an_empty_one_is_none() -> None:
    environ = {"TESTKIT_RUN_ID": "nightly-7", "GITHUB_RUN_ID": "19000"}
    assert seed_of_run(environ, None, "")[1] == "TESTKIT_RUN_ID"
    assert seed_of_run({**environ, "TESTKIT_RUN_ID": ""}, None, "")[1] == "GITHUB_RUN_ID"


def test_jobs_and_attempts_of_a_run_have_one_seed() -> None:
    first = {"GITHUB_RUN_ID": "19000", "GITHUB_JOB": "a100", "GITHUB_RUN_ATTEMPT": "1"}
    second = {"GITHUB_RUN_ID": "19000", "GITHUB_JOB": "h100", "GITHUB_RUN_ATTEMPT": "2"}
    assert seed_of_run(first, None, "") == seed_of_run(second, None, "")


def test_the_seed_of_a_plan_comes_before_the_run_id(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"testkit_plan": 1, "pairwise_seed": 41}))
    assert seed_of_run({"GITHUB_RUN_ID": "19000"}, plan, "") == (41, str(plan))
    plan.write_text(json.dumps({"testkit_plan": 1}))
    assert seed_of_run({"GITHUB_RUN_ID": "19000"}, plan, "")[1] == "GITHUB_RUN_ID"


def test_a_plan_without_a_seed_and_no_run_id_name_both_ways_out(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    with pytest.raises(PairwiseError, match=r"none of TESTKIT_RUN_ID, .*plan.json holds no pairwise_seed"):
        seed_of_run({}, plan, "from --pairwise-seed")


@pytest.mark.parametrize("text", ["[", '{"pairwise_seed": "7"}', '{"pairwise_seed": -1}', '{"pairwise_seed": true}'])
def test_a_damaged_seed_in_a_plan_is_refused(tmp_path: Path, text: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    with pytest.raises(PairwiseError, match=r"pairwise_seed, not a whole number|cannot read the seed from"):
        seed_of_run({"GITHUB_RUN_ID": "19000"}, plan, "")


def test_a_run_says_its_seed_and_repeats_with_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_RUN_ID", "19000")
    rotated = run("--pairwise-seed=auto", "--collect-only", "-q")
    seed = seed_of_run({"GITHUB_RUN_ID": "19000"}, None, "")[0]
    rotated.stdout.fnmatch_lines([f"seed {seed} from GITHUB_RUN_ID; again with --pairwise-seed={seed}"])
    assert chosen(rotated) == chosen(run(f"--pairwise-seed={seed}", "--collect-only", "-q"))
    assert chosen(rotated) != chosen(run("--collect-only", "-q"))


def test_the_ini_key_rotates_too(run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeini("[pytest]\npairwise_seed = auto")
    monkeypatch.setenv("CI_PIPELINE_ID", "7")
    run().stdout.fnmatch_lines(["seed * from CI_PIPELINE_ID; again with --pairwise-seed=*"])


def test_xdist_workers_take_the_controllers_seed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_RUN_ID", "19000")
    rotated = run("-p", "xdist", "-n2", "-v", "--pairwise-seed=auto")
    rotated.assert_outcomes(passed=12)
    rotated.stdout.fnmatch_lines(["seed * from GITHUB_RUN_ID; *"])
    assert chosen(rotated) == chosen(run("--pairwise-seed=auto", "-v"))


def test_without_a_run_id_auto_is_a_usage_error(run: Run) -> None:
    result = run("--pairwise-seed=auto")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: pairwise: seed 'auto', but none of TESTKIT_RUN_ID, * is set (from --pairwise-seed)",
            "next: set TESTKIT_RUN_ID to one text in all jobs of the run, or give --timing-plan=FILE *",
        ]
    )


def test_the_full_product_asks_for_no_seed(run: Run) -> None:
    run("--no-pairwise", "--pairwise-seed=auto").assert_outcomes(passed=36)


def test_a_lock_file_and_rotation_are_refused_together(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_RUN_ID", "19000")
    result = run("--pairwise-seed=auto", "--pairwise-lock=lock")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pairwise: a lock file (from --pairwise-lock) keeps the cases *", "next: *"])


def test_shards_with_a_plan_take_the_seed_that_it_holds(run: Run, pytester: pytest.Pytester) -> None:
    from testkit.timing import plan

    ids = chosen(run("--pairwise-seed=41", "--collect-only", "-q"))
    made = plan([{"id": f"test_m.py::{name}", "module": "test_m.py", "seconds": 1.0} for name in ids], 2)
    text = json.dumps({**json.loads(made.to_json()), "pairwise_seed": 41})
    (pytester.path / "plan.json").write_text(text)
    passed = 0
    for number in (1, 2):
        words = ("-p", "testkit.timing.plugin", "--timing-plan=plan.json", f"--timing-shard={number}/2")
        result = run(*words, "--pairwise-seed=auto")
        assert result.ret == 0
        result.stdout.fnmatch_lines(["seed 41 from plan.json; again with --pairwise-seed=41"])
        passed += result.parseoutcomes()["passed"]
    assert passed == len(ids)
