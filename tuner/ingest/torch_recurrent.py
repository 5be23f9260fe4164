"""The converter of `pitchpipe::recurrent_layer` (pitchpipe/torch_recurrent.py), for TVM's importer of torch programs."""

from __future__ import annotations

from typing import Any

from tuner.ingest.recurrent import recurrent_layer
from tuner.tvm_compat import relax


def recurrent(node: Any, importer: Any) -> Any:
    """(y, h, c) as a Relax tuple; c is as it was given but for an LSTM."""
    x, w_input, w_state, b_input, b_state, h, c = (None if one is None else importer.env[one] for one in node.args[:7])
    cell, backward = node.args[7:]
    found = recurrent_layer(
        importer.block_builder, cell, x, w_input, w_state, b_input, b_state, h, c, backward=backward
    )
    return relax.Tuple([found.y, found.h, c if found.c is None else found.c])
