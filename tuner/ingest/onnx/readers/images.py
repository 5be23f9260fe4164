"""Operators on images and maps that TVM's frontend lacks, by plain loops as the standard describes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.ingest.onnx.node import Node, compute, extents
from tuner.ingest.onnx.registry import reader
from tuner.tvm_compat import te, tirx


def _i64(value: int) -> Any:
    return tirx.const(value, "int64")


@reader("RoiAlign")
def region_align(node: Node) -> Any:
    """The mean, as TVM has it. The maximum is one of weighted corners in the standard's reference, of samples elsewhere."""
    if str(node.attribute("mode", "avg")) != "avg":
        node.refuse("the maximum of a region")
    return None


@reader("Col2Im")
def columns_to_image(node: Node) -> Any:
    """Each element of the image is the sum of the block elements that lie on it."""
    n_c, result, dtype = node.shape(0), node.result_shape(), node.dtype(0)
    spatial, channels = len(result) - 2, result[1]
    positions = n_c[1] // channels
    strides = list(node.attribute("strides") or [1] * spatial)
    dilations = list(node.attribute("dilations") or [1] * spatial)
    pads = list(node.attribute("pads") or [0] * (2 * spatial))
    block = node.cast(node.tensor(2), "int64")

    def make(columns: Any, extents: Any) -> Any:
        p = te.reduce_axis((0, positions), "p")

        def element(n: Any, c: Any, *at: Any) -> Any:
            rest, place, inside = p.var, _i64(0), tirx.const(True, "bool")
            offsets: list[Any] = []
            for d in range(spatial - 1, -1, -1):
                offsets.insert(0, tirx.floormod(rest, extents(d)))
                rest = tirx.floordiv(rest, extents(d))
            for d in range(spatial):
                count = tirx.floordiv(
                    _i64(result[2 + d] + pads[d] + pads[d + spatial] - 1) - _i64(dilations[d]) * (extents(d) - 1),
                    _i64(strides[d]),
                ) + _i64(1)
                begin = at[d].astype("int64") + pads[d] - offsets[d] * dilations[d]
                step = tirx.floordiv(begin, _i64(strides[d]))
                fits = tirx.And(tirx.floormod(begin, _i64(strides[d])).equal(0), tirx.And(begin >= 0, step < count))
                inside = tirx.And(inside, fits)
                place = place * count + step
            value = columns(n, c * positions + p, tirx.Select(inside, place, _i64(0)))
            return te.sum(tirx.Select(inside, value, tirx.const(0, dtype)), axis=p)

        return compute(result, element)

    return node.te(make, node.tensor(0), block)


@reader("DeformConv")
def deformable_convolution(node: Node) -> Any:
    """A convolution whose taps are moved by offsets and read between pixels; outside of the image there is zero."""
    shape, weight, result, dtype = node.shape(0), node.shape(1), node.result_shape(), node.dtype(0)
    if len(shape) != 4 or dtype not in ("float32", "float64"):
        node.refuse("but for images in single or double precision")
    (height, width), (kh, kw) = shape[2:], weight[2:]
    strides, dilations = (list(node.attribute(name) or [1, 1]) for name in ("strides", "dilations"))
    pads = list(node.attribute("pads") or [0] * 4)
    groups, moved = int(node.attribute("group", 1)), int(node.attribute("offset_group", 1))
    each, outputs, per_offset = weight[1], weight[0] // groups, shape[1] // moved
    operands = [node.tensor(position) for position in (0, 1, 2)]
    operands += [node.tensor(position) for position in (3, 4) if node.given(position)]
    has_bias, has_mask = node.given(3), node.given(4)

    def make(x: Any, w: Any, offset: Any, *given: Any) -> Any:
        bias, mask = (given[0] if has_bias else None), (given[-1] if has_mask else None)

        def pixel(n: Any, c: Any, i: Any, j: Any) -> Any:
            inside = tirx.And(tirx.And(i >= 0, i < height), tirx.And(j >= 0, j < width))
            return tirx.if_then_else(inside, x(n, c, i, j), tirx.const(0, dtype))

        def sampled(n: Any, channel: Any, a: Any, b: Any, i: Any, j: Any) -> Any:
            group = tirx.indexdiv(channel, per_offset)
            tap = (group * kh + a) * kw + b
            y = (i * strides[0] - pads[0] + a * dilations[0]).astype(dtype) + offset(n, tap * 2, i, j)
            z = (j * strides[1] - pads[1] + b * dilations[1]).astype(dtype) + offset(n, tap * 2 + 1, i, j)
            top, left = te.floor(y), te.floor(z)
            down, right = y - top, z - left
            t, s = top.astype("int64"), left.astype("int64")
            one = tirx.const(1, dtype)
            found = (
                pixel(n, channel, t, s) * (one - down) * (one - right)
                + pixel(n, channel, t, s + 1) * (one - down) * right
            )
            found += pixel(n, channel, t + 1, s) * down * (one - right) + pixel(n, channel, t + 1, s + 1) * down * right
            return found if mask is None else found * mask(n, tap, i, j)

        samples = compute((shape[0], shape[1], kh, kw, *result[2:]), sampled, "samples")
        c, a, b = te.reduce_axis((0, each), "c"), te.reduce_axis((0, kh), "a"), te.reduce_axis((0, kw), "b")
        total = compute(
            result,
            lambda n, o, i, j: te.sum(
                samples(n, tirx.indexdiv(o, outputs) * each + c, a, b, i, j) * w(o, c, a, b), axis=[c, a, b]
            ),
            "total",
        )
        return total if bias is None else compute(result, lambda n, o, i, j: total(n, o, i, j) + bias(o))

    return node.te(make, *operands)


@reader("TensorScatter")
def tensor_scatter(node: Node) -> Any:
    """An update written along an axis from an index of each batch on, around the end where it is circular."""
    shape, update = node.shape(0), node.shape(1)
    axis, circular = (
        node.axis(int(node.attribute("axis", -2)), len(shape)),
        str(node.attribute("mode", "linear")) == "circular",
    )
    begins = node.cast(node.tensor(2), "int64") if node.given(2) else node.constant(np.zeros(shape[0], np.int64))

    def make(past: Any, new: Any, first: Any) -> Any:
        def element(*at: Any) -> Any:
            i = at[axis].astype("int64") - first(at[0])
            if circular:
                i = tirx.floormod(i, _i64(shape[axis]))
            inside = tirx.And(i >= 0, i < update[axis])
            safe = te.max(_i64(0), te.min(i, _i64(update[axis] - 1)))
            return tirx.if_then_else(inside, new(*at[:axis], safe, *at[axis + 1 :]), past(*at))

        return compute(shape, element)

    return node.te(make, node.tensor(0), node.tensor(1), begins)


@reader("ConvTranspose")
def transposed_convolution(node: Node) -> Any:
    """With `output_shape`, the padding that gives it; TVM's converter knows paddings only, of one and two dimensions."""
    wanted = node.attribute("output_shape")
    automatic = str(node.attribute("auto_pad", "NOTSET"))
    shape, weight, result = node.shape(0), node.shape(1), node.result_shape()
    spatial = len(shape) - 2
    strides = list(node.attribute("strides") or [1] * spatial)
    dilations = list(node.attribute("dilations") or [1] * spatial)
    extra = list(node.attribute("output_padding") or [0] * spatial)
    begins = list(node.attribute("pads") or [0] * (2 * spatial))[:spatial]
    if not wanted and not automatic.startswith("SAME"):
        if spatial < 3 and all(more < step for more, step in zip(extra, strides, strict=True)):
            return None
        return _transposed_sum(node, strides, dilations, begins if automatic == "NOTSET" else [0] * spatial)
    begins, ends = [], []
    for d in range(spatial):
        full = strides[d] * (shape[2 + d] - 1) + extra[d] + (weight[2 + d] - 1) * dilations[d] + 1
        total = full - result[2 + d]
        if total < 0:
            # More is asked for than the operands give: zeros, at the end.
            extra[d] -= total
            total = 0
        first = total - total // 2 if automatic != "SAME_UPPER" else total // 2
        begins.append(first)
        ends.append(total - first)
    if spatial > 2 or any(more >= step for more, step in zip(extra, strides, strict=True)):
        return _transposed_sum(node, strides, dilations, begins)
    for entry in list(node.proto.attribute):
        if entry.name in ("output_shape", "auto_pad", "pads", "output_padding"):
            node.proto.attribute.remove(entry)
    node.proto.attribute.append(_integers("pads", [*begins, *ends]))
    node.proto.attribute.append(_integers("output_padding", extra))
    return None


def _transposed_sum(node: Node, strides: list[int], dilations: list[int], begins: list[int]) -> Any:
    """The inputs that reach each output, times their weights: in any number of dimensions, where an output that none
    reaches is the bias."""
    shape, weight, result, dtype = node.shape(0), node.shape(1), node.result_shape(), node.dtype(0)
    groups = int(node.attribute("group", 1))
    each, outputs = shape[1] // groups, weight[1]
    wide = dtype if dtype == "float64" else "float32"
    operands = [node.cast(node.tensor(place), wide) for place in range(3 if node.given(2) else 2)]

    def make(x: Any, w: Any, bias: Any = None) -> Any:
        c = te.reduce_axis((0, each), "c")
        taps = [te.reduce_axis((0, extent), f"k{d}") for d, extent in enumerate(weight[2:])]

        def element(n: Any, o: Any, *at: Any) -> Any:
            where, inside = [], []
            for d, tap in enumerate(taps):
                reach = at[d].astype("int64") + begins[d] - tap.var.astype("int64") * dilations[d]
                i = tirx.floordiv(reach, _i64(strides[d]))
                inside += [tirx.floormod(reach, _i64(strides[d])).equal(_i64(0)), i >= 0, i < shape[2 + d]]
                where.append(te.max(_i64(0), te.min(i, _i64(shape[2 + d] - 1))))
            channel = tirx.indexdiv(o, outputs) * each + c
            product = x(n, channel, *where) * w(channel, tirx.indexmod(o, outputs), *taps)
            return te.sum(tirx.if_then_else(tirx.all(*inside), product, tirx.const(0, wide)), axis=[c, *taps])

        total = compute(result, element, "total")
        return total if bias is None else compute(result, lambda n, o, *at: total(n, o, *at) + bias(o))

    return node.cast(node.te(make, *operands), dtype)


def _integers(name: str, values: list[int]) -> Any:
    from onnx import helper

    return helper.make_attribute(name, values)


@reader("MaxUnpool")
def max_unpool(node: Node) -> Any:
    """Each element at the index that its pool had; the rest is zero."""
    result, dtype = node.result_shape(), node.dtype(0)
    if not node.given(2):
        return None
    shape = node.shape(0)
    spatial = len(shape) - 2
    kernel = list(node.attribute("kernel_shape"))
    strides = list(node.attribute("strides") or [1] * spatial)
    pads = list(node.attribute("pads") or [0] * (2 * spatial))
    # Indices count the elements of the tensor that was pooled, whatever larger one the results are written into.
    pooled = [*shape[:2]]
    for d in range(spatial):
        pooled.append((shape[2 + d] - 1) * strides[d] + kernel[d] - pads[d] - pads[d + spatial])
    if any(a > b for a, b in zip(pooled, result, strict=True)):
        raise ValueError(f"results of shape {list(result)} for a pool over {pooled}")
    flat_indices = np.full(result, -1, np.int64)
    flat_indices[tuple(slice(extent) for extent in pooled)] = np.arange(int(np.prod(pooled))).reshape(pooled)
    flat = node.constant(flat_indices)
    count = int(np.prod(shape))
    if count * int(np.prod(result)) > 1 << 28:
        node.refuse("tensors of so many elements")
    values, indices = node.reshape(node.tensor(0), [count]), node.reshape(node.cast(node.tensor(1), "int64"), [count])

    def make(x: Any, at_index: Any, numbers: Any) -> Any:
        k = te.reduce_axis((0, count), "k")
        return compute(
            result,
            lambda *at: te.sum(tirx.Select(at_index(k).equal(numbers(*at)), x(k), tirx.const(0, dtype)), axis=k),
        )

    return node.te(make, values, indices, flat)


@reader("MaxPool")
def max_pool_with_places(node: Node) -> Any:
    """With the place of each maximum in its batch of images, the first of equal ones; None where nobody asks for it."""
    if not node.wants(1):
        return None
    shape, result = node.shape(0), node.result_shape()
    spatial = len(shape) - 2
    kernel = [int(extent) for extent in node.attributes["kernel_shape"]]
    strides, dilations = (list(node.attribute(name) or [1] * spatial) for name in ("strides", "dilations"))
    begins = list(node.attribute("pads") or [0] * (2 * spatial))[:spatial]
    automatic = str(node.attribute("auto_pad", "NOTSET"))
    for d in range(spatial) if automatic.startswith("SAME") else ():
        total = max((result[2 + d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 - shape[2 + d], 0)
        begins[d] = total // 2 if automatic == "SAME_UPPER" else total - total // 2
    outer_first = not node.attribute("storage_order", 0)

    def better(a: Any, b: Any) -> Any:
        # Ties go to the place that comes first in the window; a place outside of the image is below any.
        ahead = tirx.Or(a[1] < 0, tirx.And(b[1] >= 0, tirx.Or(b[0] > a[0], tirx.And(b[0].equal(a[0]), b[2] < a[2]))))
        return tuple(tirx.Select(ahead, y, x) for x, y in zip(a, b, strict=True))

    def nothing(*kinds: str) -> Any:
        return tirx.min_value(kinds[0]), tirx.const(-1, kinds[1]), tirx.const((1 << 62) - 1, kinds[2])

    combine = te.comm_reducer(better, nothing, name="largest")

    def make(x: Any) -> Any:
        window = [te.reduce_axis((0, extent), f"k{d}") for d, extent in enumerate(kernel)]

        def element(n: Any, c: Any, *at: Any) -> Any:
            inside, where, order = tirx.const(True, "bool"), [], _i64(0)
            for d in range(spatial):
                i = at[d].astype("int64") * strides[d] - begins[d] + window[d].var.astype("int64") * dilations[d]
                inside = tirx.And(inside, tirx.And(i >= 0, i < shape[2 + d]))
                where.append(te.max(_i64(0), te.min(i, _i64(shape[2 + d] - 1))))
                order = order * kernel[d] + window[d].var.astype("int64")
            place = n.astype("int64") * shape[1] + c.astype("int64")
            axes = range(spatial) if outer_first else reversed(range(spatial))
            for d in axes:
                place = place * shape[2 + d] + where[d]
            return combine((x(n, c, *where), tirx.Select(inside, place, _i64(-1)), order), axis=window)

        return te.compute(extents(result), element, name="pool")[:2]

    return node.te(lambda x: list(make(x)), node.tensor(0))
