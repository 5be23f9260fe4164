"""Products with weights that were repeated for every image of a batch, as products of matrices with the weights themselves.

PyTorch takes a dense layer apart so where its input is no contiguous tensor, as in nn.MultiheadAttention: [batch, m, k]
times [k, n] repeated `batch` times. With the rows of all images as one matrix the weights are read once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, reshaped, static_shape
from tuner.tvm_compat import relax


def shared_weights(mod: Any) -> Any:
    """The module with such products of main replaced. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for _, call in def_use.calls("relax.matmul"):
        repeated = def_use.definition(call.args[1])
        shapes = [static_shape(each) for each in (call, call.args[0], repeated)]
        if op_name(repeated) != "relax.broadcast_to" or None in shapes or not def_use.from_weights(call.args[1]):
            continue
        source = static_shape(repeated.args[0]) or []
        batches = [(shape or [])[:-2] for shape in shapes]
        if (
            source[-2:] == (shapes[2] or [])[-2:]
            and all(extent == 1 for extent in source[:-2])
            and batches[0] == batches[1]
        ):
            replacements[call] = _of_matrices(call, repeated.args[0])
    return replace_calls(mod, replacements)


def _of_matrices(call: Any, weight: Any) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        *_, k, n = static_shape(weight) or []
        left = builder.emit(reshaped(current(call.args[0]), [-1, k]))
        y = relax.op.matmul(left, builder.emit(reshaped(current(weight), [k, n])), out_dtype=call.attrs.out_dtype)
        return relax.op.reshape(builder.emit(y), static_shape(call))

    return replacement
