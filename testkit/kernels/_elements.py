"""One side of a comparison: a torch tensor, a numpy array or numbers, with its elements as float64 in chunks."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

from testkit._loaded import loaded
from testkit.errors import KernelsError
from testkit.kernels._bounds import INTEGERS, PACKED, dtype_name, format_of

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of the codes 0 to 7 of e2m1 (OCP Microscaling Formats 1.0, 5.3.3); bit 3 is the sign."""


class Side:
    """``flat`` holds the elements in row-major order, as they are; packed fp4 as codes, complex values as pairs.

    ``shape`` counts values: two for each byte of a packed dtype, and a last dimension of 2 for complex ones.
    ``given`` and ``given_dtype`` are as the library says them, ``strides`` are in elements.
    ``weak``: Python numbers, whose dtype says nothing.
    """

    def __init__(self, value: Any, role: str) -> None:
        self.role, self.given_dtype = role, ""
        self.weak = False
        self.memory: tuple[Any, ...] | None = None
        torch = loaded("torch")
        self.is_tensor = torch is not None and isinstance(value, torch.Tensor)
        if self.is_tensor:
            self.xp: Any = torch
            self._take_tensor(value)
        else:
            self._take_array(value)
        self.given_dtype = self.given_dtype or self.dtype
        self.form = format_of(self.dtype)
        self.size: int = math.prod(self.shape)

    def _take_tensor(self, value: Any) -> None:
        torch = self.xp
        if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.device.type == "meta":
            kind = "on the meta device" if value.device.type == "meta" else f"a {value.layout} tensor"
            kind = "a quantized tensor" if value.is_quantized else kind
            raise KernelsError(f"{self.role} is {kind}", "", "give a dense tensor that has values")
        self.given, self.device = tuple(value.shape), value.device
        self.strides: tuple[int, ...] = tuple(value.stride())
        self.dtype = dtype_name(value.dtype)
        value = value.detach().resolve_conj().resolve_neg()
        if self.device.type in ("cpu", "cuda"):
            self.memory = _memory(str(self.device), value.data_ptr(), self.given, value.stride())
        if value.dtype.is_complex:
            self.given_dtype = self.dtype
            value = torch.view_as_real(value)
            self.dtype = dtype_name(value.dtype)
        if self.dtype.endswith(PACKED):
            value = value.contiguous().view(torch.uint8)
            value = torch.stack((value & 15, value >> 4), -1).flatten(-2)  # the low half comes first
        # Some accelerators have no float64.
        self.flat = value.reshape(-1) if self.device.type in ("cpu", "cuda") else value.reshape(-1).cpu()
        self.shape = tuple(value.shape)

    def _take_array(self, value: Any) -> None:
        self.xp = numpy = _numpy(self.role)
        self.weak = not hasattr(value, "__array__")
        parts = value if isinstance(value, (list, tuple)) else ()
        numbers = isinstance(value, (bool, int, float, complex, list, tuple))
        if self.weak and (not numbers or any(getattr(part, "shape", ()) != () for part in parts)):
            fix = "give the tensor itself; compare the parts of a structure one by one"
            kind = f"{type(value).__name__}{' of tensors or arrays' if parts else ''}"
            raise KernelsError(f"{self.role} is {kind}, neither tensor, array nor numbers", "", fix)
        try:
            array = numpy.asarray(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            fix = "give numbers of one shape, or an array on the host"
            raise KernelsError(f"{self.role} makes no array: {error}", "", fix) from error
        self.given, self.device = array.shape, "cpu"
        self.strides = tuple(step // (array.itemsize or 1) for step in array.strides)
        if not self.weak:
            self.memory = _memory("cpu", array.__array_interface__["data"][0], array.shape, self.strides)
        if array.dtype.kind == "c":
            self.given_dtype = dtype_name(array.dtype)
            array = numpy.stack((array.real, array.imag), -1)
        self.dtype = dtype_name(array.dtype)
        self.flat, self.shape = array.reshape(-1), array.shape

    @property
    def whole(self) -> bool:
        """Does it hold whole numbers, or bools?"""
        return self.dtype in INTEGERS

    def of(self, values: Any, shape: tuple[int, ...]) -> Side:
        """Other ``values`` of this side's format: float64, flat, in row-major order of ``shape``."""
        made = copy.copy(self)
        made.flat, made.shape, made.dtype, made.size = values, shape, "float64", math.prod(shape)
        made.xp, made.is_tensor = (loaded("torch"), True) if hasattr(values, "layout") else (loaded("numpy"), False)
        return made

    def every(self, step: int) -> Side:
        """One element of each ``step``, flat."""
        made = copy.copy(self)
        made.flat = self.flat[::step]
        made.size = int(made.flat.shape[0])
        made.shape = (made.size,)
        return made

    @property
    def is_complex(self) -> bool:
        return self.given_dtype.startswith("complex")

    def widened(self, start: int, end: int) -> Any:
        """Elements ``start`` to ``end`` as float64; exact, but for whole numbers beyond 2**53."""
        part = self.flat[start:end]
        if self.dtype.endswith(PACKED):
            table = self.xp.tensor([*FP4, *(-value for value in FP4)], dtype=self.xp.float64, device=part.device)
            return table[part.long()]
        return part.to(self.xp.float64) if self.is_tensor else part.astype(self.xp.float64)

    def ordered(self, start: int, end: int) -> Any:
        """Whole numbers ``start`` to ``end`` as int64 in the same order and as far apart."""
        part = self.flat[start:end]
        if self.dtype == "uint64":
            return part.view(self.xp.int64) ^ -(2**63)
        return part.to(self.xp.int64) if self.is_tensor else part.astype(self.xp.int64)

    def codes(self, start: int, end: int) -> Any:
        """The bits of elements ``start`` to ``end`` as whole numbers of the same size, with a sign."""
        part = self.flat[start:end]
        return part.view(getattr(self.xp, f"int{8 * part.dtype.itemsize}"))

    def bits(self, index: int) -> str:
        """The bits of one element, such as ``0x3f80``; "" for a Python number."""
        if self.weak:
            return ""
        codes = self.codes(index, index + 1)
        size = codes.dtype.itemsize
        return f"0x{int(codes[0]) % 256**size:0{1 if self.dtype.endswith(PACKED) else 2 * size}x}"

    def text(self, index: int) -> str:
        """One element for people: whole numbers in full, floats with six digits."""
        part = self.flat[index : index + 1]
        return str(part[0].item()) if self.whole else f"{float(self.widened(index, index + 1)[0]):.6g}"


def owned(output: Any) -> Any:
    """A copy of a tensor or array, in memory that nobody else writes; anything else as it is."""
    torch, numpy = loaded("torch"), loaded("numpy")
    if torch is not None and isinstance(output, torch.Tensor):
        return output.detach().clone()
    return output.copy() if numpy is not None and isinstance(output, numpy.ndarray) else output


def refuse_shared(actual: Side, reference: Side, where: str) -> None:
    """Fail if both are the same memory: a kernel that writes in place would be compared with itself.

    Other views of one storage may be compared, such as two rows, or a matrix and its transpose.
    """
    if actual.size and actual.memory is not None and actual.memory == reference.memory:
        fix = "clone the reference before the kernel runs"
        raise KernelsError("actual and reference are the same memory, so that they cannot differ", where, fix)


def _memory(device: str, address: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[Any, ...]:
    """Equal for two whose elements lie at the same addresses; the stride of a dimension of size 1 leads nowhere."""
    return device, address, *(step for size, step in zip(shape, strides, strict=True) if size > 1)


def _numpy(role: str) -> Any:
    try:
        import numpy
    except ImportError as error:
        fix = "install numpy, or give torch tensors"
        raise KernelsError(f"{role} is no torch tensor, and numpy is missing", "", fix) from error
    return numpy


def place(index: int, shape: Sequence[int]) -> str:
    """``[3, 17]`` for the flat ``index`` into ``shape``."""
    parts: list[int] = []
    for size in reversed(shape):
        parts.insert(0, index % size)
        index //= size
    return f"[{', '.join(map(str, parts))}]"
