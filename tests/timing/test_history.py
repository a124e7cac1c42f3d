"""Past runs as a history: what a plan takes from them, comparison by rows, and pruning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import KitWarning, TimingError
from testkit.timing import Run
from testkit.timing._history import DAY, UNITS, History, newest_ids, prune, rows
from testkit.timing._merge import inventory
from testkit.timing._run import Collected, Fixture, Header, Imported, Jit, Record, Timed, Whole
from testkit.timing._trend import trend
from testkit.timing._write import write

A, B = "tests/test_a.py", "tests/test_b.py"


def a_run(
    name: str = "r",
    *,
    started: float = 1000.0,
    shard: str = "",
    tests: Sequence[Timed] = (),
    fixtures: Sequence[Fixture] = (),
    seconds: float = 10.0,
) -> Run:
    header = Header(name, shard, started=started)
    ids = [timed.id for timed in tests]
    return Run(
        header,
        tests=list(tests),
        fixtures=list(fixtures),
        whole=Whole.of(ids),
        selected=ids,
        seconds=seconds,
        complete=True,
        path=name,
    )


def setups(*runs: Run) -> dict[str, float]:
    return History.of(runs).setups


TEST = Timed(f"{A}::test_x", call=1.0)


def test_the_seconds_of_a_test_are_the_median_of_its_runs() -> None:
    runs = [a_run(f"r{n}", started=n, tests=[Timed(f"{A}::test_x", call=n)]) for n in (1.0, 2.0, 3.0)]
    history = History.of(runs, "folder")
    assert history.seconds == {f"{A}::test_x": 2.0}
    assert (history.runs, history.newest, history.source) == (3, 3.0, "folder")


def test_the_quantile_makes_the_seconds_cautious() -> None:
    runs = [a_run(f"r{n}", started=n, tests=[Timed(f"{A}::test_x", call=n)]) for n in (1.0, 2.0, 3.0)]
    assert History.of(runs, quantile=1.0).seconds == {f"{A}::test_x": 3.0}


def test_a_run_that_was_cut_off_does_not_count_where_others_passed() -> None:
    cut = a_run("cut", started=9.0, tests=[Timed(f"{A}::test_x", call=500.0, phases="pfp")])
    assert History.of([a_run(tests=[TEST]), cut]).seconds == {TEST.id: 1.0}


def test_module_and_class_fixtures_are_set_ups_of_their_file() -> None:
    engine = Fixture("engine", "module", node=A, setup=0.6, teardown=0.3)
    case = Fixture("case", "class", node=f"{A}::TestX", setup=0.1)
    of_all = Fixture("server", "session", setup=5.0)
    of_one = Fixture("value", "function", node=TEST.id, setup=2.0)
    found = setups(a_run(tests=[TEST], fixtures=[engine, case, of_all, of_one]))
    assert found == pytest.approx({A: 1.0})


def test_a_set_up_on_two_workers_counts_once() -> None:
    fixtures = [
        Fixture("engine", "module", node=A, worker=name, setup=took) for name, took in (("gw0", 2.0), ("gw1", 4.0))
    ]
    assert setups(a_run(tests=[TEST], fixtures=fixtures)) == {A: 3.0}


def test_a_set_up_that_a_worker_had_to_repeat_counts_as_often() -> None:
    fixtures = [Fixture("engine", "module", node=A, start=start, setup=2.0) for start in (0.0, 5.0)]
    assert setups(a_run(tests=[TEST], fixtures=fixtures)) == {A: 4.0}


def test_a_set_up_is_the_median_over_runs() -> None:
    runs = [
        a_run(f"r{n}", started=n, tests=[TEST], fixtures=[Fixture("engine", "module", node=A, setup=n)])
        for n in (1.0, 2.0, 30.0)
    ]
    assert setups(*runs) == {A: 2.0}


def test_a_set_up_that_is_gone_for_seven_runs_is_forgotten() -> None:
    old = a_run("old", started=1.0, tests=[TEST], fixtures=[Fixture("engine", "module", node=A, setup=5.0)])
    new = [a_run(f"r{n}", started=10.0 + n, tests=[TEST]) for n in range(7)]
    assert setups(old, *new[1:]) == {A: 5.0}
    assert setups(old, *new) == {}


def test_shards_of_one_run_count_as_one_run_of_a_module() -> None:
    old = a_run("old", started=1.0, tests=[TEST], fixtures=[Fixture("engine", "module", node=A, setup=5.0)])
    new = [a_run("r", shard=f"{n}/9", started=10.0 + n, tests=[TEST]) for n in range(1, 10)]
    assert setups(old, *new) == {A: 5.0}


def test_what_parametrized_module_fixtures_take_is_spread_over_the_tests() -> None:
    fixtures = [Fixture("model", "module", param, node=A, setup=30.0) for param in ("llama", "qwen")]
    tests = [Timed(f"{A}::test_x[{param}]", call=1.0) for param in ("llama", "qwen")]
    history = History.of([a_run(tests=tests, fixtures=fixtures)])
    assert history.setups == {}
    planned = history.tests(history.estimates([timed.id for timed in tests]))
    assert [(test["seconds"], test["setup"]) for test in planned] == [(31.0, 0.0), (31.0, 0.0)]


def test_what_is_left_of_a_run_is_what_each_shard_takes_too() -> None:
    engine = Fixture("engine", "module", node=A, setup=2.0)
    server = Fixture("server", "session", setup=3.0)
    assert History.of([a_run(tests=[TEST], fixtures=[engine, server], seconds=10.0)]).fixed == 7.0


def test_with_two_workers_half_of_the_work_is_not_what_a_shard_takes_too() -> None:
    tests = [Timed(f"{A}::test_{name}", name, call=4.0) for name in ("gw0", "gw1")]
    history = History.of([a_run(tests=tests, seconds=6.0)])
    assert (history.fixed, history.workers) == (2.0, 2)


def test_an_imported_run_says_nothing_of_what_a_shard_takes_too() -> None:
    run = a_run(tests=[TEST], seconds=100.0)
    run.header.origin = "junit"
    assert History.of([run]).fixed == 0.0


def test_a_history_comes_through_text_as_it_was() -> None:
    run = a_run(tests=[TEST, Timed(f"{B}::test_\ud800", call=0.1 + 0.2, gpu=7)])
    run.records = [Record(UNITS, data={"db": [TEST.id]})]
    history = History.of([run], "folder")
    assert History.from_text(history.to_text()) == history
    assert history.units == {TEST.id: "db"}
    assert history.gpu == {f"{B}::test_\ud800": 7}


def test_a_history_that_was_sent_estimates_what_all_its_runs_estimate() -> None:
    runs = [
        a_run(f"r{n}", started=n, tests=[Timed(f"{A}::test_x[{m}]", call=n * m) for m in (1, 2, 3)]) for n in (1.0, 2.0)
    ]
    history = History.from_text(History.of(runs).to_text())
    found = history.estimates([f"{A}::test_x[2]", f"{A}::test_x[4]", f"{A}::test_new", f"{B}::test_new"])
    assert list(found.seconds.values()) == [3.0, 4.5, 3.0, 3.0]
    assert list(found.origin.values()) == ["own", "parametrization", "module", "suite"]


def test_a_frozen_feed_is_told_from_a_sent_history_too() -> None:
    runs = [a_run(f"r{n}", started=n, tests=[TEST]) for n in (1.0, 2.0, 3.0)]
    history = History.from_text(History.of(runs).to_text())
    assert any("frozen" in note for note in history.estimates([TEST.id]).notes(4.0))


def test_runs_without_a_test_are_no_history() -> None:
    with pytest.raises(TimingError, match=r"no run has a test in it \(folder\)"):
        History.of([a_run()], "folder")


def test_the_newest_run_says_which_tests_there_are() -> None:
    old = a_run("old", started=1.0, tests=[Timed(f"{A}::test_gone")])
    new = [a_run("new", shard=f"{n}/2", started=9.0, tests=[Timed(f"{A}::test_{n}")]) for n in (2, 1)]
    assert newest_ids([old, *new]) == [f"{A}::test_1", f"{A}::test_2"]


def test_a_test_that_was_to_run_and_did_not_is_there_too() -> None:
    run = a_run(tests=[TEST])
    run.selected = [TEST.id, f"{A}::test_crashed"]
    assert newest_ids([run]) == run.selected


def test_of_a_run_that_lacks_a_shard_the_tests_are_not_known() -> None:
    with pytest.raises(TimingError, match="lacks shard 2/2"):
        newest_ids([a_run(shard="1/2", tests=[TEST])])


def test_rows_of_files_have_their_tests_and_shared_fixtures_a_place_for_each_run() -> None:
    engine = Fixture("engine", "module", node=A, setup=2.0)
    runs = [
        a_run("r1", started=1.0, tests=[TEST], fixtures=[engine]),
        a_run("r2", started=2.0, tests=[TEST, Timed(f"{B}::test_y", call=0.5)]),
    ]
    assert rows(runs, "file") == ({A: [3.0, 1.0], B: [None, 0.5]}, [])


def test_rows_of_tests_have_no_seconds_where_the_test_did_not_pass() -> None:
    failed = Timed(TEST.id, call=9.0, phases="pfp")
    runs = [a_run("r1", started=1.0, tests=[TEST]), a_run("r2", started=2.0, tests=[failed])]
    assert rows(runs, "test")[0] == {TEST.id: [1.0, None]}


def test_rows_of_fixtures_add_up_what_has_one_name_and_scope() -> None:
    fixtures = [Fixture("engine", "module", node=file, setup=2.0, teardown=0.5) for file in (A, B)]
    assert rows([a_run(tests=[TEST], fixtures=fixtures)], "fixture")[0] == {"engine (module)": [5.0]}


def test_rows_of_phases_are_those_of_the_whole_run() -> None:
    run = a_run(
        tests=[Timed(TEST.id, setup=0.5, call=1.0, teardown=0.25, jit=Jit(0.125, 3))],
        fixtures=[
            Fixture("engine", "module", node=A, setup=2.0),
            Fixture("value", "function", node=TEST.id, setup=0.5),
        ],
    )
    run.collection, run.imports = [Collected(A, seconds=3.0)], [Imported("tests.test_a", seconds=2.5)]
    assert {name: values[0] for name, values in rows([run], "phase")[0].items()} == {
        "setup": 0.5,
        "call": 1.0,
        "teardown": 0.25,
        "shared fixtures": 2.0,
        "collection": 3.0,
        "imports": 2.5,
        "compilation": 0.125,
        "longest run file": 10.0,
    }


def test_shards_of_one_run_are_one_place_of_a_row() -> None:
    runs = [a_run("r", shard=f"{n}/2", tests=[Timed(f"{A}::test_{n}", call=1.0)]) for n in (1, 2)]
    assert rows(runs, "file")[0] == {A: [2.0]}


def test_a_run_that_lacks_a_shard_is_no_place_of_a_row() -> None:
    half = a_run("half", shard="1/2", started=5.0, tests=[TEST])
    assert rows([a_run(tests=[TEST]), half], "file") == (
        {A: [1.0]},
        ["run half is left out: shard 2/2 has no run file"],
    )
    with pytest.raises(TimingError, match=r"nothing whole to compare .*shard 2/2 has no run file"):
        rows([half], "file")


def cut_short(name: str, **changes: Any) -> Run:
    run = a_run(name, started=5.0, tests=[TEST])
    for field, value in changes.items():
        setattr(run, field, value)
    return run


@pytest.mark.parametrize(
    ("run", "lack"),
    [
        (cut_short("cut", exit_status=2), "ended with exit status 2"),
        (cut_short("cut", exit_status=1, selected=[TEST.id, f"{A}::test_y"]), "did not run 1 test that it was to run"),
        (cut_short("cut", tests=[Timed(TEST.id, phases="prp")]), "did not run 1 test that it was to run"),
        (cut_short("cut", complete=False), "did not finish"),
    ],
)
def test_a_run_that_was_cut_short_is_no_place_of_a_row_and_no_past_of_a_trend(run: Run, lack: str) -> None:
    whole = cut_short("whole", exit_status=1)
    assert rows([whole, run], "file") == ({A: [1.0]}, [f"run cut is left out: the run, attempt 1 {lack}"])
    with pytest.raises(TimingError, match=f"nothing whole to compare .*{lack}"):
        rows([whole, run], "file", newest=1)
    assert [len(series.values) for series in trend([whole], inventory([whole, run]))] == [2]


def saved(folder: Path, *names: str) -> None:
    """Run number n began at n days."""
    for number, name in enumerate(names, 1):
        write(folder, a_run(name, started=number * DAY, tests=[TEST]))


def left(folder: Path) -> list[str]:
    return sorted(path.name.split(".")[0] for path in folder.rglob("*") if path.is_file())


def test_pruning_keeps_the_newest_runs(tmp_path: Path) -> None:
    saved(tmp_path, "one", "two", "three")
    assert [path.name for path in prune(tmp_path, 10 * DAY, keep=2)] == ["one.1.timing.jsonl"]
    assert left(tmp_path) == ["three", "two"]


def test_pruning_deletes_what_is_too_old_but_never_the_newest_run(tmp_path: Path) -> None:
    saved(tmp_path, "one", "two", "three")
    prune(tmp_path, 5 * DAY, days=2.5)
    assert left(tmp_path) == ["three"]
    assert prune(tmp_path, 100 * DAY, days=2.5) == []


def test_pruning_takes_all_shards_of_a_run_and_nothing_but_run_files(tmp_path: Path) -> None:
    for n in (1, 2):
        write(tmp_path / f"artifact-{n}", a_run("old", shard=f"{n}/2", started=n, tests=[TEST]))
    saved(tmp_path, "new")
    (tmp_path / "artifact-1" / "log.txt").touch()
    assert len(prune(tmp_path, 0.0, keep=1)) == 2
    assert left(tmp_path) == ["log", "new"]


def test_a_file_that_cannot_be_read_stops_pruning_before_it_deletes(tmp_path: Path) -> None:
    saved(tmp_path, "one", "two")
    (tmp_path / "x.timing.jsonl").write_text("no run file\n")
    with pytest.raises(TimingError, match="is not a run file"):
        prune(tmp_path, 0.0, keep=1)
    assert left(tmp_path) == ["one", "two", "x"]


def test_pruning_takes_the_partial_of_the_run_itself_and_leaves_that_of_another(tmp_path: Path) -> None:
    saved(tmp_path, "one", "two", "three", "new")
    one, two, three = (tmp_path / f"{name}.1.timing.jsonl" for name in ("one", "two", "three"))
    one.with_name(f"{one.name}.partial").write_bytes(one.read_bytes()[:50])
    two.with_name(f"{two.name}.partial").touch()
    foreign = three.with_name(f"{three.name}.partial")
    foreign.write_bytes(one.read_bytes())
    with pytest.warns(KitWarning, match=r"three.*partial is of another run than three.*, it stays"):
        assert prune(tmp_path, 0.0, keep=1) == sorted([one, two, three])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.1.timing.jsonl", foreign.name]


def test_what_cannot_be_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    saved(tmp_path, "old", "new")
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(TimingError, match=r"cannot delete .*old.*Permission denied"):
        prune(tmp_path, 0.0, keep=1)
