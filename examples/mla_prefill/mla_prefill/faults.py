"""Planted mistakes; the environment variable MLA_PREFILL_FAULT activates one."""

from __future__ import annotations

import os

VARIABLE = "MLA_PREFILL_FAULT"
FAULTS = {
    "diagonal-dropped": "from position 8 on a token does not see itself",
    "value-scale-lost": "values are quantised by their scale and not multiplied by it afterwards",
    "range-of-fnuz": "clamped to 240, the largest value of another kind of e4m3",
    "padding-multiplied": "padding is multiplied by 0, and 0 times a stale NaN is NaN",
    "stride-ignored": "rows of the output are taken to lie one directly after the other",
    "tail-not-reset": "tokens of the batch before stay behind those of a smaller one",
    "mask-through-host": "the mask is made of numbers that Python has read",
    "no-wait": "values are projected on a second stream that does not wait for what it reads",
    "reads-the-model": "the backend begins to read one more field of its configuration",
    "window-by-default": "the backend begins to read one more attribute, with a default",
}


def planted(fault: str) -> bool:
    active = os.environ.get(VARIABLE, "")
    if active and active not in FAULTS:
        raise ValueError(f"{active} is no planted fault; these are: {', '.join(FAULTS)}")
    return fault == active
