"""The simulated device: torch's Python backend, and the tensors that lie on it.

A tensor on the device wraps a CPU tensor that holds its values. Each aten call on one is asked about by the rule of
``_waits``, runs on the CPU tensors, and has its results wrapped. To torch's C++ code the device is a backend of its own
(PrivateUse1), since only that can be had without a GPU; to Python it says ``cuda:0``, as production code asks for that.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from testkit.errors import SyncsError
from testkit.syncs import _autocast, _backward, _cells
from testkit.syncs._operators import Facts, facts_of, python_kernel
from testkit.syncs._pinning import is_pinned, pin
from testkit.syncs._region import notice, watched
from testkit.syncs._waits import waits

__tracebackhide__ = True  # pytest shows the line that called us, not ours

NAME = "simulated"
"""What the backend is called in torch's own messages."""

# What torch's own sync debug mode does not warn of, except for a stream's synchronize.
_UNSEEN = frozenset({"gapped", "pageable", "synchronize"})

kernels: dict[str, Callable[..., Any]] = {}
"""The user's own kernels, by operator ("my_ext::op"); they get and return CPU tensors."""


class Capture:
    """The graph that is being captured, if any: ``calls`` are run again by its replay."""

    calls: list[Callable[[], None]] | None = None


@cache
def generator() -> Any:
    """The random numbers of the device, apart from those of the host as on CUDA."""
    import torch

    made = torch.Generator()
    made.manual_seed(torch.initial_seed() % 2**63)
    return made


@cache
def install() -> Any:
    """Set the backend up, once a process, and give the class of its tensors.

    Raises ``SyncsError`` where torch has no Python backend, or where another one is in use.
    """
    import torch
    from torch.utils import backend_registration

    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        raise SyncsError(
            f"torch {torch.__version__} has no Python backend", "simulated()", "use torch 2.9 or later for these tests"
        )
    name = torch._C._get_privateuse1_backend_name()
    if name != "privateuseone" or hasattr(torch, name):
        raise SyncsError(
            f"this process already has the backend {name!r}, and torch holds one",
            "simulated()",
            "mark the test fresh_process, or do not import what registers that backend",
        )
    from testkit.syncs._stand_ins import backend_module

    # Functions in there are scripted at import, for which torch's own factories must stand where they always stood.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch deprecates its own scripting
        importlib.import_module("torch._decomp.decompositions_for_jvp")
    setup(rename=NAME, backend_module=backend_module(), device_guard=_backward.device_guard())
    from testkit.syncs._tensor import tensor_class

    cls = tensor_class()
    _register(torch, cls)
    _LIBRARIES.extend(_autocast.register(torch, NAME))
    kernels.update(_cells.kernels())
    return cls


@cache  # made outside the redirect, which turns it into "cuda:0"
def device() -> Any:
    """The device as torch's C++ code knows it."""
    import torch

    return torch.device(NAME, 0)


def home(value: Any) -> Any:
    """The simulated device as torch's C++ code knows it where ``value`` is "cuda" or such a device, else ``value``.

    Raises ``SyncsError`` for a second device, which is not there.
    """
    import torch

    if isinstance(value, str):
        if not value.startswith("cuda") or value.rpartition(":")[0] not in ("", "cuda") or "." in value:
            return value
        try:
            value = torch.device(value)
        except RuntimeError:
            return value
    if not isinstance(value, torch.device) or value.type != "cuda":
        return value
    if value.index:
        raise SyncsError(f"there is no device {value}", "simulated()", "use cuda:0, the only device that is simulated")
    return device()


_LIBRARIES: list[Any] = []


def _register(torch: Any, cls: Any) -> None:
    """Kernels for calls that have no tensor on the device among their arguments, or hide that it is one."""
    library = torch.library.Library("aten", "IMPL")
    aten = torch.ops.aten

    def empty(size: Any, *, dtype: Any = None, layout: Any = None, memory_format: Any = None, **_unused: Any) -> Any:
        return cls(torch.empty(size, dtype=dtype, layout=layout, memory_format=memory_format))

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, **_unused: Any) -> Any:
        return cls(torch.empty_strided(size, stride, dtype=dtype, layout=layout))

    def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
        found = _ask(aten._copy_from.default, (source, target, non_blocking), {})
        # Only what torch builds from a list or a number comes here: other copies are calls of copy_.
        found = [replace(seen, detail="from Python values") for seen in found]
        inner(target).copy_(inner(source))
        tell(found)
        return target

    def read(tensor: Any) -> Any:
        return call(aten._local_scalar_dense.default, (tensor,), {})

    def anything(func: Any, *args: Any, **kwargs: Any) -> Any:
        return call(func, args, kwargs)

    rest = torch.library.Library("_", "IMPL")
    rest.fallback(anything, "PrivateUse1")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    library.impl("_local_scalar_dense", read, "PrivateUse1")
    _LIBRARIES.extend([library, rest])  # torch forgets the kernels of a library that is collected


def inner(tensor: Any) -> Any:
    """The CPU tensor that holds the values of ``tensor``; anything else as it is."""
    return getattr(tensor, "_inner", tensor)


def on_device(tensor: Any) -> bool:
    """Whether ``tensor`` lies on the simulated device."""
    return hasattr(tensor, "_inner")


def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one aten call on the device: ``__torch_dispatch__`` of its tensors."""
    facts, cpu = facts_of(func), _cpu()
    if facts.composite and not any(on_device(one) and one.is_nested for one in _flat([*args, *kwargs.values()])):
        return func.decompose(*args, **kwargs)  # as inference mode leaves it whole: its parts are what may wait
    own = None if func.namespace == "aten" or func._schema.name in kernels else python_kernel(func)
    if own is not None:
        return func._op_dk(own, *args, **kwargs)  # with the device's tensors: what waits is inside
    found = _ask(func, args, kwargs)
    _check_devices(func, facts, args, kwargs)
    plain_args, plain_kwargs = _map(inner, args), {name: _map(inner, value) for name, value in kwargs.items()}
    target = kwargs.get("device")
    if target is None and facts.device is not None and facts.device < len(args):
        target = args[facts.device]
        plain_args = [cpu if i == facts.device and one is not None else one for i, one in enumerate(plain_args)]
    if target is not None and "device" in kwargs:
        plain_kwargs["device"] = cpu
        plain_kwargs.pop("pin_memory", None)
    if facts.random is not None:
        if facts.random < len(args):
            plain_args = [generator() if i == facts.random and a is None else a for i, a in enumerate(plain_args)]
        elif plain_kwargs.get("generator") is None:
            plain_kwargs["generator"] = generator()
    out = _run(func, plain_args, plain_kwargs)
    if target is not None and target.type == "cpu":
        result = pin(out) if kwargs.get("non_blocking") and out.layout == _strided() else out
    else:
        result = _wrapped(facts, args, kwargs, out)
    if Capture.calls is not None:
        _record(func, facts, plain_args, plain_kwargs, out)
    tell(found)
    return result


def _ask(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    if not watched() and Capture.calls is None:
        return []
    return waits(func, args, kwargs, on_device, is_pinned)


def tell(found: list[Any]) -> None:
    """Say that the host waits: refused while a graph is captured, else for the regions here to judge."""
    for seen in found:
        if Capture.calls is not None and seen.kind not in {"pageable", "gapped"}:
            raise SyncsError(
                f"the host waits for the device while a graph is captured: {seen.operator} ({seen.kind})",
                "simulated()",
                "move it out of the capture; CUDA ends the capture with an error here",
            )
        notice(seen, copies=seen.kind in _UNSEEN and seen.operator != "Stream.synchronize")


@cache
def _cpu() -> Any:
    import torch

    return torch.device("cpu")


@cache
def _strided() -> Any:
    import torch

    return torch.strided


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        mapped = [_map(change, one) for one in value]
        return type(value)(mapped) if type(value) in {list, tuple} else type(value)(*mapped)
    return change(value)


def _flat(value: Any) -> list[Any]:
    return [leaf for one in value for leaf in _flat(one)] if isinstance(value, (list, tuple)) else [value]


def _check_devices(func: Any, facts: Facts, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse what CUDA refuses: a tensor on the CPU, other than a scalar, beside one on the device."""
    if facts.mixes:
        return
    import torch

    tensors = [one for one in _flat([*args, *kwargs.values()]) if isinstance(one, torch.Tensor)]
    if any(not on_device(one) and one.dim() for one in tensors) and any(on_device(one) for one in tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({func})"
        )


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    own = kernels.get(func._schema.name)
    if own is not None:
        return own(*args, **kwargs)
    try:
        return func(*args, **kwargs)
    except NotImplementedError as error:
        if "not implemented for" in str(error):
            return _in_single_precision(func, args, kwargs, error)
        name = func._schema.name
        raise SyncsError(
            f"the simulated device has no kernel for {name}",
            "simulated()",
            f'give one that works on CPU tensors: simulated(kernels={{"{name}": function}})',
        ) from error


def _in_single_precision(func: Any, args: Any, kwargs: dict[str, Any], error: Exception) -> Any:
    """Once more in float32, where the CPU has no kernel for a small type that CUDA has one for."""
    import torch

    small = {torch.float16, torch.bfloat16}
    narrow = {one.dtype for one in _flat([*args, *kwargs.values()]) if isinstance(one, torch.Tensor)} & small
    if len(narrow) != 1 or facts_of(func).written:
        raise error
    dtype = narrow.pop()

    def widen(one: Any) -> Any:
        return one.float() if isinstance(one, torch.Tensor) and one.dtype == dtype else one

    def narrowed(one: Any) -> Any:
        return one.to(dtype) if isinstance(one, torch.Tensor) and one.dtype == torch.float32 else one

    out = func(*_map(widen, args), **{name: _map(widen, value) for name, value in kwargs.items()})
    return _map(narrowed, out)


def _wrapped(facts: Facts, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Any:
    """``out`` as tensors on the device; what the call wrote into is given back itself, with its new shape."""
    if facts.host is not None:
        return (_wrap(out[0]), out[1]) if facts.host else out
    if not facts.written:
        return _map(_wrap, out)
    written = [
        leaf
        for i, name in facts.written
        for leaf in _flat(kwargs.get(name, args[i] if i < len(args) else None))
        if leaf is not None
    ]
    for tensor in written:
        _follow(tensor)
    if not facts.returns:
        return None
    known = {id(inner(tensor)): tensor for tensor in written}
    return _map(lambda one: known[id(one)] if id(one) in known else _wrap(one), out)


def _wrap(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor) or on_device(value):
        return value
    inference = value.is_inference()
    if value.is_conj() or value.is_neg():  # a bit that the wrapper cannot carry; C++ asks the wrapper for it
        value = value.resolve_conj().resolve_neg()
    if value._is_zerotensor():  # of forward-mode gradients: it has no memory, which the kernels called here would read
        value = torch.zeros(value.shape, dtype=value.dtype)
    if inference != torch.is_inference_mode_enabled():  # a view is what it is a view of
        with torch.inference_mode(inference):
            return install()(value)
    return install()(value)


def _follow(tensor: Any) -> None:
    """Give ``tensor`` the shape of its values, which ``t_()``, ``resize_`` or ``out=`` may have changed."""
    if not on_device(tensor):
        return
    held = tensor._inner
    if held.layout != _strided() or held.is_nested:
        return
    if (tensor.shape, tensor.stride(), tensor.storage_offset()) != (held.shape, held.stride(), held.storage_offset()):
        import torch
        from torch.utils._mode_utils import no_dispatch

        with no_dispatch():
            torch.Tensor.data.__set__(tensor, install()(held))  # type: ignore[attr-defined]  # a getset descriptor


def _record(func: Any, facts: Facts, args: Any, kwargs: dict[str, Any], out: Any) -> None:
    """Add the call to the captured graph: its replay runs it again and puts the values where they lie now."""
    import torch

    results = [] if facts.view else [one for one in _flat(out) if isinstance(one, torch.Tensor)]

    def again() -> None:
        fresh = _run(func, args, kwargs)
        for kept, new in zip(results, (one for one in _flat(fresh) if isinstance(one, torch.Tensor)), strict=False):
            kept.copy_(new)

    assert Capture.calls is not None
    Capture.calls.append(again)
