"""The system: its name, kernel, C library, container, processors, memory and Python."""

from __future__ import annotations

import platform
import re
import shlex
import sys
import sysconfig

from testkit.environment._sources import Fact, Sources

RELEASE = ("/etc/os-release", "/usr/lib/os-release")
KERNEL = "/proc/sys/kernel/osrelease"
MARKS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
"""Files that container engines leave, https://systemd.io/CONTAINER_INTERFACE/ and their own sources."""
GROUPS = {"kubepods": "kubernetes", "docker": "docker", "libpod": "podman", "containerd": "containerd", "lxc": "lxc"}
"""Words in the control group of process 1. With a group namespace of its own a container sees none of them."""
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""A container's limit in bytes: version 2 and version 1 of control groups."""


def os_name(sources: Sources) -> Fact:
    """``ubuntu``, ``debian``."""
    return _release(sources, "ID")


def os_version(sources: Sources) -> Fact:
    """``24.04``."""
    return _release(sources, "VERSION_ID")


def _release(sources: Sources, key: str) -> Fact:
    """https://www.freedesktop.org/software/systemd/man/latest/os-release.html"""
    for path in RELEASE:
        for line in sources.text(path).splitlines():
            name, _, value = line.partition("=")
            if name.strip() == key:
                return Fact(" ".join(shlex.split(value)) or None, f"{key} in {path}")
    return Fact(None, f"no {key} in {' or '.join(RELEASE)}")


def kernel(sources: Sources) -> Fact:
    return Fact(sources.text(KERNEL) or None, KERNEL)


def machine(sources: Sources) -> Fact:
    return Fact(platform.machine() or None, "uname")


def glibc(sources: Sources) -> Fact:
    name, _, version = sources.libc().partition(" ")
    return Fact(version if name == "glibc" and version else None, "confstr CS_GNU_LIBC_VERSION")


def container(sources: Sources) -> Fact:
    """What runs this process: ``docker``, ``podman``, ``kubernetes`` and the like."""
    if "KUBERNETES_SERVICE_HOST" in sources.environ:
        return Fact("kubernetes", "KUBERNETES_SERVICE_HOST is set")
    for path, engine in MARKS.items():
        if sources.at(path).exists():
            return Fact(engine, f"{path} is there")
    if engine := sources.environ.get("container", ""):
        return Fact(engine, "variable container")
    groups = sources.text("/proc/1/cgroup")
    for word, engine in GROUPS.items():
        if word in groups:
            return Fact(engine, f"{word} in /proc/1/cgroup")
    return Fact(None, f"no {' or '.join(MARKS)}, and /proc/1/cgroup names no engine")


def cpu(sources: Sources) -> Fact:
    found = re.search(r"^model name\s*:\s*(.+)$", sources.text("/proc/cpuinfo"), re.MULTILINE)
    return Fact(found[1].strip() if found else None, "model name in /proc/cpuinfo")


def cpus(sources: Sources) -> Fact:
    return Fact(sources.cpus(), "processors that this process may run on")


def memory(sources: Sources) -> Fact:
    """Bytes, in whole MiB: of the machine, or what its container may use of it."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", sources.text("/proc/meminfo"), re.MULTILINE)
    total = int(found[1]) << 10 if found else 0
    figures = {path: int(text) for path in LIMITS if (text := sources.text(path)).isdecimal()}
    path = min(figures, key=lambda path: figures[path], default="")
    if path and figures[path] < total:
        return Fact(_whole(figures[path]), path)
    return Fact(_whole(total) or None, "MemTotal in /proc/meminfo")


def _whole(size: int) -> int:
    return size >> 20 << 20


def python(sources: Sources) -> Fact:
    return Fact(platform.python_version(), sys.executable)


def python_implementation(sources: Sources) -> Fact:
    """``CPython``; ``CPython free-threaded`` for a build without the global lock."""
    threads = " free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return Fact(platform.python_implementation() + threads, "platform.python_implementation()")
