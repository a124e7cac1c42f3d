"""Is the kernel right: stubs that cannot drift, comparisons that catch bugs, poison, replay and streams."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.kernels._bare import bare as bare
    from testkit.kernels._bits import assert_bits_equal as assert_bits_equal
    from testkit.kernels._calibrate import calibrate as calibrate
    from testkit.kernels._devices import same_device as same_device
    from testkit.kernels._drift import stub_drift as stub_drift
    from testkit.kernels._error_model import ErrorModel as ErrorModel
    from testkit.kernels._failure import ToleranceRefused as ToleranceRefused
    from testkit.kernels._fake_streams import fake_streams as fake_streams
    from testkit.kernels._guard import Guarded as Guarded
    from testkit.kernels._guard import guarded as guarded
    from testkit.kernels._invariance import assert_batch_invariant as assert_batch_invariant
    from testkit.kernels._invariance import assert_deterministic as assert_deterministic
    from testkit.kernels._layouts import Layout as Layout
    from testkit.kernels._layouts import layouts as layouts
    from testkit.kernels._matches import assert_matches as assert_matches
    from testkit.kernels._namespace import namespace as namespace
    from testkit.kernels._poison import Poison as Poison
    from testkit.kernels._poison import poisoned as poisoned
    from testkit.kernels._reads import Drift as Drift
    from testkit.kernels._record import StubError as StubError
    from testkit.kernels._replay import assert_replays as assert_replays
    from testkit.kernels._sizes import sizes_around_powers_of_two as sizes_around_powers_of_two
    from testkit.kernels._speedup import Speedup as Speedup
    from testkit.kernels._speedup import speedup as speedup
    from testkit.kernels._streams import StreamReport as StreamReport
    from testkit.kernels._streams import assert_stream_safe as assert_stream_safe
    from testkit.kernels._tensors import KernelFailed as KernelFailed

_HOMES = {
    "Drift": "_reads",
    "ErrorModel": "_error_model",
    "Guarded": "_guard",
    "KernelFailed": "_tensors",
    "Layout": "_layouts",
    "Poison": "_poison",
    "Speedup": "_speedup",
    "StreamReport": "_streams",
    "StubError": "_record",
    "ToleranceRefused": "_failure",
    "assert_batch_invariant": "_invariance",
    "assert_bits_equal": "_bits",
    "assert_deterministic": "_invariance",
    "assert_matches": "_matches",
    "assert_replays": "_replay",
    "assert_stream_safe": "_streams",
    "bare": "_bare",
    "calibrate": "_calibrate",
    "fake_streams": "_fake_streams",
    "guarded": "_guard",
    "layouts": "_layouts",
    "namespace": "_namespace",
    "poisoned": "_poison",
    "same_device": "_devices",
    "sizes_around_powers_of_two": "_sizes",
    "speedup": "_speedup",
    "stub_drift": "_drift",
}

__all__ = [
    "Drift",
    "ErrorModel",
    "Guarded",
    "KernelFailed",
    "Layout",
    "Poison",
    "Speedup",
    "StreamReport",
    "StubError",
    "ToleranceRefused",
    "assert_batch_invariant",
    "assert_bits_equal",
    "assert_deterministic",
    "assert_matches",
    "assert_replays",
    "assert_stream_safe",
    "bare",
    "calibrate",
    "fake_streams",
    "guarded",
    "layouts",
    "namespace",
    "poisoned",
    "same_device",
    "sizes_around_powers_of_two",
    "speedup",
    "stub_drift",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
