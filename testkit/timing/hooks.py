"""The hook through which anything may say what belongs into the run file."""

from __future__ import annotations

from typing import Any


def pytest_testkit_record(kind: str, nodeid: str, data: Any) -> None:
    """Keep ``data`` in the run file, if there is one.

    ``kind`` is a word such as ``"cleanup"``, ``nodeid`` the test that it belongs to, or "". Of ``data`` the file holds
    what JSON can hold, and text for everything else. Call it in the process in which it happened, worker or not.
    """
