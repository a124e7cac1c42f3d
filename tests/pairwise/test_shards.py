"""A thinned suite in shards: what each says, what is recorded, and what ``testkit pairwise report`` makes of all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testkit.__main__ import main

SUITE = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("c", range(2))
def test_it(a, b, c):
    if (a, b) == (0, 0):
        pytest.skip("planted")
"""


@pytest.fixture
def shard(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TESTKIT_RUN_ID", "r")
    pytester.makepyfile(test_suite=SUITE)

    def run(number: str, *words: str) -> pytest.RunResult:
        plugins = ("-p", "testkit.pairwise.plugin", "-p", "testkit.timing.plugin")
        return pytester.runpytest_subprocess(*plugins, "--timing-dir=runs", f"--timing-shard={number}", *words)

    return run


def test_shards_say_what_is_planned_here_and_the_union_is_judged_afterwards(  # type: ignore[no-untyped-def]
    shard, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 3):
        result = shard(f"{number}/3", "--pairwise-fail-under=100")
        assert result.ret == 0
        result.stdout.re_match_lines(
            [
                r"test_suite\.py::test_it: 24 -> 12 cases, \d here; pairs planned here / owed in all: \d+ / 26, .* ran",
                r"the limit of 100 % \(from --pairwise-fail-under\) is for all shards together:",
            ]
        )
    assert main(["pairwise", "report", "runs", "--missing"]) == 0
    shown = capsys.readouterr().out
    assert "test_suite.py::test_it: 24 -> 12 cases, 26 owed pairs, 92.3 % ran" in shown
    assert "b=0, a=0  skipped: planted" in shown
    assert main(["pairwise", "report", "runs", "--fail-under=92"]) == 0
    assert main(["pairwise", "report", "runs", "--fail-under=93"]) == 1
    captured = capsys.readouterr()
    assert "pairwise: 92.3 % of 26 owed tuples ran, less than 93 %" in captured.err
    assert "next: see --missing for" in captured.err
    assert "together" not in captured.out


def test_a_shard_that_is_missing_lowers_the_union(shard, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    shard("1/3")
    assert main(["pairwise", "report", "runs", "--fail-under=90"]) == 1
    assert "less than 90 %" in capsys.readouterr().err


def test_what_another_run_lends_is_said(  # type: ignore[no-untyped-def]
    shard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        shard(f"{number}/2")
    monkeypatch.setenv("TESTKIT_RUN_ID", "next")
    shard("1/2")
    assert main(["pairwise", "report", "runs", "--fail-under=90"]) == 0
    assert "2 runs together (r, next): what ran in any of them counts" in capsys.readouterr().out


def test_shards_that_were_thinned_otherwise_are_refused(shard, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    shard("1/3")
    shard("2/3", "--pairwise-seed=7")
    assert main(["pairwise", "report", "runs"]) == 2
    assert "pairwise: test_suite.py::test_it was thinned in two ways in these runs" in capsys.readouterr().err


def test_nothing_recorded_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pairwise", "report", str(tmp_path)]) == 2
    assert "next: " in capsys.readouterr().err


def test_cleanup_steps_are_in_the_record(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite="def test_it(): pass")
    plugins = ("-p", "testkit.cleanup.plugin", "-p", "testkit.timing.plugin")
    result = pytester.runpytest_subprocess(*plugins, "--timing-dir=runs", "--cleanup-scope=module")
    assert result.ret == 0
    (file,) = (pytester.path / "runs").iterdir()
    assert any('"cleanup"' in line and '"gc"' in line for line in file.read_text().splitlines()), json.dumps(
        file.read_text()
    )
