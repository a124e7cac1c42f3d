"""AMD's cards as the kernel lists them, what ROCR_VISIBLE_DEVICES leaves of them, and what HIP takes of that.

The rules are those of the runtimes' sources: ROCR-Runtime's amd_filter_device.cpp and clr's rocdevice.cpp.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SYS = Path("/sys/class")


@dataclass(frozen=True)
class Card:
    """``uuid``: ``GPU-`` and 16 hexadecimal digits, or "" if it has none; ``minor``: N of its /dev/dri/renderDN."""

    uuid: str = ""
    minor: int = -1


def cards() -> list[Card]:
    """All cards that this process may use, in the order of the runtimes."""
    folder = SYS / "kfd" / "kfd" / "topology" / "nodes"
    found = []
    for node in sorted((name for name in _listed(folder) if name.isdigit()), key=int):
        with suppress(OSError, ValueError):  # nodes of cards that a container may not use cannot be read
            text = (folder / node / "properties").read_text()
            facts = {key: int(value) for key, value in (line.split() for line in text.splitlines())}
            if facts.get("simd_count", 0) > 0:
                number = facts.get("unique_id", 0)
                found.append(Card(f"GPU-{number:016x}" if number else "", facts.get("drm_render_minor", -1)))
    return found


def left(rocr: str | None) -> list[Card] | None:
    """The cards that ROCR_VISIBLE_DEVICES (None: not set) leaves, in its order; None if nothing can be counted.

    The list ends before the first entry that is invalid or repeats a card.
    """
    known = cards()
    if rocr is None:
        return known or None
    chosen: dict[int, Card] = {}
    for word in rocr.split(","):
        index = _index(word.strip(), known)
        if index is None or index in chosen:
            break
        chosen[index] = known[index] if known else Card()
    return list(chosen.values())


def _index(word: str, known: list[Card]) -> int | None:
    if word.upper().startswith("GPU-"):
        meant = [index for index, card in enumerate(known) if card.uuid.upper().startswith(word.upper())]
        return meant[0] if len(meant) == 1 else None
    try:
        index = int(word, 0)
    except ValueError:
        return None
    return index if index >= 0 and (not known or index < len(known)) else None


def chosen(text: str, left: list[Card] | None) -> list[str]:
    """The entries of HIP_VISIBLE_DEVICES that count: indices and UUIDs of ``left``, up to the first invalid one."""
    entries: dict[object, str] = {}
    for word in text.split(","):
        place = _place(word, left)
        if place is None:
            break
        entries.setdefault(place, word)  # one that is repeated counts once
    return list(entries.values())


def memory(devices: Sequence[str], left: list[Card] | None) -> list[list[int]] | None:
    """Bytes used and in all of each device, an entry of ``chosen``; None where one cannot be read."""
    figures = []
    for entry in devices:
        place = _place(entry, left)
        if not left or place is None:
            return None
        folder = SYS / "drm" / f"renderD{left[place].minor}" / "device"
        try:
            figures.append([int((folder / f"mem_info_vram_{what}").read_text()) for what in ("used", "total")])
        except (OSError, ValueError):
            return None
    return figures


def names(devices: Sequence[str], left: list[Card] | None) -> list[str] | None:
    """The model of each device, an entry of ``chosen``, as its driver calls it; None where one cannot be read."""
    found = []
    for entry in devices:
        place = _place(entry, left)
        if not left or place is None:
            return None
        try:
            found.append((SYS / "drm" / f"renderD{left[place].minor}" / "device" / "product_name").read_text().strip())
        except (OSError, ValueError):
            return None
    return found


def _place(word: str, left: list[Card] | None) -> int | None:
    if word.startswith("GPU-"):
        places = [place for place, card in enumerate(left or ()) if card.uuid.lower() == word.lower()]
        return places[0] if places else None
    index = int(word) if re.fullmatch(r"0|[1-9]\d*", word) else None
    return None if index is None or (left is not None and index >= len(left)) else index


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
