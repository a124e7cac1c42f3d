"""Which operator runs right now: torch's warning about a wait does not say, so a census watches what is called.

Two modes of torch remember the outermost torch function and the aten operator of this thread. torch keeps warnings
back until the outermost call returns, when many operators have run; each operator is therefore called through
``_disabled_torch_function_impl``, whose return lets its own warnings out. Both modes are such that ``torch.compile``
accepts them: the one is declared infrastructure, the other is simple enough to be traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from threading import get_ident
from time import perf_counter
from typing import Any

from testkit._loaded import loaded
from testkit.syncs import _imports
from testkit.syncs._seen import Seen

UNKNOWN = "?"


@dataclass(frozen=True)
class Call:
    """One call of an aten operator, the ``number``-th that was watched."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int


@dataclass
class Now:
    """What this thread is calling: the outermost torch function, and the operator; ``finished`` gets its seconds."""

    finished: Callable[[Call, float], None]
    outer: Any = None
    outer_args: tuple[Any, ...] = ()
    call: Call | None = None
    calls: int = 0


@contextmanager
def naming(now: Now) -> Iterator[None]:
    """Keep ``now`` up to date while the block runs, on this thread; where the block imports torch, from then on."""
    me = get_ident()
    with ExitStack() as stack:

        def begin() -> None:
            if get_ident() == me:
                functions, operators = _modes()
                stack.enter_context(functions(now))
                stack.enter_context(operators(now))

        if loaded("torch") is None:
            _imports.heard.append(begin)
            stack.callback(_imports.heard.remove, begin)
        else:
            begin()
        yield


@cache
def _modes() -> tuple[Any, Any]:
    """The classes of both modes; they exist only where torch does."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    through = torch._C._disabled_torch_function_impl

    class Functions(TorchFunctionMode):
        def __init__(self, now: Now) -> None:
            super().__init__()
            self.now = now

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.now.outer, self.now.outer_args = func, args
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self.now.outer, self.now.outer_args = None, ()

    class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
        supports_higher_order_operators = True  # flex_attention and the like, which torch refuses to run otherwise

        def __init__(self, now: Now) -> None:
            super().__init__()  # type: ignore[no-untyped-call]  # torch's
            self.now = now

        @classmethod
        def is_infra_mode(cls) -> bool:
            return True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            now = self.now
            before = now.call  # a custom operator calls others
            now.calls += 1
            now.call = Call(func, args, kwargs or {}, now.calls)
            begin = perf_counter()
            try:
                return through(func, types, args, kwargs or {})
            finally:
                now.finished(now.call, perf_counter() - begin)
                now.call = before

    return Functions, Operators


def named(seen: Seen, now: Now) -> Seen:
    """``seen`` with all that is known of the running call: "Tensor.item (aten._local_scalar_dense)"."""
    if seen.operator == UNKNOWN and now.call is not None:
        seen = _classified(seen, now.call)
    inner = plain_name(seen.operator)
    outer = "" if now.outer is None else _spoken(now.outer)
    listed = outer in ("Tensor.__getitem__", "Tensor.__setitem__") and _holds_a_list(now.outer_args[1:2])
    if seen.kind == "unknown" and outer:
        seen = replace(seen, kind="upload" if listed else BY_FUNCTION.get(outer, "unknown"))
    below = seen.detail == BUILT or (outer in BUILDERS and inner == "aten._local_scalar_dense")
    if listed:
        seen = replace(seen, detail="list as index")
    if inner == UNKNOWN or below or (outer and seen.kind in ("pageable", "gapped")):
        return replace(seen, operator=outer or inner)
    if not outer or not inner.startswith("aten."):
        return replace(seen, operator=inner)
    return replace(seen, operator=f"{outer} ({inner})")


COPIES = ("aten._to_copy", "aten._copy_from", "aten._copy_from_and_resize", "aten.copy_")
"""One copy as different devices and versions of torch have it; two censuses should call it the same."""

BUILDERS = ("torch.tensor", "torch.as_tensor", "torch.asarray", "Tensor.new_tensor")
BUILT = "from Python values"
"""The detail of what torch builds from a list or a number. It does so below the modes: CUDA has no operator for it."""

BY_FUNCTION = {
    **dict.fromkeys(BUILDERS, "upload"),
    "Tensor.cpu": "download",
    "Tensor.tolist": "download",
    "Tensor.item": "read",
}
"""What is known where torch does its work below the modes, and no operator is seen."""


def _holds_a_list(index: Any) -> bool:
    return any(isinstance(one, list) or (isinstance(one, tuple) and _holds_a_list(one)) for one in index)


def plain_name(name: str) -> str:
    """``aten.index.Tensor`` -> ``aten.index``, and one name for all copies: such things differ between versions."""
    parts = name.split(".")
    short = ".".join(parts[:2]) if parts[0] == "aten" else name
    return "aten.copy_" if short in COPIES else short


def _spoken(function: Any) -> str:
    """As it is written: "Tensor.item", "torch.unique"."""
    import torch
    from torch.overrides import resolve_name

    name: str | None = resolve_name(function)
    if name is None:  # a function that somebody has put in the place of torch's
        name = getattr(function, "__name__", "")
        if "Tensor" in getattr(function, "__qualname__", "") or not hasattr(torch, name):
            return f"Tensor.{name}" if hasattr(torch.Tensor, name) else name
        return f"torch.{name}"
    name = name.replace("torch.functional.", "torch.").removesuffix(".__get__")
    return name.removeprefix("torch.") if name.startswith("torch.Tensor.") else name


def _classified(seen: Seen, call: Call) -> Seen:
    """torch warned during ``call``: its name, and what the rule of the simulated device says of its arguments."""
    from testkit.syncs._waits import waits

    schema = getattr(call.operator, "_schema", None)
    seen = replace(seen, operator=str(call.operator) if schema is None else schema.name.replace("::", "."))
    if seen.kind != "unknown" or schema is None:
        return seen
    foreseen = waits(call.operator, call.args, call.kwargs, _on_device, _pinned)
    return replace(foreseen[0], operator=seen.operator) if foreseen else seen


def _on_device(tensor: Any) -> bool:
    return bool(tensor.device.type != "cpu")


def _pinned(tensor: Any) -> bool:
    return bool(tensor.is_pinned())
