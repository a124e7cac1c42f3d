"""Machines to stand in for real ones: folders with their files, a printed loader cache, planted cards."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testkit.environment._read_nvml import answer
from testkit.environment._sources import Sources

GIB = 1 << 30

JAMMY = {
    "/etc/os-release": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nID=ubuntu\nVERSION_ID="22.04"\n',
    "/proc/sys/kernel/osrelease": "5.15.0-122-generic\n",
    "/proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\nprocessor\t: 1\n",
    "/proc/meminfo": "MemTotal:       790958364 kB\nMemFree: 1 kB\n",
    "/.dockerenv": "",
    "/proc/1/cgroup": "0::/\n",
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.39.0": "",
    "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5": "",
    "/usr/local/cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}',
}
LINKS = {
    "/lib/libibverbs.so.1": "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.39.0",
    "/lib/libnccl.so.2": "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5",
}
"""What the loader's cache has, and where it leads."""

PACKAGES = ("numpy-2.1.3", "torch-2.6.0+cu124", "triton-3.2.0", "Foo_Bar-1.0")
TORCH = "__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n"


def image(
    folder: Path,
    files: Mapping[str, str] = JAMMY,
    links: Mapping[str, str] = LINKS,
    packages: Sequence[str] = PACKAGES,
    torch: str = TORCH,
    environ: Mapping[str, str] | None = None,
    tools: Mapping[str, str] | None = None,
    libc: str = "glibc 2.35",
) -> Sources:
    """A machine below ``folder``; ``tools``: what a program prints, by the name of its file."""
    for path, text in files.items():
        put(folder, path, text)
    for link, target in links.items():
        at = folder / link.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(folder / target.lstrip("/"))
    site = folder / "site"
    for name in packages:
        (site / f"{name}.dist-info").mkdir(parents=True)
    if torch:
        put(site, "torch/version.py", torch)
    cache = "".join(f"\t{Path(link).name} (libc6,x86-64) => {link}\n" for link in links)
    printed = {"ldconfig": f"{len(links)} libs found in cache `/etc/ld.so.cache'\n{cache}", **(tools or {})}

    def run(command: Sequence[str]) -> str:
        return printed.get(Path(command[0] if command[-1] == "-p" else command[-1]).name, "")

    return Sources(folder, environ or {}, [str(site)], run, lambda name: None, lambda: libc, lambda: 96)


def put(folder: Path, path: str, text: str) -> None:
    at = folder / path.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(text)


class Nvml:
    """NVML's functions over planted cards: (UUID, model, GiB, capability, active links)."""

    def __init__(self, *cards: tuple[str, str, int, tuple[int, int], int]) -> None:
        self.cards, self.sessions = cards, 0

    def nvmlInit_v2(self) -> int:
        self.sessions += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.sessions -= 1
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: ctypes.c_uint) -> int:
        text.value = b"580.159.04"
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, number: Any) -> int:
        number._obj.value = 13010
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.cards)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = 100 + index.value
        return 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, text: Any, size: ctypes.c_uint) -> int:
        text.value = self._card(handle)[0].encode()
        return 0

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, text: Any, size: ctypes.c_uint) -> int:
        text.value = self._card(handle)[1].encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, figures: Any) -> int:
        figures._obj.total = self._card(handle)[2] * GIB
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: ctypes.c_void_p, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self._card(handle)[3]
        return 0

    def nvmlDeviceGetNvLinkState(self, handle: ctypes.c_void_p, link: ctypes.c_uint, active: Any) -> int:
        active._obj.value = 1
        return 0 if link.value < self._card(handle)[4] else 3

    def _card(self, handle: ctypes.c_void_p) -> tuple[str, str, int, tuple[int, int], int]:
        return self.cards[(handle.value or 0) - 100]


def with_nvidia(*cards: tuple[str, str, int, tuple[int, int], int]) -> dict[str, Any]:
    """Arguments of ``plant`` for a machine with these cards."""
    printed = json.dumps(answer(Nvml(*cards)))
    files = {**JAMMY, "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  x\n"}
    return {"files": files, "tools": {"_read_nvml.py": printed}}


H200 = ("GPU-3e3a55f8-682d-b506", "NVIDIA H200", 140, (9, 0), 18)
OTHER_H200 = ("GPU-711b884d-bee4-73ee", "NVIDIA H200", 140, (9, 0), 18)
A10 = ("GPU-a10a55f8-0000-0000", "NVIDIA A10", 22, (8, 6), 0)


def with_amd(*cards: tuple[int, str, int, int, int]) -> dict[str, Any]:
    """Arguments of ``plant`` for a machine with cards (id, model, GiB, gfx_target_version, XGMI links)."""
    nodes, drm = "/sys/class/kfd/kfd/topology/nodes", "/sys/class/drm"
    files = {**JAMMY, f"{nodes}/0/properties": "cpu_cores_count 96\nsimd_count 0\n"}
    files["/sys/module/amdgpu/version"] = "6.12.12\n"
    for number, (unique, model, gib, version, links) in enumerate(cards, 1):
        minor = 127 + number
        files[f"{nodes}/{number}/properties"] = (
            f"simd_count 1216\nunique_id {unique}\ngfx_target_version {version}\ndrm_render_minor {minor}\n"
        )
        files[f"{nodes}/{number}/io_links/0/properties"] = "type 2\n"
        for link in range(1, links + 1):
            files[f"{nodes}/{number}/io_links/{link}/properties"] = "type 11\n"
        files[f"{drm}/renderD{minor}/device/mem_info_vram_total"] = f"{gib * GIB}\n"
        files[f"{drm}/renderD{minor}/device/product_name"] = f"{model}\n"
    return {"files": files}


MI300X = (0xA1, "AMD Instinct MI300X", 192, 90402, 7)
W7900 = (0xB2, "AMD Radeon PRO W7900", 48, 110000, 0)
