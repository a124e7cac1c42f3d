"""Seconds of the chosen cases with durations known, beside those of the choice that knows none, at equal coverage.

    python benchmarks/pairwise_costs.py
    python benchmarks/pairwise_costs.py FILE|DIR ...

Without arguments: a recording of torchmetrics (two runs; tests/data/pairwise/ORIGIN.md), chosen by the first run and
timed by the first and by the second one, also when only the cases of an earlier thinned run are known; then the axes
of vLLM's skinny-GEMM tests with seconds made here by the stated rule. FILE: a JSON object from node id to seconds or
a run file of --timing-dir, DIR: a folder of run files; their functions with three axes or more, the axes read from the
ids. Both choices are proved to hold every owed pair before they are timed.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from testkit._text import table
from testkit.pairwise._cheaper import cheapest
from testkit.pairwise._costs import CaseCosts, Measured, read_durations
from testkit.pairwise._engine import cover
from testkit.pairwise._model import Model
from testkit.pairwise._proof import prove
from testkit.pairwise._space import Rule, Space

DATA = Path(__file__).parent.parent / "tests" / "data" / "pairwise"
Case = tuple[int, ...]
Recording = Mapping[Case, Measured]


def model_of(levels: Sequence[int], allowed: Recording) -> Model:
    """All pairs, over the cases that were recorded."""
    table_ = frozenset(allowed)
    whole = len(table_) == math.prod(levels)
    rules = [] if whole else [Rule("recorded", tuple(range(len(levels))), table_.__contains__, table_)]
    return Model(Space(levels, rules), 2)


class Score:
    """One row of the table: blind and aware seconds, and what the search took."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases = [0, 0]
        self.blind = self.aware = self.search = self.all_cases = 0.0

    def add(self, levels: Sequence[int], known: Recording | None, truth: Recording) -> None:
        """``known``: what the choice is told; None: the seconds of the cases of the blind choice only."""
        model = model_of(levels, truth)
        choose = partial(cover, seed=0, effort="default", engine="testkit")
        blind = choose(model)
        told = known if known is not None else {case: truth[case] for case in map(tuple, blind)}
        costs = CaseCosts(levels, told)
        begin = time.perf_counter()
        aware = cheapest(model, costs, choose)
        self.search += time.perf_counter() - begin
        prove(model, blind)
        prove(model, aware)
        real = CaseCosts(levels, truth)
        self.blind += real.expected_seconds(blind)
        self.aware += real.expected_seconds(aware)
        self.all_cases += real.expected_seconds(truth)
        self.cases[0] += len(blind)
        self.cases[1] += len(aware)

    def row(self) -> list[object]:
        seconds = [f"{value:.2f}" for value in (self.all_cases, self.blind, self.aware)]
        return [self.name, *self.cases, *seconds, f"{self.aware / (self.blind or 1.0):.2f}", f"{self.search:.2f}"]


# ------------------------------------------------------------------ recordings


def torchmetrics() -> Iterator[tuple[list[int], Recording, Recording]]:
    for function in json.loads((DATA / "torchmetrics_seconds.json").read_text()).values():
        levels = [len(values) for values in function["axes"].values()]
        cases = list(product(*map(range, levels)))
        one, two = (
            {case: Measured(s) for case, s in zip(cases, function[run], strict=True) if s is not None}
            for run in ("run1", "run2")
        )
        yield levels, one, two


def recorded(path: str) -> Iterator[tuple[list[int], Recording]]:
    """Functions whose ids part into the same number of values, three of which vary."""
    for cases in read_durations(path).functions.values():
        parts = {tuple(re.split(r"(?<=[^-])-(?![^\[(]*[\])])", text)): measured for text, measured in cases.items()}
        if len(parts) < len(cases) or len({len(values) for values in parts}) != 1:
            continue
        columns = [list(dict.fromkeys(column)) for column in zip(*parts, strict=True)]
        if sum(len(column) > 1 for column in columns) >= 3:
            yield (
                [len(column) for column in columns],
                {tuple(map(list.index, columns, values)): measured for values, measured in parts.items()},
            )


def simulated() -> Iterator[tuple[str, list[int], Recording]]:
    """vLLM's axes; a launch of 5 ms, 0.2 ms for each million multiplications, 20 % noise from a fixed seed, and 1 to
    4 s of compilation for each dtype, bias, xnorm and power of two of n: what a Triton kernel specialises on."""
    chance = random.Random(8)
    axes = json.loads((DATA / "skinny_gemm_axes.json").read_text())["wvsplitkrc"]
    values = [axes["n"], axes["k"], axes["m"], *axes["options"].values()]
    levels = [len(column) for column in values]
    compiling: dict[tuple[int, ...], float] = {}
    cases, kernels = {}, {}
    for turn, case in enumerate(product(*map(range, levels))):
        n, k, m = (values[axis][case[axis]] for axis in range(3))
        seconds = (0.005 + 2e-10 * n * k * m) * chance.uniform(0.8, 1.2)
        key = (case[3], *case[5:])
        first = 0.0 if key in compiling else compiling.setdefault(key, chance.uniform(1.0, 4.0))
        cases[case] = Measured(seconds, 0.0, turn)
        kernels[case] = Measured(seconds, first, turn)
    yield "simulated: run only", levels, cases
    yield "simulated: run and compilation", levels, kernels


def main(paths: Sequence[str]) -> None:
    scores = []
    for path in paths:
        score = Score(path)
        for levels, truth in recorded(path):
            score.add(levels, truth, truth)
        scores.append(score)
    if not paths:
        same, other, thinned = (
            Score("torchmetrics"),
            Score("torchmetrics, timed by the second run"),
            Score("torchmetrics, known from a thinned run"),
        )
        for levels, one, two in torchmetrics():
            same.add(levels, one, one)
            other.add(levels, one, two)
            thinned.add(levels, None, one)
        scores += [same, other, thinned]
        for name, levels, truth in simulated():
            scores.append(Score(name))
            scores[-1].add(levels, truth, truth)
    head = ["", "cases", "with costs", "all cases, s", "blind, s", "with costs, s", "ratio", "search, s"]
    print("\n".join(table([head, *(score.row() for score in scores)])))


if __name__ == "__main__":
    main(sys.argv[1:])
