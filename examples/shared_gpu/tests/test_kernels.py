"""Twelve tests that say what memory they need: any eight of them at once need more than a card of 80 GiB has."""

from __future__ import annotations

import pytest
from shared_gpu import buffer

GIB = 2**30


def run(gib: float, device: str, seconds: float) -> None:
    with buffer(int(gib * GIB), device, seconds) as checksum:
        assert checksum == 1.0


@pytest.mark.gpus(memory="60GiB")
@pytest.mark.parametrize("layer", [0, 1])
def test_prefill(layer, gpu):
    run(58, gpu.device, 0.2)


@pytest.mark.gpus(memory="30GiB")
@pytest.mark.parametrize("experts", [8, 64, 128])
def test_mixture(experts, gpu):
    run(29, gpu.device, 0.2)


@pytest.mark.gpus(memory="12GiB")
@pytest.mark.parametrize("heads", [1, 8, 32, 40])
def test_decode(heads, gpu):
    run(11, gpu.device, 0.1)


@pytest.mark.gpus(memory="5GiB", exclusive=True)
def test_speed(gpu):
    """Figures mean something only where nobody else is at work."""
    run(4, gpu.device, 0.1)


@pytest.mark.gpus(memory="200GiB")
def test_whole_node(gpu):
    run(199, gpu.device, 0.1)


def test_shapes():
    """Needs no GPU, and waits for none."""
    assert divmod(4096, 128) == (32, 0)
