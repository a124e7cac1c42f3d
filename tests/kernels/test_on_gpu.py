"""What only a GPU can show: real kernels, real streams, CUDA graphs, events that take time. Run this file on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from faulty import (
    changes_its_input,
    double,
    one_before_the_start,
    one_past_the_end,
    one_unwritten,
    reads_stale_workspace,
)
from stream_cases import (
    FAULTS,
    HEALTHY,
    Case,
    event_never_recorded,
    event_too_early,
    forked_and_joined,
    freed_while_read,
    joined_by_the_host,
    missing_fork,
    missing_join,
    overwritten_while_read,
    rows,
)

from testkit.errors import KernelsError
from testkit.kernels import (
    KernelFailed,
    assert_batch_invariant,
    assert_deterministic,
    assert_replays,
    assert_stream_safe,
    fake_streams,
    guarded,
    layouts,
    poisoned,
    speedup,
)
from testkit.kernels._delays import cycles_of
from testkit.kernels._layouts import Layout
from testkit.kernels._streams import _capture, _delay_each
from testkit.kernels._tensors import snapshot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")

MIB = 2**20


def x() -> torch.Tensor:
    return torch.arange(15.0, device="cuda").reshape(5, 3)


def triton_double() -> Callable[..., None]:
    pytest.importorskip("triton")
    from triton_kernels import double as kernel

    return kernel


# Guards and poison.


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (one_past_the_end, r"1 element after it, nearest \+15 from its first element"),
        (one_before_the_start, "1 element before the output, nearest -1 from its first element"),
        (one_unwritten, r"output: 1 of 15 elements not written, first at \[4, 2\]"),
        (changes_its_input, r"inputs: 1 of 15 elements differ, first at \[1, 0\]"),
    ],
)
def test_each_fault_of_a_kernel_is_found(fault: Callable[..., None], message: str) -> None:
    given = x()
    with guarded((5, 3), device="cuda", inputs=given) as out:
        double(given, out)
    assert out.data_ptr() % 512 == 0
    guard = guarded((5, 3), device="cuda", inputs=given)
    with pytest.raises(KernelFailed, match=message):
        guard.run(lambda out: fault(given, out))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool], ids=str)
def test_every_dtype_is_guarded(dtype: torch.dtype) -> None:
    given = torch.ones(5, 3, device="cuda").to(dtype)
    guarded((5, 3), dtype, device="cuda", inputs=given).run(lambda out: out.copy_(given))
    with pytest.raises(KernelFailed, match="1 of 15 elements not written"):
        guarded((5, 3), dtype, device="cuda").run(lambda out: out.view(-1)[1:].copy_(given.view(-1)[1:]))


def test_a_wrong_mask_of_a_triton_kernel_is_found() -> None:
    kernel, given = triton_double(), x()
    guarded((5, 3), device="cuda", inputs=given).run(lambda out: kernel(given, out))
    with pytest.raises(KernelFailed, match=r"1 element after it, nearest \+15"):
        guarded((5, 3), device="cuda", inputs=given).run(lambda out: kernel(given, out, extra=1))
    with pytest.raises(KernelFailed, match=r"1 of 15 elements not written, first at \[4, 2\]"):
        guarded((5, 3), device="cuda", inputs=given).run(lambda out: kernel(given, out, extra=-1))


def test_a_write_on_another_stream_is_waited_for() -> None:
    """The guard looks when the device has finished, not when the caller's stream has."""
    given, side = x(), torch.cuda.Stream()

    def late(out: torch.Tensor) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles_of(0.02))
            one_past_the_end(given, out)

    with pytest.raises(KernelFailed, match="1 element after it"):
        guarded((5, 3), device="cuda").run(late)


def test_a_stale_nan_is_found() -> None:
    given, workspace, out = x(), torch.zeros(16, device="cuda"), torch.empty(5, 3, device="cuda")
    with poisoned(workspace) as poison:
        reads_stale_workspace(given, out, workspace)
    with pytest.raises(KernelFailed, match=r"output\[0\]: 15 of 15 elements are NaN"):
        poison.assert_absent(out)


def test_new_buffers_are_poisoned_on_the_device() -> None:
    kernel, given = triton_double(), x()
    with poisoned() as poison:
        out = torch.empty_like(given)
        kernel(given, out, extra=-1)
    with pytest.raises(KernelFailed, match=r"1 of 15 elements are NaN, 1 with the poison's own bits"):
        poison.assert_absent(out)


def test_same_bits_twice_and_rows_alone() -> None:
    given = torch.rand(64, 64, device="cuda")
    assert_deterministic(lambda: given.softmax(-1))
    assert_batch_invariant(lambda rows: rows * 2, given)
    with pytest.raises(KernelFailed, match="output: 4,096 of 4,096 elements differ"):
        assert_deterministic(lambda: torch.empty(64, 64, device="cuda"))


@pytest.mark.parametrize("layout", layouts())
def test_layouts_hold_the_same_values(layout: Layout) -> None:
    made = layout(x())
    assert made.is_cuda
    if layout.name != "zero_sized":
        assert torch.equal(made, x())
    if layout.name == "misaligned":
        assert made.data_ptr() % 16 == 4


# Graphs.


def two(seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(3, 4, generator=generator).cuda(), torch.rand(4, generator=generator).cuda()


def test_a_function_that_follows_its_inputs_replays() -> None:
    kernel = triton_double()

    def healthy(x: torch.Tensor, y: torch.Tensor) -> Any:
        out = torch.empty_like(x)
        kernel(x, out)
        out[1:] += y
        return out, x.softmax(-1) @ y

    assert_replays(healthy, two)


def test_a_replay_that_ignores_changed_inputs_is_found() -> None:
    kept: list[torch.Tensor] = []

    def ignores(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            kept[:] = [x.clone()]  # "static inputs", filled at warm-up
        return kept[0] * y.new_full((), 2.0)

    with pytest.raises(KernelFailed, match=r"replay with changed inputs differs(?s:.*)results of the other inputs"):
        assert_replays(ignores, two)


def test_a_call_that_waits_for_the_device_cannot_be_captured() -> None:
    with pytest.raises(KernelFailed, match=r"fn cannot be captured\n  \w+Error: "):
        assert_replays(lambda x, y: x * float(y.sum().item()), two)
    # Nothing is left of the broken capture.
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.rand(3, device="cuda").isfinite().all()
    assert_replays(lambda x, y: x * y.sum(), two)


# Streams.


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.__name__)
def test_healthy_streams_pass_recorded_delayed_and_captured(case: Case) -> None:
    report = assert_stream_safe(*case("cuda"))
    assert report.streams == report.delayed >= 2
    assert report.captured


@pytest.mark.parametrize(("case", "message"), FAULTS.items(), ids=[case.__name__ for case in FAULTS])
def test_each_fault_of_streams_is_found_in_the_record(case: Case, message: str) -> None:
    with pytest.raises(KernelFailed, match=message):
        assert_stream_safe(*case("cuda"))


LATE: list[Case] = [
    missing_fork,
    missing_join,
    event_too_early,
    event_never_recorded,
    overwritten_while_read,
    freed_while_read,
]


class Entered:
    """The streams that a case enters, the caller's first, found without the recorder."""

    def __init__(self, parallel: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams = [torch.cuda.current_stream()]
        enter = torch.cuda.set_stream
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "set_stream", lambda stream: (self.note(stream), enter(stream)))
            parallel()
        torch.cuda.synchronize()

    def note(self, stream: Any) -> None:
        if stream not in self.streams:
            self.streams.append(stream)


@pytest.mark.parametrize("case", LATE, ids=lambda case: case.__name__)
def test_delays_alone_find_what_gives_wrong_values(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the recorder: as for kernels that torch's dispatcher does not see."""
    parallel, serial = case("cuda")
    streams = Entered(parallel, monkeypatch).streams
    expected = snapshot(serial(), "output")
    with pytest.raises(KernelFailed, match=r"is late by 5.0 ms before each operation\n  output"):
        _delay_each(parallel, expected, (), streams, MIB, 0.005)


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.__name__)
def test_delays_change_nothing_in_healthy_work(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    parallel, serial = case("cuda")
    streams = Entered(parallel, monkeypatch).streams
    assert len(streams) >= 2
    _delay_each(parallel, snapshot(serial(), "output"), (), streams, MIB, 0.005)


def test_a_missing_wait_of_a_triton_kernel_is_found_by_delays() -> None:
    kernel, given, side = triton_double(), rows("cuda"), torch.cuda.Stream()

    def parallel(fork: bool) -> torch.Tensor:
        main = torch.cuda.current_stream()
        y, out = given + 1, torch.zeros(4, 6, device="cuda")
        if fork:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            kernel(y, out)
        main.wait_stream(side)
        return out

    report = assert_stream_safe(lambda: parallel(True), lambda: (given + 1) * 2)
    assert report.streams == report.delayed == 2
    with pytest.raises(KernelFailed, match="when the caller's stream is late by"):
        assert_stream_safe(lambda: parallel(False), lambda: (given + 1) * 2)


def test_a_join_by_the_host_passes_without_a_capture_and_breaks_one() -> None:
    parallel, serial = joined_by_the_host("cuda")
    assert not assert_stream_safe(parallel, serial, capture=False).captured
    with pytest.raises(KernelFailed, match=r"parallel cannot be captured\n  \w+Error: "):
        _capture(parallel, snapshot(serial(), "output"), ())
    torch.cuda.synchronize()
    assert assert_stream_safe(*forked_and_joined("cuda")).captured  # nothing is left of the broken capture


def test_stand_ins_leave_cuda_alone_unless_asked() -> None:
    real = torch.cuda.Stream
    with fake_streams():
        assert torch.cuda.Stream is real
    with fake_streams(always=True):
        assert assert_stream_safe(*forked_and_joined("cpu")).delayed == 0
    assert torch.cuda.Stream is real


def test_nothing_is_claimed_for_work_on_the_cpu() -> None:
    side, given = torch.cuda.Stream(), rows("cpu")

    def parallel() -> torch.Tensor:
        with torch.cuda.stream(side):
            return given * 2

    with pytest.raises(KernelsError, match="parallel did nothing on CUDA"):
        assert_stream_safe(parallel, lambda: given * 2)


# Speed.


@pytest.mark.parametrize("graph", [False, True])
def test_a_planted_ratio_is_measured_by_events(graph: bool) -> None:
    """Kernels that spin for 4 ms and 1 ms: the ratio is known, whatever the device."""
    cycles = cycles_of(0.001)
    found = speedup(lambda: torch.cuda._sleep(4 * cycles), lambda: torch.cuda._sleep(cycles), graph=graph, rounds=20)
    assert 3 < found.low <= found.ratio <= found.high < 5, str(found)
    assert (found.clock, found.mode) == ("CUDA events", "graph" if graph else "eager")
    assert found.caches.startswith("L2 of ")


def test_rotated_inputs_are_captured_one_by_one() -> None:
    sets = [(torch.rand(512, 512, device="cuda"),) for _ in range(3)]
    found = speedup(lambda a: a @ a, lambda a: a @ a, inputs=sets, graph=True, rounds=30)
    assert found.caches == "3 rotated sets of inputs"
    assert 0.2 < found.ratio < 5, str(found)
