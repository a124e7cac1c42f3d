"""What each dtype can hold, how far apart its values are, and the bounds that follow where nobody gives any.

A float of ``mantissa`` bits has the values ``q * 2**(e - mantissa)`` with whole ``q``; below ``2**lowest`` the spacing
no longer shrinks (IEEE 754-2019, 3.3; OCP 8-bit Floating Point Specification 1.0 for fp8; OCP Microscaling Formats 1.0
for fp4 and e8m0; the ``fnuz`` formats have their lowest exponent one lower). The table is ours and not ``torch.finfo``:
that has no figures for packed fp4, and torch 2.13 gives an eps of 2**-3 for e5m2fnuz, which has two bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testkit._loaded import loaded
from testkit.errors import KernelsError

PACKED = "_x2"
"""Ends the name of a dtype that holds two values a byte."""
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class Format:
    """One float dtype: ``bits`` of a value, bits of its mantissa, exponent of its smallest normal value."""

    name: str
    bits: int
    mantissa: int
    lowest: int
    rtol: float
    steps: int

    @property
    def eps(self) -> float:
        """The gap from 1 to the next value."""
        return float(2.0**-self.mantissa)


# 16 bits: two eps, as a sum in float32 is rounded once and an intermediate value once. fp8, fp4: half an eps, which is
# the rounding itself, or the next value. float32, float64: 2**7 and 2**12 eps, for sums of thousands of terms in
# another order. e8m0 holds scales: the next one is twice as large, so nothing but the same one will do.
FORMATS = {
    one.name: one
    for one in (
        Format("float64", 64, 52, -1022, 2.0**-40, 1),
        Format("float32", 32, 23, -126, 2.0**-16, 1),
        Format("float16", 16, 10, -14, 2.0**-9, 1),
        Format("bfloat16", 16, 7, -126, 2.0**-6, 1),
        Format("float8_e4m3fn", 8, 3, -6, 2.0**-4, 1),
        Format("float8_e4m3fnuz", 8, 3, -7, 2.0**-4, 1),
        Format("float8_e5m2", 8, 2, -14, 2.0**-3, 1),
        Format("float8_e5m2fnuz", 8, 2, -15, 2.0**-3, 1),
        Format("float8_e8m0fnu", 8, 0, -127, 0.0, 0),
        Format("float4_e2m1fn", 4, 1, 0, 2.0**-2, 1),
    )
}


def format_of(dtype: str) -> Format | None:
    """The float format of a dtype's name; None for bool and integers. Raises ``KernelsError`` for any other name."""
    if dtype in INTEGERS:
        return None
    name = dtype.removesuffix(PACKED)
    if name not in FORMATS:
        known = ", ".join([*FORMATS, *INTEGERS])
        fix = f"convert both sides to one of {known}; view whole bytes of packed integers as uint8"
        raise KernelsError(f"dtype {dtype} cannot be compared", "", fix)
    return FORMATS[name]


def dtype_name(dtype: object) -> str:
    """``bfloat16`` for ``torch.bfloat16``, ``numpy.dtype``, ``numpy.float32`` and a string of that name."""
    text = str(dtype)
    if isinstance(dtype, str) or text.startswith("torch."):
        return text.removeprefix("torch.")
    numpy = loaded("numpy")
    try:
        return str(numpy.dtype(dtype).name) if numpy else text
    except TypeError:
        return text


def rounded(values: Any, form: Format, xp: Any) -> Any:
    """float64 ``values`` (any shape), each rounded to the nearest one of ``form``, ties to even; not clamped."""
    if form.name == "float64":
        return values
    quotient, spacing = _split(values, form, xp)
    return quotient * spacing


def _split(values: Any, form: Format, xp: Any) -> tuple[Any, Any]:
    """Each value as a whole number of spacings, and the spacing there."""
    _, exponent = xp.frexp(values)  # |value| is in [2**(exponent - 1), 2**exponent)
    exponent = xp.clip(exponent - 1, form.lowest, None)
    spacing = xp.ldexp(xp.ones_like(values), exponent - form.mantissa)
    return xp.round(values / spacing), spacing


def steps_between(left: Any, right: Any, form: Format, xp: Any) -> Any:
    """How many values of ``form`` one must go from ``left`` to ``right`` (float64 of any shape, rounded to it first).

    0 is the same value, 1 the next one; -0 and 0 are the same. The values of a format are numbered in their order:
    ``(e - lowest) * 2**mantissa + q`` for ``q * 2**(e - mantissa)``. NaN where either is NaN.
    """
    if form.name == "float64":
        apart = gap(_ordered_bits(left, xp), _ordered_bits(right, xp), xp)
        return xp.where(xp.isnan(left + right), left + right, apart)
    return abs(_number(left, form, xp) - _number(right, form, xp))


def _number(values: Any, form: Format, xp: Any) -> Any:
    quotient, _ = _split(values, form, xp)
    _, exponent = xp.frexp(values)
    above = xp.clip(exponent - 1, form.lowest, None) - form.lowest
    return quotient + xp.sign(quotient) * above * 2.0**form.mantissa


def _ordered_bits(values: Any, xp: Any) -> Any:
    """int64 in the order of the float64 values: their bits, counted down from 0 where they are negative."""
    bits = values.view(xp.int64)
    return xp.where(bits < 0, -(bits + 2**62 + 2**62), bits)


def gap(left: Any, right: Any, xp: Any) -> Any:
    """|left - right| of int64 as float64: exact below 2**53, 0 only where they are equal, never wrapped around."""
    high, low = xp.maximum(left, right), xp.minimum(left, right)
    apart = (high - low).astype(xp.float64) if hasattr(high, "astype") else (high - low).to(xp.float64)
    return xp.where(apart < 0, apart + 2.0**64, apart)
