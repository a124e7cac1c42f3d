"""What recorded runs teach: which cases skip and come last, which failed and are kept, and when that is forgotten."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random

import pytest

from testkit.errors import PairwiseError
from testkit.pairwise._axes import make_axes
from testkit.pairwise._history import MOST_KEPT, PASSES, WINDOW, Fate, Lessons, Recorded, lessons, read_history, telling
from testkit.pairwise._model import OPEN
from testkit.pairwise._plan import plan_cases
from testkit.timing._run import Header, Record, Timed
from testkit.timing._write import Writer

PHASES = {"ran": "ppp", "failed": "pfp", "skipped": "psp", "error": "f-p", "not run": "x-p", "xfailed": "pxp"}
Case = tuple[int, ...]
LEVELS = (4, 3, 3, 2)
AXES = {"a": range(4), "b": range(3), "c": range(3), "d": range(2)}


def record(
    folder: Path, run: str, started: float, tests: Mapping[str, str], *, shard: str = "", attempt: int = 1
) -> None:
    """A run file: (bracketed text of test_m.py::test_it -> what became of it)."""
    writer = Writer(folder, Header(run, shard=shard, attempt=attempt, started=started))
    for text, what in tests.items():
        writer.add(Timed(f"test_m.py::test_it[{text}]", phases=PHASES[what]))
    writer.close(0, 1.0)


def fates(folder: Path) -> list[Mapping[str, Fate]]:
    return [run.fates for run in read_history(folder).of("test_m.py::test_it")]


def told(*runs: Mapping[Case, Fate], levels: Sequence[int] = LEVELS) -> Lessons:
    return Lessons(tuple(levels), runs)


def whole(skips: Callable[[Case], bool], levels: Sequence[int] = LEVELS) -> dict[Case, Fate]:
    """A run of the full product."""
    return {case: "skipped" if skips(case) else "ran" for case in product(*map(range, levels))}


def pairs(rows: Sequence[Case]) -> set[tuple[int, int, int, int]]:
    return {(x, y, row[x], row[y]) for row in rows for x in range(len(row)) for y in range(x + 1, len(row))}


# ------------------------------------------------------------------ reading


def test_shards_and_attempts_are_one_run_and_a_failure_of_any_attempt_counts(tmp_path: Path) -> None:
    record(tmp_path, "r1", 1.0, {"a": "failed", "b": "skipped"}, shard="1/2")
    record(tmp_path, "r1", 2.0, {"a": "ran", "b": "ran"}, shard="1/2", attempt=2)
    record(tmp_path, "r1", 1.5, {"c": "ran"}, shard="2/2")
    assert read_history(tmp_path).runs == 1
    assert fates(tmp_path) == [{"a": "failed", "b": "ran", "c": "ran"}]


def test_outcomes_become_fates(tmp_path: Path) -> None:
    record(tmp_path, "r1", 1.0, {"a": "error", "b": "xfailed", "c": "not run", "d": "skipped"})
    assert fates(tmp_path) == [{"a": "failed", "b": "ran", "d": "skipped"}]


def test_a_run_in_which_all_cases_skipped_says_nothing(tmp_path: Path) -> None:
    record(tmp_path, "gpu", 1.0, {"a": "ran", "b": "skipped"})
    record(tmp_path, "no gpu", 2.0, {"a": "skipped", "b": "skipped"})
    assert fates(tmp_path) == [{"a": "ran", "b": "skipped"}]


def test_only_the_last_runs_count(tmp_path: Path) -> None:
    for number in range(WINDOW + 3):
        record(tmp_path, f"r{number}", float(number + 1), {f"case{number}": "ran"})
    assert [list(run) for run in fates(tmp_path)] == [[f"case{number}"] for number in range(3, WINDOW + 3)]


def test_a_run_that_goes_on_is_not_read(tmp_path: Path) -> None:
    record(tmp_path, "r1", 1.0, {"a": "ran"})
    going_on = Writer(tmp_path, Header("r2", started=2.0))
    going_on.add(Timed("test_m.py::test_it[a]", phases="psp"))
    going_on.abandon()
    history = read_history(tmp_path)
    assert (history.runs, len(history.files)) == (1, 1)
    record(tmp_path, "r3", 3.0, {"a": "failed"})
    assert read_history(tmp_path, history.files) == history


def test_the_commonest_reason_is_known(tmp_path: Path) -> None:
    writer = Writer(tmp_path, Header("r1", started=1.0))
    found = {"x[1]": "skipped: too large", "x[2]": "skipped: too large", "x[3]": "skipped: odd", "x[4]": "ran"}
    writer.add(Record("pairwise", "x", {"fates": found, "axes": [], "cases": [], "tests": []}))
    writer.close(0, 1.0)
    assert read_history(tmp_path).reasons == {"x": "too large"}


def test_an_empty_folder_is_a_history_without_runs(tmp_path: Path) -> None:
    (tmp_path / ".gitkeep").touch()
    history = read_history(tmp_path)
    assert (history.runs, history.newest, history.of("test_m.py::test_it")) == (0, None, [])


def test_what_is_no_folder_of_run_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PairwiseError, match=r"nowhere does not exist\nnext: .* mkdir -p "):
        read_history(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("no run")
    with pytest.raises(PairwiseError, match=r"no history in .*: no run file in"):
        read_history(tmp_path)
    with pytest.raises(PairwiseError, match=r"notes.txt is no folder"):
        read_history(tmp_path / "notes.txt")
    (tmp_path / "x.timing.jsonl").write_text("damaged\n")
    with pytest.raises(PairwiseError, match=r"no history in .*: .*x.timing.jsonl is not a run file"):
        read_history(tmp_path)


# ------------------------------------------------------------------ lessons


def known_by(values: Mapping[str, Mapping[str, str]], fates: Mapping[str, Fate], axes: object = None) -> Lessons:
    """Lessons of one run with these recorded values, where every id stands for the first case of all."""
    run = Recorded(fates, {text: [own] for text, own in values.items()})
    axes = {"a": [1, 2], "b": ["x", "y"]} if axes is None else axes
    return lessons([run], make_axes(axes), lambda texts: {text: [(0, 0)] for text in texts})  # type: ignore[arg-type]


def test_recorded_ids_that_no_case_has_any_more_are_left_out() -> None:
    known = {"1-x": [(0, 0)], "2-x": [(1, 0)]}
    runs = [Recorded({"1-x": "ran", "9-x": "failed"}), Recorded({"2-x": "skipped"})]
    axes = make_axes({"a": [1, 2], "b": ["x"]})
    found = lessons(runs, axes, lambda texts: {text: known[text] for text in texts if text in known})
    assert found.last == {(0, 0): "ran", (1, 0): "skipped"}
    assert found.failing == ()


def test_recorded_values_say_more_than_ids() -> None:
    found = known_by({"id0": {"a": "2", "b": "y"}, "id1": {"b": "x", "a": "2"}}, {"id0": "failed", "id1": "ran"})
    assert found.last == {(1, 1): "failed", (1, 0): "ran"}


def test_a_case_with_a_value_that_is_gone_is_forgotten() -> None:
    assert known_by({"id0": {"a": "3", "b": "y"}}, {"id0": "failed"}).runs == ({},)


def test_values_that_print_alike_are_known_by_their_ids() -> None:
    axes = {"a": [1, 2], "b": [object(), object()]}
    assert known_by({"id0": {"a": "2", "b": "<object>"}}, {"id0": "failed"}, axes).last == {(0, 0): "failed"}


def test_a_failure_from_before_an_axis_was_added_is_kept_with_any_value_of_it() -> None:
    axes = {"a": [1, 2], "b": ["x", "y"], "c": [0, 1]}
    found = known_by({"id0": {"a": "2", "b": "y"}}, {"id0": "failed"}, axes)
    assert found.failing == ((1, 1, OPEN),)
    assert (found.last, found.skipping) == ({}, frozenset())
    plan = plan_cases(make_axes(axes), lessons=found)
    assert plan.kept == 1
    assert [row for row in plan.rows if row[:2] == (1, 1)]
    again = Lessons(found.levels, (*found.runs, *[{(1, 1, 0): "ran"}] * PASSES))
    assert again.failing == ()


def test_an_axis_that_is_gone_is_left_out_of_its_cases() -> None:
    found = known_by(
        {"id0": {"a": "2", "b": "y", "z": "1"}, "id1": {"a": "2", "b": "y", "z": "2"}}, {"id0": "failed", "id1": "ran"}
    )
    assert found.last == {(1, 1): "failed"}


def test_what_a_case_did_last_decides_whether_it_skips() -> None:
    found = told({(0, 0, 0, 0): "skipped", (1, 0, 0, 0): "ran"}, {(0, 0, 0, 0): "ran", (1, 0, 0, 0): "skipped"})
    assert found.skipping == {(1, 0, 0, 0)}


@pytest.mark.parametrize("passes", range(PASSES + 1))
def test_a_case_that_failed_is_kept_until_it_has_passed_often_enough(passes: int) -> None:
    case = (3, 2, 1, 0)
    runs: list[dict[Case, Fate]] = [{case: "ran"}, {case: "failed"}, {case: "skipped"}, *[{case: "ran"}] * passes]
    assert told(*runs).failing == (() if passes >= PASSES else (case,))


def test_a_new_failure_begins_the_count_again() -> None:
    case = (3, 2, 1, 0)
    runs: list[dict[Case, Fate]] = [{case: "failed"}, *[{case: "ran"}] * (PASSES - 1), {case: "failed"}, {case: "ran"}]
    assert told(*runs).failing == (case,)


def test_of_very_many_failures_some_are_kept_spread_over_all() -> None:
    cases = sorted(product(range(30), range(10)))
    few, many = (told(dict.fromkeys(cases[:number], "failed"), levels=(30, 10)) for number in (MOST_KEPT, 300))
    assert few.kept == few.failing
    assert len(many.kept) == MOST_KEPT
    assert {first for first, _ in many.kept} == set(range(30))
    assert told().kept == ()


def test_values_that_no_recorded_case_holds_are_new() -> None:
    found = told({(0, 0, 0, 0): "ran", (1, 1, 1, 1): "skipped"})
    assert found.new == [{2, 3}, {2}, {2}, set()]
    assert found.is_new((0, 2, 0, 0))
    assert not found.is_new((1, 0, 1, 0))
    assert told().new == [frozenset()] * 4


def test_the_axes_that_skips_depend_on_are_found() -> None:
    assert told(whole(lambda c: c[0] > 1 and c[2] == 1)).axes == (0, 2)
    assert told(whole(lambda c: c[1] == 2)).axes == (1,)
    assert told(whole(lambda c: (c[0] + c[1] + c[3]) % 2 == 0)).axes == (0, 1, 3)
    assert told(whole(lambda c: False)).axes == ()
    assert told(whole(lambda c: True)).axes == ()


def test_telling_axes_agree_on_no_two_cases_of_different_sides() -> None:
    ones, others = [(0, 1, 2), (1, 1, 2)], [(0, 0, 2), (1, 1, 1)]
    axes = telling(3, ones, others)
    assert axes == (1, 2)
    assert not {tuple(c[a] for a in axes) for c in ones} & {tuple(c[a] for a in axes) for c in others}


# ------------------------------------------------------------------ choosing


def test_other_cases_hold_what_a_skipping_case_would_have_held() -> None:
    def skips(case: Case) -> bool:
        return case[0] == 3 and case[1] == 2

    found = plan_cases(make_axes(AXES), lessons=told(whole(skips)))
    running = pairs([row for row in found.rows if not skips(row)])
    assert pairs(found.rows) == pairs(list(product(*map(range, LEVELS))))
    assert pairs(found.rows) - running == {(0, 1, 3, 2)}
    assert (found.owed, found.planned) == (len(pairs(found.rows)), len(running))


def test_without_lessons_and_with_empty_ones_the_same_cases_are_chosen() -> None:
    axes = make_axes(AXES)
    plain = plan_cases(axes)
    assert plain.planned is None
    assert plan_cases(axes, lessons=told()).rows == plain.rows
    assert plan_cases(axes, lessons=told(whole(lambda c: False))).rows == plain.rows


def test_when_the_skips_end_the_next_run_sees_it_and_the_one_after_plans_all() -> None:
    """The cases on paper are chosen too: they run, and what they hold is planned again."""
    axes = make_axes(AXES)
    before = whole(lambda c: c[0] == 3 and c[1] == 2)
    first = plan_cases(axes, lessons=told(before))
    assert first.planned == first.owed - 1
    fixed: dict[Case, Fate] = dict.fromkeys(first.rows, "ran")
    second = plan_cases(axes, lessons=told(before, fixed))
    assert second.planned == second.owed


def test_failed_cases_are_in_the_choice_whatever_the_seed() -> None:
    failed: dict[Case, Fate] = {(3, 2, 1, 0): "failed", (0, 1, 2, 1): "failed", (1, 0, 0, 0): "ran"}
    for seed in range(5):
        found = plan_cases(make_axes(AXES), seed=seed, lessons=told(failed))
        assert {(3, 2, 1, 0), (0, 1, 2, 1)} <= set(found.rows)
        assert found.kept == 2


def test_a_failed_case_that_the_predicates_refuse_now_is_not_kept() -> None:
    found = plan_cases(make_axes(AXES), where=lambda a: a < 3, lessons=told({(3, 2, 1, 0): "failed"}))
    assert found.kept == 0
    assert all(row[0] < 3 for row in found.rows)


@pytest.mark.parametrize("number", range(60))
def test_whatever_was_recorded_all_that_is_owed_is_held_and_what_is_planned_by_cases_that_run(number: int) -> None:
    random = Random(number)
    levels = tuple(random.randint(1, 4) for _ in range(random.randint(2, 5)))
    product_ = list(product(*map(range, levels)))
    wanted = [(random.randrange(len(levels)), random.randrange(4)) for _ in range(2)]
    runs = []
    for _ in range(random.randint(1, 3)):
        seen = random.sample(product_, random.randint(1, len(product_)))
        ran = {case: random.choice(["ran", "ran", "ran", "failed"]) for case in seen}
        runs.append({case: "skipped" if all(case[a] == n for a, n in wanted) else fate for case, fate in ran.items()})
    axes = make_axes({name: range(n) for name, n in zip("abcde", levels, strict=False)})
    found = plan_cases(axes, seed=number % 3, lessons=told(*runs, levels=levels), effort=0)  # type: ignore[arg-type]
    assert found.lessons is not None
    assert pairs(found.rows) == pairs(product_)
    assert set(found.lessons.failing) <= set(found.rows) or len(found.lessons.failing) > MOST_KEPT
    rule = found.lessons.rule
    left_for_last = rule is not None and not any("left for last" in note for note in found.notes)

    def runs_(case: Case) -> bool:
        return not left_for_last or rule is None or rule.allows(tuple([case[axis] for axis in rule.scope]))

    planned = pairs([case for case in product_ if runs_(case)])
    assert pairs([row for row in found.rows if runs_(row)]) == planned
    assert found.planned == len(planned)


def test_cases_that_a_predicate_refuses_now_need_not_be_learned() -> None:
    found = plan_cases(make_axes(AXES), where=lambda a: a < 3, lessons=told(whole(lambda c: c[0] == 3)))
    assert found.lessons is not None
    assert found.lessons.skipping == frozenset()
    assert found.planned == found.owed


def test_where_every_allowed_case_would_skip_the_choice_is_as_without_a_history() -> None:
    axes = make_axes(AXES)
    history = told(whole(lambda c: c[0] == 3))
    found = plan_cases(axes, where=lambda a: a == 3, lessons=history)
    assert found.rows == plan_cases(axes, where=lambda a: a == 3).rows
    assert [note for note in found.notes if "left for last" in note]


def test_a_product_too_large_to_list_is_chosen_without_the_skips() -> None:
    levels = (40, 40, 40)
    cases = {(x, y, (x * 7 + y * 11) % 40): "skipped" for x in range(40) for y in range(40) if (x * y) % 3}
    ran = {(x, y, (x * 5 + y * 3 + 1) % 40): "ran" for x in range(40) for y in range(40)}
    history = told(ran | cases, levels=levels)  # type: ignore[arg-type]  # literals
    assert history.axes == (0, 1, 2)
    assert history.rule is None
    found = plan_cases(make_axes({name: range(40) for name in "abc"}), lessons=history, effort=0)
    assert found.planned == found.owed
    assert [note for note in found.notes if "left for last" in note]


# ------------------------------------------------------------------ the option

SUITE = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("n", [13, 16, 17, 64, 128, 256])
@pytest.mark.parametrize("k", [2880, 2888, 3072, 3080])
@pytest.mark.parametrize("m", [128, 144, 256])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gemm(n, k, m, dtype):
    if n > 64 and k == 2888:
        pytest.skip("no such epilogue")
    assert (n, k, m) != (13, 3072, 144)
"""
PLUGINS = ("-p", "testkit.pairwise.plugin", "-p", "testkit.timing.plugin")
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    (pytester.path / "history").mkdir()

    def run(*arguments: str, suite: str = SUITE) -> pytest.RunResult:
        pytester.makepyfile(test_m=suite)
        return pytester.runpytest_subprocess(*PLUGINS, "--pairwise-history=history", *arguments)

    return run


def ids(result: pytest.RunResult) -> list[str]:
    return re.findall(r"test_gemm\[[\w-]+\]", str(result.stdout))


def test_the_first_run_says_that_there_is_no_history_yet(run: Run) -> None:
    result = run("--timing-dir=history")
    result.stdout.fnmatch_lines(["*144 -> 24 cases, 80 owed pairs, 9?.? % ran", "no history yet in history"])


def test_the_next_run_puts_skips_last_keeps_failures_and_says_both(run: Run) -> None:
    run("--no-pairwise", "--timing-dir=history")
    result = run("--pairwise-report", "--pairwise-seed=9")
    result.stdout.fnmatch_lines(
        [
            "*::test_gemm: 144 -> 2? cases, 80 owed pairs (78 planned), 97.5 % ran",
            "*::test_gemm: every case with k = 2888 and n > 64 skipped (12 cases seen): "
            "where=lambda k, n: not (k == 2888 and n > 64)",
            "*::test_gemm: the last run: 97.5 % of 80 pairs and 94.4 % of 180 triples ran",
            "*::test_gemm: 2 of 80 owed pairs did not run",
            "*k=2888, n=128  skipped: no such epilogue",
            "*k=2888, n=256  skipped: no such epilogue",
            "1 run in history, the newest of * UTC: 12 cases of 1 function skipped and are left for last; "
            "2 owed tuples on paper only: no case that is expected to run holds one; 2 cases kept that failed",
        ]
    )
    result.assert_outcomes(failed=2, skipped=2, passed=result.parseoutcomes()["passed"])


def test_the_reason_of_the_skips_is_in_the_suggestion(run: Run) -> None:
    for seed in (1, 2, 3):
        run(f"--pairwise-seed={seed}", "--timing-dir=history")
    run().stdout.fnmatch_lines(['*every case with k = 2888 and n > 64 skipped (* seen: "no such epilogue"): where=*'])


def test_a_new_value_comes_first_and_is_named(run: Run) -> None:
    run("--timing-dir=history")
    result = run("--collect-only", "-q", suite=SUITE.replace("144, 256]", "144, 256, 512]"))
    new = ["-512-" in name for name in ids(result)]
    assert new == sorted(new, reverse=True)
    assert any(new)
    result.stdout.fnmatch_lines(["*new since these runs, so its cases come first: m = 512"])


DTYPES = """
import pytest

class Dtype:
    def __init__(self, name):
        self.name = name
    def __repr__(self):
        return f"Dtype.{self.name}"

@pytest.mark.pairwise
@pytest.mark.parametrize("n", range(6))
@pytest.mark.parametrize("m", range(6))
@pytest.mark.parametrize("dtype", [Dtype("half"), Dtype("single")])
def test_it(n, m, dtype):
    print(f"ran {n} {m} {dtype.name}")
    assert (n, m, dtype.name) != (3, 4, "half")
"""


def test_a_failed_case_is_known_by_its_values_where_its_id_is_another_case_now(run: Run) -> None:
    """Without a name of their own, values are numbered by pytest, and a value before them shifts the numbers."""
    for seed in range(9):
        if run(f"--pairwise-seed={seed}", "--timing-dir=history", suite=DTYPES).parseoutcomes().get("failed"):
            break
    grown = DTYPES.replace('[Dtype("half")', '[Dtype("double"), Dtype("half")')
    for seed in (11, 12):
        result = run(f"--pairwise-seed={seed}", "-rA", suite=grown)
        result.stdout.fnmatch_lines(["*ran 3 4 half", "*FAILED *test_it[[]dtype1-4-3]*"])
        result.stdout.fnmatch_lines(["*UTC: 1 case kept that failed"])


def test_unmarked_functions_are_counted_in_one_line(run: Run) -> None:
    unmarked = SUITE.replace("@pytest.mark.pairwise\n", "")
    run("--timing-dir=history", suite=unmarked)
    result = run("--pairwise-over=20", suite=unmarked)
    result.stdout.fnmatch_lines(["1 run in history, * 12 cases of 1 function skipped and are left for last; *"])
    result.stdout.no_fnmatch_line("*every case with*")


def test_xdist_workers_choose_by_the_runs_that_the_controller_read(run: Run) -> None:
    run("--no-pairwise", "--timing-dir=history")
    here = run("-v", "--pairwise-seed=3")
    there = run("-p", "xdist", "-n2", "-v", "--pairwise-seed=3", "--timing-dir=history")
    assert sorted(set(ids(here))) == sorted(set(ids(there)))
    there.stdout.fnmatch_lines(["1 run in history, *12 cases of 1 function skipped*"])


def test_a_folder_that_is_not_there_is_a_usage_error(run: Run) -> None:
    result = run("--pairwise-history=typo")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pairwise: *typo does not exist (from --pairwise-history)", "next: *mkdir -p*"])


def test_the_ini_key_is_read_from_where_the_ini_file_is(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\npairwise_history = history")
    (pytester.path / "below").mkdir()
    pytester.makepyfile(test_m=SUITE)
    result = pytester.runpytest_subprocess(*PLUGINS, "below/../test_m.py", "--rootdir=.")
    result.stdout.fnmatch_lines(["no history yet in history"])


def test_shards_that_write_where_they_read_are_refused(run: Run) -> None:
    result = run("--timing-dir=history/new", "--timing-shard=1/2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pairwise: *history is read to choose cases and written to: *"])


def test_shards_that_write_where_they_read_durations_are_refused(pytester: pytest.Pytester) -> None:
    pytester.mkdir("runs")
    result = pytester.runpytest_subprocess(*PLUGINS, "--pairwise-costs=runs", "--timing-dir=runs", "--timing-shard=1/2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pairwise: *runs is read to choose cases and * (from --pairwise-costs)"])
