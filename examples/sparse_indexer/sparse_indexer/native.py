"""The three ops for any machine: slow, and what all others are compared with."""

from __future__ import annotations

from collections.abc import Sequence


def quantize(values: Sequence[float]) -> list[int]:
    """To 8-bit integers, by the largest magnitude."""
    largest = max(map(abs, values), default=0.0) or 1.0
    return [round(127 * value / largest) for value in values]


def logits(query: Sequence[int], keys: Sequence[Sequence[int]]) -> list[int]:
    """Dot products of the query with each key; those below 0 count as 0."""
    return [max(0, sum(a * b for a, b in zip(query, key, strict=True))) for key in keys]


def topk(scores: Sequence[int], k: int) -> list[int]:
    """Indices of the ``k`` largest scores in ascending order, the first of equal ones."""
    return sorted(sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:k])
