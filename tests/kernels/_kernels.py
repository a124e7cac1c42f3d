"""Four kernels in torch on the CPU, each with its exact reference and with the faults that a comparison must catch.

A kernel works in tiles and in low precision, as one for a GPU would; ``fault`` names a mistake in it. Attention comes
with fp8 and with bf16 operands, so there are five subjects. ``tests/kernels`` and ``benchmarks/tolerances.py`` share
this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

TILE = 16
E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Subject:
    """``baseline`` is the same in the kernel's precision, without tiles: what a ratio rule compares with."""

    name: str
    kernel: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    baseline: Callable[..., Tensor]
    make_inputs: Callable[[tuple[int, ...], int], Inputs]
    shapes: tuple[tuple[int, ...], ...]
    faults: tuple[str, ...]

    def mutants(self) -> dict[str, Callable[..., Tensor]]:
        return {fault: partial(self.kernel, fault=fault) for fault in self.faults}


# ---------------------------------------------------------------- attention


def attention_inputs(shape: tuple[int, ...], seed: int, *, dtype: torch.dtype) -> Inputs:
    """q, k, v of (heads, tokens, width) in ``dtype``, and one scale for each of them in float32."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.tensor([1.0, 1.0, 1.0] if dtype == BF16 else [0.5, 0.25, 2.0])
    made = [torch.randn(shape, generator=generator) for _ in range(3)]
    return (*((one / scale).to(dtype) for one, scale in zip(made, scales, strict=True)), scales)


def attention_reference(q: Tensor, k: Tensor, v: Tensor, scales: Tensor) -> Tensor:
    """Causal attention in float64, of the same operands."""
    return plain_attention(*(one.double() * scale for one, scale in zip((q, k, v), scales.double(), strict=True)))


def attention_baseline(q: Tensor, k: Tensor, v: Tensor, scales: Tensor) -> Tensor:
    q8, k8, v8 = (one.float() * scale for one, scale in zip((q, k, v), scales, strict=True))
    return plain_attention(q8, k8, v8, to=q.dtype).to(BF16)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, to: torch.dtype | None = None) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    return (weights.to(to).to(v.dtype) if to else weights) @ v


def attention(q: Tensor, k: Tensor, v: Tensor, scales: Tensor, fault: str = "") -> Tensor:
    """Online softmax over tiles of keys; the weights are cast to the operands' dtype before the second product."""
    heads, tokens, width = q.shape
    used = width // 2 if fault == "half the reduction" else width
    factor = float(scales[0] * scales[1]) / math.sqrt(width)
    top = torch.full((heads, tokens, 1), -1e30)
    total, out = torch.zeros(heads, tokens, 1), torch.zeros(heads, tokens, width)
    row = torch.arange(tokens)[:, None]
    last = tokens - (tokens - 1) % TILE - 1 if fault == "dropped last tile" else tokens
    for start in range(0, last, TILE):
        column = torch.arange(start, min(start + TILE, tokens))
        scores = q[..., :used].float() @ k[:, column, :used].float().mT * factor
        seen = column <= row + 1 if fault == "off by one" else column <= row
        if fault == "dropped diagonal":
            seen &= (column != row) | (row < tokens * 3 // 4)
        scores = scores.masked_fill(~seen, -math.inf)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, shrink = (scores - new).exp(), (top - new).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights.to(q.dtype).float() @ v[:, column].float()
        top = new
    out = (out * scales[2] / total).to(BF16)
    return spoiled(out, fault)


# ---------------------------------------------------------------- GEMM, norm, remap


def gemm_inputs(shape: tuple[int, ...], seed: int) -> Inputs:
    """a of (m, k), b of (k, n) and a bias of (n,), all bf16."""
    m, k, n = shape
    generator = torch.Generator().manual_seed(seed)
    sizes: tuple[tuple[int, ...], ...] = ((m, k), (k, n), (n,))
    return tuple(torch.randn(size, generator=generator).to(BF16) for size in sizes)


def gemm_reference(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return a.double() @ b.double() + bias.double()


def gemm_baseline(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return a @ b + bias


def gemm(a: Tensor, b: Tensor, bias: Tensor, fault: str = "") -> Tensor:
    """Sums tiles of the reduction in float32, rounds once."""
    k = a.shape[1]
    end = {"half the reduction": k // 2, "off by one": k - 1, "dropped last tile": k - (k - 1) % TILE - 1}.get(fault, k)
    out = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, end, TILE):
        stop = min(start + TILE, end)
        out += a[:, start:stop].float() @ b[start:stop].float()
    out = (out + bias.float()).to(BF16)
    if fault == "dropped diagonal":
        out.fill_diagonal_(0)
    return spoiled(out, fault)


def norm_inputs(shape: tuple[int, ...], seed: int) -> Inputs:
    """x of (tokens, width) with rows of very different size, and weights of (width,), bf16."""
    generator = torch.Generator().manual_seed(seed)
    size = 10 ** (4 * torch.rand(shape[0], 1, generator=generator) - 2)
    x = torch.randn(shape, generator=generator) * size
    return x.to(BF16), (1 + 0.2 * torch.randn(shape[1], generator=generator)).to(BF16)


def norm_reference(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()


def norm_baseline(x: Tensor, weight: Tensor) -> Tensor:
    root = (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return (x.float() * root).to(BF16) * weight


def norm(x: Tensor, weight: Tensor, fault: str = "") -> Tensor:
    """RMS norm: squares in float32 tiles, one rounding before the weights and one after."""
    width = x.shape[1]
    last = width - (width - 1) % TILE - 1
    end = {"half the reduction": width // 2, "dropped last tile": last}.get(fault, width)
    total = torch.zeros(x.shape[0], 1)
    for start in range(0, end, TILE):
        total += x[:, start : min(start + TILE, end)].float().square().sum(-1, keepdim=True)
    scaled = (x.float() * (total / width + 1e-6).rsqrt()).to(BF16)
    if fault == "off by one":
        weight = weight.roll(1)
    return spoiled(scaled * weight, fault)


def remap_inputs(shape: tuple[int, ...], seed: int) -> Inputs:
    """Indices of (rows, columns) int32 from -1 to the size of the table, which is one too many; the table, int32."""
    rows, columns, size = shape
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(-1, size + 1, (rows, columns), generator=generator, dtype=torch.int32)
    indices[0, :3] = torch.tensor([-1, size, size - 1])
    return indices, 1 + torch.randperm(size, generator=generator).to(torch.int32)


def remap_reference(indices: Tensor, table: Tensor) -> Tensor:
    listed = [[int(table[i]) if 0 <= i < len(table) else -1 for i in row] for row in indices.tolist()]
    return torch.tensor(listed, dtype=torch.int32)


def remap(indices: Tensor, table: Tensor, fault: str = "") -> Tensor:
    """The table's entry for each index, -1 for an index outside of it."""
    size = len(table)
    inside = indices < size if fault == "off by one" else (indices >= 0) & (indices < size)
    out = torch.where(inside, table[indices.clamp(-size, size - 1)], -1)
    return spoiled(out, fault)


def spoiled(out: Tensor, fault: str) -> Tensor:
    """Faults in what is written, whatever was computed."""
    if fault == "zeros":
        return torch.zeros_like(out)
    if fault == "shuffled rows":
        return out.flip(-2)
    if fault == "unwritten last tile":
        out[..., -TILE:] = 0
    return out


SIX = ("zeros", "shuffled rows", "off by one", "dropped last tile", "dropped diagonal", "half the reduction")
TOKENS = ((4, 48, 32), (2, 64, 32), (3, 90, 16), (2, 128, 64))

SUBJECTS = (
    Subject(
        "attention fp8",
        attention,
        attention_reference,
        attention_baseline,
        partial(attention_inputs, dtype=E4M3),
        TOKENS,
        SIX,
    ),
    Subject(
        "attention bf16",
        attention,
        attention_reference,
        attention_baseline,
        partial(attention_inputs, dtype=BF16),
        TOKENS,
        SIX,
    ),
    Subject(
        "gemm",
        gemm,
        gemm_reference,
        gemm_baseline,
        gemm_inputs,
        ((32, 64, 48), (17, 100, 33), (64, 256, 64), (4, 128, 128)),
        SIX[1:],
    ),
    Subject(
        "norm",
        norm,
        norm_reference,
        norm_baseline,
        norm_inputs,
        ((20, 64), (33, 100), (64, 256), (17, 512)),
        ("shuffled rows", "off by one", "dropped last tile", "half the reduction"),
    ),
    Subject(
        "remap",
        remap,
        remap_reference,
        remap_reference,
        remap_inputs,
        ((17, 31, 16), (8, 64, 100), (33, 65, 255), (20, 16, 1000)),
        ("shuffled rows", "off by one", "unwritten last tile"),
    ),
)
