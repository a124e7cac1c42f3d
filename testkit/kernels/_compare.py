"""Two sides, element by element: errors in chunks of float64, what lies beyond a bound, and the figures of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from testkit._loaded import loaded
from testkit._text import counted
from testkit.errors import KernelsError
from testkit.kernels._bounds import Format, gap, steps_between
from testkit.kernels._elements import Side

CHUNK = 3 << 13
"""Elements at a time on a CPU: a few float64 copies of them stay in the cache, and they are fewer than the 2**15 from
which on torch splits a step among threads. A few threads cost more than they save: each step waits for the slowest,
and on a busy machine for long."""
THREADS, PER_THREAD = 5, 1 << 15
"""From so many threads on each gets so many elements at a time."""
DEVICE_CHUNK = 1 << 24
"""Elements at a time on an accelerator, where each step costs a launch."""
SHORTEST_ROW = 16
"""Elements of a row, if need be with dimensions joined: the RMS of a few elements says little."""
SAMPLED = 1 << 15
"""Elements from which the typical magnitude is estimated: sorting all of a large output takes longer than the rest."""
FAINT = 2.0**-10
"""A row's scale is at least this part of the whole reference's RMS."""


@dataclass
class Chunk:
    """Elements from ``start`` on, all float64: both sides, and how far they are apart."""

    start: int
    actual: Any
    reference: Any
    error: Any


@dataclass(frozen=True)
class Tolerance:
    """An element passes within ``floor + rtol * |reference|``, or within ``steps`` values of ``form``."""

    rtol: float
    floor: float
    steps: int
    form: Format | None

    def bound(self, chunk: Chunk) -> Any:
        return self.floor + self.rtol * abs(chunk.reference)

    def passes(self, chunk: Chunk, xp: Any) -> Any:
        # Not error <= bound: both are infinite where the reference is.
        within = chunk.error - self.rtol * abs(chunk.reference) <= self.floor
        if self.form is None or bool(within.all()):
            return within
        apart = steps_between(chunk.actual, chunk.reference, self.form, xp)
        return within | ((apart <= self.steps) & xp.isfinite(chunk.error))

    def __str__(self) -> str:
        parts = [f"{self.floor:.3g}"] if self.floor else []
        parts += [f"{self.rtol:.3g} * |reference|"] if self.rtol else []
        said = [" + ".join(parts)] if parts else []
        said += [f"{counted(self.steps, 'step')} of {self.form.name}"] if self.form and self.steps else []
        return ", or ".join(said) or "0"


class Pair:
    """Both sides of one comparison, of one shape. ``nan``, ``inf``: the same one in the same place counts as equal."""

    def __init__(self, actual: Side, reference: Side, *, nan: bool = False, inf: bool = False) -> None:
        self.actual, self.reference, self.nan, self.inf = actual, reference, nan, inf
        self.size, self.shape = actual.size, actual.shape
        tensors = [side for side in (actual, reference) if side.is_tensor]
        self.xp = tensors[0].xp if tensors else actual.xp
        self.home = tensors[0].flat.device if tensors else None
        self.step = CHUNK
        if self.home is not None and self.home.type != "cpu":
            self.step = DEVICE_CHUNK
        elif self.home is not None and self.xp.get_num_threads() >= THREADS:
            self.step = PER_THREAD * self.xp.get_num_threads()
        self.whole = actual.whole and reference.whole
        if self.whole and actual.dtype != reference.dtype and "uint64" in (actual.dtype, reference.dtype):
            text = f"{actual.dtype} and {reference.dtype} have no common whole number type"
            raise KernelsError(text, "", "convert one of them")
        # Numbers of Python have the dtype of whatever they are compared with.
        self.form = reference.form if actual.weak and reference.form is not None else actual.form

    def chunk(self, start: int, end: int) -> Chunk:
        xp = self.xp
        actual, reference = (self._home(side.widened(start, end)) for side in (self.actual, self.reference))
        if self.whole:
            ordered = [self._home(side.ordered(start, end)) for side in (self.actual, self.reference)]
            return Chunk(start, actual, reference, gap(ordered[0], ordered[1], xp))
        if self.nan or self.inf:
            both = (xp.isnan(actual) & xp.isnan(reference) & self.nan) | (
                xp.isinf(actual) & (actual == reference) & self.inf
            )
            nought = xp.zeros_like(actual)
            actual, reference = xp.where(both, nought, actual), xp.where(both, nought, reference)
        return Chunk(start, actual, reference, abs(actual - reference))

    def _home(self, values: Any) -> Any:
        if self.home is None:
            return values
        return self.xp.as_tensor(values, device=self.home)

    def chunks(self, step: int | None = None) -> Iterator[Chunk]:
        for start in range(0, self.size, step or self.step):
            yield self.chunk(start, min(start + (step or self.step), self.size))

    def total(self, values: Callable[[Chunk], Any]) -> float:
        """The sum of ``values`` over all chunks; on an accelerator one wait at the end."""
        sums: list[Any] = [values(chunk).sum() for chunk in self.chunks()]
        numbers = [float(one) for one in sums]
        try:
            return math.fsum(numbers)
        except (OverflowError, ValueError):  # beyond float64, or infinities of both signs
            return sum(numbers)

    def mean_reference(self) -> float:
        """The mean of |reference|, with 0 for what is not finite."""
        xp = self.xp
        total = self.total(lambda chunk: abs(chunk.reference))
        if math.isfinite(total):
            return total / max(1, self.size)

        def magnitudes(chunk: Chunk) -> Any:
            size = abs(chunk.reference)
            return xp.where(xp.isfinite(size), size, xp.zeros_like(size))

        return self.total(magnitudes) / max(1, self.size)

    def sample(self) -> Any:
        """|reference| of evenly spread elements, finite and not 0: of all, or of some SAMPLED of them."""
        step = 1 if self.size <= SAMPLED else self.size // SAMPLED | 1  # odd: rows are often a power of two
        values = self._home(abs(self.reference.every(step).widened(0, self.size)))
        return values[self.xp.isfinite(values) & (values != 0)]

    def all_left_out(self) -> bool:
        """Did ``nan`` and ``inf`` leave nothing to compare?"""
        if self.whole or not (self.nan or self.inf):
            return False
        bare = Pair(self.actual, self.reference)
        return not any(bool(self.xp.isfinite(chunk.error).any()) for chunk in bare.chunks())

    def beyond(self, tolerance: Tolerance) -> tuple[int, int]:
        """How many elements do not pass, and how many of these have no finite error."""
        counts = []
        for chunk in self.chunks():
            good = tolerance.passes(chunk, self.xp)
            if bool(good.all()):
                continue
            bad = ~good
            counts.append((bad.sum(), (bad & ~self.xp.isfinite(chunk.error)).sum()))
        return sum(int(bad) for bad, _ in counts), sum(int(lost) for _, lost in counts)

    def cosine(self) -> float:
        """a.r / (|a| |r|) over all elements; NaN if either side is all zeros."""
        product = self.total(lambda chunk: chunk.actual * chunk.reference)
        squares = self.total(lambda chunk: chunk.actual**2) * self.total(lambda chunk: chunk.reference**2)
        return product / math.sqrt(squares) if squares else math.nan

    def relative_norm(self) -> float:
        """|a - r| / |r| over all elements; NaN if the reference is all zeros and the other is not."""
        error = self.total(lambda chunk: chunk.error**2)
        reference = self.total(lambda chunk: chunk.reference**2)
        if not reference:
            return 0.0 if error == 0 else math.nan
        return math.sqrt(error / reference)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The dimensions that count rows: all but the last, and fewer where that is shorter than SHORTEST_ROW."""
        kept = list(self.shape)
        columns = kept.pop() if kept else 1
        while kept and columns < SHORTEST_ROW:
            columns *= kept.pop()
        return tuple(kept)

    def rows(self) -> Rows:
        """The figures of rows; two passes, since an element near zero is measured by the scale of its row."""
        xp = self.xp
        count = math.prod(self.row_shape)
        columns = max(1, self.size // max(1, count))
        step = columns * max(1, self.step // columns)
        parts = []
        for chunk in self.chunks(step):
            error, reference = chunk.error.reshape(-1, columns), chunk.reference.reshape(-1, columns)
            parts.append((xp.mean(error**2, axis=-1), xp.mean(reference**2, axis=-1)))
        error, scale = (xp.sqrt(xp.concatenate(list(part))) for part in zip(*parts, strict=True))
        whole = math.sqrt(float(xp.mean(scale**2)))
        scale = xp.maximum(scale, xp.full_like(scale, whole * FAINT))
        if whole == 0:  # all zeros, or too small to be squared: any error is infinitely large, and none is none
            error = xp.concatenate([xp.amax(chunk.error.reshape(-1, columns), axis=-1) for chunk in self.chunks(step)])
            ratio = xp.where(error == 0, error, xp.full_like(error, math.inf))
            return Rows(error, scale, ratio, columns, xp, float(xp.amax(ratio)))
        rows = Rows(error, scale, error / scale, columns, xp)
        largest = [xp.amax(chunk.error / rows.floors(chunk)) for chunk in self.chunks(step)]
        rows.largest = max((float(one) for one in largest), key=lambda one: (math.isnan(one), one))
        return rows


@dataclass
class Rows:
    """Per row, float64: RMS of the error, scale of the reference (its RMS), and the ratio of the two.

    ``largest``: the largest ``|error| / max(|reference|, scale of its row)`` of all elements.
    """

    error: Any
    scale: Any
    ratio: Any
    columns: int
    xp: Any
    largest: float = 0.0

    def floors(self, chunk: Chunk) -> Any:
        """|reference| of each element of a chunk of whole rows, at least the scale of its row."""
        first = chunk.start // self.columns
        size = abs(chunk.reference).reshape(-1, self.columns)
        scale = self.scale[first : first + size.shape[0]].reshape(-1, 1)
        return self.xp.maximum(size, scale).reshape(-1)

    def quantile(self, share: float) -> float:
        """The smallest ratio that ``share`` of the rows do not exceed; NaN if any ratio is."""
        if bool(self.xp.isnan(self.ratio).any()):
            return math.nan
        ordered = in_order(self.ratio, self.xp)
        return float(ordered[max(0, math.ceil(share * len(ordered)) - 1)])


def in_order(values: Any, xp: Any) -> Any:
    """Sorted along the last dimension."""
    ordered = xp.sort(values)
    return ordered[0] if isinstance(ordered, tuple) else ordered  # torch gives the indices too


def first_true(mask: Any, most: int) -> list[int]:
    """The indices of the first ``most`` elements of a flat mask that are True."""
    found = mask.nonzero()
    found = found[0] if isinstance(found, tuple) else found.reshape(-1)
    return [int(index) for index in found[:most]]


def largest(values: Any, most: int, xp: Any) -> list[int]:
    """The indices of the ``most`` largest of flat ``values``, none of them NaN; of equal ones the first."""
    ordered = in_order(values, xp)
    least = ordered[-min(most, len(ordered))]
    found = first_true(values > least, most) + first_true(values == least, most)
    return sorted(found, key=lambda index: (-float(values[index]), index))[:most]


def quiet() -> AbstractContextManager[Any]:
    """No warnings of numpy about NaN, infinities and overflow: they are what is looked for."""
    numpy = loaded("numpy")
    return nullcontext() if numpy is None else numpy.errstate(all="ignore")
