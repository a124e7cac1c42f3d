"""Folders for compiled kernels: each worker's own, or this run's alone; and locks that a killed build has left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.gpus._caches import EXTENSIONS, STALE, VARIABLES, Caches, left_locks

Run = Callable[..., pytest.RunResult]

SUITE = f"""
import json, os, time
from pathlib import Path
import pytest

@pytest.mark.parametrize("n", range(4))
def test_it(n):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    seen = {{name: os.environ.get(name) for name in {sorted(VARIABLES)!r}}}
    Path(seen["TRITON_CACHE_DIR"] or ".").mkdir(parents=True, exist_ok=True)
    Path(f"seen-{{worker}}.json").write_text(json.dumps(seen))
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pytester.makepyfile(SUITE)
    named = ("-p", "testkit.gpus.plugin", "-p", "xdist.plugin", "-p", "no:cacheprovider")
    return lambda *args: pytester.runpytest_subprocess(*named, *args, timeout=120)


def seen() -> dict[str, dict[str, str | None]]:
    return {file.stem.removeprefix("seen-"): json.loads(file.read_text()) for file in Path().glob("seen-*.json")}


def test_not_asked_for_nothing_is_set(run: Run) -> None:
    run("--gpus-caches=shared").assert_outcomes(passed=4)
    assert set(seen()["main"].values()) == {None}


def test_each_worker_has_its_own_and_they_stay(run: Run, tmp_path: Path) -> None:
    result = run("-n2", "--gpus-caches=worker")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["gpus: each worker has its own caches of compiled kernels"])
    for worker in ("gw0", "gw1"):
        triton = tmp_path / "cache" / "testkit" / "triton" / worker
        assert seen()[worker]["TRITON_CACHE_DIR"] == str(triton)
        assert triton.is_dir()


def test_a_folder_that_the_user_named_is_divided(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "mine"))
    run("-n1", "--gpus-caches=worker").assert_outcomes(passed=4)
    assert seen()["gw0"]["TRITON_CACHE_DIR"] == str(tmp_path / "mine" / "gw0")


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["one-process", "xdist"])
def test_fresh_ones_are_empty_and_gone_after_the_run(
    run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makeini("[pytest]\ngpus_caches = fresh\n")
    result = run(*workers)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["gpus: caches of compiled kernels are empty, and gone after this run"])
    [folder] = {found["TRITON_CACHE_DIR"] for found in seen().values()}
    assert folder is not None
    assert "testkit-caches-" in folder
    assert not Path(folder).exists()
    assert not Path(folder).parent.exists()


def test_a_fresh_folder_is_made_once() -> None:
    caches = Caches("fresh", {})
    try:
        assert caches.variables("gw0") == caches.variables("gw1")
    finally:
        caches.close()
    assert caches.variables("main") != {}
    caches.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="who has a file open is read from /proc")
def test_a_lock_that_a_killed_build_has_left_is_named(tmp_path: Path) -> None:
    environ = {EXTENSIONS: str(tmp_path)}
    lock = tmp_path / "py311_cu130" / "fused" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    now = time.time()
    assert left_locks(environ, now) == [], "a build may have begun just now"
    later = now + STALE + 7140
    assert left_locks(environ, later) == [
        f"gpus: {lock} is a lock that no process holds (2.0 h old); remove it if no build runs"
    ]
    with lock.open():
        assert left_locks(environ, later) == [], f"pid {os.getpid()} builds"
    assert left_locks({"HOME": str(tmp_path / "nobody")}, later) == []


def test_the_header_names_such_a_lock(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXTENSIONS, str(tmp_path / "extensions"))
    lock = tmp_path / "extensions" / "fused" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    os.utime(lock, (0, 0))
    run("--gpus-caches=shared").stdout.fnmatch_lines([f"gpus: {lock} is a lock that no process holds*"])
