"""Which planted faults of examples/skinny_gemm each choice of cases finds: all, ours, hand-written tables, random.

Every case of the full product is really run, once for each fault of its kernel. The hand-written tables are those
that the upstream suite of these parameters was thinned with (vllm-project/vllm pull request 51877).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from testkit.pairwise import coverage, sample

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "skinny_gemm"
sys.path[:0] = [str(EXAMPLE), str(EXAMPLE / "tests")]

import test_skinny_gemm as suite  # noqa: E402  # found through the path set above
from skinny_gemm import faults  # noqa: E402  # found through the path set above

SHAPE = ("n", "k", "m")
F16, BF16 = torch.float16, torch.bfloat16

# option names and rows; the upstream suite crosses them with every shape, and leaves llmm1 as it was
HAND_TABLES: dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]] = {
    "wvsplitkrc": (
        ("dtype", "padded_a", "bias_mode", "xnorm"),
        [
            (F16, False, 0, False),
            (F16, True, 1, True),
            (F16, True, 2, False),
            (BF16, True, 0, True),
            (BF16, False, 1, False),
            (BF16, False, 2, True),
        ],
    ),
    "wvsplitk": (
        ("dtype", "padded_a", "padded_b", "bias_mode", "xnorm"),
        [
            (F16, False, False, 0, False),
            (F16, False, True, 1, True),
            (F16, True, False, 2, True),
            (BF16, True, True, 0, True),
            (BF16, True, False, 1, False),
            (BF16, False, True, 2, False),
        ],
    ),
    "wvsplitk_fp8": (
        ("dtype", "padded_a", "padded_b", "biased", "xnorm"),
        [
            (F16, False, False, True, True),
            (BF16, True, False, False, True),
            (BF16, False, True, True, True),
            (F16, True, False, True, False),
            (F16, False, True, False, False),
            (BF16, True, True, False, False),
        ],
    ),
}

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Subject:
    """One test function of the example: its axes, its predicate, and the cases that it allows."""

    kernel: str
    test: Callable[..., None]
    axes: dict[str, list[Any]]
    where: Callable[..., bool] | None
    names: tuple[str, ...]
    size: int  # of the full product, before the predicate
    allowed: frozenset[Key]

    def keys(self, rows: Iterable[Mapping[str, Any]]) -> frozenset[Key]:
        """Rows by argument name as hashable keys."""
        return frozenset(tuple(row[name] for name in self.names) for row in rows)

    def rows(self, keys: Iterable[Key]) -> list[dict[str, Any]]:
        """The other way round."""
        return [dict(zip(self.names, key, strict=True)) for key in keys]


@dataclass(frozen=True)
class Choice:
    """A way to choose cases: for each kernel one or more sets of keys (more where chance plays a part)."""

    title: str
    sets: dict[str, list[frozenset[Key]]]

    @property
    def size(self) -> float:
        """Cases over the four functions, as a mean over the sets."""
        return sum(fmean(len(chosen) for chosen in sets) for sets in self.sets.values())


def main() -> int:
    options = _options()
    torch.set_num_threads(1)
    started = time.perf_counter()
    subjects = [subject_of(kernel) for kernel in options.kernel or faults.KERNELS]
    planted = [fault for subject in subjects for fault in _faults_of(subject)]
    failing = _run_everything(subjects)
    ran = time.perf_counter() - started
    problems = _problems(subjects, failing)
    choices = _choices(subjects, options.seeds, options.random)
    print(_machine())
    runs = sum(len(s.allowed) * (1 + len(_faults_of(s))) for s in subjects)
    product = sum(s.size for s in subjects)
    by_hand = sum(_hand_size(s) for s in subjects)
    print(f"full product {product}, of which {sum(len(s.allowed) for s in subjects)} fit the device")
    print(f"tables by hand {by_hand}, of which {choices[-1].size:.0f} fit the device")
    print(f"{len(planted)} faults, {runs} kernel runs in {ran:.1f} s\n")
    _print_faults(planted, subjects, failing, choices)
    _print_totals(planted, failing, choices)
    if options.coverage:
        _print_coverage(subjects, choices)
    print(f"\n{time.perf_counter() - started:.1f} s in all")
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", action="append", choices=faults.KERNELS, help="only this one (repeatable)")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of our sample (default 20)")
    parser.add_argument("--random", type=int, default=100, help="random samples of the same size (default 100)")
    parser.add_argument("--no-coverage", dest="coverage", action="store_false", help="leave out pairs and triples")
    return parser.parse_args()


def subject_of(kernel: str) -> Subject:
    """The axes and the predicate as the example's decorators give them."""
    test = getattr(suite, f"test_{kernel}")
    marks = list(test.pytestmark)
    axes = {mark.args[0]: list(mark.args[1]) for mark in marks if mark.name == "parametrize"}
    where = next(mark for mark in marks if mark.name == "pairwise").kwargs.get("where")
    names = tuple(name for axis in axes for name in axis.split(","))
    products = itertools.product(*(values if "," in axis else [(v,) for v in values] for axis, values in axes.items()))
    keys = [tuple(itertools.chain(*parts)) for parts in products]
    places = [names.index(name) for name in SHAPE]
    allowed = frozenset(key for key in keys if where is None or where(*(key[place] for place in places)))
    return Subject(kernel, test, axes, where, names, len(keys), allowed)


def _faults_of(subject: Subject) -> list[faults.Fault]:
    return [fault for fault in faults.FAULTS if fault.kernel == subject.kernel]


def _run_everything(subjects: list[Subject]) -> dict[str, frozenset[Key]]:
    """The failing cases of each fault, and of no fault (the empty name), by running them all."""
    # the inputs and the reference do not depend on the fault: build them once a case
    suite.problem = functools.lru_cache(maxsize=1)(suite.problem)
    failing: dict[str, list[Key]] = {"": []} | {f.name: [] for s in subjects for f in _faults_of(s)}
    for subject in subjects:
        names = ["", *(fault.name for fault in _faults_of(subject))]
        for key, row in zip(subject.allowed, subject.rows(subject.allowed), strict=True):
            for name in names:
                os.environ[faults.VARIABLE] = name
                if _fails(subject.test, row):
                    failing[name].append(key)
    os.environ.pop(faults.VARIABLE)
    return {name: frozenset(keys) for name, keys in failing.items()}


def _fails(test: Callable[..., None], row: dict[str, Any]) -> bool:
    try:
        test(**row)
    except AssertionError:
        return True
    return False


def _problems(subjects: list[Subject], failing: dict[str, frozenset[Key]]) -> list[str]:
    """What would make the figures worthless."""
    found = []
    if failing[""]:
        found.append(f"{len(failing[''])} cases fail without any fault")
    for subject in subjects:
        for fault in _faults_of(subject):
            claimed = subject.keys(row for row in subject.rows(subject.allowed) if fault.spoils(row))
            if not failing[fault.name]:
                found.append(f"{fault.name}: the full product does not find it")
            if claimed != failing[fault.name]:
                differ = len(claimed ^ failing[fault.name])
                found.append(f"{fault.name}: {differ} cases fail although they should not, or the other way round")
    return found


def _choices(subjects: list[Subject], seeds: int, draws: int) -> list[Choice]:
    pairs = {s.kernel: [_ours(s, seed) for seed in range(seeds)] for s in subjects}
    crossed = {s.kernel: [_ours(s, seed, full=SHAPE) for seed in range(seeds)] for s in subjects}
    triples = {s.kernel: [_ours(s, seed, strength=3) for seed in range(seeds)] for s in subjects}
    hand = {s.kernel: [_hand(s)] for s in subjects}
    return [
        Choice("pairwise", pairs),
        Choice("random", {s.kernel: _random(s, len(pairs[s.kernel][0]), draws) for s in subjects}),
        Choice("n,k,m full", crossed),
        Choice("random", {s.kernel: _random(s, len(crossed[s.kernel][0]), draws) for s in subjects}),
        Choice("strength 3", triples),
        Choice("by hand", hand),
    ]


def _ours(subject: Subject, seed: int, **options: Any) -> frozenset[Key]:
    chosen = subject.keys(sample(subject.axes, where=subject.where, seed=seed, **options).rows)
    if not chosen <= subject.allowed:
        raise SystemExit(f"{subject.kernel}: the sample of seed {seed} holds cases that do not fit the device")
    return chosen


def _hand(subject: Subject) -> frozenset[Key]:
    """The hand-written table crossed with every shape, less the cases that skip themselves."""
    if subject.kernel not in HAND_TABLES:
        return subject.allowed
    names, table = HAND_TABLES[subject.kernel]
    places = [subject.names.index(name) for name in names]
    return frozenset(key for key in subject.allowed if tuple(key[place] for place in places) in table)


def _hand_size(subject: Subject) -> int:
    """Cases of the table crossed with every shape, with those that skip themselves."""
    if subject.kernel not in HAND_TABLES:
        return subject.size
    names, table = HAND_TABLES[subject.kernel]
    return len(table) * subject.size // math.prod(len(subject.axes[name]) for name in names)


def _random(subject: Subject, size: int, draws: int) -> list[frozenset[Key]]:
    """Random samples of the allowed cases: a random sample that must skip some would find less."""
    cases = sorted(subject.allowed, key=repr)
    return [frozenset(random.Random(draw).sample(cases, size)) for draw in range(draws)]


def _share(choice: Choice, fault: faults.Fault, bad: frozenset[Key]) -> float:
    """The share of the choice's sets that hold a failing case."""
    return fmean(not bad.isdisjoint(chosen) for chosen in choice.sets[fault.kernel])


def _cell(choice: Choice, fault: faults.Fault, bad: frozenset[Key]) -> str:
    """``yes 12`` for one set (failing cases); ``100 % 12.0`` for several (share of sets that find it, mean)."""
    sets = choice.sets[fault.kernel]
    failing = fmean(len(bad & chosen) for chosen in sets)
    if len(sets) == 1:
        return f"{'yes' if failing else 'NO'} {failing:.0f}"
    return f"{_share(choice, fault, bad):.0%} {failing:.1f}"


def _table(lines: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *rest]).rstrip())


def _print_faults(
    planted: list[faults.Fault],
    subjects: list[Subject],
    failing: dict[str, frozenset[Key]],
    choices: list[Choice],
) -> None:
    print("Failing cases of the full product; for the rest the share of samples that find the fault (yes or NO where")
    print(
        "there is one set only) and the failing cases in a sample. Seed 0 is what a run uses unless told otherwise.\n"
    )
    head = ["fault", "axes", "full product", "seed 0", *(choice.title for choice in choices)]
    sizes = ["cases", "", str(sum(len(s.allowed) for s in subjects)), str(_seed_0(choices[0]))]
    lines = [head, [*sizes, *(f"{choice.size:.0f}" for choice in choices)]]
    for fault in planted:
        bad = failing[fault.name]
        first = len(bad & choices[0].sets[fault.kernel][0])
        line = [fault.name, str(fault.strength), f"{'yes' if bad else 'NO'} {len(bad)}"]
        line.append(f"{'yes' if first else 'NO'} {first}")
        lines.append([*line, *(_cell(choice, fault, bad) for choice in choices)])
    _table(lines)


def _seed_0(choice: Choice) -> int:
    return sum(len(sets[0]) for sets in choice.sets.values())


def _print_totals(planted: list[faults.Fault], failing: dict[str, frozenset[Key]], choices: list[Choice]) -> None:
    print("\nFaults found, by the number of axes that must meet (a mean where there are several samples)\n")
    lines = [["axes", "faults", "full product", "seed 0", *(choice.title for choice in choices)]]
    for strength in (*sorted({fault.strength for fault in planted}), None):
        some = [fault for fault in planted if strength in (fault.strength, None)]
        first = sum(not failing[f.name].isdisjoint(choices[0].sets[f.kernel][0]) for f in some)
        found = [sum(_share(choice, f, failing[f.name]) for f in some) for choice in choices]
        line = [str(strength or "all"), str(len(some)), str(sum(bool(failing[f.name]) for f in some)), str(first)]
        lines.append([*line, *(f"{value:.1f}".removesuffix(".0") for value in found)])
    _table(lines)


def _print_coverage(subjects: list[Subject], choices: list[Choice]) -> None:
    print("\nWhatever the faults: the percentage of the allowed value combinations that a choice holds (first set)\n")
    lines = [["combinations", *(choice.title for choice in choices)]]
    for strength, word in ((2, "pairs"), (3, "triples")):
        for subject in subjects:
            line = [f"{word} of {subject.kernel}"]
            for choice in choices:
                rows = subject.rows(choice.sets[subject.kernel][0])
                held = coverage(subject.axes, rows, strength=strength, where=subject.where)
                line.append(f"{held.percent:.1f}")
            lines.append(line)
    _table(lines)


def _machine() -> str:
    """The machine in one line."""
    model = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text().splitlines())
        model = next((value.strip() for name, _, value in lines if name.strip() == "model name"), model)
    python, version = platform.python_version(), torch.__version__
    return f"machine: {os.cpu_count()} cores, {model}, Python {python}, torch {version}, one thread"


if __name__ == "__main__":
    sys.exit(main())
