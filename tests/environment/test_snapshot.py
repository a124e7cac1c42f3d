"""The snapshot: what is read from where, what is absent, what never gets in, and images that differ by one thing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planted_machines import GIB, JAMMY, LINKS, PACKAGES, image

from testkit.environment import Fact, snapshot
from testkit.environment._diff import differences
from testkit.environment._snapshot import READERS, from_json, take, to_json
from testkit.environment._sources import Sources
from testkit.environment._variables import NAMES
from testkit.errors import MachineError

Plant = Callable[..., Sources]


def values(facts: Mapping[str, Fact]) -> dict[str, Any]:
    return {name: fact.value for name, fact in facts.items()}


def test_a_machine_is_read_from_its_files_and_from_what_its_loader_has(plant: Plant) -> None:
    facts = take(plant())
    told = values(facts)
    assert list(facts) == list(READERS)
    assert (told["os"], told["os_version"]) == ("ubuntu", "22.04")
    assert told["kernel"] == "5.15.0-122-generic"
    assert told["glibc"] == "2.35"
    assert told["container"] == "docker"
    assert told["cpu"] == "AMD EPYC 9654 96-Core Processor"
    assert told["cpus"] == 96
    assert told["memory"] == 790958364 // 1024 * 2**20
    assert (told["torch"], told["torch_cuda"], told["torch_hip"]) == ("2.6.0+cu124", "12.4", None)
    assert told["triton"] == "3.2.0"
    assert told["cuda_toolkit"] == "12.4.1"
    assert told["nccl"] == "2.21.5"
    assert (told["rdma-core"], told["ibverbs"]) == ("39.0", "1.14")
    assert told["packages"] == {"foo-bar": "1.0", "numpy": "2.1.3", "torch": "2.6.0+cu124", "triton": "3.2.0"}
    assert told["gpus"] == []


def test_each_fact_says_how_it_was_read(plant: Plant) -> None:
    facts = take(plant())
    assert all(fact.how for fact in facts.values())
    assert facts["kernel"].how == "/proc/sys/kernel/osrelease"
    assert facts["rdma-core"].how.endswith("libibverbs.so.1.14.39.0")
    assert facts["triton"].how == "package triton"


def test_what_is_absent_is_none_and_nothing_raises(plant: Plant) -> None:
    told = values(take(plant(files={}, links={}, packages=(), torch="", libc="")))
    there = {"machine", "cpus", "python", "python_implementation"}  # of this process
    assert {name for name, value in told.items() if value not in (None, [], {})} == there
    assert told["gpus"] == []
    assert told["package_digest"] is None


ODD = {
    "/etc/os-release": "ID='unclosed\nVERSION_ID",
    "/proc/meminfo": "MemTotal: many kB",
    "/usr/local/cuda/version.json": '{"cuda": 3}',
    "/proc/driver/nvidia/version": "",
    "/proc/sys/kernel/osrelease": "6.8.0",
    "/sys/class/kfd/kfd/topology/nodes/0/properties": "simd_count 4\ngfx_target_version x",
}


def test_a_file_in_an_unknown_form_costs_its_own_fact_only(plant: Plant) -> None:
    facts = take(plant(files=ODD, torch="def broken(", tools={"_read_nvml.py": "not JSON"}))
    assert facts["cuda_toolkit"] == Fact(None, "cannot be read: TypeError: 'int' object is not subscriptable")
    assert facts["torch"].how.startswith("cannot be read: SyntaxError")
    assert facts["os"].how.startswith("cannot be read: ValueError")
    assert facts["gpus"].value is None
    assert facts["kernel"] == Fact("6.8.0", "/proc/sys/kernel/osrelease")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.sampled_from([*JAMMY, *ODD]), st.binary(max_size=200))
def test_no_content_of_a_file_makes_it_raise(tmp_path: Path, path: str, content: bytes) -> None:
    at = tmp_path / path.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(content)
    sources = Sources(tmp_path, {}, [str(tmp_path)], lambda command: content.decode(errors="replace"))
    to_json(take(sources))


@pytest.mark.parametrize(
    ("files", "environ", "engine"),
    [
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/run/.containerenv": ""}, {}, "podman"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
        ({"/proc/1/cgroup": "0::/kubepods/pod1/abc"}, {}, "kubernetes"),
        ({"/proc/1/cgroup": "0::/system.slice/docker-abc.scope"}, {}, "docker"),
        ({"/proc/1/cgroup": "0::/init.scope"}, {}, None),
    ],
)
def test_a_container_is_told_by_what_its_engine_leaves(
    plant: Plant, files: dict[str, str], environ: dict[str, str], engine: str | None
) -> None:
    assert take(plant(files=files, environ=environ))["container"].value == engine


def test_a_limit_of_the_container_counts_as_its_memory(plant: Plant) -> None:
    limited = {**JAMMY, "/sys/fs/cgroup/memory.max": f"{16 * GIB}\n"}
    assert take(plant(files=limited))["memory"] == Fact(16 * GIB, "/sys/fs/cgroup/memory.max")
    unlimited = {**JAMMY, "/sys/fs/cgroup/memory.max": "max\n"}
    assert take(plant(files=unlimited))["memory"].how == "MemTotal in /proc/meminfo"
    beyond = {**JAMMY, "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert take(plant(files=beyond))["memory"].how == "MemTotal in /proc/meminfo"


def test_a_library_on_the_search_path_comes_before_the_loaders_cache(plant: Plant, tmp_path: Path) -> None:
    files = {**JAMMY, "/opt/rdma/libibverbs.so.1.14.54.0": ""}
    links = {**LINKS, "/opt/rdma/libibverbs.so.1": "/opt/rdma/libibverbs.so.1.14.54.0"}
    assert take(plant(files=files, links=links, environ={"LD_LIBRARY_PATH": "/nowhere:/opt/rdma"}))[
        "rdma-core"
    ].value == ("54.0")


def test_nccl_and_cudnn_come_from_the_packages_that_torch_loads_before_any_other(plant: Plant) -> None:
    packages = (*PACKAGES, "nvidia_nccl_cu12-2.27.3", "nvidia_cudnn_cu12-9.10.2.21")
    facts = take(plant(packages=packages))
    assert facts["nccl"] == Fact("2.27.3", "package nvidia-nccl-cu12")
    assert facts["cudnn"].value == "9.10.2.21"


def test_rocm_and_rccl_are_read_from_the_files_that_they_bring(plant: Plant) -> None:
    files = {
        **JAMMY,
        "/opt/rocm/.info/version": "6.4.1-83\n",
        "/opt/rocm/include/rccl/rccl.h": "#define NCCL_MAJOR 2\n#define NCCL_MINOR 22\n#define NCCL_PATCH 3\n",
    }
    told = values(take(plant(files=files)))
    assert (told["rocm"], told["rccl"]) == ("6.4.1", "2.22.3")


def test_torch_is_asked_where_it_is_loaded(plant: Plant) -> None:
    version = SimpleNamespace(__version__="2.9.0", cuda="12.8", hip=None)
    nccl = SimpleNamespace(version=lambda: (2, 27, 5))
    loaded = SimpleNamespace(version=version, cuda=SimpleNamespace(nccl=nccl))
    planted = plant()
    sources = Sources(planted.root, {}, planted.search, planted.run, lambda name: loaded)  # type: ignore[arg-type,return-value]  # as much of a module as is asked
    facts = take(sources)
    assert facts["torch"] == Fact("2.9.0", "torch.version.__version__")
    assert facts["torch_cuda"].value == "12.8"
    assert facts["nccl"] == Fact("2.27.5", "torch.cuda.nccl.version()")
    assert facts["rccl"].value is None


# secrets

SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "AWS_SECRET_ACCESS_KEY": "planted-secret-1",
    "DATABASE_URL": "postgres://user:planted-secret-2@db/x",
    "NCCL_API_KEY": "planted-secret-3",
    "CUDA_PASSWORD": "planted-secret-4",
    "TORCH_TOKEN": "planted-secret-5",
    "NCCL_DEBUG_FILE": "planted-secret-6",
    "GITHUB_TOKEN": "ghp_abcdefghijklmnopqrstuvwxyz",
    "PYTHONPATH": "/home/planted-secret-7",
    "NCCL_NET_PLUGIN": "https://user:planted-secret-8@host/x.so",
    "LD_PRELOAD": "ghp_plantedsecret9abcdefghijkl",
    "NCCL_DEBUG": "WARN",
}


def test_secrets_in_the_environment_never_get_into_a_snapshot(plant: Plant) -> None:
    text = to_json(take(plant(environ=SECRETS)))
    assert "planted" not in text
    assert "abcdefghijklmnop" not in text
    told = json.loads(text)["facts"]["variables"]["value"]
    assert told == {
        "NCCL_DEBUG": "WARN",
        "NCCL_NET_PLUGIN": "https://(hidden)@host/x.so",
        "LD_PRELOAD": "(hidden)",
    }


def test_no_variable_on_the_list_is_named_like_a_secret() -> None:
    words = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY", "AUTH", "COOKIE", "SESSION")
    assert [name for name in NAMES if any(word in name.split("_") for word in words)] == []
    assert len(set(NAMES)) == len(NAMES)


def test_secrets_of_a_real_process_do_not_get_out_either() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testkit", "environment", "show", "--format", "json"],
        env={"PATH": "/usr/bin:/bin", **SECRETS, "LD_PRELOAD": "", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert '"WARN"' in done.stdout
    assert "planted" not in done.stdout


# what it costs


def test_no_torch_is_imported_and_no_thread_or_child_is_left() -> None:
    code = (
        "import sys, threading\n"
        "from testkit.environment import snapshot\n"
        "assert snapshot() is snapshot()\n"
        "assert not {'torch', 'numpy', 'psutil', 'pytest', 'importlib.metadata'} & set(sys.modules)\n"
        "assert threading.active_count() == 1\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_snapshot_of_this_machine_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        snapshot()["kernel"] = Fact("9.9", "planted")  # type: ignore[index]  # what a user might try


# to a file and back


def test_a_snapshot_comes_back_from_json_as_it_was(plant: Plant) -> None:
    facts = take(plant(environ={"NCCL_DEBUG": "INFO"}))
    assert from_json(to_json(facts), "in x") == facts


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "no JSON"),
        ("[]", "this is JSON, but no snapshot"),
        ('{"facts": {}}', "this is JSON, but no snapshot"),
        ('{"testkit_environment": 2, "facts": {}}', "a snapshot of version 2; this testkit reads 1"),
        ('{"testkit_environment": 1, "facts": {"os": 3}}', "a snapshot without value and how for each fact"),
        ('{"testkit_environment": 1, "facts": []}', "a snapshot without value and how for each fact"),
    ],
)
def test_what_is_no_snapshot_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(MachineError, match=rf"environment: {problem}.*\(in x.json\)\nnext: write one with: "):
        from_json(text, "in x.json")


# two images


NOBLE = {
    "/etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n',
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.50.0": "",
}


def test_images_on_other_machines_differ_in_nothing(tmp_path: Path) -> None:
    first, second = take(image(tmp_path / "a")), take(image(tmp_path / "b"))
    assert first != second  # the paths in how
    assert differences(first, second) == []


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"files": {**JAMMY, **NOBLE}}, {"os_version"}),
        (
            {
                "files": {**JAMMY, **NOBLE},
                "links": {**LINKS, "/lib/libibverbs.so.1": "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.50.0"},
                "libc": "glibc 2.39",
            },
            {"os_version", "rdma-core", "glibc"},
        ),
        ({"files": {**JAMMY, "/proc/sys/kernel/osrelease": "6.8.0-48-generic\n"}}, {"kernel"}),
        ({"packages": (*PACKAGES, "ninja-1.11")}, {"package ninja"}),
        ({"packages": tuple(name.replace("2.1.3", "2.2.0") for name in PACKAGES)}, {"package numpy"}),
        ({"environ": {"NCCL_DEBUG": "INFO", "HOME": "/root"}}, {"variable NCCL_DEBUG"}),
        ({"links": {name: LINKS[name] for name in list(LINKS)[1:]}}, {"rdma-core", "ibverbs"}),
        ({"files": {name: text for name, text in JAMMY.items() if name != "/.dockerenv"}}, {"container"}),
    ],
    ids=lambda value: ",".join(sorted(value)) if isinstance(value, set) else "",
)
def test_two_images_differ_exactly_in_what_was_changed(plant: Plant, change: dict[str, Any], changed: set[str]) -> None:
    found = differences(take(plant()), take(plant(**change)))
    assert {one.name for one in found} == changed
