"""The ledger: who is granted memory, in which order, what comes back, and what is refused; over planted cards."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from testkit.errors import GpusError
from testkit.gpus import _holder
from testkit.gpus._grant import Record, parsed, written
from testkit.gpus._holder import Machine
from testkit.gpus._ledger import Grant, Ledger, Ticket, TooLarge, Waited, folder, keys

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="holders are told apart by /proc")

GIB = 2**30
A, B = "GPU-3e3a55f8-682d-b506-9ad9-d1c595d6d2ad", "GPU-711b884d-bee4-73ee-8360-ea896c371efb"


class Clock:
    """Seconds that pass when a test says so; ``sleep`` lets them pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Planted(Machine):
    """Processes that live while they are listed. ``me`` is the one that asks."""

    def __init__(self) -> None:
        self.me = (1, 1)
        self.alive = {self.me}

    def host(self) -> str:
        return "boot pid:[1]"

    def ours(self) -> tuple[int, int]:
        return self.me

    def process(self, pid: int) -> tuple[int, int] | None:
        return next((one for one in self.alive if one[0] == pid), None)

    def runs(self, record: Record) -> bool | None:
        return bool(self.alive.intersection(record.processes))

    def stopped(self, record: Record) -> bool:
        return False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def machine() -> Planted:
    return Planted()


Make = Callable[..., Ledger]


@pytest.fixture
def make(tmp_path: Path, clock: Clock, machine: Planted) -> Iterator[Make]:
    """A ledger over cards a, b, ... with so many GiB each, all in one folder."""

    def make(*sizes: int, probe: Callable[[Sequence[str]], Sequence[int] | None] | None = None) -> Ledger:
        cards = {"abcdefgh"[place]: size * GIB for place, size in enumerate(sizes)}
        return Ledger(tmp_path / "ledger", cards, probe=probe, clock=clock, machine=machine)

    yield make
    for fd in list(_holder._kept):
        _holder.let_go(fd)


def granted(ticket: Ticket) -> Grant:
    grant = ticket.poll()
    assert grant is not None
    return grant


def test_memory_is_granted_while_there_is_some_and_comes_back(make: Make) -> None:
    ledger = make(100)
    first, second = ledger.ask(memory=60 * GIB), ledger.ask(memory=60 * GIB)
    grant = granted(first)
    assert (grant.cards, grant.memory) == (("a",), 60 * GIB)
    assert second.poll() is None
    grant.release()
    assert granted(second).cards == ("a",)


def test_two_ledgers_over_one_folder_share_the_cards(make: Make) -> None:
    granted(make(100).ask(memory=60 * GIB))
    assert make(100).ask(memory=60 * GIB).poll() is None


def test_a_ticket_keeps_its_grant(make: Make) -> None:
    ticket = make(100).ask(memory=GIB)
    assert granted(ticket) is granted(ticket)


def test_grants_name_who_has_what(make: Make) -> None:
    ledger = make(100, 100)
    granted(ledger.ask(2, 10 * GIB, owner="test_a.py::test_x"))
    ledger.ask(2, 10 * GIB)
    (record,) = ledger.grants()
    assert (record.owner, record.processes, record.cards) == ("test_a.py::test_x", ((1, 1),), ("a", "b"))


def test_an_owner_may_have_a_very_long_name(make: Make) -> None:
    ledger = make(100)
    granted(ledger.ask(memory=GIB, owner="\N{SNOWMAN}" * 100_000))
    assert [record.owner for record in ledger.grants()] == ["\N{SNOWMAN}" * 1_000]


def test_the_emptiest_card_is_taken_and_of_equal_ones_the_first_choice(make: Make) -> None:
    ledger = make(100, 100)
    assert [granted(ledger.ask(memory=size * GIB)).cards for size in (30, 10, 10, 20)] == [
        ("a",),
        ("b",),
        ("b",),
        ("b",),
    ]


def test_several_cards_are_granted_all_at_once_or_not_at_all(make: Make) -> None:
    ledger = make(100, 100)
    small = granted(ledger.ask(memory=60 * GIB))
    pair = ledger.ask(2, 60 * GIB)
    assert pair.poll() is None
    assert len(ledger.grants()) == 1
    small.release()
    assert granted(pair).cards == ("a", "b")


def test_an_exclusive_grant_has_its_card_alone(make: Make) -> None:
    ledger = make(100, 100)
    small, alone = granted(ledger.ask(memory=GIB)), granted(ledger.ask(exclusive=True))
    assert (small.cards, alone.cards) == (("a",), ("b",))
    second = ledger.ask(exclusive=True)
    assert second.poll() is None
    assert granted(ledger.ask(memory=GIB)).cards == ("a",)
    alone.release()
    assert granted(second).cards == ("b",)


def test_of_two_that_fit_the_first_comes_first_whoever_asks_again_first(make: Make) -> None:
    ledger = make(100)
    whole = granted(ledger.ask(memory=100 * GIB))
    first, second = ledger.ask(memory=60 * GIB), ledger.ask(memory=60 * GIB)
    whole.release()
    assert second.poll() is None
    assert granted(first)


def test_a_later_ticket_may_pass_a_large_one_that_has_not_waited_long(make: Make, clock: Clock) -> None:
    ledger = make(100)
    granted(ledger.ask(memory=60 * GIB))
    large = ledger.ask(memory=80 * GIB)
    assert large.poll() is None
    assert granted(ledger.ask(memory=20 * GIB))


def test_for_a_ticket_that_has_waited_long_the_card_is_kept_free(make: Make, clock: Clock) -> None:
    ledger = make(100, 100)
    holds = [granted(ledger.ask(memory=60 * GIB)), granted(ledger.ask(memory=70 * GIB))]
    large = ledger.ask(memory=80 * GIB)
    assert large.poll() is None
    clock.now += 10.0
    assert large.poll() is None
    # card a has most room and is kept for it, beside which 20 GiB are left over; card b is nobody's
    later = [ledger.ask(memory=size * GIB) for size in (40, 25, 6)]
    assert [ticket.poll() is not None for ticket in later] == [False, True, False]
    assert granted(ledger.ask(memory=5 * GIB)).cards == ("b",)
    holds[0].release()
    assert granted(large).cards == ("a",)
    assert granted(later[2]).cards == ("a",)


def test_the_order_among_tickets_that_waited_long_is_that_in_which_they_came(make: Make, clock: Clock) -> None:
    ledger = make(100)
    whole = granted(ledger.ask(memory=100 * GIB))
    first, second = ledger.ask(memory=100 * GIB), ledger.ask(memory=10 * GIB)
    clock.now += 10.0
    assert second.poll() is None
    assert first.poll() is None
    whole.release()
    assert second.poll() is None
    granted(first).release()
    assert granted(second)


def test_a_ticket_that_is_withdrawn_lets_the_others_pass(make: Make, clock: Clock) -> None:
    ledger = make(100)
    granted(ledger.ask(memory=60 * GIB))
    large, small = ledger.ask(memory=80 * GIB), ledger.ask(memory=40 * GIB)
    clock.now += 10.0
    assert large.poll() is None
    assert small.poll() is None
    large.cancel()
    assert granted(small)
    with pytest.raises(GpusError, match="polled after it was withdrawn"):
        large.poll()


def test_a_dead_holders_memory_and_a_dead_waiters_place_come_back_at_the_next_poll(
    make: Make, machine: Planted, clock: Clock
) -> None:
    ledger = make(100)
    machine.me = (2, 7)
    machine.alive.add(machine.me)
    granted(ledger.ask(memory=60 * GIB))
    waits = ledger.ask(memory=80 * GIB)
    clock.now += 10.0
    assert waits.poll() is None
    machine.me = (1, 1)
    mine = ledger.ask(memory=50 * GIB)
    assert mine.poll() is None
    machine.alive = {(1, 1), (2, 8)}  # the pid is another process's by now
    assert granted(mine)
    assert len(list(ledger.path.iterdir())) == 1


def test_what_others_use_is_not_granted(make: Make) -> None:
    used = [30 * GIB, 80 * GIB]
    ledger = make(100, 100, probe=lambda cards: used)
    assert granted(ledger.ask(memory=50 * GIB)).cards == ("a",)
    second = ledger.ask(memory=50 * GIB)
    assert second.poll() is None
    used[:] = [80 * GIB, 50 * GIB]  # 50 of the 80 GiB are our own grant's
    assert granted(second).cards == ("b",)
    assert ledger.ask(memory=21 * GIB).poll() is None


def test_a_grant_that_is_not_used_up_does_not_hide_what_others_use(make: Make) -> None:
    used = [30 * GIB]
    ledger = make(100, probe=lambda cards: used)
    granted(ledger.ask(memory=40 * GIB))
    assert ledger.ask(memory=31 * GIB).poll() is None
    used[0] = 5 * GIB  # they have left
    assert granted(ledger.ask(memory=55 * GIB))


def test_unknown_usage_holds_nothing_up(make: Make) -> None:
    assert granted(make(100, probe=lambda cards: None).ask(memory=100 * GIB))


def test_a_grant_made_while_the_card_was_measured_explains_nothing_that_was_measured(make: Make) -> None:
    ledger = make(100)

    def probe(cards: Sequence[str]) -> list[int]:
        if not ledger.grants():
            granted(ledger.ask(memory=50 * GIB))  # another run was faster, and uses none of it yet
        return [30 * GIB]

    assert make(100, probe=probe).ask(memory=40 * GIB).poll() is None


def test_a_grant_that_ended_while_the_card_was_measured_explains_nothing_that_was_measured(make: Make) -> None:
    hold = granted(make(100).ask(memory=40 * GIB))  # unused

    def probe(cards: Sequence[str]) -> list[int]:
        hold.release()
        return [50 * GIB]

    assert make(100, probe=probe).ask(memory=60 * GIB).poll() is None


def test_a_grant_that_ended_while_the_card_was_measured_is_not_taken_for_others_from_then_on(make: Make) -> None:
    hold = granted(make(100).ask(memory=40 * GIB))
    used = [40 * GIB]

    def probe(cards: Sequence[str]) -> list[int]:
        figures = list(used)
        if hold.lives():  # read before it gave its memory back, and looked at after
            used[0] = 0
            hold.release()
        return figures

    ledger = make(100, probe=probe)
    first = ledger.ask(memory=30 * GIB)
    first.poll()
    granted(first)
    used[0] = 30 * GIB
    assert granted(ledger.ask(memory=70 * GIB))


def test_a_ticket_that_others_on_the_card_hold_up_moves_its_reservation(make: Make, clock: Clock) -> None:
    used = [0, 0]
    ledger = make(100, 100, probe=lambda cards: used)
    hold = granted(ledger.ask(memory=40 * GIB))
    granted(make(100, 100).ask(memory=60 * GIB))
    large = ledger.ask(memory=80 * GIB)
    clock.now += 10.0
    assert large.poll() is None
    assert large.record.cards == ("a",)
    used[0] = 50 * GIB
    hold.release()
    assert large.poll() is None
    assert large.record.cards == ("b",)


def test_what_never_fits_is_refused_with_the_numbers(make: Make) -> None:
    ledger = make(100, 50)
    with pytest.raises(
        TooLarge, match=r"^gpus: needs 60.0 GiB on 2 GPUs, found 2 with 100.0 GiB, 50.0 GiB \(test_x\)\n"
    ):
        ledger.ask(2, 60 * GIB, owner="test_x")
    with pytest.raises(TooLarge, match="needs 0 MiB on 3 GPUs, found 2"):
        ledger.ask(3, exclusive=True)
    assert granted(ledger.ask(1, 60 * GIB))


@pytest.mark.parametrize(("count", "memory"), [(0, GIB), (1, 0), (1, -1)])
def test_a_request_for_nothing_is_refused(make: Make, count: int, memory: int) -> None:
    with pytest.raises(GpusError, match=f"{memory} bytes on {count} card"):
        make(100).ask(count, memory)


def test_a_ledger_needs_cards_with_memory(tmp_path: Path) -> None:
    for devices in ({}, {"a": 0}):
        with pytest.raises(GpusError, match="a ledger over"):
            Ledger(tmp_path, devices)


def test_acquire_waits_and_the_grant_says_how_long(make: Make, clock: Clock) -> None:
    ledger = make(100)
    hold = granted(ledger.ask(memory=60 * GIB))
    until = clock.now + 3.0

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now >= until:
            hold.release()

    with ledger.acquire(memory=60 * GIB, sleep=sleep) as grant:
        assert 3.0 <= grant.waited <= 3.5
    assert ledger.grants() == []


def test_acquire_gives_up_in_time_and_says_who_has_the_memory(make: Make, clock: Clock) -> None:
    ledger = make(100, probe=lambda cards: [75 * GIB])
    granted(make(100).ask(memory=60 * GIB, owner="test_big"))
    with pytest.raises(Waited, match=r"waited 5.0 s for 30.0 GiB on 1 of 1 GPU \(test_x\)") as raised:
        ledger.acquire(memory=30 * GIB, owner="test_x", timeout=5.0, sleep=clock.sleep)
    assert "  a: 60.0 GiB of test_big (pid 1)\n  a: 15.0 GiB in use beyond all grants\nnext: " in str(raised.value)
    assert granted(ledger.ask(memory=25 * GIB))  # the ticket is withdrawn


def test_an_interrupt_withdraws_the_ticket(make: Make) -> None:
    ledger = make(100)
    granted(ledger.ask(memory=60 * GIB))

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        ledger.acquire(memory=60 * GIB, sleep=sleep)
    assert len(list(ledger.path.iterdir())) == 1


def test_a_grant_does_not_keep_what_has_ended_of_the_many_processes_that_a_test_started(
    make: Make, machine: Planted
) -> None:
    ledger = make(100)
    grant = granted(ledger.ask(memory=60 * GIB))
    for pid in range(1000, 1100):
        machine.alive.add((pid, 5))
        grant.also(pid)
        if pid != 1000:
            machine.alive.remove((pid, 5))
    [record] = ledger.grants()
    assert record.processes == ((1, 1), (1000, 5), (1099, 5))


def test_a_grant_lasts_until_the_last_of_its_processes_has_ended(make: Make, machine: Planted) -> None:
    ledger = make(100)
    machine.alive |= {(20, 5), (21, 5)}
    grant = granted(ledger.ask(memory=60 * GIB))
    grant.also(20)
    grant.also(21)
    machine.alive.remove((20, 5))
    grant.release()
    grant.release()
    assert [record.processes for record in ledger.grants()] == [((21, 5),)]
    machine.alive.remove((21, 5))
    assert ledger.grants() == []
    assert not _holder._kept


def test_a_process_that_does_not_run_cannot_share_a_grant(make: Make) -> None:
    grant = granted(make(100).ask(memory=GIB))
    with pytest.raises(GpusError, match="process 99 cannot share a grant: it does not run"):
        grant.also(99)
    grant.release()
    with pytest.raises(GpusError, match="process 1 cannot share a grant: the grant is released"):
        grant.also(1)


def test_a_ticket_whose_file_was_cleaned_away_puts_it_back(make: Make) -> None:
    ledger = make(100)
    granted(ledger.ask(memory=60 * GIB))
    ticket = ledger.ask(memory=60 * GIB)
    (ledger.path / ticket._name).unlink()
    assert ticket.poll() is None
    assert (ledger.path / ticket._name).exists()


def test_what_is_no_record_is_passed_over(make: Make, tmp_path: Path) -> None:
    ledger = make(100)
    granted(ledger.ask(memory=60 * GIB))
    (ledger.path / "000000001-junk").write_text('{"number": 1}')
    (ledger.path / "binary").write_bytes(b"\xff\xfe")
    (ledger.path / "nested").write_text("[" * 50_000)
    (ledger.path / "folder").mkdir()
    (ledger.path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(ledger.path / "pipe")  # to open it would block
    assert len(ledger.grants()) == 1
    assert len(list(ledger.path.iterdir())) == 7


def test_a_record_is_read_as_it_was_written() -> None:
    record = Record(3, "t", "h n", ((5, 6),), 1, 7, False, {"a": 9}, ("a",), True, (("a", 2),))
    assert parsed(written(record)) == record
    assert parsed(written(record).replace(b'["a"]', b'["b"]')) is None
    assert parsed(written(record).replace(b'"memory": 7', b'"memory": -7')) is None
    assert parsed(written(record).replace(b"[[5, 6]]", b"[]")) is None
    assert parsed(written(record)[:-1]) is None


def test_a_draft_that_a_killed_process_left_is_cleared(make: Make) -> None:
    ledger = make(100)
    ledger.grants()
    (ledger.path / ".000000001-half").write_text('{"num')
    assert ledger.grants() == []
    assert list(ledger.path.iterdir()) == []


def test_the_folder_is_for_all_users_but_each_ones_files_are_their_own(make: Make) -> None:
    before = os.umask(0o077)
    try:
        ledger = make(100)
        ticket = ledger.ask(memory=GIB)
    finally:
        os.umask(before)
    assert ledger.path.stat().st_mode & 0o7777 == 0o1777
    assert (ledger.path / ticket._name).stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_folder_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "ledger"
    if kind == "link":
        path.symlink_to(tmp_path, target_is_directory=True)
    else:
        path.touch()
    with pytest.raises(GpusError, match=rf"the ledger {path} cannot be used: .*\nnext: .*TESTKIT_GPUS_LEDGER"):
        Ledger(path, {"a": GIB}).ask(memory=1)


def test_a_lock_that_is_never_given_up_is_an_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = make(100)
    ledger.grants()
    monkeypatch.setattr(_holder, "LOCK_LIMIT", 0.05)
    with _holder.opened(ledger.path, Machine()), pytest.raises(GpusError, match="lock was held for 0 s"):
        ledger.grants()


def test_the_folder_is_the_same_whatever_the_temporary_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder({"TMPDIR": "/elsewhere"}) == Path("/tmp/testkit-gpus")
    monkeypatch.setenv("TESTKIT_GPUS_LEDGER", "/shared/gpus")
    assert folder() == Path("/shared/gpus")


def test_a_card_has_one_key_however_it_is_named(nvidia: Callable[..., object]) -> None:
    nvidia(A, B)
    assert keys(["1", "0"], {}) == [B, A]
    assert keys([A[:10], B], {}) == [A, B]
    assert keys(["MIG-2b", "7"], {}) == ["MIG-2b", "nvidia-7"]


def test_a_card_without_a_known_uuid_has_its_number_for_a_key() -> None:
    assert keys(["0", "3"], {"CUDA_VISIBLE_DEVICES": "0,3"}) == ["nvidia-0", "nvidia-3"]


def test_on_amd_a_key_does_not_depend_on_what_rocr_left(amd: Callable[..., object]) -> None:
    amd(0xAAAA000000000001, 0xAAAB000000000002, 0)
    assert keys(["0", "1"], {}) == ["GPU-aaaa000000000001", "GPU-aaab000000000002"]
    assert keys(["0"], {"ROCR_VISIBLE_DEVICES": "1"}) == ["GPU-aaab000000000002"]
    assert keys(["2"], {}) == keys(["0"], {"ROCR_VISIBLE_DEVICES": "2"}) == ["amd-130"]
