"""``testkit timing``: what each verb prints and writes, its exit code, and what it says of bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from testkit.__main__ import main
from testkit.timing import Plan, read_folder
from testkit.timing._history import UNITS
from testkit.timing._run import Fixture, Header, Record, Run, Timed, Whole
from testkit.timing._shard import SHARD
from testkit.timing._write import write

IDS = [f"tests/test_{file}.py::test_{number}" for file in "ab" for number in range(3)]
NOW = 1_796_000_000.0

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs ``testkit timing ...`` in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.time", lambda: NOW)

    def run(*words: object) -> tuple[int, str, str]:
        code = main(["timing", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def saved(
    folder: str | Path,
    name: str = "r",
    *,
    day: float = 0.0,
    shard: str = "",
    seconds: Sequence[float] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    selected: Sequence[str] = IDS,
    records: Sequence[Record] = (),
) -> Path:
    """A run file of ``selected``, each test with its seconds."""
    times = dict(zip(IDS, seconds, strict=True))
    tests = [Timed(nodeid, call=times[nodeid]) for nodeid in selected]
    header = Header(name, shard, started=NOW - (100 - day) * 86_400, host="box")
    run = Run(header, tests=tests, whole=Whole.of(IDS), selected=list(selected), seconds=sum(seconds), complete=True)
    run.fixtures = [Fixture("engine", "module", node="tests/test_a.py", setup=0.5)]
    run.records, run.exit_status = list(records), 0
    return write(Path(folder), run)


def test_report_says_where_the_time_of_the_newest_run_went(command: Command) -> None:
    saved("runs", "old", day=1, seconds=[9.0] * 6)
    saved("runs", "new", day=2)
    code, out, err = command("report", "runs")
    assert (code, err) == (0, "")
    assert out.startswith("passed: 6 tests, in 21.5 s")
    assert "tests/test_b.py::test_2" in out


def test_report_as_markdown_is_nothing_but_markdown(command: Command) -> None:
    saved("runs")
    _, out, _ = command("report", "runs", "--markdown")
    assert "| " in out
    assert "passed: 6 tests" in out


def test_report_as_annotations_has_the_lines_that_github_reads(command: Command) -> None:
    saved("runs", seconds=[600.0] * 6)
    code, out, _ = command("report", "runs", "--annotations")
    assert code == 0
    assert all(line.startswith("::") for line in out.splitlines())


def test_report_writes_its_page_and_names_it(command: Command) -> None:
    pytest.importorskip("jinja2", reason="needs the extra kernel-testkit[report]")
    saved("runs")
    _, out, _ = command("report", "runs", "--html", "page.html")
    assert out.endswith("page: page.html\n")
    assert Path("page.html").read_text(encoding="utf-8").lstrip().startswith("<!doctype html>")


def test_compare_of_two_runs_names_what_became_slower_and_exits_with_1(command: Command) -> None:
    saved("base")
    saved("head", "new", seconds=[1.0, 2.0, 3.0, 4.0, 5.0, 66.0])
    code, out, err = command("compare", "base", "head")
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "1 of 6 tests slower, 0 faster (2 of 3 runs off the median of 7 by 25% and 45 s)",
        "slower:",
        "  +60.00 s  6.00 s -> 1 min 06 s  11.00x  tests/test_b.py::test_2",
        "note: 6 of 6 rows have fewer runs than the gate asks for (2 of 3 runs off the median of 7 by 25% and 45 s): "
        "what differs there may be chance",
    ]


def test_compare_exits_with_0_for_what_became_faster_and_what_stayed_below_the_gate(command: Command) -> None:
    saved("base", seconds=[1.0, 2.0, 3.0, 4.0, 5.0, 66.0])
    saved("head", "new", seconds=[1.0, 2.0, 3.0, 4.0, 25.0, 6.0])
    code, out, _ = command("compare", "base", "head")
    assert code == 0
    assert "faster:\n  -60.00 s  1 min 06 s -> 6.00 s  0.09x  tests/test_b.py::test_2" in out


def test_the_gate_of_compare_can_be_set(command: Command) -> None:
    saved("base")
    saved("head", "new", seconds=[1.0, 2.0, 3.0, 4.0, 5.5, 6.0])
    narrow = ("--relative=5%", "--seconds=300ms", "--runs=1", "--median=1")
    assert command("compare", "base", "head")[0] == 0
    code, out, _ = command("compare", "base", "head", *narrow)
    assert code == 1
    assert out.startswith("1 of 6 tests slower, 0 faster (1 of 1 run off the median of 1 by 5% and 0.3 s)\n")
    assert command("compare", "base", "head", *narrow, "--seconds=1s")[0] == 0
    assert command("compare", "base", "head", *narrow, "--relative=0.2")[0] == 0


@pytest.mark.parametrize(
    ("by", "name"), [("test", IDS[5]), ("file", "tests/test_b.py"), ("phase", "call"), ("phase", "longest run file")]
)
def test_compare_goes_by_tests_files_or_phases(command: Command, by: str, name: str) -> None:
    saved("base")
    saved("head", "new", seconds=[1.0, 2.0, 3.0, 4.0, 5.0, 66.0])
    code, out, _ = command("compare", "base", "head", "--by", by)
    assert code == 1
    assert name in out


def test_compare_goes_by_fixtures(command: Command) -> None:
    saved("base")
    saved("head", "new")
    _, out, _ = command("compare", "base", "head", "--by=fixture")
    assert out.startswith("0 of 1 fixture slower")


def test_compare_of_one_folder_judges_its_newest_runs(command: Command) -> None:
    for day in range(10):
        saved("runs", f"r{day}", day=day, seconds=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0 if day < 8 else 100.0])
    code, out, _ = command("compare", "runs")
    assert code == 1
    assert out.splitlines()[2] == "  +94.00 s  6.00 s -> 1 min 40 s  16.67x  tests/test_b.py::test_2"


def test_compare_leaves_a_run_that_is_on_both_sides_out_of_the_base(command: Command) -> None:
    saved("runs", "old", day=1)
    head = saved("runs", "new", day=2, seconds=[1.0, 2.0, 3.0, 4.0, 5.0, 66.0])
    assert command("compare", "runs", head)[0] == 1
    code, _, err = command("compare", head, head)
    assert code == 2
    assert "has no run that is not in" in err


def test_compare_names_new_and_gone_tests(command: Command) -> None:
    saved("base", selected=IDS[:5])
    saved("head", "new", selected=IDS[1:])
    _, out, _ = command("compare", "base", "head")
    assert f"new: 1 ({IDS[5]})\ngone: 1 ({IDS[0]})\n" in out


def test_plan_divides_the_tests_of_the_newest_run_by_past_times(command: Command) -> None:
    saved("runs")
    code, out, err = command("plan", "runs", "--shards=2", "--output=plan.json", "--fixed=0")
    assert (code, err) == (0, "")
    plan = Plan.from_json(Path("plan.json").read_text())
    assert sorted(name for shard in plan.shards for name in shard) == IDS
    assert max(plan.seconds) == 11.0
    assert out.splitlines()[0] == "6 tests on 2 shards, the longest 11.0 s: plan.json"


def test_plan_keeps_the_seed_that_chose_its_ids_for_the_shards(command: Command) -> None:
    saved("runs")
    code, _, err = command("plan", "runs", "--shards=2", "--output=plan.json", "--pairwise-seed=8123")
    assert (code, err) == (0, "")
    assert json.loads(Path("plan.json").read_text())["pairwise_seed"] == 8123
    assert len(Plan.from_json(Path("plan.json").read_text()).shards) == 2
    code, _, err = command("plan", "runs", "--shards=2", "--pairwise-seed=auto")
    assert code == 2
    assert "'auto' is no number from 0" in err


def test_plan_takes_as_few_shards_as_the_target_allows(command: Command) -> None:
    saved("runs")
    command("plan", "runs", "--target=8s", "--fixed=1s")
    plan = Plan.from_json(Path("timing-plan.json").read_text())
    assert max(plan.seconds) <= 8.0
    assert len(plan.shards) == 4
    code, _, err = command("plan", "runs", "--target=5s")
    assert code == 2
    assert f"{IDS[5]} alone takes" in err


def test_plan_takes_start_and_collection_from_past_runs(command: Command) -> None:
    run = saved("runs")
    lines = run.read_text().splitlines()
    end = json.loads(lines[-1])
    end[2] += 30_000_000
    run.write_text("\n".join([*lines[:-1], json.dumps(end)]) + "\n")
    _, out, _ = command("plan", "runs", "--shards=2")
    assert "29.5 s of each is start, collection and the like" in out


LISTED = "\n".join(IDS)


@pytest.mark.parametrize(
    "text",
    [
        LISTED,
        f"{LISTED}\n",
        f"{LISTED}\n\n6 tests collected in 0.02s\n",
        f"{LISTED}\n\n6/9 tests collected (3 deselected) in 0.02s\n",
        f"{LISTED}\n\n=== warnings summary ===\nfoo.py:1\n\n-- Docs: x\n6 tests collected in 0.02s\n",
    ],
)
def test_plan_takes_the_ids_that_pytest_listed(command: Command, text: str) -> None:
    saved("runs", selected=IDS[:3])
    Path("ids.txt").write_text(text)
    code, out, _ = command("plan", "runs", "--shards=2", "--ids=ids.txt")
    assert code == 0
    assert "3 new tests of 6" in out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no node id"),
        ("\n", "no node id"),
        ("tests/test_a.py: 3\n", "'tests/test_a.py: 3' is no node id"),
        ("<Module test_a.py>\n  <Function test_a>\n", "is no node id"),
        ("===== test session starts =====\n", "is no node id"),
        (f"{LISTED}\n\n7 tests collected in 0.02s\n", "6 ids and then '7 tests collected"),
        (f"{LISTED}\n\n6 tests collected, 1 error in 0.02s\n", "6 ids and then '6 tests collected, 1 error"),
        (f"{LISTED}\n\nTraceback (most recent call last):\n", "6 ids and then 'Traceback"),
        (f"{LISTED}\n{IDS[0]}\n", "an id twice"),
    ],
)
def test_a_list_of_ids_that_is_not_whole_is_refused(command: Command, text: str, problem: str) -> None:
    saved("runs")
    Path("ids.txt").write_text(text)
    code, _, err = command("plan", "runs", "--shards=2", "--ids=ids.txt")
    assert code == 2
    assert err.startswith("timing: ")
    assert problem in err
    assert "(in ids.txt)\n" in err
    assert not Path("timing-plan.json").exists()


def test_plan_keeps_together_what_the_runs_recorded_as_one(command: Command) -> None:
    together = [IDS[0], IDS[4]]
    saved("runs", records=[Record(UNITS, data={"db": together})])
    command("plan", "runs", "--shards=3")
    plan = Plan.from_json(Path("timing-plan.json").read_text())
    assert [sum(name in shard for name in together) for shard in plan.shards if set(together) & set(shard)] == [2]


def test_plan_says_how_old_its_times_are_and_that_they_are_of_one_worker(command: Command) -> None:
    run = Run(Header("r", started=NOW - 30 * 86_400), complete=True, seconds=9.0)
    run.tests = [Timed(nodeid, f"gw{number % 2}", call=1.0 + number) for number, nodeid in enumerate(IDS)]
    write(Path("runs"), run)
    _, out, _ = command("plan", "runs", "--shards=2")
    assert "note: the newest recorded times are 30 days old" in out
    assert "note: times are of one worker; the newest run had 2" in out


def shards(
    folder: str, *, selected: Sequence[Sequence[str]] = (IDS[:2], IDS[2:4], IDS[4:]), plans: str = "aaa"
) -> None:
    for number, (names, plan) in enumerate(zip(selected, plans, strict=True), 1):
        record = Record(SHARD, data={"plan": plan, "durations": plan, "source": f"made of {plan}"})
        saved(folder, shard=f"{number}/3", selected=names, records=[record])


def test_verify_exits_with_0_when_every_test_ran_once(command: Command) -> None:
    shards("runs")
    assert command("verify", "runs") == (
        0,
        "every test ran exactly once: run r, 6 tests collected in 3 shards, 6 ran\n",
        "",
    )


def test_verify_exits_with_1_and_says_which_shard_had_another_plan(command: Command) -> None:
    shards("runs", selected=(IDS[:2], IDS[1:3], IDS[4:]), plans="aba")
    code, out, _ = command("verify", "runs")
    assert code == 1
    assert out.startswith("NOT every test ran exactly once")
    assert "in no shard: 1" in out
    assert out.endswith(
        "the shards did not choose by one plan:\n"
        "  1/3, 3/3: plan a made of a\n"
        "  2/3: plan b made of b\n"
        "  what they know of the tests differs: give every shard the same --timing-history or --timing-plan\n"
    )


def test_verify_names_what_no_shard_ran_by_the_plan(command: Command) -> None:
    saved("past")
    command("plan", "past", "--shards=3")
    shards("runs", selected=(IDS[:2], IDS[3:4], IDS[4:]))
    code, out, _ = command("verify", "runs", "--plan", "timing-plan.json")
    assert code == 1
    assert f"in no shard: 1\n    {IDS[2]}\n" in out


def test_verify_of_nothing_is_refused(command: Command) -> None:
    Path("runs").mkdir()
    code, out, err = command("verify", "runs")
    assert (code, out) == (2, "")
    assert err.startswith("timing: no run file in runs")


def test_merge_copies_and_says_what_is_missing(command: Command) -> None:
    saved("one", shard="1/3", selected=IDS[:2])
    saved("two", shard="3/3", selected=IDS[4:])
    code, out, _ = command("merge", "one", "two", "--into", "all")
    assert code == 0
    assert out == "2 run files copied to all\nrun r: 2 of 3 shards\n  shard 2/3 has no run file\n"
    assert command("merge", "one", "--into", "all")[1] == "0 run files copied to all\n"


def test_prune_deletes_old_runs_and_counts_them(command: Command) -> None:
    for day in range(4):
        saved("runs", f"r{day}", day=day)
    assert command("prune", "runs", "--keep=3")[:2] == (0, "1 run file deleted in runs\n")
    assert command("prune", "runs", "--days=98.5")[:2] == (0, "1 run file deleted in runs\n")
    assert [run.header.run for run in read_folder(Path("runs"))] == ["r2", "r3"]


def test_import_turns_durations_into_run_files_that_plan_reads(command: Command) -> None:
    Path(".test_durations").write_text(json.dumps(dict.fromkeys(IDS, 2.0)))
    code, out, _ = command("import", ".test_durations", "--into", "runs")
    assert code == 0
    assert out.startswith(".test_durations: 6 tests of pytest-split in runs/")
    assert command("plan", "runs", "--shards=2")[0] == 0


def test_export_writes_to_the_output_or_a_file(command: Command) -> None:
    saved("runs")
    _, out, _ = command("export", "runs", "--format=pytest-split")
    assert json.loads(out) == dict(zip(IDS, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], strict=True))
    assert command("export", "runs", "--format=csv", "--output=times.csv") == (0, "", "")
    assert len(Path("times.csv").read_text().splitlines()) == 7


def test_query_answers_as_a_table_or_as_csv(command: Command) -> None:
    pytest.importorskip("duckdb", reason="needs the extra kernel-testkit[report]")
    saved("runs")
    sql = "select file, sum(call) as seconds from tests group by file order by file"
    assert command("query", sql, "runs")[:2] == (
        0,
        "file             seconds\ntests/test_a.py      6.0\ntests/test_b.py     15.0\n",
    )
    assert command("query", sql, "runs", "--csv")[1] == "file,seconds\ntests/test_a.py,6.0\ntests/test_b.py,15.0\n"


@pytest.mark.parametrize("name", ["runs", "tests", "fixtures", "collection", "imports", "records", "workers"])
def test_query_has_all_that_a_run_file_has_and_any_id(command: Command, name: str) -> None:
    pytest.importorskip("duckdb", reason="needs the extra kernel-testkit[report]")
    run = read_folder(saved("runs", records=[Record("note", IDS[0], {"text": "\ud800\x00"})]))[0]
    run.header.run = "other"
    run.tests.append(Timed("tests/test_a.py::test_x[\ud800\x00\n]"))
    write(Path("runs"), run)
    code, out, _ = command("query", f"select count(*) as number from {name}", "runs")
    assert code == 0
    assert int(out.split()[1]) == {"runs": 2, "tests": 13, "fixtures": 2, "records": 2, "workers": 2}.get(name, 0)


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("selec 1", "syntax error"),
        ("from nothing", "Table with name nothing does not exist"),
        ("from columns", "Table with name columns does not exist"),
        (" ; ", "an empty query"),
        ("-- nothing", "an empty query"),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused(command: Command, sql: str, problem: str) -> None:
    pytest.importorskip("duckdb", reason="needs the extra kernel-testkit[report]")
    saved("runs")
    code, _, err = command("query", sql, "runs")
    assert code == 2
    assert problem in err
    assert "describe tests" in err


def test_query_without_duckdb_says_what_to_install(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    saved("runs")
    code, _, err = command("query", "from tests", "runs")
    assert code == 2
    assert 'pip install "kernel-testkit[report]"' in err


def test_what_a_reader_of_the_files_should_know_is_said_without_a_traceback(command: Command) -> None:
    saved("runs")
    (Path("runs") / "x.timing.jsonl.partial").touch()
    code, _, err = command("report", "runs")
    assert code == 0
    assert err == "timing: runs/x.timing.jsonl.partial is empty, it was left out\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "the following arguments are required: VERB"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["report"], "the following arguments are required: PATH"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["report", "empty"], "no run file in empty"),
        (["report", "foreign.txt"], "foreign.txt is not a run file"),
        (["export", "runs", "--format=csv", "--output=nowhere/x.csv"], "cannot write nowhere/x.csv"),
        (["compare", "runs", "nowhere"], "nowhere does not exist"),
        (["compare", "runs", "--relative=-1"], "'-1' is no share"),
        (["compare", "runs", "--relative=x%"], "'x%' is no share"),
        (["compare", "runs", "--seconds=x"], "'x' is no time"),
        (["compare", "runs", "--runs=0"], "'0' is no number from 1"),
        (["compare", "runs", "--runs=2", "--above=3"], "above is 3 of 2 runs"),
        (["plan", "runs"], "one of the arguments --shards --target is required"),
        (["plan", "runs", "--shards=2", "--target=5m"], "not allowed with"),
        (["plan", "runs", "--target=0s"], "alone takes"),
        (["plan", "runs", "--shards=2", "--ids=nowhere"], "cannot read nowhere"),
        (["plan", "runs", "--shards=2", "--memory=x"], "'x' is no size"),
        (["plan", "runs", "--shards=2", "--memory=80G"], "no test says what it needs"),
        (["plan", "runs", "--shards=2", "--quantile=1.5"], "quantile is 1.5"),
        (["verify", "runs", "--plan=foreign.txt"], "a plan that is no JSON"),
        (["merge", "runs"], "the following arguments are required: --into"),
        (["merge", "foreign.txt", "--into=x"], "foreign.txt is not a run file"),
        (["prune", "runs"], "nothing says what is old"),
        (["prune", "runs", "--days=nan"], "'nan' is no number above 0"),
        (["prune", "nowhere", "--keep=1"], "nowhere does not exist"),
        (["import", "foreign.txt", "--into=x"], "foreign.txt is something that begins with"),
        (["import", "empty", "--into=x"], "cannot read empty"),
        (["export", "runs", "--format=xlsx"], "invalid choice: 'xlsx'"),
    ],
)
def test_bad_input_is_refused_in_two_lines_with_exit_code_2(command: Command, words: list[str], problem: str) -> None:
    saved("runs")
    Path("empty").mkdir()
    Path("foreign.txt").write_text("hello\n")
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err.startswith("timing: ")
    assert problem in err
    assert len(err.splitlines()) <= 2


def test_help_exits_with_0(command: Command) -> None:
    code, out, _ = command("--help")
    assert code == 0
    assert "compare" in out
    assert command("plan", "--help")[0] == 0


def test_a_reader_that_has_seen_enough_gets_no_traceback(tmp_path: Path) -> None:
    saved(tmp_path)
    words = [sys.executable, "-m", "testkit", "timing", "export", str(tmp_path), "--format=csv"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()  # before anything is written
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(60) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_behind_the_output_is_an_error_of_two_lines(tmp_path: Path) -> None:
    saved(tmp_path)
    words = [sys.executable, "-m", "testkit", "timing", "report", str(tmp_path)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "timing: cannot write the output: No space left on device (command line)\n"


def test_compare_refuses_where_all_that_it_would_judge_was_cut_short(command: Command) -> None:
    saved("runs", "r0", day=0)
    for day in (1, 2, 3):
        cut_short(saved("runs", f"r{day}", day=day))
    code, out, err = command("compare", "runs")
    assert (code, out) == (2, "")
    assert err.startswith("timing: nothing whole to compare (run r1 is left out: the run, attempt 1 ended with exit")


def cut_short(path: Path) -> None:
    """As Ctrl-C leaves it: with an end."""
    lines = path.read_text().splitlines()
    end = json.loads(lines[-1])
    end[1] = 2
    path.write_text("\n".join([*lines[:-1], json.dumps(end)]) + "\n")


def test_compare_notes_that_most_of_the_base_is_gone(command: Command) -> None:
    saved("base")
    saved("head", "new", selected=IDS[:2])
    assert "note: more than half of the base is gone" in command("compare", "base", "head")[1]
