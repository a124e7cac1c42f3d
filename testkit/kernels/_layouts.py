"""``layouts``: the same values in other memory layouts, as an axis of a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from testkit.errors import KernelsError
from testkit.kernels._guard import span
from testkit.kernels._poison import fill_memory
from testkit.kernels._tensors import as_integers

if TYPE_CHECKING:
    from torch import Tensor

__tracebackhide__ = True  # pytest shows the line that called us, not ours

VECTOR = 16
"""Bytes of the widest load; a kernel that takes it must find out whether an address is divisible by it."""


@dataclass(frozen=True)
class Layout:
    """A function from a tensor to one of the same values (``zero_sized``: of none) laid out otherwise."""

    name: str
    _make: Callable[[Tensor], Tensor] = field(repr=False)
    _dimensions: int = field(repr=False)
    """How many the tensor must have."""

    @property
    def __name__(self) -> str:  # pytest makes ids of it
        return self.name

    def __call__(self, tensor: Tensor) -> Tensor:
        """The values of ``tensor`` (dense, any shape, dtype and device) in new memory; gaps hold poison.

        Raises ``KernelsError`` where the layout would not differ from the contiguous one.
        """
        shape, name = tuple(tensor.shape), self.name
        if tensor.dim() < self._dimensions:
            fix = f"leave {name} out: layouts(...) takes the names that are wanted"
            raise KernelsError(f"layout {name} needs {self._dimensions} dimensions, shape {shape} has fewer", "", fix)
        made = self._make(tensor.detach())
        plain = made.is_contiguous() and made.data_ptr() % VECTOR == 0
        if plain and name not in ("contiguous", "zero_sized"):
            fix = "give a larger tensor, or leave the layout out"
            raise KernelsError(f"layout {name} changes nothing for shape {shape} of {tensor.dtype}", "", fix)
        return made


def layouts(*names: str) -> list[Layout]:
    """Memory layouts for ``parametrize``, all of them or those that are named; each is a function of a tensor.

    ::

        @pytest.mark.parametrize("layout", layouts())
        def test_norm(layout):
            x = layout(torch.randn(7, 64))
            assert_matches(kernel(x), reference(x))

    - ``contiguous``: row-major, aligned to 16 bytes or more
    - ``strided``: every second element of the last dimension
    - ``padded``: rows farther apart than they are long (2 dimensions or more)
    - ``transposed``: the last two dimensions lie the other way round (2 or more)
    - ``misaligned``: contiguous, at an address that is not divisible by 16
    - ``zero_sized``: the first dimension is 0

    Gaps and margins hold NaN, or the highest value where the dtype has no NaN. Raises ``KernelsError`` for a name that
    there is not; calling a layout raises it where it cannot differ from the contiguous one.
    """
    for name in names:
        if name not in LAYOUTS:
            raise KernelsError(f"no layout is called {name!r}", "argument of layouts", f"use {', '.join(LAYOUTS)}")
    return [LAYOUTS[name] for name in names or LAYOUTS]


def _laid_out(tensor: Tensor, stride: tuple[int, ...], offset: int = 0) -> Tensor:
    """The values of ``tensor`` with these strides, in elements, ``offset`` elements into memory full of poison."""
    import torch

    # With a margin behind, so that a vector load over the last element's end finds poison too.
    memory = torch.empty(offset + span(tensor.shape, stride) + VECTOR, dtype=tensor.dtype, device=tensor.device)
    fill_memory(memory, "nan")
    made = memory.as_strided(tuple(tensor.shape), stride, offset)
    # Not every dtype can be copied between strides; its bits can.
    as_integers(made).copy_(as_integers(tensor))
    return made


def _plain(shape: tuple[int, ...], row: int | None = None) -> tuple[int, ...]:
    """Row-major strides for ``shape``, with rows ``row`` elements apart."""
    strides = [1]
    for place, size in enumerate(reversed(shape[1:])):
        strides.append(row if place == 0 and row is not None else strides[-1] * max(size, 1))
    return tuple(reversed(strides[: len(shape)]))


def _contiguous(tensor: Tensor) -> Tensor:
    return _laid_out(tensor, _plain(tuple(tensor.shape)))


def _strided(tensor: Tensor) -> Tensor:
    return _laid_out(tensor, tuple(2 * step for step in _plain(tuple(tensor.shape))))


def _padded(tensor: Tensor) -> Tensor:
    width = tensor.shape[-1]
    return _laid_out(tensor, _plain(tuple(tensor.shape), width + 1 + width % 2))  # odd: rows start at all alignments


def _transposed(tensor: Tensor) -> Tensor:
    return _contiguous(tensor.transpose(-1, -2)).transpose(-1, -2)


def _misaligned(tensor: Tensor) -> Tensor:
    return _laid_out(tensor, _plain(tuple(tensor.shape)), offset=1)


def _zero_sized(tensor: Tensor) -> Tensor:
    import torch

    return torch.empty((0, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)


def _named(make: Callable[[Any], Any], dimensions: int) -> Layout:
    return Layout(make.__name__[1:], make, dimensions)


LAYOUTS = {
    layout.name: layout
    for layout in (
        _named(_contiguous, 0),
        _named(_strided, 1),
        _named(_padded, 2),
        _named(_transposed, 2),
        _named(_misaligned, 0),
        _named(_zero_sized, 1),
    )
}
