"""Small kernels in torch, healthy and each with one planted fault, for any device: they write into ``out``."""

from __future__ import annotations

from torch import Tensor


def double(x: Tensor, out: Tensor) -> None:
    out.copy_(x * 2)


def one_past_the_end(x: Tensor, out: Tensor) -> None:
    """As if the mask of the last tile were <= for <."""
    double(x, out)
    out.as_strided((out.numel() + 1,), (1,))[-1] = 7


def one_before_the_start(x: Tensor, out: Tensor) -> None:
    double(x, out)
    out.as_strided((1,), (1,), out.storage_offset() - 1)[0] = 7


def one_unwritten(x: Tensor, out: Tensor) -> None:
    out.view(-1)[:-1] = x.view(-1)[:-1] * 2


def changes_its_input(x: Tensor, out: Tensor) -> None:
    double(x, out)
    x.view(-1)[3] += 1


def reads_stale_workspace(x: Tensor, out: Tensor, workspace: Tensor) -> None:
    """Sums through a workspace of which it wrote all but the last element: right as long as a zero is there."""
    workspace[:-1] = x.view(-1)
    out.copy_(x + workspace[-1] * 0)
