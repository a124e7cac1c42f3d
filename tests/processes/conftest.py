"""What the tests of ranks share: nothing of theirs may outlive them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from testkit.processes import _leaks


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """No process, file in /dev/shm or folder of a group of ranks outlives a test."""
    before = _leaks.snapshot()
    yield
    assert not [process for process in psutil.process_iter() if _is_ours(process)]
    deadline = time.monotonic() + 5
    while (left := _left_in_memory(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not list(Path(tempfile.gettempdir()).glob(f"testkit-ranks-{os.getpid()}-*"))


def _left_in_memory(before: set[str]) -> set[str]:
    """New in /dev/shm and held by nobody: other tests on this machine have segments too, which come and go."""
    held = _leaks._held()
    return {name for name, inode in _leaks._there().items() if name not in before and inode not in held}


def _is_ours(process: psutil.Process) -> bool:
    """Does it run, and carry the tag of a group that this process started?"""
    try:
        tag = process.environ().get("TESTKIT_RUN_TAG", "")
        return tag.startswith(f"ranks-{os.getpid()}-") and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
