"""What a failed comparison says: the worst elements, the worst rows, and the share beyond each bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from testkit._text import counted, table
from testkit.kernels._bounds import steps_between
from testkit.kernels._compare import Chunk, Pair, Rows, Tolerance, first_true, largest
from testkit.kernels._elements import place
from testkit.kernels._tensors import KernelFailed

SHOWN = 5
"""Elements, and rows, that a failure shows."""
TIMES = (1, 2, 4, 16)
"""Multiples of the bound whose shares it shows."""

Bound = Callable[[Chunk, Rows], Any]
Worst = tuple[float, int, tuple[float, float]]
"""How far an element lies beyond its bound, its index, its error and the bound."""


NOT_FINITE = "find what wrote the first of them; nan=True and inf=True allow those that both sides have"


class ToleranceRefused(KernelFailed):
    """A tolerance, given or from a model, would let a wrong output pass. ``evidence`` has the table of mutants."""


def number(value: float) -> str:
    return f"{value:.4g}"


def share(part: int, of: int, noun: str = "element") -> str:
    """``12 of 4,096 elements (0.29 %)``."""
    return f"{part:,} of {counted(of, noun)} ({percent(part, of)})"


def percent(part: int, of: int) -> str:
    return f"{float(f'{100 * part / of:.2g}'):g} %"


def not_finite(pair: Pair) -> str:
    """How many differences are not finite, and where the first is; "" if all are finite."""
    xp = pair.xp
    lost, first, kinds = 0, "", dict.fromkeys(("actual", "reference"), (0, 0))
    for chunk in pair.chunks():
        bad = ~xp.isfinite(chunk.error)
        found = int(bad.sum())
        if not found:
            continue
        lost += found
        sides = {"actual": chunk.actual[bad], "reference": chunk.reference[bad]}
        if not first:
            index = chunk.start + first_true(bad, 1)[0]
            values = ", ".join(f"{name} {float(values[0])}" for name, values in sides.items())
            first = f"first at {place(index, pair.shape)}: {values}"
        for name, values in sides.items():
            kinds[name] = (
                kinds[name][0] + int(xp.isnan(values).sum()),
                kinds[name][1] + int(xp.isinf(values).sum()),
            )
    if not lost:
        return ""
    held = "; ".join(f"{name}: {nan:,} NaN, {inf:,} inf" for name, (nan, inf) in kinds.items())
    verb = "is" if lost == 1 else "are"
    return f"{lost:,} of {counted(pair.size, 'element')} {verb} not finite, {first} ({held})"


def evidence(pair: Pair, bound: Bound, tolerance: Tolerance | None) -> list[str]:
    """Lines: the worst elements by how far they lie beyond ``bound``, the worst rows, and the shares."""
    rows = pair.rows()
    step = rows.columns * max(1, pair.step // rows.columns)
    worst: list[Worst] = []
    beyond = dict.fromkeys(TIMES, 0)
    parts: dict[str, int] = {}
    for chunk in pair.chunks(step):
        limit = bound(chunk, rows)
        failing = ~(chunk.error - limit <= 0) if tolerance is None else ~tolerance.passes(chunk, pair.xp)
        for times in TIMES:
            beyond[times] += int((failing & ~(chunk.error - limit * times <= 0)).sum())
        worst = sorted(worst + _worst_of(chunk, limit, failing, pair.xp), key=lambda one: (-one[0], one[1]))[:SHOWN]
        if tolerance is not None:
            for name, count in _parts(chunk, tolerance, pair.xp):
                parts[name] = parts.get(name, 0) + count
    lines = _element_lines(pair, worst) + _row_lines(pair, rows)
    counts = {f"{times} x the bound" if times > 1 else "the bound": beyond[times] for times in TIMES}
    shown = {name: count for name, count in counts.items() if count or name == "the bound"} | parts
    shares = [(name, percent(count, pair.size), count) for name, count in shown.items()]
    return [*lines, *table([("elements beyond", "share", "count"), *shares], indent="")]


def _worst_of(chunk: Chunk, limit: Any, failing: Any, xp: Any) -> list[Worst]:
    """The worst of one chunk; those without a finite error before all others."""
    excess = chunk.error - limit
    excess = xp.where(xp.isfinite(chunk.error), excess, xp.full_like(excess, math.inf))
    excess = xp.where(failing, excess, xp.full_like(excess, -math.inf))
    found = []
    for index in largest(excess, SHOWN, xp):
        values = (float(chunk.error[index]), float(limit[index]))
        found.append((float(excess[index]), chunk.start + index, values))
    return [one for one in found if one[0] > -math.inf]


def _parts(chunk: Chunk, tolerance: Tolerance, xp: Any) -> list[tuple[str, int]]:
    """How many lie beyond each part of a tolerance alone."""
    relative = tolerance.rtol * abs(chunk.reference)
    counts = []
    if tolerance.floor:
        counts.append((f"{number(tolerance.floor)} alone", int((~(chunk.error <= tolerance.floor)).sum())))
    if tolerance.rtol:
        counts.append((f"{number(tolerance.rtol)} * |reference| alone", int((~(chunk.error - relative <= 0)).sum())))
    if tolerance.form is not None and tolerance.form.steps:
        steps = max(1, tolerance.steps)
        apart = steps_between(chunk.actual, chunk.reference, tolerance.form, xp)
        near = (apart <= steps) & xp.isfinite(chunk.error)
        counts.append((f"{counted(steps, 'step')} of {tolerance.form.name} alone", int((~near).sum())))
    return counts


def _element_lines(pair: Pair, worst: list[Worst]) -> list[str]:
    lines: list[tuple[object, ...]] = [("worst elements", "actual", "reference", "error", "bound", "steps", "bits")]
    for _, index, (error, limit) in worst:
        bits = " ".join(code for code in (pair.actual.bits(index), pair.reference.bits(index)) if code)
        values = (pair.actual.text(index), pair.reference.text(index), number(error), number(limit))
        lines.append((place(index, pair.shape), *values, _steps(pair, index), bits))
    return table(lines, indent="") if worst else []


def _steps(pair: Pair, index: int) -> str:
    chunk = pair.chunk(index, index + 1)
    if pair.form is None:
        return number(float(chunk.error[0]))
    apart = float(steps_between(chunk.actual, chunk.reference, pair.form, pair.xp)[0])
    return f"{apart:,.0f}" if math.isfinite(apart) and apart < 1e15 else number(apart)


def _row_lines(pair: Pair, rows: Rows) -> list[str]:
    if len(rows.ratio) < 2:
        return []
    xp = pair.xp
    order = xp.where(xp.isnan(rows.ratio), xp.full_like(rows.ratio, math.inf), rows.ratio)
    lines: list[tuple[object, ...]] = [("worst rows by RMS", "error", "reference", "ratio")]
    for index in largest(order, SHOWN, xp):
        if rows.ratio[index] == 0:
            break
        values = (rows.error[index], rows.scale[index], rows.ratio[index])
        lines.append((place(index, pair.row_shape), *(number(float(value)) for value in values)))
    return table(lines, indent="")
