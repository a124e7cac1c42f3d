"""One process's part in a division: it chooses among pytest's items, and says at the end what it chose.

The hooks are xdist's, of the controller; ``Division`` is registered as a plugin where xdist is, so they need no marks
of pytest's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from testkit.timing._run import Whole, canonical
from testkit.timing._shard import choose, units_of
from testkit.timing._task import Task

TASK = "testkit_timing_task"
"""Where the task travels, in ``workerinput``, and what was chosen comes back, in ``workeroutput``."""
FIRST = "testkit_timing_first"
"""In the ``workerinput`` of the one worker that announces what all of them chose alike."""


class Division:
    """``name`` makes a test's name out of its node id. ``worker`` is the ``workerinput`` of an xdist worker, or None.

    ``lines`` are for the end of the run; ``empty``: the plan has nothing for this shard; ``refused`` says why none of
    its tests may run.
    """

    def __init__(self, task: Task, name: Callable[[str], str], worker: Mapping[str, Any] | None) -> None:
        self.task = task
        self.lines = [f"timing: {note}" for note in task.notes]
        self.empty = False
        self.refused = ""
        self._name = name
        self._announces = worker is None or bool(worker.get(FIRST))
        self._text = ""

    def divide(self, items: list[Any], hook: Any) -> Whole | None:
        """Leave in ``items`` what is to run, in that order. Returns all that there was, if the rest runs elsewhere.

        Raises TimingError (see ``choose``).
        """
        ids = [canonical(self._name(item.nodeid)) for item in items]
        choice = choose(ids, units_of(items, self._name), self.task)
        self.lines, self.empty = choice.lines(), bool(choice.shard and not choice.selected)
        if self.task.shard or self.task.order:
            by_id = dict(zip(ids, items, strict=True))
            items[:] = [by_id.pop(name) for name in choice.selected]
            if by_id:
                hook.pytest_deselected(items=list(by_id.values()))
        if self._announces:
            for kind, data in choice.records():
                hook.pytest_testkit_record(kind=kind, nodeid="", data=data)
        return Whole.of(ids) if choice.shard else None

    def send(self, output: dict[str, Any]) -> None:
        """Tell the controller, which says it at the end; ``output`` is this worker's ``workeroutput``."""
        output[TASK] = json.dumps([self.lines, self.empty, self.refused])

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[FIRST] = not self._text
        self._text = self._text or self.task.to_text()
        node.workerinput[TASK] = self._text

    def pytest_testnodedown(self, node: Any) -> None:
        text = (getattr(node, "workeroutput", None) or {}).get(TASK)
        if text:
            self.lines, self.empty, self.refused = json.loads(text)
