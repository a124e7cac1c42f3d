"""The ledger under random schedules and SIGKILL: never granted twice, nothing lost, nobody waits for ever.

The schedules run in one process over planted processes, users and clocks; what they cannot show is shown with real
processes: each step of the ledger as the last one of a process, random kills, a second user.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from testkit.gpus import _holder
from testkit.gpus._grant import Process, Record
from testkit.gpus._holder import Folder, Machine
from testkit.gpus._ledger import Grant, Ledger, Ticket

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="holders are told apart by /proc")

LIMIT = 120.0
"""Seconds for a program of these tests; they need some."""


class Killed(BaseException):
    """The acting process got SIGKILL."""


class World(Machine):
    """Planted processes and users. ``me`` acts, as user ``uid``; ``alive`` are those that live."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.me: Process = (0, 0)
        self.uid = 0
        self.alive: set[Process] = set()
        self.owners: dict[str, int] = {}
        self.kills = False

    def host(self) -> str:
        return "boot pid:[1]"

    def ours(self) -> Process:
        return self.me

    def process(self, pid: int) -> Process | None:
        return next((one for one in self.alive if one[0] == pid), None)

    def runs(self, record: Record) -> bool | None:
        return bool(self.alive.intersection(record.processes))

    def stopped(self, record: Record) -> bool:
        return False


class Planted(Folder):
    """A folder in which users may not remove what is another's, and in which a write may be a process's last step."""

    def write(self, name: str, record: Record) -> int:
        world = self._machine
        assert isinstance(world, World)
        killed = world.kills and world.dice.random() < 0.05
        if killed and world.dice.random() < 0.5:
            draft = os.open(f".{name}.half", os.O_CREAT | os.O_WRONLY, dir_fd=self._fd)
            os.write(draft, b'{"number": 1, "own')
            os.close(draft)
            raise Killed
        world.owners[name] = world.uid
        fd = super().write(name, record)
        if killed:
            os.close(fd)
            raise Killed
        return fd

    def remove(self, name: str) -> None:
        world = self._machine
        assert isinstance(world, World)
        if world.owners[name] == world.uid:
            super().remove(name)


@dataclass
class Actor:
    """A process with its tickets and grants. ``held_up``: what was granted when a ticket began to reserve."""

    process: Process
    uid: int
    ledger: Ledger
    tickets: list[Ticket] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    held_up: dict[int, set[str]] = field(default_factory=dict)


@dataclass
class Given:
    """The auditor's own note of a grant."""

    name: str
    number: int
    sizes: dict[str, int]
    exclusive: bool
    processes: set[Process]


class Schedule:
    """One random run of several actors, with an auditor who knows only what was asked, given and killed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.dice = random.Random(seed)
        self.folder = folder
        self.world = World(self.dice)
        self.totals = {f"card{n}": self.dice.choice((8, 12)) for n in range(self.dice.randint(1, 3))}
        self.others = dict.fromkeys(self.totals, 0)
        self.measures = seed % 2 == 1
        self.now = 0.0
        self.pids = 0
        self.given: list[Given] = []
        self.actors: list[Actor] = []
        for _ in range(self.dice.randint(2, 5)):
            self.start()

    def start(self) -> None:
        """A new process; sometimes with the pid of one that has ended."""
        self.pids += 1
        process = (self.dice.randint(1, 6), self.pids)
        if any(process[0] == pid for pid, _ in self.world.alive):
            process = (100 + self.pids, self.pids)
        some = self.dice.sample(sorted(self.totals), self.dice.randint(1, len(self.totals)))
        devices = {card: self.totals[card] for card in some}  # another order and other cards than the next one's
        probe = self.measure if self.measures else None
        ledger = Ledger(self.folder, devices, probe=probe, clock=lambda: self.now, patience=3.0, machine=self.world)
        self.world.alive.add(process)
        self.actors.append(Actor(process, self.dice.randint(0, 1), ledger))

    def measure(self, cards: Sequence[str]) -> list[int]:
        """All living grants use what they have, and others use theirs."""
        return [self.others[card] + sum(one.sizes.get(card, 0) for one in self.living()) for card in cards]

    def living(self) -> list[Given]:
        self.given = [one for one in self.given if one.processes & self.world.alive]
        return self.given

    def run(self, steps: int) -> None:
        self.world.kills = True
        ways = [self.ask] * 5 + [self.poll] * 8 + [self.release] * 4 + [self.share, self.kill, self.end_child]
        ways += [self.jump, self.cancel, self.disturb]
        for _ in range(steps):
            self.now += self.dice.random()
            self.act(self.dice.choice(ways))
            self.audit()
        self.world.kills = False
        self.others = dict.fromkeys(self.totals, 0)
        self.drain()

    def act(self, way: object) -> None:
        assert callable(way)
        if not self.actors:
            self.start()
        actor = self.dice.choice(self.actors)
        self.world.me, self.world.uid = actor.process, actor.uid
        try:
            way(actor)
        except Killed:
            self.bury(actor)

    def ask(self, actor: Actor) -> None:
        count = self.dice.randint(1, len(actor.ledger.devices))
        exclusive = self.dice.random() < 0.15
        largest = sorted(actor.ledger.devices.values())[-count]
        memory = self.dice.randint(1, largest)
        if len(actor.tickets) < 3:
            actor.tickets.append(actor.ledger.ask(count, memory, exclusive))

    def poll(self, actor: Actor) -> None:
        for ticket in list(actor.tickets):
            grant = ticket.poll()
            record = ticket.record
            if grant is not None:
                actor.tickets.remove(ticket)
                actor.grants.append(grant)
                sizes = {card: record.takes(card) for card in grant.cards}
                self.check(record, sizes)
                self.given.append(Given(grant._name, record.number, sizes, grant.exclusive, {actor.process}))
            elif record.cards and not self.measures:
                new = record.number not in actor.held_up  # from the next look on it is first
                before = actor.held_up.setdefault(record.number, {one.name for one in self.living()})
                assert new or self.waits_rightly(record, before), f"{record} waits for nobody that was there before"

    def waits_rightly(self, record: Record, before: set[str]) -> bool:
        """Does a grant from before it reserved still live, or does a lower number wait or hold?"""
        holds = any(one.name in before or one.number < record.number for one in self.living())
        return holds or any(t.record.number < record.number for actor in self.actors for t in actor.tickets)

    def check(self, record: Record, sizes: dict[str, int]) -> None:
        """Never granted twice: what was just given, beside all that lives and all that others use."""
        assert len(sizes) == record.count
        for card, size in sizes.items():
            ours = sum(one.sizes.get(card, 0) for one in self.living())
            assert ours + size <= self.totals[card], f"{card} has {ours} granted, and {size} more"
            if self.measures:
                assert ours + record.memory + self.others[card] <= self.totals[card]

    def release(self, actor: Actor) -> None:
        if actor.grants:
            grant = actor.grants.pop(self.dice.randrange(len(actor.grants)))
            given = next(one for one in self.given if one.name == grant._name)
            given.processes.discard(actor.process)
            grant.release()

    def share(self, actor: Actor) -> None:
        if actor.grants:
            self.pids += 1
            child = (1000 + self.pids, self.pids)
            self.world.alive.add(child)
            grant = self.dice.choice(actor.grants)
            try:
                grant.also(child[0])
            except Killed:
                self.world.alive.discard(child)  # a guardian ends it; the ledger may not know it yet
                raise
            next(one for one in self.given if one.name == grant._name).processes.add(child)

    def kill(self, actor: Actor) -> None:
        raise Killed

    def bury(self, actor: Actor) -> None:
        self.world.alive.discard(actor.process)
        self.actors.remove(actor)
        self.start()

    def end_child(self, actor: Actor) -> None:
        children = sorted(process for process in self.world.alive if process[0] > 1000)
        if children:
            self.world.alive.discard(self.dice.choice(children))

    def cancel(self, actor: Actor) -> None:
        if actor.tickets:
            actor.tickets.pop().cancel()

    def jump(self, actor: Actor) -> None:
        self.now += self.dice.choice((-1e6, -5.0, 5.0, 1e6))

    def disturb(self, actor: Actor) -> None:
        if self.measures:
            self.others = {card: self.dice.randint(0, total // 2) for card, total in self.totals.items()}

    def audit(self) -> None:
        """Whoever looks sees exactly what lives: nothing is lost, and what ended has come back."""
        look = self.dice.choice(self.actors).ledger
        seen = sorted((record.number, record.processes) for record in look.grants())
        assert [number for number, _ in seen] == sorted(one.number for one in self.living())

    def drain(self) -> None:
        """If grants end, every ticket is granted: in each round all are asked, then all that is granted ends."""
        rounds = 0
        while any(actor.tickets for actor in self.actors):
            rounds += 1
            assert rounds < 50, f"{sum(len(actor.tickets) for actor in self.actors)} tickets starve"
            self.now += 1.0
            for actor in self.actors:
                self.world.me, self.world.uid = actor.process, actor.uid
                self.poll(actor)
            for actor in self.actors:
                self.world.me, self.world.uid = actor.process, actor.uid
                while actor.grants:
                    self.release(actor)
            self.world.alive = {process for process in self.world.alive if process[0] < 1000}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_holder, "Folder", Planted)
    yield
    for fd in list(_holder._kept):
        _holder.let_go(fd)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in range(1, 10))])
def test_in_random_schedules_nothing_is_granted_twice_or_lost_and_nobody_starves(tmp_path: Path, block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        try:
            Schedule(seed, tmp_path / str(seed)).run(40)
        except AssertionError as error:
            raise AssertionError(f"in the schedule of seed {seed}: {error}") from error
        for fd in list(_holder._kept):  # those of processes that were killed
            _holder.let_go(fd)


def said(code: str, *arguments: object) -> str:
    """What a program of its own prints; it has to end well, and in time."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


# A child lives its life with the ledger again and again, and each time gets SIGKILL one step later. A write is
# killed in its middle.
EACH_STEP = """
import fcntl, os, signal, sys
from testkit.gpus._ledger import Ledger
path, left = sys.argv[1], 0
def deadly(function):
    def call(*given, **named):
        global left
        left -= 1
        if left == 0:
            if function is write:
                write(given[0], given[1][: len(given[1]) // 2])
            kill(os.getpid(), signal.SIGKILL)
        return function(*given, **named)
    return call
def live():
    ledger = Ledger(path, {"a": 100}, probe=lambda cards: [0])
    grant = ledger.ask(memory=60).poll()
    waits = ledger.ask(memory=60)
    assert grant and waits.poll() is None
    grant.also(os.getpid())
    waits.cancel()
    grant.release()
write, kill = os.write, os.kill
deaths = 0
while True:
    child = os.fork()
    if not child:
        left = deaths + 1
        for name in "mkdir open write fchmod rename unlink listdir fstat stat close".split():
            setattr(os, name, deadly(getattr(os, name)))
        fcntl.flock = deadly(fcntl.flock)
        live()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    grant = Ledger(path, {"a": 100}).ask(memory=100).poll()
    assert grant, f"not free after step {deaths + 1}: {os.listdir(path)}"
    grant.release()
    os.rmdir(path)  # nothing is left in it
    if status == 0:
        break
    deaths += 1
print(deaths)
"""


def test_after_a_kill_at_any_step_everything_is_free_at_the_next_poll_and_nothing_is_left(tmp_path: Path) -> None:
    assert int(said(EACH_STEP, tmp_path / "ledger")) > 60


# Workers take memory of two cards, and for each unit of it a slot: a file that they lock. If there are too few free
# slots, more was granted than there is. Their parent kills one after every few grants. A look for slots holds a lock,
# so that none becomes another's meanwhile.
RANDOM_KILLS = """
import fcntl, os, random, select, signal, sys, time
from testkit.gpus._ledger import Ledger
path, kills, dice = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
CARDS = {"a": 8, "b": 5}
os.mkdir(path + "/slots")
reading, writing = os.pipe()
parent = os.getpid()
def locked(name, way):
    fd = os.open(f"{path}/slots/{name}", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(fd, way)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
def slots(grant):
    look = locked("look", fcntl.LOCK_EX)
    taken = []
    for card in grant.cards:
        need = CARDS[card] if grant.exclusive else grant.memory
        for number in range(CARDS[card]):
            if need and (fd := locked(f"{card}{number}", fcntl.LOCK_EX | fcntl.LOCK_NB)):
                taken.append(fd)
                need -= 1
        if need:
            os.write(writing, b"X")
    os.close(look)
    return taken
def work(seed):
    dice = random.Random(seed)
    ledger = Ledger(path + "/ledger", CARDS, patience=0.05)
    while os.getppid() == parent:
        count, exclusive = dice.choice((1, 1, 2)), dice.random() < 0.2
        with ledger.acquire(count, dice.randint(1, 5 if count == 2 else 8), exclusive) as grant:
            taken = slots(grant)
            os.write(writing, b".")
            time.sleep(dice.random() * 0.01)
            for fd in taken:
                os.close(fd)
def start(seed):
    child = os.fork()
    if child:
        return child
    try:
        work(seed)
    finally:
        os.write(writing, b"E")
        os._exit(1)
workers = [start(number) for number in range(5)]
grants = 0
for number in range(kills):
    for _ in range(dice.randint(1, 8)):
        assert select.select([reading], [], [], 60)[0], "nobody is granted anything any more"
        word = os.read(reading, 1)
        assert word == b".", f"{word}: X is over-granted, E an error in a worker"
        grants += 1
    worker = workers.pop(dice.randrange(5))
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    workers.append(start(100 + number))
for worker in workers:
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
os.close(writing)
assert not open(reading, "rb").read().strip(b".")
ledger = Ledger(path + "/ledger", CARDS)
assert ledger.ask(2, exclusive=True).poll(), "not free after all were killed"
assert len(os.listdir(path + "/ledger")) == 1
print(grants)
"""


@pytest.mark.parametrize(("kills", "seed"), [(25, 1), pytest.param(250, 2, marks=pytest.mark.long)])
def test_processes_that_are_killed_at_random_never_hold_more_than_there_is(
    tmp_path: Path, kills: int, seed: int
) -> None:
    assert int(said(RANDOM_KILLS, tmp_path, kills, seed)) >= kills


HOLD = """
import os, sys
from testkit.gpus import _holder
from testkit.gpus._ledger import Ledger
path, host, uid, forks = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "forks"
if host:
    _holder.Machine.host = lambda self: host
if uid:
    os.setuid(uid)
assert Ledger(path, {"a": 100}).ask(memory=60).poll()
begun, begins = os.pipe()
if forks and not os.fork():
    os.write(begins, b"!")
    sys.stdin.read()
    os._exit(0)
if forks:
    os.read(begun, 1)  # by then the child has let go of what it inherited
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that has 60 of 100 bytes: of another host, as another user, or with a child that lives on."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, *, host: str = "", uid: int = 0, forks: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(path), host, str(uid), "forks" if forks else ""]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=LIMIT)  # closes its input, at whose end a child ends too


Holder = Callable[..., "subprocess.Popen[str]"]
UNLINK = """
import os, sys
os.setuid(int(sys.argv[1]))
try:
    os.unlink(sys.argv[2])
except OSError as error:
    print(type(error).__name__)
"""
NAMESPACE = Machine().host().replace("pid:[", "pid:[1")


@pytest.mark.parametrize("host", ["", NAMESPACE], ids=["by its pid", "from another pid namespace by its lock"])
@pytest.mark.parametrize("forks", [False, True], ids=["alone", "with a child that lives on"])
def test_a_holders_memory_is_its_own_until_it_is_killed(tmp_path: Path, holder: Holder, host: str, forks: bool) -> None:
    process = holder(tmp_path / "ledger", host=host, forks=forks)
    ticket = Ledger(tmp_path / "ledger", {"a": 100}).ask(memory=60)
    assert ticket.poll() is None
    process.kill()
    process.wait(LIMIT)
    grant = ticket.poll()
    assert grant is not None
    grant.release()


def test_what_was_held_before_the_machine_was_started_again_is_free(tmp_path: Path, holder: Holder) -> None:
    holder(tmp_path / "ledger", host="before pid:[1]")
    assert Ledger(tmp_path / "ledger", {"a": 100}).grants() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_share_the_ledger_and_cannot_remove_what_is_anothers(holder: Holder) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # tmp_path is closed to others
        path = Path(folder) / "ledger"
        assert Ledger(path, {"a": 100}).grants() == []  # root's folder, of which users may not remove it
        process = holder(path, uid=65_534)
        ticket = Ledger(path, {"a": 100}).ask(memory=60)
        assert ticket.poll() is None
        (record,) = path.glob("*1-*")
        done = subprocess.run([sys.executable, "-c", UNLINK, "65533", record], capture_output=True, text=True)
        assert done.stdout == "PermissionError\n", done.stderr
        process.kill()
        process.wait(LIMIT)
        grant = ticket.poll()
        assert grant is not None
        grant.release()
        assert list(path.iterdir()) == []


def test_a_process_is_known_by_its_start_time_too_and_a_zombie_has_ended() -> None:
    machine = Machine()
    pid, start = machine.ours()
    record = Record(1, "", machine.host(), ((pid, start),), 1, 1, False, {"a": 1})
    assert machine.runs(record) is True
    assert machine.runs(replace(record, processes=((pid, start - 1),))) is False
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert machine.process(child.pid) is None
    child.wait(LIMIT)
    assert machine.runs(replace(record, processes=((child.pid, start),))) is False


def test_where_other_users_processes_are_hidden_the_lock_decides(
    tmp_path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = holder(tmp_path / "ledger")
    machine = Machine()
    monkeypatch.setattr(machine, "process", lambda pid: None)
    monkeypatch.setattr(machine, "hides", lambda pid: pid == process.pid)
    ledger = Ledger(tmp_path / "ledger", {"a": 100}, machine=machine)
    assert len(ledger.grants()) == 1
    process.kill()
    process.wait(LIMIT)
    assert ledger.grants() == []


# In a program of its own: under pytest-xdist there are threads, and Python warns of a fork.
FORK = """
import os, sys
from testkit.gpus import _holder
from testkit.gpus._ledger import Ledger
ledger = Ledger(sys.argv[1], {"a": 100})
ticket, waits = ledger.ask(memory=60), ledger.ask(memory=60)
grant = ticket.poll()
child = os.fork()
if not child:
    grant.release()
    ticket.cancel()
    waits.cancel()
    os._exit(len(_holder._kept))
assert os.waitpid(child, 0)[1] == 0
assert len(ledger.grants()) == 1
assert len(os.listdir(sys.argv[1])) == 2
grant.release()
print(len(ledger.grants()))
"""


def test_a_forked_child_neither_holds_nor_releases_what_is_its_parents(tmp_path: Path) -> None:
    assert said(FORK, tmp_path / "ledger") == "0"


FORK_MEANWHILE = """
import os, sys
from testkit.gpus import _holder
from testkit.gpus._ledger import Ledger
reading, writing = os.pipe()
with _holder.opened(_holder.Path(sys.argv[1]), _holder.Machine()):
    child = os.fork()  # as another thread may
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
_holder.LOCK_LIMIT = 1.0
print(len(Ledger(sys.argv[1], {"a": 100}).grants()))
"""


def test_a_child_that_was_forked_under_the_lock_does_not_keep_it(tmp_path: Path) -> None:
    assert said(FORK_MEANWHILE, tmp_path / "ledger") == "0"


STOPPED = """
import os, signal, sys
from testkit.gpus._ledger import Ledger
waits = Ledger(sys.argv[1], {"a": 100}, patience=0.0).ask(memory=80)
assert waits.poll() is None and waits.record.cards
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_waiter_that_was_stopped_is_passed_over_until_it_goes_on(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", {"a": 100})
    first = ledger.ask(memory=30).poll()
    assert first is not None
    process = subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path / "ledger")])
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert ledger.ask(memory=60).poll()
    finally:
        process.kill()
        process.wait(LIMIT)


def test_a_grant_stands_though_a_test_closed_its_descriptor(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", {"a": 100})
    grant = ledger.ask(memory=60).poll()
    assert grant is not None
    os.close(grant._fd)
    with open(tmp_path / "mine", "w") as file:
        os.dup2(file.fileno(), grant._fd)
        fd = grant._fd
        assert len(ledger.grants()) == 1
        grant.release()
        os.close(fd)  # still the test's own
    assert ledger.grants() == []
