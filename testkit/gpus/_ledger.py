"""The machine-wide ledger of GPU memory: whoever wants to start something asks for memory here first.

Runs and users of one machine share it through a folder. Nothing in it goes by the wall clock, and nothing has to be
tidied up after a crash: what a dead process had comes back when anybody looks next.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from testkit._evidence import Shown
from testkit._text import counted
from testkit.errors import GpusError
from testkit.gpus import _amd, _devices, _nvml
from testkit.gpus._grant import Process, Record, beyond, reserves, starts
from testkit.gpus._holder import VARIABLE, Folder, Machine, keep, let_go, opened

FOLDER = "/tmp/testkit-gpus"
"""Not tempfile's choice: TMPDIR may be each user's or job's own, and this has to be the same for all."""

PATIENCE = 10.0
"""Seconds that later tickets may pass a waiting one before cards are kept free for it. Without passing, 200 suites of
60 tests (5-60 GiB, 0.2-3 s, 8 workers, one card of 139 GiB) took 1.21 times their bound, with 10 s 1.13 times, and no
less with more."""

LOOK, LATER_LOOK, LATER = 0.02, 0.25, 30.0
"""Seconds between two looks of ``acquire``: at first, and after ``LATER`` seconds. Memory that came back lies idle
until somebody looks, and tests take tenths of a second."""

SEE = 1.0
"""Seconds between two looks for what is granted at all."""

MOST_WORDS = 1_000
"""Characters of an owner that are kept: a record that is too long would not be read."""

Probe = Callable[[Sequence[str]], "Sequence[int] | None"]
"""Bytes in use on each of these cards, by whomever; None where that is unknown."""


class TooLarge(GpusError):
    """A request that the cards could never meet, were they empty."""


class Waited(Shown, GpusError):
    """A request that was not met in time; ``evidence`` says who has the memory."""


def folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where the ledger of this machine lies: /tmp/testkit-gpus, or what TESTKIT_GPUS_LEDGER says."""
    return Path((os.environ if environ is None else environ).get(VARIABLE) or FOLDER)


def keys(devices: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """The physical device of each of ``devices``, entries of ``allowed(environ)``: its full UUID where that is known.

    However a run numbers its cards and whichever of them it sees, a card has one key.
    """
    environ = os.environ if environ is None else environ
    if _devices._is_amd(environ):
        left = _amd.left(environ.get(_devices.ROCR)) or []
        places = [_amd._place(entry, left) for entry in devices]
        cards = [_amd.Card() if place is None else left[place] for place in places]
        return [
            card.uuid or f"amd-{entry if card.minor < 0 else card.minor}"
            for card, entry in zip(cards, devices, strict=True)
        ]
    uuids = _nvml.uuids() or []
    found = []
    for entry in devices:
        if entry.isdigit():
            meant = uuids[int(entry) : int(entry) + 1]
        else:
            meant = [uuid for uuid in uuids if uuid.lower().startswith(entry.lower())]
        found.append(meant[0] if len(meant) == 1 and meant[0] else f"nvidia-{entry}" if entry.isdigit() else entry)
    return found


class Ledger:
    """Tickets and grants over some cards of this machine."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        devices: Mapping[str, int],
        *,
        probe: Probe | None = None,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
        machine: Machine | None = None,
    ) -> None:
        """``devices``: bytes in all of each card that may be used, by ``keys``, the first choice first.

        ``probe`` is asked before a grant: what is in use beyond all grants is not granted either. ``clock``: seconds;
        a jump of it changes who passes whom, never who has what. ``patience``: seconds.
        """
        if not devices or not all(devices.values()):
            raise GpusError(f"a ledger over {dict(devices)}", "argument devices", "give each card with its bytes")
        self.path = Path(folder)
        self.devices = dict(devices)
        self.probe = probe
        self.clock = clock
        self.patience = patience
        self.machine = machine or Machine()
        self._lingering: dict[str, int] = {}

    def ask(self, count: int = 1, memory: int = 0, exclusive: bool = False, *, owner: str = "") -> Ticket:
        """A place in the queue for ``memory`` bytes on each of ``count`` cards, all granted at once.

        ``exclusive``: nobody else is granted anything on these cards; ``memory`` may then be 0, and is only held
        against what is measured there. Ask for all that is needed in one ticket: who waits while it has something can
        wait for itself. Raises ``TooLarge`` for what could never be granted, ``GpusError`` for other arguments, and
        if the folder cannot be used.
        """
        if count < 1 or memory < 0 or not (memory or exclusive):
            raise GpusError(f"{memory} bytes on {counted(count, 'card')}", "arguments of ask", "ask for 1 or more")
        if sum(total >= memory for total in self.devices.values()) < count:
            sizes = ", ".join(map(_size, self.devices.values()))
            problem = f"needs {_size(memory)} on {counted(count, 'GPU')}, found {len(self.devices)} with {sizes}"
            raise TooLarge(problem, owner, "ask for less, or run it where there is more")
        machine = self.machine
        words = owner[:MOST_WORDS]
        record = Record(0, words, machine.host(), (machine.ours(),), count, memory, exclusive, self.devices)
        with self._looked() as (at, living):
            record = replace(record, number=1 + max((other.number for other in living.values()), default=0))
            name = f"{record.number:09d}-{secrets.token_hex(6)}"
            return Ticket(self, name, record, keep(at.write(name, record)))

    def acquire(
        self,
        count: int = 1,
        memory: int = 0,
        exclusive: bool = False,
        *,
        owner: str = "",
        timeout: float | None = None,
        alone: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Grant:
        """``ask``, and wait until it is granted.

        Raises ``Waited`` after ``timeout`` seconds, and where nothing has been granted on these cards for ``alone``
        seconds: what is in use there is that of others, who may never end. The ticket is then withdrawn, as it is if
        something interrupts.
        """
        ticket = self.ask(count, memory, exclusive, owner=owner)
        seen = busy = 0.0
        try:
            while True:
                if grant := ticket.poll():
                    return grant
                waited = ticket.waited()
                if alone is not None and waited >= seen + SEE:
                    seen = waited
                    busy = waited if any(set(one.cards) & set(self.devices) for one in self.grants()) else busy
                if (timeout is not None and waited >= timeout) or (alone is not None and waited >= busy + alone):
                    raise self._late(ticket, waited)
                sleep(LOOK if waited < LATER else LATER_LOOK)
        except BaseException:
            ticket.cancel()
            raise

    def grants(self) -> list[Record]:
        """What is granted now, to whom: owner, processes, cards and bytes; by all runs and users."""
        with self._looked() as (_, living):
            return [record for record in living.values() if record.granted]

    @contextmanager
    def _looked(self) -> Iterator[tuple[Folder, dict[str, Record]]]:
        """The folder under its lock, and what lives in it; tickets of stopped processes, which take nothing, aside."""
        with opened(self.path, self.machine) as at:
            living = at.living()
            for name in self._lingering.keys() - living.keys():
                let_go(self._lingering.pop(name))
            stopped = [name for name, one in living.items() if not one.granted and self.machine.stopped(one)]
            yield at, {name: living[name] for name in living.keys() - stopped}

    def _late(self, ticket: Ticket, waited: float) -> Waited:
        record = ticket.record
        what = "a whole card" if record.exclusive else _size(record.memory)
        lines = [line for grant in self.grants() for line in _lines(grant, self.devices)]
        lines += [f"  {card}: {_size(size)} in use beyond all grants" for card, size in record.others if size]
        problem = f"waited {waited:.1f} s for {what} on {record.count} of {counted(len(self.devices), 'GPU')}"
        fix = "wait longer, ask for less, or end what holds the memory"
        return Waited(problem, record.owner, fix, "\n".join(lines))


class Ticket:
    """A place in the queue, of the process that asked. Who no longer wants it must ``cancel``, for others wait."""

    def __init__(self, ledger: Ledger, name: str, record: Record, fd: int) -> None:
        self.record = record
        self._ledger = ledger
        self._name = name
        self._fd = fd
        self._pid = os.getpid()
        self._asked = ledger.clock()
        self._grant: Grant | None = None
        self._over = False

    def waited(self) -> float:
        """Seconds since it was asked for."""
        return max(0.0, self._ledger.clock() - self._asked)

    def poll(self) -> Grant | None:
        """The grant, if it is this ticket's turn and the memory is there."""
        if self._over:
            raise GpusError("a ticket was polled after it was withdrawn", self.record.owner, "ask for another")
        if self._grant is not None:
            return self._grant
        before: dict[str, Record] = {}
        used: Sequence[int] | None = None
        cards = list(self._ledger.devices)
        if self._ledger.probe is not None:
            with self._ledger._looked() as (at, living):
                before = living
                if not starts({**living, self._name: replace(self.record, others=())}, self._name):
                    self._wait(at, living, self.record)
                    return None
            used = self._ledger.probe(cards)  # takes its time; others must not wait for the lock meanwhile
        with self._ledger._looked() as (at, living):
            # One that came back meanwhile may have been measured still, and would be remembered as others' for as long
            # as this grant lasts.
            if any(record.granted and name not in living for name, record in before.items()):
                self._wait(at, living, self.record)
                return None
            # Grants that were there before and after it was measured: only their memory can explain what is in use.
            both = [record for name, record in before.items() if name in living and record.granted]
            measured, others = beyond(both, cards, used) if used is not None else ({}, {})
            record = replace(self.record, others=tuple(others.items()))
            chosen = starts({**living, self._name: record}, self._name)
            if not chosen:
                self._wait(at, living, record)
                return None
            self._write(at, replace(record, cards=chosen, granted=True, others=tuple(measured.items())))
        self._grant = Grant(self._ledger, self._name, self.record, self._fd, self.waited())
        return self._grant

    def cancel(self) -> None:
        """Give up the place in the queue, or the grant if there is one."""
        if self._grant is not None:
            self._grant.release()
        elif not self._over and self._pid == os.getpid():
            with self._ledger._looked() as (at, _):
                at.remove(self._name)
            let_go(self._fd)
        self._over = True

    def _wait(self, at: Folder, living: Mapping[str, Record], record: Record) -> None:
        """Leave in the ledger what others must know of a ticket that goes on waiting."""
        others = dict(record.others)
        blocked = any(record.totals[card] - others.get(card, 0) < record.memory for card in record.cards)
        if blocked or (not record.cards and self.waited() >= self._ledger.patience):
            record = replace(record, cards=reserves({**living, self._name: record}, self._name))
        if record != self.record or self._name not in living:  # whoever cleans /tmp may have removed it
            self._write(at, record)

    def _write(self, at: Folder, record: Record) -> None:
        fd = keep(at.write(self._name, record))
        let_go(self._fd)
        self._fd, self.record = fd, record


class Grant:
    """Memory on some cards, until ``release``, or until its processes have ended; of the process that asked."""

    def __init__(self, ledger: Ledger, name: str, record: Record, fd: int, waited: float) -> None:
        self.cards = record.cards
        """Keys of the cards."""
        self.memory = record.memory
        """Bytes on each card; with ``exclusive`` what was asked for, which may be 0."""
        self.exclusive = record.exclusive
        self.waited = waited
        """Seconds from the question to the grant."""
        self._ledger = ledger
        self._name = name
        self._record = record
        self._pid = os.getpid()
        self._fd = fd
        self._over = False
        self._left: list[Process] = []

    def __enter__(self) -> Grant:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def also(self, pid: int) -> None:
        """The grant is this process's too, a rank's or a server's: it comes back when all have ended.

        Raises ``GpusError`` for a process that has ended, and for a grant that nobody holds any more.
        """
        process = self._ledger.machine.process(pid)
        if process is None or not self.lives():
            why = "it does not run" if process is None else "the grant is released"
            raise GpusError(f"process {pid} cannot share a grant: {why}", "argument of also", "give a running process")
        if not self._over:
            ours, *others = self._record.processes  # a record with all that a test ever started would not be read
            self._rewrite((ours, *(one for one in others if self._ledger.machine.process(one[0]) == one), process))
            return
        self._left.append(process)
        self._rewrite(self._left)
        self._ledger._lingering[self._name] = self._fd

    def release(self) -> None:
        """Give the memory back, unless what ``also`` named still runs. Again, or in a forked child, it does nothing."""
        if self._over or self._pid != os.getpid():
            return
        self._left = [one for one in self._record.processes[1:] if self._ledger.machine.process(one[0]) == one]
        if self._left:
            self._rewrite(self._left)
            self._ledger._lingering[self._name] = self._fd  # who cannot see these processes goes by our lock
        else:
            with self._ledger._looked() as (at, _):
                at.remove(self._name)
            let_go(self._fd)
        self._over = True

    def lives(self) -> bool:
        """Whether it is held: before ``release`` by us, after it by what ``also`` named."""
        self._left = [one for one in self._left if self._ledger.machine.process(one[0]) == one]
        return not self._over or bool(self._left)

    def _rewrite(self, processes: Iterable[tuple[int, int]]) -> None:
        record = replace(self._record, processes=tuple(processes))
        with self._ledger._looked() as (at, _):
            fd = keep(at.write(self._name, record))
        let_go(self._fd)
        self._fd, self._record = fd, record


def _lines(grant: Record, devices: Mapping[str, int]) -> list[str]:
    who = f"{grant.owner or 'nobody named'} (pid {', '.join(str(pid) for pid, _ in grant.processes)})"
    return [f"  {card}: {_size(grant.takes(card))} of {who}" for card in grant.cards if card in devices]


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
