"""``assert_matches``: is a kernel's output close enough to its reference, and would a wrong output be seen?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from testkit._text import table
from testkit.errors import KernelsError
from testkit.kernels._compare import Pair, quiet
from testkit.kernels._elements import Side, refuse_shared
from testkit.kernels._error_model import ErrorModel, ModelJudge, model_of
from testkit.kernels._expect import expect, expect_comparable
from testkit.kernels._failure import NOT_FINITE, ToleranceRefused, evidence
from testkit.kernels._mutants import chosen, tried
from testkit.kernels._tensors import KernelFailed
from testkit.kernels._tolerance import Given, ToleranceJudge

__tracebackhide__ = True  # pytest shows the line that called us, not ours


def assert_matches(
    actual: Any,
    reference: Any,
    *,
    model: ErrorModel | str | Path | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    steps: int | None = None,
    mismatches: float | None = None,
    cosine: float | None = None,
    relative_norm: float | None = None,
    nan: bool = False,
    inf: bool = False,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    device: Any = None,
    strides: Sequence[int] | str | None = None,
    mutants: Iterable[str] | None = None,
) -> None:
    """Fail unless every element of ``actual`` matches ``reference``: tensors, arrays or numbers of one shape.

    Both are compared as float64. An element matches within ``atol + rtol * |reference|`` (in its own unit), or if it
    is at most ``steps`` values of actual's dtype away from the reference rounded to that dtype. What is not given:

    - nothing is: rtol by dtype (float64 2**-40, float32 2**-16, float16 2**-9, bfloat16 2**-6, fp8 and fp4 half the
      gap from 1 to the next value, e8m0 and whole numbers 0), one step (e8m0 and whole numbers none), atol as below;
    - no ``atol``: rtol times the mean of |reference|, or the median of what is not 0 if that is less, so that elements
      near zero are measured by the others. Refused if a 16th of them is a group of its own far below that;
    - no ``rtol``: that of the dtype. ``steps`` alone: no other tolerance; without it a given tolerance has no steps.

    ``mismatches`` elements may lie beyond: a whole number, or a share below 1 of all, rounded down. ``cosine`` is the
    least a.r / (|a| |r|) and ``relative_norm`` the most |a - r| / |r| over all elements, both beside the above.
    ``model``: an ``ErrorModel`` or the path of a stored one, in place of all these.

    NaN and infinities fail. With ``nan=True`` or ``inf=True`` they match where both sides have the same one.
    The reference has actual's dtype or a wider float; ``dtype`` names what actual must have, and allows any reference.
    ``shape``, ``device`` (as in ``same_device``) and ``strides`` (in elements, or "contiguous") are what actual must
    have. Packed fp4 has two values a byte; complex values are compared as pairs of reals. Empty values fail
    unless ``shape`` names their shape.

    A tolerance that somebody gave, or a model, must also see wrong outputs made from the reference: those that
    ``mutants`` names, all by default, () for none. By default those that change nothing are left out, but not all.
    ``actual`` and ``reference`` may not be the same memory.

    Raises ``KernelFailed`` with the worst elements and rows, ``ToleranceRefused`` with the table of mutants, both
    AssertionErrors; ``KernelsError`` for arguments that cannot be used.
    """
    given = Given(rtol, atol, steps, mismatches, cosine, relative_norm)
    if model is not None and given.names:
        fix = "leave them out, or leave out the model"
        raise KernelsError(f"{', '.join(given.names)} beside a model", "arguments of assert_matches", fix)
    sides = Side(actual, "actual"), Side(reference, "reference")
    refuse_shared(*sides, "assert_matches")
    expect(sides[0], shape, dtype, device, strides)
    expect_comparable(*sides, shape_named=shape is not None, dtype_named=dtype is not None)
    pair = Pair(*sides, nan=nan, inf=inf)
    with quiet():
        judge = ToleranceJudge(pair, given) if model is None else ModelJudge(model_of(model), pair)
        if pair.size:
            _judge(pair, judge, mutants)


def _judge(pair: Pair, judge: ToleranceJudge | ModelJudge, mutants: Iterable[str] | None) -> None:
    names = chosen(mutants, judge.mutants)
    problem, fix = judge.problem(pair)
    if problem:
        terms = judge.tolerance if isinstance(judge, ToleranceJudge) else None
        lines = [*judge.lines(pair), *evidence(pair, judge.bound, terms)]
        raise KernelFailed(problem, lines, fix, judge.where)
    if pair.all_left_out():
        raise KernelFailed("nothing is compared: no element is finite in both", (), NOT_FINITE, "nan or inf given")
    if isinstance(judge, ToleranceJudge) and mutants is None and (blind := judge.blind(pair)):
        fix = "give atol=, what matters for the smallest elements, with rtol=; or compare the groups one by one"
        raise ToleranceRefused(blind, (), fix, judge.where)
    found = [] if judge.exact else tried(pair, names, judge.sees)
    _expect_tried(judge, found, named=mutants is not None)
    passed = [name for name, verdict in found if verdict == "passes"]
    if passed:
        raise ToleranceRefused(
            f"{judge} would let a wrong output pass: {', '.join(passed)}",
            table([("mutant of the reference", "verdict"), *found], indent=""),
            "tighten it, or give data in which such a fault shows, or name in mutants= what must be caught",
            judge.where,
        )


def _expect_tried(judge: ToleranceJudge | ModelJudge, found: list[tuple[str, str]], *, named: bool) -> None:
    """Fail if a tolerance was not tried on what it should have been: it could be anything."""
    idle = [name for name, verdict in found if verdict == "does not apply"]
    if not idle or not (named or len(idle) == len(found)):
        return
    # A reference of zeros: nothing but a zero passes there, unless the tolerance has a term that is not relative.
    if not named and (isinstance(judge, ModelJudge) or not judge.absolute):
        return
    fix = "give data that it changes; or mutants=() if this tolerance needs no proof"
    raise KernelsError(f"no use as a test of {judge}: {', '.join(idle)} would change nothing", judge.where, fix)
