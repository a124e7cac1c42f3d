"""Memory of a GPU: torch's where there is one, else a stand-in (80 GiB) that all processes of a run share.

The stand-in is a folder with a file for each buffer; what does not fit fails as it does on a card.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TOTAL = int(os.environ.get("SHARED_GPU_GIB", "80")) * 2**30
VARIABLE = "SHARED_GPU_STAND_IN"
"""The folder; workers of pytest-xdist inherit it."""


class OutOfMemoryError(RuntimeError):
    """As torch's."""


def stands_in() -> bool:
    """Whether this machine has no GPU, and the stand-in is used."""
    return not Path("/proc/driver/nvidia").exists()


def folder() -> Path:
    """The stand-in's, made by the first process of a run and removed by it."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="shared-gpu-")
        atexit.register(shutil.rmtree, os.environ[VARIABLE], ignore_errors=True)
    return Path(os.environ[VARIABLE])


def in_use() -> int:
    """Bytes of the stand-in that all processes together have."""
    total = 0
    for file in folder().glob("buffer-*"):
        with suppress(FileNotFoundError):  # given back meanwhile
            total += int(file.read_text() or 0)
    return total


@contextmanager
def buffer(size: int, device: str, seconds: float) -> Iterator[float]:
    """``size`` bytes on ``device``, worked on for ``seconds``; yields the checksum of what was written."""
    if not stands_in():
        import torch

        began = time.perf_counter()
        data = torch.ones(size // 4, dtype=torch.float32, device=device)
        while time.perf_counter() - began < seconds:
            data[: 2**20].mul_(1.0)
            torch.cuda.synchronize()
        yield float(data[-1])
        return
    file = folder() / f"buffer-{uuid.uuid4().hex}"
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        free = TOTAL - in_use()
        if size > free:
            tried, left = f"Tried to allocate {size / 2**30:.2f} GiB", f"{free / 2**30:.2f} GiB is free"
            raise OutOfMemoryError(
                f"CUDA out of memory. {tried}. GPU 0 has {TOTAL / 2**30:.2f} GiB in all, of which {left}"
            )
        file.write_text(str(size))
    try:
        time.sleep(seconds)
        yield 1.0
    finally:
        file.unlink()
