"""``speedup`` by a clock that moves only when a tested function says so: no test knows how fast the machine is."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from testkit.errors import KernelsError
from testkit.kernels import Speedup, speedup
from testkit.kernels import _speedup as module


class Clock:
    """Seconds that pass only where ``spend`` is called."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float, name: str = "") -> None:
        self.now += seconds
        self.calls.append(name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module.time, "perf_counter", made)
    monkeypatch.setattr(module, "LARGEST_FLUSH", 1024)
    # Whatever ran before in this process, here nothing has started CUDA.
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    return made


def test_a_planted_ratio_is_found(clock: Clock) -> None:
    found = speedup(lambda: clock.spend(3.0), lambda: clock.spend(2.0))
    assert (found.ratio, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert (found.baseline, found.candidate) == pytest.approx((3.0, 2.0))
    assert str(found) == (
        "1.500x (95% interval 1.500 to 1.500): medians 3000000.0 us and 2000000.0 us "
        "of 100 interleaved rounds, eager, 0 MiB of cache flushed, perf_counter"
    )


def test_both_are_called_in_every_round_and_neither_always_first(clock: Clock) -> None:
    speedup(lambda: clock.spend(1.0, "a"), lambda: clock.spend(1.0, "b"), rounds=50)
    timed = clock.calls[2 * module.WARM_UP :]
    rounds = ["".join(timed[at : at + 2]) for at in range(0, len(timed), 2)]
    assert len(rounds) == 50
    assert set(rounds) == {"ab", "ba"}


def test_drift_meets_both(clock: Clock) -> None:
    """A machine that becomes slower all the time: measured one after the other, equals would differ."""
    found = speedup(lambda: clock.spend(clock.now * 0.01), lambda: clock.spend(clock.now * 0.01), rounds=100)
    assert found.low < 1 < found.high or found.ratio == pytest.approx(1, abs=0.02)


def test_noise_widens_the_interval_and_the_seed_fixes_it(clock: Clock) -> None:
    def measured(spread: float, seed: int = 0) -> Speedup:
        chance = random.Random(7)
        calls = [lambda base=base: clock.spend(base + spread * chance.random()) for base in (2, 1)]
        return speedup(*calls, seed=seed)

    calm, noisy = measured(0.01), measured(1.0)
    assert noisy.high - noisy.low > 10 * (calm.high - calm.low)
    assert calm.low <= calm.ratio <= calm.high
    assert noisy.low < 5 / 3 < noisy.high
    again, other = measured(1.0), measured(1.0, seed=1)
    assert (again.low, again.high) == pytest.approx((noisy.low, noisy.high))
    assert (other.low, other.high) != pytest.approx((noisy.low, noisy.high))


def test_the_interval_covers_the_true_ratio_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lognormal samples whose medians have the ratio 1.25, 100 times: 80 % intervals hold it about 80 times."""
    monkeypatch.setattr(module, "RESAMPLES", 200)
    chance, held = random.Random(3), 0
    for _ in range(100):
        slow = [1.25 * chance.lognormvariate(0, 0.1) for _ in range(40)]
        fast = [chance.lognormvariate(0, 0.1) for _ in range(40)]
        low, high = module._interval(slow, fast, 0.8, chance)
        held += low <= 1.25 <= high
    assert 68 <= held <= 92


def test_outliers_do_not_move_the_ratio(clock: Clock) -> None:
    steps = iter(range(10_000))
    found = speedup(lambda: clock.spend(2.0 if next(steps) % 5 else 500.0), lambda: clock.spend(1.0))
    assert found.ratio == pytest.approx(2.0)


def test_inputs_are_rotated_and_the_same_for_both(clock: Clock) -> None:
    seen: dict[str, list[int]] = {"a": [], "b": []}

    def run(name: str, number: int) -> None:
        seen[name].append(number)
        clock.spend(1.0)

    found = speedup(lambda n: run("a", n), lambda n: run("b", n), inputs=[(1,), (2,), (3,)], rounds=12)
    assert found.caches == "3 rotated sets of inputs"
    assert seen["a"][3 * module.WARM_UP :] == seen["b"][3 * module.WARM_UP :] == [1, 2, 3] * 4


def test_the_cache_is_flushed_before_each_call_but_not_timed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_flusher", lambda on_cuda: (lambda: clock.spend(50.0, "flush"), "flushed"))
    found = speedup(lambda: clock.spend(2.0, "call"), lambda: clock.spend(1.0, "call"), rounds=10)
    assert found.ratio == pytest.approx(2.0)
    assert clock.calls[2 * module.WARM_UP :] == ["flush", "call"] * 20


def test_the_size_of_the_cache_is_read_where_the_system_tells(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "size"
    monkeypatch.setattr(module, "CPU_CACHE", told)
    assert module._cpu_cache() == module.USUAL_CACHE
    told.write_text("8192K\n")
    assert module._cpu_cache() == 8 * 2**20
    flush, said = module._flusher(on_cuda=False)
    flush()
    assert said == "8 MiB of cache flushed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inputs": [(1,)]}, "inputs has 1 sets"),
        ({"rounds": 3}, "rounds is 3"),
        ({"confidence": 95}, "confidence is 95"),
        ({"graph": True}, "graph=True, and the functions have not started CUDA"),
    ],
)
def test_what_cannot_be_measured_is_refused(clock: Clock, given: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelsError, match=message):
        speedup(lambda: clock.spend(1.0), lambda: clock.spend(1.0), **given)


def test_calls_that_take_no_time_are_refused(clock: Clock) -> None:
    with pytest.raises(KernelsError, match="medians of 0 s and 1 s are too short to time"):
        speedup(lambda: None, lambda: clock.spend(1.0))


def test_torch_is_not_imported_for_functions_without_it() -> None:
    code = (
        "import sys, time; from testkit.kernels import speedup; "
        "print(speedup(lambda: time.sleep(1e-4), lambda: time.sleep(1e-5), rounds=10).clock, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "perf_counter False\n"


# The way through CUDA, without a GPU.


class FakeCuda:
    """What ``speedup`` uses of torch.cuda, on the clock above."""

    def __init__(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs = 0
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = clock.now

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) * 1000

        class CUDAGraph:
            def replay(self) -> None:
                clock.spend(0.5, "replay")

        @contextmanager
        def graph(graph: CUDAGraph) -> Iterator[None]:
            fake.graphs += 1
            yield

        for name, value in {
            "Event": Event,
            "CUDAGraph": CUDAGraph,
            "graph": graph,
            "current_stream": lambda: None,
            "synchronize": lambda: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(module, "_flusher", lambda on_cuda: (lambda: clock.spend(9.0), f"L2 flushed {on_cuda}"))


def test_cuda_events_time_where_cuda_was_started(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(clock, monkeypatch)
    found = speedup(lambda: clock.spend(4.0), lambda: clock.spend(1.0))
    assert (found.ratio, found.clock, found.mode, found.caches) == (4.0, "CUDA events", "eager", "L2 flushed True")


def test_graphs_are_captured_for_each_set_of_inputs_and_replayed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(clock, monkeypatch)
    found = speedup(lambda n: clock.spend(n), lambda n: clock.spend(n), inputs=[(1,), (2,)], graph=True, rounds=10)
    assert (found.mode, found.ratio, cuda.graphs) == ("graph", 1.0, 4)
    assert clock.calls[-20:] == ["replay"] * 20
    assert statistics.median([found.baseline, found.candidate]) == 0.5
