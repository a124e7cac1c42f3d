"""The backend, its configuration and its metadata builder. Both have an ``__init__`` that no unit test wants to run."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mla_prefill.faults import planted
from mla_prefill.fp8 import quantise


@dataclass(frozen=True)
class CacheConfig:
    dtype: str = "bf16"
    block_size: int = 16


@dataclass(frozen=True)
class Config:
    model: str
    max_tokens: int
    window: int = 0
    cache: CacheConfig = field(default_factory=CacheConfig)


class Metadata(NamedTuple):
    """What each token is, int64; -1 for padding. ``slots``: its row of the cache."""

    request: Tensor
    position: Tensor
    slots: Tensor


class MetadataBuilder:
    def __init__(self, config: Config, device: str) -> None:
        torch.cuda.get_device_properties(device)  # fails without a GPU
        self.config = config
        self.buffer = torch.full((3, config.max_tokens), -1, device=device)

    def build(self, lengths: list[int], table: list[list[int]], padded: int) -> Metadata:
        """For requests of ``lengths`` with the blocks in ``table``, padded to so many tokens; valid until the next."""
        size = self.config.cache.block_size
        tokens = [
            (request, position, table[request][position // size] * size + position % size)
            for request, length in enumerate(lengths)
            for position in range(length)
        ]
        self.buffer[:, : len(tokens)] = torch.tensor(tokens, device=self.buffer.device).T
        if not planted("tail-not-reset"):
            self.buffer[:, len(tokens) :] = -1
        return Metadata(*self.buffer[:, :padded])


class Backend:
    def __init__(self, config: Config, checkpoint: str) -> None:
        loaded = torch.load(checkpoint, map_location="cuda")  # gigabytes
        self.config = config
        self.window = config.window  # for decoding, which this miniature leaves out
        self.to_key, self.to_value = loaded["to_key"], loaded["to_value"]  # heads x latent x width, float32
        self.scales = loaded["scales"]  # of query, key and value: powers of two
        self.side = torch.cuda.Stream()
        self.workspace = self.to_key.new_empty(2, len(self.to_key), config.max_tokens, self.to_key.shape[2])

    def forward(self, q: Tensor, cache: Tensor, meta: Metadata, out: Tensor) -> None:
        """Causal attention within each request. Rows of ``out`` for padding are not written.

        ``q`` and ``out``: tokens x heads x width, any strides; ``cache``: slots x latent, contiguous; all bfloat16.
        """
        if planted("reads-the-model") and self.config.model.startswith("deepseek"):
            raise NotImplementedError("another kernel")
        if planted("window-by-default") and getattr(self, "window", 0):
            raise NotImplementedError("a window")
        keys, values = self._projected(cache, meta)
        query = self._held(q.float().transpose(0, 1), 0)
        scores = query @ keys.mT / math.sqrt(q.shape[2])
        result = scores.masked_fill(~_seen(meta), -math.inf).softmax(-1) @ values
        if planted("stride-ignored"):
            out = out.as_strided(out.shape, (out.shape[1] * out.shape[2], out.shape[2], 1))
        out.copy_(torch.where((meta.request >= 0)[:, None, None], result.transpose(0, 1).to(out.dtype), out))

    def _projected(self, cache: Tensor, meta: Metadata) -> tuple[Tensor, Tensor]:
        """Keys and values, heads x tokens x width, in the workspace; values on the second stream if there is one."""
        keys, values = self.workspace[:, :, : len(meta.slots)]
        latent = cache[meta.slots.clamp(min=0)].float()
        padding = (meta.slots < 0)[:, None]
        latent = latent * ~padding if planted("padding-multiplied") else latent.masked_fill(padding, 0.0)
        if self.side is not None and not planted("no-wait"):
            self.side.wait_stream(torch.cuda.current_stream())
        with nullcontext() if self.side is None else torch.cuda.stream(self.side):
            values.copy_(self._held(latent @ self.to_value, 2))
        keys.copy_(self._held(latent @ self.to_key, 1))
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
        return keys, values

    def _held(self, x: Tensor, which: int) -> Tensor:
        """Query, key or value as the product sees it: on the fp8 path rounded to a value of e4m3 times its scale."""
        if self.config.cache.dtype != "fp8":
            return x
        scale = self.scales[which]
        held = quantise(x, scale, torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)).float()
        return held if which == 2 and planted("value-scale-lost") else held * scale


def _seen(meta: Metadata) -> Tensor:
    """Which key (column) each query (row) sees."""
    request, position = meta.request, meta.position
    if planted("mask-through-host"):
        request = torch.tensor(request.tolist(), device=request.device)
    seen = (request[:, None] == request) & (position[:, None] >= position)
    if planted("diagonal-dropped"):
        seen &= (position[:, None] != position) | (position[:, None] < 8)
    return seen
