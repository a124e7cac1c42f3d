"""What a kernel returned or was given, taken apart into leaves, and how two of them differ in bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from testkit._evidence import Found
from testkit._loaded import loaded
from testkit._text import counted
from testkit.errors import KernelsError

if TYPE_CHECKING:
    from torch import Tensor

__tracebackhide__ = True  # pytest shows the line that called us, not ours

Leaves = list[tuple[str, Any]]
"""Names such as ``output[0]['lse']``, and what is there: a tensor, an array, or a plain value."""
PLAIN = (int, float, complex, str, bytes, type(None), Enum, range, slice, type(Ellipsis))
"""Types of values that nobody can change, which need no copy."""


class KernelFailed(Found, KernelsError):
    """A kernel broke a promise. ``evidence`` has what was found, one line each."""


def leaves(value: Any, name: str) -> Leaves:
    """``value`` taken apart: dictionaries, lists, tuples, dataclasses and SimpleNamespaces, however deep.

    Raises ``KernelsError`` for what could hold tensors that nobody would see: a module, a set, a generator.
    """
    import torch

    found = list(_walk(value, name))
    for where, leaf in found:
        if not _is_known(leaf):
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
            if getattr(leaf, "dtype", None) is not None:
                kind += f" of {leaf.dtype}"
            fix = "use tensors, numpy arrays, plain values, or dictionaries, lists, tuples and dataclasses of them"
            fix += "; for a module its state_dict()" if isinstance(leaf, torch.nn.Module) else ""
            raise KernelsError(f"{where} is a {kind}, whose contents cannot be compared", "", fix)
    return found


def _is_known(leaf: Any) -> bool:
    import torch

    if isinstance(leaf, (torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format, *PLAIN)):
        return True
    numpy = loaded("numpy")
    # The bytes of an array of objects are addresses.
    return numpy is not None and isinstance(leaf, (numpy.ndarray, numpy.generic)) and not leaf.dtype.hasobject


def _walk(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _walk(part, f"{name}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _walk(part, f"{name}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, SimpleNamespace):
        for key, part in vars(value).items():
            yield from _walk(part, f"{name}.{key}")
    else:
        yield name, value


def tensors(value: Any, name: str = "") -> list[tuple[str, Tensor]]:
    """The leaves of ``value`` that are tensors."""
    import torch

    return [(where, leaf) for where, leaf in _walk(value, name) if isinstance(leaf, torch.Tensor)]


def snapshot(value: Any, name: str) -> Leaves:
    """The leaves of ``value``, tensors and arrays as copies that nobody else can reach."""
    return [(where, _copy(leaf)) for where, leaf in leaves(value, name)]


def _copy(leaf: Any) -> Any:
    import torch

    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone()
    return leaf.copy() if is_array(leaf) else leaf


def is_array(leaf: Any) -> bool:
    """Is it a numpy array?"""
    numpy = loaded("numpy")
    return numpy is not None and isinstance(leaf, numpy.ndarray)


def is_expanded(tensor: Tensor) -> bool:
    """Do elements of a strided tensor share memory by a stride of 0, so that torch refuses to write it?"""
    import torch

    if tensor.layout != torch.strided or tensor.is_nested:
        return False
    return bool(tensor.numel()) and any(
        size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def has_elements(found: Leaves) -> bool:
    """Is there a tensor with elements? Without one there is nothing to compare."""
    import torch

    return any(isinstance(leaf, torch.Tensor) and leaf.numel() for _, leaf in found)


def as_integers(tensor: Tensor) -> Tensor:
    """The bits of a strided tensor as integers of the same width: a view; complex values as pairs, last dimension 2.

    Raises ``KernelsError`` for sparse, quantized and nested tensors, and for those without memory.
    """
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta":
        kind = "a quantized one" if tensor.is_quantized else f"{tensor.layout} on {tensor.device}"
        raise KernelsError(f"the bits of a tensor cannot be seen: {kind}", "", "give dense tensors that have values")
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().view(integer_dtype(tensor.element_size()))


def integer_dtype(width: int) -> Any:
    """The integer dtype of ``width`` bytes in which bits are compared and filled."""
    import torch

    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]


def settle(device: Any) -> None:
    """Wait until ``device`` has done all that it was given, on every stream."""
    import torch

    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def difference(name: str, actual: Any, expected: Any) -> str:
    """How ``actual`` differs from ``expected`` in bits, as one line; "" if it does not. NaN equals the same NaN."""
    import torch

    if not (isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor)):
        if _equal(actual, expected):
            return ""
        place = _first_of_arrays(actual, expected) if is_array(actual) and is_array(expected) else None
        if place is not None:
            return f"{name}: an array differs, first at {list(place)}: {actual[place]} instead of {expected[place]}"
        return f"{name}: {_short(actual)} instead of {_short(expected)}"
    for what in ("shape", "dtype", "device"):
        was, wanted = getattr(actual, what), getattr(expected, what)
        if was != wanted:
            was, wanted = (tuple(was), tuple(wanted)) if what == "shape" else (was, wanted)
            return f"{name}: {what} {was} instead of {wanted}"
    other = as_integers(actual) != as_integers(expected)
    other = other.any(-1) if actual.is_complex() else other
    number = int(other.sum())
    if not number:
        return ""
    index = first(other)
    return (
        f"{name}: {number:,} of {counted(actual.numel(), 'element')} differ, first at {list(index)}: "
        f"{element(actual, index)} instead of {element(expected, index)}"
    )


def differences(actual: Leaves, expected: Leaves) -> list[str]:
    """One line for each leaf that differs in bits."""
    names, wanted = [name for name, _ in actual], [name for name, _ in expected]
    if names != wanted:
        return [f"{counted(len(names), 'part')} ({', '.join(names)}) instead of {len(wanted)} ({', '.join(wanted)})"]
    lines = (difference(name, leaf, other) for (name, leaf), (_, other) in zip(actual, expected, strict=True))
    return [line for line in lines if line]


def first(mask: Tensor) -> tuple[int, ...]:
    """Indices of the first true element of ``mask``, a bool tensor of any shape, in row-major order."""
    import torch

    # argmax gives the first of equal maxima.
    place, indices = int(mask.reshape(-1).to(torch.uint8).argmax()), []
    for size in reversed(mask.shape):
        indices.append(place % size)
        place //= size
    return tuple(reversed(indices))


def element(tensor: Tensor, index: Sequence[int]) -> str:
    """One element as text: its value, and for floats its bits."""
    one = tensor.detach()[tuple(index)]
    if not (one.is_floating_point() or one.is_complex()):
        return str(one.item())
    codes = as_integers(one).reshape(-1).tolist()
    width = 8 * one.element_size() // len(codes)
    bits = ", ".join(f"0x{code % 2**width:0{width // 4}x}" for code in codes)
    # Packed fp4 has no single value.
    return bits if str(one.dtype).endswith("_x2") else f"{one.item():.6g} ({bits})"


def _equal(actual: Any, expected: Any) -> bool:
    if is_array(actual) or is_array(expected):
        if not (is_array(actual) and is_array(expected)):
            return False
        same = actual.shape == expected.shape and actual.dtype == expected.dtype
        return bool(same and actual.tobytes() == expected.tobytes())
    both_nan = actual != actual and expected != expected
    return type(actual) is type(expected) and bool(actual == expected or both_nan)


def _first_of_arrays(actual: Any, expected: Any) -> tuple[int, ...] | None:
    """Indices of the first element with other bits; None for other shapes or dtypes."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return None
    left, right, width = actual.tobytes(), expected.tobytes(), actual.dtype.itemsize
    place, indices = next(i for i in range(len(left)) if left[i] != right[i]) // width, []
    for size in reversed(actual.shape):
        indices.append(place % size)
        place //= size
    return tuple(reversed(indices))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
