"""The waits that torch does not warn of, with stand-ins for device memory; the real ones are in test_on_gpu.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from testkit.errors import SyncsError
from testkit.syncs import _arming, _copies, _region, _waits, allow, forbid

torch = pytest.importorskip("torch")


class Standing:
    """As much of a tensor as the judgement asks."""

    def __init__(self, tensor: Any, device: str = "cpu", pinned: bool = False) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, SimpleNamespace(type=device)
        self.numel, self.stride = tensor.numel, tensor.stride
        self.is_pinned = lambda: pinned


whole = torch.zeros(4, 6)
DENSE = {
    "whole": (whole, True),
    "transposed": (whole.t(), True),
    "permuted": (torch.zeros(2, 3, 4).permute(2, 0, 1), True),
    "one element": (torch.zeros(()), True),
    "rows": (whole[1:3], True),
    "one column": (whole[:, :1], False),
    "columns": (whole[:, :3], False),
    "every second": (torch.zeros(8)[::2], False),
    "expanded": (torch.zeros(4, 1).expand(4, 6), False),
    "extent one, any stride": (torch.zeros(1, 6).as_strided((1, 6), (100, 1)), True),
}


@pytest.mark.parametrize("name", DENSE)
def test_dense_is_one_stretch_of_memory_in_whatever_order(name: str) -> None:
    tensor, expected = DENSE[name]
    assert _waits.dense(tensor) is expected


def test_only_a_non_blocking_copy_between_pinned_memory_and_a_device_is_not_staged() -> None:
    device = Standing(whole, "cuda")
    part = Standing(whole[:, :3], "cuda")
    gaps = Standing(whole[:, :3], pinned=True)
    cases: list[tuple[Any, Any, bool, str | None]] = [
        (Standing(whole), device, True, "pageable"),
        (device, Standing(whole), True, "pageable"),
        (gaps, part, True, "gapped"),
        (part, gaps, True, "gapped"),
        (Standing(whole, pinned=True), device, True, None),
        (Standing(whole), device, False, None),
        (Standing(torch.empty(0)), device, True, None),
        (Standing(whole), Standing(whole), True, None),
        (device, Standing(whole, "cuda"), True, None),
        (Standing(whole), Standing(whole, "meta"), True, None),
    ]
    assert [_copies.staged(src, dst, how) for src, dst, how, _ in cases] == [expected for *_, expected in cases]


pinned, pinned_t = Standing(square := torch.zeros(4, 4), pinned=True), Standing(square.t(), pinned=True)
there, there_t = Standing(square, "cuda"), Standing(square.t(), "cuda")
half, half_t = Standing(square.half(), "cuda"), Standing(square.half().t(), "cuda")
row, row_there = Standing(square[0], pinned=True), Standing(square[0], "cuda")
one, one_half = Standing(torch.zeros(1, 1).t(), pinned=True), Standing(torch.zeros(1).half(), "cuda")
ORDERS: dict[str, tuple[Any, Any, str | None]] = {
    "both row by row": (pinned, there, None),
    "both transposed": (pinned_t, there_t, None),
    "upload of transposed": (pinned_t, there, "gapped"),
    "upload row by row into transposed": (pinned, there_t, None),
    "download of transposed": (there_t, pinned, None),
    "download into transposed": (there, pinned_t, "gapped"),
    "upload to another type": (pinned, half, None),
    "upload of transposed to another type": (pinned_t, half_t, "gapped"),
    "download of another type": (half_t, pinned, None),
    "download of another type into transposed": (half_t, pinned_t, "gapped"),
    "upload that is spread": (row, there, "gapped"),
    "download that is spread": (row_there, pinned, None),
    "one dimension more": (row, Standing(square[:1], "cuda"), None),
    "one element to another type": (one, one_half, None),
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_pinned_copy_is_staged_if_torch_must_rearrange_the_hosts_side(name: str) -> None:
    src, dst, expected = ORDERS[name]
    assert _copies.staged(src, dst, True) == expected


NEW = {
    "as it lies": (square.t(), {}, False),
    "kept": (square.t(), {"dtype": torch.float32, "memory_format": torch.preserve_format}, False),
    "to another type": (square.t(), {"dtype": torch.float16}, True),
    "row by row": (square.t(), {"memory_format": torch.contiguous_format}, True),
    "with gaps": (square[:, :2], {}, True),
    "row by row to any": (square, {"dtype": torch.float16, "memory_format": torch.contiguous_format}, False),
    "channels last": (
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        {"memory_format": torch.channels_last},
        False,
    ),
    "channels last undone": (
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        {"memory_format": torch.contiguous_format},
        True,
    ),
}


@pytest.mark.parametrize("name", NEW)
def test_a_new_tensor_has_the_order_of_what_is_copied_unless_another_is_asked_for(name: str) -> None:
    source, given, expected = NEW[name]
    assert _waits.rearranged_anew(source, given) is expected


def test_who_knows_better_may_answer_for_pinning() -> None:
    src: Any = Standing(whole)
    assert _copies.staged(src, Standing(whole, "cuda"), True, pinned=lambda tensor: tensor is src) is None  # type: ignore[arg-type]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Every ``non_blocking`` copy counts as staged; those that were looked at."""
    seen: list[tuple[Any, Any]] = []

    def staged(src: Any, dst: Any, non_blocking: bool) -> str:
        assert non_blocking
        seen.append((src, dst))
        return "pageable"

    monkeypatch.setattr(_copies, "staged", staged)
    return seen


COPIES = {
    "to(device, dtype, True)": lambda x: x.to("meta", torch.float64, True),
    "to(device, non_blocking=True)": lambda x: x.to("meta", non_blocking=True),
    "to(other, True)": lambda x: x.to(torch.ones(1, device="meta"), True),
    "copy_(src, True)": lambda x: torch.empty(3).copy_(x, True),
    "copy_(src, non_blocking=True)": lambda x: torch.empty(3).copy_(x, non_blocking=True),
    "Module.to": lambda x: torch.nn.Linear(1, 1).to("meta", non_blocking=True),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_staged_copy_is_named_with_its_size(judged: list[Any], name: str) -> None:
    operator = "Tensor.copy_" if name.startswith("copy_") else "Tensor.to"
    with forbid("warn", at_most=9) as seen:
        COPIES[name](torch.ones(3))
    assert {(one.seen.operator, one.seen.kind) for one in seen.found} == {(operator, "pageable")}
    if name != "Module.to":
        assert [one.seen.bytes for one in seen.found] == [12]
    assert all("test_copies.py" in one.place.outside for one in seen.found)


NOT_ASKED = {
    "to(dtype)": lambda x: x.to(torch.float64),
    "to(device)": lambda x: x.to("meta"),
    "to(device, dtype, False, True)": lambda x: x.to("meta", torch.float32, False, True),
    "to(non_blocking=False)": lambda x: x.to("meta", non_blocking=False, copy=True),
    "to host": lambda x: x.to("cpu", torch.float64, non_blocking=True),
    "copy_(src)": lambda x: torch.empty(3).copy_(x),
}


@pytest.mark.parametrize("name", NOT_ASKED)
def test_blocking_copies_and_those_to_a_new_host_tensor_are_not_judged(judged: list[Any], name: str) -> None:
    with forbid():
        NOT_ASKED[name](torch.ones(3))
    assert judged == []


def test_a_copy_under_a_mode_of_torch_is_one_copy(judged: list[Any]) -> None:
    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]  # torch may be missing
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Own(torch.Tensor):  # type: ignore[misc,name-defined]  # torch may be missing
        pass

    with forbid("warn", at_most=9) as seen, Mode():
        torch.ones(3).to("meta", non_blocking=True)
        torch.ones(3).as_subclass(Own).to("meta", non_blocking=True)
        torch.empty(3).copy_(torch.ones(3), non_blocking=True)
    assert [one.seen.operator for one in seen.found] == ["Tensor.to", "Tensor.to", "Tensor.copy_"]


def test_a_staged_copy_is_an_error_after_it_was_made(judged: list[Any]) -> None:
    target = torch.zeros(3)
    with pytest.raises(SyncsError, match=r"Tensor\.copy_ \(pageable, 12 bytes\) at .*test_copies\.py"), forbid():
        target.copy_(torch.ones(3), non_blocking=True)
    assert target.tolist() == [1, 1, 1]


def test_allow_covers_staged_copies(judged: list[Any]) -> None:
    with forbid(), allow("once"):
        torch.empty(3).copy_(torch.ones(3), non_blocking=True)


def test_regions_without_copies_do_not_look_and_hear_of_none(judged: list[Any]) -> None:
    with forbid(copies=False):
        assert "to" not in vars(torch.Tensor)
        torch.empty(3).copy_(torch.ones(3), non_blocking=True)
        with forbid("warn", at_most=9) as inner:
            torch.empty(3).copy_(torch.ones(3), non_blocking=True)
    assert len(inner.found) == 1


def test_the_simulated_device_tells_of_its_copies_itself(judged: list[Any]) -> None:
    _copies.leave_to_simulation(True)
    try:
        with forbid():
            torch.empty(3).copy_(torch.ones(3), non_blocking=True)
    finally:
        _copies.leave_to_simulation(False)


def test_torch_has_its_own_functions_back_after_the_last_region() -> None:
    before = torch.Tensor.to, torch.cuda.synchronize, torch.cuda.Event.synchronize
    names = set(vars(torch.Tensor))
    with forbid():
        with forbid():
            assert torch.Tensor.to is not before[0]
        assert torch.Tensor.to is not before[0]
    assert (torch.Tensor.to, torch.cuda.synchronize, torch.cuda.Event.synchronize) == before
    assert set(vars(torch.Tensor)) == names


def test_what_somebody_puts_over_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with forbid():
        ours = torch.cuda.synchronize
        monkeypatch.setattr(torch.cuda, "synchronize", theirs := lambda: None)
    assert torch.cuda.synchronize is theirs
    monkeypatch.undo()
    assert torch.cuda.synchronize is ours
    torch.cuda.synchronize = ours.__wrapped__


class Stream:
    def synchronize(self) -> str:
        return "done"


class Event(Stream):
    def synchronize(self) -> str:
        return "done"


@pytest.fixture
def standing_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device, a stream and an event whose waiting does nothing."""
    for kind in (Stream, Event):
        monkeypatch.setattr(kind, "__module__", "torch.cuda.streams")
        monkeypatch.setattr(torch.cuda, kind.__name__, kind)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: "done")


@pytest.mark.usefixtures("standing_cuda")
@pytest.mark.parametrize("what", ["torch.cuda.synchronize", "Stream.synchronize", "Event.synchronize"])
def test_synchronize_is_seen_with_its_name(what: str) -> None:
    def wait() -> str:
        owner, _, _ = what.rpartition(".")
        return str(torch.cuda.synchronize() if owner == "torch.cuda" else getattr(torch.cuda, owner)().synchronize())

    with forbid("warn", at_most=1) as seen:
        assert wait() == "done"
    assert [(one.seen.operator, one.seen.kind) for one in seen.found] == [(what, "synchronize")]
    with forbid(), allow("the end of a measurement"):
        assert wait() == "done"
    with pytest.raises(SyncsError, match=rf"{what} \(synchronize\) at"), forbid():
        wait()


@pytest.mark.usefixtures("standing_cuda")
def test_torch_warns_of_a_stream_itself_so_regions_without_copies_hear_of_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import warnings

    def synchronize(self: Any) -> None:
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)

    monkeypatch.setattr(Stream, "synchronize", synchronize)
    with forbid("warn", at_most=9, copies=False) as outer:
        torch.cuda.Stream().synchronize()  # not wrapped
        with forbid("warn", at_most=9) as inner:
            torch.cuda.Stream().synchronize()
    assert [one.seen.operator for one in outer.found] == ["?"]
    assert [one.seen.operator for one in inner.found] == ["Stream.synchronize"]


@pytest.mark.usefixtures("standing_cuda")
def test_the_synchronize_that_begins_a_capture_is_part_of_it() -> None:
    with forbid():
        exec("import torch; torch.cuda.synchronize()", {"__name__": _copies.CAPTURE})


def test_what_a_stand_in_tells_itself_is_not_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in() -> None: ...

    setattr(stand_in, _copies.OURS, True)
    monkeypatch.setattr(torch.cuda, "synchronize", stand_in)
    with forbid():
        assert torch.cuda.synchronize is stand_in


def test_warnings_from_torchs_c_code_become_errors_at_the_line_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning that the CPU build gives each time, in place of the one that CUDA gives."""
    import re

    monkeypatch.setattr(_arming, "SYNC", re.compile("An output with one or more elements was resized"))
    with pytest.raises(SyncsError, match=r"at .*test_copies\.py"), forbid():
        torch.add(torch.ones(3), 1, out=torch.ones(2))
    with forbid(at_most=2) as seen:
        for _ in range(2):  # not once a line
            torch.add(torch.ones(3), 1, out=torch.ones(2))
    assert len(seen.found) == 2


COMPILED = {
    "allow": lambda x: _with(allow("why"), x),
    "forbid": lambda x: _with(forbid(), x),
    "copies": lambda x: torch.empty_like(x).copy_(x.to(torch.float64, non_blocking=True), non_blocking=True),
    "decorated": forbid()(lambda x: x + 1),
    "decorated to allow": allow("why")(lambda x: x + 1),
}


def _with(block: Any, x: Any) -> Any:
    with block:
        return x + 1


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("around", ["nothing", "a region", "switched off"])
def test_regions_leave_a_full_graph_whole(name: str, around: str) -> None:
    import contextlib

    from testkit.syncs import _switch

    torch._dynamo.reset()
    compiled = torch.compile(COMPILED[name], fullgraph=True, backend="eager")
    was = _switch.switch(on=around != "switched off")
    try:
        with forbid() if around == "a region" else contextlib.nullcontext():
            x = torch.ones(3)
            result = compiled(x)
    finally:
        _switch.switch(on=was)
    assert torch.equal(result, COMPILED[name](x))
    assert not _region.watched()
