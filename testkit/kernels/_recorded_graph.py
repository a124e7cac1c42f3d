"""A graph for machines without CUDA: torch operations are recorded with their tensors, and run again on those."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from testkit.kernels._dispatch import inputs, memory_id, name_of, outputs, waits_for_the_device, watching
from testkit.kernels._poison import MAKERS
from testkit.kernels._tensors import KernelFailed

if TYPE_CHECKING:
    from torch import Tensor

__tracebackhide__ = True  # pytest shows the line that called us, not ours


class RecordedGraph:
    """Records what torch does in ``capture`` and does the same again in ``replay``, as a CUDA graph would.

    Memory and numbers are those of the capture: a value that Python read from a tensor, a branch that it took and the
    address of an input stay as they were. What would end a CUDA capture fails in the same place: reading a value on the
    host, and operations whose output's shape depends on values. Not seen, and so never run again: numpy and other code
    that writes into memory without torch. Custom operators are run again as a whole, their Python included.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []

    @property
    def operations(self) -> int:
        """How many operations a replay runs."""
        return len(self._steps)

    @contextmanager
    def capture(self) -> Iterator[None]:
        with watching(self._handle):
            yield

    def replay(self) -> None:
        import torch

        # In this mode both kinds of tensors, made under it or not, may be written to.
        with torch.inference_mode():
            for func, args, kwargs, fresh in self._steps:
                found = outputs(func(*args, **kwargs))
                for place, recorded in fresh:
                    recorded.copy_(found[place])

    def _handle(self, func: Any, args: Any, kwargs: Any, call: Any) -> Any:
        given = inputs(args, kwargs)
        reason = waits_for_the_device(func, args)
        if reason:
            raise KernelFailed(
                f"{func} cannot be captured",
                [reason],
                "compute it on the device, or pass it in as an argument of the host before the capture",
            )
        known = {memory_id(tensor) for tensor in given}
        # Aliases, since an operation may change the shape of a tensor object in place later.
        kept_args, kept_kwargs = _aliases(args), _aliases(kwargs)
        result = call()
        made = outputs(result)
        fresh = [(i, made[i].detach()) for i in range(len(made)) if memory_id(made[i]) not in known]
        if (fresh or not func.is_view) and not _only_about_memory(func):
            self._steps.append((func, kept_args, kept_kwargs, fresh))
        return result


def _aliases(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return type(value)(_aliases(part) for part in value)
    return {key: _aliases(part) for key, part in value.items()} if isinstance(value, dict) else value


def _only_about_memory(func: Any) -> bool:
    """Does it make a buffer without values, or change what a tensor object says of its memory?"""
    import torch

    return name_of(func) in MAKERS or torch.Tag.inplace_view in func.tags
