"""The guard against real CUDA: the same operations as in the truth file, and what happens around them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import SyncsError
from testkit.syncs import allow, forbid
from testkit.syncs._copies import staged
from testkit.syncs._guard import region
from testkit.syncs._region import Region

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

TRUTH = json.loads((Path(__file__).parent.parent / "data" / "syncs" / "sync_truth_h200.json").read_text())
WAITS = "the host waits for the device"


@pytest.fixture(scope="module")
def space() -> dict[str, Any]:
    names: dict[str, Any] = {"torch": torch}
    exec(TRUTH["setup"], names)
    torch.cuda.synchronize()
    return names


@pytest.fixture
def x(space: dict[str, Any]) -> Any:
    return space["x"]


@pytest.mark.filterwarnings("ignore")  # what else the operations warn of, nested tensors for one
@pytest.mark.parametrize("probe", TRUTH["probes"], ids=lambda probe: probe["name"])
def test_the_guard_hears_what_torch_warns_of(space: dict[str, Any], probe: dict[str, Any]) -> None:
    own = dict(space)
    source = probe["source"]
    if source.startswith("def "):
        exec(source, own)
        source = source[4 : source.index("(")] + "()"
    code = compile(source, "<probe>", "eval")
    eval(code, own)  # what happens once a process is not the operation's
    with region(Region("count", copies=False)) as seen:
        eval(code, own)
    assert bool(seen.found) is probe["warned"]


def test_a_wait_is_an_error_at_its_line_and_the_mode_comes_back(x: Any) -> None:
    with pytest.raises(SyncsError, match=r"'x\.sum\(\)\.item\(\)' at .*test_on_gpu\.py"), forbid():
        x.sum().item()
    assert torch.cuda.get_sync_debug_mode() == 0
    x.sum().item()


def test_a_budget_counts_each_wait_of_one_call(space: dict[str, Any]) -> None:
    def body() -> None:
        space["lens"].tolist()
        repr(space["v"])  # more than a hundred

    with forbid(at_most=999) as seen:
        body()
    assert len(seen.found) > 2
    least = len(seen.found) - 1
    with pytest.raises(SyncsError, match=f"{least + 1} times, {least} allowed") as caught, forbid(at_most=least):
        body()
    assert f"  {least} x 'repr(space[" in str(caught.value)


def test_allow_lets_it_wait(x: Any) -> None:
    with forbid() as seen, allow("a result"):
        x.tolist()
        torch.cuda.synchronize()
    assert seen.found == []


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_users_own_error_mode_is_named_and_kept(x: Any) -> None:
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(SyncsError, match="was set outside of forbid"), forbid():
            x.sum().item()
        assert torch.cuda.get_sync_debug_mode() == 2
    finally:
        torch.cuda.set_sync_debug_mode(0)


def test_another_thread_waits_as_it_likes_and_does_not_disarm(x: Any) -> None:
    answers: list[Any] = []

    def worker() -> None:
        try:
            with allow("mine"):
                answers.append(x.sum().item())
            answers.append(x.sum().item())
        except Exception as error:  # noqa: BLE001  # whatever it is, the test looks at it
            answers.append(error)

    with forbid() as seen:
        thread = threading.Thread(target=worker)
        thread.start()
        thread.join(60)
        assert seen.found == []
        with pytest.raises(SyncsError, match=WAITS):
            x.sum().item()
    assert [type(one) for one in answers] == [float, float]


def test_tasks_are_policed_by_where_they_were_started(x: Any) -> None:
    async def wait() -> None:
        await asyncio.sleep(0)
        x.sum().item()

    async def main() -> list[Any]:
        outside = asyncio.create_task(wait())
        with forbid():
            inside = asyncio.create_task(wait())
            answers = await asyncio.gather(outside, inside, return_exceptions=True)
            await asyncio.to_thread(x.sum().item)
        return answers

    first, second = asyncio.run(main())
    assert first is None
    assert isinstance(second, SyncsError)


def test_pythons_part_of_backward_runs_on_a_thread_of_torchs_that_is_not_policed(x: Any) -> None:
    class Waits(torch.autograd.Function):  # type: ignore[misc,name-defined]  # torch's stubs know no such base
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            torch.nonzero(gradient)
            return gradient

    y = Waits.apply(x.clone().requires_grad_()).sum()
    with forbid(copies=False) as seen:
        y.backward()
    assert seen.found == []


def test_streams_and_events_are_seen(x: Any) -> None:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    with forbid() as seen:
        with torch.cuda.stream(side):
            x.mul(2)
            event.record()
        torch.cuda.current_stream().wait_event(event)
        event.query()
    assert seen.found == []
    for owner, name in (
        (side, "Stream.synchronize"),
        (event, "Event.synchronize"),
        (torch.cuda, "torch.cuda.synchronize"),
    ):
        with forbid("warn", at_most=9) as seen:
            owner.synchronize()
        assert [one.seen.operator for one in seen.found] == [name]


def test_a_graph_can_be_captured_and_replayed_inside(x: Any) -> None:
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(x)
    torch.mul(x, 2, out=out)  # warm up
    torch.cuda.synchronize()
    with forbid():
        with torch.cuda.graph(graph):
            torch.mul(x, 3, out=out)
        graph.replay()
    assert torch.equal(out, x * 3)


@pytest.mark.filterwarnings("ignore")  # what the compiler warns of when it is imported and when it compiles
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_full_graph_compiles_and_runs_inside(x: Any, backend: str) -> None:
    def step(value: Any) -> Any:
        with allow("nothing is read while this is compiled"):
            host = value * 2
        return host.to(torch.float64, non_blocking=True).clamp(min=0.0)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    with forbid():
        first = compiled(x)
        second = compiled(x)
    assert torch.equal(first, second)


COPIES: list[tuple[str, str | None]] = [
    ("c.to(D, non_blocking=True)", "pageable"),
    ("c.cuda(non_blocking=True)", "pageable"),
    ("torch.empty_like(x).copy_(c, non_blocking=True)", "pageable"),
    ("out_cpu.copy_(x, non_blocking=True)", "pageable"),
    ("gapped.to(D, non_blocking=True)", "gapped"),
    ("torch.empty_like(x).copy_(gapped, non_blocking=True)", "gapped"),
    ("pinned.to(D, non_blocking=True)", None),
    ("pinned.t().to(D, non_blocking=True)", None),
    ("pinned.to(D, torch.float16, non_blocking=True)", None),
    ("out_pin.copy_(x, non_blocking=True)", None),
    ("x.to('cpu', non_blocking=True)", None),
    ("torch.empty(0).to(D, non_blocking=True)", None),
    ("x.to(torch.float16, non_blocking=True)", None),
]


@pytest.mark.parametrize(("source", "kind"), COPIES, ids=[source for source, _ in COPIES])
def test_staged_copies_are_seen_and_asynchronous_ones_are_not(
    space: dict[str, Any], source: str, kind: str | None
) -> None:
    with region(Region("count")) as seen:
        eval(source, dict(space))
    assert [one.seen.kind for one in seen.found] == ([] if kind is None else [kind])
    with forbid(copies=False):
        eval(source, dict(space))
    torch.cuda.synchronize()


LARGE: list[tuple[str, str, str]] = [
    ("host", "device", "device.copy_(host, non_blocking=True)"),
    ("pinned", "device", "device.copy_(pinned, non_blocking=True)"),
    ("pinned.t()", "device", "device.copy_(pinned.t(), non_blocking=True)"),
    ("pinned.t()", "device.t()", "device.t().copy_(pinned.t(), non_blocking=True)"),
    ("gapped", "device", "device.copy_(gapped, non_blocking=True)"),
    ("device", "host", "host.copy_(device, non_blocking=True)"),
    ("device", "pinned", "pinned.copy_(device, non_blocking=True)"),
    ("device", "gapped", "gapped.copy_(device, non_blocking=True)"),
    ("pinned", "half", "half.copy_(pinned, non_blocking=True)"),
    ("pinned.t()", "half", "half.copy_(pinned.t(), non_blocking=True)"),
    ("pinned.t()", "half.t()", "half.t().copy_(pinned.t(), non_blocking=True)"),
    ("pinned", "device.t()", "device.t().copy_(pinned, non_blocking=True)"),
    ("pinned[0]", "device", "device.copy_(pinned[0], non_blocking=True)"),
    ("device.t()", "pinned", "pinned.copy_(device.t(), non_blocking=True)"),
    ("device", "pinned.t()", "pinned.t().copy_(device, non_blocking=True)"),
    ("half", "pinned", "pinned.copy_(half, non_blocking=True)"),
    ("device[0]", "pinned", "pinned.copy_(device[0], non_blocking=True)"),
    ("pinned.t()", "device.t()", "pinned.t().to('cuda', non_blocking=True)"),
    ("pinned.t()", "half.t()", "pinned.t().to('cuda', torch.float16, non_blocking=True)"),
]


@pytest.mark.parametrize(("src", "dst", "source"), LARGE, ids=[source for *_, source in LARGE])
def test_a_large_copy_waits_for_what_runs_before_it_exactly_if_it_is_called_staged(
    src: str, dst: str, source: str
) -> None:
    size = 4096  # 64 MiB: the driver takes small pageable copies along without a wait
    space: dict[str, Any] = {
        "torch": torch,
        "device": torch.zeros(size, size, device="cuda"),
        "half": torch.zeros(size, size, device="cuda", dtype=torch.float16),
        "host": torch.zeros(size, size),
        "pinned": torch.zeros(size, size).pin_memory(),
        "gapped": torch.zeros(size, 2 * size).pin_memory()[:, :size],
    }
    eval(source, space)
    torch.cuda.synchronize()
    before = torch.cuda.Event()
    torch.cuda._sleep(3_000_000_000)  # more than a second
    before.record()
    eval(source, space)
    waited = before.query()
    torch.cuda.synchronize()
    assert waited is (staged(eval(src, space), eval(dst, space), True) is not None)


def test_entering_a_region_does_not_start_cuda_and_hears_it_when_it_starts() -> None:
    script = """
        import torch
        from testkit.errors import SyncsError
        from testkit.syncs import forbid

        with forbid():
            pass
        print(torch.cuda.is_initialized())
        try:
            with forbid():
                torch.ones(1, device="cuda").item()
        except SyncsError as error:
            print("heard")
        print(torch.cuda.get_sync_debug_mode())
    """
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split() == ["False", "heard", "0"], done.stderr
