"""Shards in inner runs: nothing is lost, nothing runs twice, or a refusal says why; and the order under xdist."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from testkit.__main__ import main
from testkit.timing import Run, Verified, read_folder, verify
from testkit.timing._history import History
from testkit.timing._run import Fixture, Header, Timed
from testkit.timing._write import write

PLUGINS = ("testkit.timing.plugin",)
XDIST = (*PLUGINS, "xdist.plugin")

# Twelve tests in three modules; each leaves its name in a file, so that workers are seen too.
SUITE = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number, request):
    with Path(__file__).with_name("ran.txt").open("a") as file:
        file.write(request.node.nodeid + "\\n")
"""
FILES = ("test_a.py", "test_b.py", "test_c.py")
IDS = [f"{file}::test_it[{number}]" for file in FILES for number in range(4)]

Shards = Callable[..., list[pytest.RunResult]]
Record = Callable[..., pytest.RunResult]


LIMIT = 300
"""Seconds, after which a distributed run hangs: xdist's schedulers of files and scopes can, after a crash."""


@pytest.fixture
def shard(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Record:
    """``shard("2/3", "-n2")``: one shard of the suite in the current folder, recorded as part of run ``r`` in runs/."""
    monkeypatch.setenv("TESTKIT_RUN_ID", "r")

    def run(number: str, *words: object, plugins: Sequence[str] = ()) -> pytest.RunResult:
        plugins = plugins or (XDIST if any(str(word).startswith("-n") for word in words) else PLUGINS)
        loading = [word for plugin in plugins for word in ("-p", plugin)]
        given = [f"--timing-shard={number}", "--timing-dir=runs", *map(str, words)]
        words = [*loading, "-p", "no:cacheprovider", *given]
        if "xdist.plugin" not in plugins:
            return pytester.runpytest_inprocess(*words)
        return pytester.runpytest_subprocess(*words, timeout=LIMIT)

    return run


@pytest.fixture
def suite(pytester: pytest.Pytester) -> None:
    for file in FILES:
        (pytester.path / file).write_text(SUITE)


def proof() -> Verified:
    return verify(read_folder(Path("runs")))


def ran() -> list[str]:
    """Names of tests by their own account."""
    return Path("ran.txt").read_text().split() if Path("ran.txt").exists() else []


def past(folder: str = "past", *, started: float = 1.0, **seconds: float) -> None:
    """A history: ``a=9.0`` for each test of test_a.py, 1.0 for others."""
    tests = [Timed(name, call=seconds.get(name[5], 1.0)) for name in IDS]
    write(
        Path(folder),
        Run(Header("past", started=started), tests=tests, complete=True, seconds=sum(t.call for t in tests)),
    )


@pytest.mark.usefixtures("suite")
class TestSafety:
    """The rows that made other splitters lose tests, or run them twice, without a word."""

    @pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["", "xdist"])
    def test_the_shards_run_every_test_once_and_that_is_proven(self, shard: Record, workers: tuple[str, ...]) -> None:
        results = [shard(f"{n}/3", *workers) for n in (1, 2, 3)]
        assert [result.ret for result in results] == [0, 0, 0]
        assert [result.parseoutcomes()["passed"] for result in results] == [4, 4, 4]
        assert proof().lines() == ["every test ran exactly once: run r, 12 tests collected in 3 shards, 12 ran"]
        assert len(ran()) == 12

    def test_a_shard_that_collects_in_another_order_loses_nothing(
        self, shard: Record, pytester: pytest.Pytester
    ) -> None:
        for n in (1, 2, 3):
            reverse = "def pytest_collection_modifyitems(items):\n    items.reverse()\n" if n == 2 else ""
            (pytester.path / "conftest.py").write_text(reverse)
            shard(f"{n}/3")
        assert proof().ok

    def test_a_shard_with_a_stale_history_is_found_and_named(self, shard: Record) -> None:
        past("new", a=9.0)
        past("old", c=9.0)
        for n, history in ((1, "new"), (2, "old"), (3, "new")):
            assert shard(f"{n}/3", f"--timing-history={history}").ret == 0
        assert not proof().ok
        assert main(["timing", "verify", "runs"]) == 1

    def test_a_shard_with_the_plan_of_another_suite_refuses(self, shard: Record, pytester: pytest.Pytester) -> None:
        past()
        main(["timing", "plan", "past", "--shards=2"])
        (pytester.path / "test_d.py").write_text("def test_new(): pass")
        (pytester.path / "test_a.py").unlink()
        result = shard("1/2", "--timing-plan=timing-plan.json")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            [
                "ERROR: timing: *timing-plan.json is no plan of what was collected: 1 collected and not in the plan "
                "(test_d.py::test_new); 4 in the plan and not collected (test_a.py::test_it[[]0], *and 1 more) "
                "(from --timing-shard)",
                "next: give every shard the same commit, paths, -k and -m, and the plan that was made from them",
            ]
        )
        assert ran() == []

    def test_under_xdist_the_refusal_is_the_same_and_nothing_runs(
        self, shard: Record, pytester: pytest.Pytester
    ) -> None:
        past()
        main(["timing", "plan", "past", "--shards=2"])
        (pytester.path / "test_d.py").write_text("def test_new(): pass")
        result = shard("1/2", "--timing-plan=timing-plan.json", "-n2")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stdout.fnmatch_lines(
            [
                "timing: *timing-plan.json is no plan of what was collected: 1 collected and not in the plan "
                "(test_d.py::test_new) (from --timing-shard)",
                "next: give every shard the same commit, *",
            ]
        )
        assert ran() == []

    @pytest.mark.parametrize("cut", [0, 40, -40])
    def test_a_plan_that_was_cut_is_refused(self, shard: Record, cut: int) -> None:
        past()
        main(["timing", "plan", "past", "--shards=2"])
        text = Path("timing-plan.json").read_text()
        Path("timing-plan.json").write_text(text[:cut] or " ")
        result = shard("1/2", "--timing-plan=timing-plan.json")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: timing: a plan *timing-plan.json)", "next: make the plan again: *"])

    @pytest.mark.parametrize("text", ["", "hello\n", '{"test_a.py::test_it[0]": 1.0}\n'])
    def test_a_history_with_a_foreign_file_in_it_is_refused(self, shard: Record, text: str) -> None:
        past()
        (Path("past") / "x.timing.jsonl").write_text(text)
        result = shard("1/2", "--timing-history=past")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: timing: *x.timing.jsonl is *"])

    def test_a_history_that_lost_its_end_is_used_as_far_as_it_goes(self, shard: Record) -> None:
        past(a=9.0)
        (file,) = Path("past").iterdir()
        file.write_bytes(file.read_bytes()[:-200])
        assert shard("1/1", "--timing-history=past").ret == 0
        assert proof().ok

    def test_a_history_that_is_not_there_is_refused_and_an_empty_one_is_told(self, shard: Record) -> None:
        result = shard("1/2", "--timing-history=past")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: timing: */past does not exist (from --timing-history)", "next: *mkdir*"])
        Path("past").mkdir()
        result = shard("1/2", "--timing-history=past")
        result.stdout.fnmatch_lines(["timing: no durations, so tests are divided by number: *"])
        assert result.ret == 0

    def test_a_history_in_which_nothing_was_recorded_yet_is_as_an_empty_one(self, shard: Record) -> None:
        Path("past").mkdir()
        (Path("past") / ".gitkeep").touch()
        result = shard("1/3", "--timing-history=past")
        assert result.ret == 0
        result.stdout.fnmatch_lines(["timing: past is not empty and has no run file with a run in it"])
        write(Path("past"), Run(Header("past", started=1.0), complete=True))
        result = shard("2/3", "--timing-history=past")
        assert result.ret == 0
        result.stdout.fnmatch_lines(["timing: no run in past has a test in it"])

    def test_an_empty_partial_in_the_history_is_a_note_also_where_warnings_are_errors(self, shard: Record) -> None:
        past()
        (Path("past") / "x.timing.jsonl.partial").touch()
        result = shard("1/2", "--timing-history=past", "-Werror")
        assert result.ret == 0
        result.stdout.fnmatch_lines(["timing: *x.timing.jsonl.partial is empty, it was left out"])

    @pytest.mark.parametrize("history", ["runs", ".", "runs/deep"])
    def test_a_history_that_other_shards_write_to_meanwhile_is_refused(self, shard: Record, history: str) -> None:
        past(history)
        result = shard("1/2", f"--timing-history={history}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: timing: * is read for the plan and written to: *", "next: record into *"])

    def test_zero_durations_are_divided(self, shard: Record) -> None:
        past(a=0.0, b=0.0, c=0.0)
        for n in (1, 2, 3):
            assert shard(f"{n}/3", "--timing-history=past").parseoutcomes()["passed"] == 4
        assert proof().ok

    def test_one_huge_test_leaves_no_shard_empty(self, shard: Record, pytester: pytest.Pytester) -> None:
        past(a=1000.0)
        results = [shard(f"{n}/4", "--timing-history=past") for n in (1, 2, 3, 4)]
        assert [result.ret for result in results] == [0] * 4
        assert all(result.parseoutcomes()["passed"] for result in results)
        assert proof().ok

    @pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["", "xdist"])
    def test_with_more_shards_than_tests_an_empty_one_says_so_and_is_green(
        self, shard: Record, pytester: pytest.Pytester, workers: tuple[str, ...]
    ) -> None:
        for file in FILES[1:]:
            (pytester.path / file).unlink()
        results = [shard(f"{n}/5", *workers) for n in range(1, 6)]
        assert [result.ret for result in results] == [0] * 5
        results[4].stdout.fnmatch_lines(
            ["timing: shard 5/5 is empty by plan: 4 tests collected, all on other shards *"]
        )
        assert proof().ok

    def test_where_nothing_is_collected_every_shard_is_red(self, shard: Record) -> None:
        assert shard("1/2", "-k", "nothing").ret == pytest.ExitCode.NO_TESTS_COLLECTED
        assert shard("1/2", "nowhere.py").ret == pytest.ExitCode.USAGE_ERROR

    @pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["", "xdist"])
    def test_a_file_that_cannot_be_collected_is_the_error_that_is_told(
        self, shard: Record, pytester: pytest.Pytester, workers: tuple[str, ...]
    ) -> None:
        past()
        main(["timing", "plan", "past", "--shards=2"])
        (pytester.path / "test_a.py").write_text("import nowhere")
        result = shard("1/2", "--timing-plan=timing-plan.json", *workers)
        assert result.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
        result.stdout.fnmatch_lines(["*ModuleNotFoundError: No module named 'nowhere'"])
        result.stdout.no_fnmatch_line("*is no plan of what was collected*")

    def test_a_shard_that_is_run_again_counts_once(self, shard: Record) -> None:
        for n in (1, 2, 3, 2):
            shard(f"{n}/3")
        verified = proof()
        assert verified.ok
        assert verified.notes == ["shard 2/3, attempt 1 does not count, it was run again"]

    def test_new_and_removed_tests_are_planned_by_estimates(self, shard: Record, pytester: pytest.Pytester) -> None:
        past(a=3.0)
        (pytester.path / "test_a.py").unlink()
        (pytester.path / "test_d.py").write_text(SUITE)
        results = [shard(f"{n}/2", "--timing-history=past") for n in (1, 2)]
        results[0].stdout.fnmatch_lines(["timing: 4 new tests of 12, estimated: 4 by suite"])
        assert proof().ok

    def test_a_test_that_is_collected_twice_is_refused(self, shard: Record) -> None:
        result = shard("1/2", "--keep-duplicates", "test_a.py", "test_a.py")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: timing: test_a.py::test_it[[]0] was collected twice: *"])

    @pytest.mark.parametrize("dist", ["load", "loadfile", "loadscope"])
    def test_after_the_crash_of_a_worker_nothing_is_lost_or_it_is_named(
        self, shard: Record, pytester: pytest.Pytester, dist: str
    ) -> None:
        """xdist starts a crashed test of a file or scope again and again, and leaves out what comes after it."""
        crash = "\ndef test_crash():\n    os._exit(3)\n"
        (pytester.path / "test_b.py").write_text(SUITE + crash)
        results = [shard(f"{n}/2", "-n2", f"--dist={dist}", "--max-worker-restart=1") for n in (1, 2)]
        assert sorted(result.ret for result in results) == [0, 1]
        verified = proof()
        lost = set(IDS) - set(ran())
        assert verified.collected == 13
        assert set(verified.not_run) == lost
        assert set(verified.doubled) == (set() if dist == "load" else {"test_b.py::test_crash"})
        crashed = [timed for run in read_folder(Path("runs")) for timed in run.tests if timed.outcome != "passed"]
        assert {timed.id for timed in crashed} == {"test_b.py::test_crash"}


@pytest.mark.usefixtures("suite")
class TestSelection:
    def test_what_the_suite_deselects_is_on_no_shard(self, shard: Record) -> None:
        results = [shard(f"{n}/2", "-k", "test_a or test_b") for n in (1, 2)]
        assert [result.parseoutcomes() for result in results] == [{"passed": 4, "deselected": 8}] * 2
        assert proof().lines() == ["every test ran exactly once: run r, 8 tests collected in 2 shards, 8 ran"]

    def test_shards_with_other_options_have_another_digest(self, shard: Record, pytester: pytest.Pytester) -> None:
        shard("1/2", "-k", "test_a")
        shard("2/2")
        assert main(["timing", "verify", "runs"]) == 2

    def test_a_plan_that_was_made_from_a_run_is_followed(self, shard: Record) -> None:
        shard("1/1")
        assert main(["timing", "plan", "runs", "--shards=3"]) == 0
        plan = json.loads(Path("timing-plan.json").read_text())
        result = shard("2/3", "--timing-plan=timing-plan.json", "--timing-dir=again", "-v")
        assert {line.split()[0] for line in result.outlines if " PASSED " in line} == set(plan["shards"][1])

    def test_a_plan_from_the_ids_that_pytest_lists_is_followed(self, shard: Record, pytester: pytest.Pytester) -> None:
        past()
        listed = pytester.runpytest_subprocess("--collect-only", "-q")
        Path("ids.txt").write_text("\n".join(listed.outlines))
        assert main(["timing", "plan", "past", "--ids=ids.txt", "--shards=2"]) == 0
        for n in (1, 2):
            assert shard(f"{n}/2", "--timing-plan=timing-plan.json").ret == 0
        assert proof().ok

    @pytest.mark.parametrize("workers", [(), ("-n2",), ("-n2", "--dist=loadgroup")], ids=["", "xdist", "loadgroup"])
    def test_an_xdist_group_stays_whole_and_the_next_plan_knows_it(
        self, shard: Record, pytester: pytest.Pytester, workers: tuple[str, ...]
    ) -> None:
        mark = "\n@pytest.mark.xdist_group('db')\ndef test_group(request):\n    pass\n"
        for file in FILES:
            (pytester.path / file).write_text(SUITE + mark)
        for n in (1, 2, 3):
            assert shard(f"{n}/3", *workers, plugins=XDIST).ret == 0
        assert proof().ok
        homes = {run.header.shard for run in read_folder(Path("runs")) for t in run.tests if "test_group" in t.id}
        assert len(homes) == 1
        group = {f"{file}::test_group": "xdist_group db" for file in FILES}
        assert History.of(read_folder(Path("runs"))).units == group

    def test_a_plan_that_divides_a_group_is_refused(self, shard: Record, pytester: pytest.Pytester) -> None:
        past()
        main(["timing", "plan", "past", "--shards=2"])
        for file in FILES:
            text = SUITE.replace("range(4)", "[*range(3), pytest.param(3, marks=pytest.mark.xdist_group('db'))]")
            (pytester.path / file).write_text(text)
        result = shard("1/2", "--timing-plan=timing-plan.json", plugins=XDIST)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: timing: *divides xdist_group db, which must stay together, between *"])

    def test_a_run_without_shards_records_what_stays_together(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(test_x="import pytest\n@pytest.mark.xdist_group('db')\ndef test_x(): pass")
        pytester.runpytest_subprocess(*(f"-p{plugin}" for plugin in XDIST), "--timing-dir=runs", "test_x.py")
        assert History.of(read_folder(Path("runs"))).units == {"test_x.py::test_x": "xdist_group db"}

    def test_a_shard_may_be_looked_at_without_running_it(self, shard: Record) -> None:
        result = shard("1/3", "--collect-only", "-q")
        assert result.ret == 0
        assert sum("::" in line for line in result.outlines) == 4

    def test_auto_takes_the_variables_of_the_ci_system_to_the_workers(
        self, shard: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BUILDKITE_PARALLEL_JOB", "1")
        monkeypatch.setenv("BUILDKITE_PARALLEL_JOB_COUNT", "3")
        result = shard("auto", "-n2")
        result.stdout.fnmatch_lines(["timing: shard 2/3 has 4 of 12 tests (plan *"])

    @pytest.mark.parametrize(
        ("words", "problem"),
        [
            (["--timing-shard=0/3"], "shard '0/3' is not one of 1/N to N/N (from --timing-shard)"),
            (["--timing-shard=4/3"], "shard '4/3' is not one of *"),
            (["--timing-shard=x"], "shard 'x' is not one of *"),
            (["--timing-shard="], "no shard is named (from --timing-shard)"),
            (["--timing-shard=auto"], "auto, but none of these variables is set: *BUILDKITE_PARALLEL_JOB *"),
            (["--timing-plan=x.json"], "a plan, but no shard of it (from --timing-plan)"),
            (["--timing-shard=1/2", "--timing-plan=x.json"], "cannot read *x.json: No such file or directory *"),
            (["--timing-order=slowest"], "nothing says which tests are slow (from --timing-order)"),
            (["--timing-order=fastest"], "order 'fastest' is not known (from --timing-order)"),
        ],
    )
    def test_settings_that_make_no_sense_are_usage_errors(
        self, pytester: pytest.Pytester, words: list[str], problem: str
    ) -> None:
        result = pytester.runpytest_subprocess("-p", *PLUGINS, *words)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: timing: {problem}"])


@pytest.mark.usefixtures("suite")
class TestOrder:
    def history(self) -> None:
        """Slower from test to test; test_b.py has a module fixture."""
        tests = [Timed(name, call=1.0 + number) for number, name in enumerate(IDS)]
        run = Run(Header("past", started=1.0), tests=tests, complete=True, seconds=99.0)
        run.fixtures = [Fixture("engine", "module", node="test_b.py", setup=50.0)]
        write(Path("past"), run)

    def test_the_slowest_come_first_in_chunks_of_one(self, pytester: pytest.Pytester) -> None:
        self.history()
        show = "def pytest_report_header(config): return f'chunk {config.option.maxschedchunk}'"
        (pytester.path / "conftest.py").write_text(show)
        loading = [f"-p{plugin}" for plugin in XDIST]
        result = pytester.runpytest_subprocess(*loading, "-n1", "-v", "--timing-history=past", "--timing-order=slowest")
        result.stdout.fnmatch_lines(["chunk 1"])
        order = [line.split()[-1] for line in result.outlines if " PASSED " in line]
        assert order == IDS[4:8] + IDS[:7:-1] + IDS[3::-1]

    @pytest.mark.parametrize("words", [("--maxschedchunk=3",), ("--maxschedchunk=3", "--dist=loadfile")])
    def test_a_chunk_that_the_user_set_stays(self, pytester: pytest.Pytester, words: tuple[str, ...]) -> None:
        self.history()
        show = "def pytest_report_header(config): return f'chunk {config.option.maxschedchunk}'"
        (pytester.path / "conftest.py").write_text(show)
        loading = [f"-p{plugin}" for plugin in XDIST]
        given = ("-n1", "--timing-history=past", "--timing-order=slowest", *words)
        pytester.runpytest_subprocess(*loading, *given).stdout.fnmatch_lines(["chunk 3"])

    def test_elsewhere_the_order_stays_as_it_was_and_that_is_said(self, pytester: pytest.Pytester) -> None:
        self.history()
        loading = [f"-p{plugin}" for plugin in XDIST]
        given = ("-v", "--timing-history=past", "--timing-order=slowest")
        alone = pytester.runpytest_subprocess(*loading, *given)
        assert [line.split()[0] for line in alone.outlines if " PASSED " in line] == IDS
        by_file = pytester.runpytest_subprocess(*loading, *given, "-n1", "--dist=loadfile")
        by_file.stdout.fnmatch_lines(["timing: --timing-order has no use with --dist loadfile, *"])
        assert by_file.ret == 0
