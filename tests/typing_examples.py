"""The public API as a user with strict types sees it. Type-checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from testkit.cleanup import cleanup_now, module_cleanup
from testkit.environment import snapshot
from testkit.errors import CleanupError, KitError, PairwiseError, ProcessesError
from testkit.gpus import Gpu, allowed, used_memory
from testkit.kernels import Drift, ErrorModel, assert_matches, bare, namespace, stub_drift
from testkit.laws import assert_split_invariant, assert_terminates, call_budget
from testkit.pairwise import Coverage, Sample, coverage, parametrize, sample
from testkit.processes import Answer, Ended, RanksFailed, Server, run_ranks, stop
from testkit.syncs import allow, census, forbid, simulated, to_device
from testkit.timing import Plan, Run, plan, read

__all__ = ["module_cleanup"]  # a suite imports the fixture by name; that is all it takes

AXES: dict[str, list[object]] = {"n": [1, 2, 64], "k,m": [(1, 2), (3, 4)], "bias": [None, 1.0, "row"]}


def fits(n: int, k: int) -> bool:
    return n * k < 100


drawn: Sample = sample(AXES, strength=2, full=("n", "k,m"), where=fits, keep=[{"n": 64}], seed=1, effort="high")
rows: Sequence[Mapping[str, Any]] = drawn.rows
owed: int = drawn.owed
floor: int = drawn.floor

measured: Coverage = coverage(AXES, drawn.rows, strength=2, where=[fits])
percent: float = measured.percent
counts: tuple[int, int] = (measured.owed, measured.covered)
missing = list(measured.missing)

# The smallest call, and each form an argument may take.
sample({"a": (1, 2), "b": range(3)})
sample(AXES, where=[fits, lambda n: n > 1], keep=({"n": 1, "bias": None},), effort=100, engine="allpairspy")


@parametrize(AXES, strength=2, where=fits)
def gemm(n: int, k: int, m: int, bias: object) -> None: ...


@pytest.mark.pairwise(strength=2, full=("n", "k"), where=fits)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("k", [1, 2])
def marked(n: int, k: int) -> None: ...


@pytest.mark.skip_global_cleanup
def light() -> None:
    cleanup_now()


def headline(error: PairwiseError | CleanupError | ProcessesError) -> str:
    kit: KitError = error
    return f"{kit.headline} / {kit.problem} / {kit.where} / {kit.fix}"


ended: list[Ended] = stop([], join=0, terminate=1.5, kill=5)
how: list[tuple[int | None, str | None, str]] = [(e.exit_code, e.signal, e.rung) for e in ended]


def body(rank: int, world_size: int, offset: int) -> int:
    return rank + world_size + offset


results: list[Any] = run_ranks(body, 2, args=(1,), timeout=5, env={"OMP_NUM_THREADS": "1"}, ladder=(1, 1, 1))
failed: type[ProcessesError] = RanksFailed

with Server(["serve", "{port}"], ready="/health", env={"LEVEL": "1"}) as server:
    answer: Answer = server.post("/pause", json={"mode": "drain"})
    status: tuple[int, str, str] = (answer.status, server.url, server.log_tail())


@pytest.mark.ranks(2, timeout=5.0, start="preload")
@pytest.mark.gpus(1)
def in_ranks(rank: int, world_size: int, rendezvous: str) -> None: ...


memory: list[int] | None = used_memory(allowed())

divided: Plan = plan([{"id": "a", "module": "m", "seconds": 1.0}], shards=2, fixed=3.0)
ids: list[list[str]] = divided.shards
recorded: Run = read("r.timing.jsonl")


class Builder:
    def __init__(self) -> None:
        self.size = 3


builder: Builder = bare(Builder, size=4)
drifts: list[Drift] = stub_drift(builder, namespace(Builder, size=2))
model: ErrorModel = ErrorModel.load("gemm.json")
assert_matches([1.0], [1.0], model=model)

kernel: object = snapshot()["kernel"].value
read_by: str = snapshot()["kernel"].how

assert_split_invariant(lambda chunks: "".join(chunks), "abc", expected="abc")
taken: int = assert_terminates(lambda: True, max_steps=3)
with call_budget(Builder, "__init__", at_most=2):
    Builder()


@pytest.mark.gpus(1, memory="20GiB")
def on_a_gpu(gpu: Gpu) -> None:
    device: str = gpu.device
    granted: int | None = gpu.memory
    assert device
    assert granted is None or granted > 0


@forbid(at_most=1)
def step(lengths: list[int]) -> object:
    with allow("the stop check", first_only=True):
        return to_device(lengths, "cuda")


@pytest.mark.fresh_process
@pytest.mark.no_gpu_sync(at_most=2)
def without_a_gpu() -> None:
    with simulated(), census() as seen:
        step([1, 2])
    assert [(site.operator, site.where, site.count, site.fix) for site in seen.sites] == []
