"""``assert_stream_safe`` on stand-ins: what is ordered, what races, what a CUDA graph would refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from stream_cases import FAULTS, HEALTHY, Case, forked_and_joined, halves, joined_by_the_host, rows

from testkit.errors import KernelsError
from testkit.kernels import KernelFailed, StreamReport, assert_stream_safe, fake_streams
from testkit.kernels._delays import delayed, length
from testkit.kernels._happens_before import Memory
from testkit.kernels._stream_recorder import key_of
from testkit.kernels._streams import _delay_each


@pytest.fixture(autouse=True)
def _streams_are_fake() -> Iterator[None]:
    with fake_streams(always=True):
        yield


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.__name__)
def test_healthy_work_passes(case: Case) -> None:
    parallel, serial = case("cpu")
    report = assert_stream_safe(parallel, serial)
    assert report.operations > 4
    assert not report.captured


@pytest.mark.parametrize(("case", "message"), FAULTS.items(), ids=[case.__name__ for case in FAULTS])
def test_each_fault_is_found(case: Case, message: str) -> None:
    parallel, serial = case("cpu")
    with pytest.raises(KernelFailed, match=message):
        assert_stream_safe(parallel, serial)


def test_the_message_has_both_lines_and_what_to_do() -> None:
    x, side = rows("cpu"), torch.cuda.Stream()

    def parallel() -> Any:
        y = x * 2
        with torch.cuda.stream(side):
            z = y + 1
        torch.cuda.current_stream().wait_stream(side)
        return z

    line = parallel.__code__.co_firstlineno
    with pytest.raises(KernelFailed, match="race") as caught:
        assert_stream_safe(parallel, lambda: x * 2 + 1)
    assert str(caught.value).splitlines() == [
        "kernels: 1 race, no CUDA graph could capture it",
        f"  the caller's stream: mul writes test_streams.py:{line + 1}",
        f"    stream 1: add reads test_streams.py:{line + 3}, and nothing orders them",
        f"  stream 1 begins without a wait for the caller's: test_streams.py:{line + 3}",
        "next: let the later stream wait for the earlier one: later.wait_stream(earlier), or an event between the "
        "lines; fork with side.wait_stream(main), join with main.wait_stream(side), or give capture=False",
    ]


def test_joins_by_the_host_pass_where_nothing_is_captured() -> None:
    report = assert_stream_safe(*joined_by_the_host("cpu"), capture=False)
    assert report.streams == 2


@pytest.mark.parametrize("wait", ["device", "stream", "event", "query", "item"])
def test_whatever_the_host_waits_for_orders_and_ends_a_capture(wait: str) -> None:
    x, side = rows("cpu"), torch.cuda.Stream()
    waits: dict[str, Callable[[Any, Any], Any]] = {
        "device": lambda event, out: torch.cuda.synchronize(),
        "stream": lambda event, out: side.synchronize(),
        "event": lambda event, out: event.synchronize(),
        "query": lambda event, out: event.query(),
        "item": lambda event, out: None,
    }

    def parallel() -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        event = torch.cuda.Event()
        with torch.cuda.stream(side):
            out = x * 2
            event.record()
            if wait == "item":
                out.sum().item()
        waits[wait](event, out)
        out.record_stream(torch.cuda.current_stream())
        return out

    assert assert_stream_safe(parallel, lambda: x * 2, capture=False).streams == 2
    with pytest.raises(KernelFailed, match=r"(?s)no CUDA graph could capture it.*the host waits: "):
        assert_stream_safe(parallel, lambda: x * 2)


def test_two_storages_over_the_same_memory_are_one() -> None:
    array = numpy.zeros(8, dtype=numpy.float32)
    left, right, side = torch.from_numpy(array), torch.from_numpy(array)[4:], torch.cuda.Stream()
    assert left.untyped_storage().data_ptr() != right.data_ptr()

    def parallel() -> torch.Tensor:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            left.fill_(1)
        right.fill_(1)
        main.wait_stream(side)
        return left + 0

    with pytest.raises(KernelFailed, match=r"stream 1: fill_ writes .*\n    the caller's stream: fill_ writes"):
        assert_stream_safe(parallel, lambda: torch.ones(8))


@torch.library.custom_op("testkit_streams::two_streams", mutates_args={"out"})
def two_streams(x: torch.Tensor, out: torch.Tensor, join: bool) -> None:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        out[:2].copy_(x[:2] * 2)
    out[2:].copy_(x[2:] * 2)
    if join:
        main.wait_stream(side)


def test_streams_inside_a_custom_operator_are_seen() -> None:
    x = rows("cpu")

    def run(join: bool) -> torch.Tensor:
        out = torch.empty(4, 6)
        two_streams(x, out, join)
        return out

    # Each call makes a stream of its own.
    assert assert_stream_safe(lambda: run(True), lambda: x * 2).streams == 3
    race = r"  stream \d: copy_ writes .*\n    the caller's stream: two_streams writes "
    with pytest.raises(KernelFailed, match=race):
        assert_stream_safe(lambda: run(False), lambda: x * 2)


def test_a_stream_for_each_call_shows_in_the_report() -> None:
    def parallel() -> torch.Tensor:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        with side:
            out = torch.ones(3) * 2
        main.wait_stream(side)
        out.record_stream(main)
        return out

    report = assert_stream_safe(parallel, lambda: torch.full((3,), 2.0))
    assert report.streams == 3
    assert str(report) == "3 streams, 6 operations, order of accesses recorded on the CPU"


def test_modules_views_and_inference_mode_raise_no_alarm() -> None:
    layer, x, side = torch.nn.Linear(6, 6), rows("cpu"), torch.cuda.Stream()

    def parallel() -> torch.Tensor:
        main = torch.cuda.current_stream()
        with torch.cuda.stream(side):
            view = x.view(6, 4).t()  # looks at no memory, so it need not wait
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = layer(x).softmax(-1)
            sizes = torch.empty_like(view)
        z = layer(x).relu()
        main.wait_stream(side)
        y.record_stream(main)
        assert sizes.shape == (4, 6)
        return torch.cat([y, z[:, torch.tensor([1, 0])]], 1)

    def serial() -> torch.Tensor:
        return torch.cat([layer(x).softmax(-1), layer(x).relu()[:, torch.tensor([1, 0])]], 1)

    assert assert_stream_safe(parallel, serial).streams == 2
    inference = torch.inference_mode()
    assert assert_stream_safe(inference(parallel), inference(serial)).streams == 2


def test_other_results_than_the_serial_ones_are_found() -> None:
    parallel, _ = forked_and_joined("cpu")
    with pytest.raises(KernelFailed, match=r"parallel differs from serial\n  call 1, output\['z'\]: 24 of 24 elements"):
        assert_stream_safe(parallel, lambda: {"z": rows("cpu"), "w": rows("cpu") * 6})


def test_workspaces_are_poisoned_before_each_call() -> None:
    workspace = rows("cpu")
    parallel, _ = forked_and_joined("cpu")
    with pytest.raises(KernelFailed, match=r"output\[1\]: 24 of 24 elements differ, first at \[0, 0\]: nan"):
        assert_stream_safe(
            lambda: (parallel()["w"], workspace + 0), lambda: (rows("cpu") * 6, rows("cpu")), workspaces=[workspace]
        )


def test_memory_that_already_holds_the_serial_results_is_refused() -> None:
    out = torch.empty(4, 6)
    parallel, serial = forked_and_joined("cpu")

    def into(results: dict[str, torch.Tensor], write: bool) -> dict[str, torch.Tensor]:
        if write:
            out.copy_(results["w"])
        return {"z": results["z"], "w": out.view(24)}

    def run(write: bool, **options: Any) -> StreamReport:
        return assert_stream_safe(lambda: into(parallel(), write), lambda: into(serial(), True), **options)

    for write in (True, False):
        message = r"output\['w'\] of parallel lies in memory that serial returned.*\nnext: name that .* workspaces="
        with pytest.raises(KernelsError, match=message):
            run(write)
    assert run(True, workspaces=[out]).streams == 2
    assert run(True, workspaces=[(out, slice(None))]).streams == 2
    with pytest.raises(KernelFailed, match=r"output\['w'\]: 24 of 24 elements differ, first at \[0\]: nan"):
        run(False, workspaces=[out])


def test_results_that_cannot_be_looked_into_are_refused() -> None:
    parallel, serial = forked_and_joined("cpu")
    with pytest.raises(KernelsError, match="output is a set, whose contents cannot be compared"):
        assert_stream_safe(lambda: {parallel()["w"]}, serial)


def test_what_would_verify_nothing_is_refused() -> None:
    x, steps = rows("cpu"), iter(range(9))
    with pytest.raises(KernelsError, match="parallel used one stream only"):
        assert_stream_safe(lambda: x * 2, lambda: x * 2)
    with pytest.raises(KernelsError, match="serial returned no tensor with elements"):
        assert_stream_safe(lambda: x * 2, lambda: None)
    with pytest.raises(KernelsError, match="serial differs from itself: output: 24 of 24 elements differ"):
        assert_stream_safe(lambda: x * 2, lambda: x + next(steps))


def test_stand_ins_go_when_the_block_ends() -> None:
    inside = torch.cuda.Stream
    with fake_streams(always=True):
        assert torch.cuda.Stream is inside  # nested: the same
    assert torch.cuda.Stream is inside


def test_torch_is_as_it_was_after_the_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("Stream", "Event", "stream", "set_stream", "current_stream", "synchronize", "_sleep")
    before = {name: getattr(torch.cuda, name) for name in names}
    parallel, serial = forked_and_joined("cpu")
    assert_stream_safe(parallel, serial)
    assert {name: getattr(torch.cuda, name) for name in names} == before
    assert "record_stream" in vars(torch.Tensor)  # the stand-in's, of the fixture


def test_bytes_are_compared_not_ranges() -> None:
    left = Memory(0, (4, 3), (24, 4), 4)
    assert not left.overlaps(Memory(12, (4, 3), (24, 4), 4))
    assert left.overlaps(Memory(8, (4, 3), (24, 4), 4))
    assert not left.overlaps(Memory(84, (3,), (4,), 4))
    assert left.overlaps(Memory(83, (), (), 1))
    assert not left.overlaps(Memory(84, (), (), 1))


# The way through CUDA, without a GPU.


class Spins:
    """Stands for the spinning kernel: on which stream it was started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[Any] = []
        monkeypatch.setattr(
            torch.cuda, "_sleep", lambda cycles: self.started.append(key_of(torch.cuda.current_stream()))
        )


def test_one_stream_spins_before_its_operations_and_after_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    spins, x = Spins(monkeypatch), rows("cpu")
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with delayed(key_of(side), 1000):
        y = x * 2
        assert spins.started == []
        with torch.cuda.stream(side):
            assert len(spins.started) == 1  # the entry
            z = (y + 1).t()
            assert len(spins.started) == 2  # the sum, not the view
            main.wait_event(torch.cuda.current_stream().record_event())
            assert len(spins.started) == 3  # the event
        z + y.t()
        side.record_event()  # from outside: the stream is entered for it
    assert spins.started == [key_of(side)] * 4
    z + y.t()
    assert len(spins.started) == 4


def test_the_callers_stream_spins_first_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    spins = Spins(monkeypatch)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with delayed(key_of(main), 1000):
        assert spins.started == [key_of(main)]
        with torch.cuda.stream(side):
            torch.ones(3)
        assert len(spins.started) == 2  # the return to it
    assert set(spins.started) == {key_of(main)}


def test_delays_have_limits() -> None:
    assert length(0.0, 1) == 0.001
    assert length(0.01, 1) == 0.02
    assert length(10.0, 1) == 0.05
    assert length(10.0, 1000) == 0.005


def test_each_stream_is_delayed_in_turn_over_poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    spins, poisoned_for = Spins(monkeypatch), []
    monkeypatch.setattr("testkit.kernels._streams.cycles_of", lambda seconds: 1000)
    monkeypatch.setattr("testkit.kernels._streams.poison_free_memory", lambda *given: poisoned_for.append(given))
    parallel, serial = halves("cpu")
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    expected = [("output", serial())]
    _delay_each(parallel, expected, (), streams, 64, 0.001)
    assert poisoned_for == [(streams, 64)] * 2
    assert spins.started
    with pytest.raises(
        KernelFailed, match=r"when the caller's stream is late by 1.0 ms before each operation\n  output: "
    ):
        _delay_each(parallel, [("output", serial() + 1)], (), streams, 64, 0.001)


def test_the_whole_way_records_delays_and_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but for the spinning kernel, the memory and the graph."""
    module, spins, done = "testkit.kernels._streams", Spins(monkeypatch), []

    def captured(call: Callable[[], Any], what: str, fix: str) -> tuple[Any, Any]:
        done.append(f"captured {what}")
        return SimpleNamespace(replay=lambda: done.append("replayed")), call()

    monkeypatch.setattr(f"{module}.are_fake", lambda: False)
    monkeypatch.setattr(f"{module}.captured", captured)
    monkeypatch.setattr(f"{module}.cycles_of", lambda seconds: 1000)
    monkeypatch.setattr(f"{module}.poison_free_memory", lambda streams, needed: done.append(f"poisoned {needed}"))
    for name, value in {"memory_allocated": 100, "max_memory_allocated": 164, "reset_peak_memory_stats": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    parallel, serial = forked_and_joined("cpu")
    report = assert_stream_safe(parallel, serial)
    assert (report.streams, report.delayed, report.captured) == (2, 2, True)
    assert done == ["poisoned 128"] * 2 + ["captured parallel", "replayed", "replayed"]
    assert len(set(spins.started)) == 2
    done.clear()
    assert not assert_stream_safe(parallel, serial, capture=False).captured
    assert done == ["poisoned 128"] * 2


def test_a_report_says_what_was_done_on_a_gpu() -> None:
    report = StreamReport(streams=2, operations=9, delayed=2, delay=0.0021, captured=True)
    assert str(report) == "2 streams, 9 operations, each delayed by 2.1 ms, captured in a CUDA graph"
