"""Requirements: what can be written, what is refused, and which machine meets them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planted_machines import A10, H200, MI300X, OTHER_H200, W7900, with_amd, with_nvidia

from testkit.environment import Fact
from testkit.environment._requirements import KINDS, OPERATORS, as_version, parse, size_text, unmet
from testkit.environment._snapshot import READERS, take
from testkit.environment._sources import Sources
from testkit.errors import MachineError

Plant = Callable[..., Sources]


def missing(text: str, facts: dict[str, Fact]) -> str:
    return unmet(parse(text), facts)


@pytest.mark.parametrize(
    "text",
    [
        "kernel>=5.15",
        "kernel >= 5.15.0",
        "kernel<6",
        "kernel==5.15.*",
        "kernel!=5.15.1",
        "glibc>=2.35",
        "glibc==2.35",
        "rdma-core>=39",
        "rdma-core<50",
        "ibverbs==1.14",
        "nccl>=2.21",
        "nccl>2.21.4",
        "torch>=2.6",
        "torch==2.6.0",
        "torch<2.7",
        "torch_cuda>=12.4",
        "triton>=3.2",
        "cuda_toolkit>=12.4",
        "os==ubuntu",
        "os == Ubuntu",
        "os in (debian, ubuntu)",
        "os_version>=22.04",
        "os_version in (20.04, 22.04)",
        "container!=podman",
        "cpus>=96",
        "cpus in (64, 96)",
        "memory>=512GiB",
        "memory<1TiB",
        "gpus==0",
    ],
)
def test_a_machine_that_has_it_meets_the_requirement(plant: Plant, text: str) -> None:
    assert missing(text, take(plant())) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kernel>=6.8", "needs kernel>=6.8, found 5.15.0-122-generic (/proc/sys/kernel/osrelease)"),
        ("kernel  >=  6.8 ", "needs kernel>=6.8, found 5.15.0-122-generic (/proc/sys/kernel/osrelease)"),
        ("torch>2.6.0", "needs torch>2.6.0, found 2.6.0+cu124"),
        ("torch>=2.10", "needs torch>=2.10, found 2.6.0+cu124"),
        ("rdma-core>=50", "needs rdma-core>=50, found 39.0"),
        ("cudnn>=9", "needs cudnn>=9, found none"),
        ("cudnn!=9", "needs cudnn!=9, found none"),
        ("os in (debian, fedora)", "needs os in (debian, fedora), found ubuntu"),
        ("os_version in (24.04, 2)", "needs os_version in (24.04, 2), found 22.04"),
        ("container!=docker", "needs container!=docker, found docker"),
        ("memory>=1TiB", "needs memory>=1TiB, found 754.3 GiB (MemTotal in /proc/meminfo)"),
        ("gpus>=2", "needs gpus>=2, found 0 (no NVIDIA driver, no card in /sys/class/kfd)"),
        ("gpu_arch in (gfx950, sm90)", "needs gpu_arch in (gfx950, sm90), found no GPU (no NVIDIA driver"),
    ],
)
def test_what_a_machine_lacks_is_said_with_what_it_has(plant: Plant, text: str, said: str) -> None:
    assert missing(text, take(plant())).startswith(said)


def test_versions_are_compared_by_their_numbers_and_development_versions_come_first(plant: Plant) -> None:
    nightly = take(plant(torch="__version__ = '2.10.0.dev20261101+cu130'\n"))
    assert missing("torch>=2.9", nightly) == ""
    assert missing("torch>=2.10", nightly) != ""
    assert missing("torch>=2.10.dev0", nightly) == ""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("5.15.0-122-generic", "5.15.0"),
        ("6.18.44-fc-v669", "6.18.44"),
        ("2.13.0a0+gitcf30153", "2.13.0a0+gitcf30153"),
        ("580.159.04", "580.159.4"),
        ("6.4.1-83", "6.4.1"),
        ("3.14.0rc2+", "3.14.0rc2"),
    ],
)
def test_as_much_of_a_text_counts_as_is_a_version(text: str, version: str) -> None:
    assert str(as_version(text)) == version


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_version_or_none(text: str) -> None:
    as_version(text)


NVIDIA: dict[str, Any] = with_nvidia(H200, OTHER_H200)
MIXED: dict[str, Any] = with_nvidia(H200, A10)
AMD: dict[str, Any] = with_amd(MI300X)


@pytest.mark.parametrize(
    ("machine", "text", "found"),
    [
        (NVIDIA, "gpus>=2", ""),
        (NVIDIA, "gpus>=3", "2"),
        (NVIDIA, "gpu_memory>=140GiB", ""),
        (NVIDIA, "gpu_memory>140GiB", "140 GiB"),
        (NVIDIA, "gpu_arch in (gfx950, sm90)", ""),
        (NVIDIA, "gpu_arch in (gfx950, SM90)", ""),
        (NVIDIA, "gpu_arch==sm100", "sm90"),
        (NVIDIA, "gpu_capability>=9", ""),
        (NVIDIA, "gpu_capability>=10.0", "9.0"),
        (NVIDIA, "gpu_links>=18", ""),
        (NVIDIA, "gpu_model in (NVIDIA H100, NVIDIA H200)", ""),
        (NVIDIA, "driver>=580", ""),
        (NVIDIA, "cuda_driver>=13.0", ""),
        (MIXED, "gpu_arch in (sm90, sm100)", "sm90, sm86"),
        (MIXED, "gpu_memory>=40GiB", "140 GiB, 22 GiB"),
        (MIXED, "gpu_capability>=8.0", ""),
        (AMD, "gpu_arch in (gfx942, gfx950)", ""),
        (AMD, "gpu_capability>=9.0", "unknown"),
        (with_amd(W7900), "gpu_arch in (gfx942, gfx950)", "gfx1100"),
        ({**NVIDIA, "tools": {}}, "gpus>=1", "unknown"),
        ({**NVIDIA, "environ": {"CUDA_VISIBLE_DEVICES": "1"}}, "gpus>=2", "1"),
        ({**MIXED, "environ": {"CUDA_VISIBLE_DEVICES": "0"}}, "gpu_arch==sm90", ""),
    ],
)
def test_requirements_of_cards_speak_of_every_visible_card(
    plant: Plant, machine: dict[str, Any], text: str, found: str
) -> None:
    said = missing(text, take(plant(**machine)))
    assert (f"needs {text}, found {found} (" in said) if found else not said


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("", "'' is no requirement", 'write it as "kernel>=6.8"'),
        ("kernel", "'kernel' is no requirement", "write it as"),
        ("kernel>=", "'kernel>=' is no requirement", "write it as"),
        (">=6.8", "'>=6.8' is no requirement", "write it as"),
        ("kernel=>6.8", "'kernel=>6.8' is no requirement", "write it as"),
        ("kernel=6.8", "'kernel=6.8' is no requirement", "write it as"),
        ("kernel>=6.8, gpus>=2", "6.8, gpus>=2 is no version", "give them apart"),
        ("rdma_core>=50", "'rdma_core>=50': nothing is called rdma_core", "did you mean rdma-core?"),
        ("kernal>=6", "nothing is called kernal", "did you mean kernel?"),
        ("Kernel>=6", "nothing is called Kernel", "did you mean kernel?"),
        ("cuda>=12", "nothing is called cuda", "did you mean torch_cuda, cuda_driver, cuda_toolkit?"),
        ("zzz>=1", "nothing is called zzz", "known are: os, os_version, kernel"),
        ("variables>=1", "nothing is called variables", "known are"),
        ("kernel>=new", "'kernel>=new': new is no version", "write it as 6.8, 2.27.3 or ==3.11.*"),
        ("kernel>=6.*", "6.* is no version", "write it as"),
        ("kernel in (new)", "new is no version", "write it as"),
        ("gpus>=two", "'gpus>=two': two is no whole number", "write it as 2"),
        ("gpus>=1.5", "1.5 is no whole number", "write it as 2"),
        ("gpu_memory>=40", "'gpu_memory>=40': 40 is no size", "write it as 40GiB or 512MiB"),
        ("gpu_memory>=40GB", "40GB is no size", "write it as 40GiB or 512MiB"),
        ("gpu_memory in (40GiB)", "sizes are not listed", "use >= or <="),
        ("os==debian and cpus>=2", "'os==debian and cpus>=2' holds two requirements", "give them apart"),
        ("gpu_arch==sm90 or gpu_arch==gfx950", "holds two requirements", "gpu_arch in (sm90, gfx950)"),
        ("kernel>=3.10 and python>=3.10", "holds two requirements", "give them apart"),
        ("os=='debian'", "'debian' is no word", "without quotes"),
        ("gpu_arch>=sm90", "'gpu_arch>=sm90': words have no order", "use ==, != or in (a, b)"),
        ("gpu_arch in ()", "'gpu_arch in ()' lists nothing", "write it as gpu_arch in (a, b)"),
        ("gpu_arch in (,)", "lists nothing", "write it as"),
        ("gpu_arch in sm90", "is no requirement", "write it as"),
    ],
)
def test_what_is_no_requirement_is_refused_with_advice(text: str, problem: str, fix: str) -> None:
    with pytest.raises(MachineError, match=re.escape(problem)) as refused:
        parse(text)
    assert refused.value.headline.endswith("(from marker requires_machine)")
    assert fix in refused.value.fix


def test_everything_that_can_be_required_is_in_the_snapshot() -> None:
    in_cards = {"gpu_model", "gpu_memory", "gpu_arch", "gpu_links", "gpu_capability"}
    assert {name for name in KINDS if name not in READERS} == in_cards
    assert set(READERS) - set(KINDS) == {"variables", "packages", "package_digest"}


@given(st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(OPERATORS)), st.integers(0, 99))
def test_what_is_read_of_a_requirement_is_what_it_says(name: str, op: str, number: int) -> None:
    value = {"size": f"{number}GiB", "number": str(number), "version": f"{number}.1", "word": f"w{number}"}[KINDS[name]]
    if KINDS[name] == "word" and op not in ("==", "!="):
        return
    requirement = parse(f" {name} {op} {value} ")
    assert (requirement.name, requirement.op, requirement.text) == (name, op, f"{name}{op}{value}")


def test_a_machine_without_proc_meets_nothing_and_says_so(plant: Plant) -> None:
    facts = take(plant(files={}, links={}, packages=(), torch="", libc=""))
    for text in ("kernel>=1", "glibc>=1", "memory>=1KiB", "os==ubuntu", "torch>=0", "driver>=1", "rccl>=1"):
        assert "found none (" in missing(text, facts)


@pytest.mark.parametrize(
    ("size", "text"), [(140 << 30, "140 GiB"), (3 << 19, "1.5 MiB"), (1 << 40, "1 TiB"), (512, "0.5 KiB")]
)
def test_sizes_are_shown_in_the_unit_in_which_they_are_written(size: int, text: str) -> None:
    assert size_text(size) == text
