"""A test's turn: it waits until the machine's ledger grants it memory, and gives it back when it is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testkit._loaded import loaded
from testkit.errors import GpusError
from testkit.gpus import _ledger
from testkit.gpus._devices import allowed, reserved_memory, usable_memory, used_memory
from testkit.gpus._grant import Record
from testkit.gpus._ledger import Grant, Ledger
from testkit.gpus._marker import Need

CONTEXT = 768 * 2**20
"""Bytes that a process takes on a card beside its tensors as soon as it uses CUDA: the context, kernels, libraries. A
process without it asks for it too; that of others is measured."""

UNKNOWN = 1
"""Bytes, a token: what a test takes is not known, and exclusive ones must not run beside it."""

LONGEST, ALONE = 1800.0, 60.0
"""Seconds that a test waits at most; and where nothing is granted, and so nobody of ours will give anything back."""

CYCLES = 64 * 2**20
"""Bytes that a test has left in tensors from which a garbage collection is worth its time: cycles may hold them."""


@dataclass
class Turn:
    """What a test has. ``devices``: entries as of ``allowed()``, also beyond those that this process sees in a test
    with ranks. ``memory``: bytes on each, None where that is not known; ``waited``: seconds.
    """

    devices: list[str]
    memory: int | None
    source: str
    waited: float = 0.0
    grant: Grant | None = None
    before: int = 0  # bytes of tensors in this process when it began

    def told(self) -> dict[str, Any]:
        """For the record of the run."""
        return {"seconds": self.waited, "bytes": self.memory, "from": self.source, "devices": list(self.devices)}

    @property
    def places(self) -> list[int]:
        """Where the devices are among those that this process sees: ``cuda:N``."""
        seen = allowed()
        return [seen.index(device) for device in self.devices if device in seen]


@dataclass(frozen=True)
class _Cards:
    entries: dict[str, str]  # key -> entry
    usable: dict[str, int]
    reserved: dict[str, int]

    def in_use(self, keys: Sequence[str]) -> list[int] | None:
        """Bytes in use on the cards ``keys``, beside what the driver keeps, which nobody is granted either."""
        used = used_memory([self.entries[key] for key in keys])
        if used is None:
            return None
        return [max(0, size - self.reserved[key]) for key, size in zip(keys, used, strict=True)]


class Turns:
    """Gives the tests of this process their turns, one at a time."""

    def __init__(self, *, folder: Path | None = None, **options: Any) -> None:
        """``folder``: of the ledger, by default the machine's; ``options``: of each ``Ledger``."""
        self._folder, self._options = folder, options
        self._known: dict[tuple[str, ...], _Cards | None] = {}
        self._ledgers: dict[tuple[tuple[str, ...], bool], Ledger] = {}
        self._outlived: list[Turn] = []
        self.unread: list[str] = []
        """Devices whose memory cannot be read: what is on them is not waited for."""

    def wait(
        self,
        need: Need,
        source: str,
        owner: str,
        devices: Sequence[str],
        *,
        fresh: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Turn | None:
        """Wait until ``need`` of ``devices`` can be had; None where there is nothing to wait for.

        That is where too few devices are, which is said at the test's set-up, and where their memory cannot be read.
        ``fresh``: the devices are for processes that are still to start.
        Raises ``TooLarge`` for what they never had, ``Waited`` after too long, ``GpusError`` if there is no ledger.
        """
        if len(devices) < need.count or sys.platform == "win32":
            return None
        cards = self._cards(devices)
        if cards is None:
            if need.memory is not None or need.exclusive:
                self.unread += [device for device in devices if device not in self.unread]
            return None
        if kept := self._kept(need, devices):
            return Turn(kept.devices, need.memory, source, 0.0, kept.grant)
        asks = UNKNOWN if need.memory is None and not need.exclusive else need.memory or 0
        measured = need.memory is not None or need.exclusive
        room = sorted(cards.usable.values())[-need.count]
        if UNKNOWN < asks <= room:  # else it is refused, as it is
            asks = max(UNKNOWN, min(asks + CONTEXT if fresh or cuda_in_use() is None else asks - _live(devices), room))
        ledger = self._ledger(cards, measured)
        try:
            grant = ledger.acquire(
                need.count, asks, need.exclusive, owner=owner, timeout=LONGEST, alone=ALONE, sleep=sleep
            )
        except _ledger.TooLarge:
            raise
        except GpusError:
            if measured:
                raise
            return None  # a token is not worth a failure
        granted = [cards.entries[key] for key in grant.cards]
        turn = Turn(granted, need.memory, source, grant.waited, grant, _allocated())
        _count_anew(turn.places)
        return turn

    def end(self, turn: Turn) -> None:
        """The test is over, and torn down."""
        if turn.grant is None:
            return
        if turn.memory is not None:
            if _allocated() > turn.before + CYCLES:
                import gc

                gc.collect()
            _free_cached()
        turn.grant.release()
        if turn.grant.lives() and turn.grant not in [one.grant for one in self._outlived]:
            self._outlived.append(turn)  # a server of a wider scope, say

    def grants(self, devices: Sequence[str]) -> list[tuple[str, Record]]:
        """What is granted on ``devices`` now, by all runs and users: a device and the record, one for each pair."""
        cards = self._cards(devices)
        if cards is None:
            return []
        with suppress(GpusError):
            found = self._ledger(cards, False).grants()
            return [(cards.entries[key], one) for one in found for key in one.cards if key in cards.entries]
        return []

    def _kept(self, need: Need, devices: Sequence[str]) -> Turn | None:
        """The turn of an earlier test with the same need, if a server of that one still holds its grant.

        It is taken to be this test's server, too: who asked for the same again beside it could wait for itself.
        """
        self._outlived = [turn for turn in self._outlived if turn.grant is not None and turn.grant.lives()]
        for turn in self._outlived:
            same = turn.memory == need.memory and len(turn.devices) == need.count
            exclusive = turn.grant is not None and turn.grant.exclusive
            if same and need.exclusive == exclusive and set(turn.devices) <= set(devices):
                return turn
        return None

    def _ledger(self, cards: _Cards, measured: bool) -> Ledger:
        """The same one again: it remembers which grants have outlived their tests."""
        key = tuple(cards.usable), measured
        if key not in self._ledgers:
            probe = cards.in_use if measured else None
            self._ledgers[key] = Ledger(self._folder or _ledger.folder(), cards.usable, probe=probe, **self._options)
        return self._ledgers[key]

    def _cards(self, devices: Sequence[str]) -> _Cards | None:
        if tuple(devices) not in self._known:
            usable = usable_memory(devices)
            keys = _ledger.keys(devices)
            reserved = dict(zip(keys, reserved_memory(devices), strict=True))
            entries = dict(zip(keys, devices, strict=True))
            found = None if not usable else _Cards(entries, dict(zip(keys, usable, strict=True)), reserved)
            self._known[tuple(devices)] = found
        return self._known[tuple(devices)]


def cuda_in_use() -> Any:
    """``torch.cuda`` where this process uses it already, else None."""
    with suppress(Exception):  # what a test put in torch's place
        cuda: Any = getattr(loaded("torch"), "cuda", None)
        if cuda is not None and cuda.is_initialized():
            return cuda
    return None


def _allocated() -> int:
    """Bytes of this process's tensors on all devices."""
    cuda = cuda_in_use()
    with suppress(Exception):  # a context that was lost
        return 0 if cuda is None else sum(cuda.memory_allocated(device) for device in range(cuda.device_count()))
    return 0


def _live(devices: Sequence[str]) -> int:
    """Bytes that this process has on each of ``devices`` at least, in tensors of wider fixtures: they are measured, as
    others' are, and a test's budget has room for them. What torch only caches is given back first.
    """
    cuda = cuda_in_use()
    _free_cached()
    seen = allowed()
    with suppress(Exception):  # a context that was lost, or what a test put in torch's place
        return 0 if cuda is None else min(int(cuda.memory_reserved(seen.index(device))) for device in devices)
    return 0


def _count_anew(places: Sequence[int]) -> None:
    """Peaks are those of this test, its fixtures included."""
    cuda = cuda_in_use()
    with suppress(Exception):
        for place in places if cuda is not None else ():
            cuda.reset_peak_memory_stats(place)


def _free_cached() -> None:
    """Give back to the card what torch keeps of tensors that are gone."""
    cuda = cuda_in_use()
    with suppress(Exception):  # a context that was lost
        if cuda is not None:
            cuda.empty_cache()
