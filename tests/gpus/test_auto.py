"""What ``-n auto`` is beside ``--gpus-use``, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from testkit.gpus import _auto

GIB = 2**30
A, B, C = (f"GPU-{digit * 8}-682d-b506-9ad9-d1c595d6d2ad" for digit in "012")

Plant = Callable[..., object]
Run = Callable[..., pytest.RunResult]

# Loaded before our plugin: two cards of 10 GiB, one of them half full, and 16 cores.
MACHINE = """
from pathlib import Path
from testkit.gpus import _amd, _nvml, _threads

_amd.SYS = Path("nowhere")
_threads.cores = lambda: {cores}
USED = {{"0": 0, "1": 5 * 2**30}}

def answer(what, *rest):
    if what == "uuids":
        return {cards!r}
    return [[USED[device], 10 * 2**30] for device in rest[1:]] if what == "memory" and {readable} else None

_nvml._ask = answer
"""


def test_without_a_memory_there_is_one_worker_a_gpu_and_no_more_than_cores() -> None:
    auto = _auto.workers(["4", "7"], 16, None)
    assert (auto.count, auto.slots) == (2, ["4", "7"])
    assert auto.why == "2 GPUs, one worker each without --gpus-default-memory; 16 cores"
    assert _auto.workers(["4", "7"], 1, None).count == 1


def test_with_a_memory_it_is_what_fits_into_what_is_free(nvidia: Plant) -> None:
    nvidia(A, B, C)  # of 10 GiB; 0, 1 and 2 GiB in use
    auto = _auto.workers(["0", "1", "2"], 64, 3 * GIB, {})
    assert auto.count == 3 + 3 + 2
    assert auto.slots == ["0", "1", "2", "0", "1", "2", "0", "1"]
    assert auto.why == "3 GPUs with room for 8 at 3.0 GiB a test; 64 cores"


def test_it_is_never_more_than_cores(nvidia: Plant) -> None:
    nvidia(A, B, C)
    auto = _auto.workers(["0", "1", "2"], 4, 1, {})
    assert auto.count == 4
    assert len(auto.slots) == 12
    assert auto.why == f"3 GPUs with room for {27 * GIB:,} at 0.0 GiB a test; 4 cores"


def test_it_is_never_none(nvidia: Plant) -> None:
    nvidia(A, B)
    auto = _auto.workers(["0", "1"], 4, 11 * GIB, {})
    assert (auto.count, auto.slots) == (1, ["0", "1"])
    assert auto.why == "no GPU of 2 has room for 11.0 GiB a test"


def test_a_full_gpu_gets_no_worker(nvidia: Plant) -> None:
    nvidia(A, B, C)
    auto = _auto.workers(["2", "0"], 16, 10 * GIB, {})
    assert (auto.count, auto.slots) == (1, ["0"])


def test_where_memory_cannot_be_read_there_is_one_worker_a_gpu() -> None:
    auto = _auto.workers(["0", "1"], 16, GIB, {})
    assert auto.count == 2
    assert auto.why == "2 GPUs, one worker each, whose memory cannot be read; 16 cores"


@pytest.mark.parametrize("memory", [1, 2, 3, 4, 7])
def test_no_gpu_gets_more_workers_than_fit(nvidia: Plant, memory: int) -> None:
    nvidia(A, B, C)
    auto = _auto.workers(["0", "1", "2"], 64, memory * GIB, {})
    for device, workers in Counter(auto.slots).items():
        assert workers == (10 - int(device)) // memory


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    pytester.makepyfile("import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_one(n): pass\n")

    def run(*args: str, cards: tuple[str, ...] = (A, B), cores: int = 16, readable: bool = True) -> pytest.RunResult:
        pytester.makepyfile(machine=MACHINE.format(cards=list(cards) or None, cores=cores, readable=readable))
        plugins = ("-p", "machine", "-p", "testkit.gpus.plugin", "-p", "xdist.plugin", "-p", "no:cacheprovider")
        return pytester.runpytest_subprocess(*plugins, *args, timeout=120)

    return run


def said(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("gpus:")]


def test_the_header_says_why_and_each_gpu_gets_what_it_has_room_for(run: Run) -> None:
    result = run("-n", "auto", "--gpus-use=auto", "--gpus-default-memory=4GiB")
    result.assert_outcomes(passed=3)
    assert said(result) == [
        "gpus: -n auto is 3: 2 GPUs with room for 3 at 4.0 GiB a test; 16 cores",
        "gpus: 3 workers on GPUs 0, 1 on this machine, 5 threads each of 16 cores",
        "gpus: GPU 0: gw0 gw2",
        "gpus: GPU 1: gw1",
    ]


def test_the_memory_is_read_from_its_ini_key(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpus_use = 1\ngpus_default_memory = 2.5 GiB\n")
    assert said(run("-n", "auto"))[0] == "gpus: -n auto is 2: 1 GPU with room for 2 at 2.5 GiB a test; 16 cores"


def test_the_limit_of_xdist_holds(run: Run) -> None:
    result = run("-n", "auto", "--maxprocesses=1", "--gpus-use=auto")
    assert said(result)[1] == "gpus: 1 worker on GPUs 0, 1 on this machine, 16 threads each of 16 cores"


@pytest.mark.parametrize(
    ("args", "cards"),
    [
        pytest.param((), (A, B), id="not-asked"),
        pytest.param(("--gpus-use=auto",), (), id="no-gpu"),
        pytest.param(("--gpus-use=auto",), (A, B), id="a-number-of-the-users"),
    ],
)
def test_otherwise_xdist_answers(
    run: Run, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], cards: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "1")
    result = run("-n", "auto", *args, cards=cards)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["1 worker [[]3 items]"])
    assert not [line for line in said(result) if "-n auto" in line]


def test_a_number_that_is_given_stays_though_memory_is_short(run: Run) -> None:
    result = run("-n3", "--gpus-use=auto", "--gpus-default-memory=8GiB")
    assert said(result)[1:] == ["gpus: GPU 0: gw0 gw2", "gpus: GPU 1: gw1"]
