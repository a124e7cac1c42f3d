"""Turns: a test begins when its memory is there, gives it back when it is over, and no clock of it runs meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testkit.errors import GpusError
from testkit.gpus import _ledger, _marker, _turn, hold, shares
from testkit.gpus._budget import Budgets
from testkit.gpus._keeper import Keeper
from testkit.gpus._ledger import Ledger, TooLarge, Waited
from testkit.gpus._marker import Need
from testkit.gpus._turn import CONTEXT, Turns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="holders are told apart by /proc")

GIB = 2**30
A, B, C = (f"GPU-{digit * 8}-682d-b506-9ad9-d1c595d6d2ad" for digit in "012")

Plant = Callable[..., Any]


class Clock:
    """Seconds that pass while somebody sleeps; ``then`` is called after each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(nvidia: Plant, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Over three cards of 10 GiB, of which 0, 1 and 2 GiB are in use."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    nvidia(A, B, C)
    return Turns(folder=tmp_path / "ledger", clock=clock)


@pytest.fixture
def neighbour(tmp_path: Path) -> Ledger:
    """What another run has asked for; not measured."""
    return Ledger(tmp_path / "ledger", {A: 10 * GIB, B: 10 * GIB, C: 10 * GIB})


def had(turns: Turns, devices: list[str]) -> dict[str, int]:
    return {device: record.memory for device, record in turns.grants(devices)}


def test_a_turn_has_its_memory_until_it_ends(turns: Turns) -> None:
    turn = turns.wait(Need(1, 6 * GIB), "marker gpus", "test_x", ["0"])
    assert turn is not None
    assert (turn.devices, turn.places, turn.memory) == (["0"], [0], 6 * GIB)
    assert had(turns, ["0"]) == {"0": 6 * GIB + CONTEXT}
    turns.end(turn)
    assert had(turns, ["0"]) == {}


def test_a_process_that_uses_cuda_has_its_context_already(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_turn, "cuda_in_use", lambda: SimpleNamespace(empty_cache=lambda: None))
    turn = turns.wait(Need(1, 6 * GIB), "", "test_x", ["0"])
    assert had(turns, ["0"]) == {"0": 6 * GIB}
    assert turn is not None
    turns.end(turn)
    turns.wait(Need(1, 6 * GIB), "", "test_ranks", ["0"], fresh=True)
    assert had(turns, ["0"]) == {"0": 6 * GIB + CONTEXT}


def test_what_wider_fixtures_hold_is_in_the_budget_already(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[bool] = []
    anew: list[int] = []
    cuda = SimpleNamespace(
        empty_cache=lambda: freed.append(True),
        device_count=lambda: 3,
        memory_reserved=lambda place: (place + 1) * GIB,
        memory_allocated=lambda place: GIB,
        reset_peak_memory_stats=anew.append,
    )
    monkeypatch.setattr(_turn, "cuda_in_use", lambda: cuda)
    turn = turns.wait(Need(1, 6 * GIB), "", "test_x", ["1"])
    assert turn is not None
    assert had(turns, ["1"]) == {"1": 4 * GIB}
    assert (turn.memory, freed, anew) == (6 * GIB, [True], [1])
    turns.end(turn)
    small = turns.wait(Need(1, GIB), "", "test_x", ["1"])
    assert small is not None
    assert had(turns, ["1"]) == {"1": 1}
    turns.end(small)
    with pytest.raises(TooLarge, match=r"needs 11\.0 GiB"):
        turns.wait(Need(1, 11 * GIB), "", "test_x", ["1"])


def test_a_context_alone_makes_no_request_too_large(turns: Turns) -> None:
    assert turns.wait(Need(1, 10 * GIB), "", "test_x", ["0"]) is not None
    with pytest.raises(TooLarge, match=r"needs 10.0 GiB on 1 GPU, found 1 with 10.0 GiB \(test_x\)"):
        turns.wait(Need(1, 10 * GIB + 1), "", "test_x", ["0"])


def test_the_emptiest_device_is_taken(turns: Turns) -> None:
    assert [turns.wait(Need(1, 4 * GIB), "", "", ["2", "0"]).devices for _ in range(2)] == [["0"], ["2"]]  # type: ignore[union-attr]


def test_several_devices_come_together(turns: Turns) -> None:
    turn = turns.wait(Need(2, 8 * GIB), "", "", ["1", "0", "2"])
    assert turn is not None
    assert sorted(turn.devices) == ["0", "1"]


def test_it_waits_until_a_neighbour_is_done_and_says_for_how_long(
    turns: Turns, neighbour: Ledger, clock: Clock
) -> None:
    grant = neighbour.acquire(memory=9 * GIB, owner="test_neighbour")
    clock.then = lambda: grant.release() if clock.now >= 5 else None
    turn = turns.wait(
        Need(1, 4 * GIB), "marker gpus", "test_x", [{A: "0", B: "1", C: "2"}[grant.cards[0]]], sleep=clock.sleep
    )
    assert turn is not None
    assert 5 <= turn.waited < 5.1
    assert turn.told() == {
        "seconds": turn.waited,
        "bytes": 4 * GIB,
        "from": "marker gpus",
        "devices": turn.devices,
    }


def test_memory_in_use_by_others_who_never_end_is_given_up_on_with_the_figures(turns: Turns, clock: Clock) -> None:
    with pytest.raises(Waited, match=r"waited 60\.\d s for 9.5 GiB on 1 of 1 GPU \(test_x\)") as raised:
        turns.wait(Need(1, 9 * GIB - GIB // 4), "", "test_x", ["2"], sleep=clock.sleep)
    assert f"  {C}: 2.0 GiB in use beyond all grants" in str(raised.value)
    assert not list(Path(os.environ["TESTKIT_GPUS_LEDGER"]).glob("*")), "the ticket is withdrawn"


def test_a_neighbour_that_does_not_end_is_waited_for_longer_than_others(
    turns: Turns, neighbour: Ledger, clock: Clock
) -> None:
    neighbour.acquire(3, memory=9 * GIB, owner="test_neighbour")
    with pytest.raises(Waited, match=r"waited 1800\.\d s") as raised:
        turns.wait(Need(1, 4 * GIB), "", "test_x", ["0"], sleep=clock.sleep)
    assert f"{A}: 9.0 GiB of test_neighbour (pid {os.getpid()})" in str(raised.value)


def test_an_exclusive_turn_has_a_device_to_itself_also_from_tests_whose_need_nobody_knows(
    turns: Turns, clock: Clock
) -> None:
    unknown = turns.wait(Need(), "", "test_unknown", ["0"])
    assert unknown is not None
    assert unknown.memory is None
    clock.then = lambda: turns.end(unknown) if clock.now >= 2 else None
    alone = turns.wait(Need(exclusive=True), "", "test_alone", ["0"], sleep=clock.sleep)
    assert alone is not None
    assert alone.waited >= 2
    clock.then = lambda: turns.end(alone) if clock.now >= 4 else None
    after = turns.wait(Need(), "", "test_unknown", ["0"], sleep=clock.sleep)
    assert after is not None
    assert clock.now >= 4


def test_where_memory_cannot_be_read_nothing_is_waited_for_and_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    turns = Turns(folder=tmp_path / "ledger")
    assert turns.wait(Need(), "", "test_x", ["0"]) is None
    assert turns.unread == [], "nothing was asked for"
    for _ in range(2):
        assert turns.wait(Need(1, GIB), "", "test_x", ["0"]) is None
    assert turns.unread == ["0"]


def test_a_ledger_that_cannot_be_used_fails_only_what_asked_for_memory(
    nvidia: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    nvidia(A)
    (tmp_path / "file").write_text("")
    turns = Turns(folder=tmp_path / "file")
    assert turns.wait(Need(), "", "test_x", ["0"]) is None
    with pytest.raises(GpusError, match=r"the ledger .* cannot be used"):
        turns.wait(Need(1, GIB), "", "test_x", ["0"])


def test_what_a_server_still_holds_is_its_later_tests_too(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        first = turns.wait(Need(1, 8 * GIB), "", "test_first", ["0"])
        monkeypatch.setattr(_marker, "turn", first)
        hold(server.pid)
        assert first is not None
        turns.end(first)
        assert had(turns, ["0"]) == {"0": 8 * GIB + CONTEXT}, "it is released, and the server runs"
        second = turns.wait(Need(1, 8 * GIB), "", "test_second", ["0"])  # would wait for itself
        assert second is not None
        assert second.devices == ["0"]
        turns.end(second)
        assert had(turns, ["0"]) == {"0": 8 * GIB + CONTEXT}
    finally:
        server.communicate(b"\n", timeout=30)
    assert had(turns, ["0"]) == {}
    third = turns.wait(Need(1, 8 * GIB), "", "test_third", ["0"])
    assert third is not None
    assert third.grant is not first.grant


def test_another_need_than_that_of_the_server_is_granted_beside_it(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        first = turns.wait(Need(1, 4 * GIB), "", "test_first", ["0"])
        assert first is not None
        assert first.grant is not None
        monkeypatch.setattr(_marker, "turn", first)
        hold(server.pid)
        turns.end(first)
        hold(os.getpid())  # a further process of the server's
        other = turns.wait(Need(1, 3 * GIB), "", "test_other", ["0"])
        assert other is not None
        assert other.grant is not first.grant
        assert sorted(record.memory for _, record in turns.grants(["0"])) == [3 * GIB + CONTEXT, 4 * GIB + CONTEXT]
    finally:
        server.communicate(b"\n", timeout=30)
    assert first.grant.lives()
    assert len(turns.grants(["0"])) == 2


def test_without_a_turn_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_marker, "turn", None)
    hold(os.getpid())


# What is done around each test


Mark = Callable[..., SimpleNamespace]


def mark(*args: Any, **kwargs: Any) -> SimpleNamespace:
    return SimpleNamespace(args=args, kwargs=kwargs)


@pytest.fixture
def keeper(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setattr(_marker, "turn", None)
    keeper = Keeper(Budgets({"test_learned": GIB, "test_cpu": 0}), everything=True, turns=turns)
    yield keeper
    keeper.close()


def test_without_the_fixture_a_test_takes_the_devices_that_torch_takes_first(keeper: Keeper) -> None:
    test = keeper.begin("test_x", mark(2, "3GiB"), None, {}, fixture=False)
    assert test.turn is not None
    assert sorted(test.turn.devices) == ["0", "1"]
    assert test.gpu is None
    keeper.end(test)


def test_with_the_fixture_it_is_told_which_it_has(keeper: Keeper, neighbour: Ledger) -> None:
    neighbour.acquire(2, memory=9 * GIB)  # of all three, those with the most room to the ledger: the first two
    test = keeper.begin("test_x", mark(memory="3GiB"), None, {}, fixture=True)
    assert test.gpu is not None
    assert (test.gpu.device, test.gpu.index, test.gpu.memory) == ("cuda:2", 2, 3 * GIB)
    keeper.end(test)
    plain = keeper.begin("test_y", None, None, {}, fixture=True)
    assert plain.gpu is not None
    assert (plain.gpu.device, plain.gpu.memory, plain.gpu.devices) == ("cuda:0", None, ("cuda:0",))


def test_ranks_have_what_the_ledger_granted_and_the_fixture_tells_what_each_sees(
    keeper: Keeper, neighbour: Ledger
) -> None:
    neighbour.acquire(1, memory=9 * GIB)  # the first
    test = keeper.begin("test_x", mark(memory="3GiB"), mark(2), {}, fixture=True)
    assert test.turn is not None
    assert sorted(test.turn.devices) == ["1", "2"]
    assert test.gpu is not None
    assert test.gpu.devices == ("cuda:0",)
    shown = [one["CUDA_VISIBLE_DEVICES"] for one in shares(mark(memory="3GiB"), 2)]
    assert shown == test.turn.devices
    keeper.end(test)
    assert shares(mark(), 2)[0] == {"CUDA_VISIBLE_DEVICES": "0"}
    named = keeper.begin("test_y", mark(memory="3GiB"), mark(), {"world_size": 2}, fixture=False)
    assert named.turn is not None
    assert len(named.turn.devices) == 2


def test_who_has_a_turn(keeper: Keeper) -> None:
    def takes(nodeid: str, asked: Any = None, **options: Any) -> bool:
        test = keeper.begin(nodeid, asked, None, {}, **{"fixture": False, **options})
        keeper.end(test)
        return test.turn is not None

    assert takes("test_learned")
    assert takes("test_learned@group")
    assert not takes("test_cpu")
    assert not takes("test_new"), "no default is set"
    assert takes("test_new", mark())
    assert takes("test_new", fixture=True)
    assert not takes("test_new", mark(memory="1GiB"), asks=False)
    assert not takes("test_new", mark(memory="none")), "its set-up tells"
    assert not takes("test_new", mark(8, memory="1GiB")), "its set-up tells"


def test_a_failure_that_the_interpreter_keeps_does_not_keep_tensors(keeper: Keeper) -> None:
    vars(sys)["last_value"] = ValueError("planted")
    test = keeper.begin("test_x", mark(), None, {}, fixture=False)
    keeper.end(test)
    assert hasattr(sys, "last_value")
    test = keeper.begin("test_x", mark(), None, {}, fixture=False)
    test.failed = True
    keeper.end(test)
    assert not hasattr(sys, "last_value")


def test_a_test_that_runs_pytest_in_its_own_process_keeps_its_turn(keeper: Keeper) -> None:
    outer = keeper.begin("test_outer", mark(), None, {}, fixture=False)
    inner = keeper.begin("test_inner", mark(), None, {}, fixture=False)
    assert _marker.turn is inner.turn
    keeper.end(inner)
    assert _marker.turn is outer.turn
    keeper.end(outer)
    assert _marker.turn is None


def test_what_cannot_be_had_is_kept_for_the_set_up(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    test = keeper.begin("test_x", mark(memory="11GiB"), None, {}, fixture=False)
    assert test.too_large == "needs 11.0 GiB on 1 GPU, found 1 with 10.0 GiB"

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(_ledger.Ledger, "acquire", broken)
    test = keeper.begin("test_x", mark(memory="1GiB"), None, {}, fixture=False)
    assert isinstance(test.problem, ValueError)


# In runs of pytest

# Loaded before our plugin: one card of 10 GiB, of which nothing is in use.
MACHINE = """
from pathlib import Path
from testkit.gpus import _amd, _nvml

_amd.SYS = Path("nowhere")
_nvml._ask = lambda what, *rest: {{"uuids": {cards!r}, "memory": [[0, 10 * 2**30] for _ in rest[1:]]}}.get(what)
"""

SUITE = """
import json, os, time
import pytest

def log(what):
    with open("log", "a") as file:
        file.write(json.dumps([time.monotonic(), what]) + chr(10))

@pytest.mark.gpus(memory="6GiB")
@pytest.mark.parametrize("n", range(4))
def test_large(n, gpu):
    assert gpu.device == "cuda:0"
    assert gpu.memory == 6 * 2**30
    log(1)
    time.sleep(0.1)
    log(-1)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(machine=MACHINE.format(cards=[A]))

    def run(*args: str, plugins: tuple[str, ...] = ()) -> pytest.RunResult:
        named = [part for name in ("machine", "testkit.gpus.plugin", *plugins) for part in ("-p", name)]
        return pytester.runpytest_subprocess(*named, "-p", "no:cacheprovider", "--strict-markers", *args, timeout=120)

    return run


Inner = Callable[..., pytest.RunResult]


def test_tests_of_several_workers_that_do_not_fit_together_run_one_after_the_other(
    run: Inner, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(SUITE)
    result = run("-n2", "--timing-dir=times", plugins=("xdist.plugin", "testkit.timing.plugin"))
    result.assert_outcomes(passed=4)
    steps = [what for _, what in sorted(json.loads(line) for line in Path("log").read_text().splitlines())]
    assert steps == [1, -1] * 4
    result.stdout.re_match_lines([r"gpus: .*waited \d+\.\d s for GPU memory"])
    [file] = Path("times").glob("*.jsonl*")
    assert '"gpus"' in file.read_text(), "the run file has the waits"


def test_no_clock_of_a_test_runs_while_it_waits(run: Inner, pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytest.importorskip("pytest_timeout")
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def device(gpu): pass

        @pytest.mark.timeout(1, func_only=False)
        @pytest.mark.gpus(memory="6GiB")
        def test_it(): pass
        """
    )
    ledger = Ledger(tmp_path / "ledger", {A: 10 * GIB})
    grant = ledger.acquire(memory=9 * GIB)

    def release_later() -> None:
        deadline = time.monotonic() + 60
        while len(list(ledger.path.glob("[!.]*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)  # until the test asks
        time.sleep(2)  # twice its limit
        grant.release()

    releasing = threading.Thread(target=release_later)
    releasing.start()
    try:
        result = run("-vv", "--durations=0", "--durations-min=1", plugins=("pytest_timeout",))
    finally:
        releasing.join()
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r"gpus: .*::test_it waited [2-9]\.\d s for GPU memory"])
    assert not [line for line in result.outlines if "s setup" in line or "s call" in line]


def test_a_test_alone_does_not_wait_and_nothing_is_said(run: Inner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = run()
    result.assert_outcomes(passed=4)
    assert not [line for line in result.outlines if line.startswith("gpus:")]
    assert not list(Path(os.environ["TESTKIT_GPUS_LEDGER"]).iterdir())


TOO_LARGE = """
import pytest

@pytest.mark.gpus(memory="20GiB")
def test_too_large(): pass

@pytest.mark.skip(reason="planted")
@pytest.mark.gpus(memory="20GiB")
def test_skipped(): pass

@pytest.mark.skipif(True, reason="planted, too")
@pytest.mark.gpus(memory="20GiB")
def test_skipped_if(): pass
"""


def test_what_is_larger_than_the_card_is_skipped_with_the_numbers_or_fails(
    run: Inner, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(TOO_LARGE)
    result = run("-rs")
    result.assert_outcomes(skipped=3)
    reasons = {line.partition(": ")[2] for line in result.outlines if line.startswith("SKIPPED")}
    assert reasons == {"needs 20.0 GiB on 1 GPU, found 1 with 10.0 GiB", "planted", "planted, too"}
    result = run("--gpus-missing=fail", "--tb=short")
    result.assert_outcomes(skipped=2, errors=1)
    result.stdout.fnmatch_lines(["gpus: needs 20.0 GiB on 1 GPU, found 1 with 10.0 GiB", "next: use a machine*"])


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["one-process", "xdist"])
def test_where_memory_cannot_be_read_the_end_of_the_run_says_so_once(
    run: Inner, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(machine=MACHINE.format(cards=[A]).replace('"memory": [[0, 10 * 2**30] for _ in rest[1:]]', ""))
    pytester.makepyfile(SUITE.replace("assert gpu.memory == 6 * 2**30", ""))
    result = run(*workers, plugins=("xdist.plugin",))
    result.assert_outcomes(passed=4)
    lines = [line for line in result.outlines if line.startswith("gpus:")]
    assert lines == ["gpus: memory of GPU 0 cannot be read, tests on it did not wait for any"]


def test_the_fixture_alone_needs_a_gpu_and_a_fixture_of_that_name_of_the_suites_own_does_not(
    run: Inner, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_it(gpu): assert gpu.device == 'cuda:0' and gpu.memory is None")
    run().assert_outcomes(passed=1)
    pytester.makepyfile(machine=MACHINE.format(cards=None))
    result = run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * needs 1 GPU, found 0 on this machine"])
    pytester.makeconftest("import pytest\n@pytest.fixture\ndef gpu(): return 'own'\n")
    pytester.makepyfile("def test_it(gpu): assert gpu == 'own'")
    run().assert_outcomes(passed=1)


def test_fixtures_that_are_set_up_without_tests_have_their_memory(run: Inner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def weights(gpu):
            assert gpu.memory == 2**30

        @pytest.mark.gpus(memory="1GiB")
        def test_it(weights): assert False
        """
    )
    result = run("--setup-only")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*SETUP    F weights*"])


def test_a_ledger_that_a_test_breaks_does_not_end_the_run(run: Inner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, shutil
        import pytest

        @pytest.mark.gpus(memory="1GiB")
        def test_removes():
            shutil.rmtree(os.environ["TESTKIT_GPUS_LEDGER"])
            open(os.environ["TESTKIT_GPUS_LEDGER"], "w").close()

        @pytest.mark.gpus(memory="1GiB")
        def test_asks(): pass

        def test_other(): pass
        """
    )
    result = run()
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "gpus: the ledger */ledger cannot be used: Not a directory",
            "gpus: what test_*.py::test_removes had comes back when its process ends: the ledger */ledger cannot*",
        ]
    )


def test_the_fixture_asked_for_by_a_running_test_says_what_to_do(run: Inner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_late(request): request.getfixturevalue('gpu')")
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*gpus: gpu was asked for when the test had begun*", "*next: name it in its arg*"])


def test_ranks_take_theirs_from_the_ledger_which_knows_their_processes(run: Inner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        from pathlib import Path
        import pytest

        @pytest.mark.ranks(1)
        @pytest.mark.gpus(memory="6GiB")
        def test_rank(rank):
            [record] = Path(os.environ["TESTKIT_GPUS_LEDGER"]).iterdir()
            assert f"[{os.getpid()}, " in record.read_text()
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        """
    )
    run(plugins=("testkit.processes.plugin",)).assert_outcomes(passed=1)


def test_a_server_is_named_in_its_tests_grant(run: Inner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, sys
        from pathlib import Path
        import pytest

        @pytest.mark.gpus(memory="6GiB")
        def test_server(server):
            running = server([sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"], ready="/")
            [record] = Path(os.environ["TESTKIT_GPUS_LEDGER"]).iterdir()
            assert f"[{running.pid}, " in record.read_text()
        """
    )
    run(plugins=("testkit.processes.plugin",)).assert_outcomes(passed=1)
