"""After a test: whether it took more than it was granted, who is to blame if memory ran out, and whether the process
can still use its device at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from testkit._text import counted
from testkit.gpus._devices import total_memory, used_memory
from testkit.gpus._grant import Record
from testkit.gpus._ledger import _size
from testkit.gpus._turn import Turn, cuda_in_use

SLACK = 1.02
"""A test may be above its budget by this factor: allocators take whole pages of 2 MiB and more."""

ROOM = 256 * 2**20
"""Bytes in use beyond all grants from which others are to blame."""

_SIZES = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@contextmanager
def held_to(turn: Turn | None, *, strictly: bool) -> Iterator[None]:
    """``strictly``: torch refuses what is beyond the turn's memory, so that no neighbour has to.

    Not where torch does not use CUDA yet: it would be started.
    """
    cuda = cuda_in_use()
    places = turn.places if cuda is not None and turn is not None and turn.memory is not None else []
    before: dict[int, float] = {}
    with suppress(Exception):  # what a test put in torch's place
        for place in places:
            if strictly and turn is not None and turn.memory is not None:
                total = int(cuda.get_device_properties(place).total_memory)
                read = getattr(cuda, "get_per_process_memory_fraction", None)  # of newer torch
                before[place] = read(place) if read is not None else 1.0
                cuda.set_per_process_memory_fraction(min(1.0, turn.memory / total), place)
    try:
        yield
    finally:
        for place, fraction in before.items():
            with suppress(Exception):
                cuda.set_per_process_memory_fraction(fraction, place)


def over(turn: Turn | None) -> str:
    """What a test took beyond its budget, with both figures; "" if it kept to it, or nobody can tell."""
    if turn is None or turn.memory is None:
        return ""
    peak = max((_peak(place) for place in turn.places), default=0)
    if peak <= turn.memory * SLACK:
        return ""
    return f"had {_size(peak)} of GPU memory at its peak, its budget is {_size(turn.memory)} (from {turn.source})"


def _peak(place: int) -> int:
    """Bytes: the most that this process's tensors took on a device since the test began."""
    cuda = cuda_in_use()
    with suppress(Exception):
        return 0 if cuda is None else int(cuda.max_memory_allocated(place))
    return 0


def insist(report: Any, error: BaseException | None) -> None:
    """A refusal of ours is a failure though the test is marked xfail: what it expects to fail did not run, or passed.

    Not after the test: a lost device may be what it expects.
    """
    ours = type(error).__name__ == "Failed" and str(error).startswith("gpus: ")
    if ours and report.when != "teardown" and hasattr(report, "wasxfail"):
        report.outcome = "failed"
        del report.wasxfail


def ran_out(error: BaseException) -> bool:
    """Whether it says that a device's memory was not enough: torch's own error, or a library's text."""
    if any(cls.__name__ in ("OutOfMemoryError", "CUDAOutOfMemoryError") for cls in type(error).__mro__):
        return True
    return isinstance(error, (RuntimeError, MemoryError)) and bool(
        re.search(r"(cuda|hip|gpu|device|cublas)\b.*out of memory|CUBLAS_STATUS_ALLOC_FAILED", str(error), re.I | re.S)
    )


def blame(error: BaseException, turn: Turn | None, devices: Sequence[str], grants: Iterable[tuple[str, Record]]) -> str:
    """Why memory ran out: a verdict, then figures for each device. ``grants``: all that are in the ledger now."""
    cuda = cuda_in_use()
    ours = os.getpid()
    neighbours = [(device, one) for device, one in grants if ours not in [pid for pid, _ in one.processes]]
    lines, verdicts = [], []
    for place, device in enumerate(devices):
        if turn is not None and device not in turn.devices:
            continue
        held = 0
        with suppress(Exception):
            held = int(cuda.memory_reserved(place)) if cuda is not None else 0
        beside = [one for name, one in neighbours if name == device]
        verdicts.append(_verdict(_tried(str(error)) + max(held, _peak(place)), turn, device, beside, held))
        lines += _figures(device, turn, held, beside)
    return "\n".join([f"gpus: out of memory: {verdicts[0] if verdicts else 'no device of this test is known'}", *lines])


def _verdict(wanted: int, turn: Turn | None, device: str, beside: Sequence[Record], held: int) -> str:
    budget = None if turn is None else turn.memory
    if budget is not None and wanted > budget * SLACK:
        return f"the test itself wanted {_size(wanted)}, its budget is {_size(budget)} (from {turn.source})"  # type: ignore[union-attr]  # it has a budget
    used, total = used_memory([device]), total_memory([device])
    if total is not None and wanted > total[0]:
        return f"the test itself wanted {_size(wanted)}, the card has {_size(total[0])}"
    beyond = 0 if used is None else used[0] - held - sum(one.memory for one in beside)
    unknown = [one for one in beside if one.memory <= 1]
    if budget is None and not beside and (used is None or total is None or beyond < ROOM):
        return "the test itself, which had the device alone and has no budget"
    if unknown:
        return f"tests without a budget ran beside it: {counted(len(unknown), 'neighbour')} of our own"
    if beyond >= ROOM:
        told = "a neighbour beyond its budget, or others" if beside else "others"
        return f"{told} on the card, with {_size(beyond)} in use that nobody was granted"
    if budget is None:
        return f"the test has no budget, and ran beside {counted(len(beside), 'neighbour')} of our own"
    return "fragmentation: what is free is in pieces, and nobody has more than was granted"


def _figures(device: str, turn: Turn | None, held: int, beside: Sequence[Record]) -> list[str]:
    used, total = used_memory([device]), total_memory([device])
    lines = []
    if used is not None and total is not None:
        lines.append(f"  GPU {device}: {_size(used[0])} of {_size(total[0])} in use now, {_size(held)} by this test")
    if turn is not None and turn.memory is not None:
        lines.append(f"  GPU {device}: {_size(turn.memory)} granted to this test (from {turn.source})")
    for one in beside:
        what = "an unknown part" if one.memory <= 1 else _size(one.memory)
        pids = ", ".join(str(pid) for pid, _ in one.processes)
        lines.append(f"  GPU {device}: {what} granted to {one.owner or 'nobody named'} (pid {pids})")
    return lines


def _tried(text: str) -> int:
    """The bytes that torch says it tried to allocate; 0 if it does not."""
    found = re.search(r"[Tt]ried to allocate ([0-9.]+) ?([KMG]?i?B)", text)
    return int(float(found[1]) * _SIZES.get(found[2].upper(), 1)) if found else 0


def lost() -> str:
    """Why this process can use no device any more: the error that each call of CUDA gives from now on; "" if it can.

    After an illegal memory access or a failed assertion on the device the context is gone, until the process ends.
    An error of one call alone is gone when it was read, so what counts is the second one. Waits for all kernels.
    """
    cuda = cuda_in_use()
    if cuda is None:
        return ""
    try:
        _synchronize(cuda)
    except RuntimeError as error:  # newer torch has a class of its own below it
        if "captur" in str(error):  # a graph that a test began and did not end
            return ""
        first = error
    except Exception:  # noqa: BLE001 - what a test put in torch's place
        return ""
    else:
        return ""
    try:
        _synchronize(cuda)
    except RuntimeError:
        return " ".join(str(first).split("\n")[0].split()) or type(first).__name__
    return ""


def _synchronize(cuda: Any) -> None:
    """On all devices that this process uses; on another one it would make a context."""
    current = cuda.current_device()
    for place in range(cuda.device_count()):
        if place == current or cuda.memory_reserved(place):
            cuda.synchronize(place)
