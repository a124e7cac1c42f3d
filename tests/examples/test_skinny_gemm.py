"""The demo example: its axes, its kernels, its planted faults, and its suite run as its owner would run it."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "skinny_gemm"
sys.path.insert(0, str(EXAMPLE))

from skinny_gemm import device, fits_the_device, llmm1, workspace  # noqa: E402  # found through the path set above
from skinny_gemm.faults import FAULTS, KERNELS, VARIABLE, Fault, active  # noqa: E402  # as above
from skinny_gemm.problems import assert_within_bound, problem  # noqa: E402  # as above
from skinny_gemm.tiles import SHARD, TILE  # noqa: E402  # as above

SIZES = {"wvsplitkrc": 9216, "wvsplitk": 864, "wvsplitk_fp8": 896, "llmm1": 64}
Case = dict[str, Any]


@cache
def suite() -> ModuleType:
    """The example's test file, under a name that this file does not have."""
    spec = importlib.util.spec_from_file_location("skinny_gemm_suite", EXAMPLE / "tests" / "test_skinny_gemm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body(kernel: str) -> Callable[..., None]:
    return getattr(suite(), f"test_{kernel}")


def axes(kernel: str) -> dict[str, list[Any]]:
    marks = [mark for mark in body(kernel).pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    return {mark.args[0]: list(mark.args[1]) for mark in marks}


def change(case: Case, axis: str, value: Any) -> Case:
    return case | (dict(zip(axis.split(","), value, strict=True)) if "," in axis else {axis: value})


@cache
def cases(kernel: str) -> list[Case]:
    """The full product, less what does not fit the device."""
    rows: list[Case] = [{}]
    for axis, values in axes(kernel).items():
        rows = [change(row, axis, value) for row, value in itertools.product(rows, values)]
    return [row for row in rows if allowed(kernel, row)]


def allowed(kernel: str, case: Case) -> bool:
    return kernel != "wvsplitkrc" or fits_the_device(case["n"], case["k"], case["m"])


def fails(kernel: str, case: Case) -> bool:
    try:
        body(kernel)(**case)
    except AssertionError:
        return True
    return False


@pytest.fixture(autouse=True)
def _one_thread_and_no_fault(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# the axes and the device


@pytest.mark.parametrize("kernel", KERNELS)
def test_axes_multiply_to_the_product_before_it_was_thinned(kernel: str) -> None:
    assert math.prod(len(values) for values in axes(kernel).values()) == SIZES[kernel]


def test_the_four_products_hold_11040_cases() -> None:
    assert sum(SIZES.values()) == 11_040


def test_45_of_384_shapes_are_too_large_for_the_device() -> None:
    shapes = itertools.product(suite().N_KRC, suite().K_KRC, suite().M_KRC)
    assert sum(not fits_the_device(*shape) for shape in shapes) == 45


@pytest.mark.parametrize(
    ("size", "device_block", "block", "expected"),
    [
        (3080, 512, 64, 6 * 64 + 1),
        (2888, 512, 64, 5 * 64 + 41),
        (3072, 512, 64, 6 * 64),
        (8193, 64, 8, 12 * 8 + 1),
        (656, 64, 8, 8 * 8 + 2),
        (16, 512, 64, 2),
    ],
)
def test_scaling_keeps_the_blocks_and_the_share_of_the_rest(
    size: int, device_block: int, block: int, expected: int
) -> None:
    assert device.scaled(size, device_block, block) == expected


def test_scaling_keeps_whether_the_last_block_is_partial_and_the_order_of_sizes() -> None:
    sizes = range(1, 70_000, 8)
    small = [device.scaled(size, device.DEVICE_SHARD, SHARD) for size in sizes]
    assert [size % device.DEVICE_SHARD == 0 for size in sizes] == [size % SHARD == 0 for size in small]
    whole = [device.scaled(size, device.DEVICE_TILE, TILE) for size in range(64, 30_000, 64)]
    assert whole == sorted(whole)


# the kernels and their comparison


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_agree_with_the_reference_on_every_shape(kernel: str) -> None:
    drawn = random.Random(1)
    by_shape: dict[tuple[int, ...], list[Case]] = {}
    for case in cases(kernel):
        by_shape.setdefault((case["n"], case["k"], case["m"]), []).append(case)
    assert len(by_shape) > 1
    for some in by_shape.values():
        body(kernel)(**drawn.choice(some))  # the body compares


def test_a_result_outside_the_bound_is_refused_and_one_inside_is_not() -> None:
    case = problem(4, 256, 256, torch.float16)
    inside = case.reference + case.bound * 0.99
    assert_within_bound(inside, case)
    inside[2, 3] = case.reference[2, 3] + case.bound[2, 3] * 1.01
    with pytest.raises(AssertionError, match=r"1 of 128 elements are outside the error bound, the first at \[2, 3\]"):
        assert_within_bound(inside, case)


def test_not_a_number_is_outside_every_bound() -> None:
    case = problem(1, 64, 64, torch.bfloat16)
    with pytest.raises(AssertionError, match="got nan"):
        assert_within_bound(torch.full_like(case.reference, math.nan), case)


@pytest.mark.parametrize("fp8", [False, True])
def test_the_padding_of_an_input_is_not_a_number(fp8: bool) -> None:
    case = problem(2, 80, 64, torch.float16, padded_a=True, fp8=fp8)
    n, k = case.a.shape
    wide = case.a.as_strided((n, case.a.stride(0)), (case.a.stride(0), 1)).float()
    assert wide[:, k:].isnan().all()
    assert not wide[:, :k].isnan().any()


def test_the_row_block_kernel_refuses_a_partial_block() -> None:
    with pytest.raises(ValueError, match="6 rows are no multiple of rows_per_block 4"):
        llmm1(torch.ones(1, 8), torch.ones(6, 8), 4)


def test_a_workspace_holds_no_stale_sums_and_is_given_back() -> None:
    workspace.take(2, 3, 4).fill_(1.0)
    assert workspace.take(2, 3, 4).isnan().all()
    assert workspace.held() >= 96
    workspace.release()
    assert workspace.held() == 0


# the planted faults


def test_faults_are_spread_over_the_kernels_and_over_one_to_three_axes() -> None:
    assert len(FAULTS) >= 20
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.kernel for fault in FAULTS} == set(KERNELS)
    for strength in (1, 2, 3):
        assert sum(fault.strength == strength for fault in FAULTS) >= 5
    assert all(set(fault.axes) <= set(axes(fault.kernel)) for fault in FAULTS)


def test_no_fault_is_active_without_the_variable() -> None:
    assert not any(active(fault.name) for fault in FAULTS)


def test_an_unknown_fault_is_an_error_that_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "krc-full-bucket-bais")
    with pytest.raises(
        ValueError, match="krc-full-bucket-bais is no planted fault; the nearest is krc-full-bucket-bias"
    ):
        active("krc-full-bucket-bias")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_spoils_its_combination_and_nothing_next_to_it(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, fault.name)
    drawn = random.Random(fault.name)
    spoiled = [case for case in cases(fault.kernel) if fault.spoils(case)]
    chosen = drawn.sample(spoiled, min(12, len(spoiled)))
    near = [
        changed
        for case, (axis, values) in itertools.product(chosen, axes(fault.kernel).items())
        for value in values
        if allowed(fault.kernel, changed := change(case, axis, value)) and not fault.spoils(changed)
    ]
    assert chosen
    assert near
    assert [case for case in chosen if not fails(fault.kernel, case)] == []
    assert [case for case in drawn.sample(near, min(24, len(near))) if fails(fault.kernel, case)] == []


# the suite as its owner runs it


def run_in(folder: Path, *arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", VARIABLE: fault}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-q")


def test_the_suite_passes_with_229_cases() -> None:
    done = run_in(EXAMPLE, *PYTEST, "-p", "testkit")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "229 passed" in done.stdout


def test_the_full_product_is_one_option_away() -> None:
    done = run_in(EXAMPLE, *PYTEST, "-p", "testkit", "--no-pairwise", "--collect-only")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11040 tests collected" in done.stdout


def test_the_suite_runs_where_testkit_is_not_loaded() -> None:
    done = run_in(EXAMPLE, *PYTEST, "-k", "test_llmm1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "64 passed" in done.stdout


def test_a_planted_fault_turns_the_suite_red() -> None:
    done = run_in(EXAMPLE, *PYTEST, "-p", "testkit", "-k", "test_llmm1", fault="llmm1-sixteenth-row-lost")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "outside the error bound" in done.stdout


def test_the_detection_benchmark_finds_its_own_figures_sound() -> None:
    arguments = ("--kernel", "llmm1", "--seeds", "2", "--random", "5", "--no-coverage")
    done = run_in(ROOT, "benchmarks/detection.py", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "full product 64, of which 64 fit the device" in done.stdout
    assert "llmm1-float16-block-order" in done.stdout
