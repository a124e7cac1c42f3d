"""Accelerators: the cards that this process may use, and their driver. Neither CUDA nor HIP is started."""

from __future__ import annotations

import re
from typing import Any

from testkit.environment._sources import NVIDIA, Fact, Sources

NODES = "/sys/class/kfd/kfd/topology/nodes"
XGMI = 11
"""HSA_IOLINK_TYPE_XGMI of the kernel's kfd_topology.h: a link between AMD cards."""

Cards = list[dict[str, Any]]


def gpus(sources: Sources) -> Fact:
    """Model, memory (bytes), arch (``sm90``, ``gfx942``) and links (to other cards) of each card, in their order.

    Cards that CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES hide are left out.
    """
    cards, how = (sources.nvml["cards"], "NVML") if sources.nvml else (_amd(sources), NODES)
    if not cards and any(sources.at(path).exists() for path in NVIDIA):
        return Fact([] if sources.nvml else None, "NVML" if sources.nvml else "NVML does not answer")
    if not cards:
        return Fact([], "no NVIDIA driver, no card in /sys/class/kfd")
    for name in _hiding(sources):
        text = sources.environ[name]
        how += f", {name}={text}"
        if text.startswith("MIG-"):
            return Fact(None, f"{how}: instances are not read")
        cards = _shown(text, cards)
    return Fact([{key: value for key, value in card.items() if key != "uuid"} for card in cards], how)


def _hiding(sources: Sources) -> list[str]:
    """The variables that count, in their order; HIP takes CUDA's where its own is not set."""
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in sources.environ else "CUDA_VISIBLE_DEVICES"
    names = ("CUDA_VISIBLE_DEVICES",) if sources.nvml else ("ROCR_VISIBLE_DEVICES", hip)
    return [name for name in names if name in sources.environ]


def _shown(text: str, cards: Cards) -> Cards:
    """What a list of indices and UUIDs leaves of ``cards``: it ends before its first entry that names no card.

    With a repeated card CUDA shows none.
    """
    chosen: list[int] = []
    for word in (word.strip() for word in text.split(",")):
        fits = [
            index
            for index, card in enumerate(cards)
            if str(index) == word or (word.startswith("GPU-") and card["uuid"].lower().startswith(word.lower()))
        ]
        if len(fits) != 1:
            break
        if fits[0] in chosen:
            return []
        chosen += fits
    return [cards[index] for index in chosen]


def driver(sources: Sources) -> Fact:
    """The kernel driver's version."""
    nvml = sources.nvml
    if nvml:
        return Fact(nvml["driver"], "NVML")
    # "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ..."
    path = f"{NVIDIA[0]}/version"
    if found := re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)", sources.text(path), re.MULTILINE):
        return Fact(found[1], path)
    amd = "/sys/module/amdgpu/version"  # of a driver built outside the kernel; the kernel's own has its version
    return Fact(sources.text(amd) or None, amd)


def cuda_driver(sources: Sources) -> Fact:
    """The newest CUDA that the driver serves."""
    nvml = sources.nvml
    return Fact(nvml["cuda"] if nvml else None, "NVML")


def _amd(sources: Sources) -> Cards:
    """Cards as the kernel lists them, for the runtimes in the same order; processors' nodes have no SIMD units."""
    found = []
    for node in sources.listed(NODES):
        facts = _figures(sources.text(f"{NODES}/{node}/properties"))
        if facts.get("simd_count", 0) > 0:
            device = f"/sys/class/drm/renderD{facts.get('drm_render_minor', -1)}/device"
            memory = sources.text(f"{device}/mem_info_vram_total")
            found.append(
                {
                    "uuid": f"GPU-{facts.get('unique_id', 0):016x}",
                    "model": sources.text(f"{device}/product_name") or None,
                    "memory": int(memory) if memory.isdecimal() else None,
                    "arch": gfx_name(facts.get("gfx_target_version", 0)),
                    "links": _links(sources, node),
                }
            )
    return found


def _links(sources: Sources, node: str) -> int:
    folder = f"{NODES}/{node}/io_links"
    paths = [f"{folder}/{link}/properties" for link in sources.listed(folder)]
    return sum(_figures(sources.text(path)).get("type") == XGMI for path in paths)


def _figures(text: str) -> dict[str, int]:
    words = (line.split() for line in text.splitlines())
    return {key: int(value) for key, value in (pair for pair in words if len(pair) == 2) if value.isdecimal()}


def gfx_name(version: int) -> str | None:
    """``gfx90a`` for 90010: decimal pairs for major, minor and stepping, the last two a hexadecimal digit each."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None
