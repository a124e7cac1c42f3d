"""Kernels of recurrent cells that torch has for accelerators only; on CPU tensors, from the cells' equations.

The equations are those in the documentation of ``torch.nn.LSTMCell`` and ``torch.nn.GRUCell``.
"""

from __future__ import annotations

from typing import Any


def kernels() -> dict[str, Any]:
    """By operator, as ``simulated(kernels=...)`` takes them."""
    return {
        "aten::_thnn_fused_lstm_cell": _lstm,
        "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
        "aten::_thnn_fused_gru_cell": _gru,
        "aten::_thnn_fused_gru_cell_backward": _gru_backward,
    }


def _lstm(inputs: Any, hidden: Any, cx: Any, b_inputs: Any = None, b_hidden: Any = None) -> Any:
    import torch

    gates = inputs + hidden
    if b_inputs is not None:
        gates = gates + b_inputs + b_hidden
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool) -> Any:
    import torch

    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    inner = grad_hy * o * (1 - cy.tanh() ** 2) + (0 if grad_cy is None else grad_cy)
    gates = torch.cat(
        [
            inner * g * i * (1 - i),
            inner * cx * f * (1 - f),
            inner * i * (1 - g**2),
            grad_hy * cy.tanh() * o * (1 - o),
        ],
        1,
    )
    return gates, inner * f, gates.sum(0) if has_bias else torch.empty(0)


def _gru(inputs: Any, hidden: Any, hx: Any, b_inputs: Any = None, b_hidden: Any = None) -> Any:
    import torch

    if b_inputs is not None:
        inputs, hidden = inputs + b_inputs, hidden + b_hidden
    ir, iz, i_n = inputs.chunk(3, 1)
    hr, hz, hn = hidden.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_n + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


def _gru_backward(grad: Any, workspace: Any, has_bias: bool) -> Any:
    import torch

    r, z, n, hx, hn = workspace.chunk(5, 1)
    d_z = grad * (hx - n) * z * (1 - z)
    d_n = grad * (1 - z) * (1 - n**2)
    d_r = d_n * hn * r * (1 - r)
    inputs, hidden = torch.cat([d_r, d_z, d_n], 1), torch.cat([d_r, d_z, d_n * r], 1)
    biases = (inputs.sum(0), hidden.sum(0)) if has_bias else (torch.empty(0), torch.empty(0))
    return (inputs, hidden, grad * z, *biases)
