"""The judge of a comparison without a model: tolerance, budget of mismatches, cosine and relative norm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from testkit.errors import KernelsError
from testkit.kernels._compare import Chunk, Pair, Rows, Tolerance, in_order
from testkit.kernels._failure import NOT_FINITE, not_finite, percent, share
from testkit.kernels._mutants import OUTPUT_MUTANTS

ADVICE = "compare the worst of them with the reference; if a healthy kernel does this too, calibrate a model of it"
EXACT = "compare the worst of them with the reference, and what they have in common"

BLIND = 1 / 16
"""Share of the elements that are not 0 which may lie below the default floor, where a zero passes, and beside a gap."""
GAP = 16
"""From so many times more elements below the floor than next above it on there is a gap."""


@dataclass(frozen=True)
class Given:
    """What the caller said; None is for what they did not."""

    rtol: float | None = None
    atol: float | None = None
    steps: int | None = None
    mismatches: float | None = None
    cosine: float | None = None
    relative_norm: float | None = None

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            object.__setattr__(self, name, _plain(value))
        share_given = isinstance(self.mismatches, float) and self.mismatches < 1
        _check("rtol", self.rtol)
        _check("atol", self.atol)
        _check("steps", self.steps, whole=True)
        _check("mismatches", self.mismatches, whole=not share_given)
        _check("cosine", self.cosine, most=1.0)
        _check("relative_norm", self.relative_norm)

    @property
    def names(self) -> list[str]:
        return [name for name, value in vars(self).items() if value is not None]


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python; anything else as it is."""
    kind: type = type(value)
    if kind in (bool, int, float) or not issubclass(kind, Real):
        return value
    return int(value) if issubclass(kind, Integral) else float(value)


def _check(name: str, value: Any, *, whole: bool = False, most: float = math.inf) -> None:
    kinds = (int,) if whole else (int, float)
    if value is None:
        return
    if isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value <= most and value < math.inf:
        return
    kind = "a whole number" if whole else "a number"
    limit = f" to {most:g}" if most < math.inf else " up"
    extra = ", or a share below 1" if name == "mismatches" else ""
    raise KernelsError(f"{name} is {value!r}", "argument of assert_matches", f"give {kind} from 0{limit}{extra}")


class ToleranceJudge:
    """Judges pairs of the dtype, and of the size of the elements, that ``pair`` has."""

    def __init__(self, pair: Pair, given: Given) -> None:
        self.given = given
        self.tolerance = resolved(pair, given)
        budget = given.mismatches or 0
        self.allowed = math.floor(budget * pair.size) if budget < 1 else int(budget)
        kind = pair.form.name if pair.form is not None else pair.actual.dtype
        self.where = f"{', '.join(given.names)} given" if given.names else f"defaults of {kind}"
        self.floor_given = given.atol is not None
        self.mutants: Iterable[str] = OUTPUT_MUTANTS if given.names else ()

    @property
    def exact(self) -> bool:
        """Any difference fails, so that no mutant can pass."""
        terms = self.tolerance
        return not (terms.rtol or terms.floor or terms.steps or self.allowed)

    @property
    def absolute(self) -> bool:
        """May an element differ where the reference is 0?"""
        return bool(self.tolerance.floor or self.tolerance.steps or self.allowed)

    def __str__(self) -> str:
        return f"{self.tolerance}{f' with {self.allowed:,} mismatches' if self.allowed else ''}"

    def bound(self, chunk: Chunk, rows: Rows) -> Any:
        return self.tolerance.bound(chunk)

    def lines(self, pair: Pair) -> list[str]:
        return []

    def sees(self, pair: Pair, whole: bool) -> bool:
        """Is something wrong? In a part of an output only the number of elements beyond tells it."""
        beyond, lost = pair.beyond(self.tolerance)
        return bool(lost) or beyond > self.allowed or (whole and bool(self._metrics(pair)))

    def problem(self, pair: Pair) -> tuple[str, str]:
        """What is wrong, and what to do about it; two empty strings if nothing is."""
        beyond, lost = pair.beyond(self.tolerance)
        if lost:
            return not_finite(pair), NOT_FINITE
        if beyond > self.allowed:
            budget = f"; {self.allowed:,} may" if self.allowed else ""
            what = "from the reference" if self.exact else f"by more than {self.tolerance}"
            text = f"{share(beyond, pair.size)} {'differs' if beyond == 1 else 'differ'} {what}{budget}"
            return text, EXACT if self.exact else ADVICE
        problem = self._metrics(pair)
        return problem, ADVICE if problem else ""

    def blind(self, pair: Pair) -> str:
        """Is a whole group of magnitudes below a floor that nobody gave, so that zeros would do for it?

        A group of its own has a gap above the floor: next to no values up to 4 times the floor. Values that reach down
        to zero have none, however many are small (a softmax, a gelu).
        """
        floor = self.tolerance.floor / (1 - self.tolerance.rtol) if self.tolerance.rtol < 1 else math.inf
        if self.floor_given or not floor:
            return ""
        sizes = pair.sample()
        below, near, count = int((sizes <= floor).sum()), int((sizes <= 4 * floor).sum()), int(sizes.shape[0])
        if below <= BLIND * count or GAP * (near - below) >= below:
            return ""
        return f"{self} would let zeros pass in {percent(below, count)} of the reference, which is far below the rest"

    def _metrics(self, pair: Pair) -> str:
        least, most = self.given.cosine, self.given.relative_norm
        # Written so that a NaN fails.
        if least is not None and not (found := pair.cosine()) >= least:
            return f"the cosine of actual and reference is {found:.6g}, not {least} or more"
        if most is not None and not (found := pair.relative_norm()) <= most:
            return f"the norm of the error is {found:.4g} of the reference's, not {most} or less"
        return ""


def typical(pair: Pair) -> float:
    """The magnitude by which elements near zero are measured: the mean of |reference|, or its median if that is less.

    A few large elements, such as a mask of -1e4, move the mean alone; many zeros move the mean alone, too.
    """
    sizes = pair.sample()
    if not sizes.shape[0]:
        return 0.0
    return min(pair.mean_reference(), float(in_order(sizes, pair.xp)[sizes.shape[0] // 2]))


def resolved(pair: Pair, given: Given) -> Tolerance:
    """The tolerance in numbers, with the defaults of the dtype for what was not given."""
    form, rtol, atol, steps = pair.form, given.rtol, given.atol, given.steps
    untold = rtol is None and atol is None
    if steps is None:
        steps = form.steps if form is not None and untold else 0
        if rtol is None:
            rtol = form.rtol if form is not None else 0.0
    elif rtol is None:
        rtol = form.rtol if form is not None and not untold else 0.0
    if atol is None:
        atol = rtol * typical(pair) if rtol else 0.0
    # A step of whole numbers is 1.
    return Tolerance(rtol, atol if form is not None else max(atol, steps), steps, form)
