"""The run file: what is written comes back, also when the writer was killed, and nothing else is taken for one."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testkit.errors import KitWarning, TimingError
from testkit.timing import _write as writing
from testkit.timing import read, read_folder
from testkit.timing._run import (
    LONGEST,
    Collected,
    Fixture,
    Header,
    Imported,
    Jit,
    Record,
    Timed,
    Whole,
    Worker,
    canonical,
    digest_of,
    join_id,
    joined,
    outcome_of,
    shard_numbers,
    split_id,
)
from testkit.timing._write import NameTakenError, Writer, write

IDS = ["tests/test_a.py::TestX::test_y[64-fp16]", "tests/test_a.py::TestX::test_y[64-bf16]", "tests/test_b.py::test_z"]
HEADER = Header(
    "nightly-17", "2/4", 3, 1796046980.125, "box", "3.11.7", "9.2.0", ["-n", "2"], {"cpu": {"cores": 2}, "gpus": []}
)


def written(folder: Path, *, close: bool = True) -> Path:
    """A run file with something of every kind."""
    writer = Writer(folder, HEADER)
    writer.add(Worker("gw0", "box", 17, 0.0, 0.25))
    writer.collected(Whole.of([*IDS, "tests/test_c.py::test_elsewhere"]), IDS)
    writer.add(Worker("gw0", "box", 17, -0.5, 0.25, 1.5, {"cores": 2}))
    writer.add(Collected("tests/test_a.py", "gw0", 0.125))
    writer.add(Imported("tests.test_a", "gw1", 0.0625))
    writer.add(Fixture("engine", "module", "fp16", "tests/test_a.py", "gw0", 2.0, 0.5, 0.25, 4.0))
    writer.add(Fixture("value", "function", "", "tests/test_a.py", "gw0", 2.0, 0.5, count=3))
    writer.add(Timed(IDS[0], "gw0", 2.5, 0.25, 0.5, 0.125, 5 << 20))
    writer.add(Timed(IDS[1], "gw1", 2.5, 0.25, 0.5, 0.0, 5 << 20, "prp", 1))
    writer.add(Timed(IDS[1], "gw1", 3.5, 0.25, 0.5, 0.0, 5 << 20, "pff", 2, 0.001953, 1 << 30))
    writer.add(Timed(IDS[2], "gw0", 4.0, jit=Jit(1.5, 3, 2)))
    writer.add(Record("cleanup", IDS[0], {"step": "gc", "seconds": 0.5}, "gw0", 3.0))
    if close:
        return writer.close(1, 5.5)
    writer.abandon()
    return writer.path


def mark(**fields: Any) -> str:
    return json.dumps({"testkit_timing": 1, "run": "r", **fields}) + "\n"


def test_everything_that_is_written_comes_back(tmp_path: Path) -> None:
    path = written(tmp_path / "runs")
    run = read(path)
    assert path.name == "nightly-17.2of4.3.timing.jsonl"
    assert run.header == HEADER
    assert run.workers == {"gw0": Worker("gw0", "box", 17, -0.5, 0.25, 1.5, {"cores": 2}), "gw1": Worker("gw1")}
    assert [timed.outcome for timed in run.tests] == ["passed", "rerun", "failed", "passed"]
    assert run.tests[0] == Timed(IDS[0], "gw0", 2.5, 0.25, 0.5, 0.125, 5 << 20)
    assert run.tests[2] == Timed(IDS[1], "gw1", 3.5, 0.25, 0.5, 0.0, 5 << 20, "pff", 2, 0.001953, 1 << 30)
    assert run.tests[3].jit == Jit(1.5, 3, 2)
    assert run.fixtures == [
        Fixture("engine", "module", "fp16", "tests/test_a.py", "gw0", 2.0, 0.5, 0.25, 4.0),
        Fixture("value", "function", "", "tests/test_a.py", "gw0", 2.0, 0.5, count=3),
    ]
    assert run.collection == [Collected("tests/test_a.py", "gw0", 0.125)]
    assert run.imports == [Imported("tests.test_a", "gw1", 0.0625)]
    assert run.records == [Record("cleanup", IDS[0], {"step": "gc", "seconds": 0.5}, "gw0", 3.0)]
    assert run.selected == IDS
    assert run.whole is not None
    assert (run.whole.count, run.whole.files["tests/test_a.py"][0]) == (4, 2)
    assert (run.exit_status, run.seconds, run.complete, run.cut, run.other) == (1, 5.5, True, False, [])
    assert not list(path.parent.glob("*.partial"))


def test_a_run_that_was_read_can_be_written_again(tmp_path: Path) -> None:
    first = read(written(tmp_path / "a"))
    second = read(write(tmp_path / "b", first))
    first.path = second.path = ""
    assert second == first


def test_a_test_that_failed_in_call_and_teardown_is_one_with_both_facts() -> None:
    timed = Timed("t", phases="pff")
    assert (timed.outcome, timed.failed_in) == ("failed", ["call", "teardown"])
    assert (Timed("t", phases="psf").outcome, Timed("t", phases="psf").failed_in) == ("error", ["teardown"])


@pytest.mark.parametrize(
    ("phases", "outcome"),
    [("ppp", "passed"), ("pfp", "failed"), ("f-p", "error"), ("ppf", "error"), ("s-p", "skipped"), ("psp", "skipped")]
    + [("pxp", "xfailed"), ("x-p", "xfailed"), ("pXp", "xpassed"), ("prp", "rerun"), ("ppr", "rerun")]
    + [("p--", "error"), ("---", "error"), ("-f-", "failed"), ("pxf", "error")],
)
def test_the_outcome_is_one_word_for_the_phases(phases: str, outcome: str) -> None:
    assert outcome_of(phases) == outcome


def test_a_pass_after_attempts_that_did_not_is_flaky() -> None:
    first, again = read_like("1", [Timed("a", phases="pfp"), Timed("b")]), read_like("2", [Timed("a")])
    again.header.attempt, again.header.started = 2, 1.0
    tests = joined([again, first])
    assert (tests["a"].verdict, tests["b"].verdict) == ("flaky", "passed")
    assert len(tests["a"].attempts) == 2
    assert joined([first])["a"].verdict == "failed"


def read_like(run: str, tests: list[Timed]) -> Any:
    from testkit.timing import Run

    return Run(Header(run), tests=tests)


# Names.


@given(st.text(st.characters(codec=None) | st.sampled_from(":[]/.\x00\n\ud800\udc00"), max_size=30))
def test_an_id_is_put_together_as_it_was(nodeid: str) -> None:
    assert join_id(*split_id(nodeid)) == nodeid


def test_an_id_may_hold_anything(tmp_path: Path) -> None:
    ids = [
        "",
        "::",
        "a::[",
        "a::b[",
        "a::b[]",
        "a::b]",
        "[a::b]",
        "a::b[x]::c[y]",
        "\x00\x1b\n\r\u2028",
        '"\\',
        "a/ü.py::ü[é]",
    ]
    ids += ["\ud800", "\udc00\ud800", "\ud83d\ude00", "😀"]
    writer = Writer(tmp_path, Header("r"))
    writer.collected(Whole.of(ids), ids)
    for nodeid in reversed(ids):
        writer.add(Timed(nodeid))
    run = read(writer.close(0, 1.0))
    # A pair of surrogates comes back as the one character that it means.
    assert run.selected == [*ids[:-2], "😀", "😀"]
    assert [timed.id for timed in run.tests] == run.selected[::-1]
    assert run.whole is not None
    assert digest_of(run.selected) == run.whole.digest


def test_long_texts_are_cut_with_a_note_and_stay_different(tmp_path: Path) -> None:
    long, other = "a.py::t[" + "x" * 10_000_000 + "]", "a.py::t[" + "x" * 9_999_999 + "y]"
    writer = Writer(tmp_path, Header("r", argv=["x" * 5_000]))
    writer.collected(Whole.of([long, other]), [long, other])
    writer.add(Record("note", long, {"output": "y" * 10_000_000, "deep": [[[[[[[[["z"]]]]]]]]]}))
    path = writer.close(0, 1.0)
    run = read(path)
    assert path.stat().st_size < 10 * LONGEST
    assert run.selected is not None
    assert len(set(run.selected)) == 2
    assert run.selected[0].endswith(" (9,996,069 characters cut)")
    assert len(run.selected[0]) <= LONGEST
    assert run.records[0].data["output"].endswith(" characters cut)")
    assert run.whole is not None
    assert digest_of(run.selected) == run.whole.digest
    assert canonical(run.selected[0]) == run.selected[0]


def test_data_that_json_has_no_word_for_becomes_text(tmp_path: Path) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError

    loop: list[Any] = []
    loop.append(loop)
    writer = Writer(tmp_path, Header("r"))
    writer.add(
        Record("odd", data={1: float("nan"), "path": Path("x"), "odd": Odd(), "pair": (1, None, True), "loop": loop})
    )
    data = read(writer.close(0, 1.0)).records[0].data
    assert data["1"] == "nan"
    assert (data["path"], data["pair"]) == ("x", [1, None, True])
    assert data["odd"].endswith("Odd>")
    assert str(data["loop"]).startswith("[[[[[")


def test_the_digest_does_not_depend_on_order_and_does_on_every_id() -> None:
    assert digest_of(IDS) == digest_of(IDS[::-1])
    assert len({digest_of(ids) for ids in (IDS, IDS[:2], [*IDS, IDS[0]], ["".join(IDS)], [])}) == 5


@pytest.mark.parametrize("shard", ["0/4", "5/4", "2", "a/b", "1/0", "-1/4", "2/4 ", "1 of 2"])
def test_a_shard_that_is_not_one_of_them_is_refused(shard: str, tmp_path: Path) -> None:
    with pytest.raises(TimingError, match=r"shard .* is not one of 1/N to N/N \(header\)"):
        Writer(tmp_path, Header("r", shard))
    assert not list(tmp_path.iterdir())
    assert (shard_numbers("2/4"), shard_numbers("")) == ((2, 4), (1, 1))


# Size.


def test_ten_thousand_tests_take_less_than_sixty_bytes_each(tmp_path: Path) -> None:
    axes = (
        [1, 16, 64, 128, 4096],
        [128, 512, 2880, 4096, 11008],
        [64, 512, 4096, 7168],
        ["fp16", "bf16", "int8", "fp8", "tf32"],
    )
    names = [f"M{m}-N{n}-K{k}-{kind}" for m, n, k, kind in product(*axes)]
    ids = [f"tests/kernels/test_gemm_{f}.py::TestGemm::test_gemm[{name}]" for f in range(20) for name in names]
    chance = random.Random(4)
    writer = Writer(tmp_path, HEADER)
    writer.collected(Whole.of(ids), ids)
    clock, peak = [1.0, 1.5], [200 << 20, 210 << 20]
    for nodeid in ids:
        worker = chance.randrange(2)
        times = [chance.lognormvariate(middle, 0.5) for middle in (-8.5, -6.0, -9.0)]
        peak[worker] += chance.randrange(1 << 20) if chance.random() < 0.02 else 0
        writer.add(Timed(nodeid, f"gw{worker}", clock[worker], *times, peak[worker]))
        clock[worker] += sum(times) + chance.lognormvariate(-9.0, 0.3)
    data = writer.close(0, max(clock)).read_bytes()
    assert len(ids) == 10_000
    assert data.isascii()
    assert len(gzip.compress(data)) / len(ids) <= 60


# Killed, cut, full.


def test_a_killed_writer_leaves_what_was_flushed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from testkit.timing._run import *; from testkit.timing._write import Writer\n"
        "writer = Writer(Path(sys.argv[1]), Header('r'))\n"
        "for number in range(100):\n"
        "    writer.add(Timed(f'a.py::t[{number}]')); writer.maybe_flush(number / 40)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    (run,) = read_folder(tmp_path)
    assert run.path.endswith("r.1.timing.jsonl.partial")
    # Flushed when 40 and 80 were there: at one second and at two.
    assert [timed.id for timed in run.tests] == [f"a.py::t[{number}]" for number in range(81)]
    assert (run.complete, run.cut, run.exit_status) == (False, False, None)


def test_a_file_that_is_cut_anywhere_is_read_or_refused_and_never_whole(tmp_path: Path) -> None:
    data = written(tmp_path).read_bytes()
    whole = read_bytes(tmp_path, data)
    header = data.index(b"\n") + 1
    seen = set()
    for length in range(len(data) - 1):
        if length < header - 1:
            with pytest.raises(TimingError, match=r"is empty|is cut in its first line|is not a run file"):
                read_bytes(tmp_path, data[:length])
            continue
        run = read_bytes(tmp_path, data[:length])
        assert not run.complete
        assert run.tests == whole.tests[: len(run.tests)]
        seen.add((len(run.tests), run.cut))
    assert {number for number, _ in seen} == {0, 1, 2, 3, 4}
    assert {cut for _, cut in seen} == {True, False}


def read_bytes(folder: Path, data: bytes, name: str = "x.timing.jsonl.partial") -> Any:
    path = folder / name
    path.write_bytes(data)
    return read(path)


def test_a_renamed_file_without_its_end_was_cut(tmp_path: Path) -> None:
    lines = written(tmp_path).read_bytes().splitlines(keepends=True)
    run = read_bytes(tmp_path, b"".join(lines[:-1]), "x.timing.jsonl")
    assert (run.complete, run.cut) == (False, True)


def test_a_full_disk_stops_the_file_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = writing._os_write
    room = [200]

    def full(file: int, data: bytes) -> int:
        if file != writer._file:
            return real(file, data)
        if not room[0]:
            raise OSError(28, "No space left on device")
        done = real(file, bytes(data)[: room[0]])
        room[0] -= done
        return done

    writer = Writer(tmp_path, Header("r"))
    monkeypatch.setattr(writing, "_os_write", full)
    for number in range(100):
        writer.add(Timed(f"a.py::t[{number}]"))
        writer.flush()
    path = writer.close(0, 1.0)
    assert "No space left on device" in writer.problem
    run = read(path)
    assert (path.suffix, run.complete, run.cut) == (".partial", False, True)
    assert 0 < len(run.tests) < 100


def test_what_tests_replace_in_json_and_os_does_not_reach_the_file(tmp_path: Path) -> None:
    writer = Writer(tmp_path, Header("r"))
    with ExitStack() as patches:
        for name in ("json.dumps", "json.JSONEncoder.encode", "json.JSONEncoder.iterencode", "json.JSONEncoder"):
            patches.enter_context(mock.patch(name))
        for name in ("os.write", "os.close", "os.getpid", "os.rename"):
            patches.enter_context(mock.patch(name))
        writer.add(Timed("a.py::t", phases="pfp"))
        writer.add(Timed("a.py::u", rss=2048.0))  # type: ignore[arg-type]
        writer.add(Fixture("engine", "module"))
        writer.add(Record("note", data={"any": 1}))
        writer.flush()
        path = writer.close(0, 1.0)
    run = read(path)
    assert path.suffix == ".jsonl"
    assert [(timed.phases, timed.rss) for timed in run.tests] == [("pfp", 0), ("ppp", 2048)]
    assert (run.fixtures[0].name, run.records[0].data, run.complete) == ("engine", {"any": 1}, True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_of_the_writer_leaves_its_file_alone(tmp_path: Path) -> None:
    # In a process of its own: a fork of this one, which has threads, is warned of.
    code = (
        "import os, sys; from pathlib import Path\n"
        "from testkit.timing._run import *; from testkit.timing._write import Writer\n"
        "writer = Writer(Path(sys.argv[1]), Header('r'))\n"
        "writer.add(Timed('a.py::t'))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    writer.add(Timed('a.py::child')); writer.flush(); writer.close(3, 9.0); writer.abandon(); os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert writer.close(0, 1.0).suffix == '.jsonl'\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=True)
    (run,) = read_folder(tmp_path)
    assert ([timed.id for timed in run.tests], run.exit_status, run.complete) == (["a.py::t"], 0, True)


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TimingError, match=r"cannot write in .*file"):
        Writer(tmp_path / "file", Header("r"))


# Names of files.


def test_writers_of_one_name_never_share_or_overwrite_a_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda number: written(tmp_path, close=number % 2 == 0), range(16)))
    assert len(set(paths)) == len(list(tmp_path.iterdir())) == 16
    assert all(len(read(path).tests) == 4 for path in paths)


@pytest.mark.parametrize("ending", ["", ".partial"])
def test_a_name_that_must_be_exact_is_not_changed(tmp_path: Path, ending: str) -> None:
    taken = tmp_path / f"r.1.timing.jsonl{ending}"
    taken.touch()
    with pytest.raises(NameTakenError, match=r"r\.1\.timing\.jsonl\.partial"):
        Writer(tmp_path, Header("r"), exact=True)
    assert list(tmp_path.iterdir()) == [taken]
    Writer(tmp_path, Header("r", attempt=2), exact=True).abandon()


def test_a_copy_that_came_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    writer = Writer(tmp_path, Header("r"))
    (tmp_path / "r.1.timing.jsonl").write_text("mine")
    assert writer.close(0, 1.0).name == "r.1-2.timing.jsonl"
    assert (tmp_path / "r.1.timing.jsonl").read_text() == "mine"


def test_a_run_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    path = written_as(tmp_path / "runs", "../../etc/x y\x00" + "z" * 300)
    assert path.parent == tmp_path / "runs"
    assert len(path.name) < 150


def written_as(folder: Path, run: str) -> Path:
    return Writer(folder, Header(run)).close(0, 0.0)


def test_a_run_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TimingError, match="a run needs a name"):
        Writer(tmp_path, Header(""))


# What is refused, and what is kept.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        (" \n", "does not begin with a header"),
        ('{"a.py::t": 1.5}\n', "is not a run file; it begins with .*a.py::t"),
        ("PK\x03\x04", "is not a run file"),
        ('{"testkit_timing":1,"ru', "is cut in its first line"),
        (mark(testkit_timing=2), "has format 2, this testkit reads 1"),
        ('{"testkit_timing":1}\n', "the header of .* is damaged"),
        (mark(started=1e300), "the header of .* is damaged"),
        (mark(attempt="x"), "the header of .* is damaged"),
        (mark() + '{"odd":1}\n["end",0,1,0]\n', "line 2 of .* is damaged"),
        (mark() + "garbage\n" + '["end",0,1,0]\n', "line 2 of .* is damaged: 'garbage'"),
        (mark() + '["test",5,0,1,1,1,1,1]\n["end",0,1,0]\n', "line 2 of .* is damaged"),
        (mark() + '["word",0,"a"]\n["test",0]\n["end",0,1,0]\n', "line 3 of .* is damaged"),
        (mark() + '["end",0,1,3]\n', "announces 3 tests and holds 0"),
    ],
)
def test_what_is_no_run_file_is_refused_and_says_why(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.timing.jsonl"
    path.write_text(text)
    with pytest.raises(TimingError, match=says):
        read(path)
    with pytest.raises(TimingError, match=says):
        read_folder(tmp_path)


def test_a_binary_file_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TimingError, match="is not a run file"):
        read_bytes(tmp_path, bytes(range(256)) * 10)
    with pytest.raises(TimingError, match=r"cannot read .*gone"):
        read(tmp_path / "gone")


def test_a_newer_testkit_may_add_kinds_of_line_and_fields(tmp_path: Path) -> None:
    lines = written(tmp_path).read_text().splitlines()
    lines[0] = lines[0][:-1] + ',"colour":"blue"}'
    lines = [line[:-1] + ',"new"]' if line.startswith('["test",2,') else line for line in lines]
    lines.insert(-1, '["weather",{"rain":true}]')
    run = read_bytes(tmp_path, ("\n".join(lines) + "\n").encode())
    assert run.other == [["weather", {"rain": True}]]
    assert (len(run.tests), run.complete) == (4, True)
    assert run.header == HEADER


def test_a_folder_is_read_with_the_folders_in_it_oldest_run_first(tmp_path: Path) -> None:
    for number, started in enumerate([30.0, 10.0, 20.0], 1):
        Writer(tmp_path / f"artifact-{number}", Header("r", f"{number}/3", started=started)).close(0, 1.0)
    assert [run.header.shard for run in read_folder(tmp_path)] == ["2/3", "3/3", "1/3"]
    assert len(read_folder(next(tmp_path.rglob("*.jsonl")))) == 1


def test_a_partial_beside_its_renamed_file_is_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.with_name(path.name + ".partial").write_bytes(path.read_bytes()[:500])
    assert [run.complete for run in read_folder(tmp_path)] == [True]


def test_an_empty_partial_is_left_out_with_a_warning(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "y.timing.jsonl.partial").touch()
    with pytest.warns(KitWarning, match="is empty, it was left out"):
        assert len(read_folder(tmp_path)) == 1


def test_a_folder_without_run_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text("{}")
    with pytest.raises(TimingError, match="no run file in"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("test", 3, "1e999"),
        ("test", 5, "NaN"),
        ("test", 7, "2.5"),
        ("word", 2, "7"),
        ("worker", 2, "[1]"),
        ("worker", 3, '{"host":3}'),
        ("fixture", 1, "null"),
        ("fixture", 10, '"many"'),
        ("record", 1, "{}"),
        ("end", 1, '"good"'),
        ("end", 2, "Infinity"),
        ("end", 3, "4.0"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_line(tmp_path: Path, kind: str, place: int, value: str) -> None:
    lines = written(tmp_path).read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if line.startswith(f'["{kind}"'))
    parts = [json.dumps(part) for part in json.loads(lines[number])]
    parts[place] = value
    lines[number] = f"[{','.join(parts)}]"
    with pytest.raises(TimingError, match=rf"line {number + 1} of .* is damaged"):
        read_bytes(tmp_path, ("\n".join(lines) + "\n").encode())
