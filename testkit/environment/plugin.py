"""pytest's side of testkit.environment: the marker ``requires_machine`` and what follows where it is not met.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from testkit import _settings
from testkit._announce import announce
from testkit._marked import marked
from testkit._text import counted
from testkit.errors import MachineError

MARKER = "requires_machine"
MARKER_HELP = (
    f"{MARKER}(*requirements): skip the test, or fail it with --environment-requires=strict, where the machine does "
    'not have them all, such as "kernel>=6.8", "gpu_memory>=40GiB" or "gpu_arch in (gfx950, sm90)".'
)
OPTION = "--environment-requires"
ACTIONS = ("skip", "strict")
PER_TEST = "testkit.environment.per_test"


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "what follows where a machine lacks what a test requires: skip (default), or strict, a failure"
    _settings.add_option(parser, OPTION, metavar="ACTION", help=help)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    try:
        config.stash[STRICT] = (
            _settings.resolve(config, OPTION, _settings.one_of(ACTIONS, MachineError), ACTIONS[0]).value == "strict"
        )
    except MachineError as error:
        raise pytest.UsageError(str(error)) from error


STRICT = pytest.StashKey[bool]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """The per-test hook is for runs with a marker of ours in them."""
    manager = session.config.pluginmanager
    if not manager.has_plugin(PER_TEST) and marked(session.items, {MARKER}):
        manager.register(PerTest(session.config.stash[STRICT]), PER_TEST)


class PerTest:
    """Skips or fails marked tests that miss something. Registered as a plugin only when a marker was seen."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        try:
            missing = [one for text in _required(item) if (one := _missing(text))]
        except MachineError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        if not missing:
            return
        for one in missing:
            # Reports carry these to wherever the summary is written, and to JUnit files.
            if (MARKER, one) not in item.user_properties:
                item.user_properties.append((MARKER, one))
        announce(item.config, "environment", item.nodeid, {"missing": missing, "strict": self._strict})
        text = "; ".join(missing)
        if self._strict:
            fix = f"use a machine that has it, or leave {OPTION}=strict out"
            raise pytest.fail.Exception(str(MachineError(text, f"from marker {MARKER}", fix)), pytrace=False)
        raise pytest.skip.Exception(text, _use_item_location=True)  # else all such skips are at this line of ours


def _required(item: pytest.Item) -> list[str]:
    """What all markers on the item and above it state together."""
    texts: list[str] = []
    fix = f'give texts, such as {MARKER}("kernel>=6.8", "gpus>=2")'
    for mark in item.iter_markers(MARKER):
        if mark.kwargs:
            raise MachineError(f"there is no argument {next(iter(mark.kwargs))!r}", f"from marker {MARKER}", fix)
        if not mark.args:
            raise MachineError("nothing is required", f"from marker {MARKER}", fix)
        texts += mark.args
    return list(dict.fromkeys(map(str, texts)))


@cache  # a requirement stands on many tests, and the machine stays
def _missing(text: str) -> str:
    from testkit.environment._requirements import parse, unmet
    from testkit.environment._snapshot import snapshot

    return unmet(parse(text), snapshot())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many tests each requirement that is not met has kept from running, on all workers."""
    for category, word in (("skipped", "skipped"), ("error", "failed")):
        reports = terminalreporter.stats.get(category, ())
        lost = Counter(
            text for report in reports for name, text in getattr(report, "user_properties", ()) if name == MARKER
        )
        for text, number in sorted(lost.items(), key=lambda one: (-one[1], one[0])):
            terminalreporter.write_line(f"environment: {counted(number, 'test')} {word}: {text}")
