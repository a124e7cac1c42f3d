"""The marker ``gpus`` in inner runs: who is skipped with which numbers, what is refused, and what costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from testkit._marked import marked
from testkit.errors import GpusError
from testkit.gpus import plugin, shares
from testkit.gpus._marker import Need, wanted

Run = Callable[..., pytest.RunResult]

SUITE = """
import pytest

@pytest.mark.gpus
def test_one():
    pass

@pytest.mark.gpus(2)
def test_two():
    pass

def test_unmarked():
    pass
"""

# Tells at the end of a run whether the per-test hook was there.
WITNESS = """
def pytest_terminal_summary(terminalreporter, config):
    there = config.pluginmanager.has_plugin("testkit.gpus.per_test")
    terminalreporter.write_line(f"per-test hook: {there}")
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest in its own process with our plugin and one allowed device; others are named by position."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    # on whichever machine: its cards are not seen, so that the list is believed
    unseen = "from pathlib import Path\nfrom testkit.gpus import _amd, _nvml\n"
    unseen += "_nvml.DRIVER = _nvml.WSL = _amd.SYS = Path('nowhere')\n"
    pytester.makeconftest(unseen + WITNESS)

    def run(*args: str, plugins: tuple[str, ...] = ("testkit.gpus.plugin",)) -> pytest.RunResult:
        named = [part for name in plugins for part in ("-p", name)]
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers", *named, *args, timeout=120)

    return run


def test_a_test_that_needs_more_devices_than_are_allowed_is_skipped_with_the_numbers(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(SUITE)
    result = run("-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED [[]1] test_a_test*.py:7: needs 2 GPUs, found 1 (CUDA_VISIBLE_DEVICES=0)"])


def test_where_none_is_allowed_every_marked_test_is_skipped(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    pytester.makepyfile(SUITE)
    result = run("-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED *: needs 1 GPU, found 0 on this machine"])


def test_the_skip_comes_before_any_fixture(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def engine():
            raise RuntimeError("started on a device that is not there")

        @pytest.mark.gpus(2)
        def test_two(): pass
        """
    )
    run().assert_outcomes(skipped=1)


def test_the_closest_of_several_markers_counts(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.gpus(8)

        @pytest.mark.gpus(4)
        class TestSome:
            @pytest.mark.gpus(1)
            def test_one(self): pass

            def test_four(self): pass

        def test_eight(): pass
        """
    )
    result = run("-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*needs 4 GPUs*", "*needs 8 GPUs*"])


def test_a_test_that_is_skipped_anyway_keeps_its_reason(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.skip(reason='planted')\n@pytest.mark.gpus(2)\ndef test_two(): pass\n"
    )
    run("-rs").stdout.fnmatch_lines(["SKIPPED * planted"])


@pytest.mark.parametrize(
    ("arguments", "line", "fix"),
    [
        ("0", "count is 0, not a whole number from 1 up", "give 1 or more"),
        ("True", "count is True, not a whole number from 1 up", "give 1 or more"),
        ("'2'", "count is '2', not a whole number from 1 up", "give 1 or more"),
        ("cuont=2", "there is no argument 'cuont'", "give count, memory, exclusive"),
        ("memory='8 gigs'", "'8 gigs' has the unknown unit 'gigs'", "use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB"),
        ("1, 0.5", "0.5 is not a size", "give a size such as 2GiB, 500MiB or 4096 (bytes)"),
        ("'20GiB'", "count is '20GiB', not a whole number from 1 up", "write memory='20GiB'"),
        ("memory=0", "a test cannot need 0 (0 bytes)", "give what a test needs, such as 2GiB"),
        ("memory=20", "a test cannot need 20 (20 bytes)", "give what a test needs, such as 2GiB"),
        ("exclusive='yes'", "exclusive is 'yes'", "give True or False"),
        ("1, count=2", "count is given twice", "give it once"),
        ("1, None, False, 3", "4 arguments are given", "give count, memory, exclusive"),
    ],
)
def test_a_marker_that_cannot_be_used_fails_its_test_with_one_clear_message(
    run: Run, pytester: pytest.Pytester, arguments: str, line: str, fix: str
) -> None:
    pytester.makepyfile(
        f"import pytest\n@pytest.mark.gpus({arguments})\ndef test_bad(): pass\n\ndef test_good(): pass\n"
    )
    result = run("--tb=short")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"gpus: {line} (from marker gpus)", f"next: {fix}"])
    assert "Traceback" not in result.stdout.str()
    assert "_marker.py" not in result.stdout.str()


def test_a_test_that_is_expected_to_fail_is_refused_all_the_same(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.xfail
        @pytest.mark.gpus(0)
        def test_wrong(): pass

        @pytest.mark.xfail
        @pytest.mark.gpus(2)
        def test_missing(): pass

        @pytest.mark.xfail
        @pytest.mark.gpus
        def test_fails(): assert False

        @pytest.mark.xfail
        @pytest.mark.gpus
        @pytest.mark.parametrize("how", [pytest.fail])
        def test_calls(how): how("of its own")
        """
    )
    assert run().parseoutcomes() == {"errors": 1, "skipped": 1, "xfailed": 2}
    assert run("--gpus-missing=fail").parseoutcomes() == {"errors": 2, "xfailed": 2}


def test_the_arguments_are_read_by_place_and_by_name() -> None:
    assert wanted((), {}) == Need(1, None, False)
    assert wanted((3, "2GiB", True), {}) == Need(3, 2 * 2**30, True)
    assert wanted((), {"count": 2, "memory": 4096, "exclusive": False}) == Need(2, 4096, False)


def test_tests_with_ranks_are_left_to_them(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.ranks(2)\n@pytest.mark.gpus(8)\ndef test_ranks(): pass\n")
    result = run("-o", "markers=ranks: stands in for the marker of testkit.processes")
    result.assert_outcomes(passed=1)


def test_each_rank_is_shown_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7,2,3,0")
    mark = SimpleNamespace(args=(2,), kwargs={})
    assert shares(mark, 2) == [{"CUDA_VISIBLE_DEVICES": "4,7"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    with pytest.raises(pytest.skip.Exception, match=r"needs 6 GPUs, found 5 \(CUDA_VISIBLE_DEVICES=4,7,2,3,0\)"):
        shares(mark, 3)
    with pytest.raises(pytest.fail.Exception, match="count is 0"):
        shares(SimpleNamespace(args=(), kwargs={"count": 0}), 2)


def test_a_run_without_the_marker_has_no_hook_of_ours_per_test(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_unmarked(): pass\n")
    result = run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["per-test hook: False"])
    pytester.makepyfile(test_marked=SUITE)
    run().stdout.fnmatch_lines(["per-test hook: True"])


def test_the_look_for_markers_reads_each_node_once() -> None:
    read = []

    class Node:
        def __init__(self, parent: Node | None) -> None:
            self.parent = parent

        @property
        def own_markers(self) -> list[object]:
            read.append(self)
            return [SimpleNamespace(name="slow")]

    module = Node(Node(None))
    items = [Node(module) for _ in range(50)]
    assert not marked(items, {plugin.MARKER})
    assert len(read) == len(set(read)) == 52


def test_the_marker_is_listed_with_its_arguments(run: Run) -> None:
    run("--markers").stdout.fnmatch_lines(["@pytest.mark.gpus(count=1, memory=None, exclusive=False): *"])


def test_workers_of_xdist_skip_as_one_process_does(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = run("-n2", "-rs", plugins=("testkit.gpus.plugin", "xdist.plugin"))
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * needs 2 GPUs, found 1 (CUDA_VISIBLE_DEVICES=0)"])


def test_an_error_of_ours_has_the_word_of_its_capability() -> None:
    with pytest.raises(GpusError, match="gpus: count is None"):
        wanted((None,), {})
