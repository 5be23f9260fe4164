"""Recurrent layers as frontends meet them, in Relax: one product for what all steps read, then the layer's own function.

Static shapes and the types of DTYPES (tuner/schedule/recurrence.py); everything else is written out step by step by whoever
reads the model. The product and its biases are rounded to the layer's type, like the states; a step computes in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tuner.schedule.recurrence import GATES, Recurrence, workload
from tuner.tvm_compat import relax


class States(NamedTuple):
    """What a layer gives; h and c [N, H] are of the step that was computed last, c is None but for an LSTM."""

    y: Any
    """Every step's state, [T, N, H]."""
    h: Any
    c: Any


def recurrent_layer(
    builder: Any,
    cell: str,
    x: Any,
    w_input: Any,
    w_state: Any,
    b_input: Any,
    b_state: Any,
    h: Any,
    c: Any = None,
    *,
    backward: bool = False,
) -> States:
    """A layer in one direction, emitted into a block builder: x [T, N, I], weights [G * H, I] and [G * H, H], biases
    [G * H] or None, first states h and (LSTM) c [N, H]. `cell` is a key of GATES, the gates are in PyTorch's order.
    """
    emit, op = builder.emit, relax.op
    steps, rows, width = (int(extent) for extent in x.ty.shape)
    units = int(h.ty.shape[1])
    dtype = str(x.ty.dtype)
    layer = Recurrence(cell=cell, steps=steps, rows=rows, units=units, backward=backward, dtype=dtype)
    matrix = emit(op.reshape(x, [steps * rows, width]))
    products = emit(op.matmul(matrix, emit(op.permute_dims(w_input, [1, 0]))))
    inside = None
    if cell == "gru":
        b_state = b_state if b_state is not None else relax.op.zeros([3 * units], dtype)
        b_state = emit(b_state)
        outer = emit(op.strided_slice(b_state, [0], [0], [2 * units]))
        inside = emit(op.strided_slice(b_state, [0], [2 * units], [3 * units]))
        b_state = emit(op.concat([outer, emit(op.zeros([units], dtype))], 0))
    for bias in (b_input, b_state):
        products = products if bias is None else emit(op.add(products, bias))
    products = emit(op.reshape(products, [steps, rows, GATES[cell] * units]))
    given = [products, emit(op.permute_dims(w_state, [1, 0])), inside, h, c if cell == "lstm" else None]
    shapes = [(steps, rows, units), (rows, units)] if cell == "lstm" else [(steps, rows, units)]
    types = [relax.TensorType(shape, dtype) for shape in shapes]
    function = builder.add_func(workload(layer), f"{cell}_layer")
    found = emit(
        relax.call_tir(function, [one for one in given if one is not None], types if len(types) > 1 else types[0])
    )
    y, last = (emit(relax.TupleGetItem(found, at)) for at in (0, 1)) if cell == "lstm" else (found, None)
    end = 0 if backward else steps - 1
    final = emit(op.strided_slice(y, [0], [end], [end + 1]))
    return States(y=y, h=emit(op.reshape(final, [rows, units])), c=last)
