"""Each worker's part of the GPUs and cores: who sees what, from when on, what the header says, what is refused."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testkit.errors import GpusError
from testkit.gpus import _pinning, _threads

A, B, C, D = (f"GPU-{digit * 8}-682d-b506-9ad9-d1c595d6d2ad" for digit in "0123")
MIG = ("MIG-5f4b2c1a-8d3e-6f7a-b5c9-2e4d8a1f6c3b", "MIG-0a1b2c3d-8d3e-6f7a-b5c9-2e4d8a1f6c3b")
CARDS = (A, B, C, D)
GIB = 2**30

VARIABLES = [*sorted(_pinning.VARIABLES), "CUDA_DEVICE_ORDER"]
THREADS = [_threads.OMP, *_threads.GO_BY_OMP, _threads.COMPILE]

# Loaded before our plugin in every process of an inner run: its machine has these cards, and four cores.
MACHINE = """
from pathlib import Path
from testkit.gpus import _amd, _nvml, _threads

_amd.SYS = Path("nowhere")
_threads.cores = lambda: 4

def answer(what, *rest):
    if what == "uuids":
        return {cards!r}
    order, *devices = rest
    return [[{used}, {total}] for _ in devices] if what == "memory" else None

_nvml._ask = answer
"""

# Stands in for torch: whoever imports it finds the variables as they are to be, or never sees them.
TORCH = """
import json, os
from types import SimpleNamespace

names = {names!r}
with open(f"seen-{{os.environ.get('PYTEST_XDIST_WORKER', 'main')}}.json", "w") as file:
    json.dump({{name: os.environ[name] for name in names if name in os.environ}}, file)
held = []
set_num_threads = held.append
cuda = SimpleNamespace(is_initialized=lambda: {started})
"""

Run = Callable[..., pytest.RunResult]
Seen = dict[str, dict[str, str]]


@pytest.fixture
def machine(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Plant cards, and a conftest that imports torch."""
    for name in (*VARIABLES, *THREADS):
        monkeypatch.delenv(name, raising=False)

    def plant(*cards: str, used: int = 0, total: int = 10 * GIB, started: bool = False) -> None:
        pytester.makepyfile(
            machine=MACHINE.format(cards=list(cards) if cards else None, used=used, total=total),
            torch=TORCH.format(names=VARIABLES + THREADS, started=started),
        )

    plant(*CARDS)
    pytester.makeconftest("import torch\n")
    pytester.makepyfile(test_many="import pytest\n@pytest.mark.parametrize('n', range(8))\ndef test_one(n): pass\n")
    return plant


@pytest.fixture
def run(pytester: pytest.Pytester, machine: object) -> Run:
    def run(*args: str, plugins: tuple[str, ...] = ("testkit.gpus.plugin", "xdist.plugin")) -> pytest.RunResult:
        named = [part for name in ("machine", *plugins) for part in ("-p", name)]
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers", *named, *args, timeout=120)

    return run


def seen(path: Path) -> Seen:
    """What torch saw at its import, by process."""
    return {file.stem.removeprefix("seen-"): json.loads(file.read_text()) for file in path.glob("seen-*.json")}


@pytest.mark.parametrize(
    ("outer", "each"),
    [
        pytest.param(None, ["0", "1", "2", "3"], id="none"),
        pytest.param("1", ["1"], id="one"),
        pytest.param("2,3", ["2", "3"], id="two"),
        pytest.param(f"{D},{A[:12]}", [D, A[:12]], id="uuids"),
        pytest.param(",".join(MIG), [*MIG], id="mig"),
    ],
)
def test_eight_workers_land_exactly_where_they_may_before_their_conftest_imports_torch(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, outer: str | None, each: list[str]
) -> None:
    if outer is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outer)
    result = run("-n8", "--gpus-use=auto")
    result.assert_outcomes(passed=8)
    found = seen(pytester.path)
    wanted = {f"gw{worker}": each[worker % len(each)] for worker in range(8)}
    assert {name: saw["CUDA_VISIBLE_DEVICES"] for name, saw in found.items() if name != "main"} == wanted
    assert found["main"].get("CUDA_VISIBLE_DEVICES") == outer
    assert not any(saw.keys() & {"HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"} for saw in found.values())


def test_an_empty_list_stays_empty_and_the_header_says_so_once(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = run("-n8", "--gpus-use=auto")
    result.assert_outcomes(passed=8)
    lines = [line for line in result.outlines if line.startswith("gpus:")]
    assert lines == ["gpus: --gpus-use=auto does nothing, found 0 GPUs (CUDA_VISIBLE_DEVICES=)"]
    assert list(seen(pytester.path).values()) == [{"CUDA_VISIBLE_DEVICES": ""}] * 9


@pytest.mark.parametrize("args", [("-n2",), ()], ids=["workers", "alone"])
@pytest.mark.parametrize("use", ["auto", "0,1"])
def test_on_a_machine_without_gpus_nothing_is_set_and_the_header_says_so_once(
    run: Run, machine: Callable[..., None], pytester: pytest.Pytester, args: tuple[str, ...], use: str
) -> None:
    machine()
    result = run(*args, f"--gpus-use={use}")
    result.assert_outcomes(passed=8)
    lines = [line for line in result.outlines if line.startswith("gpus:")]
    assert lines == [f"gpus: --gpus-use={use} does nothing, found 0 GPUs on this machine"]
    assert not any(seen(pytester.path).values())


def test_without_the_option_nothing_is_set_and_nothing_is_said(run: Run, pytester: pytest.Pytester) -> None:
    result = run("-n2")
    result.stdout.no_fnmatch_line("gpus:*")
    assert list(seen(pytester.path).values()) == [{}] * 3


def test_the_header_says_who_got_what(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    result = run("-n3", "--gpus-use=auto")
    lines = [line for line in result.outlines if line.startswith("gpus:")]
    assert lines == [
        "gpus: 3 workers on GPUs 2, 3 (CUDA_VISIBLE_DEVICES=2,3), 1 thread each of 4 cores",
        "gpus: GPU 2: gw0 gw2",
        "gpus: GPU 3: gw1",
    ]
    run("-n3", "--gpus-use=auto", "--no-header").stdout.no_fnmatch_line("gpus:*")
    run("-n3", "--gpus-use=auto", "-q").stdout.no_fnmatch_line("gpus:*")


def test_a_list_narrows_what_the_workers_share(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,0,1")
    result = run("-n2", "--gpus-use=1, 3")
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["gpus: 2 workers on GPUs 1, 3 (CUDA_VISIBLE_DEVICES=3,0,1)*"])
    found = {name: saw["CUDA_VISIBLE_DEVICES"] for name, saw in seen(pytester.path).items()}
    assert found == {"main": "1,3", "gw0": "1", "gw1": "3"}


def test_a_process_without_workers_sees_the_list_before_its_conftest_imports_torch(
    run: Run, pytester: pytest.Pytester
) -> None:
    result = run("--gpus-use=2,0", plugins=("testkit.gpus.plugin",))
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["gpus: this process sees GPUs 2, 0 on this machine, by --gpus-use=2,0"])
    assert seen(pytester.path) == {"main": {"CUDA_VISIBLE_DEVICES": "2,0"}}


def test_the_ini_key_is_heard_and_the_option_wins(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpus_use = 2\n")
    run().stdout.fnmatch_lines(["gpus: this process sees GPU 2 on this machine, by ini gpus_use=2"])
    assert seen(pytester.path) == {"main": {"CUDA_VISIBLE_DEVICES": "2"}}
    run("--gpus-use=3")
    assert seen(pytester.path) == {"main": {"CUDA_VISIBLE_DEVICES": "3"}}


def test_loaded_by_its_entry_point_it_comes_before_conftests_too(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    run("-n2", "--gpus-use=1,2", plugins=()).assert_outcomes(passed=8)
    found = {name: saw["CUDA_VISIBLE_DEVICES"] for name, saw in seen(pytester.path).items()}
    assert found == {"main": "1,2", "gw0": "1", "gw1": "2"}


def test_loaded_by_a_conftest_the_workers_are_pinned_all_the_same(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import torch\npytest_plugins = ['testkit.gpus.plugin']\n")
    run("-n2", "--gpus-use=1,2", plugins=("xdist.plugin",)).assert_outcomes(passed=8)
    found = {name: saw.get("CUDA_VISIBLE_DEVICES") for name, saw in seen(pytester.path).items()}
    assert found == {"main": None, "gw0": "1", "gw1": "2"}


def test_loaded_too_late_for_a_torch_that_has_started_cuda_it_refuses(
    run: Run, machine: Callable[..., None], pytester: pytest.Pytester
) -> None:
    machine(*CARDS, started=True)
    pytester.makeini("[pytest]\ngpus_use = 1\n")
    pytester.makeconftest("import torch\npytest_plugins = ['testkit.gpus.plugin']\n")
    result = run(plugins=())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: gpus: torch has started CUDA before*(from ini gpus_use)", "next: load it*"])


@pytest.mark.parametrize(
    ("args", "problem", "fix"),
    [
        ("--gpus-use=2,4", "GPU 4 is not one of the allowed 2, 3 (CUDA_VISIBLE_DEVICES=2,3)", "name GPUs that are*"),
        (f"--gpus-use={C}", f"GPU {C} is not one of the allowed 2, 3*", "name GPUs that are allowed*"),
        ("--gpus-use=2,2", "GPU 2 is named twice in 2,2", "name each once"),
        ("--gpus-use=2,,3", "'2,,3' is no list of GPUs", "give auto, or entries such as 0,1*"),
        ("--gpus-use=auto,2", "'auto,2' is no list of GPUs", "give auto, or entries*"),
        ("--gpus-missing=wait", "'wait' is not known", "give one of skip, fail"),
        ("--gpus-default-memory=2 cups", "'2 cups' has the unknown unit 'cups'", "use B, *"),
        ("--gpus-default-memory=0GiB", "a test cannot need '0GiB' (0 bytes)", "give what a test needs, such as 2GiB"),
    ],
)
def test_a_bad_value_is_refused_in_two_lines(
    run: Run, monkeypatch: pytest.MonkeyPatch, args: str, problem: str, fix: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    result = run(args, "-n2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    source = args.partition("=")[0]
    text = f"ERROR: gpus: {problem} (from {source})".replace("[", "[[]")
    result.stderr.fnmatch_lines([text, f"next: {fix}"])
    assert "Traceback" not in result.stderr.str()


def test_cores_are_shared_out_unless_the_user_did(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("-n2", "--gpus-use=auto")
    for worker in ("gw0", "gw1"):
        saw = seen(pytester.path)[worker]
        assert {name: saw[name] for name in THREADS} == dict.fromkeys(THREADS, "2")
    assert not seen(pytester.path)["main"].keys() & set(THREADS)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run("-n2", "--gpus-use=auto")
    saw = seen(pytester.path)["gw0"]
    assert {name: saw.get(name) for name in THREADS} == {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": None,
        "OPENBLAS_NUM_THREADS": None,
        "NUMEXPR_NUM_THREADS": None,
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
    }


def test_a_torch_that_was_there_before_the_variables_is_held_too(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("")
    pytester.makepyfile(test_held="import torch\ndef test_held(): assert torch.held == [2]\n")
    # a plugin of that name stands for an interpreter that imports torch when it starts
    run("-n2", "--gpus-use=auto", "-p", "torch", "test_held.py").assert_outcomes(passed=1)
    pytester.makepyfile(test_held="import torch\ndef test_held(): assert torch.held == []\n")
    pytester.makeconftest("import torch\n")
    run("-n2", "--gpus-use=auto", "test_held.py").assert_outcomes(passed=1)


def test_the_real_torch_takes_the_threads(run: Run, pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    (pytester.path / "torch.py").unlink()
    pytester.makepyfile(test_many="import torch\ndef test_threads(): assert torch.get_num_threads() == 2\n")
    run("-n2", "--gpus-use=auto").assert_outcomes(passed=1)


def test_a_worker_that_replaces_a_crashed_one_has_its_devices(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_many="""
        import os, pytest

        @pytest.mark.parametrize("n", range(4))
        def test_one(n):
            if os.environ["PYTEST_XDIST_WORKER"] == "gw0":
                os._exit(1)
        """
    )
    run("-n1", "--gpus-use=3").assert_outcomes(passed=3, failed=1)
    found = {name: saw["CUDA_VISIBLE_DEVICES"] for name, saw in seen(pytester.path).items()}
    assert found == {"main": "3", "gw0": "3", "gw1": "3"}


def test_a_worker_with_devices_of_its_own_keeps_them(run: Run, pytester: pytest.Pytester) -> None:
    own = ("--tx=popen//env:CUDA_VISIBLE_DEVICES=3", "--tx=2*popen", "--dist=load")
    result = run(*own, "--gpus-use=0,1")
    result.stdout.fnmatch_lines(
        [
            "gpus: 2 workers on GPUs 0, 1 on this machine, 1 thread each of 4 cores",
            "gpus: GPU 0: gw1",
            "gpus: GPU 1: gw2",
            "gpus: 1 worker elsewhere or with devices of their own: left alone",
        ]
    )
    found = {name: saw["CUDA_VISIBLE_DEVICES"] for name, saw in seen(pytester.path).items()}
    assert found == {"main": "0,1", "gw0": "3", "gw1": "0", "gw2": "1"}


def test_where_every_worker_has_devices_of_its_own_all_are_left_alone(run: Run, pytester: pytest.Pytester) -> None:
    result = run("--tx=2*popen//env:CUDA_VISIBLE_DEVICES=3", "--dist=load", "--gpus-use=auto")
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["gpus: 2 workers elsewhere or with devices of their own: left alone"])
    found = {name: saw.get("CUDA_VISIBLE_DEVICES") for name, saw in seen(pytester.path).items()}
    assert found == {"main": None, "gw0": "3", "gw1": "3"}


def test_workers_of_a_proxy_here_are_pinned(run: Run, pytester: pytest.Pytester) -> None:
    proxy = "--px=id=near//popen//execmodel=thread"  # with xdist's own model for workers it carries one alone
    run(proxy, "--tx=2*popen//via=near", "--dist=load", "--gpus-use=0,1").assert_outcomes(passed=8)
    found = {name: saw["CUDA_VISIBLE_DEVICES"] for name, saw in seen(pytester.path).items()}
    assert found == {"main": "0,1", "gw0": "0", "gw1": "1"}


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("popen", True),
        ("popen//python=python3.10", True),
        ("popen//via=near", True),
        ("popen//via=far", False),
        ("popen//via=unknown", False),
        ("ssh=-p 22 me@box", True),
        ("ssh=box", True),
        ("ssh=other", False),
        ("ssh=-p 2222 localhost", False),
        ("socket=box:8888", True),
        ("socket=localhost:8888", False),
        ("socket=192.168.1.2:8888", False),
        ("vagrant_ssh=default", False),
    ],
)
def test_whether_a_worker_is_on_this_host_is_told_by_the_hosts_name(text: str, here: bool) -> None:
    execnet = pytest.importorskip("execnet")
    proxies = {"near": execnet.XSpec("id=near//popen"), "far": execnet.XSpec("id=far//ssh=other")}
    assert _pinning.is_here(execnet.XSpec(text), proxies, {"box", "box.example.org"}) is here


def test_our_own_environment_is_as_before_after_a_run_in_this_process(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        "import os\ndef test_one(): assert os.environ['CUDA_VISIBLE_DEVICES'] == '7'\n",
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # the inner run takes it away
    before = dict(os.environ)
    run = ("-p", "testkit.gpus.plugin", "-p", "no:cacheprovider")
    pytester.runpytest_inprocess(*run, "--gpus-use=7").assert_outcomes(passed=1)
    assert dict(os.environ) == before
    result = pytester.runpytest_inprocess(*run, "--gpus-use=7", "--no-such-option")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert dict(os.environ) == before


MARKED = "import pytest\n@pytest.mark.gpus(2)\ndef test_two(): pass\n"


def test_a_marked_test_that_a_workers_part_is_too_small_for_says_what_it_is_a_part_of(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_many=MARKED)
    result = run("-n4", "--dist=each", "--gpus-use=auto", "-rs")  # any of the workers may get a single test
    result.assert_outcomes(skipped=4)
    for card in range(4):
        reason = f"needs 2 GPUs, found 1 (CUDA_VISIBLE_DEVICES={card}), this worker's part of 4 GPUs (--gpus-use=auto)"
        result.stdout.fnmatch_lines([f"SKIPPED [[]1] test_many.py:2: {reason}"])
    run("-n2", "--gpus-use=auto", "-rs").assert_outcomes(passed=1)


def test_ranks_have_all_of_the_callers_devices_their_workers_own_first(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,2")
    pytester.makepyfile(
        test_many="""
        import os, pytest

        @pytest.mark.ranks(3)
        @pytest.mark.gpus(1)
        def test_three(rank):
            worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "31231"[worker + rank]

        @pytest.mark.ranks(2)
        @pytest.mark.gpus(2)
        def test_four(rank): pass
        """
    )
    plugins = ("testkit.gpus.plugin", "testkit.processes.plugin", "xdist.plugin")
    result = run("-n3", "--dist=each", "--gpus-use=auto", "-rs", plugins=plugins)
    result.assert_outcomes(passed=3, skipped=3)
    result.stdout.fnmatch_lines(["SKIPPED * needs 4 GPUs, found 3 (CUDA_VISIBLE_DEVICES=3,1,2)"])


def test_what_lies_beyond_a_part_begins_after_it() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "3,1,2,0"}
    assert _pinning.beyond(["1"], ["3", "1", "2", "0"], environ) == ["2", "0", "3"]
    assert _pinning.beyond(["2", "0"], ["3", "1", "2", "0"], environ) == ["3", "1"]
    assert _pinning.beyond(["0"], ["0", "1"], {"ZE_AFFINITY_MASK": "0,1"}) == []


@pytest.mark.parametrize("ranks", [False, True], ids=["plain", "ranks"])
def test_missing_gpus_fail_a_marked_test_where_that_is_asked_for(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ranks: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    text = MARKED.replace("gpus(2)", "gpus(1)\n@pytest.mark.ranks(2)") if ranks else MARKED
    pytester.makepyfile(test_many=text + "\ndef test_own(): pytest.skip('of its own')\n")
    plugins = ("testkit.gpus.plugin", "testkit.processes.plugin")
    result = run("--gpus-missing=fail", "--tb=short", plugins=plugins)
    result.assert_outcomes(errors=1, skipped=1)
    result.stdout.fnmatch_lines(["gpus: needs 2 GPUs, found 1 (CUDA_VISIBLE_DEVICES=1)", "next: use a machine*"])
    assert "_marker.py" not in result.stdout.str()
    pytester.makeini("[pytest]\ngpus_missing = skip\n")
    run(plugins=plugins).assert_outcomes(skipped=2)


def test_a_process_that_a_test_starts_inherits_its_workers_part(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_many="def test_inner(): pass\n")
    pytester.makepyfile(
        test_outer="""
        import os, subprocess, sys

        def test_outer():
            command = [sys.executable, "-m", "pytest", "-p", "machine", "-p", "testkit.gpus.plugin", "test_many.py"]
            inner = subprocess.run([*command, "--gpus-use=auto"], capture_output=True, text=True)
            assert "sees GPU 2 (CUDA_VISIBLE_DEVICES=2), by --gpus-use=auto" in inner.stdout
            refused = subprocess.run([*command, "--gpus-use=0"], capture_output=True, text=True)
            assert "GPU 0 is not one of the allowed 2 (CUDA_VISIBLE_DEVICES=2)" in refused.stderr
        """
    )
    run("-n1", "--gpus-use=2", "test_outer.py").assert_outcomes(passed=1)


@pytest.mark.skipif(not Path("/proc/driver/nvidia").exists(), reason="needs an NVIDIA GPU")
def test_real_workers_see_the_real_card_that_the_caller_allowed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch does not see the GPU")
    last = str(torch.cuda.device_count() - 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", last)
    pytester.makepyfile(
        """
        import os, pytest, torch

        @pytest.mark.parametrize("n", range(8))
        def test_one(n):
            assert torch.cuda.device_count() == 1
            with open(f"card-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{n}", "w") as file:
                file.write(str(torch.cuda.get_device_properties(0).uuid))
        """
    )
    plugins = ("-p", "testkit.gpus.plugin", "-p", "xdist.plugin")
    pytester.runpytest_subprocess(*plugins).assert_outcomes(passed=8)
    pytester.runpytest_subprocess(*plugins, "-n4", "--gpus-use=auto").assert_outcomes(passed=8)
    assert len({file.read_text() for file in pytester.path.glob("card-*")}) == 1


def test_workers_get_one_device_each_in_turn_or_neighbours() -> None:
    assert _pinning.spread(3, ["4", "7"]) == [["4"], ["7"], ["4"]]
    assert _pinning.spread(3, list("01234567")) == [["0", "1"], ["2", "3", "4"], ["5", "6", "7"]]
    assert _pinning.spread(1, ["4", "7"]) == [["4", "7"]]
    assert _pinning.spread(3, ["4", "7", "7", "7"]) == [["4"], ["7"], ["7"]]
    assert _pinning.spread(1, ["4", "7", "7", "7"]) == [["4", "7"]]
    assert _pinning.spread(0, ["4", "7"]) == []


@pytest.mark.parametrize("workers", range(1, 20))
def test_every_device_is_given_and_all_are_loaded_alike(workers: int) -> None:
    devices = list("01234567")
    shares = _pinning.spread(workers, devices)
    assert len(shares) == workers
    load = Counter(device for share in shares for device in share)
    if workers >= len(devices):
        assert {len(share) for share in shares} == {1}
    else:
        assert [device for share in shares for device in share] == devices
    assert len(load) == len(devices)
    assert max(load.values()) - min(load.values()) <= 1


def test_a_list_may_name_a_device_by_an_abbreviation_of_its_entry(nvidia: Callable[..., object]) -> None:
    nvidia(*CARDS)
    environ = {"CUDA_VISIBLE_DEVICES": f"{A},{B[:12]}"}
    chosen = _pinning.choose([B, A[:10]], "", environ)
    assert chosen.devices == [B[:12], A]
    assert chosen.narrower == {"CUDA_VISIBLE_DEVICES": f"{B[:12]},{A}"}
    with pytest.raises(GpusError, match=f"GPU GPU- is not one of the allowed {A}, {B[:12]}"):
        _pinning.choose(["GPU-"], "", environ)


def test_without_a_variable_a_list_may_name_uuids_and_not_mix_them_with_indices(nvidia: Callable[..., object]) -> None:
    nvidia(*CARDS)
    assert _pinning.choose([D, B], "", {}).narrower == {"CUDA_VISIBLE_DEVICES": f"{D},{B}"}
    with pytest.raises(GpusError, match=r"does not name 2 GPUs on this machine"):
        _pinning.choose(["0", B], "", {})
    with pytest.raises(GpusError, match="GPU GPU-ffff is not one of the allowed 0, 1, 2, 3 on this machine"):
        _pinning.choose(["GPU-ffff"], "", {})


def test_on_amd_hips_variable_is_set_and_rocrs_stays(amd: Callable[..., None]) -> None:
    amd(0xAAAA000000000001, 0xAAAB000000000002, 3)
    environ = {"ROCR_VISIBLE_DEVICES": "2,0"}
    chosen = _pinning.choose(["1"], "", environ)
    assert chosen.narrower == {"HIP_VISIBLE_DEVICES": "1"}
    assert chosen.said == "(ROCR_VISIBLE_DEVICES=2,0)"
    assert _pinning.shown(["0"], environ) == {"HIP_VISIBLE_DEVICES": "0"}
    with pytest.raises(GpusError, match=r"GPU 2 is not one of the allowed 0, 1 \(ROCR_VISIBLE_DEVICES=2,0\)"):
        _pinning.choose(["2"], "", environ)


def test_intels_mask_is_shared_out_where_no_other_gpu_is() -> None:
    environ = {"ZE_AFFINITY_MASK": "0.1, 2,3"}
    chosen = _pinning.choose(["2"], "", environ)
    assert (chosen.devices, chosen.said) == (["2"], "(ZE_AFFINITY_MASK=0.1, 2,3)")
    assert chosen.narrower == {"ZE_AFFINITY_MASK": "2"}
    with pytest.raises(GpusError, match=r"GPU 1 is not one of the allowed 0\.1, 2, 3"):
        _pinning.choose(["1"], "", environ)
    assert _pinning.cards({"ZE_AFFINITY_MASK": "gpu"}) == []
    assert _pinning.cards({**environ, "CUDA_VISIBLE_DEVICES": "0"}) == ["0"]


def test_who_got_what_is_a_line_for_each_set_of_devices() -> None:
    chosen, shares = _pinning.Chosen(["0", "1", "2"], "(said)", {}), [["0", "1"], ["2"], ["0", "1"]]
    assert _pinning.lines(chosen, ["gw0", "gw1", "gw2"], shares, 4, ", each") == [
        "gpus: 3 workers on GPUs 0, 1, 2 (said), each",
        "gpus: GPUs 0, 1: gw0 gw2",
        "gpus: GPU 2: gw1",
        "gpus: 1 worker elsewhere or with devices of their own: left alone",
    ]


Groups = Callable[..., None]


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    """Plant eight cores, what /proc/self/cgroup says, and files of control groups."""
    monkeypatch.setattr(_threads, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(_threads, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)

    def plant(own: str, **files: str) -> None:
        (tmp_path / "own").write_text(own)
        for path, text in files.items():
            file = tmp_path / "cgroup" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return plant


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        pytest.param("0::/job/step\n", {}, 8, id="no-files"),
        pytest.param("0::/job/step\n", {"job/step/cpu.max": "max 100000\n"}, 8, id="no-quota"),
        pytest.param("0::/job/step\n", {"job/step/cpu.max": "250000 100000\n"}, 2, id="own"),
        pytest.param("0::/\n", {"cpu.max": "50000 100000\n"}, 1, id="less-than-one"),
        pytest.param("0::/\n", {"cpu.max": "6400000 100000\n"}, 8, id="more-than-there-are"),
        pytest.param(
            "0::/job/step\n",
            {"job/step/cpu.max": "600000 100000\n", "job/cpu.max": "300000 100000\n"},
            3,
            id="the-one-above",
        ),
        pytest.param("0::/../job\n", {"cpu.max": "300000 100000\n"}, 3, id="outside-of-what-a-container-sees"),
        pytest.param(
            "5:memory:/a\n4:cpu,cpuacct:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "400000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            4,
            id="version-1",
        ),
        pytest.param(
            "4:cpu:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            8,
            id="version-1-no-quota",
        ),
        pytest.param("4:cpuset:/job\n", {"cpu/job/cpu.max": "100000 100000\n"}, 8, id="another-controller"),
    ],
)
def test_cores_are_those_that_affinity_and_control_groups_leave(
    groups: Groups, own: str, files: dict[str, str], cores: int
) -> None:
    groups(own, **files)
    assert _threads.cores() == cores


def test_without_control_groups_the_affinity_counts(groups: Groups) -> None:
    assert _threads.cores() == 8


def test_each_worker_has_a_thread_at_least(groups: Groups) -> None:
    assert _threads.threads(3, {}) == dict.fromkeys(THREADS, "2")
    assert _threads.threads(64, {})["OMP_NUM_THREADS"] == "1"
    assert "MKL_NUM_THREADS" not in _threads.threads(2, {"MKL_NUM_THREADS": "4"})


def test_only_a_loaded_torch_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    planted: dict[str, Any] = {"torch": SimpleNamespace(set_num_threads=held.append)}
    monkeypatch.setattr(_threads, "loaded", planted.get)
    _threads.hold_torch(3)
    planted.clear()
    _threads.hold_torch(5)
    assert held == [3]
