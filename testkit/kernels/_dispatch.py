"""Every torch operation of a block, seen on its way to the kernel, those inside custom operators too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any

from testkit._loaded import loaded

if TYPE_CHECKING:
    from torch import Tensor

__tracebackhide__ = True

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]
"""``handle(operator, args, kwargs, call)``: ``call()`` runs the operator; what is returned is its result."""

BUILT_IN = (
    "aten",
    "prims",
    "prim",
    "quantized",
    "mkldnn",
    "onednn",
    "inductor",
    "c10d",
    "_c10d_functional",
    "symm_mem",
)


def watching(handle: Handler) -> AbstractContextManager[Any]:
    """Within the block every torch operation of this thread goes through ``handle``.

    Operations below autograd are seen, so no composite ones; nor is what a built-in operator does inside. Not seen are
    kernels that Python starts directly (Triton, CuPy), other threads, and the ``empty_strided`` of compiled code.
    """
    mode: AbstractContextManager[Any] = _mode(loaded("torch._dynamo") is not None)(handle)
    return mode


@cache
def _mode(dynamo: bool) -> Any:
    """The mode's class. ``dynamo``: torch.compile is loaded; torch would load it, in seconds, to keep it away."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
        def __init__(self, handle: Handler) -> None:
            super().__init__()  # type: ignore[no-untyped-call]  # torch's
            self.handle = handle

        @classmethod
        def _should_skip_dynamo(cls) -> bool:  # asked by torch from 2.8 on
            return dynamo

        @classmethod
        def ignore_compile_internals(cls) -> bool:  # else a compiled function becomes an eager one, for good
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}

            def call() -> Any:
                # A subclass among the arguments has a dispatch of its own, which comes first.
                key = None if types else _backend(func, args, kwargs)
                if key is None:
                    return func(*args, **kwargs)
                # torch takes the mode away while it handles an operator. A custom one is Python or C++ of the
                # project: with the mode back, and past the key that would lead here again, its inside is seen.
                with self:
                    return func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)

            return self.handle(func, args, kwargs, call)

    return Watching


def _backend(func: Any, args: Any, kwargs: Any) -> Any:
    """The dispatch key of the device that a custom operator runs on; None for built-in operators and unknown ones."""
    import torch

    if not is_custom(func):
        return None
    kinds = {tensor.device.type for tensor in inputs(args, kwargs)}
    device = next((kind for kind in sorted(kinds) if kind != "cpu"), "cpu")
    known = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU"}
    return getattr(torch._C.DispatchKey, known[device]) if kinds and device in known else None


def is_custom(func: Any) -> bool:
    """Is it an operator of a project, and none of torch's own?"""
    import torch

    return isinstance(func, torch._ops.OpOverload) and func.namespace not in BUILT_IN


def name_of(func: Any) -> str:
    """``add`` for ``aten.add.Tensor``."""
    return func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else str(func)


def inputs(args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among an operator's arguments; its lists are one level deep."""
    return outputs([*args, *kwargs.values()])


def outputs(result: Any) -> list[Tensor]:
    """The tensors in what an operator returned: one, or a sequence with sequences of some."""
    import torch

    if isinstance(result, torch.Tensor):
        return [result]
    if not isinstance(result, (list, tuple)):
        return []
    return [tensor for part in result for tensor in outputs(part)]


def memory_id(tensor: Tensor) -> int:
    """The same for all tensors that share a storage; of one without a storage (sparse), its own."""
    import torch

    return int(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else id(tensor)


def waits_for_the_device(func: Any, args: Any) -> str:
    """Why the host has to wait for the device in ``func``, so that CUDA would not capture it; "" if it need not."""
    import torch

    name = name_of(func)
    if name in ("index", "index_put_", "index_put"):
        # Only masks have as many results as they have true elements; and one value for all needs no count.
        masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
        if masks and (name == "index" or args[2].numel() != 1):
            return "a mask selects as many elements as it has true ones, so the host waits for their number"
        return ""
    if torch.Tag.data_dependent_output in func.tags:
        return "the host reads a value, so it waits for the device"
    if torch.Tag.dynamic_output_shape in func.tags:
        return "the shape of the result depends on values, so the host waits for them"
    return ""
