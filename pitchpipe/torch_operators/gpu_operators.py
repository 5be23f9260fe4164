"""What PyTorch makes of recurrent cells and grids on GPUs, taken apart. Needs torch.

On a GPU a program is traced into the operators of the kernels that PyTorch would launch, with the results that their
backward reads. Here they become what the same program is on a CPU; results that an inference does not read are empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def lstm_cell(
    input_gates: Any, hidden_gates: Any, cx: Any, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Any, Any, Any]:
    """(the next state, the next cell, what a backward reads) of gates [N, 4 H] in the order input, forget, cell, output."""
    gates = _sum(_sum(input_gates, input_bias) + hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    cell = torch.sigmoid(f) * cx + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell, cx.new_zeros(0)


def gru_cell(
    input_gates: Any, hidden_gates: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Any, Any]:
    """(the next state, what a backward reads) of gates [N, 3 H] in the order reset, update, new."""
    r_in, z_in, n_in = _sum(input_gates, input_bias).chunk(3, 1)
    r_state, z_state, n_state = _sum(hidden_gates, hidden_bias).chunk(3, 1)
    reset, update = torch.sigmoid(r_in + r_state), torch.sigmoid(z_in + z_state)
    new = torch.tanh(n_in + reset * n_state)
    return (hx - new) * update + new, hx.new_zeros(0)


def _sum(gates: Any, bias: Any) -> Any:
    return gates if bias is None else gates + bias


def grid_sampler(x: Any, grid: Any) -> Any:
    """Between the four neighbours of each place, zero outside, -1 and 1 being the middles of the outermost elements."""
    return aten.grid_sampler_2d.default(x, grid, 0, 0, True)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: lstm_cell,
    aten._thnn_fused_gru_cell.default: gru_cell,
    aten.cudnn_grid_sampler.default: grid_sampler,
}
"""By operator, for inferences."""
