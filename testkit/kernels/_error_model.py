"""``ErrorModel``: how large a healthy kernel's errors are, as a small file, and the limits that follow from them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testkit._text import counted, table
from testkit.errors import KernelsError
from testkit.kernels._bounds import format_of
from testkit.kernels._compare import Chunk, Pair, Rows
from testkit.kernels._failure import NOT_FINITE, not_finite, number, share
from testkit.kernels._mutants import OUTPUT_MUTANTS

VERSION = "testkit error model 1"
LARGEST = "largest element"
ROWS = {"worst row": 1.0, "row at 90 %": 0.9, "middle row": 0.5}
"""The figures of rows, and the share of the rows that each one looks at."""
FIGURES = (LARGEST, *ROWS)
QUANTILES = {"0.5": 0.5, "0.9": 0.9, "1.0": 1.0}
"""What is stored of each figure, over all runs of the healthy kernel."""

Figures = dict[str, float]


def figures_of(pair: Pair) -> Figures:
    """Relative errors of one output, without a unit.

    The largest element is max |error| / max(|reference|, RMS of its row of the reference). A row's figure is the RMS
    of its error over the RMS of its reference, which is taken as 2**-10 of the whole reference's RMS at least. A row is
    the last dimension, with earlier ones joined until it has 16 elements.
    """
    return _figures(pair.rows())


def _figures(rows: Rows) -> Figures:
    return {LARGEST: rows.largest} | {name: rows.quantile(part) for name, part in ROWS.items()}


@dataclass(frozen=True)
class ErrorModel:
    """The errors of a healthy kernel against a float64 reference, from ``calibrate``.

    ``healthy``: for each figure its quantiles over ``runs`` runs. An output fails if a figure exceeds its limit:
    ``ratio`` times the largest of all runs for the largest element and the worst row; half of the excess, that is
    ``(1 + ratio) / 2`` times, for the row at 90 % and the middle row, which vary less. ``mutants``: for each one the
    runs in which it changed something, and the least that its worst figure was of its limit, above 1 in every run.
    ``machine``: where it was measured. ``save`` and ``load`` keep it as a JSON file of some thirty lines.
    """

    kernel: str
    dtype: str
    ratio: float
    runs: int
    seeds: list[int]
    shapes: list[str]
    healthy: dict[str, dict[str, float]]
    mutants: dict[str, dict[str, float]]
    machine: dict[str, str]
    source: str = ""

    @property
    def exact(self) -> bool:
        """No run had any error: none is allowed."""
        return not any(self.healthy[name]["1.0"] for name in FIGURES)

    @property
    def limits(self) -> Figures:
        """What each figure may be. Where there is an error at all, a quarter of the dtype's eps is always allowed."""
        form = format_of(self.dtype)
        least = form.eps / 4 if form is not None and not self.exact else 0.0
        return {name: max(least, self.healthy[name]["1.0"] * allowed(name, self.ratio)) for name in FIGURES}

    def save(self, path: str | Path) -> None:
        """Write it to ``path``, a JSON file to be kept beside the test."""
        held = {"format": VERSION, **asdict(self)}
        del held["source"]
        entries = []
        for name, value in held.items():
            text = json.dumps(value)
            if isinstance(value, dict):  # one line for each of its entries: json.dumps has all in one, or each number
                inner = ",\n".join(f"    {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items())
                text = f"{{\n{inner}\n  }}"
            entries.append(f"  {json.dumps(name)}: {text}")
        Path(path).write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> ErrorModel:
        """Read what ``save`` wrote. Raises ``KernelsError`` that names the file and the entry which is not right."""
        return _read(Path(path))


def allowed(figure: str, ratio: float) -> float:
    """How many times its largest healthy value a figure may be."""
    return ratio if ROWS.get(figure, 1.0) == 1.0 else (1 + ratio) / 2


def over_limits(figures: Figures, limits: Figures) -> float:
    """The worst figure as a multiple of its limit; above 1 is a failure, and so is NaN."""
    worst = 0.0
    for name, limit in limits.items():
        value = figures[name]
        times = 0.0 if value == 0 else value / limit if limit else math.inf
        worst = math.inf if math.isnan(times) else max(worst, times)
    return worst


def model_of(model: object) -> ErrorModel:
    if isinstance(model, ErrorModel):
        return model
    if isinstance(model, (str, Path)):
        return ErrorModel.load(model)
    fix = "give an ErrorModel, or the path of a stored one"
    raise KernelsError(f"model is {type(model).__name__}", "argument of assert_matches", fix)


def _read(path: Path) -> ErrorModel:
    again = "make it again with calibrate(...).save(path)"
    if not path.is_file():
        raise KernelsError(f"there is no error model {path}", "model", again)
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise KernelsError(f"{path} is no JSON: {error}", "model", again) from error
    if not isinstance(held, dict) or held.pop("format", None) != VERSION:
        raise KernelsError(f'{path} does not say "format": "{VERSION}"', "model", again)
    kinds: dict[str, Any] = {
        "kernel": str,
        "dtype": str,
        "ratio": (int, float),
        "runs": int,
        "seeds": list,
        "shapes": list,
        "healthy": dict,
        "mutants": dict,
        "machine": dict,
    }
    for name, kind in kinds.items():
        if not isinstance(held.get(name), kind):
            raise KernelsError(f"{path}: {name} is {held.get(name)!r}", "model", again)
    if unknown := sorted(set(held) - set(kinds)):
        raise KernelsError(f"{path}: {unknown[0]} is no entry of an error model", "model", again)
    for name in FIGURES:
        values = held["healthy"].get(name)
        if not isinstance(values, dict) or not all(_is_error(values.get(part)) for part in QUANTILES):
            raise KernelsError(f"{path}: healthy, {name} is {values!r}", "model", again)
    if not 1 < held["ratio"] < math.inf:
        raise KernelsError(f"{path}: ratio is {held['ratio']!r}, not above 1", "model", again)
    return ErrorModel(**held, source=path.name)


def _is_error(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < math.inf


class ModelJudge:
    """Judges pairs by a model's limits."""

    def __init__(self, model: ErrorModel, pair: Pair) -> None:
        dtype = pair.actual.given_dtype
        if dtype != model.dtype:
            fix = "calibrate a model for this dtype"
            raise KernelsError(f"the model is for {model.dtype}, actual has {dtype}", "model", fix)
        self.model, self.limits = model, model.limits
        self.where = f"model of {model.kernel}{f', {model.source}' if model.source else ''}"
        self.exact = model.exact
        self.mutants: Iterable[str] = [name for name in OUTPUT_MUTANTS if name in model.mutants]

    def __str__(self) -> str:
        return f"{number(self.model.ratio)} times the errors of a healthy {self.model.kernel}"

    def bound(self, chunk: Chunk, rows: Rows) -> Any:
        return self.limits[LARGEST] * rows.floors(chunk)

    def sees(self, pair: Pair, whole: bool) -> bool:
        return over_limits(figures_of(pair), self.limits) > 1

    def problem(self, pair: Pair) -> tuple[str, str]:
        """What is wrong, and what to do about it; two empty strings if nothing is."""
        rows = pair.rows()
        figures = _figures(rows)
        if not over_limits(figures, self.limits) > 1:
            return "", ""
        if lost := not_finite(pair):
            return lost, NOT_FINITE
        count = len(rows.ratio)
        found = []
        for name, limit in self.limits.items():
            if figures[name] > limit:
                most = self.model.healthy[name]["1.0"]
                times = f"{figures[name] / most:.3g} times the healthy one" if most else "a healthy one is 0"
                found.append(f"{name} {number(figures[name])}, {times}")
        beyond = int((rows.ratio > self.limits["worst row"]).sum())
        text = f"{'; '.join(found)}; {share(beyond, count, 'row')} beyond the limit"
        return (
            text,
            "compare the worst row with the reference; calibrate again only if the kernel was changed on purpose",
        )

    def lines(self, pair: Pair) -> list[str]:
        figures = figures_of(pair)
        lines: list[tuple[object, ...]] = [("relative error", "measured", "healthy: half", "most", "limit")]
        for name, limit in self.limits.items():
            healthy = self.model.healthy[name]
            values = (figures[name], healthy["0.5"], healthy["1.0"], limit)
            lines.append((name, *(number(value) for value in values), "beyond" if not figures[name] <= limit else ""))
        machine = ", ".join(f"{name} {value}" for name, value in self.model.machine.items())
        made = f"healthy: {counted(self.model.runs, 'run')} on {machine}"
        return [*table(lines, indent=""), made]
