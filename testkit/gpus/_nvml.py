"""NVIDIA's management library through ctypes, in a process of its own: which cards there are, and how full.

In the test runner it would leave something behind: starting NVML (driver 580) maps libcuda and begins a thread that
stays, after which Python warns at every fork. So this file is also the program that asks, of the standard library
alone. https://docs.nvidia.com/deploy/nvml-api/ has the functions, constants and structures; NVML's indices count in
PCI order.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

DRIVER, WSL = Path("/proc/driver/nvidia"), Path("/dev/dxg")
"""One of them is there where NVML can be."""

LIMIT = 30.0
"""Seconds for an answer; a card that is lost can keep NVML waiting."""

UUID_BYTES = 96
"""NVML_DEVICE_UUID_V2_BUFFER_SIZE, and as long as a name gets."""

ENABLED = 1
"""NVML_DEVICE_MIG_ENABLE."""


SERVE = "serve"
"""In place of a question: answer one after the other, each a line of JSON, until there are no more."""

GONE = 1.0
"""Seconds that a helper has to end when nobody asks any more."""


class Refused(Exception):
    """NVML answered with an error."""


class Memory2(ctypes.Structure):
    """nvmlMemory_v2_t; in bytes. Here ``used`` does not hold what the driver keeps for itself."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Memory(ctypes.Structure):
    """nvmlMemory_t; in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@cache  # the cards of a machine stay
def uuids() -> list[str] | None:
    """The UUIDs of all cards in NVML's order; None where NVML is not there or refuses."""
    found: list[str] | None = _ask("uuids")
    return found


def memory(devices: Sequence[str], *, pci_order: bool) -> list[list[int]] | None:
    """Bytes used and in all of each device, an entry of CUDA_VISIBLE_DEVICES; None where one cannot be read.

    ``pci_order``: CUDA's indices count as NVML's do. Otherwise CUDA puts the fastest card first, and indices can be
    told from each other only if all cards are alike.
    """
    figures: list[list[int]] | None = _ask("memory", "pci" if pci_order else "fastest", *devices)
    return figures


def reserved(devices: Sequence[str], *, pci_order: bool) -> list[int] | None:
    """Bytes of each device that the driver keeps for itself; None where that cannot be read."""
    figures: list[int] | None = _ask("reserved", "pci" if pci_order else "fastest", *devices)
    return figures


def names(devices: Sequence[str], *, pci_order: bool) -> list[str] | None:
    """The model of each device, as ``NVIDIA H200``; None where one cannot be read."""
    found: list[str] | None = _ask("names", "pci" if pci_order else "fastest", *devices)
    return found


def _ask(*question: str) -> Any:
    if not (DRIVER.exists() or WSL.exists()):
        return None
    if _helper is not None and _helper.pid == os.getpid():
        return _helper.ask(question)
    command = [sys.executable, "-I", "-S", __file__, *question]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return json.loads(done.stdout) if done.returncode == 0 else None


class Helper:
    """A process that answers again and again: starting one, and NVML in it, takes longer than many a test."""

    def __init__(self) -> None:
        self.pid = os.getpid()  # a forked child must not read our answers
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Sequence[str]) -> Any:
        """As ``_ask``. After one that did not answer another is started."""
        with self._lock, suppress(OSError, ValueError):
            if self._process is None:
                # a session of its own: Ctrl-C is for the tests
                command, pipe = [sys.executable, "-I", "-S", __file__, SERVE], subprocess.PIPE
                self._process = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
                )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(list(question)).encode() + b"\n")
            self._process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(self._process.stdout, selectors.EVENT_READ)
                if selector.select(LIMIT):  # answers are short: a line comes whole
                    return json.loads(self._process.stdout.readline())
        self.close()
        return None

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        try:
            process.wait(GONE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_helper: Helper | None = None


def keep_asking() -> None:
    """From now on a helper answers, until ``stop_asking``. Where pipes cannot be waited for, all stays as it is."""
    global _helper
    if _helper is None and os.name == "posix":
        _helper = Helper()


def stop_asking() -> None:
    global _helper
    helper, _helper = _helper, None
    if helper is not None and helper.pid == os.getpid():
        helper.close()


def serve(library: Any, questions: Iterable[str]) -> Iterator[str]:
    """An answer to each question, with NVML started once."""
    with suppress(Refused), Nvml(library):
        for line in questions:
            yield json.dumps(answer(library, json.loads(line)))


def answer(library: Any, question: Sequence[str]) -> list[Any] | None:
    """What ``library`` (libnvidia-ml, or a stand-in with its functions) says to ``_ask``'s question."""
    what, *rest = question
    try:
        with Nvml(library) as nvml:
            if what == "uuids":
                return [nvml.uuid(card) for card in nvml.cards()]
            order, *devices = rest
            tell = {"memory": nvml.memory, "reserved": nvml.reserved, "names": nvml.name}[what]
            return [tell(handle) for handle in nvml.find(devices, order == "pci")]
    except (AttributeError, Refused):  # the former: a library too old to have the function
        return None


class Nvml:
    """NVML for the length of a block."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __enter__(self) -> Nvml:
        self._call("nvmlInit_v2")
        return self

    def __exit__(self, *_: object) -> None:
        self._library.nvmlShutdown()

    def cards(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index)) for index in range(count.value)]

    def uuid(self, card: ctypes.c_void_p) -> str:
        return self._string("nvmlDeviceGetUUID", card)

    def memory(self, card: ctypes.c_void_p) -> list[int]:
        """Bytes used and in all."""
        figures = Memory()
        self._call("nvmlDeviceGetMemoryInfo", card, ctypes.byref(figures))
        return [figures.used, figures.total]

    def reserved(self, card: ctypes.c_void_p) -> int:
        """Bytes; of drivers from 510 on."""
        figures = Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
        self._call("nvmlDeviceGetMemoryInfo_v2", card, ctypes.byref(figures))
        return int(figures.reserved)

    def name(self, card: ctypes.c_void_p) -> str:
        return self._string("nvmlDeviceGetName", card)

    def find(self, devices: Sequence[str], pci_order: bool) -> list[ctypes.c_void_p]:
        """Handles of entries of CUDA_VISIBLE_DEVICES."""
        cards = self.cards()
        if not pci_order and any(entry.isdigit() for entry in devices):
            names = {self.name(card) for card in cards}
            if len(names) > 1:
                raise Refused(f"which of {', '.join(sorted(names))} CUDA counts as 0 is not known")
        return [self._find(entry, cards) for entry in devices]

    def _find(self, entry: str, cards: list[ctypes.c_void_p]) -> ctypes.c_void_p:
        if entry.startswith("MIG-"):
            return self._handle("nvmlDeviceGetHandleByUUID", entry.encode())
        if entry.isdigit():
            found = cards[int(entry) : int(entry) + 1]
        else:  # may be abbreviated, which NVML does not take
            found = [card for card in cards if self.uuid(card).lower().startswith(entry.lower())]
        if len(found) != 1 or self._is_split(found[0]):
            raise Refused(f"{entry} is not one card")
        return found[0]

    def _is_split(self, card: ctypes.c_void_p) -> bool:
        """Whether the card is in MIG mode: CUDA then shows one of its instances, whose memory is not the card's."""
        now, later = ctypes.c_uint(), ctypes.c_uint()
        try:
            self._call("nvmlDeviceGetMigMode", card, ctypes.byref(now), ctypes.byref(later))
        except (Refused, AttributeError):  # a card or a driver that does not know MIG
            return False
        return now.value == ENABLED

    def _handle(self, function: str, which: object) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call(function, which, ctypes.byref(handle))
        return handle

    def _string(self, function: str, card: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(UUID_BYTES)
        self._call(function, card, text, ctypes.c_uint(UUID_BYTES))
        return text.value.decode()

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise Refused(f"{function} answered {code}")


if __name__ == "__main__":
    nvidia_ml = ctypes.CDLL("libnvidia-ml.so.1")
    if sys.argv[1:] == [SERVE]:
        for text in serve(nvidia_ml, sys.stdin):
            print(text, flush=True)  # noqa: T201 - to Helper.ask
    else:
        print(json.dumps(answer(nvidia_ml, sys.argv[1:])))  # noqa: T201 - to _ask
