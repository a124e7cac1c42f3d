"""GPU memory before a server and after it: drivers give it back some time after the last process has ended."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping

from testkit.errors import KitWarning

SLACK = 256 * 2**20
"""Bytes above the figure of before that count as back."""
LIMIT = 10.0
"""Seconds that the memory has for coming back."""
LOOK_EVERY = 0.1


def used(environ: Mapping[str, str]) -> dict[str, int]:
    """Bytes in use on each GPU that ``environ`` allows; empty without one, or where nobody can read it."""
    from testkit.gpus import allowed, used_memory

    devices = allowed(environ)
    figures = used_memory(devices) if devices else None
    return dict(zip(devices, figures, strict=True)) if figures else {}


def shared_with(pid: int) -> None:
    """The running test's grant of GPU memory is this process's too, until it has ended."""
    from testkit.gpus import hold

    hold(pid)


def await_back(before: Mapping[str, int], where: str) -> None:
    """Wait until no GPU uses more than ``SLACK`` above ``before``; warns with the figures after ``LIMIT`` seconds.

    Whose memory it is cannot be told: another job's counts too.
    """
    if not before:
        return
    from testkit.gpus import used_memory

    deadline = time.monotonic() + LIMIT
    while True:
        figures = used_memory(list(before))
        if figures is None:
            told = "it cannot be read any more"
            break
        now = dict(zip(before, figures, strict=True))
        held = [device for device in before if now[device] > before[device] + SLACK]
        if not held:
            return
        if time.monotonic() >= deadline:
            told = ", ".join(f"GPU {d} uses {_mib(now[d])}, before the start {_mib(before[d])}" for d in held)
            break
        time.sleep(LOOK_EVERY)
    problem = f"processes: GPU memory is not back {LIMIT:g} s after the server ended: {told} ({where})"
    warnings.warn(
        f"{problem}\nnext: look for a process that it left, or for another job there", KitWarning, stacklevel=4
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
