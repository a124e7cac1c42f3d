"""What the machine is; each answer is found once in a process."""

from __future__ import annotations

from functools import cache

from sparse_indexer.faults import active


@cache
def arch() -> str:
    """The card's name as ROCm has it, with its features: ``gfx942:sramecc+:xnack-``; "" without a card of AMD's."""
    try:
        import torch
    except ImportError:
        return ""
    if torch.version.hip is None or not torch.cuda.is_available():
        return ""
    name: str = torch.cuda.get_device_properties(0).gcnArchName
    return name


def target() -> str:
    """``gfx942``."""
    return arch() if active("features-forgotten") else arch().partition(":")[0]
