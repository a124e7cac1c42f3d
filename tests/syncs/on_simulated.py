"""What holds on the simulated device; run by test_simulated.py in one child, since a process keeps its backend.

Each function of ``CHECKS`` gets the device and asserts; its name is the sentence. The child prints, as JSON, the
traceback of each that failed.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.machinery
import io
import json
import re
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from testkit.errors import SyncsError
from testkit.syncs import _triton, census, forbid, simulated, to_device
from testkit.syncs._region import Found, Region, pop, push

outside: dict[str, Callable[[Any], Any]] = {}
"""What was made before the device."""

CHECKS: dict[str, Callable[[Any], None]] = {}


def check(function: Callable[[Any], None]) -> Callable[[Any], None]:
    CHECKS[function.__name__] = function
    return function


@contextlib.contextmanager
def seen() -> Iterator[list[Found]]:
    region = Region("census")
    push(region)
    try:
        yield region.found
    finally:
        pop(region)


def kinds(body: Callable[[], Any]) -> list[str]:
    with seen() as found:
        body()
    return [one.seen.kind for one in found]


def refused(kind: type[BaseException], words: str, body: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        body()


@check
def the_device_says_that_it_is_cuda(device: Any) -> None:
    x = torch.ones(2, device=device)
    assert device == torch.device("cuda", 0)
    assert x.device == device
    assert x.is_cuda
    assert not x.is_cpu
    assert x.get_device() == 0
    assert x.type() == "torch.cuda.FloatTensor"
    assert isinstance(x, torch.cuda.FloatTensor)
    assert repr(x) == "tensor([1., 1.], device='cuda:0')"
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


@check
def every_way_to_say_cuda_leads_to_it(device: Any) -> None:
    c = torch.ones(2)
    module = nn.Linear(2, 2)
    made = [
        torch.zeros(2, device="cuda"),
        torch.zeros(2, device="cuda:0"),
        torch.zeros(2, device=torch.device("cuda")),
        torch.zeros(2, device=0),
        torch.tensor([1.0], device="cuda"),
        c.cuda(),
        c.cuda(0),
        c.to("cuda"),
        c.to(device=0),
        c.to("cuda", torch.float16),
        c.new_zeros(2, device="cuda"),
        torch.empty_like(c, device="cuda"),
        torch.cuda.FloatTensor([1.0]),
        module.cuda().weight,
        nn.Linear(2, 2, device="cuda").weight,
        copy.deepcopy(module).to("cuda").weight,
        torch.rand(2, generator=torch.Generator("cuda"), device="cuda"),
    ]
    with torch.device("cuda"):
        made.append(torch.ones(2))
    torch.set_default_device("cuda")
    try:
        made.append(torch.ones(2))
        assert torch.get_default_device() == device
    finally:
        torch.set_default_device(None)
    assert [one.device for one in made] == [device] * len(made)


@check
def pinned_copies_are_staged_where_torch_must_rearrange_the_hosts_side(device: Any) -> None:
    pinned, there = torch.zeros(4, 4).pin_memory(), torch.zeros(4, 4, device=device)
    half = there.half()
    expected: list[tuple[Callable[[], Any], list[str]]] = [
        (lambda: pinned.t().to(device, non_blocking=True), []),
        (lambda: there.t().copy_(pinned.t(), non_blocking=True), []),
        (lambda: there.t().copy_(pinned, non_blocking=True), []),
        (lambda: half.copy_(pinned, non_blocking=True), []),
        (lambda: pinned.copy_(there.t(), non_blocking=True), []),
        (lambda: there.copy_(pinned.t(), non_blocking=True), ["gapped"]),
        (lambda: there[:, :2].copy_(pinned[:, :2], non_blocking=True), ["gapped"]),
        (lambda: there.copy_(pinned[0], non_blocking=True), ["gapped"]),
        (lambda: pinned.t().copy_(there, non_blocking=True), ["gapped"]),
        (lambda: pinned.t().to(device, torch.float16, non_blocking=True), ["gapped"]),
    ]
    assert [kinds(body) for body, _ in expected] == [answer for _, answer in expected]


@check
def a_second_device_is_refused(device: Any) -> None:
    refused(SyncsError, "there is no device cuda:1", lambda: torch.ones(2, device="cuda:1"))
    refused(SyncsError, "there is no device cuda:1", lambda: torch.ones(2).to("cuda:1"))


@check
def values_are_those_of_the_cpu(device: Any) -> None:
    c = torch.randn(5, 7)
    x = c.cuda()
    for function in (
        torch.sort,
        torch.unique,
        torch.linalg.svdvals,
        lambda one: functional.softmax(one, -1),
        torch.sum,
    ):
        there, here = function(x), function(c)
        for one, other in zip(*((a,) if isinstance(a, torch.Tensor) else a for a in (there, here)), strict=True):
            torch.testing.assert_close(one.cpu(), other)


@check
def a_view_shares_memory_with_its_base(device: Any) -> None:
    x = torch.zeros(3, 4, device=device)
    x[1].fill_(7)
    x.t()[0, 0] = 5
    assert x.tolist() == [[5, 0, 0, 0], [7, 7, 7, 7], [0, 0, 0, 0]]
    assert x[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x[1].data_ptr() == x.data_ptr() + 16
    assert x[1]._is_view()


@check
def operations_in_place_change_the_shape_too(device: Any) -> None:
    x = torch.zeros(2, 3, device=device)
    assert x.t_() is x
    assert x.shape == (3, 2)
    assert x.stride() == (1, 3)
    x.resize_(4, 4)
    assert x.shape == (4, 4)
    out = torch.empty(0, device=device)
    assert torch.add(x, x, out=out) is out
    assert out.shape == (4, 4)


@check
def gradients_are_those_of_the_cpu(device: Any) -> None:
    torch.manual_seed(0)
    for make in (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
        lambda: nn.LSTM(8, 5, 2, bidirectional=True),
        lambda: nn.GRU(8, 5),
        lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.GELU()),
    ):
        here = make()
        there = copy.deepcopy(here).to(device)
        c = torch.randn(3, 8) if isinstance(here, nn.Sequential) else torch.randn(3, 2, 8)
        for module, value in ((here, c), (there, c.to(device))):
            out = module(value)
            (out[0] if isinstance(out, tuple) else out).pow(2).sum().backward()
        for one, other in zip(here.parameters(), there.parameters(), strict=True):
            assert isinstance(other, nn.Parameter)
            torch.testing.assert_close(one.grad, other.grad.cpu(), rtol=1e-4, atol=1e-5)


@check
def errors_in_a_backward_pass_reach_the_caller(device: Any) -> None:
    x = torch.ones(3, device=device, requires_grad=True)

    def boom(*_: Any) -> None:
        raise ValueError("boom")

    def guarded() -> None:
        loss = x.double().prod(0, keepdim=True).sum()
        with forbid():
            loss.register_hook(lambda grad: grad * grad.item())
            loss.backward()

    with simulated(kernels={"aten::cos": boom}):
        refused(ValueError, "boom", x.sin().sum().backward)
        refused(ValueError, "boom", lambda: torch.autograd.grad(x.sin().sum(), x))
    refused(SyncsError, "_local_scalar_dense", guarded)
    x.sin().sum().backward()
    assert x.grad is not None
    torch.fft.hfft(x).sum().backward()


@check
def optimizers_step_with_what_they_were_given_before_the_move(device: Any) -> None:
    module = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    weight = module.weight
    module.cuda()
    assert module.weight is weight
    before = weight.tolist()
    module(torch.ones(2, 3, device=device)).sum().backward()
    optimizer.step()
    assert weight.tolist() != before
    for options in ({"foreach": True}, {"fused": True}, {"capturable": True}):
        other = nn.Parameter(torch.ones(3, device=device))
        other.sum().backward()
        torch.optim.Adam([other], lr=0.5, **options).step()
        assert other.tolist() == pytest.approx([0.5] * 3, abs=1e-4), options


@check
def mixed_precision_casts_as_on_cuda(device: Any) -> None:
    module = nn.Linear(4, 4).cuda()
    x = torch.randn(4, 4, device=device)
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cuda")
        out = module(x)
        assert out.dtype == torch.bfloat16
        assert out.softmax(-1).dtype == torch.float32
        loss = functional.cross_entropy(out, torch.arange(4, device=device))
    assert not torch.is_autocast_enabled("cuda")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert module.weight.grad is not None


@check
def same_seed_same_numbers_apart_from_the_host(device: Any) -> None:
    torch.manual_seed(3)
    first = torch.randn(4, device=device).tolist()
    host = torch.randn(4).tolist()
    torch.manual_seed(3)
    assert torch.randn(4).tolist() == host
    assert torch.randn(4, device=device).tolist() == first
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    second = torch.rand(4, device=device).tolist()
    torch.cuda.set_rng_state(state)
    assert torch.rand(4, device=device).tolist() == second
    own = torch.Generator(device=device).manual_seed(1)
    assert own.device == device
    assert isinstance(own, torch.Generator)
    assert torch.rand(2, device=device, generator=own).shape == (2,)


@check
def tensors_can_be_saved_copied_and_loaded(device: Any) -> None:
    x = torch.arange(3.0, device=device).requires_grad_()
    twin = copy.deepcopy(x)
    assert (twin.device, twin.requires_grad, twin.tolist()) == (device, True, [0, 1, 2])
    assert copy.copy(x).data_ptr() == x.data_ptr()
    stream = io.BytesIO()
    torch.save({"x": x, "module": nn.Linear(2, 2).cuda().state_dict()}, stream)
    for place, wanted in ((None, device), ("cpu", torch.device("cpu"))):
        stream.seek(0)
        loaded = torch.load(stream, map_location=place)
        assert loaded["x"].tolist() == [0, 1, 2]
        if place is None:
            assert loaded["x"].device == wanted
    stream = io.BytesIO()
    torch.save(torch.ones(2), stream)
    stream.seek(0)
    assert torch.load(stream, map_location="cuda").device == device


@check
def what_cuda_refuses_is_refused(device: Any) -> None:
    x = torch.ones(3, device=device)
    refused(RuntimeError, "on the same device", lambda: x + torch.ones(3))
    refused(TypeError, "Use Tensor.cpu()", x.numpy)
    refused(TypeError, "Use Tensor.cpu()", lambda: __import__("numpy").asarray(x))
    refused(RuntimeError, "only dense CPU tensors can be pinned", x.pin_memory)
    refused(RuntimeError, "Only dense CPU tensors can be pinned", lambda: torch.ones(3, device=device, pin_memory=True))
    refused(ValueError, "enable_timing", lambda: torch.cuda.Event().elapsed_time(torch.cuda.Event()))
    assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2]


@check
def pinned_memory_is_remembered_with_its_views(device: Any) -> None:
    made = [torch.ones(4).pin_memory(), torch.ones(4, pin_memory=True), torch.tensor([1.0], pin_memory=True)]
    made += [made[0][1:], torch.ones(4, device=device).to("cpu", non_blocking=True)]
    assert all(one.is_pinned() for one in made)
    assert made[0].pin_memory() is made[0]
    assert not torch.ones(4).is_pinned()
    assert not made[0].clone().is_pinned()
    for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)), 2, pin_memory=True):
        assert batch.is_pinned()


@check
def copies_wait_as_their_memory_says(device: Any) -> None:
    c, pinned = torch.ones(4, 8), torch.ones(4, 8).pin_memory()
    x = c.to(device)
    assert kinds(lambda: c.to(device)) == ["upload"]
    assert kinds(lambda: pinned.to(device)) == ["upload"]
    assert kinds(lambda: pinned.to(device, non_blocking=True)) == []
    assert kinds(lambda: c.cuda(non_blocking=True)) == ["pageable"]
    assert kinds(lambda: pinned[:, :4].to(device, non_blocking=True)) == ["gapped"]
    assert kinds(lambda: pinned.t().to(device, non_blocking=True)) == []
    assert kinds(lambda: x.to("cpu")) == ["download"]
    assert kinds(lambda: x.to("cpu", non_blocking=True)) == []
    assert kinds(lambda: c.copy_(x, non_blocking=True)) == ["pageable"]
    assert kinds(lambda: x.to(device)) == []
    assert kinds(lambda: to_device([1, 2, 3], device)) == []


@check
def a_number_is_stored_as_on_cuda(device: Any) -> None:
    x = torch.zeros(4, 4, device=device)
    index, mask = torch.tensor([0, 2], device=device), x > 0
    assert kinds(lambda: x.__setitem__((1, 2), 1.0)) == ["upload"]
    assert kinds(lambda: x.__setitem__(index, 1.0)) == ["upload"]
    assert kinds(lambda: x.__setitem__(slice(1, 3), 1.0)) == []
    assert kinds(lambda: x.__setitem__(mask, 1.0)) == []
    assert kinds(lambda: x.__setitem__(1, x[0])) == []
    assert x[1].tolist() == x[0].tolist()


@check
def streams_and_events_order_nothing_and_keep_what_is_asked(device: Any) -> None:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() is side
        x = torch.ones(2, device=device)
        x.record_stream(side)
        done = side.record_event()
    assert torch.cuda.current_stream() is main
    assert torch.cuda.default_stream() is main
    assert done.query()
    main.wait_event(done)
    main.wait_stream(side)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    end.record()
    assert begin.elapsed_time(end) >= 0
    for wait in (torch.cuda.synchronize, side.synchronize, done.synchronize, torch.accelerator.synchronize):
        assert kinds(wait) == ["synchronize"]
    with torch.cuda.device(0):
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1]


@check
def a_graph_runs_its_calls_again_on_replay(device: Any) -> None:
    static, graph = torch.zeros(3, device=device), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        out = (static + 1).view(3, 1) * 2
        static.add_(1)
    assert not torch.cuda.is_current_stream_capturing()
    static.fill_(5)
    graph.replay()
    assert out.flatten().tolist() == [12, 12, 12]
    assert static.tolist() == [6, 6, 6]


@check
def a_wait_during_capture_is_an_error(device: Any) -> None:
    x = torch.ones(3, device=device)

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.sum().item()

    refused(SyncsError, "while a graph is captured: aten._local_scalar_dense (read)", capture)
    assert not torch.cuda.is_current_stream_capturing()


@check
def guards_and_censuses_see_its_waits(device: Any) -> None:
    x = torch.ones(3, device=device)

    def guarded() -> None:
        with forbid():
            x.sum().item()

    refused(SyncsError, "_local_scalar_dense", guarded)
    with forbid():
        x.add_(1)
    with census() as found:
        x.tolist()
        x.nonzero()
    assert sorted(site.kind for site in found.sites) == ["download", "shape"]
    assert all("on_simulated.py" in site.where for site in found.sites)


@check
def an_operator_without_kernel_is_named_and_can_be_given_one(device: Any) -> None:
    library = torch.library.Library("testkit_example", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    x = torch.ones(2, device=device)
    refused(SyncsError, "no kernel for testkit_example::twice", lambda: torch.ops.testkit_example.twice(x))
    with simulated(kernels={"testkit_example::twice": lambda one: one * 2}):
        assert torch.ops.testkit_example.twice(x).tolist() == [2, 2]
    refused(SyncsError, "no kernel for testkit_example::twice", lambda: torch.ops.testkit_example.twice(x))
    refused(SyncsError, "is no kernel (kernels= of simulated())", lambda: simulated({"twice": len}).__enter__())


@check
def a_compiled_triton_kernel_is_named_and_can_have_a_stand_in(device: Any) -> None:
    class JITFunction:
        arg_names = ("x", "out", "BLOCK")

        def __init__(self, fn: Any) -> None:
            self.fn = fn

        def run(self, *args: Any, **kwargs: Any) -> None:
            raise AssertionError("there is no GPU to run it on")

    def twice(x: Any, out: Any, BLOCK: int) -> None:  # as Triton's kernels write it
        out.copy_(x * BLOCK)

    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = JITFunction  # type: ignore[attr-defined]  # a module that we plant
    jit.__spec__ = importlib.machinery.ModuleSpec("triton.runtime.jit", None)
    x, out = torch.ones(2, device=device), torch.zeros(2, device=device)
    sys.modules["triton.runtime.jit"] = jit
    try:
        launch = {"grid": (1,), "warmup": False, "num_warps": 4}
        with inner_replacements():
            refused(SyncsError, "compiled Triton kernel twice", lambda: JITFunction(twice).run(x, out, **launch))
            with simulated(kernels={"triton::twice": twice}):
                JITFunction(twice).run(x, out, BLOCK=2, **launch)
    finally:
        del sys.modules["triton.runtime.jit"]
    assert out.tolist() == [2, 2]


@contextlib.contextmanager
def inner_replacements() -> Iterator[None]:
    """What entering the device does for a Triton that has been imported."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in list(_triton.replacements()):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


@check
def small_types_run_where_the_cpu_has_no_kernel_for_them(device: Any) -> None:
    c = torch.randn(8, 8).abs()
    out = torch.linalg.vector_norm(c.half().cuda())
    assert out.dtype == torch.float16
    assert c.bfloat16().cuda().median().dtype == torch.bfloat16
    assert torch.histc(c.cuda(), 4, 0, 3).sum() > 0


@check
def layouts_other_than_strided_work(device: Any) -> None:
    x = torch.eye(3, device=device)
    assert x.to_sparse().to_dense().tolist() == x.tolist()
    assert x.to_sparse().is_sparse
    assert (x.to_sparse_csr() @ x).tolist() == x.tolist()
    assert torch.fft.fft(x).is_complex()
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(4, 3, 2, device=device), torch.tensor([4, 2, 1]))
    assert packed.data.device == device
    assert packed.batch_sizes.device.type == "cpu"
    assert nn.LSTM(2, 3).cuda()(packed)[0].data.shape == (7, 3)


@check
def compiled_functions_run_eagerly(device: Any) -> None:
    x = torch.ones(3, device=device)

    @torch.compile(fullgraph=True)
    def inside(one: Any) -> Any:
        return one * 2 + 1

    assert inside(x).tolist() == [3, 3, 3]
    assert kinds(lambda: outside["compiled"](x).tolist()) == ["download"]


@check
def a_builder_of_paged_metadata_runs_and_its_waits_are_seen(device: Any) -> None:
    lengths = torch.tensor([5, 9, 2], dtype=torch.int32).pin_memory()
    table = torch.arange(12, dtype=torch.int32, device=device).view(3, 4)

    def build(longest: int | None) -> torch.Tensor:
        on_device = lengths.to(device, non_blocking=True)
        blocks = (on_device + 3) // 4
        rows = torch.repeat_interleave(torch.arange(3, device=device), blocks, output_size=6 if longest else None)
        starts = torch.cumsum(blocks, 0) - blocks
        columns = torch.arange(rows.numel(), device=device) - starts[rows]
        assert longest is None or int(lengths.max()) == longest
        return table[rows, columns]

    assert build(None).tolist() == [0, 1, 4, 5, 6, 8]
    assert kinds(lambda: build(None)) == ["shape"]
    assert kinds(lambda: build(9)) == []


@check
def other_threads_reach_the_device(device: Any) -> None:
    made: list[Any] = []

    def work() -> None:
        made.append(torch.ones(2, device="cuda") + torch.ones(2).to("cuda") + torch.ones(2).cuda())
        made.append(torch.ones(2, pin_memory=True).is_pinned())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert made[0].tolist() == [3, 3]
    assert made[1]


@check
def inference_mode_hides_no_wait(device: Any) -> None:
    x, c = torch.randn(4, 4, device=device), torch.randn(4, 4)
    eye = torch.eye(4, device=device)
    bodies: list[tuple[Callable[[], Any], list[str]]] = [
        (x.cpu, ["download"]),
        (x.tolist, ["download"]),
        (lambda: x.half().to("cpu"), ["download"]),
        (lambda: x[1].argmax().item(), ["read"]),
        (lambda: bool((x > 9).any()), ["read"]),
        (lambda: torch.where(x > 0), ["shape"]),
        (lambda: torch.linalg.inv(x + 9 * eye), ["read"]),
        (lambda: c.to(device), ["upload"]),
        (lambda: x.to(torch.float16), []),
        (lambda: x[1:, None].reshape(-1) + 1, []),
    ]
    for body, answer in bodies:
        with torch.inference_mode():
            assert kinds(body) == answer
    with torch.inference_mode():
        made = x + 1
    assert made.is_inference()
    assert kinds(made.cpu) == ["download"]  # it stays one after the mode


@check
def a_view_in_inference_mode_is_what_it_is_a_view_of(device: Any) -> None:
    x, numbers = torch.zeros(4, 4, device=device), torch.zeros(2, dtype=torch.complex64, device=device)
    with torch.inference_mode():
        row, conjugate, made = x[0], numbers.conj(), torch.zeros(2, device=device)[:1]
        row += 1
    assert [one.is_inference() for one in (row, conjugate, made)] == [False, False, True]
    x[0] += 1  # torch refuses that for inference tensors
    assert x[0].tolist() == [2] * 4


@check
def operators_that_take_functions_run_and_their_waits_are_seen(device: Any) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    x, q = torch.ones(3, device=device), torch.randn(1, 1, 4, 16, device=device)
    with census() as found:
        assert torch.cond(x.sum() > 2, lambda one: one + 1, lambda one: one - 1, (x,)).tolist() == [2] * 3
    assert {site.kind for site in found.sites} == {"read", "download"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        with census():
            there = flex_attention(q, q, q)
    torch.testing.assert_close(there, functional.scaled_dot_product_attention(q, q, q))
    x.requires_grad_()
    refused(SyncsError, "no gradients of cond", lambda: torch.cond(x.sum() > 2, torch.sin, torch.cos, (x,)))


@check
def kernels_in_python_run_on_the_device_and_their_waits_are_seen(device: Any) -> None:
    @torch.library.custom_op("testkit_syncs::by_sum", mutates_args=())
    def by_sum(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    @torch.library.custom_op("testkit_syncs::fill", mutates_args=["x"])
    def fill(x: torch.Tensor) -> None:
        x.fill_(x.max().item())

    library = torch.library.Library("testkit_syncs", "FRAGMENT")
    library.define("cuda_only(Tensor x) -> Tensor")
    library.impl("cuda_only", lambda x: x[x > 1], "CUDA")
    x = torch.tensor([1.0, 2.0], device=device)
    for body, kind, expected in (
        (lambda: by_sum(x), "read", [3.0, 6.0]),
        (lambda: torch.ops.testkit_syncs.cuda_only(x), "shape", [2.0]),
        (lambda: [fill(x), x][1], "read", [2.0, 2.0]),
    ):
        with seen() as found:
            made = body()
        assert [one.seen.kind for one in found] == [kind]
        assert made.device == device
        assert made.tolist() == expected


@check
def gradients_of_gradients_forward_over_reverse(device: Any) -> None:
    x = torch.tensor([1.0, 2.0], device=device)
    assert torch.func.hessian(lambda one: one.pow(3).sum())(x).tolist() == [[6.0, 0.0], [0.0, 12.0]]


@check
def a_number_of_numpys_is_stored_as_one_of_pythons(device: Any) -> None:
    numpy = pytest.importorskip("numpy")
    x = torch.zeros(3, device=device)
    assert kinds(lambda: x.__setitem__(1, numpy.int64(2))) == ["upload"]
    assert kinds(lambda: x.__setitem__(slice(1), numpy.int64(2))) == []
    assert x.tolist() == [2, 2, 0]
    refused(TypeError, "can't assign a numpy.float32", lambda: x.__setitem__(1, numpy.float32(2)))


@check
def jagged_tensors_are_taken_apart_by_lengths_that_are_read(device: Any) -> None:
    values, offsets = torch.zeros(3, device=device), torch.arange(2, device=device) * 3
    jagged = torch.nested.nested_tensor_from_jagged(values, offsets)
    assert kinds(jagged.unbind) == ["read"]


@check
def a_file_is_loaded_by_a_table_of_places(device: Any) -> None:
    stream = io.BytesIO()
    torch.save(torch.ones(2), stream)
    for place, expected in (({"cpu": "cuda:0"}, "cuda"), ({"cuda:0": "cpu"}, "cpu"), ({"cuda:1": "cuda:0"}, "cpu")):
        stream.seek(0)
        assert torch.load(stream, map_location=place).device.type == expected


def after_leaving() -> None:
    assert torch.cuda.is_available() is (torch.version.cuda is not None and torch.cuda.device_count() > 0)
    assert torch.cuda.is_available.__module__ == "torch.cuda"
    assert not torch.ones(2).is_pinned()
    assert "to" not in vars(torch.Tensor)
    assert torch.Generator.__module__.startswith("torch")
    with simulated() as device:
        assert torch.ones(2, device="cuda").device == device
    assert torch.zeros(2).device.type == "cpu"
    with forbid(), simulated() as device, forbid():
        assert torch.zeros(0).to("cuda").device == device
    assert not {"to", "cuda", "type", "copy_"} & set(vars(torch.Tensor))


def main_checks() -> dict[str, str]:
    failures = {}
    # Not at import: the compiler switches the checks of torch.distributions off, which the probes need.
    outside["compiled"] = torch.compile(lambda one: one * 2 + 1, fullgraph=True)
    torch.ones(2, requires_grad=True).sum().backward()  # before the device: torch then has its backward threads
    with simulated() as device:
        for name, body in CHECKS.items():
            failures[name] = failure(lambda body=body: body(device))
    failures["what_was_replaced_is_put_back_and_it_can_be_entered_again"] = failure(after_leaving)
    return failures


def failure(body: Callable[[], None]) -> str:
    try:
        body()
    except Exception:  # noqa: BLE001  # told to the parent, which fails the test of that name
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main_checks()) + "\n")
