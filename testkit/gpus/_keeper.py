"""What is done around each test of a process: what it needs, its turn, what it may be told, and who is to blame."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from testkit.errors import GpusError
from testkit.gpus import _marker, _nvml
from testkit.gpus._after import blame, ran_out
from testkit.gpus._budget import Budgets, read_budgets
from testkit.gpus._devices import allowed
from testkit.gpus._ledger import TooLarge
from testkit.gpus._marker import Gpu, Need, wanted, within
from testkit.gpus._turn import Turn, Turns


@dataclass
class Current:
    """One test while it runs. ``too_large``: what no device here has; ``problem``: why it may not begin."""

    nodeid: str
    turn: Turn | None = None
    gpu: Gpu | None = None
    too_large: str = ""
    problem: Exception | None = None
    failed: bool = False
    lost: str = ""
    outer: Turn | None = None
    """That of the test which runs this one's pytest in its own process."""


def read(config: Any, told: str | None, default: int | None) -> Budgets:
    """The budgets that the controller sent, or those that this process reads itself."""
    return read_budgets(config, allowed(), default) if told is None else Budgets.from_text(told)


class Keeper:
    """The tests of this process, one at a time. ``everything``: those without a marker take turns, too."""

    def __init__(self, budgets: Budgets, *, everything: bool, turns: Turns | None = None) -> None:
        self._budgets = budgets
        self._everything = everything
        self._turns = turns or Turns()

    @property
    def unread(self) -> list[str]:
        """Devices whose memory nobody can read."""
        return self._turns.unread

    def begin(
        self,
        nodeid: str,
        mark: Any,
        ranks: Any,
        params: Mapping[str, Any],
        *,
        fixture: bool,
        asks: bool = True,
    ) -> Current:
        """Wait for what the test needs. ``mark`` and ``ranks`` are its markers of these names, or None.

        Raises nothing but an interrupt: what is wrong is said at its set-up. ``asks``: whether it will run at all.
        """
        test = Current(nodeid, outer=_marker.turn)
        marked = mark is not None or fixture
        if not asks or not (marked or self._everything):
            return test
        try:
            need = wanted(mark.args, mark.kwargs) if mark is not None else Need()
        except GpusError:
            return test
        memory, source = self._budgets.of(nodeid, need.memory, marked=marked)
        if marked or memory:
            size = 1 if ranks is None else _world_size(ranks, params)
            wants = replace(need, count=need.count * size, memory=memory or None)
            self._wait(test, wants, source, fixture=fixture, ranks=ranks is not None)
        if fixture:
            places = test.turn.places if test.turn is not None and ranks is None else range(need.count)
            names = tuple(f"cuda:{place}" for place in places)
            test.gpu = Gpu(names[0], places[0], memory or None, names) if names else None
        _marker.turn = test.turn
        return test

    def _wait(self, test: Current, need: Need, source: str, *, fixture: bool, ranks: bool) -> None:
        devices = within(here=not ranks)[0]
        # Without the fixture a test does not hear of others: these are what torch takes. And where it is not known what
        # it takes, there is nothing to choose by.
        if not (fixture or ranks) or (need.memory is None and not need.exclusive):
            devices = devices[: need.count]
        _nvml.keep_asking()
        try:
            test.turn = self._turns.wait(need, source, test.nodeid, devices, fresh=ranks)
        except TooLarge as error:
            test.too_large = error.problem
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this test's and not the whole run's
            test.problem = error

    def end(self, test: Current) -> list[str]:
        """It is over and torn down: what it had comes back. Says so where it does not."""
        _marker.turn = test.outer
        if test.failed and test.turn is not None:
            _forget_failure()
        try:
            if test.turn is not None:
                self._turns.end(test.turn)
        except GpusError as error:  # the next test may run all the same
            return [f"gpus: what {test.nodeid} had comes back when its process ends: {error.problem}"]
        return []

    def blamed(self, test: Current, error: BaseException) -> str:
        """Who took the memory, if ``error`` says that there was none; else ""."""
        cause: BaseException | None = error
        while cause is not None and not ran_out(cause):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            return ""
        devices = allowed()
        try:
            return blame(cause, test.turn, devices, self._turns.grants(devices))
        except Exception as problem:  # noqa: BLE001 - the test's own failure must be told whatever comes
            return f"gpus: out of memory, and who is to blame is not known: {type(problem).__name__}: {problem}"

    def close(self) -> None:
        """The run is over."""
        _nvml.stop_asking()


def _forget_failure() -> None:
    """The interpreter keeps the last failure for a debugger, and with its frames the tensors of the test."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def _world_size(ranks: Any, params: Mapping[str, Any]) -> int:
    """As testkit.processes takes it from the marker or the parameter; what is wrong with it is said there."""
    given = [*ranks.args, ranks.kwargs.get("world_size"), params.get("world_size")]
    size = next((value for value in given if value is not None), 1)
    return size if isinstance(size, int) and size > 0 else 1


def is_skipped(item: Any) -> bool:
    """Whether a test's marks will skip it, or are wrong: nobody should wait for memory then."""
    if item.get_closest_marker("skip") is None and item.get_closest_marker("skipif") is None:
        return False
    from _pytest.skipping import evaluate_skip_marks

    try:
        return evaluate_skip_marks(item) is not None
    except BaseException as error:  # a condition may raise anything, and pytest's fail() is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return True  # its set-up will tell
