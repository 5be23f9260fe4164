"""LSTM, GRU and plain RNN of torch as calls of one operator, a layer and a direction each.

torch's decompositions write a layer out step by step; as `pitchpipe::recurrent_layer` it stays whole until it becomes one
tensor function (tuner/schedule/recurrence.py). Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

aten = torch.ops.aten
DTYPES = frozenset((torch.float32, torch.float16, torch.bfloat16))
"""Of layers that stay whole."""


@torch.library.custom_op("pitchpipe::recurrent_layer", mutates_args=())  # type: ignore[untyped-decorator]
def recurrent_layer(
    x: torch.Tensor,
    w_input: torch.Tensor,
    w_state: torch.Tensor,
    b_input: torch.Tensor | None,
    b_state: torch.Tensor | None,
    h: torch.Tensor,
    c: torch.Tensor,
    cell: str,
    backward: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y, h, c): every step's state [T, N, H], and the states [N, H] after the last step that is computed.

    x [T, N, I], weights [G * H, I] and [G * H, H], biases [G * H], h and c [N, H] (c only of an LSTM is read).
    """
    steps = list(x.unbind(0))
    states = []
    for one in reversed(steps) if backward else steps:
        h, c = _cell(cell, one, w_input, w_state, b_input, b_state, h, c)
        states.append(h)
    return torch.stack(states[::-1] if backward else states), h.clone(), c.clone()


def _cell(cell: str, x: Any, w_input: Any, w_state: Any, b_input: Any, b_state: Any, h: Any, c: Any) -> tuple[Any, Any]:
    if cell == "lstm":
        found: tuple[Any, Any] = torch.lstm_cell(x, (h, c), w_input, w_state, b_input, b_state)
        return found
    step = {"gru": torch.gru_cell, "tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}[cell]
    return step(x, h, w_input, w_state, b_input, b_state), c


@recurrent_layer.register_fake  # type: ignore[untyped-decorator]
def _(x: Any, *given: Any) -> tuple[Any, Any, Any]:
    h, c = given[4:6]
    return x.new_empty((x.shape[0], *h.shape)), torch.empty_like(h), torch.empty_like(c)


def whole_layers() -> dict[Any, Callable[..., Any]]:
    """Decompositions of torch's recurrent operators, by operator, into layers that stay whole."""
    cells = {aten.lstm.input: "lstm", aten.gru.input: "gru", aten.rnn_tanh.input: "tanh", aten.rnn_relu.input: "relu"}
    return {operator: partial(_decomposed, operator, cell) for operator, cell in cells.items()}


def _decomposed(
    operator: Any,
    cell: str,
    x: Any,
    states: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """(outputs, last states, and of an LSTM last cell states), as the operator gives them; `states` are h, of an LSTM h
    and c. What is no plain layer of float32 or half precision is written out step by step, as torch decomposes it."""
    h, c = states if cell == "lstm" else (states, states)
    is_plain = h.shape[-1] == c.shape[-1]  # else the states are projected
    if not is_plain or x.dtype not in DTYPES or x.dim() != 3 or (train and dropout):
        written_out = torch._decomp.decomposition_table[operator]
        return written_out(x, states, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    directions = 2 if bidirectional else 1
    found = _layers(cell, x, h, c, params, has_biases, num_layers, directions, batch_first)
    return found if cell == "lstm" else found[:2]


def _layers(
    cell: str,
    x: Any,
    h: Any,
    c: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    directions: int,
    batch_first: bool,
) -> tuple[Any, Any, Any]:
    """Layer after layer, each in its directions; states [layers * directions, N, H]."""
    x = x.transpose(0, 1) if batch_first else x
    each = 4 if has_biases else 2
    last_h, last_c = [], []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            weights = list(params[at * each : (at + 1) * each])
            weights += [None] * (4 - each)
            y, h_last, c_last = recurrent_layer(x, *weights, h[at], c[at], cell, direction == 1)
            outputs.append(y)
            last_h.append(h_last.unsqueeze(0))
            last_c.append(c_last.unsqueeze(0))
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    x = x.transpose(0, 1) if batch_first else x
    return x, torch.cat(last_h), torch.cat(last_c)
