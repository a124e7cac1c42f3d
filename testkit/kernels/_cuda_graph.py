"""A call captured in a CUDA graph, or the reason why it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testkit.kernels._tensors import KernelFailed

__tracebackhide__ = True  # pytest shows the line that called us, not ours


def captured(call: Callable[[], Any], what: str, fix: str) -> tuple[Any, Any]:
    """The graph and what ``call()`` returned while it was captured; ``call`` has been warmed up.

    Raises ``KernelFailed`` that ``what`` cannot be captured, with torch's first error.
    """
    import torch

    here = torch.cuda.current_stream()
    graph: Any = torch.cuda.CUDAGraph()
    first: RuntimeError | None = None
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph):
            try:
                returned = call()
            except RuntimeError as error:
                first = error  # the end of the broken capture raises another one, which says less
                raise
    except RuntimeError as error:
        _recover(here)
        cause = first or error
        line = f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"
        raise KernelFailed(f"{what} cannot be captured", [line], fix) from cause
    return graph, returned


def _recover(stream: Any) -> None:
    """Undo what torch leaves of a broken capture: its stream is current, and its generator believes to be captured."""
    import torch

    torch.cuda.set_stream(stream)
    generator = torch.cuda.default_generators[stream.device.index]
    generator.graphsafe_set_state(generator.clone_state())
