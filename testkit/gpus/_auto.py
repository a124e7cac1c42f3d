"""How many workers ``-n auto`` is where tests use GPUs, and why."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testkit._text import counted
from testkit.gpus._devices import total_memory, used_memory


@dataclass(frozen=True)
class Auto:
    """``slots``: a device for each worker that there is room for; all of them first come once, then again."""

    count: int
    slots: list[str]
    why: str


def workers(devices: Sequence[str], cores: int, memory: int | None, environ: Mapping[str, str] | None = None) -> Auto:
    """A number of workers from 1 to ``cores`` for tests that take ``memory`` bytes each (None: not known).

    With memory: as many as fit into what is free now, device by device. Without, or where the devices' memory cannot
    be read: one a device, since more could run each other out of memory.
    """
    environ = os.environ if environ is None else environ
    processors, cards = counted(cores, "core"), counted(len(devices), "GPU")
    if memory is None:
        count = min(len(devices), cores)
        return Auto(count, list(devices), f"{cards}, one worker each without --gpus-default-memory; {processors}")
    used, total = used_memory(devices, environ), total_memory(devices, environ)
    if used is None or total is None:
        count = min(len(devices), cores)
        return Auto(count, list(devices), f"{cards}, one worker each, whose memory cannot be read; {processors}")
    room = [max(0, most - taken) // memory for taken, most in zip(used, total, strict=True)]
    each = f"{memory / 2**30:.1f} GiB a test"
    if not any(room):
        return Auto(1, list(devices), f"no GPU of {len(devices)} has room for {each}")
    # No further than there are cores: a small memory would make millions.
    rounds = range(min(max(room), cores))
    slots = [device for turn in rounds for device, times in zip(devices, room, strict=True) if times > turn]
    why = f"{cards} with room for {sum(room):,} at {each}; {processors}"
    return Auto(min(len(slots), cores), slots, why)
