"""The converter of `pitchpipe::recurrent_layer` (pitchpipe/torch_operators/recurrent.py)."""

from __future__ import annotations

from typing import Any

from tuner.ingest.aten.emitter import Emitter, converter
from tuner.ingest.recurrent import recurrent_layer


@converter("pitchpipe::recurrent_layer.default")
def recurrent(
    to: Emitter,
    x: Any,
    w_input: Any,
    w_state: Any,
    b_input: Any,
    b_state: Any,
    h: Any,
    c: Any,
    cell: str,
    backward: bool,
) -> Any:
    """(y, h, c); c is as it was given but for an LSTM."""
    found = recurrent_layer(to.builder, cell, x, w_input, w_state, b_input, b_state, h, c, backward=backward)
    return found.y, found.h, c if found.c is None else found.c
