"""Budgets: what a marker says, else what was learned on such cards, else a default; and what follows above them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testkit.gpus import _budget
from testkit.gpus._budget import Budgets, budget, expected_memory, learned, read_budgets

GIB = 2**30
H200, A10 = "NVIDIA H200", "NVIDIA A10"


def test_the_marker_comes_first_then_the_past_then_the_default() -> None:
    budgets = Budgets({"test_a": 10 * GIB}, default=2 * GIB)
    assert budgets.of("test_a", 5 * GIB, marked=True) == (5 * GIB, "marker gpus")
    assert budgets.of("test_a", None, marked=True) == (11 * GIB, "its past runs")
    assert budgets.of("test_new", None, marked=True) == (2 * GIB, "--gpus-default-memory")
    assert Budgets().of("test_new", None, marked=True)[0] is None


def test_a_test_without_a_marker_has_what_was_learned_and_no_default() -> None:
    budgets = Budgets({"test_a": 10 * GIB, "test_cpu": 0}, default=2 * GIB)
    assert budgets.of("test_a", None, marked=False)[0] == 11 * GIB
    assert budgets.of("test_cpu", None, marked=False)[0] == 0
    assert budgets.of("test_new", None, marked=False)[0] is None


def test_a_marked_test_whose_own_process_used_none_has_the_default() -> None:
    """What it starts, a server say, was not seen."""
    assert Budgets({"test_a": 0}, default=2 * GIB).of("test_a", None, marked=True)[0] == 2 * GIB


def test_ids_with_the_group_that_loadgroup_adds_are_found() -> None:
    assert Budgets({"test_a": 10 * GIB}).of("test_a@one", None, marked=True)[0] == 11 * GIB


def test_budgets_travel_as_text() -> None:
    budgets = Budgets({"test_a": 10 * GIB}, 3, None)
    assert Budgets.from_text(budgets.to_text()) == budgets


Record = Callable[..., Path]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """``record("NVIDIA H200", test_a=GIB, ...)``: one more run file, with peaks; seconds are those in its place."""
    import testkit.timing._write as write
    from testkit.timing._run import Header, Timed

    folder = tmp_path / "times"
    folder.mkdir()

    def record(model: str | None, seconds: float = 1.0, phases: str = "ppp", **peaks: int) -> Path:
        number = len(list(folder.iterdir()))
        machine = {"environment": {"gpus": [{"model": model}]}} if model else {}
        writer = write.Writer(folder, Header(f"run-{number}", started=float(number), machine=machine))
        for name, peak in peaks.items():
            writer.add(Timed(name, call=seconds, gpu=peak, phases=phases))
        writer.close(0, 1.0)
        return folder

    return record


def test_the_largest_of_few_peaks_counts_and_the_95th_percentile_of_many(record: Record) -> None:
    for peak in (3, 9, 5):
        folder = record(H200, test_a=peak * GIB)
    assert learned(folder, H200, None).peaks == {"test_a": 9 * GIB}


def test_one_odd_run_of_twenty_does_not_count(record: Record) -> None:
    for number in range(20):
        folder = record(H200, test_a=90 * GIB if number == 7 else 5 * GIB)
    assert learned(folder, H200, None).peaks == {"test_a": 5 * GIB}


def test_only_the_newest_runs_count(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_budget, "LAST", 2)
    for peak in (9, 3, 5):
        folder = record(H200, test_a=peak * GIB)
    assert learned(folder, H200, None).peaks == {"test_a": 5 * GIB}


def test_each_model_of_card_has_figures_of_its_own(record: Record) -> None:
    record(A10, test_a=3 * GIB)
    folder = record(H200, test_a=9 * GIB)
    record(None, test_a=5 * GIB)
    assert learned(folder, H200, None).peaks == {"test_a": 9 * GIB}
    assert learned(folder, A10, None).peaks == {"test_a": 3 * GIB}
    assert learned(folder, None, None).peaks == {"test_a": 5 * GIB}
    assert learned(folder, "NVIDIA L4", 7).of("test_a", None, marked=True)[0] == 7


def test_a_skip_says_nothing_about_memory(record: Record) -> None:
    assert learned(record(H200, phases="s-p", test_a=0), H200, None).peaks == {}


def test_what_a_test_takes_at_some_moment_is_weighed_with_seconds(record: Record) -> None:
    record(H200, seconds=3.0, test_long=2 * GIB, test_cpu=0)
    folder = record(H200, seconds=1.0, test_short=10 * GIB)
    assert learned(folder, H200, None).typical == 4 * GIB


def test_a_folder_without_run_files_teaches_nothing(tmp_path: Path) -> None:
    assert learned(tmp_path, H200, 7) == Budgets(default=7)


def config(tmp_path: Path, **options: str) -> Any:
    return SimpleNamespace(
        getoption=lambda name, default=None: options.get(name.removeprefix("testkit_timing_"), default),
        getini=lambda name: None,
        _parser=SimpleNamespace(_inidict={}),
        inipath=None,
        rootpath=tmp_path,
        invocation_params=SimpleNamespace(dir=tmp_path),
    )


def test_the_past_is_what_timing_history_or_else_timing_dir_names(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_budget, "model", lambda devices: H200)
    record(H200, test_a=10 * GIB)
    assert read_budgets(config(tmp_path), ["0"], 7) == Budgets(default=7)
    assert read_budgets(config(tmp_path, history="times"), ["0"], 7).peaks == {"test_a": 10 * GIB}
    assert read_budgets(config(tmp_path, dir="times"), ["0"], 7).peaks == {"test_a": 10 * GIB}
    assert read_budgets(config(tmp_path, dir="nowhere"), ["0"], 7) == Budgets(default=7)
    assert expected_memory(config(tmp_path, dir="times"), ["0"], 7) == budget(10 * GIB)
    assert expected_memory(config(tmp_path), ["0"], 7) == 7
    assert expected_memory(config(tmp_path), ["0"], None) is None


# Above the budget, in runs of pytest

# Loaded before our plugin: one card of 10 GiB, and a torch whose tensors the tests plant.
MACHINE = """
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from testkit.gpus import _amd, _nvml

_amd.SYS = Path("nowhere")
answers = {"uuids": ["GPU-00000000-682d-b506-9ad9-d1c595d6d2ad"], "memory": [[0, 10 * 2**30]]}
_nvml._ask = lambda what, *rest: answers.get(what)

peaks, fractions = [0], [0.75]
torch = ModuleType("torch")
torch.__spec__ = ModuleSpec("torch", None)
torch.cuda = SimpleNamespace(
    is_initialized=lambda: True,
    device_count=lambda: 1,
    current_device=lambda: 0,
    synchronize=lambda place: None,
    empty_cache=lambda: None,
    memory_allocated=lambda place: 0,
    memory_reserved=lambda place: 0,
    max_memory_allocated=lambda place: peaks[-1],
    reset_peak_memory_stats=lambda place: peaks.append(0),
    get_device_properties=lambda place: SimpleNamespace(total_memory=10 * 2**30),
    get_per_process_memory_fraction=lambda place: fractions[-1],
    set_per_process_memory_fraction=lambda fraction, place: fractions.append(fraction),
)
sys.modules["torch"] = torch
"""

SUITE = """
import machine
import pytest

@pytest.mark.gpus(memory="2GiB")
def test_greedy():
    machine.peaks.append(3 * 2**30)

@pytest.mark.gpus(memory="2GiB")
def test_modest():
    machine.peaks.append(2 * 2**30)

@pytest.mark.gpus
def test_unknown():
    machine.peaks.append(3 * 2**30)
"""

TEXT = "had 3.0 GiB of GPU memory at its peak, its budget is 2.0 GiB (from marker gpus)"

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    pytester.makepyfile(machine=MACHINE)
    named = ("-p", "machine", "-p", "testkit.gpus.plugin", "-p", "testkit.timing.plugin", "-p", "no:cacheprovider")
    return lambda *args: pytester.runpytest_subprocess(*named, "--strict-markers", *args, timeout=120)


def test_above_its_budget_a_test_is_named_with_both_figures(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    result = run()
    result.assert_outcomes(passed=3, warnings=1)
    result.stdout.fnmatch_lines([f"*KitWarning: gpus: test_it.py::test_greedy {TEXT}"])


def test_above_its_budget_a_test_fails_where_that_is_asked_for(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    pytester.makeini("[pytest]\ngpus_over = fail\n")
    result = run()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [f"gpus: {TEXT} (test_it.py::test_greedy)", "next: give its marker more memory, or leave --gpus-over=fail out"]
    )


def test_it_is_held_to_its_budget_while_it_runs_where_that_is_asked_for(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import machine
        import pytest

        @pytest.mark.gpus(memory="2GiB")
        def test_held():
            assert machine.fractions == [0.75, 0.2]

        def test_after():
            assert machine.fractions == [0.75, 0.2, 0.75]

        @pytest.mark.gpus
        def test_unknown():
            assert machine.fractions == [0.75, 0.2, 0.75]
        """
    )
    run("--gpus-over=fail").assert_outcomes(passed=3)


def test_the_peak_that_one_run_records_is_the_next_runs_budget(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import json, os
        from pathlib import Path
        import machine

        def test_it():
            machine.peaks.append(3 * 2**30)
            folder = Path(os.environ["TESTKIT_GPUS_LEDGER"])
            records = [json.loads(one.read_text()) for one in folder.iterdir()] if folder.exists() else []
            Path("granted").write_text(json.dumps([record["memory"] for record in records]))
        """
    )
    run("--timing-dir=times", "--gpus-use=auto").assert_outcomes(passed=1)
    assert json.loads(Path("granted").read_text()) == []
    run("--timing-dir=times", "--gpus-use=auto").assert_outcomes(passed=1)
    [memory] = json.loads(Path("granted").read_text())
    assert memory == pytest.approx(budget(3 * GIB), rel=0.001)


@pytest.mark.parametrize("option", ["--gpus-over", "--gpus-caches"])
def test_a_word_that_is_not_known_is_refused(run: Run, option: str) -> None:
    result = run(f"{option}=maybe")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: gpus: 'maybe' is not known (from {option})", "next: give one of *"])
