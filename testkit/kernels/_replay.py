"""``assert_replays``: a captured function must follow its inputs when they change between replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from testkit.errors import KernelsError
from testkit.kernels._cuda_graph import captured
from testkit.kernels._recorded_graph import RecordedGraph
from testkit.kernels._tensors import (
    KernelFailed,
    Leaves,
    difference,
    differences,
    has_elements,
    is_expanded,
    leaves,
    snapshot,
    tensors,
)

__tracebackhide__ = True  # pytest shows the line that called us, not ours

SEEDS = (0, 1)
WARM_UP = 3
"""Calls before a capture, for compilers, tuners and libraries that set themselves up on first use."""


@dataclass(frozen=True)
class _Results:
    """What a call returned, and what its arguments hold afterwards."""

    returned: Leaves
    left: Leaves


def assert_replays(
    fn: Callable[..., Any],
    make_inputs: Callable[[int], Any],
    *,
    compare: Callable[[Any, Any], object] | None = None,
) -> None:
    """``fn`` gives the same results eagerly, captured, replayed, and replayed after its inputs have changed.

    ``make_inputs(seed)`` returns new arguments of ``fn``: the same values whenever it gets the same seed, and for
    another seed others, in tensors of the same shapes and dtypes. A tuple or list (by position), a dictionary (by
    keyword), or one tensor; it is called several times with 0 and 1. The results are what ``fn`` returns, tensors of
    any dtype and shape or containers of some, and what it leaves in its arguments. Four replays are compared with
    eager calls: of the captured inputs, of the same again, of the others, and of the first ones again. Before each the
    inputs are copied into the captured ones.

    Results are compared in bits, or by ``compare(actual, expected)``, which raises AssertionError or returns False
    where two tensors differ, for kernels whose sums have no fixed order. Tensors on CUDA: a CUDA graph, captured after
    3 warm-up calls. Tensors on the CPU: a recorded stand-in that replays torch operations, and refuses what would end
    a CUDA capture.

    Raises ``KernelFailed`` with the replay that differs and where; ``KernelsError`` if inputs or results of the two
    seeds do not differ, or not for ``compare``, since nothing would be verified then.
    """
    given = [make_inputs(seed) for seed in SEEDS]
    _check_inputs([*given, make_inputs(0)])
    eager = []
    for seed in SEEDS:
        arguments = make_inputs(seed)
        returned = _call(fn, arguments)
        eager.append(_results(returned, arguments))
    _check_results(eager, given, compare)
    static = make_inputs(0)
    on_cuda = any(tensor.is_cuda for _, tensor in tensors(static))
    replay, returned = _capture_cuda(fn, static, make_inputs) if on_cuda else _capture_recorded(fn, static)
    replays = (
        ("replay of the captured inputs", 0),
        ("identical replay", 0),
        ("replay with changed inputs", 1),
        ("replay with the first inputs again", 0),
    )
    for name, seed in replays:
        for (_, into), (_, new) in zip(tensors(static), tensors(given[seed]), strict=True):
            into.detach().copy_(new.detach())
        replay()
        _judge(name, _results(returned, static), eager, seed, compare)


def _judge(name: str, found: _Results, eager: list[_Results], seed: int, compare: Any) -> None:
    right, wrong = eager[seed], eager[1 - seed]
    lines = _different(found.returned, right.returned, compare) + _different(found.left, right.left, compare)
    if not lines:
        return
    fix = "keep all that a replay needs on the device, and reset on the device what a call leaves behind"
    if found.returned and not _different(found.returned, wrong.returned, compare):
        lines.append("these are the results of the other inputs")
        fix = "read the inputs on the device, from the memory of the captured arguments"
    raise KernelFailed(f"{name} differs from the eager call", lines, fix)


def _different(found: Leaves, expected: Leaves, compare: Callable[[Any, Any], object] | None) -> list[str]:
    import torch

    if compare is None or len(found) != len(expected):
        return differences(found, expected)
    lines = []
    for (name, leaf), (_, other) in zip(found, expected, strict=True):
        if isinstance(leaf, torch.Tensor) and isinstance(other, torch.Tensor):
            try:
                if _is_false(compare(leaf, other)):
                    lines.append(f"{name}: compare returned False")
            except AssertionError as error:
                lines += [f"{name}: {line}" for line in str(error).splitlines() or ["compare raised AssertionError"]]
        elif line := difference(name, leaf, other):
            lines.append(line)
    return lines


def _is_false(verdict: Any) -> bool:
    """Only truth values count: an empty list may be a list of differences. Tensors and numpy's bools have ``all``."""
    return verdict is False or (hasattr(verdict, "dtype") and not bool(verdict.all()))


def _capture_recorded(fn: Callable[..., Any], arguments: Any) -> tuple[Callable[[], None], Any]:
    graph = RecordedGraph()
    with graph.capture():
        returned = _call(fn, arguments)
    if not graph.operations:
        raise KernelsError(
            "the capture saw no torch operation", "fn of assert_replays", "test it with CUDA tensors on a GPU"
        )
    return graph.replay, returned


def _capture_cuda(
    fn: Callable[..., Any], arguments: Any, make_inputs: Callable[[int], Any]
) -> tuple[Callable[[], None], Any]:
    """Capture ``fn`` as torch documents it: warm-up on a side stream, then ``torch.cuda.graph``."""
    import torch

    here, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's
    side.wait_stream(here)
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            _call(fn, make_inputs(0))
    here.wait_stream(side)
    fix = "let no operation wait for the host while it is captured: no .item(), no masks as indices, no .cpu()"
    graph, returned = captured(lambda: _call(fn, arguments), "fn", fix)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay, returned


def _call(fn: Callable[..., Any], arguments: Any) -> Any:
    if isinstance(arguments, Mapping):
        return fn(**arguments)
    return fn(*arguments) if isinstance(arguments, (list, tuple)) else fn(arguments)


def _results(returned: Any, arguments: Any) -> _Results:
    return _Results(snapshot(returned, "output"), snapshot(arguments, "inputs"))


def _check_inputs(given: list[Any]) -> None:
    """``given``: the inputs for seeds 0, 1 and 0."""
    where, facts = "make_inputs of assert_replays", []
    for one in given:
        found = tensors(one, "inputs")
        if not found:
            raise KernelsError(f"make_inputs returned {type(one).__name__} without a tensor", where, "return tensors")
        for name, each in found:
            if is_expanded(each):
                problem = f"{name} of shape {tuple(each.shape)} has stride {each.stride()}: its elements share memory"
                raise KernelsError(
                    problem, where, "return it .contiguous(), so that other values can be copied into it"
                )
        facts.append([f"{name} of {tuple(each.shape)}, {each.dtype} on {each.device}" for name, each in found])
    if facts[0] != facts[1]:
        one, other = ("; ".join(fact) for fact in facts[:2])
        raise KernelsError(f"seed 0 gave {one}, and seed 1 {other}", where, "change values only")
    first, second, again = (snapshot(one, "inputs") for one in given)
    if differences(first, again):
        raise KernelsError("seed 0 gave other inputs the second time", where, "seed the generator with the argument")
    if not differences(first, second):
        raise KernelsError("seeds 0 and 1 gave the same inputs", where, "seed the generator with the argument")


def _check_results(eager: list[_Results], given: list[Any], compare: Any) -> None:
    """Is there a result, does it depend on the inputs, and would ``compare`` see it?"""
    where = "fn of assert_replays"
    results = []
    for found, one in zip(eager, given, strict=False):
        before = dict(leaves(one, "inputs"))
        # An argument that the call left alone is no result.
        written = [(name, leaf) for name, leaf in found.left if difference(name, leaf, before[name])]
        results.append(found.returned + written)
    if not any(has_elements(found) for found in results):
        problem = "fn returned no tensor and changed none of its arguments"
        raise KernelsError(problem, where, "let it return its results")
    if not differences(*results):
        problem = "fn gives the same results for the inputs of both seeds"
        raise KernelsError(problem, where, "give inputs that make a difference")
    if not _different(results[0], results[1], compare):
        fix = "let it raise AssertionError or return False where two tensors differ, by a tolerance that tells them"
        raise KernelsError("compare takes the results of both seeds for the same", "compare of assert_replays", fix)
