"""The class of tensors on the simulated device: what Python code asks of one, answered as a tensor on CUDA answers."""

from __future__ import annotations

import copy
import numbers
from typing import Any

from testkit.syncs import _backend
from testkit.syncs._backward import failed
from testkit.syncs._classes import in_place_of, legacy_dtype

__tracebackhide__ = True  # pytest shows the line that called us, not ours

_NUMPY = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."


def tensor_class() -> Any:
    """Make the class; torch is imported by now."""
    import torch

    real, cuda = _backend.device(), torch.device("cuda", 0)

    class SimulatedTensor(torch.Tensor):
        """A tensor on the simulated device; ``_inner`` is the CPU tensor with its values."""

        _inner: Any

        @staticmethod
        def __new__(cls: Any, values: Any) -> Any:
            facts: dict[str, Any] = {"dtype": values.dtype, "layout": values.layout, "device": real}
            if values.is_nested:
                made = torch.Tensor._make_wrapper_subclass(
                    cls, (values.size(0),), dispatch_sizes_strides_policy="sizes", **facts
                )
            elif values.layout == torch.sparse_coo:
                made = torch.Tensor._make_wrapper_subclass(cls, values.size(), **facts)
            elif values.layout != torch.strided:
                # Compressed: C++ aborts the process on a wrapper that says so, and sees a strided one instead.
                made = torch.Tensor._make_wrapper_subclass(cls, values.size(), **{**facts, "layout": torch.strided})
            else:
                made = torch.Tensor._make_wrapper_subclass(
                    cls, values.size(), strides=values.stride(), storage_offset=values.storage_offset(), **facts
                )
            made._inner = values
            return made

        def __init__(self, values: Any) -> None:
            pass

        __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch says

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]  # torch's own type lacks func
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            try:
                return _backend.call(func, args, kwargs or {})
            except BaseException as error:
                failed(error)
                raise

    for name, answer in _answers(torch, SimulatedTensor, real, cuda).items():
        setattr(SimulatedTensor, name, answer)
    SimulatedTensor.__name__ = "tensor"  # repr starts with it
    return SimulatedTensor


def _answers(torch: Any, cls: Any, real: Any, cuda: Any) -> dict[str, Any]:
    def refuse_pinning(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")

    def to_dense(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.layout in {torch.strided, torch.sparse_coo}:
            return torch._C.TensorBase.to_dense(self, *args, **kwargs)
        return _backend.call(torch.ops.aten._to_dense.default, (self, *args), kwargs)  # C++ asks for the layout

    def kind(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return torch._C.TensorBase.type(self._inner).replace("torch.", "torch.cuda.", 1)
        on_device = legacy_dtype(dtype)
        return torch._C.TensorBase.type(self, dtype, *args, **kwargs) if on_device is None else self.to(on_device)

    def with_device(name: str) -> Any:
        # Python code of torch asks for ``x.device`` and hands it on where no redirect acts.
        plain = getattr(torch._C.TensorBase, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = [_backend.home(one) for one in args]
            return plain(self, *given, **{key: _backend.home(one) for key, one in kwargs.items()})

        method.__name__ = name
        return method

    plain = torch.Tensor
    factories = ("to", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
    return {
        "device": property(lambda self: cuda),
        "is_cuda": property(lambda self: True),
        "is_cpu": property(lambda self: False),
        "is_nested": property(lambda self: self._inner.is_nested),
        "get_device": lambda self: 0,
        "numpy": in_place_of(plain.numpy, _numpy),
        "layout": property(lambda self: self._inner.layout),
        "is_sparse_csr": property(lambda self: self._inner.is_sparse_csr),
        "to_dense": to_dense,
        "__array__": _refuse_numpy,
        "pin_memory": refuse_pinning,
        "is_pinned": lambda self, device=None: False,
        "tolist": in_place_of(plain.tolist, lambda self: self.to("cpu").tolist()),
        "data_ptr": lambda self: self._inner.data_ptr(),
        "untyped_storage": lambda self: self._inner.untyped_storage(),
        "cuda": lambda self, device=None, non_blocking=False, **_: self,
        "type": in_place_of(torch._C.TensorBase.type, kind),
        "record_stream": lambda self, stream: None,
        "__dlpack_device__": lambda self: (2, 0),
        "__format__": in_place_of(plain.__format__, _format),
        "__setitem__": _set_item,
        "__copy__": _shallow_copy,
        "__deepcopy__": _deep_copy,
        "__reduce_ex__": _reduce,
        **{name: with_device(name) for name in factories},
    }


def _refuse_numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise TypeError(_NUMPY)


def _numpy(self: Any, *, force: bool = False) -> Any:
    return self.detach().to("cpu").numpy(force=True) if force else _refuse_numpy(self)


def _format(self: Any, spec: str) -> str:
    return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)


def _set_item(self: Any, index: Any, value: Any) -> None:
    import torch

    if isinstance(value, (bool, int, float, complex, numbers.Integral)):  # the last: numpy's, as torch takes them
        # torch does so for CUDA alone: the number becomes a scalar on the CPU, which is then copied or filled in.
        value = torch.tensor(value, dtype=self.dtype)
    torch.Tensor.__setitem__(self, index, value)


def _shallow_copy(self: Any) -> Any:
    import torch

    made = self.detach()
    if isinstance(self, torch.nn.Parameter):
        return torch.nn.Parameter(made, self.requires_grad)
    return made.requires_grad_(self.requires_grad)


def _deep_copy(self: Any, memo: dict[int, Any]) -> Any:
    if id(self) in memo:
        return memo[id(self)]
    import torch

    if not self.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol at the moment")
    made = self.detach().clone()
    if isinstance(self, torch.nn.Parameter):
        made = torch.nn.Parameter(made, self.requires_grad)
    else:
        made.requires_grad_(self.requires_grad)
    memo[id(self)] = made
    if self.grad is not None:
        made.grad = copy.deepcopy(self.grad, memo)
    return made


def _reduce(self: Any, protocol: Any) -> Any:
    """As torch does for devices without storage: the values travel on the CPU and are put on "cuda:0" again."""
    import torch

    rebuild: Any = torch._utils._rebuild_device_tensor_from_cpu_tensor

    values = (self.detach().to("cpu"), self.dtype, "cuda:0", self.requires_grad)
    if isinstance(self, torch.nn.Parameter):
        from collections import OrderedDict

        return torch._utils._rebuild_parameter, (rebuild(*values), self.requires_grad, OrderedDict())
    return rebuild, values
