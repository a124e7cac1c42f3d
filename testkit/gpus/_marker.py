"""What a ``gpus`` marker asks for, and what a test gets: devices, a skip with the numbers, or a refusal by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from testkit._text import counted
from testkit.errors import GpusError
from testkit.gpus._devices import allowed, origin, share, visible

ARGUMENTS = ("count", "memory", "exclusive")
LATER = {"memory": None, "exclusive": False}
"""Arguments that are not available yet, with the value that asks for nothing."""


def shares(mark: Any, world_size: int) -> list[dict[str, str]]:
    """What to put into the environment of each of ``world_size`` processes, so that it sees its own ``count`` devices.

    ``mark``: the test's ``gpus`` marker. For use while a test is set up: too few devices skip the test, and a marker
    that cannot be used fails it.
    """
    import pytest

    try:
        count = wanted(mark.args, mark.kwargs)
    except GpusError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    devices = allowed()
    granted = [mine for rank in range(world_size) if (mine := share(rank, count, devices)) is not None]
    if len(granted) < world_size:
        text = f"needs {counted(count * world_size, 'GPU')}, found {len(devices)} {origin(os.environ)}"
        raise pytest.skip.Exception(text, _use_item_location=True)  # else all such skips are at this line of ours
    return [visible(mine) for mine in granted]


def wanted(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The number of devices that a marker with these arguments asks for.

    Raises ``GpusError`` for arguments that it does not have, and by name for those that are not available yet.
    """
    where = "from marker gpus"
    given = dict(zip(ARGUMENTS, args, strict=False))
    if len(args) > len(ARGUMENTS):
        raise GpusError(f"{len(args)} arguments are given", where, f"give {', '.join(ARGUMENTS)}")
    if twice := given.keys() & kwargs.keys():
        raise GpusError(f"{twice.pop()} is given twice", where, "give it once")
    given.update(kwargs)
    for name, value in given.items():
        if name not in ARGUMENTS:
            raise GpusError(f"there is no argument {name!r}", where, f"give {', '.join(ARGUMENTS)}")
        if name in LATER and value is not LATER[name]:
            raise GpusError(f"{name} is {value!r}, and {name} is not available yet", where, f"leave {name} out")
    count = given.get("count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise GpusError(f"count is {count!r}, not a whole number from 1 up", where, "give 1 or more")
    return count
