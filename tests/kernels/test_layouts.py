"""``layouts`` and batch invariance: other memory, other neighbours, the same values."""

from __future__ import annotations

import pytest
import torch

from testkit.errors import KernelsError
from testkit.kernels import assert_batch_invariant, layouts
from testkit.kernels._layouts import LAYOUTS, Layout
from testkit.kernels._tensors import KernelFailed, as_integers

DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
DTYPES += [getattr(torch, name) for name in ("float4_e2m1fn_x2",) if hasattr(torch, name)]


def tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    values = torch.arange(torch.Size(shape).numel()).reshape(shape)
    one_byte = (values % 2).to(torch.uint8)
    return one_byte.view(dtype) if dtype.itemsize == 1 else values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", layouts())
@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 5)], ids=str)
def test_values_stay_and_only_memory_changes(layout: Layout, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    given = tensor(dtype, *shape)
    made = layout(given)
    assert made.dtype == dtype
    if layout.__name__ == "zero_sized":
        assert made.shape == (0, *shape[1:])
        return
    assert made.shape == shape
    assert torch.equal(as_integers(made), as_integers(given))
    assert made.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()


def test_each_layout_is_what_its_name_says() -> None:
    x = tensor(torch.float32, 4, 6)
    made = {layout.__name__: layout(x) for layout in layouts()}
    assert {name: one.stride() for name, one in made.items()} == {
        "contiguous": (6, 1),
        "strided": (12, 2),
        "padded": (7, 1),
        "transposed": (1, 4),
        "misaligned": (6, 1),
        "zero_sized": (6, 1),
    }
    assert made["misaligned"].data_ptr() % 16 == 4
    assert made["contiguous"].data_ptr() % 16 == 0
    assert not made["zero_sized"].numel()


@pytest.mark.parametrize("name", ["strided", "padded", "misaligned"])
def test_gaps_and_margins_hold_poison(name: str) -> None:
    x = tensor(torch.float32, 4, 6)
    made = LAYOUTS[name](x)
    memory = torch.empty(0).set_(made.untyped_storage())
    assert memory.isnan().sum() == len(memory) - x.numel() > 0


def test_ids_are_the_names(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\nfrom testkit.kernels import layouts\n"
        "@pytest.mark.parametrize('layout', layouts('padded', 'misaligned'))\ndef test_it(layout): pass\n"
    )
    result = pytester.runpytest_inprocess("--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::test_it?padded?", "*::test_it?misaligned?"])


def test_a_layout_that_would_change_nothing_is_refused() -> None:
    with pytest.raises(KernelsError, match=r"layout padded needs 2 dimensions, shape \(3,\) has fewer"):
        layouts("padded")[0](torch.zeros(3))
    with pytest.raises(KernelsError, match=r"layout strided changes nothing for shape \(1, 1\)"):
        layouts("strided")[0](torch.zeros(1, 1))
    with pytest.raises(KernelsError, match=r"layout misaligned changes nothing.*complex128"):
        layouts("misaligned")[0](torch.zeros(3, dtype=torch.complex128))
    with pytest.raises(KernelsError, match=r"no layout is called 'tranposed'.*\nnext: use contiguous, strided"):
        layouts("tranposed")


def test_a_row_alone_equals_a_row_in_a_batch() -> None:
    weight = torch.arange(20.0).reshape(4, 5)
    x, scale = torch.arange(12.0).reshape(3, 4), torch.ones(3)
    assert_batch_invariant(lambda rows, by: {"out": rows * weight[:, 0] * by[:, None]}, x, scale)


def test_a_kernel_that_looks_at_its_neighbours_is_found() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    message = (
        r"row 0 alone differs from row 0 in a batch of 3\n  output\[0\]: 3 of 4 elements differ, first at \[0, 1\]: "
    )
    with pytest.raises(KernelFailed, match=message):
        assert_batch_invariant(lambda rows: (rows / rows.max(), rows), x)


def test_a_kernel_that_is_wrong_for_one_row_of_many_is_found() -> None:
    x = torch.arange(100.0).reshape(100, 1)

    def wrong_at_the_end(rows: torch.Tensor) -> torch.Tensor:
        out = rows.clone()
        out[64:] += 1
        return out

    with pytest.raises(KernelFailed, match="row 64 alone differs from row 64 in a batch of 100"):
        assert_batch_invariant(wrong_at_the_end, x)


def test_batches_without_rows_are_refused() -> None:
    for batched in ((), (torch.zeros(1, 2),), (torch.zeros(2), torch.zeros(3)), (3,), (torch.zeros(()),)):
        with pytest.raises(KernelsError, match="batched has no rows in common"):
            assert_batch_invariant(lambda *rows: rows, *batched)
    with pytest.raises(KernelsError, match=r"output has shape \(3, 2\), not 2 rows"):
        assert_batch_invariant(lambda x: x.T, torch.zeros(2, 3))
    with pytest.raises(KernelsError, match="returned no tensor with elements"):
        assert_batch_invariant(lambda x: None, torch.zeros(2, 3))
