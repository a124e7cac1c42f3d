"""FAULTS are planted mistakes; the environment variable SPARSE_INDEXER_FAULT activates one."""

from __future__ import annotations

import os

VARIABLE = "SPARSE_INDEXER_FAULT"
FAULTS = {
    "guard-loosened": "gfx1100 is opened for the whole library, which has one of its three ops there",
    "family-by-prefix": "what gfx1100 needs is asked of the beginning of the name, and gfx1201 comes with it",
    "features-forgotten": "a real card's name has its features behind it, and is compared whole",
    "import-on-top": "the library is imported where it is not installed",
    "fallback-renamed": "a portable op got another name, and the table still has the old one",
}


def active(name: str) -> bool:
    """Is this fault planted? Raises ValueError where the variable names none."""
    planted = os.environ.get(VARIABLE, "")
    if planted and planted not in FAULTS:
        raise ValueError(f"{planted} is no planted fault; these are: {', '.join(FAULTS)}")
    return planted == name
