"""The census: what it lists, how it names and sorts it, and what reading it back gives."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import SyncsError
from testkit.syncs import _arming, _census, _report, _sight, allow, census, forbid
from testkit.syncs._census import Census
from testkit.syncs._region import notice
from testkit.syncs._seen import Seen
from testkit.syncs._sites import Site, as_row, from_row, place, short

HERE = Path(__file__)
READ = Seen("aten._local_scalar_dense", "read", "", 8, "D2H")
UNNAMED = Seen("?", "unknown")


def wait(seen: Seen = READ, times: int = 1) -> None:
    for _ in range(times):
        notice(seen)


def only(seen: Census) -> Site:
    assert len(seen.sites) == 1, seen.text()
    return seen.sites[0]


# --- what is listed


def test_waits_of_one_line_are_one_site_with_their_sum() -> None:
    with census() as seen:
        wait(times=3)
    site = only(seen)
    assert (site.operator, site.count, site.bytes, site.direction) == ("aten._local_scalar_dense", 3, 24, "D2H")
    assert site.function == "wait"
    assert site.kind == "read"
    assert "derive the number" in site.fix


def test_both_lines_are_named_that_outside_torch_and_that_of_the_test() -> None:
    with census() as seen:
        wait()
    site = only(seen)
    source = HERE.read_text().splitlines()
    where, line = site.where.rsplit(":", 1)
    assert where == str(HERE)
    assert source[int(line) - 1].strip() == "notice(seen)"
    assert site.test is not None
    where, line = site.test.rsplit(":", 1)
    assert where == str(HERE)
    assert source[int(line) - 1] == "        wait()"


def test_two_lines_are_two_sites() -> None:
    with census() as seen:
        notice(READ)
        notice(READ)
    assert [site.count for site in seen.sites] == [1, 1]


@pytest.mark.parametrize("there", [True, False])
def test_an_empty_census_says_whether_it_could_have_seen_any(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(_arming, "can_see", lambda: False)
    monkeypatch.setattr(_sight, "simulations", iter([0, 1] if there else [0, 0]).__next__)
    monkeypatch.setattr(_census, "simulations", _sight.simulations)
    with census() as seen:
        pass
    assert seen.sites == []
    if there:
        assert seen.text() == "syncs: no wait of the host was seen"
        assert _report.read(seen.to_json(), "in a test").sites == ()
    else:
        assert seen.text().startswith("syncs: no wait of the host could be seen: ")
        with pytest.raises(SyncsError, match="nothing could be seen when this was taken"):
            _report.read(seen.to_json(), "in a test")


def test_waits_after_the_block_are_not_listed_and_the_list_stays() -> None:
    with census() as seen:
        wait()
    wait()
    assert only(seen).count == 1


def test_allowed_waits_are_listed_last_with_their_reason() -> None:
    with census() as seen:
        with allow("metrics are read once a second"):
            wait(times=5)
        wait()
    assert [site.allowed for site in seen.sites] == [None, "metrics are read once a second"]
    assert "    allowed: metrics are read once a second" in seen.text().splitlines()


def test_what_a_guard_inside_raises_is_listed_outside() -> None:
    with census() as seen, pytest.raises(SyncsError, match="the host waits"), forbid():
        wait()
    assert only(seen).allowed is None


def test_a_census_in_a_census_is_listed_by_both() -> None:
    with census() as outer:
        wait()
        with census() as inner:
            wait()
    assert sum(site.count for site in outer.sites) == 2
    assert sum(site.count for site in inner.sites) == 1


def test_another_thread_is_not_listed_and_has_a_census_of_its_own() -> None:
    names = []

    def body() -> None:
        wait()
        with census() as own:
            wait()
        names.append(only(own).threads)

    with census() as seen:
        thread = threading.Thread(target=body, name="loader")
        thread.start()
        thread.join(30)
    assert seen.sites == []
    assert names == [("loader",)]


# --- how operators are named


@pytest.fixture(scope="module")
def peek() -> Iterator[object]:
    """An operator that torch warns of, as it does on CUDA: the warning does not say which one it was."""
    torch = pytest.importorskip("torch")
    with torch.library._scoped_library("syncs_test", "FRAGMENT") as library:
        library.define("peek(Tensor x, int times=1) -> Tensor")

        def implementation(x: object, times: int = 1) -> object:
            wait(UNNAMED, times)
            return torch.neg(x)

        library.impl("peek", implementation, "CompositeExplicitAutograd")
        yield torch.ops.syncs_test.peek


def test_a_wait_that_only_torch_warned_of_gets_the_operator_that_ran(peek) -> None:  # type: ignore[no-untyped-def]
    import torch

    x = torch.ones(4)
    with census() as seen:
        peek(x)
        torch.neg(x)
    assert only(seen).operator == "syncs_test.peek"


def test_an_operator_that_waits_twice_inside_counts_once_a_call(peek) -> None:  # type: ignore[no-untyped-def]
    import torch

    x = torch.ones(4)
    with census() as seen:
        for _ in range(3):
            peek(x, 2)
    assert only(seen).count == 3


def test_named_waits_are_measured_and_sorted_by_that(peek) -> None:  # type: ignore[no-untyped-def]
    import torch

    x = torch.ones(4)
    with census() as seen:
        wait(times=100)
        peek(x)
    first, second = seen.sites
    assert first.operator == "syncs_test.peek"
    assert first.seconds is not None
    assert first.seconds > 0
    assert second.seconds is None
    assert "sorted by measured time, the unmeasured after it by count" in seen.text()


def test_outside_of_any_operator_a_wait_stays_unnamed_with_its_line() -> None:
    with census() as seen:
        wait(UNNAMED)
    assert only(seen).operator == "?"


def test_the_outermost_torch_function_is_named_with_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        """Stands for a device: each operator waits."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            wait(UNNAMED)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, 2)
    with Mode(), census() as seen:
        bool(x[0, 0] > 0)
        x.sum().item()
        torch.functional.unique_consecutive(x)
    names = {site.operator for site in seen.sites}
    assert "Tensor.__bool__ (aten._local_scalar_dense)" in names
    assert "Tensor.item (aten._local_scalar_dense)" in names
    assert "torch.unique_consecutive (aten.unique_consecutive)" in names
    assert not [name for name in names if "?" in name or ".default" in name]


def test_a_list_as_index_is_told_from_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    from testkit.syncs._naming import Now, named

    now = Now(lambda call, seconds: None)
    now.outer, now.outer_args = torch.Tensor.__getitem__, (torch.ones(4), (slice(None), [0, 3]))
    seen = named(Seen("aten.index.Tensor", "upload", "index on the CPU", 16, "H2D"), now)
    assert (seen.operator, seen.detail) == ("Tensor.__getitem__ (aten.index)", "list as index")


def test_a_function_in_the_place_of_torchs_has_its_name() -> None:
    torch = pytest.importorskip("torch")
    import functools

    from testkit.syncs._naming import _spoken

    for original, name in ((torch.Tensor.to, "Tensor.to"), (torch.tensor, "torch.tensor")):
        assert _spoken(original) == name
        assert _spoken(functools.wraps(original)(lambda *args: original(*args))) == name  # noqa: B023
    assert _spoken(lambda: None) == "<lambda>"


@pytest.mark.parametrize("operator", ["aten._to_copy.default", "aten._copy_from", "aten.copy_.default"])
def test_a_copy_has_one_name_on_every_device(operator: str) -> None:
    with census() as seen:
        wait(Seen(operator, "upload", "", 8, "H2D"))
    assert only(seen).operator == "aten.copy_"


def test_compiled_functions_run_compiled_under_a_census() -> None:
    torch = pytest.importorskip("torch")
    graphs = []

    def backend(graph, inputs):  # type: ignore[no-untyped-def]
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend)
    def step(x):  # type: ignore[no-untyped-def]
        return (x * 2).sum() + 1

    torch._dynamo.reset()
    with census() as seen:
        assert step(torch.ones(3)).item() == 7
        assert step(torch.ones(3)).item() == 7
    assert len(graphs) == 1
    assert seen.sites == []
    torch._dynamo.reset()


def test_an_operator_that_takes_functions_runs_under_a_census() -> None:
    torch = pytest.importorskip("torch")
    from torch._higher_order_ops.map import map_impl

    x = torch.ones(2, 2)
    with census():
        assert map_impl(lambda one: [one + 1], [x], [])[0].tolist() == [[2.0, 2.0]] * 2


def test_warnings_of_torch_keep_their_line_under_a_census() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(4)
    with census(), pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(x, x, out=torch.empty(2))


# --- places


def test_a_place_outside_pytest_has_no_line_of_a_test() -> None:
    code = "from testkit.syncs._sites import place\ndef f(): return place()\nprint(f())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "Place(outside='<string>:2', test=None, function='f')\n", done.stderr


@pytest.mark.parametrize(
    ("module", "outside"),
    [
        ("torch", HERE.name),
        ("torch.nn.functional", HERE.name),
        ("testkit.syncs._copies", HERE.name),
        ("torchvision", "m.py"),
    ],
)
def test_frames_of_torch_and_ours_are_left_out_and_no_others(module: str, outside: str) -> None:
    space: dict[str, Any] = {"__name__": module, "place": place}
    exec(compile("def operation(): return place()", "m.py", "exec"), space)
    found = space["operation"]()
    assert Path(found.outside.rsplit(":", 1)[0]).name == outside
    assert found.function == ("operation" if outside == "m.py" else _this_function())


def _this_function() -> str:
    return "test_frames_of_torch_and_ours_are_left_out_and_no_others"


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("/repo/engine/step.py:12", "engine/step.py:12"),
        ("/venv/lib/python3.11/site-packages/vllm/step.py:3", "vllm/step.py:3"),
        ("/repo/.venv/lib/python3.11/site-packages/vllm/step.py:3", "vllm/step.py:3"),
        ("/elsewhere/step.py:3", "/elsewhere/step.py:3"),
        ("/repository/step.py:3", "/repository/step.py:3"),
        ("engine/step.py:12", "engine/step.py:12"),
        ("<string>:1", "<string>:1"),
    ],
)
def test_paths_mean_the_same_on_another_machine(where: str, shown: str) -> None:
    assert short(where, "/repo") == shown
    assert short(shown, "/repo") == shown


# --- on paper


def site(**changes: object) -> Site:
    known: dict[str, object] = {
        "operator": "Tensor.item (aten._local_scalar_dense)",
        "where": "/repo/step.py:3",
        "function": "Step.run",
        "test": "/repo/test_step.py:9",
        "kind": "read",
        "detail": "",
        "count": 1,
        "bytes": 4,
        "direction": "D2H",
        "threads": ("MainThread",),
        "fix": "do it otherwise",
    }
    return Site(**{**known, **changes})  # type: ignore[arg-type]


def test_the_text_says_all_that_is_known_of_a_site() -> None:
    found = [site(count=2, bytes=4096, seconds=0.0125, detail="mask index", threads=("loader",))]
    assert _report.lines(found, "/repo") == [
        "syncs: the host waited 2 times at 1 site, sorted by measured time",
        "  2 x Tensor.item (aten._local_scalar_dense)  step.py:3 in Step.run",
        "    read (mask index), 12.500 ms, 4,096 B, D2H, test test_step.py:9, thread loader",
        "    fix: do it otherwise",
    ]


def test_without_measured_time_count_comes_before_bytes() -> None:
    few, large, small = site(count=1, bytes=9999), site(count=5, bytes=800), site(count=5, bytes=8)
    assert _report.by_cost([small, few, large]) == [large, small, few]
    assert "sorted by count, then bytes (no time was measured)" in _report.lines([few], "/repo")[0]


def test_cautions_are_printed_once_for_all_sites() -> None:
    with census() as seen:
        wait(Seen("Tensor.to", "pageable", "", 64, "H2D"))
        wait(Seen("Tensor.cpu", "download", "", 64, "D2H"))
    assert seen.text().count("caution: a pinned buffer that is used again races") == 1
    assert seen.text().count("caution: pin_memory() itself") == 1


def test_print_writes_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    with census() as seen:
        wait()
    seen.print()
    assert capsys.readouterr().out == seen.text() + "\n"
    file = io.StringIO()
    seen.print(file)
    assert file.getvalue() == seen.text() + "\n"


def test_json_can_be_read_back() -> None:
    with census() as seen:
        wait(times=2)
        with allow("once"):
            wait()
    taken = _report.read(seen.to_json(HERE.parent), "in a test")
    assert [(one.count, one.allowed) for one in taken.sites] == [(2, None), (1, "once")]
    assert {one.where.rsplit(":", 1)[0] for one in taken.sites} == {"test_census.py"}
    assert taken.tests is None


def test_a_site_survives_its_row() -> None:
    one = site(seconds=0.5, allowed="why", bytes=None, direction=None, test=None, where="step.py:3")
    assert from_row(as_row(one, "/repo")) == one


# --- a device, simulated or real, in a process of its own

CLASSICS = """
import contextlib, torch
from testkit.syncs import census, simulated

{device}
with DEVICE as device:
    x = torch.randn(8, 8, device=device)
    mask, lens = x > 0, torch.tensor([1, 2], device=device)
    index, into = torch.tensor([0, 3]), torch.zeros(8, device=device)
    with census() as seen:
        x.sum().item()
        x[mask]
        x[[0, 3]]
        x[index]
        torch.tensor([1, 2], device=device)
        x.cpu()
        x.tolist()
        torch.ones(3).cuda()
        format(x[0, 0], ".2f")
        into[3] = 1.0
        mask.nonzero()
        torch.unique(lens)
        torch.repeat_interleave(lens)
        bool(mask.any())
        torch.ones(3).to(device, non_blocking=True)
        torch.cuda.synchronize()
    for site in sorted(seen.sites, key=lambda one: int(one.where.rpartition(":")[2])):
        print(site.count, site.operator, "|", site.kind, "|", site.fix)
"""
ON = {
    "simulated": "DEVICE = simulated()",
    "real": "DEVICE = contextlib.nullcontext(torch.device('cuda', 0))",
}


def classics(device: str, folder: Path) -> list[tuple[str, str]]:
    """What the census lists there, in the order of the source: ("count operator | kind", the fix)."""
    script = folder / f"{device}.py"
    script.write_text(CLASSICS.format(device=ON[device]))
    command = [sys.executable, "-W", "error::UserWarning", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.rpartition(" | ") for line in done.stdout.splitlines()]
    return [(wait, fix) for wait, _, fix in rows]


def test_the_simulated_device_is_listed_with_names_kinds_and_fixes(tmp_path: Path) -> None:
    pytest.importorskip("torch", minversion="2.9")
    expected = {
        "Tensor.item (aten._local_scalar_dense) | read": "derive the number",
        "Tensor.__getitem__ (aten.index) | shape": "keep the full shape",
        "Tensor.__getitem__ | upload": "the list becomes an index tensor",
        "Tensor.__getitem__ (aten.index) | upload": "a host tensor indexes a device tensor",
        "torch.tensor | upload": "build the tensor once per device",
        "Tensor.cpu (aten.copy_) | download": "keep on the CPU what the host reads",
        "Tensor.tolist (aten.copy_) | download": "keep on the CPU what the host reads",
        "Tensor.cuda (aten.copy_) | upload": "pin the host tensor and add non_blocking=True",
        "Tensor.__format__ (aten._local_scalar_dense) | read": "derive the number",
        "Tensor.__setitem__ (aten.copy_) | upload": "x[i].fill_(number)",
        "Tensor.nonzero (aten.nonzero) | shape": "torch.nonzero_static",
        "torch.unique (aten._unique2) | shape": "choose a fixed size",
        "torch.repeat_interleave (aten.repeat_interleave) | shape": "pass output_size=",
        "Tensor.__bool__ (aten._local_scalar_dense) | read": "ask the host's own copy",
        "Tensor.to | pageable": "non_blocking=True does nothing for pageable memory",
        "torch.cuda.synchronize | synchronize": "stream.wait_event(event)",
    }
    found = classics("simulated", tmp_path)
    assert [wait for wait, _ in found] == [f"1 {wait}" for wait in expected]
    for (wait, fix), words in zip(found, expected.values(), strict=True):
        assert words in fix, wait


def test_a_gpu_is_listed_as_the_simulated_device_is(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", minversion="2.9")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU that torch can use")
    real, simulated = classics("real", tmp_path), classics("simulated", tmp_path)
    there, here = ("\n".join(map(" | ".join, found)) for found in (real, simulated))
    assert real == simulated, f"the GPU:\n{there}\n\nthe simulated device:\n{here}"
