"""Classes of torch that carry a device in their name or their constructor, for the simulated device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from testkit.syncs import _backend


@cache
def generator_class() -> Any:
    """``torch.Generator``, which C++ makes: one for "cuda" is a generator of the host that says it is the device's."""
    import torch

    plain: Any = torch.Generator

    class Kind(type(plain)):  # type: ignore[misc]  # its metaclass has no public name
        def __instancecheck__(cls, one: Any) -> bool:
            return isinstance(one, plain)

    class Generator(plain, metaclass=Kind):  # type: ignore[misc]  # made by C++
        def __new__(cls, device: Any = "cpu") -> Any:
            return plain.__new__(cls) if _backend.home(device) == _backend.device() else plain(device)

        @property
        def device(self) -> Any:
            return torch.device("cuda", 0)

    return Generator


@cache
def legacy_types() -> dict[str, Any]:
    """``torch.cuda.FloatTensor`` and its like: makers of tensors that ``isinstance`` and ``type`` know."""
    import torch

    class Kind(type):
        dtype: Any

        def __instancecheck__(cls, one: Any) -> bool:
            return _backend.on_device(one) and one.dtype == cls.dtype

        def __call__(cls, *given: Any) -> Any:
            if all(isinstance(one, int) for one in given):
                return torch.empty(given or (0,), dtype=cls.dtype, device=_backend.device())
            return torch.tensor(given[0], dtype=cls.dtype, device=_backend.device())

    words = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
    return {
        f"{word}Tensor": Kind(f"{word}Tensor", (), {"dtype": getattr(torch, f"{word}Tensor").dtype}) for word in words
    }


def legacy_dtype(kind: Any) -> Any:
    """The dtype where ``kind`` is a type of ``legacy_types`` or the name of one, else None."""
    module, _, name = kind.rpartition(".") if isinstance(kind, str) else ("", "", "")
    known: Any = legacy_types().get(name) if module == "torch.cuda" else kind
    return known.dtype if known in legacy_types().values() else None


def in_place_of(plain: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """``function`` as a method of tensors in the place of torch's ``plain``.

    Modes of torch hear of this call, as they would of ``plain``, and not of those that ``function`` makes: a census
    then calls it by the same name as on CUDA.
    """
    from torch.overrides import handle_torch_function, has_torch_function

    @wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if has_torch_function((self,)):
            return handle_torch_function(method, (self,), self, *args, **kwargs)
        return function(self, *args, **kwargs)

    return method
