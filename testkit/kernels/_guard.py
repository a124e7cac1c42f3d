"""``guarded``: an output whose surroundings, inputs and every element are looked at after the kernel."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from testkit._text import counted
from testkit.errors import KernelsError
from testkit.kernels._poison import mask, pattern, signed
from testkit.kernels._tensors import (
    KernelFailed,
    Leaves,
    as_integers,
    differences,
    element,
    first,
    integer_dtype,
    leaves,
    settle,
    snapshot,
)

if TYPE_CHECKING:
    from torch import Tensor

__tracebackhide__ = True  # pytest shows the line that called us, not ours

MARGIN = 65_536
"""Bytes of canaries before and after the output; a multiple of the 512 that torch's CUDA allocator aligns to."""
ODD = 0x5AC3_96E1_3C69_A587
"""Bits for whole numbers: no index, mask or count of a kernel looks like this."""
TELLING = {"float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32"}
TELLING |= {"int64", "uint64", "int32", "uint32"}
"""Dtypes with a value that no kernel writes, so that one run tells what was not written."""


def guarded(
    shape: Sequence[int] | int,
    dtype: Any = None,
    *,
    device: Any = None,
    stride: Sequence[int] | None = None,
    inputs: Any = (),
    unwritten: Any = None,
) -> Guarded:
    """An output for a kernel to write, watched from all sides.

    ::

        with guarded((rows, columns), torch.bfloat16, inputs=(x, weight)) as out:
            kernel(x, weight, out)

    ``shape``: of the output, any number of dimensions, zeros allowed. ``dtype`` and ``device``: as in ``torch.empty``,
    with its defaults. ``stride``: in elements, row-major without gaps by default. Around the output and in the gaps
    of its strides lie canaries, 64 KiB on each side; it starts at an address divisible by 512 on CUDA.

    At the end of the block, when the device has finished: the canaries are as they were, ``inputs`` (tensors, or
    containers of some) have the bits that they had, and every element of the output was written, except where
    ``unwritten`` (a mask, bool, broadcast to ``shape``) is true. Raises ``KernelFailed`` with all that is otherwise.

    A block serves dtypes of which some value is never written: floats from 16 bits, with a NaN of ours, and integers
    from 32. For all dtypes there is ``guarded(...).run(lambda out: kernel(x, out))``, which calls twice. Raises
    ``KernelsError`` for a narrow dtype in a block, and for arguments that cannot be.
    """
    import torch

    sizes = _whole(shape)
    if sizes is None:
        raise KernelsError(f"shape is {shape!r}", "argument of guarded", "give whole numbers, 0 or more")
    if not isinstance(dtype, (torch.dtype, type(None))):
        raise KernelsError(f"dtype is {dtype!r}", "argument of guarded", "give a torch dtype, such as torch.float32")
    steps = torch.empty(sizes, device="meta").stride() if stride is None else _whole(stride)
    if steps is None or len(steps) != len(sizes):
        fix = f"give {counted(len(sizes), 'whole number')}, in elements"
        raise KernelsError(f"stride is {stride!r} for shape {sizes}", "argument of guarded", fix)
    if stride is not None:
        elements = torch.zeros(span(sizes, steps), dtype=torch.bool, device="cpu")
        elements.as_strided(sizes, steps).fill_(True)
        if int(elements.sum()) < math.prod(sizes):
            fix = "give strides by which no two elements share memory"
            raise KernelsError(f"elements overlap by stride {steps} for shape {sizes}", "argument of guarded", fix)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    device = torch.get_default_device() if device is None else device
    return Guarded(sizes, steps, dtype, device, inputs, unwritten)


class Guarded:
    """What ``guarded`` returns: a context manager for one run of a kernel, or ``run`` for two."""

    def __init__(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: Any, device: Any, inputs: Any, unwritten: Any
    ) -> None:
        self._shape, self._stride, self._dtype, self._device = shape, stride, dtype, device
        self._inputs, self._unwritten = inputs, unwritten
        self._name = str(dtype).removeprefix("torch.")
        self._span = span(shape, stride)
        self._margin = MARGIN // dtype.itemsize
        self._parts = 2 if dtype.is_complex else 1
        self._codes = _codes(dtype)

    def __enter__(self) -> Tensor:
        """The output, of the asked shape, dtype, device and stride, full of what no kernel writes."""
        if self._name not in TELLING:
            fix = "let it run twice with different contents: out = guarded(...).run(lambda out: kernel(x, out))"
            raise KernelsError(f"one run cannot tell an unwritten {self._name} from a written one", "guarded", fix)
        return self._fresh(self._codes[0])

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            changed = self._changed()
            self._judge(changed, ~self._of_output(changed))

    def run(self, kernel: Callable[[Tensor], object]) -> Tensor:
        """Call ``kernel(output)`` twice, with other contents before each call; the output of the second.

        An element is unwritten if it kept both contents, NaN and the highest value for floats. Raises as the block
        does, for every dtype, and for what was written but has other bits the second time: a kernel that adds to what
        the output held, where it must write.
        """
        kernel(before := self._fresh(self._codes[0]))
        once = self._changed()
        self._judge(once, None)
        kernel(output := self._fresh(self._codes[1]))
        twice = self._changed()
        written = self._of_output(once | twice)
        self._judge(twice, ~written)
        self._compare(before, output, written)
        return output

    def _compare(self, before: Tensor, after: Tensor, written: Tensor) -> None:
        """Raise if the outputs of two runs differ in bits where they were ``written``, and had to be."""
        other = as_integers(before) != as_integers(after)
        other = written & (other.any(-1) if self._parts == 2 else other)
        if self._unwritten is not None:
            other = other & ~mask(self._unwritten, other)
        if number := int(other.sum()):
            index = first(other)
            line = (
                f"output: {number:,} of {counted(other.numel(), 'element')} differ between two runs, first at "
                f"{list(index)}: {element(before, index)} and {element(after, index)}"
            )
            fix = "write each element whole, without reading it first; use a block where the bits of sums may differ"
            where = f"output of shape {self._shape}, {self._name}"
            raise KernelFailed("depends on what the output held", [line], fix, where)

    def _fresh(self, code: int) -> Tensor:
        """A new output in a buffer that is full of ``code``."""
        import torch

        self._before: Leaves = snapshot(self._inputs, "inputs")
        self._code = code
        length = (2 * self._margin + self._span) * self._parts
        integers = integer_dtype(self._dtype.itemsize // self._parts)
        self._buffer = torch.full((length,), code, dtype=integers, device=self._device)
        return self._buffer.view(self._dtype).as_strided(self._shape, self._stride, self._margin)

    def _changed(self) -> Tensor:
        """Which elements of the buffer are no longer what they were: bool, one dimension, margins included."""
        settle(self._buffer.device)
        return (self._buffer != self._code).view(-1, self._parts).any(-1)

    def _of_output(self, elements: Tensor) -> Tensor:
        return elements.as_strided(self._shape, self._stride, self._margin)

    def _judge(self, changed: Tensor, untouched: Tensor | None) -> None:
        """Raise for what a run did wrong; ``untouched``, of the output's shape, is what it did not write."""
        outside = changed.clone()
        self._of_output(outside).fill_(False)
        around = self._around((outside.nonzero()[:, 0] - self._margin).tolist())
        inputs = differences(leaves(self._inputs, "inputs"), self._before)
        left = [] if untouched is None else self._left(untouched)
        found = {
            "written outside the output": (around, "bound the last tile by a mask; size grid and output alike"),
            "an input changed": (inputs, "leave out of inputs= what the kernel may change"),
            "elements left unwritten": (
                left,
                "write every element, and do not add to what it held, or name those that may stay by unwritten=",
            ),
        }
        found = {problem: (lines, fix) for problem, (lines, fix) in found.items() if lines}
        if found:
            evidence = [line for lines, _ in found.values() for line in lines]
            fixes = "; ".join(fix for _, fix in found.values())
            raise KernelFailed(", ".join(found), evidence, fixes, f"output of shape {self._shape}, {self._name}")

    def _around(self, places: list[int]) -> list[str]:
        """Elements that were written though they are not the output's; ``places`` count from its first element."""
        before = [place for place in places if place < 0]
        after = [place for place in places if place >= self._span]
        between = [place for place in places if 0 <= place < self._span]
        found = {"before the output": before[::-1], "between its elements": between, "after it": after}
        return [
            f"{counted(len(some), 'element')} {where}, nearest {some[0]:+,} from its first element"
            for where, some in found.items()
            if some
        ]

    def _left(self, untouched: Tensor) -> list[str]:
        wrong = untouched if self._unwritten is None else untouched & ~mask(self._unwritten, untouched)
        number = int(wrong.sum())
        total = counted(wrong.numel(), "element")
        return [f"output: {number:,} of {total} not written, first at {list(first(wrong))}"] if number else []


def _whole(given: Any) -> tuple[int, ...] | None:
    """A number or numbers, numpy's too, as a tuple of ints; None if one of them is not whole or is below 0."""
    try:
        found = (operator.index(given),) if hasattr(given, "__index__") else tuple(map(operator.index, given))
    except TypeError:
        return None
    return None if any(one < 0 for one in found) else found


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements lie from the first to the last one; 0 if there is none."""
    return 0 if 0 in shape else sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1


def _codes(dtype: Any) -> tuple[int, int]:
    """Two contents for a buffer of ``dtype``, as integers of the width of its parts, that no value equals both."""
    width = dtype.itemsize // (2 if dtype.is_complex else 1)
    if str(dtype) == "torch.bool":
        return 1, 0  # any other byte in a bool is undefined behaviour
    if dtype.is_floating_point or dtype.is_complex:
        # Not the NaN's inverted bits: of wide floats a number so small that a sum with it is the same as with 0.
        codes = pattern(dtype, "nan"), pattern(dtype, "highest")
        if codes[0] != codes[1]:  # fp4 has no NaN
            return codes
    code = ODD % 256**width
    return signed(code, width), signed(~code % 256**width, width)
