"""NVIDIA's management library through ctypes: driver and cards, as JSON. Run as a program, of its own process.

In a test runner it would leave something behind: NVML (driver 580) begins a thread that stays, after which Python
warns at every fork. https://docs.nvidia.com/deploy/nvml-api/ has the functions and structures.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

TEXT = 96
"""Bytes that the longest of the names and UUIDs needs, NVML_DEVICE_UUID_V2_BUFFER_SIZE."""
LINKS = 36
"""No card has more NVLinks; NVML refuses the first that is not there."""


class Refused(Exception):
    """NVML answered with an error."""


class Memory(ctypes.Structure):
    """nvmlMemory_t; in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def answer(library: Any) -> dict[str, Any] | None:
    """``driver``, ``cuda`` (``13.0``) and ``cards``; None where NVML refuses. What one card refuses is None there."""

    def ask(function: str, *arguments: object) -> None:
        code = getattr(library, function)(*arguments)
        if code:
            raise Refused(f"{function} answered {code}")

    try:
        ask("nvmlInit_v2")
    except (AttributeError, Refused):
        return None
    try:
        text, number, count = ctypes.create_string_buffer(TEXT), ctypes.c_int(), ctypes.c_uint()
        ask("nvmlSystemGetDriverVersion", text, ctypes.c_uint(TEXT))
        ask("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
        ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
        cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
        cards = [_card(ask, index) for index in range(count.value)]
        return {"driver": text.value.decode(), "cuda": cuda, "cards": cards}
    except (AttributeError, Refused):
        return None
    finally:
        library.nvmlShutdown()


def _card(ask: Any, index: int) -> dict[str, Any]:
    handle, text, figures = ctypes.c_void_p(), ctypes.create_string_buffer(TEXT), Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))

    def told(function: str, *arguments: object) -> bool:
        try:
            ask(function, handle, *arguments)
        except (AttributeError, Refused):
            return False
        return True

    size = ctypes.c_uint(TEXT)
    uuid = text.value.decode() if told("nvmlDeviceGetUUID", text, size) else ""
    model = text.value.decode() if told("nvmlDeviceGetName", text, size) else None
    known = told("nvmlDeviceGetCudaComputeCapability", ctypes.byref(major), ctypes.byref(minor))
    arch = f"sm{major.value}{minor.value}" if known else None
    memory = figures.total if told("nvmlDeviceGetMemoryInfo", ctypes.byref(figures)) else None
    active, links = ctypes.c_uint(), 0
    for link in range(LINKS):
        if not told("nvmlDeviceGetNvLinkState", ctypes.c_uint(link), ctypes.byref(active)):
            break
        links += active.value
    return {"uuid": uuid, "model": model, "memory": memory, "arch": arch, "links": links}


if __name__ == "__main__":
    print(json.dumps(answer(ctypes.CDLL("libnvidia-ml.so.1"))))  # noqa: T201 - to _read_gpus
