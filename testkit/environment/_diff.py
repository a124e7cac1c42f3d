"""How two snapshots differ, and what of it matters to GPU tests: why, and from how large a change on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from testkit.environment._requirements import as_version, size_text
from testkit.environment._snapshot import READERS
from testkit.environment._sources import Fact

ANY = 0
MAJOR, MINOR = 1, 2

MATTERS: dict[str, tuple[int, str]] = {
    "os": (ANY, "other system libraries, compilers and defaults"),
    "os_version": (ANY, "other system libraries, compilers and defaults"),
    "kernel": (MINOR, "drivers and system calls come with it"),
    "machine": (ANY, "nothing that was compiled runs on both"),
    "glibc": (MINOR, "what was built with the newer one does not load with the older"),
    "container": (ANY, "/dev/shm, limits and devices are set by the engine"),
    "cpu": (ANY, "times cannot be compared; other instructions"),
    "cpus": (ANY, "times cannot be compared"),
    "python": (MINOR, "compiled extensions are for one minor version"),
    "python_implementation": (ANY, "compiled extensions are for one of them"),
    "torch": (MINOR, "compiled extensions are for one minor version; kernels and numerics change"),
    "torch_cuda": (MINOR, "other compiled kernels; it needs a driver that is new enough"),
    "torch_hip": (MINOR, "other compiled kernels; it needs a driver that is new enough"),
    "triton": (MINOR, "it generates other kernels"),
    "driver": (MAJOR, "it limits which CUDA or ROCm runs"),
    "cuda_driver": (MINOR, "it limits which CUDA runs"),
    "cuda_toolkit": (MINOR, "it compiles other kernels"),
    "rocm": (MINOR, "it compiles other kernels, and brings other libraries"),
    "cudnn": (MINOR, "other algorithms and numerics"),
    "nccl": (MINOR, "other algorithms and variables; all ranks need the same"),
    "rccl": (MINOR, "other algorithms and variables; all ranks need the same"),
    "rdma-core": (MAJOR, "drivers of network cards are in it, and must fit those of the host"),
    "ibverbs": (MINOR, "drivers of network cards load only into the interface that they were built for"),
    "gpus": (ANY, "other kernels are chosen; times and memory cannot be compared"),
    "variable": (ANY, "it changes what libraries do"),
}
"""By fact: how many numbers of a version are looked at, ANY for every difference; and why it matters."""


@dataclass(frozen=True)
class Difference:
    """``matters``: why; "" if it does not. ``name`` is that of the fact, ``variable NAME`` or ``package NAME``."""

    name: str
    before: Any
    after: Any
    matters: str


def differences(before: Mapping[str, Fact], after: Mapping[str, Fact]) -> list[Difference]:
    """All facts with different values, those that matter first, otherwise in the order of the snapshot.

    Variables and packages are compared one by one, and the digest of packages not besides. How something was read is
    not compared.
    """
    found = []
    names = list(dict.fromkeys([*READERS, *before, *after]))
    for name in names:
        old, new = (facts[name].value if name in facts else None for facts in (before, after))
        if name in ("variables", "packages"):
            found += _one_by_one(name[:-1], old or {}, new or {})
        elif old != new and name != "package_digest":
            found.append(Difference(name, old, new, _why(name, old, new)))
    return sorted(found, key=lambda one: not one.matters)


def _one_by_one(word: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            found.append(Difference(f"{word} {name}", old, new, _why(word, old, new)))
    return found


def _why(name: str, before: Any, after: Any) -> str:
    depth, why = MATTERS.get(name, (ANY, ""))
    if depth and before is not None and after is not None:
        versions = [as_version(str(value)) for value in (before, after)]
        numbers = [(*version.release, 0, 0)[:depth] if version else () for version in versions]
        if numbers[0] == numbers[1] != ():
            return ""
    return why


def as_markdown(found: list[Difference], names: tuple[str, str]) -> str:
    """Tables for a person or a step summary; ``names``: what the two snapshots are called."""
    matter = [one for one in found if one.matters]
    others = [one for one in found if not one.matters]
    lines = [f"{len(matter)} of {len(found)} differences matter" if found else "no difference"]
    columns = " | ".join(map(cell, names))
    if matter:
        lines += ["", f"| what matters | {columns} | why |", "|---|---|---|---|"]
        lines += [
            f"| {cell(one.name)} | {shown(one, one.before)} | {shown(one, one.after)} | {one.matters} |"
            for one in matter
        ]
    if others:
        lines += ["", f"| what else differs | {columns} |", "|---|---|---|"]
        lines += [f"| {cell(one.name)} | {shown(one, one.before)} | {shown(one, one.after)} |" for one in others]
    return "\n".join(lines)


def as_json(found: list[Difference]) -> str:
    return json.dumps({"differences": [asdict(one) for one in found]}, indent=2)


def shown(one: Difference, value: Any) -> str:
    return value_text(one.name, value)


def value_text(name: str, value: Any) -> str:
    """A fact's value in one cell."""
    if value is None:
        return "unknown" if name == "gpus" else "none"
    if name == "memory":
        return size_text(value)
    if name == "gpus":
        return cell(_cards(value))
    if isinstance(value, dict):
        return cell(", ".join(f"{key}={part}" for key, part in value.items()) or "none")
    return cell(str(value))


def _cards(cards: list[dict[str, Any]]) -> str:
    """``8 x NVIDIA H200, 139.8 GiB, sm90, 18 links``; unlike cards one after the other."""
    texts = []
    for card in cards:
        size = size_text(card["memory"]) if card["memory"] else None
        links = f"{card['links']} links" if card["links"] else None
        texts.append(", ".join(filter(None, [card["model"] or "unnamed", size, card["arch"], links])))
    return "; ".join(f"{texts.count(text)} x {text}" for text in dict.fromkeys(texts)) or "none"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
