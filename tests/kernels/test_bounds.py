"""Formats of floats: rounding, and the number of values between two, against the bits of torch and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testkit.errors import KernelsError
from testkit.kernels._bounds import FORMATS, dtype_name, format_of, gap, rounded, steps_between
from testkit.kernels._elements import FP4

MOST = 2**53


def all_values(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Finite values of a format as float64, and their numbers in order; a sample of those of 32 bits."""
    form = FORMATS[name]
    if name == "float4_e2m1fn":
        return torch.tensor(FP4, dtype=torch.float64), torch.arange(8, dtype=torch.float64)
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    held = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[form.bits]
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 2**form.bits, (50_000,), generator=generator)
    codes = torch.arange(2**form.bits) if form.bits < 32 else codes
    wide = (codes - 2**form.bits * (codes >= 2 ** (form.bits - 1)) if form.bits > 8 else codes).to(held)
    values = wide.view(getattr(torch, name)).double()
    sign = 2 ** (form.bits - 1)
    numbers = codes if name == "float8_e8m0fnu" else torch.where(codes >= sign, sign - codes, codes)
    finite = values.isfinite()
    return values[finite], numbers[finite].double()


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "float64"])
def test_steps_between_all_values_are_the_difference_of_their_numbers(name: str) -> None:
    values, numbers = all_values(name)
    other = torch.randperm(len(values), generator=torch.Generator().manual_seed(1))
    wanted = (numbers - numbers[other]).abs()
    assert torch.equal(steps_between(values, values[other], FORMATS[name], torch), wanted)
    found = steps_between(values.numpy(), values[other].numpy(), FORMATS[name], np)
    assert (found == wanted.numpy()).all()
    assert torch.equal(rounded(values, FORMATS[name], torch), values)


def test_steps_of_float64_count_every_value() -> None:
    values = torch.tensor([1.0, -1.0, 0.0, 5e-324, -1e308, 2.0**-1022], dtype=torch.float64)
    after = torch.nextafter(values, torch.full_like(values, 9e307))
    assert steps_between(values, after, FORMATS["float64"], torch).tolist() == [1.0] * 6
    assert steps_between(values[:1], -values[:1], FORMATS["float64"], torch) > MOST
    zeros = torch.tensor([0.0, -0.0], dtype=torch.float64)
    assert steps_between(zeros, zeros.flip(0), FORMATS["float64"], torch).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["float64", "bfloat16"])
def test_a_nan_is_no_number_of_steps_away(name: str) -> None:
    lost = torch.tensor([float("nan"), 1.0], dtype=torch.float64)
    assert steps_between(lost, lost.clone(), FORMATS[name], torch)[0].isnan()
    assert steps_between(lost, lost.flip(0), FORMATS[name], torch).isnan().all()


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_rounding_is_that_of_numpy(name: str) -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal(20_000) * 10.0 ** generator.integers(-7, 4, 20_000)
    assert (rounded(values, FORMATS[name], np) == values.astype(name).astype(np.float64)).all()


def test_the_gap_of_whole_numbers_never_wraps_around() -> None:
    left = torch.tensor([2**63 - 1, 5, -(2**63), 7])
    right = torch.tensor([-(2**63), 6, -(2**63), 2**62])
    assert gap(left, right, torch).tolist() == [2.0**64, 1.0, 0.0, 2.0**62]
    assert gap(left.numpy(), right.numpy(), np).tolist() == [2.0**64, 1.0, 0.0, 2.0**62]


def test_defaults_follow_the_mantissa() -> None:
    for name, form in FORMATS.items():
        scale = name == "float8_e8m0fnu"
        assert form.steps == (0 if scale else 1)
        assert scale or form.eps / 2 <= form.rtol <= 2.0**12 * form.eps, name


def test_names_of_dtypes_are_the_same_however_they_are_written() -> None:
    for dtype in ("float32", torch.float32, np.float32, np.dtype("float32"), torch.float):
        assert dtype_name(dtype) == "float32"
    assert dtype_name(torch.float8_e4m3fn) == "float8_e4m3fn"
    assert dtype_name(np.bool_) == "bool"
    assert format_of("int32") is None
    assert format_of("float4_e2m1fn_x2") is FORMATS["float4_e2m1fn"]


def test_an_unknown_dtype_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        KernelsError, match="dtype longdouble cannot be compared\nnext: convert both sides to one of float64"
    ):
        format_of("longdouble")
