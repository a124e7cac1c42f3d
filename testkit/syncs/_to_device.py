"""Host values onto a device without a wait: built in pinned memory, copied on the current stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testkit.errors import SyncsError

if TYPE_CHECKING:
    import torch

UNPINNED = ("cpu", "meta", "mps")
"""Types of devices for which pinned memory means nothing: no copy, no values, or memory that both sides share."""


def to_device(values: Any, device: torch.device | str | int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``values`` as a new, dense tensor on ``device``, without the host waiting for the copy.

    ``values``: a number, a (nested) list or tuple of numbers, a NumPy array, or a CPU tensor of any layout in memory.
    ``dtype`` None keeps that of an array or tensor and lets torch infer that of numbers (int64, the default float,
    bool); a number that does not fit is torch's RuntimeError. Values are converted on the host.

    What holds:

    - ``values`` are copied into a pinned block of their own, so the caller may change or free them at once. Pinned
      input is copied too: a buffer that is filled again races with the copy in flight.
    - The block stays alive until the copy is done: torch's allocator of pinned memory gives it out again only after the
      stream has passed. Nothing has to be kept.
    - The copy is queued on the current stream, and kernels there see it. Another stream must wait for this one
      (``other.wait_stream(torch.cuda.current_stream())``), and the result then be told with ``record_stream``.
    - The first calls of a process get their blocks from the driver, which can take milliseconds; later ones reuse them.
    - On a CPU target it is a plain copy, on "meta" a shape. There, too, the result shares no memory with ``values``.

    The result has no gradient history. A tensor that lies on the target device already is returned as it is, or
    converted there if ``dtype`` differs. SyncsError for one on another device, for a list that holds device
    tensors (each would be read by the host), and for sparse and nested tensors.
    """
    import torch

    target = torch.device(device)
    if isinstance(values, torch.Tensor) and values.device.type != "cpu":
        return _there_already(values, target, dtype)
    pin = target.type not in UNPINNED
    if isinstance(values, torch.Tensor):
        if values.layout is not torch.strided or values.is_nested:
            what = "a nested tensor" if values.is_nested else f"a tensor of layout {values.layout}"
            raise SyncsError(f"to_device got {what}", "argument values", "give its parts one by one")
        host = torch.empty(values.shape, dtype=dtype or values.dtype, device="cpu", pin_memory=pin)
        host.copy_(values.detach())
    else:
        _refuse_device_tensors(values)
        # NumPy's reversed views are the one thing that torch does not take.
        plain = values.copy() if any(step < 0 for step in getattr(values, "strides", ())) else values
        host = torch.tensor(plain, dtype=dtype, device="cpu", pin_memory=pin)
    return host.to(target, non_blocking=True)


def _there_already(values: torch.Tensor, target: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    same = values.device.type == target.type and target.index in (None, values.device.index)
    if not same:
        problem = f"to_device got a tensor on {values.device} for {target}"
        raise SyncsError(problem, "argument values", "give host values; between devices use .to(), which may wait")
    return values.detach().to(dtype=dtype or values.dtype)


def _refuse_device_tensors(values: Any) -> None:
    for number, one in enumerate(values if isinstance(values, (list, tuple)) else ()):
        device = getattr(one, "device", None)
        if getattr(device, "type", "cpu") != "cpu":
            problem = f"to_device got a list whose element {number} is a tensor on {device}"
            raise SyncsError(problem, "argument values", "use torch.stack, which keeps them there")
