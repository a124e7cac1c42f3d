"""``assert_replays`` and its stand-in for CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from testkit.errors import KernelsError
from testkit.kernels import KernelFailed, assert_replays
from testkit.kernels._recorded_graph import RecordedGraph

Inputs = tuple[torch.Tensor, ...]


def two(seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(3, 4, generator=generator), torch.rand(4, generator=generator)


def healthy(x: torch.Tensor, y: torch.Tensor) -> Any:
    out = torch.empty(3, 4)
    torch.mul(x, y, out=out)
    out[1:] += x.sum(0)
    halves = out.chunk(2, dim=1)
    halves[0].zero_()
    return {"out": out, "scores": torch.nn.functional.linear(x, x[:, :4]).softmax(-1)}


def accumulates(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x * 2


def writes_its_argument(x: torch.Tensor, y: torch.Tensor) -> None:
    x.copy_(x + y)


def inplace_views(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = (x @ y).unsqueeze_(0)
    return z.squeeze_(0).unsqueeze(-1).t_()


@pytest.mark.parametrize("fn", [healthy, accumulates, writes_its_argument, inplace_views])
def test_a_function_that_follows_its_inputs_passes(fn: Callable[..., Any]) -> None:
    assert_replays(fn, two)


def test_inputs_may_be_one_tensor_or_keywords() -> None:
    assert_replays(lambda x: x + 1, lambda seed: two(seed)[0])
    assert_replays(lambda *, x, y: x @ y, lambda seed: dict(zip("xy", two(seed), strict=True)))


def test_modules_with_parameters_and_inference_mode_pass() -> None:
    layer = torch.nn.Linear(4, 2)
    assert_replays(lambda x, _: layer(x), two)
    assert_replays(torch.inference_mode()(lambda x, y: layer(x) * y[:2]), two)


def ignores_changed_inputs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Takes a copy through the host, so a replay has the values of the capture."""
    return torch.tensor(x.tolist()) * 2


def bakes_a_number(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y * sum(y.tolist())


def takes_a_branch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 3 if sum(y.tolist()) < 1.5 else x * 2


def test_a_replay_that_ignores_changed_inputs_is_found() -> None:
    with pytest.raises(KernelFailed, match="replay with changed inputs differs") as caught:
        assert_replays(ignores_changed_inputs, two)
    first, second, third, last = str(caught.value).splitlines()
    assert first == "kernels: replay with changed inputs differs from the eager call"
    assert second.startswith("  output: 12 of 12 elements differ, first at [0, 0]: ")
    assert third == "  these are the results of the other inputs"
    assert last == "next: read the inputs on the device, from the memory of the captured arguments"


@pytest.mark.parametrize("fn", [bakes_a_number, takes_a_branch])
def test_what_python_decided_at_the_capture_is_found(fn: Callable[..., Any]) -> None:
    assert (sum(two(0)[1].tolist()) < 1.5) != (sum(two(1)[1].tolist()) < 1.5)
    with pytest.raises(KernelFailed, match="replay with changed inputs differs"):
        assert_replays(fn, two)


def test_a_replay_that_keeps_state_is_found() -> None:
    counter = torch.ones(1)

    def counts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = x * counter
        counter.add_(1)
        counter.numpy()[0] = 1  # by the host, which takes no part in a replay
        return out

    with pytest.raises(KernelFailed, match="identical replay differs from the eager call"):
        assert_replays(counts, two)


def test_a_number_that_changes_with_the_inputs_is_found() -> None:
    with pytest.raises(KernelFailed, match=r"output\[1\]: .* instead of "):
        assert_replays(lambda x, y: (x * 2, sum(y.tolist())), two)


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda x: x.sum().item(), "the host reads a value"),
        (lambda x: x if x.sum() > 0 else -x, "the host reads a value"),
        (lambda x: torch.equal(x, x), "the host reads a value"),
        (lambda x: x[x > 0.5], "a mask selects as many elements as it has true ones"),
        (lambda x: x.index_put_((x > 0.5,), x[x.new_zeros(1).long()].view(-1)), "a mask selects"),
        (lambda x: x.nonzero(), "the shape of the result depends on values"),
        (lambda x: torch.unique(x), "the shape of the result depends on values"),
    ],
)
def test_what_would_end_a_capture_is_refused(read: Callable[[torch.Tensor], Any], reason: str) -> None:
    graph = RecordedGraph()
    with pytest.raises(KernelFailed, match=rf"kernels: aten.* cannot be captured\n  {reason}"), graph.capture():
        read(torch.rand(3, 4))


def test_indices_and_masks_that_a_capture_takes_pass() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[x > 0.5] = 0.0
        return x[torch.tensor([2, 0])] + x.masked_fill(x > 0.2, 1)[0]

    assert_replays(fn, two)


def test_results_may_be_compared_by_a_function() -> None:
    steps = iter(range(1, 100))

    def noisy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 1e-6 * next(steps)

    with pytest.raises(KernelFailed, match="replay of the captured inputs differs"):
        assert_replays(noisy, two)
    assert_replays(
        noisy, two, compare=lambda actual, expected: torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
    )
    with pytest.raises(KernelFailed, match=r"replay with changed inputs .*\n  output: Tensor-likes are not close"):
        assert_replays(ignores_changed_inputs, two, compare=torch.testing.assert_close)


@pytest.mark.parametrize("compare", [torch.allclose, torch.equal, lambda a, b: (a == b).all().numpy()[()]])
def test_a_comparison_that_returns_false_counts(compare: Callable[[Any, Any], object]) -> None:
    assert_replays(healthy, two, compare=compare)
    with pytest.raises(KernelFailed, match=r"replay with changed inputs .*\n  output: compare returned False"):
        assert_replays(ignores_changed_inputs, two, compare=compare)


def test_an_assertion_without_a_message_counts() -> None:
    def compare(actual: torch.Tensor, expected: torch.Tensor) -> None:
        if not torch.equal(actual, expected):
            raise AssertionError

    with pytest.raises(KernelFailed, match=r"\n  output: compare raised AssertionError"):
        assert_replays(ignores_changed_inputs, two, compare=compare)


@pytest.mark.parametrize("compare", [lambda a, b: None, lambda a, b: True, lambda a, b: torch.allclose(a, b, atol=1e9)])
def test_a_comparison_that_tells_nothing_apart_is_refused(compare: Callable[[Any, Any], object]) -> None:
    with pytest.raises(KernelsError, match="compare takes the results of both seeds for the same"):
        assert_replays(healthy, two, compare=compare)


@pytest.mark.parametrize(
    ("fn", "make_inputs", "message"),
    [
        (healthy, lambda seed: 3, "make_inputs returned int without a tensor"),
        (healthy, lambda seed: two(seed)[1].expand(3, 4), r"inputs of shape \(3, 4\) has stride \(0, 1\)"),
        (healthy, lambda seed: (*two(seed), {1}), r"inputs\[2\] is a set, whose contents cannot be compared"),
        (healthy, lambda seed: two(0), "seeds 0 and 1 gave the same inputs"),
        (healthy, lambda seed: (torch.rand(3, 4), torch.rand(4)), "seed 0 gave other inputs the second time"),
        (healthy, lambda seed: (torch.rand(seed + 1),), r"seed 0 gave inputs\[0\] of \(1,\).* and seed 1 .* of \(2,\)"),
        (lambda x, y: None, two, "fn returned no tensor and changed none of its arguments"),
        (lambda x, y: x.new_zeros(3), two, "fn gives the same results for the inputs of both seeds"),
        (lambda x, y: x, two, "the capture saw no torch operation"),
    ],
)
def test_what_would_verify_nothing_is_refused(fn: Any, make_inputs: Any, message: str) -> None:
    with pytest.raises(KernelsError, match=message):
        assert_replays(fn, make_inputs)


def test_the_stand_in_holds_memory_and_repeats_operations() -> None:
    graph, x = RecordedGraph(), torch.ones(2)
    with graph.capture():
        y = x * 2
        z = torch.zeros(2).add_(y)
    assert graph.operations == 3
    x.fill_(5)
    place = z.data_ptr()
    for _ in range(2):
        graph.replay()
        assert (z.tolist(), z.data_ptr()) == ([10, 10], place)


NAMES = ("graph", "CUDAGraph", "Stream", "stream", "current_stream", "set_stream", "synchronize", "default_generators")


class CudaOnTheCpu:
    """What ``assert_replays`` uses of torch.cuda, on the stand-in."""

    device = torch.device("cuda", 0)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.default_generators = [self]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in NAMES:
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def set_stream(self, stream: CudaOnTheCpu) -> None:
        self.calls.append("set_stream")

    def clone_state(self) -> str:
        return "its state"

    def graphsafe_set_state(self, state: str) -> None:
        self.calls.append(f"set {state}")

    def current_stream(self) -> CudaOnTheCpu:
        return self

    def Stream(self) -> CudaOnTheCpu:
        return CudaOnTheCpu()

    def wait_stream(self, other: CudaOnTheCpu) -> None:
        self.calls.append("wait_stream")

    @contextmanager
    def stream(self, stream: CudaOnTheCpu) -> Iterator[None]:
        yield

    def CUDAGraph(self) -> RecordedGraph:
        return RecordedGraph()

    @contextmanager
    def graph(self, graph: RecordedGraph) -> Iterator[None]:
        try:
            with graph.capture():
                yield
        except RuntimeError as error:
            raise RuntimeError("operation failed due to a previous error during capture") from error


def test_tensors_on_cuda_go_through_a_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way through torch.cuda, without a GPU: what it calls, and what it says if the capture fails."""
    cuda = CudaOnTheCpu()
    cuda.install(monkeypatch)
    assert_replays(healthy, two)
    assert cuda.calls.count("synchronize") == 5
    assert "set_stream" not in cuda.calls


def test_a_capture_that_fails_is_told_by_its_first_error_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = CudaOnTheCpu()

    def waits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if cuda.calls.count("wait_stream"):
            raise RuntimeError("operation not permitted when stream is capturing\nCompile with TORCH_USE_CUDA_DSA")
        return x * y

    cuda.install(monkeypatch)
    message = r"fn cannot be captured\n  RuntimeError: operation not permitted when stream is capturing\nnext: let no "
    with pytest.raises(KernelFailed, match=message):
        assert_replays(waits, two)
    assert cuda.calls[-2:] == ["set_stream", "set its state"]
