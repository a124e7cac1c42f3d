"""``guarded``: writes outside, elements that were left out, inputs that were changed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from faulty import changes_its_input, one_before_the_start, one_past_the_end, one_unwritten

from testkit.errors import KernelsError
from testkit.kernels import Guarded, guarded
from testkit.kernels._guard import TELLING
from testkit.kernels._tensors import KernelFailed

Kernel = Callable[[torch.Tensor, torch.Tensor], None]

FAULTS: dict[Kernel, str] = {
    one_past_the_end: r"written outside the output.*\n  1 element after it, nearest \+15 from its first element",
    one_before_the_start: "1 element before the output, nearest -1 from its first element",
    one_unwritten: r"elements left unwritten.*\n  output: 1 of 15 elements not written, first at \[4, 2\]",
    changes_its_input: r"an input changed.*\n  inputs\[0\]: 1 of 15 elements differ, first at \[1, 0\]: ",
}
BLOCK_DTYPES = [getattr(torch, name) for name in sorted(TELLING)]
ALL_DTYPES = [*BLOCK_DTYPES, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.bool]
FP8 = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu") if hasattr(torch, name)]
quiet = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def ones(dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(5, 3).to(dtype)


@quiet
@pytest.mark.parametrize("dtype", BLOCK_DTYPES, ids=str)
def test_a_healthy_kernel_passes_in_a_block(dtype: torch.dtype) -> None:
    x = ones(dtype)
    with guarded((5, 3), dtype, inputs=x) as out:
        assert (out.dtype, out.shape, out.is_contiguous()) == (dtype, (5, 3), True)
        assert out.data_ptr() % 64 == 0
        out.copy_(x)
    assert torch.equal(torch.view_as_real(out) if dtype.is_complex else out.view(x.dtype), _real(x))


def in_a_block(guard: Guarded, kernel: Callable[[torch.Tensor], object]) -> None:
    with guard as out:
        kernel(out)


def _real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


@pytest.mark.parametrize(("fault", "message"), FAULTS.items(), ids=[fault.__name__ for fault in FAULTS])
@pytest.mark.parametrize("twice", [False, True], ids=["block", "run"])
def test_each_fault_is_found(fault: Kernel, message: str, twice: bool) -> None:
    x = torch.ones(5, 3)
    judge = Guarded.run if twice else in_a_block
    with pytest.raises(KernelFailed, match=message):
        judge(guarded((5, 3), inputs=[x]), lambda out: fault(x, out))


@quiet
@pytest.mark.parametrize("dtype", [*ALL_DTYPES, *FP8], ids=str)
@pytest.mark.parametrize("value", [0, 1])
def test_two_runs_judge_every_dtype_whatever_value_is_written(dtype: torch.dtype, value: int) -> None:
    """A one-byte canary may equal what is written beyond the end: it is another one in the second run."""
    x = torch.full((5, 3), value).to(dtype)
    assert guarded((5, 3), dtype, inputs=x).run(lambda out: out.copy_(x)).dtype == dtype

    def past(out: torch.Tensor) -> None:
        out.copy_(x)
        out.as_strided((16,), (1,))[15:].copy_(x.view(-1)[:1])

    def short(out: torch.Tensor) -> None:
        out.view(-1)[1:].copy_(x.view(-1)[1:])

    with pytest.raises(KernelFailed, match="1 element after it"):
        guarded((5, 3), dtype).run(past)
    with pytest.raises(KernelFailed, match=r"1 of 15 elements not written, first at \[0, 0\]"):
        guarded((5, 3), dtype).run(short)


def test_one_byte_outside_is_enough() -> None:
    def kernel(out: torch.Tensor) -> None:
        out.fill_(1)
        out.view(torch.uint8).as_strided((17,), (1,))[16] = 0

    with pytest.raises(KernelFailed, match=r"1 element after it, nearest \+4"):
        in_a_block(guarded(4, torch.float32), kernel)


def test_all_faults_of_a_run_are_told_together() -> None:
    x = torch.ones(5, 3)

    def kernel(out: torch.Tensor) -> None:
        one_past_the_end(x, out)
        one_before_the_start(x, out)
        x.zero_()

    with pytest.raises(KernelFailed, match="written outside") as caught:
        in_a_block(guarded((5, 3), inputs={"x": x}), kernel)
    assert str(caught.value).splitlines() == [
        "kernels: written outside the output, an input changed (output of shape (5, 3), float32)",
        "  1 element before the output, nearest -1 from its first element",
        "  1 element after it, nearest +15 from its first element",
        "  inputs['x']: 15 of 15 elements differ, first at [0, 0]: 0 (0x00000000) instead of 1 (0x3f800000)",
        "next: bound the last tile by a mask; size grid and output alike; "
        "leave out of inputs= what the kernel may change",
    ]


def test_the_gaps_of_a_strided_output_are_guarded() -> None:
    with guarded((2, 3), stride=(5, 1)) as out:
        assert out.stride() == (5, 1)
        out.fill_(1)
    with pytest.raises(KernelFailed, match=r"2 elements between its elements, nearest \+3 "):
        in_a_block(guarded((2, 3), stride=(5, 1)), lambda out: out.as_strided((8,), (1,)).fill_(1))


def test_padding_that_may_stay_unwritten_is_named_by_a_mask() -> None:
    padding = torch.arange(5)[:, None] >= 4
    with guarded((5, 3), unwritten=padding) as out:
        out[:4] = 1
    with pytest.raises(KernelFailed, match=r"1 of 15 elements not written, first at \[3, 2\]"):
        in_a_block(guarded((5, 3), unwritten=padding), lambda out: out.view(-1)[:11].fill_(1))
    guarded((5, 3), torch.int8, unwritten=padding).run(lambda out: out[:4].fill_(1))


@quiet
@pytest.mark.parametrize("dtype", [*ALL_DTYPES, *FP8[:2]], ids=str)
def test_a_kernel_that_adds_to_what_the_output_held_is_found(dtype: torch.dtype) -> None:
    def kernel(out: torch.Tensor) -> None:
        if dtype.is_floating_point or dtype.is_complex:
            out.copy_(out.to(torch.complex64 if dtype.is_complex else torch.float32) * 0 + 1)
        else:
            out.copy_(out.to(torch.int64) ^ 1)

    with pytest.raises(KernelFailed, match=r"depends on what the output held .*\n  output: 4 of 4 elements differ"):
        guarded(4, dtype).run(kernel)


def test_a_sum_into_what_the_output_held_is_found() -> None:
    x = torch.ones(5, 3)
    with pytest.raises(KernelFailed, match=r"depends on .*\n  output: 15 of 15 .* at \[0, 0\]: nan \(.*\) and "):
        guarded((5, 3), inputs=x).run(lambda out: out.add_(x * 1e38))
    with pytest.raises(KernelFailed, match="unwritten"):  # what keeps both contents
        guarded((5, 3), inputs=x).run(lambda out: out.add_(x))


def test_padding_may_depend_on_what_the_output_held() -> None:
    padding = torch.tensor([False, False, True])

    def kernel(out: torch.Tensor) -> None:
        out[:2] = 1
        out[2] *= 0.5

    guarded(3, unwritten=padding).run(kernel)
    with pytest.raises(KernelFailed, match=r"1 of 3 elements differ between two runs, first at \[2\]"):
        guarded(3).run(kernel)


def test_inputs_in_arrays_and_namespaces_are_looked_at() -> None:
    array, tensor = numpy.arange(6.0).reshape(2, 3), torch.ones(3)

    def kernel(out: torch.Tensor) -> None:
        out.fill_(1)
        array[1, 0] = 7
        tensor[2] = 7

    message = r"\n  inputs\.x: an array differs, first at \[1, 0\]: 7.0 instead of 3.0\n  inputs\.y\[0\]: 1 of 3 "
    with pytest.raises(KernelFailed, match=message):
        in_a_block(guarded(3, inputs=SimpleNamespace(x=array, y=[tensor], z=None)), kernel)


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        (torch.nn.Linear(2, 2), r"inputs is a torch\.nn\.modules\.linear\.Linear"),
        ({"x": {torch.ones(2)}}, r"inputs\['x'\] is a set"),
        ((torch.ones(2) for _ in range(2)), "inputs is a generator"),
        ([numpy.array([None])], r"inputs\[0\] is a numpy\.ndarray of object"),
    ],
    ids=["module", "set", "generator", "objects"],
)
def test_inputs_that_cannot_be_looked_into_are_refused(inputs: Any, kind: str) -> None:
    with pytest.raises(KernelsError, match=f"{kind}, whose contents cannot be compared"), guarded(2, inputs=inputs):
        pass
    with pytest.raises(KernelsError, match=kind):
        guarded(2, inputs=inputs).run(lambda out: out.fill_(1))


@pytest.mark.parametrize("shape", [(), (1,), 7, numpy.int64(4), (numpy.int64(4), 2), (0,), (0, 4), (3, 0)])
def test_odd_shapes_are_served(shape: Any) -> None:
    with guarded(shape) as out:
        out.fill_(1)
    guarded(shape, torch.int8).run(lambda out: out.fill_(1))


def test_a_write_beside_an_empty_output_is_found() -> None:
    with pytest.raises(KernelFailed, match=r"1 element after it, nearest \+0 from"), guarded((0, 4)) as out:
        out.as_strided((1,), (1,)).fill_(1)


def test_a_failing_block_keeps_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError, match="division"), guarded(3):
        _ = 1 / 0


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.int16, torch.float8_e4m3fn], ids=str)
def test_a_block_refuses_dtypes_that_one_run_cannot_judge(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    message = rf"one run cannot tell an unwritten {name} .*\nnext: let it run twice.*\.run\("
    with pytest.raises(KernelsError, match=message), guarded(3, dtype):
        pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shape": (3, -1)}, r"shape is \(3, -1\)"),
        ({"shape": "34"}, "shape is '34'"),
        ({"shape": 2.0}, "shape is 2.0"),
        ({"shape": 4, "dtype": "float32"}, r"dtype is 'float32' .*\n.*torch\.float32"),
        ({"shape": 4, "stride": (0.5,)}, r"stride is \(0\.5,\)"),
        ({"shape": (3, 4), "stride": (4,)}, r"stride is \(4,\) for shape \(3, 4\).*\nnext: give 2 whole numbers"),
        ({"shape": (3, 4), "stride": (0, 1)}, r"elements overlap by stride \(0, 1\)"),
        ({"shape": (3, 4), "stride": (2, 1)}, r"elements overlap by stride \(2, 1\)"),
    ],
)
def test_what_cannot_be_guarded_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelsError, match=message):
        guarded(given.pop("shape"), **given)
