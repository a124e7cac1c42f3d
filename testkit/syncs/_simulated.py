"""``simulated()``: a device with real values on a machine without a GPU, so that host waits can be found there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from testkit.errors import SyncsError

__tracebackhide__ = True  # pytest shows the line that called us, not ours

_inside = 0


@contextmanager
def simulated(kernels: Mapping[str, Callable[..., Any]] | None = None) -> Iterator[Any]:
    """Give a simulated CUDA device, ``torch.device("cuda", 0)``, for a ``with`` block.

    Tensors on it hold real values (on the CPU); "cuda" in any form, ``torch.cuda`` and ``torch.accelerator`` mean it.
    What would make the host wait on CUDA is told to ``forbid`` and ``census``. Compiled functions run eagerly.

    ``kernels`` gives operators that have no CPU kernel one, by name: ``{"my_ext::op": function}``; the function takes
    and returns CPU tensors. Triton's kernels run in its interpreter (``TRITON_INTERPRET=1``), else a function is named
    for them, ``{"triton::kernel": function}``, which takes the kernel's arguments with CPU tensors.

    A process can hold one such backend, for as long as it lives, so mark the tests ``fresh_process`` and enter it in
    their bodies (fixtures of such tests run in the parent). It can be entered again, also inside itself.

    Raises ``SyncsError`` where torch has no Python backend (2.8 and older), or where the process has another backend.
    """
    global _inside
    from testkit.syncs import _backend
    from testkit.syncs._redirect import redirected

    for name, kernel in (kernels or {}).items():
        if "::" not in name or not callable(kernel):
            raise SyncsError(
                f"{name!r}: {kernel!r} is no kernel", "kernels= of simulated()", 'give {"my_ext::op": function}'
            )
    _backend.install()
    import torch

    before = dict(_backend.kernels)
    _backend.kernels.update(kernels or {})
    _inside += 1
    try:
        if _inside > 1:
            yield torch.device("cuda", 0)
        else:
            with redirected():
                yield torch.device("cuda", 0)
    finally:
        _inside -= 1
        _backend.kernels.clear()
        _backend.kernels.update(before)
