"""A lock file of chosen cases: what stays when axes change, what a merge or a hand makes of it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from brute import Product

from testkit.__main__ import main
from testkit.errors import PairwiseError
from testkit.pairwise._axes import make_axes
from testkit.pairwise._lockfile import HEADER, Lock, Locked, forget
from testkit.pairwise._plan import Plan, plan_cases

Axes = dict[str, list[Any]]
Case = tuple[str, ...]
TEST = "tests/test_gemm.py::test_gemm"
AXES: Axes = {"n": [1, 2, 3, 4], "k": ["x", "y", "z"], "bias": [None, "row", "col"], "fused": [False, True]}


def choose(path: Path, axes: Axes, nodeid: str = TEST, **options: Any) -> Plan:
    """One run: read the lock, choose, write; what was chosen is judged by brute force."""
    made = make_axes(axes)
    lock = Lock.read(path)
    plan = plan_cases(made, locked=lock.locked(nodeid, made), **options)
    lock.put(nodeid, made, plan.rows)
    lock.save()
    where = options.get("where", [])
    judge = Product(axes, strength=options.get("strength", 2), where=where if isinstance(where, list) else [where])
    rows = [
        {name: value for axis, at in zip(made, row, strict=True) for name, value in axis.arguments(at).items()}
        for row in plan.rows
    ]
    assert judge.judge(rows).sound
    return plan


def cases(path: Path, nodeid: str = TEST) -> set[Case]:
    """The lines of one function, without its name."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {tuple(ids) for name, *ids in lines if name == nodeid}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pairwise.lock"


# ------------------------------------------------------------------ the file


def test_a_case_is_one_sorted_line_of_readable_ids(path: Path) -> None:
    choose(path, {"dtype": [float, int], "n,k": [(1, 2), (3, 4)], "text": ["a b", 'say "n=1"\n', "caf\u00e9"]})
    header, *lines = path.read_text(encoding="ascii").splitlines()
    assert header == HEADER
    assert lines == sorted(lines)
    assert len(lines) == 6
    assert any(line.startswith(f'["{TEST}", "dtype=builtins.float", "n=1-k=2", "text=') for line in lines)
    assert any(line.endswith(""" "text='a b'"]""") for line in lines)


def test_what_stays_as_it_is_is_not_written_again(path: Path) -> None:
    first = choose(path, AXES)
    before = path.stat()
    again = choose(path, AXES, seed=7)
    assert again.rows == first.rows
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_functions_that_a_run_does_not_collect_keep_their_lines(path: Path) -> None:
    choose(path, AXES, "tests/a.py::test_one")
    before = cases(path, "tests/a.py::test_one")
    choose(path, AXES, "tests/b.py::test_two", seed=1)
    assert cases(path, "tests/a.py::test_one") == before
    assert len(cases(path, "tests/b.py::test_two")) == 12


def test_lines_that_another_run_wrote_meanwhile_stay(path: Path) -> None:
    made = make_axes(AXES)
    slow = Lock.read(path)
    choose(path, AXES, "tests/b.py::test_two")
    slow.put(TEST, made, plan_cases(made).rows)
    assert slow.save()
    assert cases(path, "tests/b.py::test_two")
    assert cases(path)


def test_a_file_is_replaced_in_one_step_and_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    choose(link, AXES)
    assert link.is_symlink()
    assert len(cases(path)) == 12
    assert sorted(found.name for found in tmp_path.iterdir()) == ["link", "pairwise.lock"]


def test_a_worker_sends_what_it_chose_in_builtin_types(path: Path) -> None:
    made = make_axes(AXES)
    worker, controller = Lock.read(path), Lock.read(path)
    worker.put(TEST, made, plan_cases(made).rows)
    controller.take_in(json.loads(json.dumps(worker.entries())))
    assert controller.save()
    assert len(cases(path)) == 12
    assert not worker.save()


def test_values_that_print_alike_and_repeated_ones_are_told_apart(path: Path) -> None:
    axes: Axes = {"a": [1, True, "1", 1.0, 1], "b": [lambda: 0, lambda: 1, lambda: 2]}
    first = choose(path, axes)
    assert len(cases(path)) == 12
    assert choose(path, axes).rows == first.rows


# ------------------------------------------------------------------ growth


def test_a_value_more_leaves_the_old_cases_and_adds_those_that_it_needs(path: Path) -> None:
    choose(path, AXES)
    before = cases(path)
    choose(path, {**AXES, "n": [0, *AXES["n"]]})
    assert before < cases(path)
    assert len(cases(path)) == 15


def test_an_axis_more_leaves_the_old_cases_with_a_value_of_it(path: Path) -> None:
    choose(path, AXES)
    before = cases(path)
    choose(path, {"fast": [False, True], **AXES})
    assert {case[1:] for case in cases(path)} == before


def test_a_value_less_takes_only_its_cases(path: Path) -> None:
    choose(path, AXES)
    before = cases(path)
    plan = choose(path, {**AXES, "n": [1, 2, 4]})
    assert {case for case in before if "n=3" not in case} <= cases(path)
    assert plan.notes == (f"3 cases of {path} dropped: a value is gone from its axis",)


def test_a_case_that_is_not_allowed_any_more_is_dropped(path: Path) -> None:
    choose(path, AXES)
    before = cases(path)
    choose(path, AXES, where=lambda n, k: not (n == 1 and k == "x"))
    assert {case for case in before if not {"n=1", "k=x"} <= set(case)} <= cases(path)


def test_a_renamed_axis_keeps_its_cases_and_is_told(path: Path) -> None:
    choose(path, AXES)
    before = cases(path)
    renamed = {"bias_mode" if name == "bias" else name: values for name, values in AXES.items()}
    plan = choose(path, renamed)
    assert cases(path) == {tuple(text.replace("bias=", "bias_mode=") for text in case) for case in before}
    assert plan.notes == ("axis 'bias_mode' is taken for 'bias' of the lock file, renamed",)


def test_an_axis_with_other_values_is_a_new_axis(path: Path) -> None:
    choose(path, AXES)
    other = {"m" if name == "bias" else name: values for name, values in AXES.items()} | {"m": [5, 6, 7]}
    assert choose(path, other).notes == ()


def test_an_axis_less_makes_the_list_as_short_as_a_fresh_one(path: Path) -> None:
    choose(path, AXES)
    assert len(choose(path, {name: AXES[name] for name in ("k", "bias", "fused")}).rows) == 9


def test_the_order_of_axes_and_values_means_nothing(path: Path) -> None:
    choose(path, AXES)
    before = {frozenset(case) for case in cases(path)}
    choose(path, {name: AXES[name][::-1] for name in reversed(AXES)})
    assert {frozenset(case) for case in cases(path)} == before


def test_a_case_that_a_skip_mark_stops_covers_nothing_for_the_others(path: Path) -> None:
    made = make_axes(AXES)
    choose(path, AXES)
    idle: list[Iterable[int]] = [{0}, (), (), ()]
    plan = plan_cases(made, locked=Lock.read(path).locked(TEST, made), idle=idle)  # type: ignore[arg-type]  # a set
    running = [row for row in plan.rows if row[0]]
    for one in range(1, 4):
        for other in range(one + 1, 4):
            pairs = {(row[one], row[other]) for row in running}
            assert len(pairs) == len(made[one].values) * len(made[other].values)


def grown(chance: Random, axes: Axes) -> Axes:
    """One value or one axis more."""
    if chance.random() < 0.75:
        name = chance.choice(list(axes))
        return {**axes, name: [*axes[name], len(axes[name])]}
    return {**axes, "abcdefghijklmnopq"[len(axes)]: list(range(chance.randint(2, 4)))}


def never_together(a: int, b: int) -> bool:
    return (a + b) % 3 != 1


@pytest.mark.parametrize("number", range(12))
def test_lists_that_grew_are_at_most_a_tenth_longer_than_fresh_ones(number: int, path: Path) -> None:
    chance = Random(number)
    axes: Axes = {name: list(range(chance.randint(2, 4))) for name in "abc"[: chance.randint(2, 3)]}
    where: list[Callable[..., bool]] = [never_together] if number % 3 == 0 else []
    for _ in range(6):
        plan = choose(path, axes, where=where)
        fresh = plan_cases(make_axes(axes), where=where)
        assert len(plan.rows) <= 1.1 * len(fresh.rows)
        axes = grown(chance, axes)


def test_old_cases_make_room_only_as_far_as_the_limit_asks(path: Path) -> None:
    axes = {"n": list(range(16)), "k": list(range(6)), "xnorm": [0, 1]}
    assert len(choose(path, axes).rows) == 96
    before = cases(path)
    plan = choose(path, {**axes, "xnorm": [0, 1, 2]})  # 16 cases at least must be new; a fresh list has 96
    assert len(plan.rows) <= 105
    assert len(before & cases(path)) >= 85


def test_strength_three_grows_as_well(path: Path) -> None:
    axes: Axes = {"a": [0, 1], "b": [0, 1], "c": [0, 1], "d": [0, 1]}
    choose(path, axes, strength=3)
    before = cases(path)
    choose(path, {**axes, "a": [0, 1, 2]}, strength=3)
    assert before <= cases(path)


# ------------------------------------------------------------------ merges and hands


def test_two_branches_merge_by_the_union_of_their_lines(path: Path, tmp_path: Path) -> None:
    choose(path, AXES)
    other = tmp_path / "other.lock"
    other.write_bytes(path.read_bytes())
    choose(path, {**AXES, "n": [*AXES["n"], 5]})
    choose(other, {**AXES, "k": [*AXES["k"], "w"]})
    ours, theirs = cases(path), cases(other)
    path.write_text(path.read_text() + other.read_text())  # headers and common lines twice, not sorted
    choose(path, {**AXES, "n": [*AXES["n"], 5], "k": [*AXES["k"], "w"]})
    lines = path.read_text().splitlines()
    assert lines[1:] == sorted(set(lines[1:]))
    kept = len((ours | theirs) & cases(path))
    assert kept >= 0.9 * len(ours | theirs)


def test_a_hand_may_add_a_case_and_remove_one(path: Path) -> None:
    choose(path, AXES)
    header, _, *lines = path.read_text().splitlines()
    added = min({("n=1", "k=x", "bias=row", "fused=False"), ("n=1", "k=x", "bias=row", "fused=True")} - cases(path))
    lines.append(json.dumps([TEST, *added]))
    path.write_text("\n".join([header, *lines]))  # and no end of line
    choose(path, AXES)
    assert {tuple(json.loads(line)[1:]) for line in lines} <= cases(path)


def test_windows_line_ends_and_comments_are_read(path: Path) -> None:
    choose(path, AXES)
    before = cases(path)
    path.write_bytes(b"# ours\r\n\r\n" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert path.read_bytes().count(b"\r\n") == len(before) + 3
    made = make_axes(AXES)
    assert len(Lock.read(path).locked(TEST, made).cases) == len(before)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("<<<<<<< HEAD", r"line 3 of \S+ is a merge mark\nnext: keep the lines of both sides"),
        ("=======", r"line 3 of \S+ is a merge mark"),
        (">>>>>>> theirs", r"line 3 of \S+ is a merge mark"),
        (
            '["tests/a.py::test_a", "n=1"',
            r"line 3 of \S+ is damaged: '\[\"tests/a\.py::test_a\", \"n=1\"'\nnext: remove",
        ),
        ('["tests/a.py::test_a"]', r"line 3 of \S+ is damaged"),
        ('["tests/a.py::test_a", 1]', r"line 3 of \S+ is damaged"),
        ('["tests/a.py::test_a", "n"]', r"line 3 of \S+ is damaged"),
        ('{"tests/a.py::test_a": "n=1"}', r"line 3 of \S+ is damaged"),
        ("\x00\xff", r"line 3 of \S+ is damaged"),
        (
            "# testkit pairwise lock 2: new",
            r"is of another format: # testkit pairwise lock 2: new\nnext: use the testkit",
        ),
    ],
)
def test_a_damaged_line_is_refused_with_its_number(line: str, said: str, path: Path) -> None:
    choose(path, AXES)
    header, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, first, line, *rest]), encoding="latin-1")
    with pytest.raises(PairwiseError, match=said):
        Lock.read(path)


def test_a_path_that_cannot_be_read_or_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PairwiseError, match=r"^pairwise: cannot read \S+: Is a directory"):
        Lock.read(tmp_path)
    lock = Lock.read(tmp_path / "no" / "folder.lock")
    assert lock.locked(TEST, make_axes(AXES)) == Locked()
    lock.put(TEST, make_axes(AXES), [(0, 0, 0, 0)])
    with pytest.raises(PairwiseError, match=r"^pairwise: cannot write \S+: No such file or directory"):
        lock.save()


# ------------------------------------------------------------------ relock


def test_relock_takes_functions_out_by_pattern(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choose(path, AXES)
    choose(path, AXES, "tests/b.py::test_two")
    assert main(["pairwise", "relock", str(path), "*test_gemm*"]) == 0
    assert capsys.readouterr().out == (
        f"12 cases of 1 function taken out of {path}; the next run with --pairwise-lock={path} chooses afresh\n"
    )
    assert not cases(path)
    assert len(cases(path, "tests/b.py::test_two")) == 12
    assert forget(path) == (12, 1)
    assert path.read_text() == HEADER + "\n"


def test_relock_that_finds_nothing_is_an_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pairwise", "relock", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"pairwise: there is no lock file {path}\nnext: ")
    choose(path, AXES)
    assert main(["pairwise", "relock", str(path), "test_gemm"]) == 2
    assert capsys.readouterr().err.startswith(f"pairwise: {path} holds no function that fits test_gemm\n")
