"""Rewrites of a Relax graph that frontends leave to do, so that more of it fuses and equal work is equal workloads.

* What does nothing goes: a reshape, broadcast, cast or permutation onto itself, adding a constant zero, times a
  constant one. Reshapes of reshapes and permutations of permutations become one, and a chain of both that moves nothing
  a reshape (tuner/graph/reshape_transpose.py).
* Leading unit dimensions are taken off: with r = reshape to [1, ..., 1, *shape], f(r(x)) becomes r(f(x)) for
  element-wise f, softmax, norms, reductions, concatenations and permutations that leave those dimensions, and products
  of such tensors lose them. A residual stream of [1, 128, 768] around products of [128, 768] then is two-dimensional
  throughout, and what follows a product fuses into it.
* So does any reshape of a product, with what is computed on it element by element: the tensor of a dense layer, which
  PyTorch sees as a matrix while it multiplies, stays one until something else wants its shape.
* Element by element, what is computed of tensors permuted alike is computed before the permutation: a residual stream that
  PyTorch keeps as NCHW between dense layers over channels stays as they have it.
* A product over images and heads that were made one dimension for it is one over both.
* A choice whose condition is a constant is made.
* Of the operands of a sum or a product, one that is broadcast comes second: bias + x is x + bias.
* Zero padding before a convolution moves into the convolution; clip becomes min and max, which layouts pass through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import op_name
from tuner.graph.simplify.dimensions import DimensionRules
from tuner.graph.simplify.elementwise import ElementwiseRules
from tuner.graph.simplify.rewriter import BINARY, UNARY
from tuner.tvm_compat import mutator, with_function


def simplify(mod: Any) -> Any:
    """The module with main rewritten; bindings must be canonical. No output changes for indices that are in bounds."""
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
    "relax.nn.conv2d": _Rules.conv2d,
    "relax.nn.layer_norm": _Rules.layer_norm,
    "relax.nn.log_softmax": _Rules.softmax,
    "relax.nn.softmax": _Rules.softmax,
    "relax.permute_dims": _Rules.permute,
    "relax.reshape": _Rules.reshape,
    "relax.squeeze": _Rules.as_reshape,
    "relax.where": _Rules.where,
}

_Simplify = mutator(_Rules)
