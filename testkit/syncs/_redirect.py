"""Sends what production code says of "cuda" to the simulated device, and undoes all of it on leaving.

Three layers, since none reaches everything. A function mode sees each call into torch of this thread. The factories are
replaced in torch's namespace as well, since the mode is off inside torch's own Python functions. What no mode sees
(``torch.cuda``, ``torch.accelerator``, ``Generator``, ``autocast``) is replaced by stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import Any

from testkit._loaded import loaded
from testkit.errors import SyncsError
from testkit.syncs import _backend, _stand_ins, _triton
from testkit.syncs._backend import home
from testkit.syncs._backward import whole
from testkit.syncs._classes import generator_class, in_place_of, legacy_dtype, legacy_types
from testkit.syncs._copies import leave_to_simulation
from testkit.syncs._pinning import is_pinned, pin, pinned_copy

__tracebackhide__ = True  # pytest shows the line that called us, not ours

_ABSENT = object()


@contextmanager
def redirected() -> Iterator[None]:
    """Everything of this module, for a ``with`` block. The backend is installed by now."""
    import torch

    _stand_ins.begin()
    with ExitStack() as stack:
        leave_to_simulation(True)
        stack.callback(leave_to_simulation, False)
        for owner, name, value in list(_replacements(torch)):
            stack.callback(_put, owner, name, vars(owner).get(name, _ABSENT))
            _put(owner, name, value)
        stack.callback(_pinning(torch)._destroy)
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        # CUDA keeps a module's parameters the same objects in Module.to, so that an optimizer made before holds them.
        torch.__future__.set_swap_module_params_on_conversion(True)
        context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        stack.callback(torch.set_default_device, context and context.device)
        if loaded("torch._dynamo") is not None:  # else nothing was compiled before
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_mode(torch)())
        yield


def _put(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


@cache
def _mode(torch: Any) -> Any:
    from torch.overrides import TorchFunctionMode

    class Redirect(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.device:
                return _as_cuda(func)(*args, **(kwargs or {}))
            if func is torch.Tensor.cuda or func is torch._C.TensorBase.cuda:
                return _cuda(*args, **(kwargs or {}))
            if isinstance(func, torch._ops.HigherOrderOperator):
                _teach(torch, func, (args, kwargs))
            return _sent(func, args, kwargs or {})

    return Redirect


def _teach(torch: Any, operator: Any, given: Any) -> None:
    """Let ``operator`` (cond, flex_attention) take the device's tensors: torch has no rule for their class.

    Raises ``SyncsError`` where torch would trace its body for gradients, which ends the process on a CPU build.
    """
    known = torch._ops._higher_order_ops
    tensors = torch.utils._pytree.tree_leaves(given)
    traced = torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in tensors)
    if traced and f"{operator.name()}_backward" not in known:
        raise SyncsError(
            f"the simulated device has no gradients of {operator.name()}",
            "simulated()",
            "call it under torch.no_grad(), or keep this test on a real device",
        )
    for one in known.values():  # that of a backward pass is called where no redirect acts
        dense = one.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if dense is not None:
            one.python_key_table.setdefault(_backend.install(), dense)


def _cuda(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    return self.to(home("cuda" if device is None else device), non_blocking=non_blocking, **kwargs)


def _sent(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call ``func`` with its devices redirected; a factory's ``pin_memory`` is done afterwards, as no CPU build can."""
    args = [home(one) for one in args]
    kwargs = {name: home(value) for name, value in kwargs.items()}
    if not kwargs.get("pin_memory"):
        return func(*args, **kwargs)
    del kwargs["pin_memory"]
    made = func(*args, **kwargs)
    if _backend.on_device(made):
        raise RuntimeError("Only dense CPU tensors can be pinned")
    return pin(made)


def _replacements(torch: Any) -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and the value to put there."""
    for owner, stand_ins in (
        (torch.cuda, {**_stand_ins.of_cuda(), **legacy_types()}),
        (torch.cuda.nvtx, _stand_ins.of_nvtx()),
        (torch.accelerator, _stand_ins.of_accelerator()),
    ):
        for name, value in stand_ins.items():
            if hasattr(owner, name):
                yield owner, name, value
    yield torch, "Stream", _stand_ins.Stream
    yield torch, "Event", _stand_ins.Event
    yield torch.backends.cuda, "is_built", lambda: True
    yield torch.backends.cudnn, "is_acceptable", lambda tensor: False  # a CPU build warns that it has none
    yield from _triton.replacements()
    yield from _of_functions(torch)
    yield from _of_words(torch)


def _of_functions(torch: Any) -> Iterator[tuple[Any, str, Any]]:
    from torch.utils._device import DeviceContext, _device_constructors

    for name in sorted({one.__name__ for one in _device_constructors()}):
        if callable(plain := getattr(torch, name, None)):
            yield torch, name, _redirecting(plain)
    # Guards wrap these two; around ours, which see copies themselves, their order of leaving would matter.
    yield torch.Tensor, "to", _stand_ins.tells(_always_redirecting(torch.Tensor.to))
    yield torch.Tensor, "type", in_place_of(torch.Tensor.type, _typed(torch.Tensor.type))
    yield torch.Tensor, "cuda", _stand_ins.tells(in_place_of(torch.Tensor.cuda, _cuda))
    for name in ("nested_tensor", "as_nested_tensor"):
        yield torch.nested, name, _redirecting(getattr(torch.nested, name))
    yield torch, "set_default_device", _always_redirecting(torch.set_default_device)
    yield torch, "get_default_device", _as_cuda(torch.get_default_device)
    yield torch, "from_dlpack", _from_dlpack(torch.from_dlpack)
    yield torch, "ctc_loss", _ctc_loss(torch.ctc_loss)
    yield torch, "load", _load(torch.load)
    for owner in (torch.autograd, torch.autograd.graph):
        yield owner, "_engine_run_backward", whole(torch.autograd.graph._engine_run_backward)
    yield torch, "compile", _eager
    yield torch, "Generator", generator_class()
    yield DeviceContext, "__init__", _at_home(DeviceContext.__init__)


def _of_words(torch: Any) -> Iterator[tuple[Any, str, Any]]:
    """What takes the type of a device as a word."""
    yield torch.amp.autocast_mode.autocast, "__init__", _redirecting_type(torch.amp.autocast_mode.autocast.__init__)
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        yield torch, name, _redirecting_type(getattr(torch, name))


def _redirecting(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs or "pin_memory" in kwargs:
            return _sent(plain, args, kwargs)
        return plain(*args, **kwargs)

    return call


def _always_redirecting(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _sent(plain, args, kwargs)

    return call


def _redirecting_type(plain: Callable[..., Any]) -> Callable[..., Any]:
    """For functions that take the type of a device as a word, and methods that take a device."""
    import torch

    def there(value: Any) -> Any:
        if isinstance(value, torch.device):
            return home(value)
        return _backend.NAME if value == "cuda" and isinstance(value, str) else value

    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return plain(*(there(one) for one in args), **{name: there(value) for name, value in kwargs.items()})

    return call


def _as_cuda(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        import torch

        found = plain(*args, **kwargs)
        return torch.device("cuda", 0) if found.type == _backend.NAME else found

    return call


def _at_home(plain: Callable[..., None]) -> Callable[..., None]:
    """For what ``torch.set_default_device`` and ``with torch.device(...)`` push below the redirect."""

    @wraps(plain)
    def init(self: Any, device: Any) -> None:
        plain(self, device)
        self.device = home(self.device)

    return init


def _from_dlpack(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def call(source: Any, *args: Any, **kwargs: Any) -> Any:
        return source.detach() if _backend.on_device(source) else plain(source, *args, **kwargs)

    return call


def _eager(model: Any = None, **_options: Any) -> Any:
    """``torch.compile``: the compiler does not know the device's tensors, and what it makes would hide their waits."""
    return _eager if model is None else model


def _typed(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.type``, also to ``torch.cuda.HalfTensor`` and to its name."""

    @wraps(plain)
    def call(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        on_device = legacy_dtype(dtype)
        if on_device is None:
            return plain(self, dtype, non_blocking, **kwargs)
        return self.to(_backend.device(), on_device, non_blocking=non_blocking)

    return call


def _ctc_loss(plain: Callable[..., Any]) -> Callable[..., Any]:
    """torch reads lengths on the device into lists, but not those of tensors of a class that it does not know."""

    @wraps(plain)
    def call(log_probs: Any, targets: Any, inputs: Any, lengths: Any, *args: Any, **kwargs: Any) -> Any:
        if _backend.on_device(log_probs):
            inputs, lengths = (one if isinstance(one, (list, tuple)) else one.tolist() for one in (inputs, lengths))
        return plain(log_probs, targets, inputs, lengths, *args, **kwargs)

    return call


def _load(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.load(map_location="cuda")``, also ``{"cpu": "cuda:0"}``: read to the CPU, then moved."""

    @wraps(plain)
    def call(source: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        import torch

        there = home(map_location)
        if isinstance(map_location, dict):
            there = home(map_location.get("cpu"))
            map_location = {key: value for key, value in map_location.items() if home(value) is value}
        if not isinstance(there, torch.device) or there.type != _backend.NAME:
            return plain(source, map_location, *args, **kwargs)
        from torch.utils._pytree import tree_map_only

        return tree_map_only(torch.Tensor, lambda one: one.to(there), plain(source, "cpu", *args, **kwargs))

    return call


def _pinning(torch: Any) -> Any:
    """Pinning for tensors on the CPU, below every thread and mode."""
    library = torch.library.Library("aten", "IMPL")

    def asked(tensor: Any, device: Any = None) -> bool:
        return is_pinned(tensor)

    def done(tensor: Any, device: Any = None) -> Any:
        return pinned_copy(tensor)

    library.impl("is_pinned", asked, "CPU")
    library.impl("_pin_memory", done, "CPU")
    return library
