"""What does a stub cost? Microseconds to make one and to read an attribute, ``bare`` and ``namespace`` beside others.

    python benchmarks/bare_cost.py [--rounds 7] [--number 500]

Four classes: one with ten attributes, a frozen dataclass with slots, a small ``nn.Module`` (if torch is installed),
and a configuration for ``namespace``. The ways alternate, and each figure is the median of the rounds. The first use
of a class, which reads its source, is shown by itself, in milliseconds. Wanted: ``bare`` at most 200 us after it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

from testkit.kernels import bare, namespace

WANTED = 200.0


class Backend:
    """Ten attributes, some of them set by a helper."""

    def __init__(self, heads: int, size: int, scale: float) -> None:
        self.heads, self.size, self.scale = heads, size, scale
        self.dtype = "bfloat16"
        self.window = (-1, -1)
        self._buffers_of()

    def _buffers_of(self) -> None:
        for name in ("queries", "keys", "values", "output", "lengths"):
            setattr(self, name, [0] * self.size)

    def elements(self) -> int:
        return self.heads * self.size


@dataclass(frozen=True)
class Config:
    block: int = 16
    dtype: str = "bfloat16"
    layers: list[int] = field(default_factory=list)


BACKEND: dict[str, Any] = {"heads": 8, "size": 64, "scale": 0.125, "queries": [], "keys": [], "values": []}


def by_hand(cls: type, values: dict[str, Any]) -> Any:
    made = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def ways() -> dict[str, dict[str, Callable[[], Any]]]:
    """By class: a function for each way to make a stub of it."""
    found: dict[str, dict[str, Callable[[], Any]]] = {
        "class, 6 of 10 attributes": {
            "object.__new__": lambda: by_hand(Backend, BACKEND),
            "create_autospec": lambda: create_autospec(Backend, instance=True, **BACKEND),
            "bare": lambda: bare(Backend, **BACKEND),
            "bare, exact": lambda: bare(Backend, exact=True, **BACKEND),
        },
        "frozen dataclass": {
            "object.__new__": lambda: by_hand(Config, {"block": 32}),
            "create_autospec": lambda: create_autospec(Config, instance=True, block=32),
            "bare": lambda: bare(Config, block=32),
            "bare, exact": lambda: bare(Config, exact=True, block=32),
        },
        "configuration": {
            "SimpleNamespace": lambda: SimpleNamespace(block=32),
            "create_autospec": lambda: create_autospec(Config, instance=True, block=32),
            "namespace": lambda: namespace(Config, block=32),
        },
    }
    if find_spec("torch"):
        found["nn.Module, 1 parameter"] = module_ways()
    return found


def module_ways() -> dict[str, Callable[[], Any]]:
    import torch

    class Linear(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(size, size))
            self.size = size

    weight = torch.nn.Parameter(torch.ones(2, 2))

    def hand_made() -> Any:
        made = object.__new__(Linear)
        torch.nn.Module.__init__(made)
        made.weight, made.size = weight, 2
        return made

    return {
        "object.__new__": hand_made,
        "create_autospec": lambda: create_autospec(Linear, instance=True, weight=weight, size=2),
        "bare": lambda: bare(Linear, weight=weight, size=2),
        "bare, exact": lambda: bare(Linear, exact=True, weight=weight, size=2),
    }


def microseconds(function: Callable[[], Any], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        function()
    return (time.perf_counter() - start) / number * 1e6


def read_cost(stub: Any, number: int) -> float:
    return microseconds(lambda: stub.block, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--number", type=int, default=500)
    wish = parser.parse_args()
    worst = 0.0
    for name, functions in ways().items():
        first = {way: microseconds(function, 1) / 1000 for way, function in functions.items()}
        times: dict[str, list[float]] = {way: [] for way in functions}
        for _ in range(wish.rounds):
            for way, function in functions.items():
                # create_autospec takes milliseconds
                number = max(1, wish.number // 50) if way == "create_autospec" else wish.number
                times[way].append(microseconds(function, number))
        print(f"{name}:  us a stub, median of {wish.rounds} rounds of {wish.number}")
        for way, values in times.items():
            worst = max(worst, statistics.median(values) if way.startswith(("bare", "namespace")) else 0.0)
            print(f"  {way:<16} {statistics.median(values):9.1f}   first {first[way]:8.2f} ms")
    stubs: dict[str, Any] = {"SimpleNamespace": SimpleNamespace(block=1)}
    stubs |= {"bare": bare(Config, block=1), "namespace": namespace(Config, block=1)}
    print("one read:  us")
    for way, stub in stubs.items():
        print(f"  {way:<16} {statistics.median(read_cost(stub, wish.number * 10) for _ in range(wish.rounds)):9.2f}")
    print(f"the slowest of ours takes {worst:.1f} us, wanted <= {WANTED:.0f}: {'yes' if worst <= WANTED else 'NO'}")


if __name__ == "__main__":
    main()
