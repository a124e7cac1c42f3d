"""What an observer tells of one moment at which the host waits for the device."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("read", "upload", "download", "shape", "pageable", "gapped", "synchronize", "library", "unknown")
"""read: a device value becomes a Python value (``item``, ``bool``, ``tolist``). upload, download: a blocking copy to
the device, to the host. shape: the shape of the result depends on data (``nonzero``, a mask as index). pageable,
gapped: a ``non_blocking`` copy that is staged, since the host's side is not pinned, or has gaps or another order of
elements than the device's. synchronize: of a device, a stream or an event. library: a kernel library checks a result on
the host (linear algebra). unknown: torch warned, and nothing more is known."""


@dataclass(frozen=True)
class Seen:
    """One moment at which the host waits for the device, as its observer knows it.

    ``operator`` is "aten._local_scalar_dense", "Tensor.to", "torch.cuda.synchronize", or "?" where only torch's
    warning spoke. ``detail``: what the observer knows besides, for the fix ("mask index", "from a Python list").
    ``bytes`` is the size of what was copied, ``direction`` "H2D" or "D2H"; None where unknown.
    """

    operator: str
    kind: str
    detail: str = ""
    bytes: int | None = None
    direction: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no kind of wait; there are {', '.join(KINDS)}")
