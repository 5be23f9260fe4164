"""Readers of operators that only say where elements go: reshapes, slices, pads, tiles, joins.

Operands that name shapes, axes or widths are constants in most files. Where they are tensors that only a run knows, the
file's declared shapes say how large the results are, and the operand's values say at run time which elements they hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.ingest.onnx.node import Node, compute
from tuner.ingest.onnx.registry import reader
from tuner.tvm_compat import relax, te, tirx


@reader("Shape")
def shape(node: Node) -> Any:
    extents = node.shape(0)
    if node.opset < 15:
        return [np.array(extents, np.int64)]
    rank = len(extents)
    begin, end = int(node.attribute("start", 0)), int(node.attribute("end", rank))
    begin, end = (min(max(bound + rank if bound < 0 else bound, 0), rank) for bound in (begin, end))
    return [np.array(extents[begin:end], np.int64)]


@reader("Size")
def size(node: Node) -> Any:
    return [np.array(int(np.prod(node.shape(0), dtype=np.int64)), np.int64)]


@reader("Reshape", "Flatten")
def reshape(node: Node) -> Any:
    """The result's shape says all: the elements keep their order."""
    return relax.op.reshape(node.tensor(0), list(node.result_shape()))


@reader("Squeeze", "Unsqueeze")
def unit_dimensions(node: Node) -> Any:
    """One axis may be written as a number, as PyTorch's exporter does for grouped queries."""
    axes = node.known(1)
    if node.given(1) and axes is None:
        return relax.op.reshape(node.tensor(0), list(node.result_shape()))
    if axes is not None and axes.ndim == 0:
        node.inputs[1] = axes.reshape(1)
    return None


@reader("Expand")
def expand(node: Node) -> Any:
    return relax.op.broadcast_to(node.tensor(0), list(node.result_shape()))


@reader("ConstantOfShape")
def constant_of_shape(node: Node) -> Any:
    value = np.asarray(node.attribute("value", np.zeros(1, np.float32)))
    return relax.op.full(list(node.result_shape()), node.constant(value.reshape(())), value.dtype.name)


@reader("Tile")
def tile(node: Node) -> Any:
    if node.given(2):
        return None
    result, source = node.result_shape(), node.shape(0)
    if node.known(1) is not None:
        return None
    return node.te(
        lambda x: compute(
            result, lambda *at: x(*(tirx.indexmod(i, extent) for i, extent in zip(at, source, strict=True)))
        ),
        node.tensor(0),
    )


@reader("Range")
def arithmetic_progression(node: Node) -> Any:
    (count,) = node.result_shape()
    operands = [node.reshape(node.tensor(position), []) for position in range(3)]
    dtype = node.dtype(0)
    return node.te(
        lambda start, _limit, step: compute((count,), lambda i: start() + i.astype(dtype) * step()), *operands
    )


@reader("EyeLike")
def eye_like(node: Node) -> Any:
    result, dtype, offset = node.result_shape(), node.result_dtype(), int(node.attribute("k", 0))
    return node.te(
        lambda _x: compute(
            result, lambda i, j: tirx.Select((j - i).equal(offset), tirx.const(1, dtype), tirx.const(0, dtype))
        ),
        node.tensor(0),
    )


@reader("Split")
def split(node: Node) -> Any:
    """Parts of the sizes that the results have."""
    if node.known(1) is not None and not node.attribute("num_outputs"):
        return None
    axis = node.axis(int(node.attribute("axis", 0)), len(node.shape(0)))
    sizes = [node.result_shape(position)[axis] for position in range(node.outputs)]
    if sum(sizes) != node.shape(0)[axis]:
        raise ValueError(f"parts of sizes {sizes} of an axis of {node.shape(0)[axis]}")
    found, begin = [], 0
    for position, extent in enumerate(sizes):
        if extent:
            found.append(node.emit(relax.op.strided_slice(node.tensor(0), [axis], [begin], [begin + extent])))
        else:
            found.append(np.zeros(node.result_shape(position), node.dtype(0)))
        begin += extent
    return found


@reader("Concat")
def concat(node: Node) -> Any:
    """Without empty parts; None where there are none."""
    full = [position for position in range(len(node.inputs)) if 0 not in node.shape(position)]
    if len(full) == len(node.inputs):
        return None
    if len(full) == 1:
        return node.tensor(full[0])
    axis = int(node.attribute("axis", 1))
    return relax.op.concat([node.tensor(position) for position in full], axis)


@reader("Slice")
def slices(node: Node) -> Any:
    """With bounds that only a run knows, or in attributes; None for constant operands."""
    if node.opset < 10:
        begins, ends = (list(node.attribute(name)) for name in ("starts", "ends"))
        return relax.op.strided_slice(node.tensor(0), node.attribute("axes") or list(range(len(begins))), begins, ends)
    if all(node.known(position) is not None for position in range(1, len(node.inputs)) if node.given(position)):
        return None
    source, result = node.shape(0), node.result_shape()
    rank = len(source)
    count = node.shape(1)[0]
    operands = [node.cast(node.tensor(position), "int64") for position in range(1, 5) if node.given(position)]
    places = {position: index for index, position in enumerate(p for p in range(1, 5) if node.given(p))}

    def element(x: Any, bounds: tuple[Any, ...], at: tuple[Any, ...]) -> Any:
        starts = bounds[places[1]]
        where = []
        for dimension in range(rank):
            begin, step = tirx.const(0, "int64"), tirx.const(1, "int64")
            for index in range(count):
                axis = bounds[places[3]](index) if 3 in places else tirx.const(index, "int64")
                pace = bounds[places[4]](index) if 4 in places else tirx.const(1, "int64")
                extent = source[dimension]
                start = starts(index)
                start = tirx.Select(start < 0, start + extent, start)
                last = tirx.Select(pace < 0, tirx.const(extent - 1, "int64"), tirx.const(extent, "int64"))
                start = te.max(tirx.const(0, "int64"), te.min(start, last))
                chosen = tirx.Or(axis.equal(dimension), axis.equal(dimension - rank))
                begin, step = tirx.Select(chosen, start, begin), tirx.Select(chosen, pace, step)
            # Bounds that give another shape than the declared one are no input of the model; they read inside anyway.
            where.append(
                te.max(
                    tirx.const(0, "int64"),
                    te.min(begin + at[dimension] * step, tirx.const(source[dimension] - 1, "int64")),
                )
            )
        return x(*where)

    return node.te(lambda x, *bounds: compute(result, lambda *at: element(x, bounds, at)), node.tensor(0), *operands)


@reader("Pad")
def pad(node: Node) -> Any:
    """Zero padding by constant widths as Relax has it; other forms as a tensor function, unless TVM's are right."""
    mode = str(node.attribute("mode", "constant"))
    if node.opset < 11:
        return None
    widths, fill = node.known(1), node.known(2) if node.given(2) else np.zeros(())
    rank = len(node.shape(0))
    plain = widths is not None and widths.size == 2 * rank and not node.given(3) and widths.min() >= 0
    if mode == "constant" and plain and widths is not None and fill is not None and not np.any(fill != 0):
        interleaved = [int(widths[axis + end * rank]) for axis in range(rank) for end in (0, 1)]
        return relax.op.nn.pad(node.tensor(0), interleaved, "constant", 0.0)
    if plain and mode in ("constant", "reflect", "edge") and fill is not None:
        return None
    return _padded(node, mode)


def _padded(node: Node, mode: str) -> Any:
    source, result = node.shape(0), node.result_shape()
    rank, count = len(source), node.shape(1)[0] // 2
    if 0 in source and mode != "constant":
        raise ValueError("an empty tensor has no elements to repeat")
    axes = node.integers(3) if node.given(3) else list(range(rank))
    dtype = node.dtype(0)
    operands = [node.cast(node.tensor(1), "int64")]
    if axes is None:
        operands.append(node.cast(node.tensor(3), "int64"))
    if node.given(2):
        operands.append(node.reshape(node.tensor(2), []))

    def begin(dimension: int, widths: Any, named: Any) -> Any:
        if axes is not None:
            places = [index for index, axis in enumerate(axes) if axis % rank == dimension]
            return widths(places[-1]) if places else tirx.const(0, "int64")
        found = tirx.const(0, "int64")
        for index in range(count):
            axis = named(index)
            found = tirx.Select(tirx.Or(axis.equal(dimension), axis.equal(dimension - rank)), widths(index), found)
        return found

    def element(x: Any, given: tuple[Any, ...], at: tuple[Any, ...]) -> Any:
        where, inside = [], tirx.const(True, "bool")
        for dimension, extent in enumerate(source):
            i = at[dimension].astype("int64") - begin(dimension, given[0], given[1] if axes is None else None)
            if mode == "constant":
                inside = tirx.And(inside, tirx.And(i >= 0, i < extent))
            elif mode == "wrap":
                i = tirx.floormod(i, tirx.const(extent, "int64"))
            elif mode == "reflect" and extent > 1:
                i = tirx.floormod(i, tirx.const(2 * extent - 2, "int64"))
                i = tirx.Select(i >= extent, 2 * extent - 2 - i, i)
            where.append(te.max(tirx.const(0, "int64"), te.min(i, tirx.const(extent - 1, "int64"))))
        if mode != "constant":
            return x(*where)
        return tirx.if_then_else(inside, x(*where), given[-1]() if node.given(2) else tirx.const(0, dtype))

    return node.te(lambda x, *given: compute(result, lambda *at: element(x, given, at)), node.tensor(0), *operands)


@reader("CenterCropPad")
def center_crop_pad(node: Node) -> Any:
    """Around the middle of each axis, of the size that the result has."""
    source, result, dtype = node.shape(0), node.result_shape(), node.dtype(0)
    offsets = [
        (extent - other) // 2 if extent >= other else -((other - extent) // 2)
        for extent, other in zip(source, result, strict=True)
    ]

    def element(x: Any, at: tuple[Any, ...]) -> Any:
        where = [i + offset for i, offset in zip(at, offsets, strict=True)]
        inside = tirx.const(True, "bool")
        for i, extent in zip(where, source, strict=True):
            inside = tirx.And(inside, tirx.And(i >= 0, i < extent))
        return tirx.if_then_else(inside, x(*where), tirx.const(0, dtype))

    return node.te(lambda x: compute(result, lambda *at: element(x, at)), node.tensor(0))


@reader("AffineGrid")
def affine_grid(node: Node) -> Any:
    """With the size that the result has, where the operand is none that is known."""
    if node.known(1) is None:
        grid = node.result_shape()
        node.inputs[1] = np.array([grid[0], 1, *grid[1:-1]], np.int64)
    return None


@reader("ReverseSequence")
def reverse_sequence(node: Node) -> Any:
    result = node.shape(0)
    batch, time = int(node.attribute("batch_axis", 1)), int(node.attribute("time_axis", 0))

    def element(x: Any, lengths: Any, at: tuple[Any, ...]) -> Any:
        length, i = lengths(at[batch]), at[time].astype("int64")
        where = list(at)
        where[time] = te.max(tirx.const(0, "int64"), tirx.Select(i < length, length - 1 - i, i))
        return x(*where)

    lengths = node.cast(node.tensor(1), "int64")
    return node.te(lambda x, n: compute(result, lambda *at: element(x, n, at)), node.tensor(0), lengths)


@reader("Trilu")
def trilu(node: Node) -> Any:
    """With a diagonal that only a run knows; None for a constant one of numbers."""
    if (not node.given(1) or node.known(1) is not None) and node.dtype(0) != "bool":
        return None
    result, dtype, upper = node.shape(0), node.dtype(0), bool(node.attribute("upper", 1))
    offset = (
        node.reshape(node.cast(node.tensor(1), "int64"), []) if node.given(1) else node.constant(np.array(0, np.int64))
    )

    def element(x: Any, k: Any, at: tuple[Any, ...]) -> Any:
        distance = at[-1].astype("int64") - at[-2].astype("int64")
        kept = distance >= k() if upper else distance <= k()
        return tirx.if_then_else(kept, x(*at), tirx.const(0, dtype))

    return node.te(lambda x, k: compute(result, lambda *at: element(x, k, at)), node.tensor(0), offset)
