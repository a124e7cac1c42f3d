"""What belongs into the record of a run is said through a hook; without anybody who listens it goes nowhere."""

from __future__ import annotations

from typing import Any


def announce(config: Any, kind: str, nodeid: str, data: Any) -> None:
    """Say it to whoever records this run: ``kind`` is a word, ``nodeid`` the test or function, or ""."""
    hook = getattr(config.hook, "pytest_testkit_record", None)
    if hook is not None:
        hook(kind=kind, nodeid=nodeid, data=data)
