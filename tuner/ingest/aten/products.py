"""Matrix products and convolutions. Those of half precision are summed in float32 (tuner/graph/half_precision.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, is_float, shape_of, wide
from tuner.ingest.aten.reductions import sum_over
from tuner.tvm_compat import relax, te, tirx

op = relax.op


def matmul(to: Emitter, x: Any, y: Any) -> Any:
    """A product in the operands' type, with sums of half precision and of small whole numbers in 32 bits."""
    return to.emit(op.matmul(x, y, out_dtype=dtype_of(x)))


@converter("mm.default", "bmm.default", "matmul.default")
def mm(to: Emitter, x: Any, mat2: Any = None, other: Any = None) -> Any:
    return matmul(to, x, other if mat2 is None else mat2)


@converter("mv.default")
def mv(to: Emitter, x: Any, vec: Any) -> Any:
    return matmul(to, x, vec)


@converter("dot.default", "vdot.default")
def dot(to: Emitter, x: Any, tensor: Any = None, other: Any = None) -> Any:
    y = other if tensor is None else tensor
    (size,) = shape_of(x)
    return to.reshape(matmul(to, to.reshape(x, [1, size]), to.reshape(y, [size, 1])), [])


@converter("addmm.default", "baddbmm.default", "addmv.default")
def addmm(to: Emitter, x: Any, beta: Any = 1, alpha: Any = 1, **operands: Any) -> Any:
    """beta x + alpha (left right); what is multiplied by zero is not read, though it be infinite."""
    left, right = operands.values()
    if to.dtype == "bool":
        raise NotImplementedError("booleans")
    dtype = to.dtype if alpha == beta == 1 else wide(to.dtype)
    x = to.cast(x, dtype)
    found = to.cast(matmul(to, left, right), dtype) if alpha != 0 else None
    if found is not None and alpha != 1:
        found = to.emit(op.multiply(found, to.const(alpha, dtype)))
    if beta != 0:
        scaled = x if beta == 1 else to.emit(op.multiply(x, to.const(beta, dtype)))
        if found is None:
            found = to.broadcast(scaled, to.shape)
        elif "bmm" in str(to.node.target):
            found = to.emit(op.add(found, scaled))
        else:
            found = to.emit(op.add(scaled, found))
    if found is None:
        return to.emit(op.zeros(relax.ShapeExpr(to.shape), to.dtype))
    return to.cast(found, to.dtype)


PLAIN = {3: (op.nn.conv1d, "NCW", "OIW"), 4: (op.nn.conv2d, "NCHW", "OIHW"), 5: (op.nn.conv3d, "NCDHW", "OIDHW")}
TRANSPOSED = {3: (op.nn.conv1d_transpose, "NCW", "IOW"), 4: (op.nn.conv2d_transpose, "NCHW", "IOHW")}


@converter("convolution.default")
def convolution(
    to: Emitter,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    rank = len(shape_of(x))
    dtype = to.dtype
    if not transposed and not is_float(dtype):
        found = _plain(to, x, weight, stride, padding, dilation, groups)
    elif transposed and not _has_transposed(rank, dtype, stride, output_padding):
        if is_float(dtype) and groups == 1 and _are_apart(shape_of(weight), stride, padding, dilation, output_padding):
            found = _side_by_side(to, x, weight)
        else:
            x, weight = to.cast(x, wide(dtype)), to.cast(weight, wide(dtype))
            found = to.cast(_transposed(to, x, weight, stride, padding, dilation, groups), dtype)
    else:
        make, layout, kernel_layout = (TRANSPOSED if transposed else PLAIN)[rank]
        more = {"output_padding": list(output_padding)} if transposed else {}
        found = to.emit(
            make(
                x,
                weight,
                strides=list(stride),
                padding=list(padding),
                dilation=list(dilation),
                groups=groups,
                data_layout=layout,
                kernel_layout=kernel_layout,
                out_dtype=dtype,
                **more,
            )
        )
    if bias is not None:
        channels = op.reshape(bias, [1, -1, *[1] * (rank - 2)])
        found = to.emit(op.add(found, channels))
    return found


def _plain(
    to: Emitter,
    x: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Any:
    """Of whole numbers, which Relax's convolutions are not made for; weight [o, c / groups, ...]."""
    have, kernel = shape_of(x), shape_of(weight)
    per_group = kernel[0] // groups
    dtype = dtype_of(x)

    def body(given: Any, at: Any) -> Any:
        group = tirx.floordiv(at[1], per_group)

        def term(c: Any, *taps: Any) -> Any:
            places = [at[2 + i] * stride[i] + tap * dilation[i] - padding[i] for i, tap in enumerate(taps)]
            pixel, inside = _pixel(places, have[2:])
            product = given[0](at[0], group * kernel[1] + c, *pixel) * given[1](at[1], c, *taps)
            return tirx.if_then_else(tirx.all(*inside), product, tirx.const(0, dtype))

        return sum_over(kernel[1:], term)

    return to.compute("conv", body, to.shape, x, weight)


def _pixel(places: Sequence[Any], extents: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """Indices within the extents, and the conditions under which they are the places that were asked for."""
    zero = tirx.const(0, "int64")
    index = [tirx.max(tirx.min(one, tirx.const(n - 1, "int64")), zero) for one, n in zip(places, extents, strict=True)]
    inside = [test for one, n in zip(places, extents, strict=True) for test in (one >= 0, one < n)]
    return index, inside


def _has_transposed(rank: int, dtype: str, stride: Sequence[int], output_padding: Sequence[int]) -> bool:
    """Whether Relax has such a transposed convolution: its output padding is less than the stride."""
    return (
        is_float(dtype)
        and rank in TRANSPOSED
        and all(more < step for more, step in zip(output_padding, stride, strict=True))
    )


def _are_apart(
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> bool:
    """Whether windows of three dimensions lie one beside the other, as in the decoders of U-Nets of volumes."""
    plain = set(padding) == {0} == set(output_padding) and set(dilation) == {1}
    return len(kernel) == 5 and plain and list(kernel[2:]) == list(stride)


def _side_by_side(to: Emitter, x: Any, weight: Any) -> Any:
    """Each place of the window is a convolution of one tap, and its results are moved there; weight [c, o, ...]."""
    images, inputs, *size = shape_of(x)
    _, outputs, *window = shape_of(weight)
    taps = to.reshape(to.permute(weight, [2, 3, 4, 1, 0]), [math.prod(window) * outputs, inputs, 1, 1, 1])
    y = to.emit(op.nn.conv3d(x, taps, data_layout="NCDHW", kernel_layout="OIDHW", out_dtype=to.dtype))
    y = to.permute(to.reshape(y, [images, *window, outputs, *size]), [0, 4, 5, 1, 6, 2, 7, 3])
    return to.reshape(y, to.shape)


def _transposed(
    to: Emitter,
    x: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Any:
    """The sum over taps and channels of the inputs that reach an output; weight [c, o / groups, ...]."""
    have, kernel = shape_of(x), shape_of(weight)
    channels = have[1] // groups
    per_group = kernel[1]
    dtype = dtype_of(x)

    def body(given: Any, at: Any) -> Any:
        image, out = at[0], at[1]
        group = tirx.floordiv(out, per_group)

        def term(c: Any, *taps: Any) -> Any:
            places = [at[2 + i] + padding[i] - tap * dilation[i] for i, tap in enumerate(taps)]
            pixel, inside = _pixel([tirx.floordiv(*each) for each in zip(places, stride, strict=True)], have[2:])
            reached = [tirx.floormod(*each) == 0 for each in zip(places, stride, strict=True)]
            inside = [test for each in zip(reached, inside[::2], inside[1::2], strict=True) for test in each]
            channel = group * channels + c
            product = given[0](image, channel, *pixel) * given[1](channel, tirx.floormod(out, per_group), *taps)
            return tirx.if_then_else(tirx.all(*inside), product, tirx.const(0, dtype))

        return sum_over([channels, *kernel[2:]], term)

    return to.compute("conv_transpose", body, to.shape, x, weight)


@converter("_cdist_forward.default")
def cdist(to: Emitter, x1: Any, x2: Any, p: float, **_: Any) -> Any:
    """[..., p, m], [..., r, m] -> the distances of all pairs of rows, [..., p, r]."""
    dtype = wide(to.dtype)
    batch = to.shape[:-2]
    first, second = (to.broadcast(to.cast(one, dtype), [*batch, *shape_of(one)[-2:]]) for one in (x1, x2))
    return to.cast(
        _distances(to, first, second, p, dtype, to.shape, lambda at: (at[:-1], (*at[:-2], at[-1]))), to.dtype
    )


@converter("_pdist_forward.default")
def pdist(to: Emitter, x: Any, p: float = 2.0) -> Any:
    """The distances of rows i < j, in the order of (i, j)."""
    import numpy as np

    dtype = wide(to.dtype)
    count = shape_of(x)[0]
    rows, columns = (relax.const(each.astype(np.int64)) for each in np.triu_indices(count, 1))
    x = to.cast(x, dtype)
    first, second = (to.emit(op.take(x, each, axis=0)) for each in (rows, columns))
    return to.cast(_distances(to, first, second, p, dtype, to.shape, lambda at: (at, at)), to.dtype)


def _distances(to: Emitter, first: Any, second: Any, p: float, dtype: str, shape: Sequence[int], rows: Any) -> Any:
    size = shape_of(first)[-1]

    def body(given: Any, at: Any) -> Any:
        left, right = rows(at)
        k = te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", size)), "k")
        gap = tirx.abs(given[0](*left, k.var) - given[1](*right, k.var))
        if p == 0:
            return te.sum((gap != tirx.const(0, dtype)).astype(dtype), axis=k)
        if p == float("inf"):
            return te.max(gap, axis=k)
        return te.sum(gap if p == 1 else gap * gap if p == 2 else tirx.pow(gap, tirx.const(p, dtype)), axis=k)

    found = to.compute("distances", body, shape, first, second)
    if p in (0, 1, float("inf")):
        return found
    if p == 2:
        return to.emit(op.sqrt(found))
    return to.emit(op.power(found, to.const(1 / p, dtype)))
