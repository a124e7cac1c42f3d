"""On a machine without GPU: shows testkit the stand-in in place of NVIDIA's management library."""

from __future__ import annotations

import os
from typing import Any

import pytest
from shared_gpu.device import TOTAL, folder, in_use, stands_in

if stands_in():
    from testkit.gpus import _nvml

    def answer(what: str, *rest: str) -> Any:
        told = {"uuids": ["GPU-00000000-0000-0000-0000-000000000000"], "names": ["stand-in"], "reserved": [0]}
        return [[in_use(), TOTAL] for _ in rest[1:]] if what == "memory" else told[what]

    _nvml._ask = answer
    os.environ.setdefault("TESTKIT_GPUS_LEDGER", str(folder() / "ledger"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With SHARED_GPU_FAULT=as-they-are the tests do not say what they need, as in most suites."""
    if os.environ.get("SHARED_GPU_FAULT") != "as-they-are":
        return
    for item in items:
        if item.get_closest_marker("gpus"):
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "gpus"]
            item.add_marker(pytest.mark.gpus)
