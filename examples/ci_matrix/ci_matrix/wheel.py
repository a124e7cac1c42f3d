"""The wheel in miniature: does it work in a job.

FAULTS are planted mistakes; the environment variable CI_MATRIX_FAULT activates one. Each needs two values together, as
a missing binary or a wrong driver does.
"""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "CI_MATRIX_FAULT"
FAULTS: dict[str, dict[str, str]] = {
    "no-wheel-for-3.14-on-cuda-12.4": {"image": "cuda-12.4", "python": "3.14"},
    "nightly-needs-a-newer-driver-than-l4-has": {"gpu": "l4", "torch": "nightly"},
    "rocm-wheel-built-for-2.9-alone": {"image": "rocm-6.4", "torch": "2.6"},
    "abi-flag-of-3.13-on-mi300x": {"gpu": "mi300x", "python": "3.13"},
    "cpu-wheel-of-2.9-lacks-3.11": {"image": "cpu", "python": "3.11"},
    "2.9-on-3.10-by-an-old-resolver": {"python": "3.10", "torch": "2.9"},
}


def active() -> str:
    """The name of the active fault, or ""."""
    name = os.environ.get(VARIABLE, "")
    if name and name not in FAULTS and name not in LINK_FAULTS:
        raise ValueError(f"{name} is no planted fault; these are: {', '.join([*FAULTS, *LINK_FAULTS])}")
    return name


def smoke(job: dict[str, Any]) -> str:
    """Install and import the wheel in a job; ImportError where the active fault sits."""
    broken = FAULTS.get(active())
    if broken and all(job.get(name) == value for name, value in broken.items()):
        raise ImportError(f"the wheel does not load: {active()}")
    return "loaded"


LINK_FAULTS = {"api-answers-with-another-strategy": "the page behind the link of dep is tp's"}
PAGES: dict[str, dict[str, Any]] = {
    "/org/moe-30b/hw/h100/dep.json": {
        "strategy": "dep",
        "args": ["--data-parallel-size=8", "--enable-expert-parallel"],
    },
}


def fetch(link: str) -> dict[str, Any]:
    """The API that serves recipes, in miniature: what is behind a link, as the API itself gave it."""
    page = dict(PAGES[link])
    if active() == "api-answers-with-another-strategy":
        page["strategy"] = "tp"
    return page


def command(recipe: dict[str, Any], variant: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """The command line that serves a variant by a strategy."""
    return [*recipe["args"], f"--dtype={variant['dtype']}", *settings["args"]]
