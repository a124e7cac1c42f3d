"""Our options, ini keys, markers and fixtures: each starts with a capability's word, none is somebody else's."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

# The words that a capability's names start with. `ranks` and `server` are testkit.processes.
WORDS = ("pairwise", "cleanup", "ranks", "server", "gpus", "timing", "kernels", "syncs", "environment", "matrix")
ON_PURPOSE = {
    "--no-pairwise",
    "gpu",
    "module_cleanup",
    "channel",
    "skip_global_cleanup",  # the word that kernel suites already use
    "fresh_process",
    "no_gpu_sync",
    "requires_machine",
}

# The public names of widely used plugins, and of popular fixtures and markers that suites define for themselves.
TAKEN = {
    "pytest-xdist": """
        --numprocesses --maxprocesses --max-worker-restart --dist --loadscope-reorder --no-loadscope-reorder --tx --px
        --distload --rsyncdir --rsyncignore --testrunuid --maxschedchunk --looponfail
        rsyncdirs rsyncignore looponfailroots worker_id testrun_uid xdist_group
    """,
    "pytest-timeout": """
        --timeout --timeout-method --timeout-disable-debugger-detection --session-timeout
        timeout timeout_method timeout_func_only timeout_disable_debugger_detection session_timeout
    """,
    "pytest-rerunfailures": """
        --reruns --reruns-delay --only-rerun --rerun-except --fail-on-flaky --force-reruns
        reruns reruns_delay only_rerun rerun_except flaky
    """,
    "pytest-cov": """
        --cov --cov-reset --cov-report --cov-config --no-cov-on-fail --no-cov --cov-fail-under --cov-append --cov-branch
        --cov-precision --cov-context cov no_cover
    """,
    "pytest-asyncio": """
        --asyncio-mode --asyncio-debug asyncio_mode asyncio_debug asyncio_default_fixture_loop_scope
        asyncio_default_test_loop_scope asyncio event_loop event_loop_policy
        unused_tcp_port unused_tcp_port_factory unused_udp_port unused_udp_port_factory
    """,
    "pytest-mock": """
        mock_traceback_monkeypatch mock_use_standalone_module
        mocker class_mocker module_mocker package_mocker session_mocker
    """,
    "pytest-benchmark": """
        --benchmark-min-time --benchmark-max-time --benchmark-min-rounds --benchmark-timer
        --benchmark-calibration-precision --benchmark-warmup --benchmark-warmup-iterations --benchmark-disable-gc
        --benchmark-skip --benchmark-disable --benchmark-enable --benchmark-only --benchmark-save --benchmark-autosave
        --benchmark-save-data --benchmark-json --benchmark-compare --benchmark-compare-fail --benchmark-cprofile
        --benchmark-storage --benchmark-netrc --benchmark-verbose --benchmark-quiet --benchmark-sort
        --benchmark-group-by --benchmark-columns --benchmark-name --benchmark-histogram --benchmark-time-unit
        benchmark benchmark_weave
    """,
    "pytest-split": """
        --store-durations --durations-path --splits --group --splitting-algorithm --clean-durations
    """,
    "pytest-randomly": """
        --randomly-seed --randomly-dont-reset-seed --randomly-dont-reorganize
    """,
    "anyio": """
        anyio anyio_mode anyio_backend anyio_backend_name anyio_backend_options
        free_tcp_port free_tcp_port_factory free_udp_port free_udp_port_factory
    """,
    "hypothesis": """
        --hypothesis-profile --hypothesis-verbosity --hypothesis-show-statistics --hypothesis-seed
        --hypothesis-explain hypothesis
    """,
}

Names = dict[str, set[str]]


def test_every_kind_of_name_is_seen(our_names: Names) -> None:
    assert "--pairwise-strength" in our_names["options"]
    assert "pairwise_strength" in our_names["ini"]
    assert {"pairwise", "skip_global_cleanup"} <= our_names["markers"]


def test_names_start_with_the_word_of_their_capability(our_names: Names) -> None:
    pattern = re.compile(rf"(--)?({'|'.join(WORDS)})([-_].*)?$")
    strays = {name for names in our_names.values() for name in names if not pattern.match(name)}
    assert not strays - ON_PURPOSE


@pytest.mark.parametrize("plugin", TAKEN)
def test_no_name_of_ours_is_a_name_of_a_widely_used_plugin(our_names: Names, plugin: str) -> None:
    theirs = set(TAKEN[plugin].split())
    for kind, names in our_names.items():
        assert not names & theirs, kind


@pytest.mark.parametrize(
    ("plugin", "module"), [("pytest-xdist", "xdist.plugin"), ("pytest-rerunfailures", "pytest_rerunfailures")]
)
def test_the_table_agrees_with_the_plugins_that_are_installed(
    names_of_plugins: Callable[..., Names], plugin: str, module: str
) -> None:
    """A table written from documentation ages. Two of its rows can be compared with the real thing."""
    real = set().union(*names_of_plugins(module).values())
    listed = set(TAKEN[plugin].split())
    assert len(real & listed) > len(listed) / 2
