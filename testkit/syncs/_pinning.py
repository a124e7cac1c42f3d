"""Which host memory counts as pinned while a simulated device is in use.

A CPU build of torch cannot pin. Pinning here gives ordinary memory that is remembered as pinned until it is freed.
"""

from __future__ import annotations

from typing import Any

_PINNED: dict[int, Any] = {}


def pin(tensor: Any) -> Any:
    """Remember the memory of the CPU tensor ``tensor`` as pinned, and give the tensor back."""
    from torch.multiprocessing.reductions import StorageWeakRef

    for key in [key for key, storage in _PINNED.items() if storage.expired()]:
        _PINNED.pop(key, None)
    storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's
    _PINNED[storage.cdata] = storage  # the weak reference keeps the address from being used again
    return tensor


def is_pinned(tensor: Any) -> bool:
    """Whether the host memory of ``tensor`` counts as pinned; never true of a tensor on the device."""
    import torch

    if hasattr(tensor, "_inner") or tensor.layout != torch.strided or tensor.is_meta:
        return False
    storage = _PINNED.get(tensor.untyped_storage()._cdata)
    return storage is not None and not storage.expired()


def pinned_copy(tensor: Any) -> Any:
    """What ``tensor.pin_memory()`` gives: itself where it is pinned, else a pinned copy. Tensors on the CPU only."""
    import torch

    if is_pinned(tensor):
        return tensor
    return pin(tensor.clone(memory_format=torch.preserve_format))
