"""What thinned runs find one after another: rotated seeds, what the history adds, and random samples of the same size.

    python benchmarks/rotation.py [--sequences 50] [FILE ...]

First the planted faults of examples/skinny_gemm (which cases fail is proved by benchmarks/detection.py), then the
recorded outcomes of other projects' tests, of which some skip themselves and some fail: each FILE of
benchmarks/recorded_outcomes.py, or those under tests/data/pairwise. A sequence is 10 runs, each with another seed.

- random: as many cases as pairwise has, drawn anew for each run from all that the predicate allows
- random, knows skips: drawn from those that do not skip
- seed 0: the same pairwise cases each time
- rotated: another seed each time (``--pairwise-seed=auto``)
- + history: and what the runs before have recorded (``--pairwise-history``): cases that skip come last, those that
  failed are kept, combinations of one axis more that were not seen come first

The full product finds everything in each run. Ends with 1 if a fault of two axes was missed by a run, or if those of
three are not found within 3 runs in 90 % and within 10 in 99 % of the sequences of "+ history".
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from detection import faults, subject_of  # beside this file

from testkit._text import table
from testkit.pairwise._axes import Axis, make_axes
from testkit.pairwise._history import WINDOW, Fate, Lessons
from testkit.pairwise._plan import plan_cases

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "pairwise"
WITHIN = (1, 3, 5, 10)
RUNS = max(WITHIN)
WANTED = {3: 0.90, 10: 0.99}
SEEDS = 1_000_000

Case = tuple[int, ...]


@dataclass(frozen=True)
class Subject:
    """One test function: what it allows, which cases skip themselves, and which fail by which fault."""

    name: str
    axes: Sequence[Axis]
    where: Callable[..., bool] | None
    cases: Sequence[Case]
    skips: frozenset[Case]
    faults: Mapping[str, frozenset[Case]]
    strengths: Mapping[str, int] = field(default_factory=dict)

    def fates(self, chosen: Collection[Case]) -> dict[Case, Fate]:
        """What becomes of these cases: only recorded suites have failures, of planted faults none is there for good."""
        bad = frozenset[Case]().union(*self.faults.values()) if not self.strengths else frozenset[Case]()
        return {case: "skipped" if case in self.skips else "failed" if case in bad else "ran" for case in chosen}


Runs = list[frozenset[Case]]
Choice = Callable[[Subject, random.Random], Iterator[frozenset[Case]]]


def plan_of(subject: Subject, seed: int, lessons: Lessons | None = None) -> frozenset[Case]:
    return frozenset(plan_cases(subject.axes, where=subject.where, seed=seed, lessons=lessons).rows)


def randomly(subject: Subject, chance: random.Random) -> Iterator[frozenset[Case]]:
    size = len(plan_of(subject, 0))
    while True:
        yield frozenset(chance.sample(subject.cases, size))


def randomly_running(subject: Subject, chance: random.Random) -> Iterator[frozenset[Case]]:
    size, running = len(plan_of(subject, 0)), [case for case in subject.cases if case not in subject.skips]
    while True:
        yield frozenset(chance.sample(running, min(size, len(running))))


def same_seed(subject: Subject, _: random.Random) -> Iterator[frozenset[Case]]:
    chosen = plan_of(subject, 0)
    while True:
        yield chosen


def rotated(subject: Subject, chance: random.Random) -> Iterator[frozenset[Case]]:
    while True:
        yield plan_of(subject, chance.randrange(1, SEEDS))


def with_history(subject: Subject, chance: random.Random) -> Iterator[frozenset[Case]]:
    levels = tuple(len(axis.values) for axis in subject.axes)
    fates: list[Mapping[Case, Fate]] = []
    while True:
        chosen = plan_of(subject, chance.randrange(1, SEEDS), Lessons(levels, tuple(fates[-WINDOW:])))
        fates.append(subject.fates(chosen))
        yield chosen


CHOICES: dict[str, Choice] = {
    "random": randomly,
    "random, knows skips": randomly_running,
    "seed 0": same_seed,
    "rotated": rotated,
    "+ history": with_history,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--sequences", type=int, default=50, help="of 10 runs each (default 50)")
    wish = parser.parse_args()
    started = time.perf_counter()
    problems = print_planted([planted(kernel) for kernel in faults.KERNELS], wish.sequences)
    for file in wish.files or sorted(DATA.glob("outcomes_*.json")):
        print_recorded(file, wish.sequences)
    print(f"\n{time.perf_counter() - started:.0f} s in all, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


def planted(kernel: str) -> Subject:
    """A function of the example with its faults."""
    known = subject_of(kernel)
    axes = make_axes(known.axes)
    cases = []
    bad: dict[str, set[Case]] = {fault.name: set() for fault in faults.FAULTS if fault.kernel == kernel}
    for case in itertools.product(*(range(len(axis.values)) for axis in axes)):
        arguments: dict[str, Any] = {}
        for axis, at in zip(axes, case, strict=True):
            arguments |= axis.arguments(at)
        if tuple(arguments[name] for name in known.names) in known.allowed:
            cases.append(case)
            for fault in faults.FAULTS:
                if fault.kernel == kernel and fault.spoils(arguments):
                    bad[fault.name].add(case)
    strengths = {fault.name: fault.strength for fault in faults.FAULTS if fault.kernel == kernel}
    found = {name: frozenset(failing) for name, failing in bad.items()}
    return Subject(kernel, axes, known.where, cases, frozenset(), found, strengths)


def recorded(name: str, entry: Mapping[str, Any]) -> Subject:
    """A function of a recorded suite; all that failed counts as one fault."""
    axes = make_axes({f"axis{number}": ids for number, ids in enumerate(entry["axes"])})
    cases = list(itertools.product(*(range(len(ids)) for ids in entry["axes"])))
    of = {outcome: frozenset(itertools.compress(cases, map(outcome.__eq__, entry["outcomes"]))) for outcome in "fs"}
    return Subject(name, axes, None, cases, of["s"], {"": of["f"]})


def sequences(subject: Subject, choice: Choice, number: int) -> list[Runs]:
    return [list(itertools.islice(choice(subject, random.Random(start)), RUNS)) for start in range(number)]


def found_within(done: Sequence[Runs], bad: frozenset[Case]) -> list[float]:
    """For 1 to RUNS runs the share of the sequences in which one of them held a failing case."""
    return [fmean(any(not bad.isdisjoint(chosen) for chosen in runs[:n]) for runs in done) for n in range(1, RUNS + 1)]


def print_planted(subjects: Sequence[Subject], number: int) -> list[str]:
    """The table of planted faults; what is wrong with it."""
    print(f"planted faults of examples/skinny_gemm, {number} sequences of {RUNS} runs: share found within so many runs")
    shares: dict[str, dict[int, list[list[float]]]] = {}
    wider: dict[str, list[list[float]]] = {}
    titles = [title for title in CHOICES if title != "random, knows skips"]  # none skips: the predicate leaves them out
    for title, subject in itertools.product(titles, subjects):
        done = sequences(subject, CHOICES[title], 1 if title == "seed 0" else number)
        for name, bad in subject.faults.items():
            own = shares.setdefault(title, {}).setdefault(subject.strengths[name], [])
            own.append(found_within(done, bad))
        wider.setdefault(title, []).append(triples_held(subject, done[: max(1, number // 10)]))
    rows = [["axes", "faults", "choice", *map(str, WITHIN), "worst fault:", *map(str, WITHIN)]]
    for strength in sorted(shares[titles[0]]):
        for title in titles:
            found = shares[title][strength]
            means = [f"{fmean(one[n - 1] for one in found):.1%}" for n in WITHIN]
            worst = [f"{min(one[n - 1] for one in found):.0%}" for n in WITHIN]
            rows.append([str(strength), str(len(found)), title, *means, "", *worst])
    print("\n".join(table(rows)))
    print(
        "\ntriples of values that the runs together held, of all that allowed cases hold (mean of the four functions)"
    )
    lines = [[title, *(f"{fmean(one[n - 1] for one in wider[title]):.1%}" for n in WITHIN)] for title in titles]
    print("\n".join(table([["choice", *map(str, WITHIN)], *lines])))
    problems = [
        f"{title}: a fault of {strength} axes was missed by a run"
        for title in ("seed 0", "rotated", "+ history")
        for strength in (1, 2)
        if min(one[0] for one in shares[title][strength]) < 1
    ]
    for n, wanted in WANTED.items():
        mean = fmean(one[n - 1] for one in shares["+ history"][3])
        if mean < wanted:
            problems.append(f"faults of 3 axes are found within {n} runs in {mean:.1%}, wanted {wanted:.0%}")
    return problems


def triples_held(subject: Subject, done: Sequence[Runs]) -> list[float]:
    """For 1 to RUNS runs the share of the triples that they held together, as a mean of some sequences."""
    groups = list(itertools.combinations(range(len(subject.axes)), 3))

    def triples(cases: Collection[Case]) -> set[tuple[int, ...]]:
        return {(n, case[a], case[b], case[c]) for case in cases for n, (a, b, c) in enumerate(groups)}

    allowed = len(triples(subject.cases))
    shares = []
    for runs in done:
        held: set[tuple[int, ...]] = set()
        shares.append([len(held := held | triples(chosen)) / allowed for chosen in runs])
    return [fmean(column) for column in zip(*shares, strict=True)]


def print_recorded(file: Path, number: int) -> None:
    data = json.loads(file.read_text())
    print(f"\n{file.name} ({data['origin']}), {number} sequences of {RUNS} runs")
    print(f"share (%) of sequences in which a case of the function failed within {', '.join(map(str, WITHIN))} runs")
    rows = [["function", "cases", "skip", "fail", "chosen", *CHOICES]]
    means: dict[str, list[list[float]]] = {title: [] for title in CHOICES}
    again: dict[str, list[float]] = {title: [] for title in CHOICES}
    for name, entry in data["functions"].items():
        subject = recorded(name, entry)
        bad = subject.faults[""]
        cells = []
        for title, choice in CHOICES.items():
            done = sequences(subject, choice, 1 if title == "seed 0" else number)
            means[title].append(found_within(done, bad))
            again[title] += [share for runs in done for share in shown_again(runs, bad)]
            cells.append("/".join(f"{100 * means[title][-1][n - 1]:.0f}" for n in WITHIN))
        short = name.rpartition("/")[2]
        sizes = (len(subject.cases), len(subject.skips), len(bad), len(plan_of(subject, 0)))
        rows.append([short, *map(str, sizes), *cells])
    cells = ["/".join(f"{100 * fmean(one[n - 1] for one in means[t]):.0f}" for n in WITHIN) for t in CHOICES]
    rows.append(["mean", "", "", "", "", *cells])
    rows.append(
        ["failed again, % of later runs", "", "", "", "", *(f"{100 * fmean(again[t] or [0]):.0f}" for t in CHOICES)]
    )
    print("\n".join(table(rows)))


def shown_again(runs: Runs, bad: frozenset[Case]) -> list[float]:
    """Of the runs after the first that failed, the share that failed too; nothing if there are none."""
    failed = [not bad.isdisjoint(chosen) for chosen in runs]
    later = failed[failed.index(True) + 1 :] if True in failed else []
    return [fmean(later)] if later else []


if __name__ == "__main__":
    sys.exit(main())
