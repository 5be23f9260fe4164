"""Float32 products and convolutions that may be computed by TF32, marked for whoever schedules and checks them.

TF32 has the exponent of float32 and 10 bits of fraction: tensor cores multiply such operands and sum in float32. A tensor
function that holds such a contraction in float32 has the attribute `precision`, so that its digest differs from that of the
strict one; any other function, and every function for a target without such units, stays as it is.
"""

from __future__ import annotations

from typing import Any

from pitchpipe.wire.precision import CONVOLUTIONS, PRODUCTS
from tuner.tvm_compat import ir, structural_walk, tirx, tvm, with_function

TF32 = "tf32"
"""Attribute of a model's main: which of CONTRACTIONS may be TF32, separated by blanks. Value of PRECISION."""
PRECISION = "precision"
"""Attribute of a tensor function."""


def take_precision(mod: Any) -> tuple[Any, frozenset[str]]:
    """The module without main's attribute TF32, and what that said."""
    main = mod["main"]
    told = str((main.attrs or {}).get(TF32, ""))
    if not told:
        return mod, frozenset()
    return with_function(mod, "main", main.without_attr(TF32)), frozenset(told.split())


def marked(name: str, function: Any, tf32: frozenset[str]) -> Any:
    """The tensor function called `name`, after the operators that it was made of, with PRECISION where it is to have it."""
    wanted = CONVOLUTIONS if "conv" in name else PRODUCTS
    return function.with_attr(PRECISION, TF32) if wanted in tf32 and multiplies_float32(function) else function


def multiplies_tf32(function: Any) -> bool:
    """Whether the tensor function is marked."""
    return bool((function.attrs or {}).get(PRECISION) == TF32)


def multiplies_float32(function: Any) -> bool:
    """Whether a reduction of the tensor function sums products of two tensors of float32."""
    found = False

    def visit(block: Any) -> None:
        nonlocal found
        if found or not any(each.iter_type == each.CommReduce for each in block.iter_vars):
            return

        def visit_product(product: Any) -> None:
            nonlocal found
            left, right = (_loaded(each) for each in (product.a, product.b))
            found = found or (left is not None and right is not None and not left.same_as(right))

        structural_walk(block.body, [(tirx.Mul, visit_product)])

    structural_walk(function.body, [(tvm.s_tir.SBlock, visit)])
    return found


def _loaded(expr: Any) -> Any:
    """The buffer of float32 that an expression is read from; None for any other expression."""
    return expr.source if isinstance(expr, ir.TensorLoad) and str(expr.ty.dtype) == "float32" else None
