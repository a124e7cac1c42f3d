"""``assert_bits_equal``, ``sizes_around_powers_of_two`` and ``same_device``."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from _kernels import remap, remap_inputs, remap_reference

from testkit.errors import KernelsError
from testkit.kernels import KernelFailed, assert_bits_equal, same_device, sizes_around_powers_of_two

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "int8", "int64", "uint32")


def inputs(size: int, seed: int) -> tuple[torch.Tensor, ...]:
    return remap_inputs((3, size, 40), seed)


# ---------------------------------------------------------------- bits


@pytest.mark.parametrize("name", DTYPES)
def test_one_flipped_bit_of_any_dtype_is_found(name: str) -> None:
    whole = torch.arange(64, dtype=torch.uint8).view(getattr(torch, name)).reshape(2, -1)
    assert_bits_equal(whole, whole.clone())
    other = whole.clone()
    other.view(torch.uint8)[1, -whole.element_size()] ^= 1
    last = other.shape[1] - 1
    match = rf"the bits of 1 of {whole.numel()} elements? \(.*\n.*\n  \[1, {last}\] +\S+ +\S+ +0x\w+ 0x\w+\n"
    with pytest.raises(KernelFailed, match=match):
        assert_bits_equal(other, whole)


def test_a_nan_equals_itself_and_minus_zero_is_not_zero() -> None:
    assert_bits_equal(torch.tensor([float("nan"), -0.0]), torch.tensor([float("nan"), -0.0]))
    assert_bits_equal(np.array([np.nan]), np.array([np.nan]))
    with pytest.raises(KernelFailed, match=r"\n  \[0\] +0 +-0 +0x00000000 0x80000000\n"):
        assert_bits_equal(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_large_whole_numbers_are_shown_in_full() -> None:
    with pytest.raises(KernelFailed, match=r"\n  \[1\] +9007199254740993 +9007199254740992 "):
        assert_bits_equal(torch.tensor([1, 2**53 + 1]), torch.tensor([1, 2**53]))


@pytest.mark.parametrize(
    ("actual", "reference", "match"),
    [
        (torch.ones(2), torch.ones(3), r"actual has the shape \(2,\), the reference \(3,\)"),
        (torch.ones(2), torch.ones(2).double(), "actual has dtype float32, the reference float64"),
        (torch.ones(0), torch.ones(0), r"nothing is compared: both have the shape \(0,\)"),
    ],
)
def test_shape_and_dtype_count_and_nothing_is_no_proof(actual: Any, reference: Any, match: str) -> None:
    with pytest.raises(KernelFailed, match=match):
        assert_bits_equal(actual, reference)


def test_unordered_rows_are_compared_as_multisets() -> None:
    made = torch.tensor([[3, 1, 1, -1], [7, 7, 8, 9]])
    assert_bits_equal(made.flip(-1), made, unordered=True)
    assert_bits_equal(made.numpy()[:, ::-1], made.numpy(), unordered=True)
    other = torch.tensor([[1, 3, -1, 1], [7, 8, 8, 9]])
    with pytest.raises(KernelFailed, match=r"1 of 2 rows hold other values .*\n.*\n  \[1\] +7 0x0+7 +8 0x0+8\n"):
        assert_bits_equal(other, made, unordered=True)
    with pytest.raises(KernelFailed, match="the bits of"):
        assert_bits_equal(made.flip(-1), made)
    with pytest.raises(KernelFailed, match="2 of 2 rows"):  # not across rows
        assert_bits_equal(made.flip(0), made, unordered=True)


def test_unordered_floats_are_compared_by_their_bits() -> None:
    nan = float("nan")
    assert_bits_equal(torch.tensor([nan, 1.0, nan]), torch.tensor([nan, nan, 1.0]), unordered=True)
    with pytest.raises(KernelFailed, match=r"\n  \[\] +nan 0x7fc00000 +1 0x3f800000\n"):
        assert_bits_equal(torch.tensor([nan, 1.0, 1.0]), torch.tensor([nan, nan, 1.0]), unordered=True)
    with pytest.raises(KernelsError, match="values of complex64 have no order"):
        assert_bits_equal(torch.ones(2) * 1j, torch.ones(2) * 1j, unordered=True)


# ---------------------------------------------------------------- random inputs


def test_functions_are_compared_on_random_inputs_of_every_size() -> None:
    seen = []

    def make(size: int, seed: int) -> tuple[torch.Tensor, ...]:
        seen.append((size, seed))
        return inputs(size, seed)

    sizes = sizes_around_powers_of_two(3, 33)
    assert_bits_equal(remap, remap_reference, make_inputs=make, sizes=sizes, seeds=range(3))
    assert seen == [(size, seed) for size in sizes for seed in range(3) for _ in range(2)]


def test_the_first_failing_size_is_shown_and_all_are_counted() -> None:
    def breaks_past_16(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        out = remap(indices, table)
        out[:, 16:] = -1
        return out

    sizes = sizes_around_powers_of_two(8, 33)
    with pytest.raises(KernelFailed, match=r"differ \(size 17, seed 0\)") as failed:
        assert_bits_equal(breaks_past_16, remap_reference, make_inputs=inputs, sizes=sizes)
    text = str(failed.value)
    assert re.search(r"\n  \d+ runs of 80 failed; by size: 17 \(\d+\), 31 \(10\), 32 \(10\), 33 \(10\)\n", text)
    assert text.endswith("next: start from make_inputs(17, 0)")


def test_a_negative_index_that_wraps_is_found() -> None:
    with pytest.raises(KernelFailed, match="the bits of"):
        assert_bits_equal(partial(remap, fault="off by one"), remap_reference, make_inputs=inputs, sizes=[8])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sizes": [4]}, "functions and sizes need make_inputs"),
        ({"make_inputs": inputs}, "make_inputs with 0 sizes and seeds"),
        ({"make_inputs": inputs, "sizes": 4}, r"sizes is 4 .*\n.*sizes=\[\.\.\.\]"),
        ({"make_inputs": inputs, "sizes": [4], "seeds": 4}, "seeds is 4 "),
        ({"make_inputs": inputs, "sizes": []}, "make_inputs with 0 sizes and seeds"),
        ({"make_inputs": inputs, "sizes": [4], "seeds": []}, "make_inputs with 0 sizes and seeds"),
        ({"make_inputs": inputs, "sizes": [4], "reference": torch.ones(1)}, "give two functions"),
    ],
)
def test_runs_that_would_verify_nothing_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(KernelsError, match=match):
        assert_bits_equal(**({"actual": remap, "reference": remap_reference} | options))


def test_a_tensor_and_an_array_are_not_mixed() -> None:
    with pytest.raises(KernelsError, match="actual is a torch tensor, reference an array"):
        assert_bits_equal(torch.ones(2), np.ones(2, np.float32))


def test_seeds_of_a_generator_are_used_for_every_size() -> None:
    seen = []

    def make(size: int, seed: int) -> tuple[torch.Tensor, ...]:
        seen.append((size, seed))
        return inputs(size, seed)

    assert_bits_equal(remap, remap_reference, make_inputs=make, sizes=iter([4, 8]), seeds=(seed for seed in range(2)))
    assert seen[::2] == [(4, 0), (4, 1), (8, 0), (8, 1)]


def test_two_functions_that_write_one_buffer_are_not_compared_with_themselves() -> None:
    buffer = torch.empty(3)

    def fill(by: float) -> Any:
        return lambda x: torch.mul(x, by, out=buffer)

    with pytest.raises(KernelFailed, match="the bits of 3 of 3 elements"):
        assert_bits_equal(fill(2.0), fill(3.0), make_inputs=lambda size, seed: torch.ones(size), sizes=[3])


# ---------------------------------------------------------------- sizes


def test_sizes_lie_around_every_power_of_two() -> None:
    assert sizes_around_powers_of_two(1, 20) == [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17]
    assert sizes_around_powers_of_two(0, 2) == [0, 1, 2]
    assert sizes_around_powers_of_two(64, 64) == [64]
    for lo, hi in [(1, 1), (5, 130), (1000, 5000)]:
        wanted = {2**k + by for k in range(14) for by in (-1, 0, 1)}
        assert sizes_around_powers_of_two(lo, hi) == sorted(size for size in wanted if lo <= size <= hi)


def test_tiles_add_the_remainders_at_which_the_last_tile_is_full_empty_or_partly_used() -> None:
    sizes = sizes_around_powers_of_two(1, 500, tiles=48)
    assert {47, 48, 49, 72, 95, 96, 97, 479, 480, 481} <= set(sizes)
    assert {size % 48 for size in sizes} >= {0, 1, 24, 47}
    assert set(sizes_around_powers_of_two(1, 500, tiles=[48, 80])) > set(sizes)
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((-1, 4), "lo is -1"),
        ((1, 2.5), "hi is 2.5"),
        ((True, 4), "lo is True"),
        ((9, 3), "no size from 9 to 3"),
        ((11, 12), "no size from 11 to 12"),
    ],
)
def test_a_range_without_a_size_is_refused(arguments: tuple[Any, Any], match: str) -> None:
    with pytest.raises(KernelsError, match=re.escape(match)):
        sizes_around_powers_of_two(*arguments)
    with pytest.raises(KernelsError, match="tile is 0"):
        sizes_around_powers_of_two(1, 9, tiles=0)


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("cuda", "cuda:0", True),
        ("cuda:0", torch.device("cuda"), True),
        (torch.device("cuda", 1), "cuda:1", True),
        ("cuda:1", "cuda", False),
        ("cpu", torch.ones(1), True),
        ("cpu", "cpu:0", True),
        ("cpu", "cuda", False),
        ("mps", "mps:0", True),
        ("xpu:0", "xpu", True),
    ],
)
def test_a_device_is_the_same_however_it_is_written(left: Any, right: Any, same: bool) -> None:
    assert same_device(left, right) is same
    assert same_device(right, left) is same


def test_cuda_without_an_index_is_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    current = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 1)
    monkeypatch.setattr(torch, "cuda", current)
    assert same_device("cuda", "cuda:1")
    assert not same_device("cuda", "cuda:0")


@pytest.mark.parametrize("device", [0, None, "cuda:x", "GPU 1", ""])
def test_what_is_no_device_is_refused(device: Any) -> None:
    with pytest.raises(KernelsError, match=re.escape(f"{device!r} is no device")):
        same_device(device, "cpu")
