"""What the simulated device asks of an operator's schema: what it writes, where its results lie, what it mixes."""

from __future__ import annotations

from functools import cache
from typing import Any

# Operators that take tensors on the CPU beside those on the device, as on CUDA.
_MIXES = frozenset(
    {
        "_copy_from",
        "_ctc_loss",
        "_foreach_addcdiv",
        "_foreach_addcdiv_",
        "_foreach_addcmul",
        "_foreach_addcmul_",
        "_foreach_copy_",
        "_index_put_impl_",
        "_pack_padded_sequence",
        "_pack_padded_sequence_backward",
        "_unsafe_index",
        "_unsafe_index_put",
        "copy",
        "copy_",
        "ctc_loss",
        "index",
        "index_put",
        "index_put_",
    }
)

# Operators with results that stay on the host, and which of them do.
_HOST_RESULTS = {
    "_nested_tensor_size": 0,
    "_nested_tensor_storage_offsets": 0,
    "_nested_tensor_strides": 0,
    "_pack_padded_sequence": 1,
}


class Facts:
    """What is asked of an operator's schema at each call, found once."""

    __slots__ = ("composite", "device", "host", "mixes", "random", "returns", "view", "written")

    def __init__(self, func: Any) -> None:
        schema = func._schema
        name = schema.name.partition("::")[2]
        arguments = list(enumerate(schema.arguments))
        self.written = [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]
        self.view = any(a.alias_info is not None for _, a in arguments)
        self.random = next((i for i, a in arguments if a.name == "generator"), None)
        self.returns = bool(schema.returns)
        self.device = next((i for i, a in arguments if a.name == "device"), None)
        self.host = _HOST_RESULTS.get(name)
        self.composite = func._can_decompose()
        self.mixes = name in _MIXES or name.startswith("_nested")


@cache
def facts_of(func: Any) -> Facts:
    return Facts(func)


def python_kernel(func: Any) -> Any:
    """The dispatch key of the kernel that CUDA would take, if somebody has registered one that is written in Python."""
    import torch

    name = func._schema.name.partition("::")[2] + (f".{func._overloadname}" if func._overloadname != "default" else "")
    for key in ("CUDA", "CompositeExplicitAutograd"):
        if f"{func.namespace}/{name}/{key}" in torch.library._impls:
            return getattr(torch._C.DispatchKey, key)
    return None
