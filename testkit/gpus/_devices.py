"""The devices that the caller allowed, as entries of the variable that shows them; shares of them; their memory.

Asks the driver's management library and /proc and /sys, never CUDA or HIP: a test runner that has started those can
no longer fork, and holds memory on every card.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from testkit.errors import GpusError
from testkit.gpus import _amd, _nvml

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


def allowed(environ: Mapping[str, str] | None = None) -> list[str]:
    """The devices that ``environ`` (default: ours) allows, in its order, as entries for ``visible``.

    NVIDIA: CUDA_VISIBLE_DEVICES with indices, GPU and MIG UUIDs. AMD: HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES
    in its place, over what ROCR_VISIBLE_DEVICES left. Entries that the driver would not take are left out by its own
    rules, as far as the devices of the machine can be counted; where they cannot, the list is believed. Without a
    variable: all devices, "0" to "n-1"; none where none can be counted.
    """
    environ = os.environ if environ is None else environ
    if _is_amd(environ):
        left = _amd.left(environ.get(ROCR))
        return _everything(left) if (chosen := _hip(environ)) is None else _amd.chosen(chosen, left)
    cards = _nvidia_cards()
    return _everything(cards) if (text := environ.get(CUDA)) is None else _cuda(text, cards)


def visible(devices: Sequence[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variable that shows exactly ``devices``, entries of ``allowed(environ)``, to a child with ``environ``.

    CUDA_DEVICE_ORDER and ROCR_VISIBLE_DEVICES stay as they are: the entries count by them.
    """
    environ = os.environ if environ is None else environ
    # HIP takes an empty list for none given; -1 is no device to everybody.
    return {HIP if _is_amd(environ) else CUDA: ",".join(devices) or "-1"}


def share(rank: int, count: int, devices: Sequence[str]) -> list[str] | None:
    """The ``count`` devices of rank ``rank``: those after the shares of the ranks before it. None if too few are left.

    Raises ``GpusError`` for a negative rank and a count below 1.
    """
    if rank < 0 or count < 1:
        raise GpusError(f"rank {rank} cannot have {count} devices", "argument of share", "rank from 0, count from 1 up")
    mine = list(devices[rank * count : (rank + 1) * count])
    return mine if len(mine) == count else None


def used_memory(devices: Sequence[str], environ: Mapping[str, str] | None = None) -> list[int] | None:
    """Bytes in use on each of ``devices``, entries of ``allowed(environ)``, by whomever; None where one is unknown.

    What the driver keeps for itself counts as used.
    """
    figures = _memory(devices, os.environ if environ is None else environ)
    return None if figures is None else [used for used, _ in figures]


def total_memory(devices: Sequence[str], environ: Mapping[str, str] | None = None) -> list[int] | None:
    """Bytes that each of ``devices``, entries of ``allowed(environ)``, has; None where one is unknown."""
    figures = _memory(devices, os.environ if environ is None else environ)
    return None if figures is None else [total for _, total in figures]


def usable_memory(devices: Sequence[str], environ: Mapping[str, str] | None = None) -> list[int] | None:
    """As ``total_memory``, less what the driver keeps for itself, where it tells."""
    environ = os.environ if environ is None else environ
    total, reserved = total_memory(devices, environ), reserved_memory(devices, environ)
    return None if total is None else [most - kept for most, kept in zip(total, reserved, strict=True)]


def reserved_memory(devices: Sequence[str], environ: Mapping[str, str] | None = None) -> list[int]:
    """Bytes of each device that the driver keeps for itself; 0 where it does not tell."""
    environ = os.environ if environ is None else environ
    nothing = [0] * len(devices)
    if not devices or _is_amd(environ):
        return nothing
    return _nvml.reserved(devices, pci_order=environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID") or nothing


def model(devices: Sequence[str], environ: Mapping[str, str] | None = None) -> str | None:
    """What ``devices`` are, as ``NVIDIA H200``; None where that is not known, or they differ."""
    environ = os.environ if environ is None else environ
    if not devices or _is_amd(environ):
        names = _amd.names(devices, _amd.left(environ.get(ROCR))) if devices else None
    else:
        names = _nvml.names(devices, pci_order=environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID")
    return names[0] if names and len(set(names)) == 1 else None


def origin(environ: Mapping[str, str]) -> str:
    """What ``allowed(environ)`` went by: ``(CUDA_VISIBLE_DEVICES=0)``, or ``on this machine``."""
    names = (ROCR, HIP if HIP in environ else CUDA) if _is_amd(environ) else (CUDA,)
    spoke = [f"{name}={environ[name]}" for name in names if name in environ]
    return f"({' '.join(spoke)})" if spoke else "on this machine"


def _memory(devices: Sequence[str], environ: Mapping[str, str]) -> list[list[int]] | None:
    if not devices:
        return []
    if _is_amd(environ):
        return _amd.memory(devices, _amd.left(environ.get(ROCR)))
    return _nvml.memory(devices, pci_order=environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID")


def _is_amd(environ: Mapping[str, str]) -> bool:
    """Whose variable counts. Beside an NVIDIA card an AMD one is mostly the processor's own: it has to be asked for."""
    asked = CUDA not in environ and (HIP in environ or ROCR in environ)
    if _amd.cards():
        return asked or not _nvml.DRIVER.exists()
    return asked and not _nvml.DRIVER.exists()


def _hip(environ: Mapping[str, str]) -> str | None:
    return environ[HIP] if HIP in environ else environ.get(CUDA)


def _everything(cards: Sequence[object] | None) -> list[str]:
    return [str(index) for index in range(len(cards or ()))]


def _nvidia_cards() -> Sequence[str] | None:
    """UUIDs in the driver's order, "" where only the number is known; None if nothing can be counted."""
    uuids = _nvml.uuids()
    if uuids is not None:
        return uuids
    try:
        return [""] * len(os.listdir(_nvml.DRIVER / "gpus"))
    except OSError:
        return None


def _cuda(text: str, cards: Sequence[str] | None) -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES that count.

    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html: the list ends before
    the first invalid entry, and UUIDs may be abbreviated. Undocumented, and tried out with driver and cards: the kind
    of the first entry is that of all, digits at the beginning make an index, and with a repeated device there is none.
    """
    kind = text[:4] if text.startswith(("GPU-", "MIG-")) else ""
    entries: dict[str, str] = {}
    for word in text.split(","):
        entry, device = _uuid(word, kind, cards) if kind else _index(word, cards)
        if not device:
            break
        if device in entries:
            return []
        entries[device] = entry
    return list(entries.values())


def _uuid(word: str, kind: str, cards: Sequence[str] | None) -> tuple[str, str]:
    """The entry and the full UUID of the device that it means; "" for none or several."""
    if not word.startswith(kind):
        return word, ""
    if kind == "MIG-" or cards is None or "" in cards:
        return word, word
    meant = [uuid for uuid in cards if uuid.lower().startswith(word.lower())]
    return word, meant[0] if len(meant) == 1 else ""


def _index(word: str, cards: Sequence[str] | None) -> tuple[str, str]:
    digits = re.match(r"\s*\+?([0-9]{1,9})(?![0-9])", word)
    if digits is None or (cards is not None and int(digits[1]) >= len(cards)):
        return word, ""
    index = str(int(digits[1]))
    return index, index
