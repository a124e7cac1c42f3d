"""Whether ``forbid`` and ``allow`` do anything: not while switched off, and not under ``torch.compile``."""

from __future__ import annotations

import os
import sys

from testkit.errors import SyncsError

VARIABLE = "TESTKIT_SYNCS"


def _wanted() -> bool:
    word = os.environ.get(VARIABLE, "")
    if word not in ("", "on", "off"):
        raise SyncsError(f"{VARIABLE} is {word!r}", "the environment", "use on or off, or unset it")
    return word != "off"


off = not _wanted()


def switch(on: bool) -> bool:
    """Switch ``forbid`` and ``allow`` on or off in this process, from their next entry on; returns what it was.

    What is decorated while off stays without a guard; what was decorated before asks at each call.
    """
    global off
    was, off = not off, not on
    return was


def compiling() -> bool:
    """Whether ``torch.compile`` traces the caller: nothing may be read or entered then, or a full graph breaks."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "compiler") and torch.compiler.is_compiling()
