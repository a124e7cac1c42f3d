"""Accelerators: NVIDIA's through NVML, in a process of its own, AMD's as the kernel lists them; who is visible."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted_machines import A10, GIB, H200, MI300X, OTHER_H200, W7900, Nvml, with_amd, with_nvidia

from testkit.environment import Fact
from testkit.environment._read_gpus import NODES, gfx_name
from testkit.environment._read_nvml import answer
from testkit.environment._snapshot import take
from testkit.environment._sources import Sources

Plant = Callable[..., Sources]


def test_nvidia_cards_are_told_with_model_memory_arch_and_links(plant: Plant) -> None:
    facts = take(plant(**with_nvidia(H200, A10)))
    assert facts["gpus"] == Fact(
        [
            {"model": "NVIDIA H200", "memory": 140 * GIB, "arch": "sm90", "links": 18},
            {"model": "NVIDIA A10", "memory": 22 * GIB, "arch": "sm86", "links": 0},
        ],
        "NVML",
    )
    assert facts["driver"] == Fact("580.159.04", "NVML")
    assert facts["cuda_driver"].value == "13.1"


def test_amd_cards_are_told_by_the_kernel(plant: Plant) -> None:
    facts = take(plant(**with_amd(MI300X, W7900)))
    assert facts["gpus"] == Fact(
        [
            {"model": "AMD Instinct MI300X", "memory": 192 * GIB, "arch": "gfx942", "links": 7},
            {"model": "AMD Radeon PRO W7900", "memory": 48 * GIB, "arch": "gfx1100", "links": 0},
        ],
        NODES,
    )
    assert facts["driver"] == Fact("6.12.12", "/sys/module/amdgpu/version")
    assert facts["cuda_driver"].value is None


@pytest.mark.parametrize(
    ("version", "name"), [(90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110501, "gfx1151"), (0, None)]
)
def test_the_kernels_number_of_a_target_becomes_its_name(version: int, name: str | None) -> None:
    assert gfx_name(version) == name


@pytest.mark.parametrize(
    ("value", "models"),
    [
        ("0", ["NVIDIA H200"]),
        ("2,0", ["NVIDIA A10", "NVIDIA H200"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["NVIDIA H200"]),
        ("1,1", []),
        ("GPU-a10", ["NVIDIA A10"]),
        ("GPU-711b,GPU-3E3A", ["NVIDIA H200"] * 2),
        ("GPU-", []),
    ],
)
def test_cards_that_the_caller_hides_are_left_out(plant: Plant, value: str, models: list[str]) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": value}
    fact = take(plant(**with_nvidia(H200, OTHER_H200, A10), environ=environ))["gpus"]
    assert [card["model"] for card in fact.value] == models
    assert fact.how == f"NVML, CUDA_VISIBLE_DEVICES={value}"


def test_an_instance_of_a_card_is_not_taken_for_the_card(plant: Plant) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-5f4b2c1a"}
    fact = take(plant(**with_nvidia(H200), environ=environ))["gpus"]
    assert fact == Fact(None, "NVML, CUDA_VISIBLE_DEVICES=MIG-5f4b2c1a: instances are not read")


@pytest.mark.parametrize(
    ("environ", "models"),
    [
        ({"HIP_VISIBLE_DEVICES": "1"}, ["AMD Radeon PRO W7900"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["AMD Radeon PRO W7900"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["AMD Instinct MI300X"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ["AMD Radeon PRO W7900"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000b2"}, ["AMD Radeon PRO W7900"]),
    ],
)
def test_amds_variables_count_one_within_the_other(plant: Plant, environ: dict[str, str], models: list[str]) -> None:
    cards = take(plant(**with_amd(MI300X, W7900), environ=environ))["gpus"].value
    assert [card["model"] for card in cards] == models


def test_an_amd_card_beside_nvidias_is_left_to_itself(plant: Plant) -> None:
    both = with_nvidia(H200)
    both["files"] = {**with_amd(W7900)["files"], **both["files"]}
    assert [card["model"] for card in take(plant(**both))["gpus"].value] == ["NVIDIA H200"]


def test_a_driver_that_does_not_answer_leaves_the_cards_unknown(plant: Plant) -> None:
    silent = {**with_nvidia(H200), "tools": {}}
    facts = take(plant(**silent))
    assert facts["gpus"] == Fact(None, "NVML does not answer")
    assert facts["driver"] == Fact("580.159.04", "/proc/driver/nvidia/version")


def test_without_a_driver_no_process_is_started_for_one(plant: Plant) -> None:
    commands: list[Any] = []
    planted = plant()

    def run(command: Any) -> str:
        commands.append(command)
        return ""

    take(Sources(planted.root, {}, [], run))
    assert {command[-1] for command in commands} == {"-p"}


# NVML itself


@pytest.mark.parametrize("function", ["nvmlInit_v2", "nvmlSystemGetDriverVersion", "nvmlDeviceGetHandleByIndex_v2"])
def test_a_library_that_refuses_says_nothing_and_its_session_ends(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    library = Nvml(H200)
    monkeypatch.setattr(library, function, lambda *arguments: 9, raising=False)
    assert answer(library) is None
    assert library.sessions == 0


@pytest.mark.parametrize(
    ("function", "key", "value"),
    [
        ("nvmlDeviceGetName", "model", None),
        ("nvmlDeviceGetMemoryInfo", "memory", None),
        ("nvmlDeviceGetCudaComputeCapability", "arch", None),
        ("nvmlDeviceGetNvLinkState", "links", 0),
    ],
)
@pytest.mark.parametrize("missing", [False, True])
def test_what_a_card_or_an_old_library_does_not_know_is_absent_alone(
    monkeypatch: pytest.MonkeyPatch, function: str, key: str, value: object, missing: bool
) -> None:
    if missing:
        monkeypatch.delattr(Nvml, function)
    else:
        monkeypatch.setattr(Nvml, function, lambda *arguments: 3)
    said = answer(Nvml(H200, A10))
    assert said is not None
    assert [card[key] for card in said["cards"]] == [value, value]
    assert said["cards"][0]["uuid"] == H200[0]


# One card of 10 GiB with two links, which wants whole handles and sizes.
LIBRARY = """
#include <string.h>
#define CARD ((void *)0x7f0000000001)
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strcpy(text, "999.9"); return size != 96; }
int nvmlSystemGetCudaDriverVersion_v2(int *number) { *number = 12080; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) { *card = CARD; return index; }
int nvmlDeviceGetUUID(void *card, char *text, unsigned size) { strcpy(text, "GPU-1"); return card != CARD; }
int nvmlDeviceGetName(void *card, char *text, unsigned size) { strcpy(text, "NVIDIA H200"); return card != CARD; }
int nvmlDeviceGetCudaComputeCapability(void *card, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *card, unsigned long long *figures) { figures[0] = 10ULL << 30; return card != CARD; }
int nvmlDeviceGetNvLinkState(void *card, unsigned link, unsigned *active) { *active = 1; return link < 2 ? 0 : 2; }
"""


def test_a_compiled_library_is_asked_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = tmp_path / "nvml.c"
    source.write_text(LIBRARY)
    built = [compiler, "-shared", "-fPIC", "-w", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(built, check=True, timeout=60)
    (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    before = threading.active_count()
    sources = Sources(tmp_path, {}, [])
    assert sources.nvml == {
        "driver": "999.9",
        "cuda": "12.8",
        "cards": [{"uuid": "GPU-1", "model": "NVIDIA H200", "memory": 10 * GIB, "arch": "sm90", "links": 2}],
    }
    assert threading.active_count() == before


def test_a_library_that_cannot_be_loaded_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        assert Sources(tmp_path, {}, []).nvml is None
    else:
        pytest.skip("NVML is there")


def test_the_real_library_tells_cards_whose_figures_make_sense() -> None:
    said = Sources().nvml
    if not (said and said["cards"]):
        pytest.skip("NVML sees no card on this machine")
    for card in said["cards"]:
        assert card["model"]
        assert card["memory"] > GIB
        assert card["arch"].startswith("sm")
