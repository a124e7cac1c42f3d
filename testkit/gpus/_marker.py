"""What a ``gpus`` marker asks for, and what a test gets: devices, a skip with the numbers, or a refusal by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from testkit import _settings
from testkit._text import counted
from testkit.errors import GpusError
from testkit.gpus._devices import allowed, origin, share, visible

if TYPE_CHECKING:  # most tests have no turn
    from testkit.gpus._turn import Turn

ARGUMENTS = ("count", "memory", "exclusive")
WHERE = "from marker gpus"
LEAST = 2**10
"""Bytes. Whoever asks for less has left out the unit."""

beyond: tuple[list[str], str] = ([], "")
"""In a pinned worker: the caller's devices outside of its part, and what the caller said. Ranks may have them."""

turn: Turn | None = None
"""What the running test was granted."""


@dataclass(frozen=True)
class Need:
    """What one process of a test needs: devices, bytes on each (None: not said), whether it has to be alone there."""

    count: int = 1
    memory: int | None = None
    exclusive: bool = False


@dataclass(frozen=True)
class Gpu:
    """What a test was granted: ``device`` as torch takes it (``cuda:0``), its ``index``, ``memory`` in bytes on each.

    ``memory`` is None where nobody knows what the test needs. ``devices``: all, for a marker with ``count``. In a test
    with ranks these are what each rank sees.
    """

    device: str
    index: int
    memory: int | None
    devices: tuple[str, ...]


def shares(mark: Any, world_size: int, *, here: bool = False) -> list[dict[str, str]]:
    """What to put into the environment of each of ``world_size`` processes, so that it sees its own ``count`` devices.

    ``mark``: the test's ``gpus`` marker. For use while a test is set up: too few devices skip the test, and a marker
    that cannot be used fails it. ``here``: the process is this one, and can have no more than it sees. Devices that the
    test was granted in the ledger come first.
    """
    import pytest

    try:
        count = wanted(mark.args, mark.kwargs).count
    except GpusError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    devices, said = within(here=here)
    if turn is not None:
        devices = [*turn.devices, *(device for device in devices if device not in turn.devices)]
    granted = [mine for rank in range(world_size) if (mine := share(rank, count, devices)) is not None]
    if len(granted) < world_size:
        text = f"needs {counted(count * world_size, 'GPU')}, found {len(devices)} {said}"
        missing(text)
    return [visible(mine) for mine in granted]


def missing(text: str) -> NoReturn:
    """Skip the test that is set up, for what the machine does not have."""
    import pytest

    raise pytest.skip.Exception(text, _use_item_location=True)  # else all such skips are at this line of ours


def within(*, here: bool) -> tuple[list[str], str]:
    """The devices that a test may have, and what says so; ``here``: in this process, which sees only its own part."""
    devices, said = allowed(), origin(os.environ)
    return (devices, said) if here or not beyond[0] else ([*devices, *beyond[0]], beyond[1])


def hold(pid: int) -> None:
    """The running test's grant is this process's too, a rank's or a server's: it comes back when all have ended.

    Nothing follows where no test runs that was granted memory, or if the process has ended already.
    """
    if turn is not None and turn.grant is not None:
        with suppress(GpusError):
            turn.grant.also(pid)


def wanted(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Need:
    """What a marker with these arguments asks for. Raises ``GpusError`` for arguments that it cannot have."""
    given = dict(zip(ARGUMENTS, args, strict=False))
    if len(args) > len(ARGUMENTS):
        raise GpusError(f"{len(args)} arguments are given", WHERE, f"give {', '.join(ARGUMENTS)}")
    if twice := given.keys() & kwargs.keys():
        raise GpusError(f"{twice.pop()} is given twice", WHERE, "give it once")
    given.update(kwargs)
    if strange := given.keys() - set(ARGUMENTS):
        raise GpusError(f"there is no argument {strange.pop()!r}", WHERE, f"give {', '.join(ARGUMENTS)}")
    count, memory, exclusive = given.get("count", 1), given.get("memory"), given.get("exclusive", False)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        fix = f"write memory={count!r}" if isinstance(count, str) and not count.isdecimal() else "give 1 or more"
        raise GpusError(f"count is {count!r}, not a whole number from 1 up", WHERE, fix)
    if not isinstance(exclusive, bool):
        raise GpusError(f"exclusive is {exclusive!r}", WHERE, "give True or False")
    return Need(count, None if memory is None else size(memory, WHERE), exclusive)


def size(raw: Any, source: str) -> int:
    """Bytes that a test needs, from ``2GiB`` or a number; raises ``GpusError`` for others, and for none."""
    memory = _settings.size(GpusError)(raw, source)
    if memory < LEAST:
        raise GpusError(f"a test cannot need {raw!r} ({memory} bytes)", source, "give what a test needs, such as 2GiB")
    return memory
