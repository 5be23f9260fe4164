"""Grouped products: rows sorted by group, each multiplied by its group's matrix, as mixtures of experts compute them."""

from __future__ import annotations

from typing import Any

from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, shape_of, wide
from tuner.tvm_compat import te, tirx


@converter("transformers::grouped_mm_fallback.default")
def grouped_mm_fallback(to: Emitter, x: Any, weight: Any, offs: Any) -> Any:
    return grouped_mm(to, x, weight, offs)


@converter("_grouped_mm.default")
def grouped_mm(to: Emitter, x: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """x [rows, k] times mat2 [groups, k, columns]: rows offs[g - 1] to offs[g] with mat2[g]. Rows after the last are zero.

    The forms in which PyTorch groups columns or sums, or multiplies batches, are refused.
    """
    del out_dtype  # is what the node gives
    if len(shape_of(x)) != 2 or len(shape_of(mat2)) != 3 or offs is None or bias is not None:
        raise NotImplementedError("groups of anything but rows")
    (rows, depth), (groups, _, columns) = shape_of(x), shape_of(mat2)
    index, dtype = dtype_of(offs), wide(to.dtype)

    def group(given: Any, at: Any) -> Any:
        g = te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", groups)), "g")
        return te.sum((given[0](g) <= at[0].astype(index)).astype("int64"), axis=g)

    def product(given: Any, at: Any) -> Any:
        left, right, group_of = given
        k = te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", depth)), "k")
        g = tirx.min(group_of(at[0]), tirx.IntImm("int64", groups - 1))
        return te.sum(left(at[0], k).astype(dtype) * right(g, k, at[1]).astype(dtype), axis=k)

    def kept(given: Any, at: Any) -> Any:
        inside = given[1](at[0]) < tirx.IntImm("int64", groups)
        return tirx.if_then_else(inside, given[0](*at), tirx.const(0, dtype)).astype(to.dtype)

    group_of = to.compute("group", group, [rows], offs)
    found = to.compute("grouped_product", product, [rows, columns], x, mat2, group_of)
    return to.compute("grouped_rows", kept, [rows, columns], found, group_of)
