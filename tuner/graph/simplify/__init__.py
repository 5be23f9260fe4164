"""Simplification of a Relax graph: more of it fuses afterwards, and equal computations become equal workloads.

* Operators that do nothing are removed: a reshape to the same shape, a broadcast or cast to the same shape or type, an
  identity permutation, adding a constant zero, multiplying by a constant one. Reshapes of reshapes become one reshape,
  permutations of permutations one permutation, and a chain of both that moves no element becomes a reshape
  (tuner/graph/reshape_transpose.py).
* Leading unit dimensions are removed: with r = reshape to [1, ..., 1, *shape], f(r(x)) becomes r(f(x)) for
  element-wise f, softmax, norms, reductions, concatenations and permutations that leave those dimensions, and products
  of such tensors lose them. A residual stream of [1, 128, 768] around products of [128, 768] then is two-dimensional
  throughout, and what follows a product fuses into it.
* A reshape behind a product is moved behind the product's element-wise epilogue: PyTorch reshapes the tensor of a dense
  layer to a matrix and back around the product; now it stays a matrix until another operator needs its shape.
* Element-wise operators on operands that are all permuted in the same way are computed before the permutation: a residual
  stream that PyTorch keeps in NCHW between dense layers over channels stays in the layout of those layers.
* A product whose operands had images and heads merged into one batch dimension gets both dimensions as batch.
* `where` with a constant condition becomes the branch that it selects.
* Of the operands of a sum or a multiplication, the one that is broadcast comes second: bias + x becomes x + bias.
* Zero padding before a convolution is folded into the convolution. clip becomes min and max, through which ConvertLayout
  passes layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import op_name
from tuner.graph.epilogue import BINARY, UNARY
from tuner.graph.simplify.dimensions import DimensionRules
from tuner.graph.simplify.elementwise import ElementwiseRules
from tuner.tvm_compat import mutator, with_function


def simplify(mod: Any) -> Any:
    """The module with main simplified. Bindings must be canonical. Outputs do not change where indices are within bounds."""
    return with_function(mod, "main", _Simplify(mod).visit_expr(mod["main"]))


class _Rules(ElementwiseRules, DimensionRules):
    def rule(self, call: Any) -> Any:
        rule = _RULES.get(op_name(call))
        return None if rule is None else rule(self, call)


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(UNARY, _Rules.unary),
    **dict.fromkeys(BINARY, _Rules.binary),
    **dict.fromkeys(("relax.max", "relax.mean", "relax.min", "relax.sum"), _Rules.reduction),
    "relax.broadcast_to": _Rules.broadcast,
    "relax.clip": _Rules.clip,
    "relax.concat": _Rules.concatenate,
    "relax.expand_dims": _Rules.as_reshape,
    "relax.flatten": _Rules.as_reshape,
    "relax.matmul": _Rules.matmul,
    "relax.nn.conv1d": _Rules.conv1d,
    "relax.nn.conv2d": _Rules.conv2d,
    "relax.nn.conv3d": _Rules.conv3d,
    "relax.nn.layer_norm": _Rules.layer_norm,
    "relax.nn.log_softmax": _Rules.softmax,
    "relax.nn.softmax": _Rules.softmax,
    "relax.permute_dims": _Rules.permute,
    "relax.reshape": _Rules.reshape,
    "relax.squeeze": _Rules.as_reshape,
    "relax.where": _Rules.where,
}

_Simplify = mutator(_Rules)
