"""Machines to stand in for the one that the tests run on: their cards are planted, their own are not seen."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit.gpus import _amd, _nvml

GIB = 2**30


class StandIn:
    """NVML's functions over planted cards. ``mig``: UUIDs of instances, by what the card's place is."""

    def __init__(self, uuids: list[str], names: list[str], split: tuple[int, ...], mig: tuple[str, ...]) -> None:
        self.uuids, self.names, self.split, self.mig = uuids, names, split, mig
        self.sessions = 0
        self.reserved = 0
        """Bytes that the driver keeps for itself on each card; NVML's first version counts them as used."""

    def nvmlInit_v2(self) -> int:
        self.sessions += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.sessions -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.uuids)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = 100 + index.value
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid.decode() not in self.mig:
            return 6
        handle._obj.value = 200 + self.mig.index(uuid.decode())
        return 0

    def nvmlDeviceGetUUID(self, card: ctypes.c_void_p, text: Any, size: ctypes.c_uint) -> int:
        text.value = self.uuids[(card.value or 0) - 100].encode()
        return 0

    def nvmlDeviceGetName(self, card: ctypes.c_void_p, text: Any, size: ctypes.c_uint) -> int:
        text.value = self.names[(card.value or 0) - 100].encode()
        return 0

    def nvmlDeviceGetMigMode(self, card: ctypes.c_void_p, now: Any, later: Any) -> int:
        now._obj.value = int((card.value or 0) - 100 in self.split)
        return 0

    def nvmlDeviceGetMemoryInfo(self, card: ctypes.c_void_p, figures: Any) -> int:
        """Card n of 10 GiB uses n GiB; an instance of 5 GiB uses 3 GiB."""
        place = (card.value or 0) - 100
        figures._obj.total, figures._obj.used = (5 * GIB, 3 * GIB) if place >= 100 else (10 * GIB, place * GIB)
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, card: ctypes.c_void_p, figures: Any) -> int:
        if figures._obj.version != ctypes.sizeof(figures._obj) | 2 << 24:
            return 25
        figures._obj.reserved = self.reserved
        return 0


@pytest.fixture(autouse=True)
def _no_card_of_this_machine_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_nvml, "_ask", lambda *question: None)
    monkeypatch.setattr(_nvml, "DRIVER", tmp_path / "nvidia")
    monkeypatch.setattr(_nvml, "WSL", tmp_path / "dxg")
    monkeypatch.setattr(_amd, "SYS", tmp_path / "class")
    _nvml.uuids.cache_clear()
    yield
    _nvml.uuids.cache_clear()


@pytest.fixture(autouse=True)
def _the_ledger_of_this_machine_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTKIT_GPUS_LEDGER", str(tmp_path / "ledger"))


Nvidia = Callable[..., StandIn]


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch) -> Nvidia:
    """Plant NVIDIA cards with these UUIDs, all of one name if no names are given."""

    def plant(
        *uuids: str, names: list[str] | None = None, split: tuple[int, ...] = (), mig: tuple[str, ...] = ()
    ) -> StandIn:
        library = StandIn(list(uuids), names or ["NVIDIA H200"] * len(uuids), split, mig)
        monkeypatch.setattr(_nvml, "_ask", lambda *question: _nvml.answer(library, question))
        _nvml.uuids.cache_clear()
        return library

    return plant


Amd = Callable[..., None]


@pytest.fixture
def amd(tmp_path: Path) -> Amd:
    """Plant AMD cards with these unique ids behind a processor's node, as the kernel lists them."""

    def plant(*ids: int) -> None:
        nodes = tmp_path / "class" / "kfd" / "kfd" / "topology" / "nodes"
        for number, unique in enumerate([None, *ids]):
            node = nodes / str(number)
            node.mkdir(parents=True)
            if unique is None:
                (node / "properties").write_text("cpu_cores_count 96\nsimd_count 0\n")
                continue
            minor = 127 + number
            text = f"cpu_cores_count 0\nsimd_count 1216\nunique_id {unique}\ndrm_render_minor {minor}\n"
            (node / "properties").write_text(text)
            device = tmp_path / "class" / "drm" / f"renderD{minor}" / "device"
            device.mkdir(parents=True)
            (device / "mem_info_vram_used").write_text(f"{number * GIB}\n")
            (device / "mem_info_vram_total").write_text(f"{192 * GIB}\n")

    return plant
