"""Inner runs for the tests of the clean-up plugin: only named plugins, and a witness of what is still alive."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# Builds objects that only a collection frees (each refers to itself), and counts those alive.
WITNESS = """
import weakref

REFS = []
LOG = []


class Engine:
    def __init__(self):
        self.me = self


def build():
    engine = Engine()
    REFS.append(weakref.ref(engine))
    return engine


def alive():
    return sum(ref() is not None for ref in REFS)


def look():
    LOG.append(f"clean-up: {len(REFS)} built, {alive()} alive")
"""

# Looks once more before anything of the next test is set up, and prints all that was seen.
WITNESS_CONFTEST = """
import pytest
import witness


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    if item.name == "test_next_module":
        witness.LOG.append(f"next set-up: {len(witness.REFS)} built, {witness.alive()} alive")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    for line in witness.LOG:
        terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def engine():
    return witness.build()
"""


@pytest.fixture
def run(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run pytest in its own process on the files written so far, with our plugin and those that are named."""

    def run(*args: str, plugins: tuple[str, ...] = ("testkit.cleanup.plugin",)) -> pytest.RunResult:
        named = [part for plugin in plugins for part in ("-p", plugin)]
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *named, *args, timeout=120)

    return run


@pytest.fixture
def witness(pytester: pytest.Pytester) -> None:
    """The module ``witness``, importable in inner runs."""
    pytester.makepyfile(witness=WITNESS)
    pytester.makeconftest(WITNESS_CONFTEST)
