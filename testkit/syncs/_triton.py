"""Triton's kernels on the simulated device: its interpreter runs them, else the user's stand-ins do.

With ``TRITON_INTERPRET=1`` at import Triton runs a kernel on the CPU itself, and nothing is needed here. A kernel that
was to be compiled has no device to run on; then the function that ``simulated(kernels=...)`` names for it is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testkit._loaded import loaded
from testkit.errors import SyncsError
from testkit.syncs import _backend

__tracebackhide__ = True  # pytest shows the line that called us, not ours


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and value, where Triton has been imported."""
    kind = getattr(loaded("triton.runtime.jit"), "JITFunction", None)
    if kind is not None:
        yield kind, "run", _run


def _run(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> Any:
    """``JITFunction.run``; ``grid`` and the options of a launch are no arguments of the kernel."""
    name = self.fn.__name__
    stand_in = _backend.kernels.get(f"triton::{name}")
    if stand_in is None:
        raise SyncsError(
            f"the simulated device cannot run the compiled Triton kernel {name}",
            "simulated()",
            "set TRITON_INTERPRET=1 before Triton is imported, or give a function of the kernel's arguments that "
            f'works on CPU tensors: simulated(kernels={{"triton::{name}": function}})',
        )
    own = {key: value for key, value in kwargs.items() if key in self.arg_names}
    return stand_in(*(_backend.inner(one) for one in args), **{key: _backend.inner(one) for key, one in own.items()})
