"""Installing testkit changes no run: same output, nothing heavy imported, nothing of ours called once a test."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

HEAVY = ("torch", "numpy", "allpairspy", "cloudpickle", "psutil", "jinja2", "duckdb")
PER_TEST_HOOKS = (
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "pytest_runtest_call",
    "pytest_runtest_teardown",
    "pytest_runtest_makereport",
    "pytest_runtest_logreport",
    "pytest_runtest_logstart",
    "pytest_runtest_logfinish",
    "pytest_pyfunc_call",
    "pytest_fixture_setup",
    "pytest_fixture_post_finalizer",
)

# Every outcome once, and the ways to parametrize.
SUITE = """
    import unittest
    import warnings
    import pytest

    @pytest.fixture(params=["left", "right"], scope="module")
    def side(request):
        return request.param

    @pytest.mark.parametrize("n", [1, 2, 3])
    @pytest.mark.parametrize("k,m", [(1, 2), pytest.param(3, 4, id="big", marks=pytest.mark.skip(reason="big"))])
    def test_product(n, k, m, side):
        assert n < 3

    class TestClass:
        def test_method(self, tmp_path):
            warnings.warn("look", UserWarning)

        @pytest.mark.xfail(reason="known")
        def test_known(self):
            assert 0

    class TestOld(unittest.TestCase):
        def test_old(self):
            self.assertTrue(True)

    @pytest.fixture
    def broken():
        raise RuntimeError("no device")

    def test_error(broken):
        pass
"""

WITNESS = f"""
    import json
    import os
    import sys
    import pytest

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(config):
        named = [(name, plugin) for name, plugin in config.pluginmanager.list_name_plugin() if plugin]
        plugins = {{name: getattr(plugin, "__name__", "") for name, plugin in named}}
        implementations = {{
            hook: [impl.function.__module__ for impl in getattr(config.hook, hook).get_hookimpls()]
            for hook in {PER_TEST_HOOKS!r}
        }}
        process = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with open(f"witness-{{process}}.json", "w") as file:
            json.dump({{
                "heavy": [name for name in {HEAVY!r} if name in sys.modules],
                "testkit": [name for name in sys.modules if name.split(".")[0] == "testkit"],
                "plugins": [name for name in plugins if name and name.split(".")[0] == "testkit"],
                "faces": [name for name in plugins.values() if name.startswith("testkit.") and name.count(".") == 1],
                "per_test": {{
                    hook: [module for module in modules if module.split(".")[0] == "testkit"]
                    for hook, modules in implementations.items()
                }},
            }}, file)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An unmarked suite in a world where testkit is installed and entry points load."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def output(suite: pytest.Pytester, *arguments: str) -> list[str]:
    result = suite.runpytest_subprocess("-p", "no:cacheprovider", "--basetemp=temporary", *arguments)
    seconds = re.compile(r"\d+\.\d\ds( \(\d:\d\d:\d\d\))?")
    # The closing line is centred: its fill is as long as the seconds leave room for.
    lines = [re.sub("=+", "=", seconds.sub("0.00s", line)) for line in result.outlines]
    lines = [re.sub("0x[0-9a-f]+", "0x", line) for line in lines]
    return [line for line in lines if not line.startswith("plugins: ")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-rA"],
        ["-v", "--tb=long", "-l"],
        ["-q", "-x"],
        ["--collect-only"],
        ["--setup-plan"],
        ["--strict-markers", "-W", "error"],
        ["-k", "big or left"],
        ["--fixtures-per-test"],
    ],
    ids=" ".join,
)
def test_output_is_the_same_with_and_without_us(suite: pytest.Pytester, arguments: list[str]) -> None:
    without = output(suite, "-p", "no:testkit", *arguments)
    assert len(without) > 3
    assert output(suite, *arguments) == without


def test_output_is_the_same_under_xdist(suite: pytest.Pytester) -> None:
    def lines(*extra: str) -> list[str]:
        # Which worker comes first is chance.
        return sorted(re.sub(r"\[gw\d\] *(\[ *\d+%\])?", "", line) for line in output(suite, "-n2", "-v", *extra))

    assert lines() == lines("-p", "no:testkit")


def witnesses(suite: pytest.Pytester, *arguments: str) -> dict[str, dict[str, Any]]:
    """What each process of a run saw at its end: ``main``, and under xdist ``gw0``, ``gw1``."""
    suite.makeconftest(WITNESS)
    suite.runpytest_subprocess(*arguments)
    return {path.stem.removeprefix("witness-"): json.loads(path.read_text()) for path in suite.path.glob("witness-*")}


@pytest.mark.parametrize(("option", "processes"), [("-n0", {"main"}), ("-n2", {"main", "gw0", "gw1"})])
def test_an_unmarked_run_ends_with_nothing_of_ours_at_work(
    suite: pytest.Pytester, option: str, processes: set[str]
) -> None:
    seen = witnesses(suite, option)
    assert set(seen) == processes
    for process, saw in seen.items():
        assert {"testkit", "testkit.pairwise.plugin", "testkit.cleanup.plugin"} <= set(saw["plugins"])
        assert saw["heavy"] == []
        assert saw["faces"] == []
        assert {"testkit.processes._group", "testkit.processes._server"}.isdisjoint(saw["testkit"])  # 40 ms of imports
        assert not {hook for hook, modules in saw["per_test"].items() if modules}, process


def test_left_out_means_not_even_imported(suite: pytest.Pytester) -> None:
    saw = witnesses(suite, "-p", "no:testkit")["main"]
    assert saw["plugins"] == []
    assert saw["testkit"] == []
