"""Rows kept in a folder: taken from there, proved again, found by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brute import Product

import testkit
from testkit.errors import KitWarning, PairwiseError
from testkit.pairwise import _engine, _store, sample
from testkit.pairwise._model import Model
from testkit.pairwise._space import Rule, Space

AXES: dict[str, list[Any]] = {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1, 2], "d": [0, 1], "e": [0, 1]}


def differ(a: int, b: int) -> bool:
    return a != b


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each model whose rows are found anew."""
    made: list[int] = []
    find = _engine._cover

    def counted(model: Model, seed: int, effort: Any) -> Any:
        made.append(len(model.levels))
        return find(model, seed, effort)

    monkeypatch.setattr(_engine, "_cover", counted)
    return made


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_a_second_call_takes_the_same_rows_from_the_store(tmp_path: Path, searches: list[int]) -> None:
    store = tmp_path / "not" / "there" / "yet"
    first = sample(AXES, where=differ, store=store)
    assert searches == [5]
    assert sample(AXES, where=differ, store=str(store)) == first == sample(AXES, where=differ)
    assert searches == [5, 5]  # the last one had no store
    (file,) = files(store)
    assert file.suffix == ".json"
    assert Product(AXES, where=[differ]).judge(first.rows).sound


OTHERS: dict[str, Callable[[Path], object]] = {
    "another effort": lambda store: sample(AXES, store=store, effort=7),
    "another seed": lambda store: sample(AXES, store=store, seed=1),
    "another strength": lambda store: sample(AXES, store=store, strength=3),
    "another axis": lambda store: sample({**AXES, "f": [0, 1]}, store=store),
    "a predicate": lambda store: sample(AXES, store=store, where=differ),
    "crossed axes": lambda store: sample(AXES, store=store, full="a,b,c"),
    "a kept case": lambda store: sample(AXES, store=store, keep={"a": 2, "d": 1}),
}


@pytest.mark.parametrize("what", list(OTHERS))
def test_each_model_and_wish_has_a_file_of_its_own(what: str, tmp_path: Path, searches: list[int]) -> None:
    sample(AXES, store=tmp_path)
    OTHERS[what](tmp_path)
    OTHERS[what](tmp_path)
    assert len(searches) == len(files(tmp_path)) == 2


def test_a_predicate_with_other_answers_has_another_file(tmp_path: Path, searches: list[int]) -> None:
    for limit in (3, 2):
        chosen = sample(AXES, where=lambda a, b: a + b <= limit, store=tmp_path)  # noqa: B023  asked at once
        assert all(row["a"] + row["b"] <= limit for row in chosen.rows)
    assert len(searches) == len(files(tmp_path)) == 2


def test_rows_of_another_version_are_found_anew(
    tmp_path: Path, searches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample(AXES, store=tmp_path)
    monkeypatch.setattr(_engine, "ROWS_VERSION", _engine.ROWS_VERSION + 1)
    sample(AXES, store=tmp_path)
    assert len(searches) == 2


# ------------------------------------------------------------------ what cannot be trusted


def spoiled(change: Callable[[list[Any]], object]) -> Callable[[Path, bytes], bytes]:
    """The file with other rows, and with a check that fits them."""

    def spoil(file: Path, content: bytes) -> bytes:
        rows = json.loads(content)[0]
        change(rows)
        return json.dumps([rows, _store._check(file, rows)]).encode()

    return spoil


SPOILED: dict[str, Callable[[Path, bytes], bytes]] = {
    "empty": lambda file, content: b"",
    "cut": lambda file, content: content[: len(content) // 2],
    "not text": lambda file, content: b"\xff\xfe" + content,
    "nested without end": lambda file, content: b"[" * 200_000,
    "another program's": lambda file, content: b'{"rows": []}',
    "a changed level": lambda file, content: content.replace(b"1", b"0", 1),
    "of another name": lambda file, content: json.dumps(
        [json.loads(content)[0], _store._check(file.with_name("other.json"), json.loads(content)[0])]
    ).encode(),
    "a row less": spoiled(lambda rows: rows.pop()),
    "no rows": spoiled(lambda rows: rows.clear()),
    "a short row": spoiled(lambda rows: rows[0].pop()),
    "a level too high": spoiled(lambda rows: rows.append([3, 0, 0, 0, 0])),
    "a level that is a truth value": spoiled(lambda rows: rows.append([True, 0, 0, 0, 0])),
    "a row that is not allowed": spoiled(lambda rows: rows.append([1, 1, 0, 0, 0])),
    "a row that is a number": spoiled(lambda rows: rows.append(1)),
}


@pytest.mark.parametrize("how", list(SPOILED))
def test_a_file_that_cannot_be_trusted_is_replaced(how: str, tmp_path: Path, searches: list[int]) -> None:
    first = sample(AXES, where=differ, store=tmp_path)
    (file,) = files(tmp_path)
    content = file.read_bytes()
    file.write_bytes(SPOILED[how](file, content))
    assert sample(AXES, where=differ, store=tmp_path) == first
    assert len(searches) == 2
    assert file.read_bytes() == content


def test_a_predicate_that_is_asked_as_needed_keeps_nothing(tmp_path: Path) -> None:
    levels = (2, 2, 2)
    asked = Model(Space(levels, [Rule("asked", (0, 1), lambda pair: pair != (0, 0), None)]), 2)
    assert _store.digest(asked, "") is None
    assert _store.digest(Model(Space(levels, []), 2), "") is not None
    rows = _engine.cover(asked, seed=0, effort=0, engine="testkit", store=tmp_path)
    assert rows == _engine.cover(asked, seed=0, effort=0, engine="testkit")
    assert not files(tmp_path)


def test_rows_of_another_engine_are_not_kept(tmp_path: Path) -> None:
    sample(AXES, engine="allpairspy", store=tmp_path)
    assert not files(tmp_path)


def test_a_folder_that_cannot_be_made_costs_only_the_keeping(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(KitWarning, match=r"^pairwise: the rows found are not kept in .*file.inside: Not a directory"):
        chosen = sample(AXES, store=tmp_path / "file" / "inside")
    assert chosen == sample(AXES)


def test_rows_that_cannot_be_put_in_place_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(KitWarning, match=r"not kept in .*: No space left on device"):
        chosen = sample(AXES, store=tmp_path)
    assert chosen == sample(AXES)
    assert not files(tmp_path)


@pytest.mark.parametrize("store", [3, "", True])
def test_a_store_that_is_no_path_is_refused(store: Any) -> None:
    with pytest.raises(PairwiseError, match=rf"^pairwise: store is {store!r}, not a folder"):
        sample(AXES, store=store)


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.json").touch()
    with pytest.raises(PairwiseError, match=r"^pairwise: store is .*rows.json'\), not a folder"):
        sample(AXES, store=tmp_path / "rows.json")


# ------------------------------------------------------------------ several processes

WORKER = """
import sys, time
from pathlib import Path
from testkit.pairwise import _engine, sample

folder, name, others = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
find = _engine._cover

def counted(model, seed, effort):
    (folder / f"found by {name}").touch()
    deadline = time.monotonic() + 60
    while not all((folder / f"{other} is here").exists() for other in others):
        assert time.monotonic() < deadline, "the others did not come"
        time.sleep(0.01)
    if name == "dies":
        print("found", flush=True)
        time.sleep(600)
    return find(model, seed, effort)

_engine._cover = counted
(folder / f"{name} is here").touch()
axes = {f"p{i}": range(3) for i in range(6)}
print([list(row.values()) for row in sample(axes, store=folder / "store").rows])
"""


def worker(folder: Path, name: str, others: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, str(folder), name, others]
    environment = {**os.environ, "PYTHONPATH": str(Path(testkit.__file__).parents[1])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_of_several_processes_one_finds_the_rows_and_all_get_them(tmp_path: Path) -> None:
    names = ["one", "two", "three"]
    started = [worker(tmp_path, name, ",".join(names)) for name in names]
    texts = {process.communicate(timeout=120)[0] for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len(texts) == 1
    assert len(list(tmp_path.glob("found by *"))) == 1
    assert [file.suffix for file in files(tmp_path / "store")] == [".json"]


def test_a_process_that_dies_while_it_finds_rows_holds_up_nobody(tmp_path: Path) -> None:
    dying = worker(tmp_path, "dies", "dies")
    assert dying.stdout
    with dying, dying.stdout:
        assert dying.stdout.readline() == "found\n"
        dying.send_signal(signal.SIGKILL)
    heir = worker(tmp_path, "heir", "heir")
    text, _ = heir.communicate(timeout=120)
    assert heir.returncode == 0
    assert text.startswith("[[0, ")
    assert [file.suffix for file in files(tmp_path / "store")] == [".json"]


def test_a_lock_that_is_held_too_long_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searches: list[int]
) -> None:
    sample(AXES, store=tmp_path)
    (file,) = files(tmp_path)
    file.unlink()
    monkeypatch.setattr(_store, "LONGEST_WAIT", 0.05)
    with file.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sample(AXES, store=tmp_path)
    assert len(searches) == 2
    assert file.exists()


def test_a_file_system_without_locks_is_good_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searches: list[int]
) -> None:
    def none(*arguments: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    assert sample(AXES, store=tmp_path) == sample(AXES, store=tmp_path)
    assert len(searches) == 1


# ------------------------------------------------------------------ what the version stands for


def test_the_rows_of_this_version_stay_what_they_are() -> None:
    """If this fails because the engine chooses other rows now: raise ROWS_VERSION, then write the new digest here."""
    shapes = {"n": range(7), "k": range(5), "m": range(4), "b": [0, 1, 2], "d": [0, 1], "e": [0, 1]}
    chosen = [
        sample(shapes, where=lambda n, m: n + m < 8, effort=3_000),
        sample(shapes, strength=3, seed=2),
        sample(shapes, full="k,m,b", keep={"n": 6, "b": 2}),
        sample({f"p{i}": range(4) for i in range(9)}, effort=3_000),
        sample({f"p{i}": range(2) for i in range(40)}),
    ]
    rows = json.dumps([[list(row.values()) for row in one.rows] for one in chosen])
    assert (_engine.ROWS_VERSION, hashlib.sha256(rows.encode()).hexdigest()[:16]) == (1, "57c0358c28453d98")
