"""The order in which tests start where workers share GPUs, and who puts them into it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testkit.gpus._budget import learned
from testkit.gpus._order import SAID, SECONDS, Sending, order_items, send, start_order

GIB = 2**30


def test_each_worker_begins_with_one_of_the_longest() -> None:
    """xdist gives the first two to the first worker, and so on: places 0 and 1, 2 and 3, 4 and 5."""
    order = start_order([1, 2, 3, 4, 5, 6, 7, 8], [""] * 8, 3)
    assert [order[0], order[2], order[4]] == [7, 6, 5]


def test_the_longest_has_the_shortest_of_the_second_tests_behind_it() -> None:
    order = start_order([1, 2, 3, 4, 5, 6, 7, 8], [""] * 8, 3)
    assert [order[1], order[3], order[5]] == [2, 3, 4]
    assert order[6:] == [1, 0]


def test_with_fewer_than_two_for_each_worker_they_are_dealt_as_they_come() -> None:
    assert start_order([1, 2, 3, 4, 5], [""] * 5, 3) == [4, 3, 2, 1, 0]


def test_equal_tests_stay_as_they_were_collected() -> None:
    assert start_order([1.0] * 6, [""] * 6, 1) == [0, 1, 2, 3, 4, 5]


def test_tests_that_stay_together_do_so_at_the_place_of_the_longest() -> None:
    assert start_order([3, 1, 9, 5, 2], ["", "m", "", "m", "m"], 1) == [2, 1, 3, 4, 0]


@pytest.mark.parametrize("seed", range(20))
def test_every_test_is_there_once(seed: int) -> None:
    chance = random.Random(seed)
    number = chance.randint(0, 40)
    seconds = [chance.choice([0, 1, 2.5, 7]) for _ in range(number)]
    together = [chance.choice(["", "m", "n"]) for _ in range(number)]
    order = start_order(seconds, together, chance.randint(1, 12))
    assert sorted(order) == list(range(number))


SUITE = """
import pytest

@pytest.fixture(scope="module")
def model():
    pass

@pytest.fixture(scope="session", params=[1, 2])
def device(request):
    pass

@pytest.fixture(scope="session")
def cache():
    pass

def test_short(): pass
def test_long(cache, tmp_path): pass
@pytest.mark.parametrize("n", [1, 2])
def test_sized(n): pass
"""


def test_tests_without_wider_fixtures_go_by_their_seconds_alone(pytester: pytest.Pytester) -> None:
    name = "test_tests_without_wider_fixtures_go_by_their_seconds_alone.py"
    known = {f"{name}::{test}": s for test, s in [("test_short", 1), ("test_long", 9), ("test_sized[2]", 5)]}
    items = pytester.getitems(SUITE)
    order_items(items, {**known, "gone": 7}, 1)
    assert [item.name for item in items] == ["test_long", "test_sized[1]", "test_sized[2]", "test_short"]


@pytest.mark.parametrize(
    "wide",
    [
        "def test_a(model): pass\ndef test_b(model): pass",
        "def test_a(device): pass",
        "class TestIt:\n    @pytest.fixture(scope='class')\n    def whole(self): pass\n"
        "    def test_a(self, whole): pass\n    def test_b(self, whole): pass",
        "def setup_module(): pass\ndef test_a(): pass\ndef test_b(): pass",
        "import unittest\nclass TestIt(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls): pass\n"
        "    def test_a(self): pass\n    def test_b(self): pass",
    ],
    ids=["module", "session with parameters", "class", "setup_module", "setUpClass"],
)
def test_tests_that_share_what_is_set_up_stay_together(pytester: pytest.Pytester, wide: str) -> None:
    setup = SUITE[: SUITE.index("def test_short")]
    pytester.makepyfile(test_1="def test_1(): pass", test_2=setup + wide, test_3="def test_3(): pass")
    items, _ = pytester.inline_genitems()
    assert len(items) == 4
    order_items(items, {items[0].nodeid: 5, items[1].nodeid: 1, items[2].nodeid: 9, items[3].nodeid: 7}, 1)
    assert [item.nodeid.partition("::")[0] for item in items] == ["test_2.py", "test_2.py", "test_3.py", "test_1.py"]
    assert [item.name.partition("[")[0] for item in items[:2]] in (["test_a", "test_b"], ["test_a", "test_a"])


def test_tests_of_a_kind_that_nobody_knows_stay_together() -> None:
    items = [SimpleNamespace(nodeid=f"{name}::{number}") for name, number in ("a1", "b1", "b2")]
    order_items(items, {"a::1": 5, "b::1": 1, "b::2": 9}, 1)
    assert [item.nodeid for item in items] == ["b::1", "b::2", "a::1"]


class Config:
    """As much of pytest's as is read."""

    def __init__(self, dist: str = "load", chunk: int | None = None, **options: Any) -> None:
        self.option = SimpleNamespace(maxschedchunk=chunk)
        self._options = {"dist": dist, **options}
        self._parser = SimpleNamespace(_inidict={})
        self.registered: list[Any] = []
        self.pluginmanager = SimpleNamespace(register=self.registered.append)

    def getoption(self, name: str, default: Any = None) -> Any:
        return self._options.get(name, default)

    def getini(self, name: str) -> Any:
        raise ValueError(name)


def test_the_controller_sends_the_seconds_to_every_worker() -> None:
    config = Config()
    assert send(config, {"test_a": 1.5}, memory=True) == [SAID]
    assert config.option.maxschedchunk == 1
    [sending] = config.registered
    assert isinstance(sending, Sending)
    node = SimpleNamespace(workerinput={})
    sending.pytest_configure_node(node)
    assert json.loads(node.workerinput[SECONDS]) == {"test_a": 1.5}


@pytest.mark.parametrize(
    ("config", "memory"),
    [
        (Config(), False),
        (Config("loadfile"), True),
        (Config("worksteal"), True),
        (Config("no"), True),
        (Config(chunk=5), True),
        (Config(testkit_timing_order="slowest"), True),
        (Config(failedfirst=True), True),
        (Config(newfirst=True), True),
    ],
    ids=["no memory", "loadfile", "worksteal", "no xdist", "chunks", "timing-order", "failed first", "new first"],
)
def test_the_order_is_left_alone(config: Config, memory: bool) -> None:
    before = config.option.maxschedchunk
    assert send(config, {"test_a": 1.5}, memory=memory) == []
    assert config.option.maxschedchunk == before
    assert config.registered == []


def test_without_seconds_there_is_no_order() -> None:
    assert send(Config(), {}, memory=True) == []


def test_seconds_are_the_median_of_past_runs_on_such_cards(tmp_path: Path) -> None:
    import testkit.timing._write as write
    from testkit.timing._run import Header, Timed

    for number, (model, seconds) in enumerate([("H200", 9.0), ("H200", 2.0), ("H200", 3.0), ("A10", 50.0)]):
        machine = {"environment": {"gpus": [{"model": model}]}}
        writer = write.Writer(tmp_path, Header(f"run-{number}", started=float(number), machine=machine))
        writer.add(Timed("test_a", setup=1.0, call=seconds - 1, gpu=GIB))
        writer.close(0, 1.0)
    assert learned(tmp_path, "H200", None).seconds == {"test_a": 3.0}


# ------------------------------------------------------------------ a run with two workers

Run = Callable[..., pytest.RunResult]

# Loaded before our plugin: one card, on which each test has a peak; past runs say what the tests took.
MACHINE = """
from pathlib import Path
from testkit.gpus import _amd, _budget, _nvml

_amd.SYS = Path("nowhere")
_nvml._ask = lambda what, *rest: ["GPU-0"] if what == "uuids" else None
_budget.read_budgets = lambda config, devices, default: _budget.Budgets(PEAKS, 1, default, SECONDS)
PEAKS, SECONDS = {peaks!r}, {seconds!r}
"""
TESTS = """
from pathlib import Path
import pytest

@pytest.fixture(autouse=True)
def told(request, worker_id):
    with Path("told").open("a") as file:
        file.write(f"{worker_id} {request.node.name}\\n")

@pytest.mark.parametrize("n", range(8))
def test_it(n): pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("TESTKIT_GPUS_LEDGER", str(tmp_path / "ledger"))
    pytester.makepyfile(test_order=TESTS)

    def run(*arguments: str, peak: int = GIB) -> pytest.RunResult:
        ids = [f"test_order.py::test_it[{n}]" for n in range(8)]
        machine = MACHINE.format(peaks=dict.fromkeys(ids, peak), seconds={name: n for n, name in enumerate(ids)})
        pytester.makepyfile(machine=machine)
        return pytester.runpytest_subprocess("-p", "machine", "-p", "xdist", "-p", "testkit", "-v", *arguments)

    return run


def first_of_each(pytester: pytest.Pytester) -> set[str]:
    """The test that each worker ran first."""
    first: dict[str, str] = {}
    for line in (pytester.path / "told").read_text().splitlines():
        worker, test = line.split()
        first.setdefault(worker, test)
    return set(first.values())


def test_under_xdist_the_longest_start_first(run: Run, pytester: pytest.Pytester) -> None:
    result = run("-n2", "--gpus-use=auto")
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines([SAID])
    assert first_of_each(pytester) == {"test_it[7]", "test_it[6]"}


def test_where_no_past_test_used_a_gpu_nothing_is_ordered(run: Run, pytester: pytest.Pytester) -> None:
    result = run("-n2", "--gpus-use=auto", peak=0)
    result.assert_outcomes(passed=8)
    result.stdout.no_fnmatch_line(SAID)
    assert "test_it[0]" in first_of_each(pytester)


def test_without_gpus_use_nothing_is_ordered(run: Run, pytester: pytest.Pytester) -> None:
    run("-n2").assert_outcomes(passed=8)
    assert "test_it[0]" in first_of_each(pytester)


def test_a_suite_that_orders_its_tests_itself_is_ordered_after_that(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        @pytest.hookimpl(wrapper=True)
        def pytest_collection_modifyitems(items):
            yield
            items.sort(key=lambda item: item.name)
        """
    )
    run("-n2", "--gpus-use=auto").assert_outcomes(passed=8)
    assert first_of_each(pytester) == {"test_it[7]", "test_it[6]"}


def test_a_worker_that_replaces_a_crashed_one_collects_in_the_same_order(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import os
        def pytest_runtest_call(item):
            if item.name == "test_it[7]":
                os._exit(3)
        """
    )
    run("-n2", "--gpus-use=auto").assert_outcomes(passed=7, failed=1)
