"""``poisoned``: what is filled, with what, and how a kernel that reads it is found."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from faulty import double, one_unwritten, reads_stale_workspace
from torch.utils._python_dispatch import TorchDispatchMode

from testkit.errors import KernelsError
from testkit.kernels import assert_batch_invariant, assert_deterministic, poisoned
from testkit.kernels._poison import FLOATS, pattern
from testkit.kernels._tensors import KernelFailed, as_integers

FLOAT_DTYPES = [getattr(torch, name) for name in FLOATS if hasattr(torch, name)]
WHOLE_DTYPES = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.uint64]

X = torch.arange(12.0).reshape(3, 4)


@torch.library.custom_op("testkit_poison::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    out.view(-1)[1:] = x.view(-1)[1:] * 2
    return out


MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(5),
    "empty_like": lambda: torch.empty_like(X),
    "empty_strided": lambda: torch.empty_strided((2, 3), (8, 1)),
    "empty_permuted": lambda: torch.empty_permuted((2, 3), (1, 0)),
    "new_empty": lambda: X.new_empty(3),
    "new_empty_strided": lambda: X.new_empty_strided((2,), (3,)),
    "legacy constructor": lambda: torch.Tensor(3, 4),
    "inference": lambda: torch.inference_mode()(torch.empty)(3),
    "requires grad": lambda: torch.empty(3, requires_grad=True),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_every_new_buffer_is_nan_over_its_whole_storage(make: Callable[[], torch.Tensor]) -> None:
    with poisoned() as poison:
        made = make()
    assert poison.buffers == 1
    whole = torch.empty(0).set_(made.untyped_storage())
    assert len(whole) >= made.numel()
    assert whole.isnan().all()


def test_a_buffer_that_resize_enlarges_keeps_what_it_had() -> None:
    x = torch.ones(2)
    with poisoned() as poison:
        x.resize_(6)
    assert poison.buffers == 1
    assert x[:2].tolist() == [1, 1]
    assert x[2:].isnan().all()


def test_a_buffer_inside_a_custom_operator_is_found_too() -> None:
    with poisoned() as poison:
        out = twice(X)
    assert poison.buffers == 1
    assert out.isnan().view(-1).tolist() == [True] + [False] * 11


@pytest.mark.skipif(not hasattr(TorchDispatchMode, "ignore_compile_internals"), reason="torch is older")
def test_a_compiled_function_stays_compiled() -> None:
    """torch makes it eager for good where it meets a mode that does not ask for this."""
    runs = []

    def backend(module: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        def compiled(*given: torch.Tensor) -> Any:
            runs.append(len(given))
            return module(*given)

        return compiled

    double = torch.compile(lambda x: x * 2, backend=backend)
    with poisoned():
        torch.empty(1)
        double(X)
    double(X)
    assert len(runs) == 2


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_the_bits_of_float_poison_are_what_the_dtype_says(dtype: torch.dtype) -> None:
    values = {}
    for fill in ("nan", "highest", "lowest"):
        with poisoned(fill=fill):
            made = torch.empty(3, dtype=dtype)
        assert (as_integers(made) == pattern(dtype, fill)).all()
        values[fill] = made
    if "float4" not in str(dtype):
        floats = {fill: made.to(torch.float64)[0].item() for fill, made in values.items()}
        assert math.isnan(floats["nan"])
        assert floats["highest"] == torch.finfo(dtype).max
        assert floats["lowest"] == torch.finfo(dtype).min
    else:
        assert as_integers(values["highest"]).tolist() == [0x77] * 3


@pytest.mark.parametrize("dtype", WHOLE_DTYPES, ids=str)
def test_whole_numbers_become_extreme(dtype: torch.dtype) -> None:
    for fill, extreme in (("nan", "max"), ("highest", "max"), ("lowest", "min")):
        with poisoned(fill=fill):  # type: ignore[arg-type]  # one of the literals
            assert torch.empty(2, dtype=dtype).tolist() == [getattr(torch.iinfo(dtype), extreme)] * 2


def test_bools_and_complex_numbers_are_poisoned_too() -> None:
    with poisoned():
        assert torch.empty(2, dtype=torch.bool).tolist() == [True, True]
        made = torch.empty(2, dtype=torch.complex64)
    assert made.real.isnan().all()
    assert made.imag.isnan().all()


def test_a_workspace_is_filled_where_it_is_strided_and_requires_grad() -> None:
    memory = torch.zeros(4, 6, requires_grad=True)
    with poisoned(memory.detach()[:, ::2]):
        pass
    assert memory[:, ::2].isnan().all()
    assert (memory[:, 1::2] == 0).all()
    with poisoned(memory):
        pass
    assert memory.isnan().all()


def test_unused_rows_and_padding_are_filled_and_nothing_else() -> None:
    cache, padded, third = torch.zeros(5, 2), torch.zeros(2, 6), torch.zeros(3)
    used = torch.tensor([True, False, True, True, False])
    with poisoned((cache, ~used), (padded, (slice(None), slice(4, None))), (third, [False, True, False])):
        pass
    assert cache.isnan().all(1).tolist() == (~used).tolist()
    assert padded.isnan()[0].tolist() == [False] * 4 + [True] * 2
    assert third.isnan().tolist() == [False, True, False]


def test_a_stale_nan_is_found() -> None:
    """The workspace ends with a zero in production, so the kernel is right there and wrong after anybody else."""
    workspace, out = torch.zeros(13), torch.empty(3, 4)
    reads_stale_workspace(X, out, workspace)
    assert torch.equal(out, X)
    with poisoned(workspace) as poison:
        reads_stale_workspace(X, out, workspace)
    with pytest.raises(KernelFailed, match=r"kernels: poison in 1 output\n  output\[0\]: 12 of 12 elements are NaN"):
        poison.assert_absent(out)


def test_an_unwritten_element_is_told_from_a_computed_one() -> None:
    with poisoned() as poison:
        out = torch.empty(3, 4)
        one_unwritten(X, out)
    with pytest.raises(KernelFailed, match=r"1 of 12 elements are NaN, 1 with the poison's own bits .* at .2, 3.: nan"):
        poison.assert_absent(out)
    with pytest.raises(KernelFailed, match="12 of 12 elements are NaN, 0 with the poison's own bits"):
        poison.assert_absent(X * float("nan"))


def test_what_may_stay_unwritten_is_named_by_a_mask() -> None:
    with poisoned() as poison:
        out = torch.empty(3, 4)
        out[:2] = X[:2]
    padding = torch.tensor([[False], [False], [True]])
    poison.assert_absent(out, unwritten=padding)
    out[0, 0] = float("nan")
    with pytest.raises(KernelFailed, match="1 of 12 elements are NaN"):
        poison.assert_absent({"out": out}, unwritten=padding)


def test_fp8_and_complex_outputs_are_judged() -> None:
    with poisoned() as poison:
        small, pairs = torch.empty(4, dtype=torch.float8_e4m3fn), torch.empty(4, dtype=torch.complex64)
        pairs[1:] = 1
    with pytest.raises(KernelFailed, match=r"(?s)4 of 4 elements are NaN.*1 of 4 elements are NaN"):
        poison.assert_absent(small, pairs)


@pytest.mark.parametrize(
    "beside",
    [
        math.nan,
        numpy.array([1.0, math.nan])[::-1],
        numpy.float32(math.nan),
        SimpleNamespace(y=X * math.nan),
    ],
    ids=["float", "array", "scalar", "namespace"],
)
def test_poison_in_what_is_no_tensor_is_found_beside_one(beside: Any) -> None:
    with poisoned() as poison:
        torch.empty(3)
    poison.assert_absent(X, 1.0, numpy.ones(2), None, "name")
    with pytest.raises(KernelFailed, match=r"poison in 1 output\n  output\[1\].* are NaN"):
        poison.assert_absent(X, beside)


def test_a_failure_can_be_sent_to_another_process() -> None:
    failure = KernelFailed("a problem", ["one", "two"], "a fix", "a place")
    again = pickle.loads(pickle.dumps(failure))
    assert (str(again), again.evidence) == (str(failure), ("one", "two"))


def test_memory_is_as_it_was_outside_of_the_block() -> None:
    with poisoned():
        torch.empty(3)
    made = torch.zeros(3)
    assert not torch.add(made, 1, out=torch.zeros(3)).isnan().any()


def test_a_block_that_fills_nothing_is_an_error() -> None:
    out = torch.empty(3, 4)
    with pytest.raises(KernelsError, match=r"filled nothing.*\nnext: name the memory"), poisoned():
        double(X, out)


def test_a_failing_block_keeps_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError, match="division"), poisoned():
        _ = 1 / 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": (3,)}, "int is no memory to poison"),
        ({"memory": (), "fill": "max"}, "fill is 'max'"),
        ({"memory": ((torch.zeros(3), torch.tensor([True])),)}, "unused does not fit a tensor of shape"),
        ({"memory": ((torch.zeros(3), torch.zeros(3, dtype=torch.bool)),)}, "unused selects nothing"),
        ({"memory": (torch.empty(0, 4),)}, r"a tensor of shape \(0, 4\) has no elements to poison"),
        ({"memory": (torch.zeros(3, dtype=torch.complex64).conj(),)}, "conjugated or negated view"),
        ({"memory": (torch.zeros(3, dtype=torch.complex64).conj().imag,)}, "conjugated or negated view"),
        ({"memory": (torch.zeros(1).expand(4),)}, r"shape \(4,\) and stride \(0,\) has elements that share memory"),
        ({"memory": (torch.zeros(3, device="meta"),)}, "bits of a tensor cannot be seen"),
        ({"memory": (torch.zeros(3).to_sparse(),)}, "bits of a tensor cannot be seen: torch.sparse_coo"),
    ],
)
def test_what_cannot_be_poisoned_is_refused(given: dict[str, Any], message: str) -> None:
    memory = given.pop("memory")
    with pytest.raises(KernelsError, match=message), poisoned(*memory, **given):
        pass


def test_nothing_is_claimed_where_there_is_no_nan_to_look_for() -> None:
    with poisoned(fill="highest") as high:
        out = torch.empty(3)
    with pytest.raises(KernelsError, match='fill is "highest", so there is no NaN'):
        high.assert_absent(out)
    with poisoned() as poison:
        whole = torch.empty(3, dtype=torch.int32)
    with pytest.raises(KernelsError, match=r"output\[0\] is torch.int32, which has no NaN"):
        poison.assert_absent(whole)
    with pytest.raises(KernelsError, match="was given no tensor"):
        poison.assert_absent()
    with pytest.raises(KernelsError, match=r"have no elements: output\[0\] of shape \(0, 4\)"):
        poison.assert_absent(torch.empty(0, 4))
    with pytest.raises(KernelsError, match=r"output\[1\] is a set, whose contents"):
        poison.assert_absent(X, {1.0})
    with pytest.raises(KernelsError, match=r"output\[0\] is torch.int64, which has no NaN"):
        poison.assert_absent(numpy.arange(3))
    with pytest.raises(KernelsError, match=r"output\[0\] is no output to look at"):
        poison.assert_absent(numpy.zeros(3, dtype=numpy.longdouble))
    with pytest.raises(KernelsError, match=r"output\[1\] is no output to look at: .*byte order"):
        poison.assert_absent(X, numpy.zeros(3, dtype=">f4"))
    with pytest.raises(KernelsError, match="unwritten does not fit"):
        poison.assert_absent(out, unwritten=torch.zeros(7, dtype=torch.bool))
    with pytest.raises(KernelsError, match=r"unwritten does not fit.*dtype"):
        poison.assert_absent(out, unwritten=torch.zeros(3))


def test_same_bits_twice_is_not_fooled_by_memory_that_comes_back() -> None:
    """Freed memory is handed out again with the right result still in it, so a kernel that writes nothing passes."""

    def writes_nothing() -> torch.Tensor:
        return torch.empty(3, 4)

    with pytest.raises(KernelFailed, match=r"call 2 gives other bits.*\n  output: 12 of 12 elements differ"):
        assert_deterministic(writes_nothing)


def test_same_bits_twice_finds_a_stale_workspace_and_counts_calls() -> None:
    workspace = torch.zeros(4)
    assert_deterministic(lambda: X @ torch.ones(4, 4), workspace, runs=4)
    with pytest.raises(KernelFailed, match="output: 3 of 3 elements differ"):
        assert_deterministic(lambda: X.sum(1) + workspace[0], workspace)
    steps = iter(range(9))
    with pytest.raises(KernelFailed, match=r"output\[1\]: 1 instead of 0"):
        assert_deterministic(lambda: (X, next(steps)))


def test_results_in_arrays_and_namespaces_are_compared() -> None:
    array, steps = numpy.zeros(2), iter(range(9))

    def fn() -> Any:
        array[1] = next(steps)  # the same array each time: a copy must be kept
        return SimpleNamespace(x=X, y=array)

    with pytest.raises(KernelFailed, match=r"output\.y: an array differs, first at \[1\]: 1\.0 instead of 0\.0"):
        assert_deterministic(fn)
    with pytest.raises(KernelsError, match=r"output\[1\] is a set, whose contents cannot be compared"):
        assert_deterministic(lambda: (X, {1}))
    assert_batch_invariant(lambda x: (x, x.numpy() * 2), X)
    with pytest.raises(KernelFailed, match=r"row 0 alone differs.*\n  output\[1\]: an array differs"):
        assert_batch_invariant(lambda x: (x, x.numpy() * len(x)), X + 1)


def test_same_bits_twice_needs_something_to_compare() -> None:
    with pytest.raises(KernelsError, match="returned no tensor with elements"):
        assert_deterministic(lambda: None)
    with pytest.raises(KernelsError, match="runs is 1"):
        assert_deterministic(lambda: X, runs=1)
