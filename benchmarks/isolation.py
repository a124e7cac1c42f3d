"""How often the planted combination is named exactly after 12 further cases: chosen one by one, or at random.

    python benchmarks/isolation.py
    python benchmarks/isolation.py --faults 200 --cases 12 krc 3^13

A fault is 2 or 3 values of different axes that fail whenever they meet. Those are planted that a pairwise sample of the
model sees (a 3-way fault that no case of it holds cannot be isolated). *Exactly* means that one explanation is left,
and that it is the planted one or one that the predicates make equal to it; a smaller, a larger or a second one is a
miss. *no more*: from the sample's own cases alone; *random*: with as many cases drawn from those that did not run.
Where a row says 2+3, two faults are planted at once, and both have to be named.

The second table takes the planted faults of examples/skinny_gemm (their entries say which cases they spoil, which
benchmarks/detection.py proves by running the kernels; needs torch). A fault there often shows at several values of an
axis, so *named* means: the suspects are of exactly the axes that the fault depends on, and no failure is left over.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "pairwise"))

from covering_models import fits_the_device, known_models, uniform  # found through the path set above

from testkit._text import table  # after the path, like its neighbour
from testkit.pairwise._axes import Axis, make_axes  # after the path, like its neighbour
from testkit.pairwise._engine import cover  # after the path, like its neighbour
from testkit.pairwise._isolate import next_case  # after the path, like its neighbour
from testkit.pairwise._model import Model  # after the path, like its neighbour
from testkit.pairwise._plan import make_model  # after the path, like its neighbour
from testkit.pairwise._suspects import find_suspects  # after the path, like its neighbour

Row = list[int]
Fault = tuple[tuple[int, int], ...]
NAMES = (
    "krc",
    "krc too-large rule",
    "wvsplitk",
    "fp8",
    "llmm1",
    "TCAS t=2",
    "3^13",
    "5^10",
    "4^8 2^12",
    "8^8",
    "spins",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="*", default=NAMES, help="only these")
    parser.add_argument("--faults", type=int, default=60, help="faults of each size in each model (default 60)")
    parser.add_argument("--cases", type=int, default=12, help="further cases (default 12)")
    options = parser.parse_args()
    head = ["model", "values", "faults", "sample", "no more", "random", "chosen", "cases run", "ms a case"]
    lines: list[list[object]] = [list(head)]
    totals: dict[str, list[float]] = {}
    for name in options.model:
        model = _model(name)
        for sizes in ((2,), (3,), (2, 3)):
            if sum(sizes) <= sum(levels > 1 for levels in model.levels):
                line, counts = _measure(name, model, sizes, options.faults, options.cases)
                lines.append(line)
                key = "+".join(map(str, sizes))
                totals[key] = [a + b for a, b in zip(totals.get(key, [0.0] * 5), counts, strict=True)]
    for sizes_text, (faults, none, chance, ours, ran) in totals.items():
        shares = [f"{100 * found / faults:.0f} %" for found in (none, chance, ours)]
        lines.append(["all", sizes_text, int(faults), "", *shares, f"{ran / faults:.1f}", ""])
    print("\n".join(table(lines, indent="")))
    if options.model is NAMES:
        print()
        print("\n".join(table(_kernel_faults(options.cases), indent="")))
    return 0


def _kernel_faults(cases: int) -> list[list[object]]:
    import detection  # its neighbour; imports torch

    lines: list[list[object]] = [["skinny_gemm", "faults", "seen by the sample", "no more", "chosen", "cases run"]]
    for kernel in detection.faults.KERNELS:
        subject = detection.subject_of(kernel)
        axes = make_axes(subject.axes)
        model = make_model(axes, strength=2, full=(), where=subject.where)
        sample = cover(model, seed=0, effort="default", engine="testkit")
        faults = detection._faults_of(subject)
        seen = none = ours = ran = 0
        for fault in faults:
            fails = partial(_spoils, axes, fault)
            failed = [row for row in sample if fails(row)]
            if failed:
                passed = [row for row in sample if not fails(row)]
                seen += 1
                none += _axes_named(model, axes, passed, failed, fault.axes)
                more_passed, more_failed = _isolate(model, passed, failed, fails, cases)
                ours += _axes_named(model, axes, more_passed, more_failed, fault.axes)
                ran += len(more_passed) + len(more_failed) - len(sample)
        lines.append([kernel, len(faults), seen, none, ours, f"{ran / max(1, seen):.1f}"])
    return lines


def _spoils(axes: Sequence[Axis], fault: Any, row: Row) -> bool:
    case: dict[str, object] = {}
    for axis, level in zip(axes, row, strict=True):
        case |= axis.arguments(axis.first_positions[level])
    return bool(fault.spoils(case))


def _axes_named(
    model: Model, axes: Sequence[Axis], passed: Sequence[Row], failed: Sequence[Row], wanted: Sequence[str]
) -> bool:
    finding = find_suspects(model.levels, passed, failed)
    named = {axes[axis].name for suspect in finding.suspects for axis in suspect.axes}
    return named == set(wanted) and not finding.unexplained


def _model(name: str) -> Model:
    if name == "4^8 2^12":
        return make_model(make_axes(uniform((4, 8), (2, 12))), strength=2, full=(), where=None)
    known = known_models()[name]
    where = fits_the_device if name == "krc too-large rule" else known.options.get("where")
    return make_model(make_axes(known.axes), strength=2, full=(), where=where)


def _measure(
    name: str, model: Model, sizes: Sequence[int], faults: int, cases: int
) -> tuple[list[object], list[float]]:
    sample = cover(model, seed=0, effort="default", engine="testkit")
    random = Random(f"{name} {sizes}")
    none = chance = ours = ran = 0
    spent = 0.0
    for number in range(faults):
        planted = _plant(model, sample, sizes, random)
        passed = [row for row in sample if not _fails(row, planted)]
        failed = [row for row in sample if _fails(row, planted)]
        none += _named(model, passed, failed, planted)
        began = time.perf_counter()
        chosen_passed, chosen_failed = _isolate(model, passed, failed, partial(_fails, planted=planted), cases)
        spent += time.perf_counter() - began
        extra = len(chosen_passed) + len(chosen_failed) - len(sample)
        ran += extra
        ours += _named(model, chosen_passed, chosen_failed, planted)
        drawn = _draw(model, sample, cases, Random(number))
        chance += _named(
            model,
            passed + [row for row in drawn if not _fails(row, planted)],
            failed + [row for row in drawn if _fails(row, planted)],
            planted,
        )
    shares = [f"{100 * found / faults:.0f} %" for found in (none, chance, ours)]
    text = "+".join(map(str, sizes))
    milliseconds = f"{1000 * spent / max(1, ran):.1f}"
    line = [name, text, faults, len(sample), *shares, f"{ran / faults:.1f}", milliseconds]
    return line, [faults, none, chance, ours, ran]


def _plant(model: Model, sample: Sequence[Row], sizes: Sequence[int], random: Random) -> list[Fault]:
    """Faults that the sample sees, each in a case that no other fault spoils, and not in all of its cases."""
    axes = [axis for axis, levels in enumerate(model.levels) if levels > 1]
    while True:
        planted: list[Fault] = []
        for size in sizes:
            row = random.choice(sample)
            planted.append(tuple((axis, row[axis]) for axis in sorted(random.sample(axes, size))))
        alone = [[row for row in sample if _fails(row, [fault])] for fault in planted]
        others = [[row for row in sample if _fails(row, [o for o in planted if o is not f])] for f in planted]
        seen = all(any(row not in other for row in own) for own, other in zip(alone, others, strict=True))
        if seen and sum(map(len, alone)) < len(sample):
            return planted


def _fails(row: Row, planted: Sequence[Fault]) -> bool:
    return any(all(row[axis] == level for axis, level in fault) for fault in planted)


def _isolate(
    model: Model, passed: list[Row], failed: list[Row], fails: Callable[[Row], bool], cases: int
) -> tuple[list[Row], list[Row]]:
    passed, failed = list(passed), list(failed)
    for _ in range(cases):
        row = next_case(model, passed, failed)
        if row is None:
            break
        (failed if fails(row) else passed).append(row)
    return passed, failed


def _draw(model: Model, sample: Sequence[Row], cases: int, random: Random) -> list[Row]:
    """Different allowed cases outside the sample, each value drawn in turn from those left."""
    known = {tuple(row) for row in sample}
    drawn: list[Row] = []
    for _ in range(100 * cases):
        partial_case: dict[int, int] = {}
        for axis in random.sample(range(len(model.levels)), len(model.levels)):
            states = model.space.states(partial_case)
            assert states is not None
            partial_case[axis] = random.choice(list(model.space.values(states, axis)))
        row = [partial_case[axis] for axis in range(len(model.levels))]
        if tuple(row) not in known:
            known.add(tuple(row))
            drawn.append(row)
        if len(drawn) == cases:
            break
    return drawn


def _named(model: Model, passed: Sequence[Row], failed: Sequence[Row], planted: Sequence[Fault]) -> bool:
    finding = find_suspects(model.levels, passed, failed)
    if not finding.settled or any(len(suspect.cells) > 1 for suspect in finding.suspects):
        return False
    found = [tuple(zip(suspect.axes, suspect.cells[0], strict=True)) for suspect in finding.suspects]
    same = partial(_same, model)
    return len(found) == len(planted) and all(any(same(fault, one) for one in found) for fault in planted)


def _same(model: Model, one: Fault, other: Fault) -> bool:
    """Do the allowed cases that hold one combination hold the other, and the other way round?"""
    return _implies(model, one, other) and _implies(model, other, one)


def _implies(model: Model, one: Fault, other: Fault) -> bool:
    states = model.space.states(dict(one))
    if states is None:
        return False
    fixed = dict(one)
    return all(fixed.get(a) == v or (a not in fixed and list(model.space.values(states, a)) == [v]) for a, v in other)


if __name__ == "__main__":
    sys.exit(main())
