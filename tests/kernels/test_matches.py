"""``assert_matches``: bounds by dtype, what never passes, what is expected, and what a failure says."""

from __future__ import annotations

import copy
import math
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from testkit.errors import KernelsError
from testkit.kernels import KernelFailed, ToleranceRefused, assert_bits_equal, assert_matches

NAN, INF = math.nan, math.inf
FP8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
FLOATS = ("float64", "float32", "float16", "bfloat16", *FP8)
ROUNDED = ("float16", "bfloat16", *FP8[:4])
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
each_fp8 = pytest.mark.parametrize("name", FP8)


def dtype(name: str) -> torch.dtype:
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    return getattr(torch, name)  # type: ignore[no-any-return]


def values(count: int = 4096, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).reshape(-1, 64)


def fails(actual: Any, reference: Any, match: str = "kernels: ", **options: Any) -> str:
    with pytest.raises(KernelFailed, match=match) as failed:
        assert_matches(actual, reference, **options)
    return str(failed.value)


# ---------------------------------------------------------------- defaults


@pytest.mark.parametrize("name", FLOATS)
def test_equal_tensors_match(name: str) -> None:
    x = values().abs().to(dtype(name))
    assert_matches(x, x.clone())


@pytest.mark.parametrize("name", ROUNDED)
def test_a_reference_rounded_to_the_dtype_matches_the_wider_one(name: str) -> None:
    reference = values()
    assert_matches(reference.to(dtype(name)), reference)
    assert_matches(reference.float().to(dtype(name)), reference.float())


@pytest.mark.parametrize("name", FP8[:4])
def test_the_next_value_of_an_8_bit_float_matches_and_the_fourth_does_not(name: str) -> None:
    reference = values().to(dtype(name))
    codes = reference.view(torch.uint8).int()
    low = codes % 128 < 100  # far below NaN
    assert_matches((codes + low).to(torch.uint8).view(reference.dtype), reference)
    fails((codes + 4 * low).to(torch.uint8).view(reference.dtype), reference, f"or 1 step of {name}")


def test_a_float32_sum_in_another_order_matches() -> None:
    terms = torch.randn(64, 4096, generator=torch.Generator().manual_seed(1))
    assert_matches(terms.sum(-1), terms.flip(-1).double().sum(-1))
    assert_matches(terms.sum(-1), terms.reshape(64, 64, 64).sum(1).sum(1))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", *FP8[:4]])
@pytest.mark.parametrize("scale", [2.0**-6, 1.0, 2.0**4])
def test_defaults_know_no_unit(name: str, scale: float) -> None:
    reference = values() * scale
    assert_matches(reference.to(dtype(name)), reference)
    fails((reference * 1.6).to(dtype(name)), reference)
    fails(torch.zeros_like(reference).to(dtype(name)), reference)


def test_an_element_near_zero_is_measured_by_the_others() -> None:
    reference = values()
    reference[3, 5] = 1e-9
    actual = reference.clone()
    actual[3, 5] = 0.004
    assert_matches(actual.bfloat16(), reference)
    actual[3, 5] = 0.1
    assert "[3, 5]" in fails(actual.bfloat16(), reference)


@pytest.mark.parametrize("diagonal", [0, 1])
def test_a_mask_of_large_values_does_not_hide_the_others(diagonal: int) -> None:
    reference = values()
    mask = torch.ones(64, 64).triu(diagonal).bool()
    reference[mask] = -1e4
    zeroed = torch.where(mask, reference, 0.0).bfloat16()
    with pytest.raises(KernelFailed, match=r"elements|give atol=.*with rtol="):
        assert_matches(zeroed, reference)
    if diagonal:  # most are not masked: the median is theirs
        assert_matches(reference.bfloat16(), reference)
        return
    with pytest.raises(ToleranceRefused, match="would let zeros pass in 49 % of the reference"):
        assert_matches(reference.bfloat16(), reference)
    assert_matches(reference.bfloat16(), reference, atol=0.01)
    assert_matches(reference.bfloat16(), reference, mutants=())


@pytest.mark.parametrize("fill", [-1e4, torch.finfo(torch.bfloat16).min])
@pytest.mark.parametrize("options", [{}, {"rtol": 0.02}])
def test_a_narrow_window_beside_a_mask_asks_for_an_atol(fill: float, options: dict[str, Any]) -> None:
    reference = values()
    window = torch.ones(64, 64).tril().triu(-4).bool()  # 7.6 % of all
    reference[~window] = fill
    zeroed = torch.where(window, 0.0, reference).bfloat16()
    for actual in (zeroed, reference.bfloat16()):
        with pytest.raises(ToleranceRefused, match=r"would let zeros pass in 7\.6 % (.|\n)*give atol=.*rtol="):
            assert_matches(actual, reference, **options)
    assert_matches(reference.bfloat16(), reference, atol=0.01, **options)
    with pytest.raises(KernelFailed, match="elements"):
        assert_matches(zeroed, reference, atol=0.01, **options)


@pytest.mark.parametrize("name", ROUNDED)
def test_the_defaults_take_healthy_outputs_of_many_distributions(name: str) -> None:
    x, y = values(1 << 14, 1), values(1 << 14, 2)
    for reference in (x, x * y, x.relu(), x.exp(), x.sigmoid(), (3 * x).softmax(-1) * 64, torch.nn.functional.gelu(x)):
        assert_matches(reference.to(dtype(name)), reference)
    assert_matches(torch.nn.functional.gelu(3 * x).to(dtype(name)), torch.nn.functional.gelu(3 * x))


def test_a_half_step_of_a_large_bfloat16_is_no_error() -> None:
    assert_matches(torch.tensor([16.0, 30.0]).bfloat16(), torch.tensor([16.0625, 30.0625]))


@pytest.mark.parametrize("name", INTEGERS)
def test_whole_numbers_match_exactly_or_not_at_all(name: str) -> None:
    top = torch.iinfo(dtype(name)).max
    made = torch.tensor([[0, 1, top - 1], [5, 6, 7]], dtype=dtype(name))
    other = torch.tensor([[0, 1, top], [5, 6, 7]], dtype=dtype(name))
    assert_matches(made, made.clone())
    text = fails(made, other, r"1 of 6 elements \(17 %\) differs from the reference \(defaults of ")
    assert re.search(rf"\n  \[0, 2\] +{top - 1} +{top} +1 ", text)
    assert_matches(made, other, atol=1, mutants=())
    assert_matches(made, other, steps=1, mutants=())


def test_uint64_is_not_compared_with_signed_numbers() -> None:
    with pytest.raises(KernelsError, match="uint64 and int64 have no common whole number type"):
        assert_matches(np.arange(3, dtype=np.uint64), [0, 1, 2])
    assert_matches(np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.uint64))


def test_values_at_the_ends_of_float64_do_not_pass_by_overflow_or_underflow() -> None:
    large = torch.full((4, 64), 1e308, dtype=torch.float64)
    assert_matches(large, large.clone())
    fails(large * 0.5, large, "256 of 256 elements")
    fails(large * -1, large, "256 of 256 elements are not finite")
    small = torch.full((4, 64), 1e-200, dtype=torch.float64)
    fails(small * 2, small, "256 of 256 elements")


def test_bools_match_exactly() -> None:
    assert_matches(torch.tensor([True, False]), torch.tensor([True, False]))
    fails(torch.tensor([True, False]), torch.tensor([True, True]), "1 of 2 elements")


def test_packed_fp4_counts_two_values_a_byte() -> None:
    packed = torch.tensor([[0x21, 0x7F], [0x10, 0x98]], dtype=torch.uint8)
    known = torch.tensor([[0.5, 1.0, -6.0, 6.0], [0.0, 0.5, -0.0, -0.5]])
    actual = packed.view(dtype("float4_e2m1fn_x2"))
    assert_matches(actual, known)
    assert_matches(actual, actual.clone(), dtype=torch.float4_e2m1fn_x2, shape=(2, 2))
    text = fails(actual, known + torch.tensor([[0, 0, 0, 0], [0, 3.0, 0, 0]]), "1 step of float4_e2m1fn")
    assert re.search(r"\n  \[1, 1\] +0\.5 +3\.5 +3 +\S+ +5 +0x1 0x40600000\n", text)


def test_complex_values_are_compared_as_pairs() -> None:
    made = torch.tensor([1 + 2j, 3 - 1j])
    assert_matches(made, made.clone())
    assert "[1, 1]" in fails(made, torch.tensor([1 + 2j, 3 - 2j]))


def test_complex_values_are_not_compared_with_their_real_view() -> None:
    made = torch.ones(3, 4, dtype=torch.complex64)
    view = torch.view_as_real(made).clone()
    fails(made, view, "actual has dtype complex64, the reference float32")
    fails(view, made, "actual has dtype float32, the reference complex64", dtype=torch.float32)


# ---------------------------------------------------------------- fp8 (case O15)


def fp8_pair(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    scale = name == "float8_e8m0fnu"
    made = torch.full((64, 64), 1.0 if scale else 0.0)
    other = made.clone()
    other[0, 0] = 2.0 if scale else 0.1
    return made.to(dtype(name)), other.to(dtype(name))


@each_fp8
def test_fp8_takes_tolerances_in_values(name: str) -> None:
    made, other = fp8_pair(name)
    fails(made, other, r"1 of 4,096 elements")
    assert_matches(made, other, rtol=0.45, atol=0.2, mutants=())  # the only element that is not 0
    fails(made, other, r"rtol, atol given", rtol=0.01, atol=0.05)


@each_fp8
def test_fp8_takes_tolerances_in_steps(name: str) -> None:
    made, other = fp8_pair(name)
    apart = int(other.view(torch.uint8)[0, 0]) - int(made.view(torch.uint8)[0, 0])
    assert_matches(made, other, steps=apart, mutants=())
    text = fails(made, other, r"1 of 4,096 elements", steps=apart - 1)
    codes = f"0x{int(made.view(torch.uint8)[0, 0]):02x} 0x{int(other.view(torch.uint8)[0, 0]):02x}"
    assert re.search(rf"\n  \[0, 0\] +(0|1) +\S+ +\S+ +\S+ +{apart} +{codes}\n", text)


@each_fp8
def test_fp8_compares_with_float32_and_not_the_other_way_round(name: str) -> None:
    made = values().abs().to(dtype(name))
    assert_matches(made, made.float())
    fails(made.float(), made, f"actual has dtype float32, the reference {name}")
    assert_matches(made.float(), made, dtype=torch.float32)


@each_fp8
def test_every_nan_code_of_fp8_fails_and_can_be_named(name: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype(name))
    wide = codes.float()
    lost = int((~wide.isfinite()).sum())
    fails(codes, codes.clone(), f"{lost} of 256 elements (is|are) not finite")
    assert_matches(codes, wide, nan=True, inf=True, rtol=0)


@each_fp8
def test_the_budget_of_mismatches_is_a_count_or_a_share(name: str) -> None:
    made, other = (one.reshape(-1)[:128] for one in fp8_pair(name))
    assert_matches(made, other, mismatches=1, mutants=())
    assert_matches(made, other, mismatches=0.01, mutants=())
    fails(made, other, "1 of 128 elements", mismatches=0.001)
    other[1] = 8.0
    fails(made, other, r"2 of 128 elements \(1\.6 %\) differ by more than .*; 1 may", mismatches=1)


# ---------------------------------------------------------------- NaN and infinities (case O16)

GOT, WANT = torch.tensor([1.0, NAN, 3.0]), torch.tensor([1.0, 2.0, 3.0])
METRICS: dict[str, dict[str, Any]] = {
    "the default": {},
    "a maximum": {"rtol": 0.0, "atol": 1e6},
    "a count": {"mismatches": 2},
    "a share": {"mismatches": 0.9},
    "steps": {"steps": 10**6},
    "cosine": {"cosine": 0.0, "atol": 1e6},
    "relative norm": {"relative_norm": 1e6, "atol": 1e6},
}


EVERYDAY: dict[str, Callable[[torch.Tensor, torch.Tensor], bool]] = {
    "fail if the largest difference is larger": lambda a, b: not bool((a - b).abs().max() > 1e-3),
    "count what is off": lambda a, b: int(((a - b).abs() > 1e-3).sum()) == 0,
    "Python's max": lambda a, b: max([0.0, *(a - b).abs().tolist()]) <= 1e-3,
    "a reduction that skips NaN": lambda a, b: bool(np.nanmax(np.abs(a.numpy() - b.numpy())) <= 1e-3),
    "cosine after nan_to_num": lambda a, b: bool(torch.cosine_similarity(a.nan_to_num(2.0), b, dim=0) > 0.999),
    "one number within another": lambda a, b: not abs(float(a[1]) - float(b[1])) > 0.1,
}


@pytest.mark.parametrize("name", EVERYDAY)
def test_an_everyday_check_accepts_a_nan_that_ours_rejects(name: str) -> None:
    assert EVERYDAY[name](GOT, WANT)
    fails(GOT, WANT, r"1 of 3 elements is not finite, first at \[1\]")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("make", [torch.tensor, np.array, list], ids=["torch", "numpy", "list"])
def test_a_nan_or_an_infinity_never_passes_whatever_the_metric(
    metric: str, bad: float, make: Callable[[list[float]], Any]
) -> None:
    made, other = make([1.0, bad, 3.0]), make([1.0, 2.0, 3.0])
    options = METRICS[metric] | {"mutants": ()}
    text = rf"1 of 3 elements is not finite, first at \[1\]: actual {bad}, reference 2.0 "
    fails(made, other, text, **options)
    fails(other, made, rf"first at \[1\]: actual 2.0, reference {bad} ", **options)
    fails(made, copy.deepcopy(made), "1 of 3 elements is not finite", **options)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_named_passes_where_both_sides_have_it(value: float) -> None:
    kind = {"nan": True} if math.isnan(value) else {"inf": True}
    made = torch.tensor([[1.0, value], [value, 4.0]])
    assert_matches(made, made.clone(), **kind)
    other = made.clone()
    other[0, 1] = 1e30
    fails(made, other, r"1 of 4 elements is not finite, first at \[0, 1\]", **kind)
    fails(made, made.clone(), "2 of 4 elements are not finite")


def test_infinities_of_different_sign_and_the_other_name_do_not_pass() -> None:
    fails(torch.tensor([INF]), torch.tensor([-INF]), "not finite", inf=True)
    fails(torch.tensor([INF]), torch.tensor([INF]), "not finite", nan=True)
    fails(torch.tensor([NAN]), torch.tensor([NAN]), "not finite", inf=True)
    fails(torch.tensor([NAN]), torch.tensor([INF]), "not finite", inf=True, nan=True)


@pytest.mark.parametrize("value", [NAN, INF])
def test_nothing_but_what_is_left_out_fails(value: float) -> None:
    made = torch.full((4, 64), value)
    fails(made, made.clone(), "nothing is compared: no element is finite in both", nan=True, inf=True)


def test_a_metric_that_is_nan_itself_fails() -> None:
    nothing = torch.zeros(4)
    fails(nothing, nothing.clone(), "the cosine of actual and reference is nan", cosine=0.0)
    fails(torch.ones(4) * 1e-3, nothing, "the norm of the error is nan", relative_norm=1.0, atol=1.0)
    assert_matches(nothing, nothing.clone(), relative_norm=0.0, mutants=())


# ---------------------------------------------------------------- other metrics


def test_cosine_and_relative_norm_hold_beside_the_bound() -> None:
    reference = values().float()
    zero_row = reference.clone()
    zero_row[7] = 0
    loose = {"rtol": 1.0, "atol": 1.0, "mutants": ()}
    assert_matches(zero_row, reference, **loose)
    fails(zero_row, reference, r"the cosine of actual and reference is 0\.99\d+, not 0.999", cosine=0.999, **loose)
    fails(zero_row, reference, r"the norm of the error is 0\.1\d* of the", relative_norm=0.01, **loose)
    assert_matches(reference * 1.001, reference, rtol=0.01, cosine=0.9999, relative_norm=0.002)


def test_what_is_not_given_keeps_its_default() -> None:
    reference = values().float()
    near = reference * (1 + 2.0**-17)
    assert_matches(near, reference)
    assert_matches(near, reference, atol=1e-12)  # rtol is that of float32
    fails(near, reference, "differ by more than 1e-12 ", atol=1e-12, rtol=0)
    assert_matches(near, reference, rtol=2.0**-17)
    fails(near, reference, r"1 step of float32 \(steps given\)", steps=1)
    fails(near, reference, r"differ from the reference \(rtol given\)", rtol=0)


def test_an_exact_comparison_is_with_the_reference_rounded_to_the_dtype() -> None:
    reference = values()
    assert_matches(reference.bfloat16(), reference, rtol=0, atol=0)
    fails(reference.bfloat16() * 1.01, reference, "differ from the reference", rtol=0, atol=0)


def test_sums_beyond_float64_raise_nothing() -> None:
    large = np.full(3 * (3 << 13), 5e303)  # each chunk has a finite sum
    assert_matches(large, large.copy())
    fails(large * 1.1, large)


# ---------------------------------------------------------------- numpy and numbers


def test_tolerances_may_be_numbers_of_numpy() -> None:
    x = np.linspace(1, 2, 64).reshape(8, 8)
    assert_matches(x * 1.001, x, rtol=np.float32(0.01), atol=np.float64(0), steps=np.int64(1))
    assert_matches(x, x.copy(), mismatches=np.float32(0.001), rtol=np.float16(0.001))
    with pytest.raises(KernelsError, match="rtol is nan"):
        assert_matches(x, x.copy(), rtol=np.float32("nan"))


@pytest.mark.parametrize("make", [torch.ones, np.ones])
def test_an_output_is_not_compared_with_itself(make: Callable[[Any], Any]) -> None:
    x = make((4, 6))
    for judge in (assert_matches, assert_bits_equal):
        with pytest.raises(KernelsError, match=r"actual and reference are the same memory(.|\n)*clone the reference"):
            judge(x, x[:])
        judge(x[:, 0], x[:, 1])
        judge(x[:3], x[1:])
    array, tensor = np.ones(3), torch.from_numpy(np.ones(3))
    with pytest.raises(KernelsError, match="the same memory"):
        assert_matches(tensor, tensor.numpy())
    assert_matches(torch.from_numpy(array.copy()), array)


def test_numpy_arrays_and_numbers_match_like_tensors() -> None:
    x = np.linspace(-1, 1, 512).reshape(8, 64)
    for name in ("float64", "float32", "float16"):
        assert_matches(x.astype(name), x)
        fails(x.astype(name) + np.asarray(0.1, name), x, f"defaults of {name}")
    assert_matches(np.arange(3), np.arange(3))
    assert_matches(1.5, 1.5)
    assert_matches([1, 2], [1, 2])
    assert_matches([np.float64(0.1), torch.tensor(0.5)], [0.1, 0.5])
    fails(1.5, 1.6, r"1 of 1 element \(100 %\) differs")
    fails([1, 2], [1, 3], "1 of 2 elements")


def test_numbers_take_the_dtype_of_the_other_side() -> None:
    assert_matches(torch.tensor(0.1).bfloat16(), 0.1)
    assert_matches(0.1, torch.tensor(0.1).bfloat16())
    assert_matches([0.1, 0.2], torch.tensor([0.1, 0.2]).half())
    fails(0.11, torch.tensor(0.1).bfloat16(), "defaults of bfloat16")


def test_a_tensor_and_an_array_can_be_compared() -> None:
    x = values()
    assert_matches(x.bfloat16(), x.numpy())
    assert_matches(x.numpy().astype(np.float32), x)
    fails(x.bfloat16(), x.numpy() + 1, "4,096 of 4,096 elements|differ by more")


def test_arrays_with_the_dtypes_of_ml_dtypes_can_be_compared() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = values().numpy()
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "float4_e2m1fn"):
        made = x.astype(getattr(ml_dtypes, name))
        assert_matches(made, made.copy())
        assert_matches(made, made.astype(np.float32))
        fails(-made, made, f"defaults of {name}")


def test_numpy_is_enough() -> None:
    code = (
        "import sys, numpy\n"
        "from testkit.kernels import assert_bits_equal, assert_matches, sizes_around_powers_of_two\n"
        "assert_matches(numpy.ones(3), numpy.ones(3)); assert_bits_equal(numpy.ones(3), numpy.ones(3))\n"
        "assert_matches(1, 1); sizes_around_powers_of_two(1, 9)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- on a GPU

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@on_a_gpu
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_tensors_on_a_gpu_are_judged_as_on_the_cpu(name: str) -> None:
    made = (values().abs() * 20).to(dtype(name))
    other = made.clone()
    other[3, 5] = 1 if name == "float8_e8m0fnu" else 100
    assert_matches(made.cuda(), made, device="cuda")
    assert_matches(made.cuda(), made.cuda())
    on_cpu, on_gpu = (fails(one, two, "3, 5") for one, two in ((other, made), (other.cuda(), made.cuda())))
    assert on_cpu == on_gpu
    with pytest.raises(KernelFailed, match="the bits of 1 of 4,096 elements"):
        assert_bits_equal(other.cuda(), made.cuda())


@on_a_gpu
def test_a_gpu_takes_what_a_cpu_takes() -> None:
    packed = torch.arange(256, dtype=torch.uint8).reshape(8, 32)
    assert_matches(packed.view(dtype("float4_e2m1fn_x2")).cuda(), packed.view(torch.float4_e2m1fn_x2))
    reference = values() * 0.01
    with pytest.raises(ToleranceRefused, match="zeros"):
        assert_matches(reference.cuda().bfloat16(), reference.cuda(), atol=1.0)
    fails(torch.full((9,), NAN).cuda(), torch.zeros(9), r"9 of 9 elements are not finite, first at \[0\]: actual nan")
    fails(torch.ones(3).cuda(), torch.ones(3), "actual is on cuda:0, not cpu", device="cpu")
    large = torch.randn(40_000_000, device="cuda")  # more than one chunk
    assert_matches(large.bfloat16(), large)
    assert_matches(large.double().numpy(force=True)[:1000], large[:1000].double())
    assert_bits_equal(large.reshape(-1, 100).flip(-1), large.reshape(-1, 100), unordered=True)


# ---------------------------------------------------------------- expectations


def test_shapes_are_never_broadcast() -> None:
    fails(torch.ones(4, 1), torch.ones(4, 4), r"actual has the shape \(4, 1\), the reference \(4, 4\)")
    fails(torch.ones(4), 1.0, r"shape \(4,\), the reference \(\)")
    fails(torch.ones(4), torch.ones(4), r"actual has the shape \(4,\), not \(2, 2\) \(shape given\)", shape=(2, 2))


def test_nothing_to_compare_fails_unless_the_shape_is_named() -> None:
    nothing = torch.empty(0, 8)
    fails(nothing, nothing, r"nothing is compared: both have the shape \(0, 8\)")
    assert_matches(nothing, nothing, shape=(0, 8))
    fails(nothing, nothing, r"not \(0, 4\)", shape=(0, 4))


def test_a_dtype_that_nobody_asked_for_fails() -> None:
    x = values()
    fails(x.float(), x.bfloat16(), "actual has dtype float32, the reference bfloat16")
    fails(x.half(), x.bfloat16(), "actual has dtype float16, the reference bfloat16")
    fails(torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int64), "dtype int32, the reference int64")
    fails(torch.ones(2, dtype=torch.int32), torch.ones(2), "dtype int32, the reference float32")
    assert_matches(torch.ones(2, dtype=torch.int32), torch.ones(2), dtype=torch.int32)
    assert_matches(x.bfloat16(), x, dtype="bfloat16")
    fails(x.bfloat16(), x, r"actual has dtype bfloat16, not float16 \(dtype given\)", dtype=torch.float16)
    assert_matches(np.ones(2, np.float32), np.ones(2), dtype=np.float32)


def test_devices_and_strides_are_checked_where_they_are_given() -> None:
    x = torch.ones(4, 6)
    assert_matches(x, x.clone(), device="cpu", strides="contiguous")
    fails(x, x.clone(), r"actual is on cpu, not cuda \(device given\)", device="cuda")
    fails(x.T, x.T.clone(), r"the strides \(1, 6\), not \(4, 1\), at the shape \(6, 4\)", strides="contiguous")
    assert_matches(x.T, x.T.clone(), strides=(1, 6))
    assert_matches(x[:, :1], x[:, :1].clone(), strides=(6, 99))  # a dimension of size 1
    assert_matches(np.ones((4, 6)).T, np.ones((6, 4)), strides=(1, 6))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rtol": -1.0}, "rtol is -1.0"),
        ({"atol": NAN}, "atol is nan"),
        ({"atol": INF}, "atol is inf"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"mismatches": 2.5}, "mismatches is 2.5"),
        ({"mismatches": True}, "mismatches is True"),
        ({"cosine": 1.1}, "cosine is 1.1"),
        ({"strides": "dense"}, "strides is 'dense'"),
        ({"strides": (1, 2, 3)}, "3 strides for the 1 dimensions"),
        ({"mutants": ["zeroes"]}, "no mutant of an output is called 'zeroes'"),
        ({"model": 3}, "model is int"),
        ({"model": "nowhere.json"}, "there is no error model nowhere.json"),
        ({"model": "nowhere.json", "rtol": 1.0}, "rtol beside a model"),
        ({"device": 0}, "0 is no device"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(KernelsError, match=re.escape(match)):
        assert_matches(torch.ones(3), torch.ones(3), **options)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("text", "actual is str, neither tensor, array nor numbers"),
        ({"a": 1}, "actual is dict"),
        (None, "actual is NoneType"),
        ([torch.ones(3)], "actual is list of tensors or arrays, neither"),
        ((np.ones(3), 1.0), "actual is tuple of tensors or arrays, neither"),
        ([[1, 2], [3]], "actual makes no array"),
        (np.array(["a"]), "dtype str32 cannot be compared"),
        (torch.empty(3, device="meta"), "actual is on the meta device"),
        (torch.eye(3).to_sparse(), "actual is a torch.sparse_coo tensor"),
    ],
)
def test_values_that_cannot_be_compared_are_refused(value: Any, match: str) -> None:
    with pytest.raises(KernelsError, match=re.escape(match)):
        assert_matches(value, torch.ones(3))


def test_a_tensor_with_a_gradient_and_a_strided_one_are_compared_as_they_are() -> None:
    x = values().float()
    assert_matches(x.clone().requires_grad_(), x)
    assert_matches(x[::2, ::3], x[::2, ::3].contiguous())
    wrong = x.clone()
    wrong[4, 3] += 1
    assert "[2, 1]" in fails(wrong[::2, ::3], x[::2, ::3])


# ---------------------------------------------------------------- mutants of the reference


def test_a_given_tolerance_that_a_wrong_output_would_pass_is_refused() -> None:
    reference = values().sin() * 0.05
    with pytest.raises(ToleranceRefused, match="rtol, atol given") as refused:
        assert_matches(reference, reference.clone(), rtol=0.1, atol=0.05)
    text = str(refused.value)
    assert text.startswith("kernels: 0.05 + 0.1 * |reference| would let a wrong output pass: zeros, ")
    assert re.search(r"\n  zeros +passes\n  shuffled rows +caught\n", text)
    assert "\nnext: tighten it" in text
    assert_matches(reference, reference.clone(), rtol=0.1, atol=0.05, mutants=["shuffled rows"])
    assert_matches(reference, reference.clone(), rtol=0.1, atol=0.05, mutants=())
    assert_matches(reference, reference.clone())


def test_a_budget_that_hides_a_dropped_diagonal_is_refused() -> None:
    reference = values()
    with pytest.raises(ToleranceRefused, match="with 409 mismatches would let a wrong output pass: dropped diagonal"):
        assert_matches(reference.bfloat16(), reference, mismatches=0.1)


def test_mutants_that_would_change_nothing_are_left_out() -> None:
    alike = torch.ones(64, 64)
    assert_matches(alike, alike.clone(), rtol=0.1)  # rows and columns are alike: only zeros and half can be tried


@pytest.mark.parametrize("options", [{"atol": 1e9}, {"steps": 1}, {"mismatches": 4096}])
def test_a_tolerance_that_no_mutant_can_try_is_refused(options: dict[str, Any]) -> None:
    nothing = torch.zeros(64, 64)
    with pytest.raises(KernelsError, match=r"no use as a test of .*: zeros, .* would change nothing"):
        assert_matches(nothing, nothing.clone(), **options)
    assert_matches(nothing, nothing.clone(), **options, mutants=())
    assert_matches(nothing, nothing.clone(), rtol=0.1)  # nothing but a zero is within 0.1 * 0


def test_a_named_mutant_that_changes_nothing_is_refused() -> None:
    alike = torch.ones(64, 64)
    with pytest.raises(KernelsError, match="shuffled rows would change nothing"):
        assert_matches(alike, alike.clone(), rtol=0.1, mutants=["zeros", "shuffled rows"])


def test_an_absurd_tolerance_is_refused_on_an_output_of_mostly_zeros() -> None:
    reference = values()
    reference[:, 25:] = 0
    with pytest.raises(ToleranceRefused, match="would let a wrong output pass: zeros"):
        assert_matches(torch.zeros_like(reference), reference, rtol=0.1, atol=100.0)
    with pytest.raises(ToleranceRefused, match="would let a wrong output pass: zeros"):
        assert_matches(torch.zeros_like(reference), reference, mismatches=reference.numel())


def test_a_large_output_is_tried_in_part_first_and_whole_if_need_be() -> None:
    reference = torch.full((1024, 256), 0.001)
    reference[-1] = 5.0  # only there zeros are seen
    reference[:, ::2] *= 1.5
    assert_matches(reference, reference.clone(), rtol=0.1, atol=0.01, mutants=["zeros"])
    with pytest.raises(ToleranceRefused, match="off by one column"):
        assert_matches(reference[:-1], reference[:-1].clone(), rtol=0.1, atol=0.01)


# ---------------------------------------------------------------- what a failure says


def test_a_failure_names_the_worst_elements_the_worst_rows_and_the_shares() -> None:
    reference = values()
    actual = reference.clone()
    actual[5] += 1.0
    actual[9, 3] += 7.0
    text = fails(actual.bfloat16(), reference)
    assert re.match(r"kernels: 65 of 4,096 elements \(1\.6 %\) differ by more than 0\.01\d+ \+ 0\.0156 \* ", text)
    lines = text.splitlines()
    assert re.match(r"  worst elements +actual +reference +error +bound +steps +bits$", lines[1])
    assert lines[2].startswith("  [9, 3] ")
    assert all(re.match(r"  \[5, \d+\] ", line) for line in lines[3:7])
    assert re.match(r"  worst rows by RMS +error +reference +ratio$", lines[7])
    assert {line.split()[0] for line in lines[8:10]} == {"[9]", "[5]"}
    assert re.search(r"\n  elements beyond +share +count\n  the bound +1\.6 % +65\n  2 x the bound +", text)
    assert re.search(r"\n  0\.0156\d* \* \|reference\| alone +\S+ % +\d+", text)
    assert re.search(r"\n  1 step of bfloat16 alone +\S+ % +\d+", text)
    assert lines[-1].startswith("next: compare the worst of them with the reference")


def test_what_passes_by_its_steps_is_not_among_the_worst() -> None:
    reference = torch.full((4, 32), 1.0).bfloat16()
    actual = reference.clone()
    actual[1, 1] = 1.0078125  # one step
    actual[2, 2] = 3.0
    text = fails(actual, reference, "1 of 128 elements", steps=1)
    assert "[2, 2]" in text
    assert "[1, 1]" not in text
    assert re.search(r"\n  the bound +0\.78 % +1\n", text)


def test_the_first_of_equally_wrong_elements_is_shown_first() -> None:
    text = fails(torch.zeros(100), torch.ones(100))
    assert re.findall(r"\n  \[(\d+)\] ", text) == ["0", "1", "2", "3", "4"]


def test_a_failure_shows_the_line_of_the_test_and_no_frame_of_ours(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import numpy
        from testkit.kernels import assert_matches

        def test_it():
            assert_matches(numpy.zeros(3), numpy.ones(3))
        """
    )
    result = pytester.runpytest("-p", "testkit")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*E *KernelFailed: kernels: 3 of 3 elements (100 %) differ by more than *"])
    result.stdout.no_fnmatch_line("*_matches.py*")


def test_no_warning_of_numpy_escapes() -> None:
    fails(np.array([INF, 1e308, NAN]), np.array([INF, -1e308, 1.0]), "3 of 3 elements are not finite")
    assert_matches(np.array([INF, 1.0]), np.array([INF, 1.0]), inf=True)
