"""``calibrate``: run a healthy kernel and its mutants over seeds and shapes, and keep what tells them apart."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from testkit._loaded import loaded
from testkit._text import table
from testkit.errors import KernelsError
from testkit.kernels._compare import Pair, quiet
from testkit.kernels._elements import Side, owned
from testkit.kernels._error_model import FIGURES, QUANTILES, ErrorModel, Figures, figures_of, over_limits
from testkit.kernels._expect import expect_comparable
from testkit.kernels._failure import ToleranceRefused, not_finite, number
from testkit.kernels._mutants import OUTPUT_MUTANTS, mutant

__tracebackhide__ = True

FEWEST = 10
"""Runs below which the largest error says little."""
CEILING = 1e9
"""Stored for a mutant that is any number of times beyond: JSON has no infinity."""

Kernel = Callable[..., Any]


@dataclass
class Tried:
    """One mutant over all runs: its figures where it changed something, with the run's shape and seed."""

    runs: list[tuple[Any, int, Figures]] = field(default_factory=list)

    def times(self, limits: Figures) -> list[float]:
        return [over_limits(figures, limits) for _, _, figures in self.runs]

    def summary(self, limits: Figures) -> dict[str, float]:
        least = min(self.times(limits), default=CEILING)
        return {"runs": len(self.runs), "least": _short(min(least, CEILING))}


def calibrate(
    kernel: Kernel,
    make_inputs: Callable[[Any, int], Any],
    reference: Kernel,
    seeds: Iterable[int],
    shapes: Iterable[Any],
    *,
    mutants: Mapping[str, Kernel | None] | None = None,
    ratio: float = 2.0,
    nan: bool = False,
    inf: bool = False,
) -> ErrorModel:
    """Measure a healthy ``kernel`` against ``reference`` for each of ``shapes`` and ``seeds``; a model of its errors.

    ``make_inputs(shape, seed)`` returns the arguments, a tuple or a dictionary, and is called anew for each function,
    so that one may write into its inputs: the same shape and seed must give the same. ``kernel(*inputs)`` returns one
    tensor or array, ``reference(*inputs)`` the same in float64 (whole numbers for whole numbers). At least 10 runs.
    The figures and limits are those of ``ErrorModel``; NaN and infinities fail unless ``nan`` or ``inf`` is True.

    In every run each mutant that changes the output must be beyond a limit: outputs of the kernel that are spoiled
    (``zeros``, ``shuffled rows``, ``off by one row``, ``off by one column``, ``dropped last rows``, ``dropped last
    columns``, ``dropped diagonal``, ``half the reduction``), and ``mutants``: kernels with a fault, by name. None in
    place of a kernel leaves out the mutant of that name.

    Raises ``ToleranceRefused``, an AssertionError with the table of all mutants, if one passes; ``KernelsError`` if the
    kernel or the reference returns something that cannot be used, or a mutant of yours never changes anything.
    """
    seeds, shapes = list(seeds), list(shapes)
    _check(seeds, shapes, ratio)
    named = mutants or {}
    spoilers = [name for name in OUTPUT_MUTANTS if name not in named]
    faulty = {name: made for name, made in named.items() if made is not None}
    healthy: list[Figures] = []
    tried = {name: Tried() for name in (*spoilers, *faulty)}
    pair: Pair | None = None
    varies = False
    for shape in shapes:
        first: _Run | None = None
        for seed in seeds:
            run = _Run(make_inputs, reference, shape, seed, nan, inf)
            if not healthy:
                run.must_repeat(reference)
            first = first or run
            varies = varies or not run.same(first.reference)
            right = run.call(kernel)
            wrong = {name: run.call(fault) for name, fault in faulty.items()}
            with quiet():  # not around functions of the caller, whose warnings are theirs
                pair = run.healthy(right)
                healthy.append(figures_of(pair))
                for name in spoilers:
                    run.spoil(name, pair, tried[name])
                for name, output in wrong.items():
                    run.replace(output, pair, tried[name])
    assert pair is not None  # there were runs
    model = _model(kernel, pair, healthy, seeds, shapes, ratio)
    _refuse(model, tried, faulty)
    if len(seeds) > 1 and not varies:
        text = "the reference gives the same for every seed"
        raise KernelsError(text, "make_inputs of calibrate", "let make_inputs depend on its seed")
    return replace(model, mutants={name: one.summary(model.limits) for name, one in tried.items()})


def _check(seeds: list[int], shapes: list[Any], ratio: object) -> None:
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 1 < ratio < math.inf:
        raise KernelsError(f"ratio is {ratio!r}", "argument of calibrate", "give a number above 1")
    if len(seeds) * len(shapes) < FEWEST:
        text = f"{len(seeds)} seeds times {len(shapes)} shapes are too few runs"
        raise KernelsError(text, "arguments of calibrate", f"give {FEWEST} or more")
    if len(set(seeds)) < len(seeds):
        raise KernelsError(f"seeds repeat: {seeds}", "argument of calibrate", "give each seed once")


class _Run:
    """One shape and seed: the reference, and how functions are called with fresh inputs."""

    def __init__(self, make_inputs: Any, reference: Kernel, shape: Any, seed: int, nan: bool, inf: bool) -> None:
        self.make_inputs, self.shape, self.seed, self.nan, self.inf = make_inputs, shape, seed, nan, inf
        self.where = f"shape {shape}, seed {seed}"
        self.reference = Side(self.call(reference), "what the reference returned")
        if self.reference.form is not None and self.reference.dtype != "float64":
            text = f"the reference returned {self.reference.dtype}, not float64"
            raise KernelsError(text, self.where, "widen its inputs first, such as with x.double()")

    def must_repeat(self, reference: Kernel) -> None:
        """Fail if fresh inputs are other inputs: kernel and reference would be compared on different ones."""
        if self.same(Side(self.call(reference), "what the reference returned")):
            return
        text = "the reference gives something else when it is called again with inputs of the same shape and seed"
        raise KernelsError(text, self.where, "let make_inputs depend on shape and seed alone")

    def same(self, other: Side) -> bool:
        """Has the reference the shape and the values of ``other``?"""
        if other.shape != self.reference.shape:
            return False
        pair = Pair(other, self.reference, nan=True, inf=True)
        with quiet():
            return all(bool((chunk.error == 0).all()) for chunk in pair.chunks())

    def call(self, function: Kernel) -> Any:
        inputs = self.make_inputs(self.shape, self.seed)
        if isinstance(inputs, Mapping):
            return owned(function(**inputs))
        # Owned: the next function may write into the buffer that this one returned.
        return owned(function(*inputs) if isinstance(inputs, (tuple, list)) else function(inputs))

    def pair(self, output: Any, role: str) -> Pair:
        side = Side(output, role)
        expect_comparable(side, self.reference, shape_named=False, dtype_named=side.form is None)
        return Pair(side, self.reference, nan=self.nan, inf=self.inf)

    def healthy(self, output: Any) -> Pair:
        try:
            pair = self.pair(output, "what the kernel returned")
        except AssertionError as error:
            raise KernelsError(getattr(error, "problem", str(error)), self.where, getattr(error, "fix", "")) from error
        if lost := not_finite(pair):
            fix = "nan=True or inf=True lets through what the reference has too"
            raise KernelsError(f"the healthy kernel: {lost}", self.where, fix)
        return pair

    def spoil(self, name: str, pair: Pair, tried: Tried) -> None:
        chunk = pair.chunk(0, pair.size)
        shape = pair.shape if len(pair.shape) > 1 else (pair.size, 1)
        wrong = mutant(name, chunk.actual, chunk.reference, pair, shape, shape[-2])
        if wrong is not None:
            tried.runs.append((self.shape, self.seed, figures_of(wrong)))

    def replace(self, output: Any, pair: Pair, tried: Tried) -> None:
        """Note the figures of a faulty kernel's output, if it is not that of the healthy one."""
        figures = dict.fromkeys(FIGURES, math.inf)  # of another shape or dtype, or not finite: seen at once
        try:
            wrong: Pair | None = self.pair(output, "what a mutant returned")
        except AssertionError:
            wrong = None
        if wrong is not None and wrong.actual.given_dtype == pair.actual.given_dtype:
            moved = Pair(wrong.actual, pair.actual, nan=True, inf=True)
            if not any(bool((~(chunk.error == 0)).any()) for chunk in moved.chunks()):
                return
            if not not_finite(wrong):
                figures = figures_of(wrong)
        tried.runs.append((self.shape, self.seed, figures))


def _model(
    kernel: Kernel, pair: Pair, healthy: list[Figures], seeds: list[int], shapes: list[Any], ratio: float
) -> ErrorModel:
    quantiles: dict[str, dict[str, float]] = {}
    for name in FIGURES:
        values = sorted(figures[name] for figures in healthy)
        ranks = {text: max(0, math.ceil(part * len(values)) - 1) for text, part in QUANTILES.items()}
        quantiles[name] = {text: _short(values[rank]) for text, rank in ranks.items()}
    called = getattr(kernel, "__name__", None) or getattr(getattr(kernel, "func", None), "__name__", "kernel")
    return ErrorModel(
        kernel=str(called),
        dtype=pair.actual.given_dtype,
        ratio=ratio,
        runs=len(healthy),
        seeds=[int(seed) for seed in seeds],
        shapes=[str(shape) for shape in shapes],
        healthy=quantiles,
        mutants={},
        machine=_machine(pair),
    )


def _refuse(model: ErrorModel, tried: Mapping[str, Tried], faulty: Mapping[str, Kernel]) -> None:
    """Fail if a mutant passes in some run, or if one of the caller's was never anything but the healthy kernel."""
    for name in faulty:
        if not tried[name].runs:
            text = f"mutant {name!r} never changes the output"
            raise KernelsError(text, "mutants of calibrate", "give shapes in which it does, or leave it out")
    if tried and not any(one.runs for one in tried.values()):
        text = f"no mutant ever changes the output of {model.kernel}"
        raise KernelsError(text, "calibrate", "give inputs for which it is not all zeros, or all NaN")
    lines: list[tuple[object, ...]] = [("mutant", "runs", "caught", "least of its limit", "passes")]
    passed = []
    for name, one in tried.items():
        times = one.times(model.limits)
        missed = [run for run, factor in zip(one.runs, times, strict=True) if not factor > 1]
        first = f"shape {missed[0][0]}, seed {missed[0][1]}" if missed else ""
        least = number(min(times)) if times else "does not apply"
        lines.append((name, len(times), len(times) - len(missed), least, first))
        if missed:
            passed.append(f"{name} in {len(missed)} of {len(times)} runs")
    if passed:
        raise ToleranceRefused(
            f"limits of {number(model.ratio)} times the errors of {model.kernel} let mutants pass: {'; '.join(passed)}",
            table(lines, indent=""),
            "give inputs in which the fault shows, or a smaller ratio; None in mutants leaves out one that is no fault",
            "calibrate",
        )


def _short(value: float) -> float:
    """Six digits: what a person reads in the file."""
    return float(f"{value:.6g}")


def _machine(pair: Pair) -> dict[str, str]:
    """Where this ran: what may change the order of a sum. No name of a host or a user."""
    processor = platform.processor() or platform.machine()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        processor = models[0] if models else processor
    device = "cpu"
    if pair.actual.is_tensor and pair.actual.device.type != "cpu":
        backend = getattr(pair.xp, pair.actual.device.type)
        device = str(getattr(backend, "get_device_name", lambda device: device)(pair.actual.device))
    library = loaded("torch") if pair.actual.is_tensor else loaded("numpy")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor,
        "device": device,
        "python": platform.python_version(),
        ("torch" if pair.actual.is_tensor else "numpy"): str(getattr(library, "__version__", "")),
    }
