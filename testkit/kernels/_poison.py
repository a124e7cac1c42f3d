"""``poisoned``: memory that a kernel must not read, or must write first, holds values that nobody can overlook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from testkit._text import counted
from testkit.errors import KernelsError
from testkit.kernels._dispatch import name_of, outputs, watching
from testkit.kernels._tensors import (
    KernelFailed,
    as_integers,
    element,
    first,
    integer_dtype,
    is_array,
    is_expanded,
    leaves,
)

if TYPE_CHECKING:
    from torch import Tensor

__tracebackhide__ = True  # pytest shows the line that called us, not ours

Fill = Literal["nan", "highest", "lowest"]
FILLS: tuple[Fill, ...] = ("nan", "lowest", "highest")

# Bits of (a NaN, the largest, the smallest finite value). IEEE 754-2019, 3.4; OCP 8-bit Floating Point Specification
# 1.0, 5 for fp8; the fnuz formats have one NaN, the code of -0; OCP Microscaling Formats 1.0, 5 for e8m0 and for e2m1,
# which has no NaN. The NaN of wide floats carries a mark, so that no arithmetic makes it.
FLOATS = {
    "float64": (0x7FFD_C0DE_DEAD_BEEF, 0x7FEF_FFFF_FFFF_FFFF, 0xFFEF_FFFF_FFFF_FFFF),
    "float32": (0x7FED_C0DE, 0x7F7F_FFFF, 0xFF7F_FFFF),
    "float16": (0x7EED, 0x7BFF, 0xFBFF),
    "bfloat16": (0x7FED, 0x7F7F, 0xFF7F),
    "float8_e4m3fn": (0x7F, 0x7E, 0xFE),
    "float8_e5m2": (0x7F, 0x7B, 0xFB),
    "float8_e4m3fnuz": (0x80, 0x7F, 0xFF),
    "float8_e5m2fnuz": (0x80, 0x7F, 0xFF),
    "float8_e8m0fnu": (0xFF, 0xFE, 0x00),
    "float4_e2m1fn_x2": (0x77, 0x77, 0xFF),
}
PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
MAKERS = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")


class Poison:
    """What ``poisoned`` gives its block. ``buffers``: how many new buffers were filled so far."""

    def __init__(self, fill: Fill) -> None:
        self.fill = fill
        self.buffers = 0

    def assert_absent(self, *outputs: Any, unwritten: Any = None) -> None:
        """No element of ``outputs`` (float or complex tensors, arrays and numbers, or containers of some) is a NaN.

        NaN with the poison's own bits were never written, or passed on as they were; others were computed from it.
        ``unwritten``: a mask (bool, broadcast to each output; true: may be poison) of padding. Raises
        ``KernelFailed`` with counts and the first place, and ``KernelsError`` where nothing can be told: for other
        fills, dtypes without NaN, and no tensor or only empty ones.
        """
        found = [(name, _as_tensor(name, leaf)) for name, leaf in leaves(outputs, "output") if _may_be_nan(leaf)]
        if self.fill != "nan" or not found:
            what = f'fill is "{self.fill}"' if found else "assert_absent was given no tensor"
            fix = 'use fill="nan", and give the outputs'
            raise KernelsError(f"{what}, so there is no NaN to look for", "assert_absent", fix)
        if not any(tensor.numel() for _, tensor in found):
            shapes = ", ".join(f"{name} of shape {tuple(tensor.shape)}" for name, tensor in found)
            raise KernelsError(f"the outputs have no elements: {shapes}", "assert_absent", "give outputs with elements")
        lines = [line for name, tensor in found if (line := _nans(name, tensor, unwritten))]
        if lines:
            fix = "write every element, and read only what was written; name padding by unwritten="
            raise KernelFailed(f"poison in {counted(len(lines), 'output')}", lines, fix)


@contextmanager
def poisoned(*memory: Any, fill: Fill = "nan") -> Iterator[Poison]:
    """Within the block, memory that torch hands out and ``memory`` hold poison instead of what happened to be there.

    Every new buffer (``torch.empty`` and its relatives, ``resize_`` that grows, by this thread, custom operators
    included) is filled over its whole storage, strides' gaps too. ``memory``: a workspace (a tensor of any dtype,
    shape and stride), filled whole on entry, or a pair ``(tensor, unused)``, of which only what ``unused`` selects is
    filled: a bool mask over its leading dimensions (true: unused), or whatever indexes the tensor, such as
    ``(cache, slice(9, None))`` or ``(padded, numpy.s_[:, 100:])``.

    ``fill``: "nan" (the highest value where the dtype has no NaN), "highest" or "lowest" finite value: a maximum on a
    GPU passes over a NaN, but not over the highest value. Whole numbers become extreme indices: a kernel that uses one
    reads out of bounds.

    Gives a ``Poison``; its ``assert_absent(output)`` tells what was never written from what was computed from poison.
    Raises ``KernelsError`` if nothing at all was filled, and for what cannot be.
    """
    with poisoning(memory, fill) as poison:
        yield poison
    if not poison.buffers and not memory:
        raise KernelsError(
            "poisoned() filled nothing: its block made no new buffer that torch can see",
            "",
            "name the memory that the kernel works in: poisoned(workspace)",
        )


@contextmanager
def poisoning(memory: Sequence[Any], fill: Fill) -> Iterator[Poison]:
    """``poisoned``, where a block without a buffer is nothing unusual."""
    if fill not in FILLS:
        raise KernelsError(f"fill is {fill!r}", "argument of poisoned", f"give one of {', '.join(FILLS)}")
    for item in memory:
        fill_memory(item, fill)
    poison = Poison(fill)

    def handle(func: Any, args: Any, kwargs: Any, call: Any) -> Any:
        name = name_of(func)
        before = args[0].untyped_storage().nbytes() if name == "resize_" else 0
        result = call()
        if name in MAKERS or name == "resize_":
            for tensor in outputs(result):
                poison.buffers += _fill_storage(tensor, fill, before)
        return result

    with watching(handle):
        yield poison


def fill_memory(item: Any, fill: Fill) -> None:
    """Fill a tensor, or what the second of a pair selects of it. Raises ``KernelsError`` for anything else."""
    import torch

    tensor, unused = item if isinstance(item, tuple) and len(item) == 2 else (item, ...)
    if not isinstance(tensor, torch.Tensor):
        raise KernelsError(
            f"{type(tensor).__name__} is no memory to poison",
            "argument of poisoned",
            "give tensors, or pairs (tensor, unused)",
        )
    where = "argument of poisoned"
    _check_memory(tensor, where)
    bits, value = as_integers(tensor), pattern(tensor.dtype, fill)
    index = torch.as_tensor(unused) if isinstance(unused, list) else unused
    try:
        with torch.inference_mode():
            chosen = bits[index].numel()
            bits[index] = value
    except (IndexError, TypeError) as error:
        problem = f"unused does not fit a tensor of shape {tuple(tensor.shape)}: {error}"
        raise KernelsError(problem, where, "give a mask over its leading dimensions, or an index") from error
    if not chosen:
        problem = f"unused selects nothing of a tensor of shape {tuple(tensor.shape)}"
        raise KernelsError(problem, where, "select what the kernel must not read, or leave the pair out")


def _check_memory(tensor: Tensor, where: str) -> None:
    """Raise ``KernelsError`` where a fill would reach nothing, or a copy, or elements that share memory."""
    shape = tuple(tensor.shape)
    if not tensor.numel():
        raise KernelsError(
            f"a tensor of shape {shape} has no elements to poison", where, "give memory, or leave it out"
        )
    if tensor.is_conj() or tensor.is_neg():
        fix = "give the tensor that it is a view of"
        raise KernelsError("a lazily conjugated or negated view cannot be filled in place", where, fix)
    if is_expanded(tensor):
        problem = f"a tensor of shape {shape} and stride {tensor.stride()} has elements that share memory"
        raise KernelsError(problem, where, "give the tensor that was expanded")


def pattern(dtype: Any, fill: Fill) -> int:
    """The bits of one element, or of one part of a complex one, as a signed integer of its width (uint8 for one byte).

    Raises ``KernelsError`` for a dtype that has no entry.
    """
    name = str(dtype).removeprefix("torch.")
    name = PARTS.get(name, name)
    width = dtype.itemsize // (2 if dtype.is_complex else 1)
    which = ("nan", "highest", "lowest").index(fill)
    if name in FLOATS:
        code = FLOATS[name][which]
    elif name == "bool":
        code = int(fill != "lowest")
    elif name.startswith("uint"):
        code = 0 if fill == "lowest" else 256**width - 1
    elif name.startswith("int"):
        code = 128 * 256 ** (width - 1) - (fill != "lowest")
    else:
        raise KernelsError(f"dtype {name} cannot be poisoned", "", f"use one of {', '.join(FLOATS)}, or integers")
    return signed(code, width)


def signed(code: int, width: int) -> int:
    """``code`` as the integer dtypes that hold bits read it: one byte unsigned, wider ones signed."""
    return code if width == 1 or code < 128 * 256 ** (width - 1) else code - 256**width


def _fill_storage(tensor: Tensor, fill: Fill, start: int) -> bool:
    """Fill the storage of a new tensor from byte ``start`` on; False if there is nothing to fill."""
    import torch

    if type(tensor) is not torch.Tensor or tensor.device.type == "meta" or tensor.layout != torch.strided:
        return False  # a subclass, or a tensor without memory
    if tensor.is_quantized:
        return False
    storage = tensor.untyped_storage()
    width = tensor.element_size() // (2 if tensor.is_complex() else 1)
    with torch.inference_mode():
        whole = torch.empty(0, dtype=integer_dtype(width), device=tensor.device)
        whole.set_(storage, 0, (storage.nbytes() // width,))  # type: ignore[call-overload]  # strides have a default
        whole[start // width :].fill_(pattern(tensor.dtype, fill))
    return storage.nbytes() > start


def _may_be_nan(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, (torch.Tensor, float, complex)) or hasattr(leaf, "dtype")


def _as_tensor(name: str, leaf: Any) -> Tensor:
    """A tensor as it is; a copy of an array or a number. Raises ``KernelsError`` for what torch has no dtype for."""
    import torch

    try:
        if isinstance(leaf, torch.Tensor):
            return leaf
        # A copy: torch warns of read-only arrays and refuses negative strides.
        return torch.from_numpy(leaf.copy()) if is_array(leaf) else torch.tensor(leaf)
    except (TypeError, ValueError) as error:  # dtypes of numpy alone, other byte orders
        raise KernelsError(f"{name} is no output to look at: {error}", "assert_absent", "give tensors") from error


def _nans(name: str, tensor: Tensor, unwritten: Any) -> str:
    """What NaN an output holds, as one line; "" if it holds none."""
    import torch

    if str(tensor.dtype).removeprefix("torch.") not in {*FLOATS, *PARTS} - {"float4_e2m1fn_x2"}:
        fix = "use guarded(...).run, which tries two fills, or assert_deterministic"
        raise KernelsError(f"{name} is {tensor.dtype}, which has no NaN to look for", "assert_absent", fix)
    itself = as_integers(tensor) == pattern(tensor.dtype, "nan")
    itself = itself.any(-1) if tensor.is_complex() else itself
    values = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    wrong = (values.float() if values.element_size() == 1 else values).isnan()
    wrong = wrong.any(-1) if tensor.is_complex() else wrong
    if unwritten is not None:
        wrong = wrong & ~mask(unwritten, tensor)
    number = int(wrong.sum())
    if not number:
        return ""
    index = first(wrong)
    own = int((wrong & itself).sum())
    return (
        f"{name}: {number:,} of {counted(tensor.numel(), 'element')} are NaN, {own:,} with the poison's own bits (not "
        f"written, or passed on); first at {list(index)}: {element(tensor, index)}"
    )


def mask(given: Any, tensor: Tensor) -> Tensor:
    """``given`` as a bool tensor of the shape of ``tensor``. Raises ``KernelsError`` where it does not fit."""
    import torch

    found = torch.as_tensor(given, device=tensor.device)
    try:
        if found.dtype != torch.bool:
            raise RuntimeError(f"its dtype is {found.dtype}")
        return found.expand(tensor.shape)
    except RuntimeError as error:
        fix = "give bools, True for what may stay unwritten, of a shape that broadcasts to the output's"
        raise KernelsError(
            f"unwritten does not fit an output of shape {tuple(tensor.shape)}: {error}", "argument unwritten", fix
        ) from error
