"""What a kernel's output must be before its values are looked at: shape, dtype, device and strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from testkit.errors import KernelsError
from testkit.kernels._bounds import dtype_name
from testkit.kernels._devices import same_device
from testkit.kernels._elements import Side
from testkit.kernels._tensors import KernelFailed

__tracebackhide__ = True


def expect(
    actual: Side, shape: Sequence[int] | None, dtype: Any, device: Any, strides: Sequence[int] | str | None
) -> None:
    """Fail unless ``actual`` is what was given; None expects nothing."""
    if shape is not None and actual.given != tuple(shape):
        text = f"actual has the shape {actual.given}, not {tuple(shape)}"
        raise KernelFailed(text, (), "look where it is made", "shape given")
    if dtype is not None and actual.given_dtype != dtype_name(dtype):
        text = f"actual has dtype {actual.given_dtype}, not {dtype_name(dtype)}"
        raise KernelFailed(text, (), "look where it is made", "dtype given")
    if device is not None and not same_device(actual.device, device):
        raise KernelFailed(f"actual is on {actual.device}, not {device}", (), "look where it is made", "device given")
    if strides is None:
        return
    if isinstance(strides, str):
        if strides != "contiguous":
            fix = 'give elements for each dimension, or "contiguous"'
            raise KernelsError(f"strides is {strides!r}", "argument of assert_matches", fix)
        strides = [math.prod(actual.given[at + 1 :]) for at in range(len(actual.given))]
    if len(strides) != len(actual.given):
        text = f"{len(strides)} strides for the {len(actual.given)} dimensions of actual"
        raise KernelsError(text, "argument of assert_matches", "give elements for each dimension")
    # The stride of a dimension of size 1 leads nowhere.
    if any(size > 1 and have != want for size, have, want in zip(actual.given, actual.strides, strides, strict=True)):
        text = f"actual has the strides {actual.strides}, not {tuple(strides)}, at the shape {actual.given}"
        fix = "look where it is made; whoever assumes a layout reads other elements"
        raise KernelFailed(text, (), fix, "strides given")


def expect_comparable(actual: Side, reference: Side, *, shape_named: bool, dtype_named: bool) -> None:
    """Fail unless the two have one shape, some elements, and dtypes whose difference means something."""
    if actual.is_complex != reference.is_complex:
        text = f"actual has dtype {actual.given_dtype}, the reference {reference.given_dtype}"
        raise KernelFailed(text, (), "compare complex values with complex ones, or the real views of both")
    if actual.shape != reference.shape:
        counted = " in values" if (actual.given, reference.given) != (actual.shape, reference.shape) else ""
        text = f"actual has the shape {actual.shape}{counted}, the reference {reference.shape}"
        raise KernelFailed(text, (), "nothing is broadcast: expand the reference if that is meant")
    if not actual.size and not shape_named:
        fix = f"if that is meant, say so: shape={actual.given}"
        raise KernelFailed(f"nothing is compared: both have the shape {actual.given}", (), fix)
    if dtype_named or actual.weak or reference.weak or actual.given_dtype == reference.given_dtype:
        return
    mine, its = actual.form, reference.form
    if mine is not None and its is not None and (mine is its or mine.bits < its.bits):
        return
    raise KernelFailed(
        f"actual has dtype {actual.given_dtype}, the reference {reference.given_dtype}",
        (),
        f'give a reference of that dtype or of a wider float; if it is meant, say so: dtype="{actual.given_dtype}"',
    )
