"""On the controller: workers that ended since they had lost their device, and what xdist then does."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

NEEDED = 2
"""Tests that a worker has to know to begin the first of them."""


def told_before(crashitem: str, report: Any, attribute: str) -> str:
    """What to say at the end of the run of a worker that ended on its own account; "" for one that crashed.

    It had told how its last test went, in a report with ``attribute``: xdist need not fail ``crashitem`` again. But
    where no other worker takes its place xdist ends the run without its other tests, and that must not pass.
    """
    node = report.node
    last = _loss(node, attribute)
    if last is None:
        return ""
    session = node.config.pluginmanager.get_plugin("dsession")
    what = f"gpus: {node.gateway.id} lost its device in {last.nodeid} ({vars(last)[attribute]}) and ended"
    if _is_last(session):
        what += "; it is not replaced, and the run ends here"
        report.longrepr = f"{what}\nnext: leave --max-worker-restart out, or raise it"
        return what
    report.when, report.outcome, report.longrepr = "teardown", "passed", None
    _keep_going(getattr(session, "sched", None))
    return f"{what}; its other tests run elsewhere"


def outlive(node: Any, attribute: str) -> None:
    """Let the run go on where xdist sends something to ``node`` after it has lost its device and ended.

    xdist hears of the end a moment later, and hands out the node's tests again. Of any other worker the error stands.
    """
    send = node.sendcommand

    def sendcommand(name: str, **arguments: Any) -> None:
        try:
            send(name, **arguments)
        except OSError:
            if _loss(node, attribute) is None:
                raise

    node.sendcommand = sendcommand


def _loss(node: Any, attribute: str) -> Any:
    """The report with ``attribute`` that came from ``node``, or None."""
    reporter = node.config.pluginmanager.get_plugin("terminalreporter")
    said = [one for reports in reporter.stats.values() for one in reports] if reporter is not None else []
    return next((one for one in said if attribute in vars(one) and vars(one).get("node") is node), None)


def _is_last(session: Any) -> bool:
    """Whether xdist's ``DSession`` replaces no worker any more; it counts this one after it has told us."""
    most = getattr(session, "_max_worker_restart", None)
    return most is not None and getattr(session, "_failed_nodes_count", 0) + 1 > most


def _keep_going(scheduler: Any) -> None:
    """Where xdist hands out whole scopes, a new worker is given one, and begins a test only when it knows the next one
    or that there is none. After a scope of one test it would wait for ever, and so would any worker after one that was
    done before and is handed out again: it has no test any more.
    """
    again, schedule = getattr(scheduler, "_reschedule", None), getattr(scheduler, "schedule", None)
    if again is None or schedule is None:
        return
    for name, scope in list(scheduler.workqueue.items()):
        if all(scope.values()):
            del scheduler.workqueue[name]
    if "schedule" in vars(scheduler):  # a worker before this one
        return

    def schedule_enough() -> None:
        schedule()
        for node in list(scheduler.nodes):
            with suppress(KeyError):  # one that is still to tell its collection
                while not node.shutting_down and scheduler._pending_of(scheduler.assigned_work[node]) < NEEDED:
                    again(node)

    scheduler.schedule = schedule_enough
