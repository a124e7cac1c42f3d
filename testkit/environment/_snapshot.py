"""The snapshot: every fact about this machine that GPU tests hang on, each with how it was read; to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from testkit.environment import _read_gpus as gpus
from testkit.environment import _read_libraries as libraries
from testkit.environment import _read_system as system
from testkit.environment._sources import Fact, Sources
from testkit.environment._variables import variables
from testkit.errors import MachineError

Facts = Mapping[str, Fact]

READERS: dict[str, Callable[[Sources], Fact]] = {
    "os": system.os_name,
    "os_version": system.os_version,
    "kernel": system.kernel,
    "machine": system.machine,
    "glibc": system.glibc,
    "container": system.container,
    "cpu": system.cpu,
    "cpus": system.cpus,
    "memory": system.memory,
    "python": system.python,
    "python_implementation": system.python_implementation,
    "torch": libraries.torch,
    "torch_cuda": libraries.torch_cuda,
    "torch_hip": libraries.torch_hip,
    "triton": libraries.triton,
    "driver": gpus.driver,
    "cuda_driver": gpus.cuda_driver,
    "cuda_toolkit": libraries.cuda_toolkit,
    "rocm": libraries.rocm,
    "cudnn": libraries.cudnn,
    "nccl": libraries.nccl,
    "rccl": libraries.rccl,
    "rdma-core": libraries.rdma_core,
    "ibverbs": libraries.ibverbs,
    "gpus": gpus.gpus,
    "variables": variables,
    "package_digest": libraries.package_digest,
    "packages": libraries.packages,
}

FORMAT = "testkit_environment"
VERSION = 1


@cache  # once a session: libraries that are imported later change nothing that matters
def snapshot() -> Facts:
    """Facts about this machine by name, such as ``snapshot()["kernel"].value``; read once in a process.

    Sizes are in bytes. What is absent has the value None, and what cannot be read too: this never raises. torch is
    not imported. Of the environment only variables on a fixed list are read.
    """
    return MappingProxyType(take(Sources()))


def take(sources: Sources) -> dict[str, Fact]:
    """The facts that ``sources`` tell."""
    return {name: _careful(read, sources) for name, read in READERS.items()}


def _careful(read: Callable[[Sources], Fact], sources: Sources) -> Fact:
    try:
        return read(sources)
    except Exception as error:  # noqa: BLE001 - a file in an unknown form costs one fact, never a test run
        return Fact(None, f"cannot be read: {type(error).__name__}: {error}")


def to_json(facts: Facts) -> str:
    """What ``from_json`` reads: indented, the same text for the same facts."""
    plain = {name: {"value": fact.value, "how": fact.how} for name, fact in facts.items()}
    return json.dumps({FORMAT: VERSION, "facts": plain}, indent=2) + "\n"


def from_json(text: str, where: str) -> dict[str, Fact]:
    """The facts in ``text``; raises MachineError, with ``where`` it came from, if it is no snapshot."""
    fix = "write one with: testkit environment show --format json > FILE"
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise MachineError(f"no JSON: {error}", where, fix) from None
    if not isinstance(data, dict) or FORMAT not in data:
        raise MachineError("this is JSON, but no snapshot", where, fix)
    if data[FORMAT] != VERSION:
        raise MachineError(f"a snapshot of version {data[FORMAT]!r}; this testkit reads {VERSION}", where, fix)
    try:
        return {name: Fact(fact["value"], str(fact["how"])) for name, fact in data["facts"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise MachineError(f"a snapshot without value and how for each fact ({error})", where, fix) from None
