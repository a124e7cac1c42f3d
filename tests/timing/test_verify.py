"""The proof over shards: every collected test ran once, or what did not is named; and merging before it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import TimingError
from testkit.timing import Run, Verified, read, read_folder, verify
from testkit.timing._merge import inventory, merge
from testkit.timing._run import Header, Timed, Whole
from testkit.timing._write import Writer

IDS = [f"tests/test_{file}.py::test_{number}" for file in "abc" for number in range(4)]


def shard(
    number: int,
    of: int = 3,
    *,
    ids: Iterable[str] = IDS,
    selected: Iterable[str] | None = None,
    ran: Iterable[str] | None = None,
    attempt: int = 1,
    run: str = "r",
) -> Run:
    """Shard ``number`` by stride of a run of ``of`` shards, unless told otherwise."""
    ids = list(ids)
    chosen = list(selected if selected is not None else ids[number - 1 :: of])
    header = Header(run, f"{number}/{of}", attempt, started=1000.0 * attempt + number)
    tests = [Timed(nodeid) for nodeid in (chosen if ran is None else ran)]
    path = f"{number}of{of}.{attempt}"
    return Run(header, tests=tests, whole=Whole.of(ids), selected=chosen, complete=True, path=path)


def shards(**replaced: Run) -> list[Run]:
    """Three shards, some of them ``replaced``, as ``second=...``."""
    return [replaced.get(name, shard(number)) for number, name in enumerate(("first", "second", "third"), 1)]


def saved(folder: Path, run: Run, *, close: bool = True) -> Path:
    writer = Writer(folder, run.header)
    assert run.whole is not None
    writer.collected(run.whole, run.selected or ())
    for timed in run.tests:
        writer.add(timed)
    if close:
        return writer.close(0, 1.0)
    writer.abandon()
    return writer.path


def text(verified: Verified) -> str:
    return "\n".join(verified.lines())


def test_shards_that_ran_everything_once_are_proven(tmp_path: Path) -> None:
    for run in shards():
        saved(tmp_path / run.path, run)
    verified = verify(read_folder(tmp_path))
    assert verified.ok
    assert text(verified) == "every test ran exactly once: run r, 12 tests collected in 3 shards, 12 ran"


def test_one_file_of_a_run_without_shards_is_proven_too() -> None:
    run = shard(1, 1)
    run.header.shard = ""
    assert text(verify([run])) == "every test ran exactly once: run r, 12 tests collected, 12 ran"


def test_the_order_of_collection_does_not_matter() -> None:
    assert verify(shards(second=shard(2, ids=IDS[::-1], selected=IDS[1::3]))).ok


def test_the_newest_attempt_of_a_shard_counts() -> None:
    half = shard(2, ran=IDS[1:2])
    assert not verify(shards(second=half)).ok
    verified = verify([*shards(second=half), shard(2, attempt=2)])
    assert verified.ok
    assert text(verified).endswith("shard 2/3, attempt 1 does not count, it was run again")
    worse = verify([*shards(), shard(2, ran=IDS[1:2], attempt=2)])
    assert list(worse.not_run) == IDS[4::3]


def test_a_missing_shard_is_named_and_the_files_it_would_have_run() -> None:
    verified = verify(shards()[:2])
    assert not verified.ok
    assert verified.missing == ["shard 3/3 has no run file"]
    assert verified.unlisted == {"tests/test_a.py": 1, "tests/test_b.py": 1, "tests/test_c.py": 2}
    assert "NOT every test ran exactly once: run r, 12 tests collected in 3 shards, 8 ran" in text(verified)


def test_tests_that_a_shard_was_to_run_and_did_not_are_named() -> None:
    crashed = shard(2, ran=IDS[1:4:3])
    crashed.complete = False
    verified = verify(shards(second=crashed))
    assert verified.not_run == dict.fromkeys(IDS[4::3], "shard 2/3")
    assert "  was to run and did not: 3\n    tests/test_b.py::test_0  (shard 2/3)" in text(verified)
    assert "shard 2/3, attempt 1 did not finish: 2of3.1" in text(verified)


def test_an_attempt_that_was_to_be_repeated_and_was_not_did_not_run() -> None:
    run = shard(1)
    run.tests[0].phases = "prp"
    assert list(verify(shards(first=run)).not_run) == IDS[:1]
    run.tests.append(Timed(IDS[0], attempt=2, phases="pfp"))
    assert verify(shards(first=run)).ok


def test_tests_that_no_shard_was_to_run_are_counted_by_file_and_named_if_known() -> None:
    runs = shards(second=shard(2, selected=IDS[1:8:3]))
    verified = verify(runs)
    assert (verified.unlisted, verified.unlisted_ids) == ({"tests/test_c.py": 1}, [])
    assert "in no shard: 1\n    tests/test_c.py  (1 test)" in text(verified)
    assert verify(runs, ids=IDS).unlisted_ids == ["tests/test_c.py::test_2"]
    with pytest.raises(
        TimingError, match=r"the ids given: 11 tests; run r: 12 tests\); they differ in tests/test_a.py 3 and 4"
    ):
        verify(runs, ids=IDS[1:])


def test_tests_in_two_shards_are_named_even_if_the_number_is_right() -> None:
    # A stale plan on one shard: as many are lost as run twice.
    verified = verify(shards(second=shard(2, selected=[IDS[0], *IDS[4::3]])))
    assert verified.doubled == {IDS[0]: "in shards 1/3, 2/3"}
    assert verified.unlisted == {"tests/test_a.py": 1}
    assert not verified.ok


def test_a_test_that_ran_twice_in_one_shard_is_named() -> None:
    verified = verify(shards(third=shard(3, ran=[IDS[2], *IDS[2::3]])))
    assert verified.doubled == {IDS[2]: "ran 2 times in shard 3/3"}


def test_an_id_that_was_collected_twice_is_to_run_twice() -> None:
    ids = [*IDS, IDS[0]]
    runs = [shard(1, 2, ids=ids, selected=[IDS[0], *IDS[0::2]]), shard(2, 2, ids=ids, selected=IDS[1::2])]
    assert verify(runs).ok
    del runs[0].tests[0]
    assert list(verify(runs).not_run) == [IDS[0]]


def test_a_test_that_ran_where_it_was_not_to_is_named() -> None:
    verified = verify(shards(first=shard(1, ran=[*IDS[0::3], IDS[1]])))
    assert verified.strange == {IDS[1]: "shard 1/3"}


def test_ids_that_were_never_collected_do_not_pass() -> None:
    verified = verify(shards(first=shard(1, selected=["tests/new.py::test", *IDS[3::3]])))
    assert verified.strange == {"tests/new.py": "1 test in the shards' lists, 0 collected"}
    assert verified.unlisted == {"tests/test_a.py": 1}


def test_an_empty_shard_is_said_and_no_failure() -> None:
    runs = [shard(1, 2, selected=IDS), shard(2, 2, selected=[])]
    verified = verify(runs)
    assert verified.ok
    assert "shard 2/2, attempt 1 was to run no test" in text(verified)


def test_a_shard_that_stopped_before_it_had_collected_is_missing() -> None:
    run = Run(Header("r", "2/3", started=2.0), path="here")
    verified = verify(shards(second=run))
    assert verified.missing == ["shard 2/3, attempt 1 stopped before it had collected: here"]
    assert sum(verified.unlisted.values()) == 4


def test_shards_that_collected_different_tests_are_refused_with_the_difference() -> None:
    other = [nodeid for nodeid in IDS if "_b" not in nodeid][1:] + ["tests/test_d.py::test_new"]
    with pytest.raises(TimingError, match="different tests were collected") as caught:
        verify(shards(second=shard(2, ids=other)))
    assert caught.value.problem == (
        "different tests were collected (shard 1/3, attempt 1, shard 3/3, attempt 1: 12 tests; shard 2/3, attempt 1: "
        "8 tests); they differ in tests/test_a.py 4 and 3, tests/test_b.py 4 and 0, tests/test_d.py 0 and 1"
    )
    renamed = [nodeid.replace("c.py::test_3", "c.py::test_9") for nodeid in IDS]
    with pytest.raises(TimingError, match=r"they differ in tests/test_c.py 4 and 4 \(other names\)"):
        verify(shards(first=shard(1, ids=renamed)))


def test_a_long_difference_and_a_long_list_are_cut() -> None:
    many = [f"tests/test_{number:03}.py::test" for number in range(40)]
    with pytest.raises(TimingError, match=r"tests/test_009.py 1 and 0 and 30 more files"):
        verify([shard(1, 2, ids=many), shard(2, 2, ids=many[:0])])
    verified = verify([shard(1, 1, ids=many, ran=[])])
    assert len(verified.not_run) == 40
    assert "    and 30 more" in verified.lines()


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ([], "no run file to verify"),
        ([shard(1, 1), shard(1, 1, run="s")], "files of 2 runs: r, s"),
        ([shard(1, 1, ids=[])], "run r collected no test: nothing to verify"),
        ([Run(Header("r"))], "run r has no record of what was collected"),
        ([shard(1, 2), shard(2, 3)], "which number of shards is right"),
        ([shard(1, 1), Run(Header("r"), path="whole")], "which number of shards is right"),
        ([shard(1, 0, selected=[])], "shard '1/0' is not one of 1/N to N/N"),
    ],
)
def test_where_there_is_nothing_to_judge_verify_refuses(runs: list[Run], says: str) -> None:
    with pytest.raises(TimingError, match=says):
        verify(runs)


def test_two_files_of_one_attempt_are_refused_unless_they_are_copies() -> None:
    copy = shard(2)
    copy.tests = copy.tests[:1]
    copy.complete = False
    assert verify([copy, *shards()]).ok
    assert [run.complete for run in inventory([copy, *shards()])[0].copies] == [False]
    other = shard(2)
    other.header.started, other.path = 5.0, "other"
    with pytest.raises(TimingError, match=r"two different files are shard 2/3, attempt 1 of run r \(.*2of3.1"):
        verify([*shards(), other])


# The inventory and the copying.


def test_the_inventory_says_what_is_there() -> None:
    unfinished = shard(2, attempt=2)
    unfinished.complete = False
    old = shard(1, 1, run="old")
    old.header.started = 1.0
    first, second = inventory([*shards()[:2], unfinished, old])
    assert first.lines() == ["run old: one file, not sharded"]
    assert second.missing == ["3/3"]
    assert second.lines() == [
        "run r: 2 of 3 shards",
        "  shard 3/3 has no run file",
        "  shard 2/3, attempt 2 did not finish: 2of3.2",
        "  shard 2/3, attempt 1 was run again and does not count: 2of3.1",
    ]


def test_merging_copies_in_any_order_and_only_once(tmp_path: Path) -> None:
    for run in shards():
        saved(tmp_path / run.path, run)
    paths = [read(path).path for path in sorted(tmp_path.rglob("*.jsonl"), reverse=True)]
    target = tmp_path / "all"
    assert len(merge([Path(paths[0]), tmp_path / "1of3.1", tmp_path / "2of3.1"], target)) == 3
    assert merge([Path(path) for path in paths], target) == []
    assert merge([target], target) == []
    assert verify(read_folder(target)).ok


def test_merging_never_overwrites_another_file_of_the_same_name(tmp_path: Path) -> None:
    for folder, run in (("a", shard(1, 1)), ("b", shard(1, 1, selected=IDS[:3]))):
        saved(tmp_path / folder, run)
    new = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert [path.name for path in new] == ["r.1of1.1.timing.jsonl", "r.1of1.1-2.timing.jsonl"]
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all") == []


def test_a_partial_gives_way_to_what_became_of_it(tmp_path: Path) -> None:
    path = saved(tmp_path / "a", shard(1, 1), close=False)
    target = tmp_path / "all"
    (early,) = merge([path], target)
    whole = saved(tmp_path / "b", shard(1, 1))
    (late,) = merge([whole], target)
    assert (early.name, late.name) == ("r.1of1.1.timing.jsonl.partial", "r.1of1.1.timing.jsonl")
    assert [path.name for path in target.iterdir()] == [late.name]
    assert merge([path], target) == []


def test_merging_refuses_before_it_copies(tmp_path: Path) -> None:
    saved(tmp_path / "a", shard(1, 1))
    (tmp_path / "a" / "z.timing.jsonl").write_text("{}")
    with pytest.raises(TimingError, match="is not a run file"):
        merge([tmp_path / "a"], tmp_path / "all")
    with pytest.raises(TimingError, match="no run file to merge"):
        merge([], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_headers_that_are_alike_do_not_make_a_copy() -> None:
    other = shard(2, ran=IDS[:1])
    other.path = "other"
    with pytest.raises(TimingError, match="two different files are shard 2/3, attempt 1 of run r"):
        inventory([*shards(), other])


@pytest.mark.parametrize("where", ["file", "/proc/x"])
def test_where_merging_cannot_write_it_says_so(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    path = saved(tmp_path / "a", shard(1, 1))
    with pytest.raises(TimingError, match=r"cannot write in .*(file|x): "):
        merge([path], tmp_path / where)


def test_a_full_disk_leaves_no_half_file_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    early = saved(tmp_path / "early", shard(1, 1), close=False)
    late = saved(tmp_path / "late", shard(1, 1))
    (kept,) = merge([early], tmp_path / "all")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(TimingError, match=r"cannot write in .*all: No space left on device"):
        merge([late], tmp_path / "all")
    assert [path.name for path in (tmp_path / "all").iterdir()] == [kept.name]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"python": "3.12.1"}, "shard 1/2, attempt 1: 3.11 debian; shard 2/2, attempt 1: 3.12 debian"),
        ({"machine": {"environment": {"os": "darwin"}}}, "3.11 debian; shard 2/2, attempt 1: 3.11 darwin"),
    ],
)
def test_the_shards_of_two_entries_of_a_matrix_prove_nothing_together(change: dict[str, Any], told: str) -> None:
    runs = [shard(1, 2), shard(2, 2)]
    for run in runs:
        run.header.python, run.header.machine = "3.11.7", {"environment": {"os": "debian"}}
    runs[1].header.python = "3.11.9"
    assert verify(runs).ok
    for name, value in change.items():
        setattr(runs[1].header, name, value)
    with pytest.raises(TimingError, match=f"different Pythons or platforms .*{told}") as refused:
        verify(runs)
    assert "TESTKIT_RUN_ID" in refused.value.fix


def test_an_id_that_would_clear_the_terminal_is_written_out() -> None:
    assert "\\x1b" in text(verify([shard(1, 1, ids=["test_a.py::test[\x1b]"], ran=[])]))
