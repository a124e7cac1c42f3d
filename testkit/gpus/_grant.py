"""Who gets which memory: what a ledger keeps of each ticket and grant, and the rule by which tickets are served.

Pure functions over values: everybody who reads the same records comes to the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

Process = tuple[int, int]
"""A pid and its start time in clock ticks since boot: no other process has both."""


@dataclass(frozen=True)
class Record:
    """A ticket, or the grant that it became. Memory is in bytes, cards are keys of physical devices."""

    number: int
    """Its place in the queue; it keeps it when granted."""
    owner: str
    """Who asked, in words: a test's node id, say."""
    host: str
    """The boot of the machine and the pid namespace in which ``processes`` means something."""
    processes: tuple[Process, ...]
    """It lives while one of them does."""
    count: int
    memory: int
    """On each card; 0 only with ``exclusive``."""
    exclusive: bool
    totals: dict[str, int]
    """The cards it may have and what each holds in all, the caller's first choice first."""
    cards: tuple[str, ...] = ()
    """Granted: what it has. Waiting: what is kept free for it, once it has waited for long."""
    granted: bool = False
    others: tuple[tuple[str, int], ...] = ()
    """What was measured on each card beyond all grants when it last could have started, or did."""

    def takes(self, card: str) -> int:
        """Bytes of ``card`` that nobody else gets: all of an exclusive one."""
        return self.totals[card] if self.exclusive else self.memory


def written(record: Record) -> bytes:
    """One record as it lies in its file."""
    return json.dumps(asdict(record)).encode()


def parsed(data: bytes) -> Record | None:
    """``written`` read back; None for what is no record: anybody may put a file into the folder."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        value = json.loads(data)
        processes = tuple((_whole(pid), _whole(start)) for pid, start in value["processes"])
        totals = {str(card): _whole(size) for card, size in value["totals"].items()}
        cards = tuple(map(str, value["cards"]))
        others = tuple((str(card), _whole(size)) for card, size in value["others"])
        flags = value["exclusive"] is True, value["granted"] is True
        if processes and set(cards) <= totals.keys():
            number, count, memory = (_whole(value[name]) for name in ("number", "count", "memory"))
            owner, host = str(value["owner"]), str(value["host"])
            return Record(number, owner, host, processes, count, memory, flags[0], totals, cards, flags[1], others)
    return None


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError
    return value


def held(records: Iterable[Record]) -> dict[str, int]:
    """Bytes of each card that are granted."""
    sums: dict[str, int] = {}
    for record in records:
        if record.granted:
            for card in record.cards:
                sums[card] = sums.get(card, 0) + record.takes(card)
    return sums


def beyond(
    grants: Collection[Record], cards: Sequence[str], used: Sequence[int]
) -> tuple[dict[str, int], dict[str, int]]:
    """What is in use on each card beyond ``grants``: as measured, and as it is to be taken into account.

    A grant that is not used up yet hides what others use; what was measured when it was made does not. The measured
    figure alone is remembered: the other one would be handed on from grant to grant when the others are long gone.
    """
    ours = held(grants)
    measured = {card: max(0, size - ours.get(card, 0)) for card, size in zip(cards, used, strict=True)}
    remembered: dict[str, int] = {}
    for grant in grants:
        for card, size in grant.others:
            if card in grant.cards:
                remembered[card] = max(size, remembered.get(card, 0))
    counted = {
        card: max(measured[card], min(size, remembered.get(card, 0))) for card, size in zip(cards, used, strict=True)
    }
    return measured, counted


def starts(records: Mapping[str, Record], name: str) -> tuple[str, ...]:
    """The cards that ticket ``name`` may have now; empty if it has to wait.

    ``records``: all that live, by name. First come, first served, with two exceptions. A later ticket may start if it
    fits beside everything that runs: that keeps cards full while a large one waits. But for a ticket that has waited
    for long, cards are kept free (``cards``): what is free on them is its own first, so it waits for nothing but the
    grants of the time when it began to reserve, and tickets with lower numbers.
    """
    taken = held(records.values())
    for other in in_turn(records):
        ticket = records[other]
        fitting = _fitting(ticket, taken)
        if other == name:
            return fitting
        for card in {*fitting, *ticket.cards}:  # both: until it starts, it may still start on either
            taken[card] = taken.get(card, 0) + ticket.takes(card)
    return ()


def reserves(records: Mapping[str, Record], name: str) -> tuple[str, ...]:
    """The cards that should be kept free for ticket ``name``, which does not fit now: those with most room."""
    ticket = records[name]
    taken = held(records.values())
    for other in in_turn(records):
        if records[other].cards and other != name:
            for card in records[other].cards:
                taken[card] = taken.get(card, 0) + records[other].takes(card)
    others = dict(ticket.others)
    able = [card for card, total in ticket.totals.items() if total - others.get(card, 0) >= ticket.memory]
    if len(able) < ticket.count:  # somebody beside us has to go first, nobody knows when and where
        able = [card for card, total in ticket.totals.items() if total >= ticket.memory]
    return _roomiest(ticket, taken, able)


def in_turn(records: Mapping[str, Record]) -> list[str]:
    """The names of waiting tickets: first those for which cards are kept free, then the others, each in their order."""
    waiting = [name for name, record in records.items() if not record.granted]
    return sorted(waiting, key=lambda name: (not records[name].cards, records[name].number, name))


def _fitting(ticket: Record, taken: Mapping[str, int]) -> tuple[str, ...]:
    others = dict(ticket.others)
    fits = []
    for card, total in ticket.totals.items():
        room = total - taken.get(card, 0)
        # An exclusive ticket needs a card without any grant; what is measured there beside grants may stay.
        if room >= ticket.takes(card) and room - others.get(card, 0) >= ticket.memory:
            fits.append(card)
    return _roomiest(ticket, taken, fits) if len(fits) >= ticket.count else ()


def _roomiest(ticket: Record, taken: Mapping[str, int], cards: Collection[str]) -> tuple[str, ...]:
    """``count`` of ``cards``: tests that share a card slow each other down, so the emptiest."""
    others = dict(ticket.others)
    room = {card: ticket.totals[card] - taken.get(card, 0) - others.get(card, 0) for card in cards}
    return tuple(sorted(cards, key=lambda card: -room[card])[: ticket.count])
