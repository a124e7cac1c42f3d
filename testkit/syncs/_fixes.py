"""What to write instead: a table from how the host came to wait to the way without a wait."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from dataclasses import dataclass

from testkit.syncs._seen import Seen

RACE = "a pinned buffer that is used again races with the copy still in flight: take a new one, or wait for its event"
STALL = "pin_memory() itself takes a lock of the driver and can stall for milliseconds: pin once, not in each step"


@dataclass(frozen=True)
class Template:
    """One row: which waits it is for, and what to do. The first row that fits speaks.

    ``kinds``: of ``_seen.KINDS``; ``operator``, ``detail`` and ``line`` are patterns, one of which is to be found in
    the operator, in what the observer adds, or in the source line. A row without the first two is for its whole kind.
    Of what is "unknown" the source line alone is looked at.
    """

    name: str
    kinds: tuple[str, ...]
    operator: str
    detail: str
    line: str
    advice: str
    pins: bool = False


# pytorch's linalg: the _ex forms return info instead of looking at it
CHECKED = (
    "the library's info is checked on the host: use the _ex form (torch.linalg.inv_ex, cholesky_ex, solve_ex) "
    "with check_errors=False, or do it before the loop"
)

# Sources: pull requests of vllm-project/vllm unless another repository is named.
TEMPLATES = (
    Template(  # #53491
        "gapped copy",
        ("gapped",),
        "",
        "",
        "",
        "the pinned tensor has gaps, or its elements another order than on the device: fill a pinned tensor that lies "
        "row by row (.contiguous() makes one that is not pinned), or copy the whole and slice or transpose it there",
        pins=True,
    ),
    Template(  # pytorch's notes on pinned buffers: a device-to-host copy needs an event before the host reads
        "pageable download",
        ("pageable",),
        "",
        "D2H",
        "",
        "the target is pageable, so the copy is staged and waited for: copy into a pinned tensor, "
        "and wait for an event before the host reads it",
        pins=True,
    ),
    Template(  # #45074 (67 to 101 ms a step), #54299, #54660, #54292
        "pageable upload",
        ("pageable",),
        "",
        "",
        "",
        "non_blocking=True does nothing for pageable memory: build the data in a pinned tensor, "
        "or use testkit.syncs.to_device(values, device)",
        pins=True,
    ),
    Template(  # #51458, #51738
        "list index",
        ("upload",),
        "",
        "list as index",
        r"\w\[\s*\[[^\]]*\]\s*\]",
        "the list becomes an index tensor and is copied each time: build the index once per device and keep it; "
        "to store, index_fill_(0, kept_index, value)",
    ),
    Template(  # #51458, #52369
        "host index",
        ("upload",),
        "",
        "index on the CPU|mask on the CPU",
        "",
        "a host tensor indexes a device tensor, so it is copied each time: "
        "keep index and table per device and index there",
    ),
    Template(  # #51458, #51738; on CUDA torch makes the number a host tensor and copies that
        "number stored",
        ("upload",),
        r"__setitem__|aten\.clamp|aten\.masked_fill",
        "value on the CPU",
        r"^[\w.]+\[[^\]]*\]\s*=[^=]",
        "a number from the host is copied for this: x[i].fill_(number), masked_fill_(mask, number), "
        "clamp(min=number) and index_fill_ with a kept index take it as an argument of the kernel",
    ),
    Template(  # #51458, #51738, #52369; sgl-project/sglang#29415 (8.5 ms a step)
        "built from Python values",
        ("upload",),
        r"torch\.(tensor|as_tensor|asarray|scalar_tensor)\b|new_tensor",
        "list|Python|scalar",
        r"\b(torch\.(tensor|as_tensor|asarray)|new_tensor)\(",
        "values that never change: build the tensor once per device and keep it; one number: torch.full or new_zeros; "
        "otherwise testkit.syncs.to_device(values, device), which builds it pinned and copies without a wait",
        pins=True,
    ),
    Template(  # #51738
        "blocking upload",
        ("upload",),
        "",
        "",
        r"\.cuda\(|\.to\(\s*(device|[\"']cuda|self\.device)",
        "pin the host tensor and add non_blocking=True (testkit.syncs.to_device does both); "
        "data that never changes: move it once per device and keep it",
        pins=True,
    ),
    Template(  # #51738
        "type of the host",
        ("download",),
        r"Tensor\.type\b",
        "",
        r"\.type\(\s*torch\.\w+Tensor\s*\)",
        "torch.BoolTensor and its like are types of the CPU, so this is a copy to the host: "
        "write .bool(), .float() or .to(dtype)",
    ),
    Template("errors read", ("read",), "linalg", "", "", CHECKED),
    Template(  # #51738
        "any or all",
        ("read",),
        r"aten\.(any|all|equal|allclose|is_nonzero)|torch\.(any|all|equal|allclose)\b",
        "",
        r"\b(if|while|not|bool)\b.*\.(any|all)\(|torch\.(any|all|equal|allclose)\(",
        "ask the host's own copy of the data, or leave the question out and let torch.where or a mask do both branches",
    ),
    Template(  # torch.where takes the value as it lies; the masked forms want a number
        "device value as argument",
        ("read",),
        "",
        "tensor as",
        "",
        "this argument is read as a number: torch.where(mask, value, x) takes a device tensor as it is; "
        "or pass the number that the host knows",
    ),
    Template(
        "range not given",
        ("read",),
        "",
        "no min and max",
        r"histc\(",
        "give min= and max=, or else both are looked for in the data and read",
    ),
    Template(
        "lengths on the device",
        ("read",),
        "",
        "lengths on the device",
        "",
        "pass the lengths as the host has them, as numbers or as a CPU tensor",
    ),
    Template(  # #51738 (a field for the exact maximum), #25884; only used in shapes: #52369, #52441
        "value read",
        ("read",),
        "",
        "",
        r"\.item\(\)|\b(int|float|bool)\(|\.max\(\)\]|\.tolist\(\)",
        "derive the number from what the host knows exactly (the lengths that the batch was built from) and "
        "pass it along; what only Python's arithmetic of shapes reads, keep on the CPU",
    ),
    Template(  # #52369, #52441
        "blocking download",
        ("download",),
        "",
        "",
        r"\.cpu\(\)|\.numpy\(\)|\.to\(\s*[\"']cpu",
        "keep on the CPU what the host reads, or use the values that it was built from; a result: copy it with "
        "non_blocking=True into a pinned tensor and wait for an event before reading",
        pins=True,
    ),
    Template(  # #52369
        "repeat_interleave",
        ("shape",),
        "repeat_interleave",
        "",
        r"repeat_interleave\(",
        "pass output_size=, which the host knows as the sum of the lengths",
    ),
    Template(
        "one_hot",
        ("shape",),
        "one_hot",
        "no num_classes",
        r"one_hot\(",
        "give num_classes=, or else the largest class is looked for and read",
    ),
    Template(  # pytorch/pytorch#62092
        "mask stored",
        ("shape",),
        r"index_put|__setitem__|masked_scatter",
        "",
        "",
        "the number of elements must be known: masked_fill_(mask, number), or "
        "torch.where(mask, values, x) with values of the full shape",
    ),
    Template(  # pytorch/pytorch#62092
        "mask index",
        ("shape",),
        r"aten\.index|__getitem__|masked_select",
        "",
        "",
        "the number of elements must be known: keep the full shape with torch.where or masked_fill, "
        "or gather a fixed number and carry the count along",
    ),
    Template(  # pytorch/pytorch#136415
        "nonzero",
        ("shape",),
        r"nonzero|argwhere|torch\.where|combinations",
        "",
        r"\.nonzero\(|torch\.where\([^,]*\)$|argwhere\(",
        "torch.nonzero_static(x, size=n) has a fixed size; or keep the mask and use torch.where",
    ),
    Template(  # the same idea as above: a size from the host
        "size from data",
        ("shape",),
        "",
        "",
        r"\bunique\w*\(|bincount\(",
        "the size of the result comes from the data: choose a fixed size (scatter_add_ into zeros counts without "
        "a wait), or do it once and keep it, or on the CPU",
    ),
    Template("checked on the host", ("library",), "", "", r"linalg\.", CHECKED),
    Template(
        "synchronize",
        ("synchronize",),
        "",
        "",
        r"\bsynchronize\(",
        "if only the device must wait, stream.wait_event(event) or stream.wait_stream(other) orders it without "
        "the host; if the host must, put it into allow(reason)",
    ),
)
"""Order matters: what is more special comes first."""

WARM_UP = Template(  # #44800 (first_only); #53641, #54817 (reasons)
    "unknown",
    (),
    "",
    "",
    "",
    "what happens once a process: warm it up before, or allow(reason, first_only=True); what must be: allow(reason)",
)


def template(seen: Seen, line: str = "") -> Template:
    """The row that fits ``seen``; ``line`` is the source line, which says what a lone aten operator does not."""
    for row in TEMPLATES:
        if seen.kind == "unknown":
            fits = _matches(row.line, line.strip())
        else:
            fits = seen.kind in row.kinds and (
                not (row.operator or row.detail)
                or _matches(row.operator, seen.operator)
                or _matches(row.detail, _facts(seen))
                or _matches(row.line, line.strip())
            )
        if fits:
            return row
    return WARM_UP


def _matches(pattern: str, text: str) -> bool:
    return bool(pattern) and re.search(pattern, text) is not None


def _facts(seen: Seen) -> str:
    return f"{seen.direction or ''} {seen.detail}"


def advice(seen: Seen, where: str = "") -> str:
    """What to write instead, in one or two sentences. ``where``: "file:line", whose source is read."""
    return template(seen, _source(where)).advice


def fix(seen: Seen, where: str = "") -> str:
    """``advice`` with the cautions, if it says to pin."""
    text = advice(seen, where)
    return "; ".join([text, *(f"caution: {caution}" for caution in cautions([text]))])


def cautions(advised: Iterable[str]) -> list[str]:
    """What whoever follows one of these must know: something if one says to pin, else nothing."""
    return [RACE, STALL] if not _PINNING.isdisjoint(advised) else []


_PINNING = {row.advice for row in TEMPLATES if row.pins}


def _source(where: str) -> str:
    path, _, line = where.rpartition(":")
    return linecache.getline(path, int(line)) if line.isdigit() else ""
