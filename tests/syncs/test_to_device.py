"""``to_device``: values and dtypes, that nothing is shared, what is refused, and that the host does not wait for it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from testkit.errors import SyncsError
from testkit.syncs import to_device

if TYPE_CHECKING:
    import numpy
    import torch
else:
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")

VALUES = [
    pytest.param([1, 2, 3], torch.int64, id="ints"),
    pytest.param([[1.0, 2.0], [3.0, 4.0]], torch.float32, id="nested floats"),
    pytest.param((True, False), torch.bool, id="tuple of bools"),
    pytest.param(3, torch.int64, id="number"),
    pytest.param([], torch.float32, id="nothing"),
    pytest.param(numpy.arange(4, dtype=numpy.int32), torch.int32, id="array"),
    pytest.param(numpy.arange(4.0)[::-1], torch.float64, id="reversed array"),
    pytest.param(numpy.arange(8, dtype=numpy.uint8).reshape(2, 4)[:, ::2], torch.uint8, id="gapped array"),
    pytest.param(numpy.float16(1.5), torch.float16, id="NumPy scalar"),
    pytest.param(torch.arange(6).reshape(2, 3).t(), torch.int64, id="transposed tensor"),
    pytest.param(torch.ones(4, 4, dtype=torch.bfloat16)[:, ::2], torch.bfloat16, id="gapped tensor"),
    pytest.param(torch.ones(3).expand(2, 3), torch.float32, id="expanded tensor"),
    pytest.param(torch.tensor(2.5), torch.float32, id="scalar tensor"),
    pytest.param(torch.ones(2, requires_grad=True), torch.float32, id="parameter"),
]


def plain(values: Any) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.detach().clone()
    return torch.tensor(values.copy() if isinstance(values, numpy.ndarray) else values)


@pytest.mark.parametrize(("values", "dtype"), VALUES)
def test_values_arrive_dense_with_their_dtype_and_without_history(values: Any, dtype: torch.dtype) -> None:
    result = to_device(values, "cpu")
    assert result.dtype == dtype
    assert torch.equal(result, plain(values))
    assert result.is_contiguous()
    assert not result.requires_grad


@pytest.mark.parametrize(("values", "dtype"), VALUES)
def test_a_given_dtype_is_that_of_the_result(values: Any, dtype: torch.dtype) -> None:
    assert to_device(values, "cpu", torch.float64).dtype == torch.float64


def test_read_only_arrays_are_taken_without_a_warning() -> None:
    array = numpy.ones(3)
    array.setflags(write=False)
    assert to_device(array, "cpu").tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("make", [torch.zeros, numpy.zeros], ids=["tensor", "array"])
def test_on_a_cpu_target_too_nothing_is_shared_with_the_values(make: Any) -> None:
    values = make(3)
    result = to_device(values, "cpu")
    values[0] = 7
    assert result.tolist() == [0, 0, 0]


def test_a_meta_target_gets_the_shape() -> None:
    result = to_device([[1, 2, 3]], "meta")
    assert (result.device.type, tuple(result.shape), result.dtype) == ("meta", (1, 3), torch.int64)


def test_a_tensor_that_is_there_already_is_returned_or_converted_there() -> None:
    there = torch.ones(3, device="meta")
    assert to_device(there, "meta").data_ptr() == there.data_ptr()
    assert to_device(there, "meta", torch.int8).dtype == torch.int8


def test_a_number_that_does_not_fit_is_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="overflow"):
        to_device([300], "cpu", torch.int8)


@pytest.mark.parametrize(
    ("values", "device", "problem"),
    [
        (torch.ones(3, device="meta"), "cpu", "to_device got a tensor on meta for cpu"),
        ([1, torch.ones((), device="meta")], "cpu", "a list whose element 1 is a tensor on meta"),
        (torch.ones(2, 2).to_sparse(), "cpu", "a tensor of layout torch.sparse_coo"),
    ],
)
def test_what_would_wait_or_has_no_plain_memory_is_refused(values: Any, device: str, problem: str) -> None:
    with pytest.raises(SyncsError, match=problem):
        to_device(values, device)


# --- the simulated device sees every wait and whether memory is pinned; one process for all


SIMULATED = """
import numpy, torch
from testkit.syncs import census, forbid, simulated, to_device

with simulated() as device:
    values = {
        "list": [1, 2, 3],
        "number": 2.5,
        "array": numpy.arange(6.0).reshape(2, 3)[:, ::-1],
        "tensor": torch.arange(8.0).reshape(2, 4)[:, ::2],
        "pinned": torch.ones(3).pin_memory(),
        "pinned and gapped": torch.ones(4, 4).pin_memory()[:, :2],
        "empty": [],
    }
    for dtype in (None, torch.float16):
        for name, one in values.items():
            with forbid():
                result = to_device(one, "cuda", dtype)
            assert result.device == device, name
            expected = torch.as_tensor(one.copy() if isinstance(one, numpy.ndarray) else one)
            assert torch.equal(result.cpu(), expected.to(result.dtype)), name
    there = torch.ones(3, device=device)
    with forbid():
        assert to_device(there, device) is there or to_device(there, device).device == device
        assert to_device(there, "cuda", torch.int32).dtype == torch.int32
    with census() as seen:
        torch.ones(3).to(device, non_blocking=True)
    assert [site.kind for site in seen.sites] == ["pageable"], seen.text()
    try:
        to_device([there[0], 1], device)
    except Exception as error:
        print(error)
"""


def test_the_host_waits_for_none_of_it() -> None:
    command = [sys.executable, "-W", "error", "-c", SIMULATED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "syncs: to_device got a list whose element 0 is a tensor on cuda:0 (argument values)",
        "next: use torch.stack, which keeps them there",
    ]
