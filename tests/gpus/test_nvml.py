"""NVML through ctypes: over a stand-in for the library, and over the real one where it is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testkit.gpus import _devices, _nvml, total_memory, used_memory

GIB = 2**30
A, B = "GPU-3e3a55f8-682d-b506-9ad9-d1c595d6d2ad", "GPU-711b884d-bee4-73ee-8360-ea896c371efb"
MIG = "MIG-5f4b2c1a-8d3e-6f7a-b5c9-2e4d8a1f6c3b"

Plant = Callable[..., Any]
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

REAL = {name: getattr(_nvml, name) for name in ("_ask", "DRIVER", "WSL")}  # before a fixture replaces them


def test_memory_is_told_in_the_order_of_the_devices(nvidia: Plant) -> None:
    nvidia(A, B)
    assert used_memory(["1", "0"], PCI) == [1 * GIB, 0]
    assert total_memory(["1", "0"], PCI) == [10 * GIB] * 2


def test_uuids_may_be_abbreviated_though_nvml_takes_whole_ones(nvidia: Plant) -> None:
    nvidia(A, B)
    assert used_memory([B, "GPU-3E3A"], {}) == [1 * GIB, 0]


def test_an_instance_has_its_own_memory(nvidia: Plant) -> None:
    nvidia(A, split=(0,), mig=(MIG,))
    assert used_memory([MIG], {}) == [3 * GIB]
    assert total_memory([MIG], {}) == [5 * GIB]


def test_indices_of_cards_that_differ_are_told_apart_only_in_pci_order(nvidia: Plant) -> None:
    nvidia(A, B, names=["NVIDIA A10", "NVIDIA H200"])
    assert used_memory(["0"], {}) is None
    assert used_memory(["0"], {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) is None
    assert used_memory(["1"], PCI) == [1 * GIB]
    assert used_memory([B], {}) == [1 * GIB]


def test_indices_of_cards_that_are_alike_need_no_order(nvidia: Plant) -> None:
    nvidia(A, B)
    assert used_memory(["1"], {}) == [1 * GIB]


@pytest.mark.parametrize("device", ["2", "GPU-", "GPU-ffff", "MIG-ffff"])
def test_a_device_that_is_not_there_has_no_figures(nvidia: Plant, device: str) -> None:
    nvidia(A, B, mig=(MIG,))
    assert used_memory([device], {}) is None
    assert total_memory(["0", device], PCI) is None


def test_a_card_in_mig_mode_has_no_figures_of_its_own(nvidia: Plant) -> None:
    nvidia(A, B, split=(1,))
    assert used_memory(["0"], PCI) == [0]
    assert used_memory(["1"], PCI) is None
    assert used_memory([B], PCI) is None


def test_without_a_driver_nothing_is_known_and_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvml, "_ask", REAL["_ask"])
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("started a process"))
    assert _nvml.uuids() is None
    assert used_memory(["0"], {}) is None
    assert used_memory([], {}) == []


@pytest.mark.parametrize("function", ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetUUID"])
def test_a_library_that_refuses_says_nothing(nvidia: Plant, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    library = nvidia(A, B)
    monkeypatch.setattr(library, function, lambda *arguments: 9)
    assert _nvml.uuids() is None


@pytest.mark.parametrize("name", ["nvmlDeviceGetMigMode", "nvmlDeviceGetHandleByUUID"])
def test_a_library_without_a_newer_function_serves_for_the_rest(
    nvidia: Plant, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    library = nvidia(A, B, mig=(MIG,))
    monkeypatch.delattr(type(library), name)
    try:
        assert used_memory(["1"], PCI) == [1 * GIB]
    finally:
        monkeypatch.undo()


def test_every_session_ends_also_after_a_refusal(nvidia: Plant) -> None:
    library = nvidia(A, B)
    _nvml.uuids()
    used_memory(["0"], PCI)
    used_memory(["7"], PCI)
    assert library.sessions == 0


def test_the_cards_are_asked_for_once(nvidia: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(A, B)
    assert _nvml.uuids() == [A, B]
    monkeypatch.setattr(_nvml, "_ask", lambda *question: pytest.fail("asked again"))
    assert _nvml.uuids() == [A, B]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if a driver were there: the program that asks is started."""
    monkeypatch.setattr(_nvml, "_ask", REAL["_ask"])
    monkeypatch.setattr(_nvml, "DRIVER", tmp_path)


# One card of 10 GiB with 4 GiB in use, called by index only.
LIBRARY = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) { *card = (void *)0x7f0000000001; return index; }
int nvmlDeviceGetUUID(void *card, char *text, unsigned size) {
    if (card != (void *)0x7f0000000001 || size != 96) return 2;
    strcpy(text, "GPU-3e3a55f8");
    return 0;
}
int nvmlDeviceGetName(void *card, char *text, unsigned size) { strcpy(text, "NVIDIA H200"); return 0; }
int nvmlDeviceGetMemoryInfo(void *card, unsigned long long *figures) {
    figures[0] = 10ULL << 30; figures[1] = 6ULL << 30; figures[2] = 4ULL << 30;
    return card != (void *)0x7f0000000001;
}
"""


@pytest.mark.usefixtures("driver")
def test_a_compiled_library_is_asked_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = tmp_path / "nvml.c"
    source.write_text(LIBRARY)
    built = [compiler, "-shared", "-fPIC", "-w", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(built, check=True, timeout=60)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert _nvml.uuids() == ["GPU-3e3a55f8"]
    assert used_memory(["0"], {}) == [4 * GIB]
    assert total_memory(["GPU-3e"], PCI) == [10 * GIB]
    assert used_memory(["1"], {}) is None


@pytest.mark.usefixtures("driver")
def test_a_process_that_cannot_ask_or_takes_too_long_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvml, "__file__", "/nowhere/_nvml.py")
    assert _nvml.memory(["0"], pci_order=True) is None
    monkeypatch.setattr(_nvml, "LIMIT", 0.0)
    assert _nvml.memory(["0"], pci_order=True) is None
    monkeypatch.setattr(sys, "executable", "")
    assert _nvml.memory(["0"], pci_order=True) is None


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of this machine, with cards."""
    for name, place in REAL.items():
        monkeypatch.setattr(_nvml, name, place)
    _nvml.uuids.cache_clear()
    if not _nvml.uuids():
        pytest.skip("NVML sees no card on this machine")


@pytest.mark.usefixtures("real")
def test_the_real_library_tells_uuids_and_memory_that_fit_together() -> None:
    uuids = _nvml.uuids() or []
    assert all(uuid.startswith("GPU-") and len(uuid) == 40 for uuid in uuids)
    whole = total_memory(uuids)
    if whole is None:
        pytest.skip("a card of this machine is in MIG mode")
    assert total_memory([str(index) for index in range(len(uuids))], PCI) == whole
    assert all(0 < used < total for used, total in zip(used_memory(uuids) or (), whole, strict=True))


def test_what_the_driver_keeps_is_not_usable(nvidia: Plant) -> None:
    nvidia(A, B).reserved = GIB // 2
    assert _devices.usable_memory(["0", B], PCI) == [9 * GIB + GIB // 2] * 2
    assert _devices.usable_memory(["9"], PCI) is None


def test_an_older_library_does_not_tell_what_the_driver_keeps(nvidia: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    library = nvidia(A)
    monkeypatch.delattr(type(library), "nvmlDeviceGetMemoryInfo_v2", raising=False)
    assert _devices.usable_memory(["0"], PCI) == [10 * GIB]


def test_a_model_is_that_of_all_devices(nvidia: Plant) -> None:
    nvidia(A, B, names=["NVIDIA A10", "NVIDIA H200"])
    assert _devices.model(["0"], PCI) == "NVIDIA A10"
    assert _devices.model(["0", "1"], PCI) is None
    assert _devices.model([], PCI) is None


# A helper that goes on answering


PROGRAM = """
import json, os, sys
if sys.argv[1:] != ["serve"]:
    print("null")
    sys.exit()
for line in sys.stdin:
    question = json.loads(line)
    if question == ["end"]:
        break
    print(json.dumps([os.getpid(), *question]), flush=True)
"""


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_nvml.Helper]:
    """With a program in place of ours that answers with its pid and the question."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(_nvml, "__file__", str(program))
    helper = _nvml.Helper()
    yield helper
    helper.close()


def test_a_helper_answers_again_and_again(helper: _nvml.Helper) -> None:
    first, second = helper.ask(["memory", "0"]), helper.ask(["uuids"])
    assert first[1:] == ["memory", "0"]
    assert second[1:] == ["uuids"]
    assert first[0] == second[0]


def test_a_helper_that_ended_says_nothing_and_the_next_question_is_for_another(helper: _nvml.Helper) -> None:
    first = helper.ask(["uuids"])
    assert helper.ask(["end"]) is None
    assert helper.ask(["uuids"])[0] != first[0]


def test_a_helper_ends_with_the_one_who_asked(helper: _nvml.Helper) -> None:
    pid = helper.ask(["uuids"])[0]
    helper.close()
    assert not psutil.pid_exists(pid)


def test_questions_go_to_the_helper_while_there_is_one(
    helper: _nvml.Helper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_nvml, "_ask", REAL["_ask"])
    monkeypatch.setattr(_nvml, "DRIVER", tmp_path)
    _nvml.keep_asking()
    try:
        assert _nvml._ask("uuids")[1:] == ["uuids"]
        assert _nvml._helper is not None
        _nvml._helper.pid += 1  # as a forked child sees it
        assert _nvml._ask("uuids") is None, "a program that is asked once is not this one"
        _nvml._helper.pid -= 1
    finally:
        _nvml.stop_asking()
    assert _nvml._helper is None


def test_the_program_starts_nvml_once(nvidia: Plant) -> None:
    library = nvidia(A, B)
    questions = [json.dumps(["uuids"]), json.dumps(["memory", "pci", "1"])]
    answers = []
    for answer in _nvml.serve(library, questions):
        answers.append(json.loads(answer))
        assert library.sessions == 1
    assert answers == [[A, B], [[GIB, 10 * GIB]]]
    assert library.sessions == 0
