"""The rule against single aten calls that ran on a GPU: 689 operators, and whether each call made the host wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testkit.syncs import _waits

torch = pytest.importorskip("torch")

CALLS = Path(__file__).parents[1] / "data" / "syncs" / "aten_calls_h200.jsonl"
BLOCKS_BUT_TORCH_DOES_NOT_SAY_SO = {"aten._coalesce.default", "aten.unique_dim.default"}
SIDE = 64


class Fact:
    """A tensor of which only the recorded facts are known."""

    def __init__(self, text: str) -> None:
        self.where, dtype, dimensions, elements = text.split()[:4]
        self.dtype = getattr(torch, dtype)
        size = {"none": 0, "one": 1, "many": SIDE}[elements]
        self.shape = (size,) * int(dimensions)

    def numel(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product

    def stride(self) -> tuple[int, ...]:
        return tuple(max(self.shape[0], 1) ** (len(self.shape) - 1 - axis) for axis in range(len(self.shape)))

    def element_size(self) -> int:
        return int(self.dtype.itemsize)


def argument(recorded: Any) -> Any:
    if isinstance(recorded, list):
        return [argument(one) for one in recorded]
    if not isinstance(recorded, str):
        return recorded
    if recorded.startswith("="):
        return torch.device(recorded[1:]) if recorded[1:].startswith(("cuda", "cpu")) else recorded[1:]
    return Fact(recorded)


def operator(name: str) -> Any:
    """The overload of this name, or None where this torch has none."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def test_the_rule_agrees_with_every_call_that_was_measured() -> None:
    checked, wrong = 0, []
    for line in CALLS.read_text(encoding="utf-8").splitlines():
        call = json.loads(line)
        overload = operator(call["call"])
        if overload is None or call["call"] in BLOCKS_BUT_TORCH_DOES_NOT_SAY_SO:
            continue
        checked += 1
        seen = _waits.waits(
            overload,
            [argument(one) for one in call["args"]],
            {name: argument(one) for name, one in call["kwargs"].items()},
            lambda tensor: tensor.where == "device",
            lambda tensor: tensor.where == "pinned",
        )
        if any(one.kind not in {"pageable", "gapped"} for one in seen) != call["waits"]:
            wrong.append(line)
    assert not wrong
    assert checked > 1900
