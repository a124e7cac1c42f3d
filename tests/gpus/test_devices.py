"""Which devices the caller allowed, how a child is shown some of them, and whose share is which."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.errors import GpusError
from testkit.gpus import _amd, allowed, share, total_memory, used_memory, visible
from testkit.gpus._devices import origin

Plant = Callable[..., object]

GIB = 2**30
A, B = "GPU-3e3a55f8-682d-b506-9ad9-d1c595d6d2ad", "GPU-711b884d-bee4-73ee-8360-ea896c371efb"

# What the driver made of each value with two H200, A and B: the devices that cuDeviceGetCount and cuDeviceGetUuid
# reported in a fresh process each. A list that names a device twice makes cuInit fail: there is none.
SEEN_BY_CUDA = {
    "": [],
    "-1": [],
    "NoDevFiles": [],
    "0": ["0"],
    "1": ["1"],
    "1,0": ["1", "0"],
    "0,0": [],
    "1,0,1": [],
    "0,5,1": ["0"],
    "0,-1,1": ["0"],
    "5": [],
    "0,,1": ["0"],
    ",0": [],
    "0,": ["0"],
    " 0": ["0"],
    "0 ,1": ["0", "1"],
    "0, 1": ["0", "1"],
    "+1": ["1"],
    "01": ["1"],
    "1gpu,0": ["1", "0"],
    "gpu": [],
    "0x1": ["0"],
    "1.5": ["1"],
    "0;1": ["0"],
    "0 1": ["0"],
    "0,x,1": ["0"],
    A: [A],
    A[:10]: [A[:10]],
    "GPU-3E3A55": ["GPU-3E3A55"],
    A[4:]: [],
    f"{B},{A}": [B, A],
    f"1,{A}": ["1"],
    f"{B},0": [B],
    f"{A},{A}": [],
    f"{A[:10]},{A[:14]}": [],
    f"{A}, {B}": [A],
    "GPU-": [],
    "GPU-,1": [],
    f"{A},GPU-0000,{B}": [A],
    "GPU-0000": [],
    f" {A}": [],
}


@pytest.mark.parametrize("value", SEEN_BY_CUDA)
def test_a_list_is_read_as_the_driver_reads_it(nvidia: Plant, value: str) -> None:
    nvidia(A, B)
    assert allowed({"CUDA_VISIBLE_DEVICES": value}) == SEEN_BY_CUDA[value]


def test_without_a_variable_all_cards_are_allowed(nvidia: Plant) -> None:
    nvidia(A, B)
    assert allowed({}) == ["0", "1"]
    assert allowed({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ["0", "1"]


def test_without_a_card_and_without_a_variable_there_is_none() -> None:
    assert allowed({}) == []


def test_where_nothing_can_be_counted_the_list_is_believed() -> None:
    assert allowed({"CUDA_VISIBLE_DEVICES": "4,7,x,1"}) == ["4", "7"]
    assert allowed({"CUDA_VISIBLE_DEVICES": f"{A[:9]},{B}"}) == [A[:9], B]
    assert allowed({"CUDA_VISIBLE_DEVICES": "MIG-1a,MIG-2b"}) == ["MIG-1a", "MIG-2b"]


def test_a_driver_without_cards_allows_none(nvidia: Plant) -> None:
    nvidia()
    assert allowed({"CUDA_VISIBLE_DEVICES": "0"}) == []
    assert allowed({"CUDA_VISIBLE_DEVICES": A}) == []


def test_without_its_library_the_driver_is_counted_by_the_kernels_list(tmp_path: Path) -> None:
    for address in ("0000:00:06.0", "0000:00:07.0"):
        (tmp_path / "nvidia" / "gpus" / address).mkdir(parents=True)
    assert allowed({}) == ["0", "1"]
    assert allowed({"CUDA_VISIBLE_DEVICES": "1,2"}) == ["1"]
    assert allowed({"CUDA_VISIBLE_DEVICES": f"{A},{B}"}) == [A, B]


def test_instances_of_a_card_stay_in_their_order(nvidia: Plant) -> None:
    nvidia(A)
    environ = {"CUDA_VISIBLE_DEVICES": f"MIG-2b,MIG-{A}/1/0,GPU-3e"}
    assert allowed(environ) == ["MIG-2b", f"MIG-{A}/1/0"]


def test_our_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert allowed() == ["4", "7"]
    assert visible(["7"]) == {"CUDA_VISIBLE_DEVICES": "7"}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_neither_torch_nor_a_driver_library_nor_a_thread_comes_into_this_process() -> None:
    code = (
        "import os, sys; from testkit.gpus import allowed, used_memory; used_memory(allowed()); "
        "assert 'torch' not in sys.modules; "
        "assert not [line for line in open('/proc/self/maps') if 'nvidia' in line or 'libcuda' in line]; "
        "assert len(os.listdir('/proc/self/task')) == 1"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_child_is_shown_entries_of_the_callers_own_list() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "4,7", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    shown = visible(share(1, 1, allowed(environ)) or [], environ)
    assert shown == {"CUDA_VISIBLE_DEVICES": "7"}
    assert allowed({**environ, **shown}) == ["7"]


def test_a_child_without_a_share_is_shown_no_device() -> None:
    shown = visible([], {"CUDA_VISIBLE_DEVICES": "4,7"})
    assert allowed(shown) == []
    assert allowed(visible([], {"HIP_VISIBLE_DEVICES": "0"})) == []


def test_shares_follow_each_other_and_end_with_the_devices() -> None:
    devices = ["4", "7", "2", "3", "0"]
    assert [share(rank, 2, devices) for rank in range(3)] == [["4", "7"], ["2", "3"], None]
    assert share(4, 1, devices) == ["0"]
    assert share(5, 1, devices) is None


@pytest.mark.parametrize(("rank", "count"), [(-1, 1), (0, 0)])
def test_a_share_that_makes_no_sense_is_refused(rank: int, count: int) -> None:
    with pytest.raises(GpusError, match=f"rank {rank} cannot have {count} devices"):
        share(rank, count, ["0"])


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({}, "on this machine"),
        ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, "(CUDA_VISIBLE_DEVICES=0)"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "(CUDA_VISIBLE_DEVICES=)"),
        (
            {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "4,7"},
            "(ROCR_VISIBLE_DEVICES=4,7 HIP_VISIBLE_DEVICES=1)",
        ),
    ],
)
def test_the_variables_that_spoke_are_named(environ: dict[str, str], text: str) -> None:
    assert origin(environ) == text


IDS = (0xAAAA000000000001, 0xAAAB000000000002, 0)


@pytest.mark.parametrize(
    ("environ", "devices"),
    [
        ({}, ["0", "1", "2"]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, ["2", "0"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
        ({"HIP_VISIBLE_DEVICES": "0,3,1"}, ["0"]),
        ({"HIP_VISIBLE_DEVICES": "1,1,0"}, ["1", "0"]),
        ({"HIP_VISIBLE_DEVICES": "0, 1"}, ["0"]),
        ({"HIP_VISIBLE_DEVICES": "GPU-aaab000000000002,0"}, ["GPU-aaab000000000002", "0"]),
        ({"HIP_VISIBLE_DEVICES": "GPU-ffff000000000002"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0,2"}, ["0", "2"]),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, ["0", "1"]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "0x2, 1,9,0"}, ["0", "1"]),
        ({"ROCR_VISIBLE_DEVICES": "1,1,0"}, ["0"]),
        ({"ROCR_VISIBLE_DEVICES": "gpu-AAAB,0"}, ["0", "1"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-AAA,0"}, []),
        ({"ROCR_VISIBLE_DEVICES": "2,0", "HIP_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "1"}, []),
    ],
)
def test_on_amd_hip_counts_in_what_rocr_left(amd: Plant, environ: dict[str, str], devices: list[str]) -> None:
    amd(*IDS)
    assert allowed(environ) == devices


def test_on_amd_a_child_is_shown_devices_by_hips_variable(amd: Plant) -> None:
    amd(*IDS)
    environ = {"CUDA_VISIBLE_DEVICES": "1,2"}
    assert visible(["2"], environ) == {"HIP_VISIBLE_DEVICES": "2"}
    assert allowed({**environ, **visible(["2"], environ)}) == ["2"]
    assert allowed({**environ, **visible([], environ)}) == []


def test_on_amd_memory_is_read_from_the_card_that_an_entry_means(amd: Plant) -> None:
    amd(*IDS)
    assert used_memory(["0", "2"], {}) == [1 * GIB, 3 * GIB]
    assert total_memory(["0", "2"], {}) == [192 * GIB] * 2
    assert used_memory(["1", "0"], {"ROCR_VISIBLE_DEVICES": "2,1"}) == [2 * GIB, 3 * GIB]
    assert used_memory(["GPU-aaab000000000002"], {"HIP_VISIBLE_DEVICES": "0"}) == [2 * GIB]
    assert used_memory(["3"], {}) is None


def test_a_card_that_the_container_may_not_use_does_not_count(amd: Plant, tmp_path: Path) -> None:
    amd(*IDS)
    properties = tmp_path / "class" / "kfd" / "kfd" / "topology" / "nodes" / "1" / "properties"
    properties.unlink()  # the kernel refuses to read it; root reads everything else
    assert [card.minor for card in _amd.cards()] == [129, 130]


def test_an_amd_card_beside_an_nvidia_card_has_to_be_asked_for(nvidia: Plant, amd: Plant, tmp_path: Path) -> None:
    nvidia(A, B)
    amd(*IDS)
    (tmp_path / "nvidia").mkdir()
    assert allowed({}) == ["0", "1"]
    assert allowed({"HIP_VISIBLE_DEVICES": "2"}) == ["2"]
    assert allowed({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}) == ["1"]


def test_without_an_amd_card_their_variables_are_believed_only_where_nothing_else_is_known(tmp_path: Path) -> None:
    assert allowed({"HIP_VISIBLE_DEVICES": "4,7"}) == ["4", "7"]
    assert allowed({"ROCR_VISIBLE_DEVICES": "4,7"}) == ["0", "1"]
    assert visible(["1"], {"ROCR_VISIBLE_DEVICES": "4,7"}) == {"HIP_VISIBLE_DEVICES": "1"}
    (tmp_path / "nvidia").mkdir()
    assert allowed({"HIP_VISIBLE_DEVICES": "4,7"}) == []
