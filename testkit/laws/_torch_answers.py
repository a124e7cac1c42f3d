"""What torch says about its device on another machine, as predicates for ``assert_platform_choices``."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

from testkit.errors import LawsError

__tracebackhide__ = True  # pytest shows the line that called us, not ours

CUDA, HIP = "13.0", "7.0"
"""What a simulated torch was built with."""

WITH_FEATURES = ("gfx906", "gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950")
"""Targets whose gcnArchName has features behind it, https://llvm.org/docs/AMDGPUUsage.html#target-id."""

_SM = re.compile(r"sm_?(\d{1,2})(\d)[af]?")
_GFX = re.compile(r"(gfx(\d{1,2})([0-9a-f])[0-9a-f])((?::\w+[+-])*)")


def torch_answers(target: str) -> dict[str, Any]:
    """Predicates of torch, and what they answer on a machine with one ``target``, for a row of ``platforms``.

    ``target``: ``"cpu"``, a capability of NVIDIA's such as ``"sm90"``, or a target of AMD's such as ``"gfx1100"``. All
    of them have the same predicates: ``torch.version`` and what ``torch.cuda`` says about its device. There,
    ``gcnArchName`` has the features of a real card (``gfx942:sramecc+:xnack-``). Override one by writing it behind:
    ``{**torch_answers("sm90"), "torch.version:cuda": "12.4"}``.

    Raises ``LawsError`` for another target.
    """
    if target == "cpu":
        no_device = partial(_no_device, target)
        return _answers(None, None, 0, no_device, no_device, no_device, no_device)
    if found := _SM.fullmatch(target):
        capability, name, warp, arch = (int(found[1]), int(found[2])), f"NVIDIA {target}", 32, None
    elif found := _GFX.fullmatch(target):
        features = found[4] or (":sramecc+:xnack-" if found[1] in WITH_FEATURES else "")
        capability, name, arch = (int(found[2]), int(found[3], 16)), f"AMD {found[1]}", found[1] + features
        warp = 64 if capability[0] == 9 else 32
    else:
        raise LawsError(
            f"{target!r} is no target", "argument of torch_answers", 'give "cpu", "sm90", "gfx1100" or such'
        )
    properties = SimpleNamespace(name=name, major=capability[0], minor=capability[1], warp_size=warp)
    if arch is not None:
        properties.gcnArchName = arch
    return _answers(None if arch else CUDA, HIP if arch else None, 1, 0, capability, name, properties)


def _answers(
    cuda: Any, hip: Any, count: int, current: Any, capability: Any, name: Any, properties: Any
) -> dict[str, Any]:
    return {
        "torch.version:cuda": cuda,
        "torch.version:hip": hip,
        "torch.cuda:is_available": count > 0,
        "torch.cuda:device_count": count,
        "torch.cuda:current_device": current,
        "torch.cuda:get_device_capability": capability,
        "torch.cuda:get_device_name": name,
        "torch.cuda:get_device_properties": properties,
    }


def _no_device(target: str, *_: object, **__: object) -> None:
    raise RuntimeError(f"Torch not compiled with CUDA enabled (simulated: {target})")
