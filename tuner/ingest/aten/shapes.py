"""Operators that move elements without looking at them, and those that make tensors of nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, is_float, shape_of
from tuner.ingest.aten.nothing import Nothing
from tuner.tvm_compat import relax, tirx

op = relax.op


@converter("view.default", "reshape.default", "_unsafe_view.default", "_reshape_copy.default", "view_copy.default")
def view(to: Emitter, x: Any, **_: Any) -> Any:
    return to.reshape(x, to.shape)


@converter("resize.default", "resize_as.default")
def resize(to: Emitter, x: Any, **_: Any) -> Any:
    """The first elements, in the order of x's memory, in another shape."""
    count, wanted = math.prod(shape_of(x)), math.prod(to.shape)
    if wanted > count:
        raise NotImplementedError("elements that nobody has written")
    if not to.node.args[0].meta["val"].is_contiguous():
        raise NotImplementedError("memory that is not in the tensor's order")
    flat = to.reshape(x, [count])
    return to.reshape(flat if wanted == count else to.emit(op.strided_slice(flat, [0], [0], [wanted])), to.shape)


@converter("view.dtype")
def view_bits(to: Emitter, x: Any, **_: Any) -> Any:
    if shape_of(x) != to.shape or "bool" in (dtype_of(x), to.dtype):
        raise NotImplementedError("a view in a type of another width")
    target = to.dtype
    return to.compute("bits", lambda given, at: tirx.reinterpret(target, given[0](*at)), to.shape, x)


@converter("permute.default", "permute_copy.default")
def permute(to: Emitter, x: Any, dims: Sequence[int]) -> Any:
    rank = len(to.shape)
    if not rank:
        return x
    return to.emit(op.permute_dims(x, [axis % rank for axis in dims]))


@converter("transpose.int", "transpose_copy.int", "swapaxes.default")
def transpose(to: Emitter, x: Any, dim0: int, dim1: int) -> Any:
    axes = list(range(len(to.shape)))
    if axes:
        axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return to.permute(x, axes)


@converter("t.default", "t_copy.default")
def t(to: Emitter, x: Any) -> Any:
    return to.permute(x, list(range(len(to.shape)))[::-1])


@converter("expand.default", "broadcast_to.default", "expand_copy.default")
def expand(to: Emitter, x: Any, **_: Any) -> Any:
    return to.emit(op.broadcast_to(x, to.shape))


@converter("broadcast_in_dim.default")
def broadcast_in_dim(to: Emitter, x: Any, broadcast_dimensions: Sequence[int], **_: Any) -> Any:
    between = [1] * len(to.shape)
    for at, extent in zip(broadcast_dimensions, shape_of(x), strict=True):
        between[at] = extent
    return to.broadcast(to.reshape(x, between), to.shape)


@converter("unsqueeze.default", "unsqueeze_copy.default")
def unsqueeze(to: Emitter, x: Any, dim: int) -> Any:
    return to.emit(op.expand_dims(x, dim))


@converter("squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_copy.default", "squeeze_copy.dim")
def squeeze(to: Emitter, x: Any, dim: Any = None) -> Any:
    have = shape_of(x)
    axes = list(range(len(have))) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    axes = [axis % len(have) for axis in axes] if have else []
    gone = [axis for axis in axes if have[axis] == 1]
    return to.emit(op.squeeze(x, gone)) if gone else x


@converter("slice.Tensor", "slice_copy.Tensor")
def slice_(to: Emitter, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    start = 0 if start is None else start
    end = sys.maxsize if end is None else end
    if to.shape == shape_of(x) and step == 1 and start == 0 and end >= sys.maxsize:
        return x
    return to.emit(op.strided_slice(x, [dim], [start], [end], [step]))


@converter("select.int", "select_copy.int")
def select(to: Emitter, x: Any, dim: int, index: int) -> Any:
    extent = shape_of(x)[dim]
    return to.emit(op.take(x, relax.const(index + extent if index < 0 else index, "int64"), dim))


@converter("cat.default", "concat.default")
def cat(to: Emitter, tensors: Sequence[Any], dim: int = 0) -> Any:
    parts = [to.cast(one, to.dtype) for one in tensors if not isinstance(one, Nothing)]
    return parts[0] if len(parts) == 1 else to.emit(op.concat(parts, axis=dim))


@converter("stack.default")
def stack(to: Emitter, tensors: Sequence[Any], dim: int = 0) -> Any:
    dim %= len(to.shape)
    return to.emit(op.concat([to.emit(op.expand_dims(to.cast(one, to.dtype), dim)) for one in tensors], axis=dim))


@converter("split.Tensor", "split_with_sizes.default", "split_copy.Tensor", "split_with_sizes_copy.default")
@converter("unsafe_split.Tensor", "unsafe_split_with_sizes.default", "chunk.default", "unsafe_chunk.default")
def split(to: Emitter, x: Any, dim: int = 0, **_: Any) -> Any:
    sizes = [int(one.shape[dim]) for one in to.results]
    if len(sizes) == 1:
        return (x,)
    if 0 in sizes:
        cuts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        return tuple(
            to.emit(op.strided_slice(x, [dim], [low], [high])) if low < high else Nothing(one)
            for low, high, one in zip(cuts[:-1], cuts[1:], to.results, strict=True)
        )
    parts = to.emit(op.split(x, np.cumsum(sizes)[:-1].tolist(), dim))
    return tuple(parts[at] for at in range(len(sizes)))


@converter("unbind.int", "unbind_copy.int")
def unbind(to: Emitter, x: Any, dim: int = 0) -> Any:
    return tuple(to.emit(op.take(x, relax.const(at, "int64"), dim)) for at in range(shape_of(x)[dim]))


@converter("flip.default")
def flip(to: Emitter, x: Any, dims: Sequence[int]) -> Any:
    for dim in dims:
        x = to.emit(op.flip(x, dim)) if to.shape else x
    return x


@converter("rev.default")
def rev(to: Emitter, x: Any, dims: Sequence[int]) -> Any:
    return flip(to, x, dims)


@converter("repeat.default", "tile.default")
def repeat(to: Emitter, x: Any, repeats: Sequence[int]) -> Any:
    missing = len(repeats) - len(shape_of(x))
    x = to.reshape(x, [1] * missing + shape_of(x)) if missing > 0 else x
    return to.emit(op.tile(x, list(repeats))) if any(times != 1 for times in repeats) else x


@converter("roll.default")
def roll(to: Emitter, x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:
        size = math.prod(to.shape)
        return to.reshape(_rolled(to, to.reshape(x, [size]), {0: shifts[0]}), to.shape)
    by_dim = dict.fromkeys((dim % len(to.shape) for dim in dims), 0)
    for shift, dim in zip(shifts, dims, strict=True):
        by_dim[dim % len(to.shape)] += shift
    return _rolled(to, x, by_dim)


def _rolled(to: Emitter, x: Any, shifts: Mapping[int, int]) -> Any:
    """x with each of some axes rolled: one function of its indices, which fuses with what else only moves elements."""
    shape = shape_of(x)
    cuts = {dim: -shift % shape[dim] for dim, shift in shifts.items() if shape[dim]}
    if not any(cuts.values()):
        return x
    last = len(shape) - 1
    if cut := cuts.pop(last, 0):
        # In halves, since the elements of a vector would be looked up one by one.
        halves = [(cut, shape[last]), (0, cut)]
        found = [to.emit(op.strided_slice(x, axes=[last], begin=[a], end=[b], strides=[1])) for a, b in halves]
        x = to.emit(op.concat(found, axis=last))
    if not any(cuts.values()):
        return x

    def place(dim: int, i: Any) -> Any:
        # Not (i + cut) % extent: of ((i + a) % m + b) % n TVM 0.27's FlattenBuffer drops b, and so it does of a quotient.
        cut = cuts.get(dim, 0)
        return tirx.Select(i >= shape[dim] - cut, i - (shape[dim] - cut), i + cut) if cut else i

    def element(given: Any, at: Any) -> Any:
        (source,) = given
        return source(*(place(dim, i) for dim, i in enumerate(at)))

    return to.compute("roll", element, shape, x)


@converter("diagonal.default", "diagonal_copy.default")
def diagonal(to: Emitter, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rank = len(shape_of(x))
    first, second = dim1 % rank, dim2 % rank
    others = [axis for axis in range(rank) if axis not in (first, second)]

    def body(given: Any, at: Any) -> Any:
        index: list[Any] = [None] * rank
        for axis, place in zip(others, at[:-1], strict=True):
            index[axis] = place
        index[first], index[second] = at[-1] - min(offset, 0), at[-1] + max(offset, 0)
        return given[0](*index)

    return to.compute("diagonal", body, to.shape, x)


@converter("constant_pad_nd.default", "pad.default")
def constant_pad(to: Emitter, x: Any, pad: Sequence[int], value: Any = 0, mode: str = "constant") -> Any:
    if mode != "constant":
        raise NotImplementedError(f"padding by {mode}")
    value = 0 if value is None else value
    have = shape_of(x)
    widths = [0] * (2 * len(have))
    for axis in range(len(pad) // 2):
        widths[-2 * axis - 2 : len(widths) - 2 * axis] = pad[2 * axis : 2 * axis + 2]
    if min(pad, default=0) < 0:
        begins, ends = [-min(width, 0) for width in widths[::2]], list(have)
        for axis, width in enumerate(widths[1::2]):
            ends[axis] += min(width, 0)
        x = to.emit(op.strided_slice(x, list(range(len(have))), begins, ends))
        widths = [max(width, 0) for width in widths]
        if not any(widths):
            return x
    if to.dtype == "bool" or not is_float(to.dtype):
        return _padded(to, x, widths, value)
    return to.emit(op.nn.pad(x, widths, "constant", float(value)))


def _padded(to: Emitter, x: Any, widths: Sequence[int], value: Any) -> Any:
    have, dtype = shape_of(x), dtype_of(x)
    fill = tirx.const(bool(value) if dtype == "bool" else int(value), dtype)

    def body(given: Any, at: Any) -> Any:
        inside = [tirx.const(True, "bool")]
        index = []
        for axis, place in enumerate(at):
            moved = place - widths[2 * axis]
            inside += [moved >= 0, moved < have[axis]]
            index.append(tirx.max(tirx.min(moved, tirx.const(have[axis] - 1, "int64")), tirx.const(0, "int64")))
        return tirx.if_then_else(tirx.all(*inside), given[0](*index), fill)

    return to.compute("pad", body, to.shape, x)


@converter("slice_scatter.default")
def slice_scatter(
    to: Emitter, x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    places = list(range(*slice(start, end, step).indices(shape_of(x)[dim])))
    return _scattered(to, x, src, dim, places)


@converter("select_scatter.default")
def select_scatter(to: Emitter, x: Any, src: Any, dim: int, index: int) -> Any:
    rank = len(to.shape)
    src = to.emit(op.expand_dims(src, dim % rank))
    return _scattered(to, x, src, dim, [index % to.shape[dim]])


def _scattered(to: Emitter, x: Any, src: Any, dim: int, places: Sequence[int]) -> Any:
    """x with slices of src at these evenly spaced places along an axis."""
    dim %= len(to.shape)
    src = to.cast(src, to.dtype)
    step = places[1] - places[0] if len(places) > 1 else 1
    first, last, count = places[0], places[-1], len(places)

    def body(given: Any, at: Any) -> Any:
        place = at[dim]
        inside = tirx.all(place >= first, place <= last, tirx.floormod(place - first, step) == 0)
        index = list(at)
        found = tirx.floordiv(place - first, step)
        index[dim] = tirx.max(tirx.min(found, tirx.const(count - 1, "int64")), tirx.const(0, "int64"))
        return tirx.if_then_else(inside, given[1](*index), given[0](*at))

    return to.compute("slice_scatter", body, to.shape, x, src)


@converter("diagonal_scatter.default")
def diagonal_scatter(to: Emitter, x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rank = len(to.shape)
    first, second = dim1 % rank, dim2 % rank
    others = [axis for axis in range(rank) if axis not in (first, second)]
    count = shape_of(src)[-1]

    def body(given: Any, at: Any) -> Any:
        place = at[first] + min(offset, 0)
        inside = tirx.all(at[second] - at[first] == offset, place >= 0, place < count)
        safe = tirx.max(tirx.min(place, tirx.const(count - 1, "int64")), tirx.const(0, "int64"))
        return tirx.if_then_else(inside, given[1](*(at[axis] for axis in others), safe), given[0](*at))

    return to.compute("diagonal_scatter", body, to.shape, x, to.cast(src, to.dtype))


@converter("full.default", "full_like.default", "new_full.default", "fill.Scalar", "fill.Tensor")
def full(to: Emitter, fill_value: Any = None, value: Any = None, **_: Any) -> Any:
    number = value if fill_value is None else fill_value
    if not to.shape:
        return to.tensor(number, to.dtype)
    one = to.tensor(number, to.dtype)
    infinite = isinstance(number, float) and not math.isfinite(number)
    if to.dtype == "bfloat16" or infinite:  # TVM has no tensor function for `full` of these
        return to.emit(op.broadcast_to(one, relax.ShapeExpr(to.shape)))
    return to.emit(op.full(relax.ShapeExpr(to.shape), one, to.dtype))


@converter("zeros.default", "zeros_like.default", "new_zeros.default")
@converter("empty.memory_format", "empty_like.default", "new_empty.default", "empty_strided.default")
@converter("empty_permuted.default", "new_empty_strided.default")
def zeros(to: Emitter, **_: Any) -> Any:
    """Memory that nobody has written is zero here."""
    return to.emit(op.zeros(relax.ShapeExpr(to.shape), to.dtype))


@converter("ones.default", "ones_like.default", "new_ones.default")
def ones(to: Emitter, **_: Any) -> Any:
    return to.emit(op.ones(relax.ShapeExpr(to.shape), to.dtype))


@converter("arange.default", "arange.start", "arange.start_step")
def arange(to: Emitter, end: Any, start: Any = 0, step: Any = 1, **_: Any) -> Any:
    if is_float(to.dtype) or step != 1:
        raise NotImplementedError
    return to.emit(op.arange(start, end, step, dtype=to.dtype))


@converter("scalar_tensor.default")
def scalar_tensor(to: Emitter, s: Any, **_: Any) -> Any:
    return to.emit(to.const(s, to.dtype))


@converter("tril.default")
def tril(to: Emitter, x: Any, diagonal: int = 0) -> Any:
    return to.emit(op.tril(x, diagonal))


@converter("triu.default")
def triu(to: Emitter, x: Any, diagonal: int = 0) -> Any:
    return to.emit(op.triu(x, diagonal))
