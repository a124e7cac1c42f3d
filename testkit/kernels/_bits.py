"""``assert_bits_equal``: the same bits, of two outputs or of two functions over random inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from testkit._text import counted, table
from testkit.errors import KernelsError
from testkit.kernels._compare import first_true, in_order
from testkit.kernels._elements import Side, owned, place, refuse_shared
from testkit.kernels._failure import SHOWN, share
from testkit.kernels._tensors import KernelFailed

__tracebackhide__ = True

WHERE = "assert_bits_equal"


def assert_bits_equal(
    actual: Any,
    reference: Any,
    *,
    unordered: bool = False,
    make_inputs: Callable[[Any, int], Any] | None = None,
    sizes: Iterable[Any] | None = None,
    seeds: Iterable[int] = range(10),
) -> None:
    """Fail unless both have the same shape, the same dtype and the same bits: -0 is not 0, a NaN is itself.

    ``actual`` and ``reference`` are tensors or arrays of any dtype and shape, empty ones excepted, or numbers.
    ``unordered``: each row (the last dimension) holds the same values the same number of times, in any order.

    With ``make_inputs`` both are functions, run on random inputs: for each of ``sizes`` (see
    ``sizes_around_powers_of_two``) and each seed, ``make_inputs(size, seed)`` returns the arguments, a tuple or a
    dictionary, once for each function; what they return is compared. All are run, and a failure lists which failed.

    Raises ``KernelFailed``, an AssertionError, with the first different elements, their bits and the size and seed that
    made them; ``KernelsError`` for arguments that cannot be used.
    """
    if make_inputs is None:
        if callable(actual) or callable(reference) or sizes is not None:
            raise KernelsError("functions and sizes need make_inputs", WHERE, "give make_inputs=lambda size, seed: ...")
        problem, evidence = _difference(actual, reference, unordered)
        if problem:
            raise KernelFailed(problem, evidence, "compare the first of them with the reference")
        return
    each_seed = _listed("seeds", seeds)  # before the sizes: a generator gives its seeds once
    runs = [(size, seed) for size in _listed("sizes", () if sizes is None else sizes) for seed in each_seed]
    if not runs or not callable(actual) or not callable(reference):
        fix = "give two functions, sizes=... and seeds=..."
        raise KernelsError(f"make_inputs with {counted(len(runs), 'size and seed', 'sizes and seeds')}", WHERE, fix)
    failed = []
    for size, seed in runs:
        # Two kernels may write one buffer: the first result is kept before the second call.
        made, expected = (owned(_called(function, make_inputs(size, seed))) for function in (actual, reference))
        problem, evidence = _difference(made, expected, unordered)
        if problem:
            failed.append((size, seed, problem, evidence))
    if failed:
        size, seed, problem, evidence = failed[0]
        by_size = Counter(str(size) for size, *_ in failed)
        text = ", ".join(f"{size} ({count})" for size, count in by_size.items())
        lines = [f"{counted(len(failed), 'run')} of {len(runs):,} failed; by size: {text}"]
        fix = f"start from make_inputs({size!r}, {seed!r})"
        raise KernelFailed(problem, [*lines, *evidence], fix, f"size {size}, seed {seed}")


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise KernelsError(f"{name} is {values!r}", WHERE, f"give several: {name}=[...]")
    return list(values)


def _called(function: Callable[..., Any], inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return function(**inputs)
    return function(*inputs) if isinstance(inputs, (tuple, list)) else function(inputs)


def _difference(actual: Any, reference: Any, unordered: bool) -> tuple[str, list[str]]:
    """What differs, "" if nothing does, and the evidence."""
    left, right = Side(actual, "actual"), Side(reference, "reference")
    refuse_shared(left, right, WHERE)
    if left.given != right.given:
        return f"actual has the shape {left.given}, the reference {right.given}", []
    if left.given_dtype != right.given_dtype:
        return f"actual has dtype {left.given_dtype}, the reference {right.given_dtype}", []
    if not left.size:
        return f"nothing is compared: both have the shape {left.given}", []
    if left.is_tensor != right.is_tensor:
        names = {True: "a torch tensor", False: "an array"}
        fix = "convert one of them, such as with torch.from_numpy"
        raise KernelsError(f"actual is {names[left.is_tensor]}, reference {names[right.is_tensor]}", WHERE, fix)
    xp = left.xp
    codes, expected = left.codes(0, left.size), right.codes(0, right.size)
    if left.is_tensor:
        expected = expected.to(codes.device)
    if unordered:
        columns = left.shape[-1] if left.shape else 1
        if left.shape != left.given:
            raise KernelsError(f"values of {left.given_dtype} have no order", WHERE, "compare them without unordered")
        codes, expected = (in_order(side.reshape(-1, columns), xp) for side in (codes, expected))
        bad = (codes != expected).any(-1)
        return _rows(left, right, bad) if bool(bad.any()) else ("", [])
    bad = codes != expected
    return _elements(left, right, bad) if bool(bad.any()) else ("", [])


def _elements(left: Side, right: Side, bad: Any) -> tuple[str, list[str]]:
    count = int(bad.sum())
    lines: list[tuple[object, ...]] = [("first differences", "actual", "reference", "bits of both")]
    for index in first_true(bad, SHOWN):
        codes = f"{left.bits(index)} {right.bits(index)}"
        lines.append((place(index, left.shape), left.text(index), right.text(index), codes))
    return f"the bits of {share(count, left.size)} differ", table(lines, indent="")


def _rows(left: Side, right: Side, bad: Any) -> tuple[str, list[str]]:
    count, columns = int(bad.sum()), left.shape[-1] if left.shape else 1
    lines: list[tuple[object, ...]] = [("first rows", "missing", "too many")]
    for index in first_true(bad, SHOWN):
        held = [_held(side, index * columns, columns) for side in (left, right)]
        missing, extra = _few(held[1] - held[0]), _few(held[0] - held[1])
        lines.append((place(index, left.shape[:-1]), missing, extra))
    text = f"{count:,} of {counted(left.size // columns, 'row')} hold other values than the reference's, in any order"
    return text, table(lines, indent="")


def _held(side: Side, start: int, columns: int) -> Counter[str]:
    """How often a row holds each value; by bits too, since a NaN is not equal to itself."""
    return Counter(f"{side.text(index)} {side.bits(index)}".strip() for index in range(start, start + columns))


def _few(values: Counter[str]) -> str:
    listed = list(values.elements())
    more = f" and {len(listed) - SHOWN:,} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
