"""Which of the caller's GPUs each worker of a run sees: a part of them, and never one more."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from testkit._text import counted
from testkit.errors import GpusError
from testkit.gpus._devices import CUDA, HIP, ROCR, allowed, origin, visible

AUTO = "auto"
INTEL = "ZE_AFFINITY_MASK"
VARIABLES = {CUDA, HIP, ROCR, INTEL}


@dataclass(frozen=True)
class Chosen:
    """What a run may use. ``devices``: in the caller's order; ``said``: ``(CUDA_VISIBLE_DEVICES=2,3)``, what the
    caller said; ``narrower``: the variable that shows ``devices``, if the caller allows more than them."""

    devices: list[str]
    said: str
    narrower: dict[str, str]


def parse(raw: str, source: str) -> tuple[str, ...]:
    """The entries of a list; none for ``auto``."""
    words = tuple(word.strip() for word in raw.split(","))
    if words == (AUTO,):
        return ()
    if AUTO in words or not all(words):
        raise GpusError(f"{raw!r} is no list of GPUs", source, "give auto, or entries such as 0,1 with commas between")
    if twice := [word for word in words if words.count(word) > 1]:
        raise GpusError(f"GPU {twice[0]} is named twice in {raw}", source, "name each once")
    return words


def choose(wanted: Sequence[str], source: str, environ: Mapping[str, str]) -> Chosen:
    """The devices that ``environ`` allows, or ``wanted`` of them; none where it allows none.

    Raises ``GpusError`` for an entry of ``wanted`` that is not among them.
    """
    devices, said = cards(environ), _said(environ)
    if not wanted or not devices:
        return Chosen(devices, said, {})
    unlisted = said == "on this machine"  # then UUIDs name what is otherwise counted, and allow no more
    chosen = []
    for word in wanted:
        meant = [entry for entry in devices if _same(word, entry)]
        if len(meant) != 1 and not (unlisted and cards({**environ, **shown([word], environ)}) == [word]):
            problem = f"GPU {word} is not one of the allowed {', '.join(devices)} {said}"
            raise GpusError(problem, source, "name GPUs that are allowed, written as they are there, or give auto")
        chosen.append(meant[0] if len(meant) == 1 else word)
    narrower = shown(chosen, environ)
    if cards({**environ, **narrower}) != chosen:
        problem = f"{','.join(wanted)} does not name {counted(len(wanted), 'GPU')} {said}"
        raise GpusError(problem, source, "name each once, all by index or all by UUID")
    return Chosen(chosen, said, narrower)


def _same(word: str, entry: str) -> bool:
    """Whether they name one device. UUIDs may be abbreviated on either side."""
    if word == entry or not (word.startswith("GPU-") and entry.startswith("GPU-")):
        return word == entry
    one, other = word.lower(), entry.lower()
    return one.startswith(other) or other.startswith(one)


def cards(environ: Mapping[str, str]) -> list[str]:
    """As ``allowed``; where it finds none, what ZE_AFFINITY_MASK names. Intel's cards are not counted: all are
    believed, and there is none without it."""
    if devices := allowed(environ):
        return devices
    words = [word.strip() for word in environ.get(INTEL, "").split(",")]
    valid = all(re.fullmatch(r"\d+(\.\d+)*", word) for word in words) and len(set(words)) == len(words)
    return words if valid else []


def shown(devices: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that shows exactly ``devices``, some of ``cards(environ)``."""
    return visible(devices, environ) if allowed(environ) else {INTEL: ",".join(devices)}


def _said(environ: Mapping[str, str]) -> str:
    return f"({INTEL}={environ[INTEL]})" if cards(environ) and not allowed(environ) else origin(environ)


def spread(workers: int, slots: Sequence[str]) -> list[list[str]]:
    """The devices of each worker.

    ``slots`` has each device once or, with room for several workers, more often; its first entries are all of them.
    Fewer workers than devices get neighbours each, as evenly as it goes; others one each, in turn.
    """
    devices = list(dict.fromkeys(slots))
    if not workers:
        return []
    if workers >= len(devices):
        return [[slots[worker % len(slots)]] for worker in range(workers)]
    edges = [worker * len(devices) // workers for worker in range(workers + 1)]
    return [devices[start:end] for start, end in pairwise(edges)]


def beyond(share: Sequence[str], devices: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The rest of ``devices``, from those after ``share`` on, so that neighbours do not all begin with the first."""
    if not allowed(environ):  # Intel's: no marker counts them
        return []
    start = devices.index(share[-1]) + 1
    return [device for device in [*devices[start:], *devices[:start]] if device not in share]


def here(config: Any, specs: Sequence[Any]) -> list[Any]:
    """Those of xdist's ``specs`` whose workers are on this host."""
    from socket import gethostname

    from execnet import XSpec

    proxies: dict[str, Any] = {str(spec.id): spec for spec in map(XSpec, config.getoption("px", None) or ())}
    name = gethostname()
    return [spec for spec in specs if is_here(spec, proxies, {name, name.split(".")[0]})]


def is_here(spec: Any, proxies: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a worker of ``spec`` (an ``execnet.XSpec``) is on this host, which has these ``names``.

    Neither "localhost" nor an address is a name of it: behind them may be a tunnel, a container or a server that
    somebody started with an environment of its own.
    """
    if spec.via:
        return spec.via in proxies and is_here(proxies[spec.via], proxies, names)
    if spec.popen:
        return True
    if spec.socket:
        return spec.socket.rpartition(":")[0] in names
    return bool(spec.ssh) and spec.ssh.split()[-1].rpartition("@")[2] in names


def lines(
    chosen: Chosen, names: Sequence[str], shares: Sequence[Sequence[str]], workers: int, each: str = ""
) -> list[str]:
    """Who got what: how many workers, then a line for each set of devices. ``each``: what is said of each worker."""
    groups: dict[str, list[str]] = {}
    for name, share in zip(names, shares, strict=True):
        groups.setdefault(gpus(share), []).append(name)
    first = f"gpus: {counted(len(names), 'worker')} on {gpus(chosen.devices)} {chosen.said}{each}"
    last = f"gpus: {counted(workers - len(names), 'worker')} elsewhere or with devices of their own: left alone"
    found = [f"gpus: {devices}: {' '.join(members)}" for devices, members in groups.items()]
    return [*([first] if names else []), *found, *([last] if workers > len(names) else [])]


def gpus(devices: Sequence[str]) -> str:
    """``GPU 0``, ``GPUs 0, 1``."""
    return f"{'GPU' if len(devices) == 1 else 'GPUs'} {', '.join(devices)}"
