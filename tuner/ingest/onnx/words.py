"""Products and convolutions of 8-bit tensors, four bytes at a time (tuner/byte_products.py).

With a's zero point p and b's q, and sums over K,

    sum (a - p) (b - q) = sum a b - p (sum b - K q) - q sum a

in int32, which wraps, so that it is the same to the last bit. The first sum is made of words: of unsigned bytes of a and
signed ones of b. A byte of the other kind has its highest bit flipped, which moves it, and its zero point, by 128. Sums of
weights are made when weights are bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.byte_products import BYTES, dot, word
from tuner.ingest.onnx.node import Node, compute
from tuner.ingest.onnx.values import shape_of
from tuner.tvm_compat import relax, te, tirx

SUMS = {"op_pattern": 4}
"""Attributes of a tensor function behind which element-wise work that follows is fused (TVM's OpPatternKind)."""
MOVES = {"op_pattern": 2}
"""The same of one that what moves its operand, or is element-wise, is fused into."""
LONGEST = (1 << 31) // 255**2
"""Products in a sum of which int32 holds any."""
FLIPPED = 128
"""What flipping the highest bit adds to a byte's value."""


@dataclass(frozen=True)
class Bytes:
    """A tensor of 8 bits among the operands of a node."""

    node: Node
    position: int
    zero: int
    """Position of its zero point, which is one number or, of a matrix, one a row of the first factor, a column of the
    second."""
    turned: bool = False
    """Whether it is the transposed matrix."""

    @property
    def dtype(self) -> str:
        return self.node.dtype(self.position)

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.node.shape(self.position)
        return (*shape[:-2], shape[-1], shape[-2]) if self.turned else shape

    def tensor(self) -> Any:
        value = self.node.tensor(self.position)
        return self.node.emit(relax.op.permute_dims(value)) if self.turned else value


def product_of_bytes(node: Node, a: Bytes, b: Bytes) -> Any:
    """The product of a [..., M, K] and b [K, N] less their zero points, [..., M, N] in int32. None where one of them has not
    8 bits, or other dimensions."""
    left, right = a.shape, b.shape
    if not {a.dtype, b.dtype} <= {"int8", "uint8"} or len(right) != 2 or len(left) < 2:
        return None
    length, columns = right
    a_flips, b_flips = a.dtype == "int8", b.dtype == "uint8"
    words = (*left[:-1], -(-length // BYTES))
    rows_in, columns_in = a.tensor(), b.tensor()
    words_a = node.te(
        lambda x: compute(words, lambda *at: _word(x, (*at[:-1], None), at[-1], length, a_flips)),
        rows_in,
        name="words_of_rows",
        attributes=MOVES,
    )
    words_b = node.te(
        lambda x: compute((words[-1], columns), lambda k, n: _word(x, (None, n), k, length, b_flips)),
        columns_in,
        name="words_of_columns",
    )

    def product(x: Any, y: Any) -> Any:
        k = te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", words[-1])), "k")
        return compute((*left[:-1], columns), lambda *at: te.sum(dot(x[(*at[:-1], k)], y[k, at[-1]]), axis=[k]))

    total = node.te(product, words_a, words_b, name="product_of_bytes", attributes=SUMS)
    p = _zero_point(node, a, len(left), -2, FLIPPED if a_flips else 0)
    q = _zero_point(node, b, len(left), -1, -FLIPPED if b_flips else 0)
    if p is not None:
        sums = _sum(node, columns_in, 0, -FLIPPED * length if b_flips else 0)
        if q is not None:
            sums = node.emit(relax.op.subtract(sums, node.emit(relax.op.multiply(q, _number(length)))))
        total = node.emit(relax.op.subtract(total, node.emit(relax.op.multiply(p, sums))))
    if q is not None:
        sums = _sum(node, rows_in, len(left) - 1, FLIPPED * length if a_flips else 0)
        total = node.emit(relax.op.subtract(total, node.emit(relax.op.multiply(q, sums))))
    return total


def product_of_dequantised(node: Node, *, turned: bool = False) -> Any:
    """The product of operands 0 and 1 in float32 where DequantizeLinear made both, the first with one scale and the second,
    transposed if `turned`, with one or one a column; else None. It is summed in whole numbers, without rounding."""
    left, right = node.dequantised(0), node.dequantised(1)
    if left is None or right is None or node.result_dtype() != "float32":
        return None
    if not has_scales(left, right, axis=0 if turned else 1) or left.shape(0)[-1] > LONGEST:
        return None
    total = product_of_bytes(node, Bytes(left, 0, 2), Bytes(right, 0, 2, turned))
    if total is None:
        return None
    scale = product_of_scales(node, left, right, len(shape_of(total)), -1)
    return node.emit(relax.op.multiply(node.cast(total, "float32"), scale))


def has_scales(left: Node, right: Node, axis: int) -> bool:
    """Whether of two DequantizeLinear the first has one scale, and the second one, or one for each index of an axis."""
    if any(each.attribute("block_size", 0) or each.dtype(1) != "float32" for each in (left, right)):
        return False
    rank = len(right.shape(0))
    one_each = rank > axis and right.axis(int(right.attribute("axis", 1)), rank) == axis
    return _is_one(left.shape(1)) and (_is_one(right.shape(1)) or one_each)


def product_of_scales(node: Node, left: Node, right: Node, rank: int, axis: int) -> Any:
    """The scales of two DequantizeLinear, multiplied, for a tensor of a rank whose axis the second's belong to."""
    return node.emit(relax.op.multiply(*(spread(node, each.tensor(1), rank, axis) for each in (left, right))))


@dataclass(frozen=True, kw_only=True)
class Window:
    """What a convolution reads; all but `data` and `result`, shapes with batch and channels, is by spatial dimension."""

    data: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    """Padding before the first position."""

    def read(self, at: Sequence[Any], taps: Sequence[Any]) -> tuple[list[Any], Any]:
        """Where a position of the result reads with a tap of the kernel, and whether that is inside the data."""
        padded = [i * s + k * d for i, s, k, d in zip(at, self.strides, taps, self.dilations, strict=True)]
        return self.inside(padded)

    def inside(self, padded: Sequence[Any]) -> tuple[list[Any], Any]:
        """The same of a position in padded data."""
        where = [position - begin for position, begin in zip(padded, self.begins, strict=True)]
        inside: Any = tirx.const(True, "bool")
        for i, extent in zip(where, self.data[2:], strict=True):
            inside = tirx.And(inside, tirx.And(i >= 0, i < extent))
        return where, inside

    @property
    def padded(self) -> tuple[int, ...]:
        """Extents of what is read, with its padding."""
        every = zip(self.result[2:], self.strides, self.kernel, self.dilations, strict=True)
        return tuple((r - 1) * s + (k - 1) * d + 1 for r, s, k, d in every)


def convolution_of_bytes(node: Node, x: Bytes, w: Bytes, window: Window) -> Any:
    """The convolution of x [N, C, ...] with w [O, C, ...] less x's zero point, which is one number and pads x: [N, O, ...]
    in int32. Words are made of channels, which come last meanwhile. None where an operand has not 8 bits, or w has a zero
    point that is not known to be zero."""
    if not {x.dtype, w.dtype} <= {"int8", "uint8"} or (x.node.given(x.zero) and not _is_one(x.node.shape(x.zero))):
        return None
    x_flips, w_flips = x.dtype == "int8", w.dtype == "uint8"
    if _is_moved(w, -FLIPPED if w_flips else 0):
        return None
    batch, channels, *_ = x.shape
    outputs, count = w.shape[0], -(-channels // BYTES)
    zero = x.node.tensor(x.zero) if x.node.given(x.zero) else node.constant(np.zeros(1, np.dtype(x.dtype)))

    def image(values: Any, point: Any) -> Any:
        def element(n: Any, *at: Any) -> Any:
            where, inside = window.inside(at[:-1])
            return _word(
                lambda _n, c: tirx.if_then_else(inside, values(n, c, *where), point(0)),
                (n, None),
                at[-1],
                channels,
                x_flips,
            )

        return compute((batch, *window.padded, count), element)

    words_x = node.te(image, x.tensor(), node.reshape(zero, [1]), name="words_of_image", attributes=MOVES)
    words_w = node.te(
        lambda v: compute(
            (*window.kernel, count, outputs),
            lambda *at: _word(v, (at[-1], None, *at[:-2]), at[-2], channels, w_flips),
        ),
        w.tensor(),
        name="words_of_filters",
    )

    def convolution(values: Any, filters: Any) -> Any:
        taps = [te.reduce_axis((0, extent), f"k{d}") for d, extent in enumerate(window.kernel)]
        c = te.reduce_axis((0, count), "c")

        def element(n: Any, *at: Any) -> Any:
            every = zip(at[:-1], window.strides, taps, window.dilations, strict=True)
            where = [i * s + k * d for i, s, k, d in every]
            return te.sum(dot(values[(n, *where, c)], filters[(*taps, c, at[-1])]), axis=[*taps, c])

        return compute((batch, *window.result[2:], outputs), element)

    total = node.te(convolution, words_x, words_w, name="convolution_of_bytes", attributes=SUMS)
    p = _zero_point(node, x, 1, -1, FLIPPED if x_flips else 0)
    if p is not None:
        whole = node.cast(w.tensor(), "int32")
        sums = node.emit(relax.op.sum(whole, axis=[*range(1, len(w.shape))]))
        if w_flips:
            sums = node.emit(relax.op.add(sums, _number(-FLIPPED * channels * int(np.prod(window.kernel)))))
        total = node.emit(relax.op.subtract(total, node.emit(relax.op.multiply(p, sums))))
    last = len(window.result) - 1
    return node.emit(relax.op.permute_dims(total, [0, last, *range(1, last)]))


def spread(node: Node, value: Any, rank: int, axis: int | None) -> Any:
    """A scale or zero point in a shape that broadcasts to a tensor of a rank."""
    shape = shape_of(value)
    if _is_one(shape):
        return node.reshape(value, [1])
    if len(shape) > 1:
        return value
    wanted = [1] * rank
    wanted[(-1 if axis is None else axis) % rank] = shape[0]
    return node.reshape(value, wanted)


def _is_one(shape: Sequence[int]) -> bool:
    return all(extent == 1 for extent in shape)


def _word(x: Any, at: tuple[Any, ...], number: Any, length: int, flips: bool) -> Any:
    """The word of that number along the axis of `at` that is None; zeros beyond its length."""

    def byte(offset: int) -> Any:
        k = number * BYTES + offset
        value = x(*(k if index is None else index for index in at))
        if flips:
            value = tirx.Cast("uint8", value) ^ tirx.const(FLIPPED, "uint8")
        zero = tirx.const(0, str(value.ty.dtype))
        return tirx.if_then_else(k < length, value, zero) if length % BYTES else value

    return word(byte)


def _is_moved(of: Bytes, moved: int) -> bool:
    """Whether an operand whose bytes were moved has a zero point that is not known to be zero."""
    if not of.node.given(of.zero):
        return moved != 0
    known = of.node.known(of.zero)
    return known is None or bool((known.astype(np.int64) + moved).any())


def _zero_point(node: Node, of: Bytes, rank: int, axis: int, moved: int) -> Any:
    """The zero point of an operand whose bytes were moved, in int32; None where it is known to be zero."""
    if not _is_moved(of, moved):
        return None
    if not of.node.given(of.zero):
        return _number(moved)
    point = spread(node, node.cast(of.node.tensor(of.zero), "int32"), rank, axis)
    return node.emit(relax.op.add(point, _number(moved))) if moved else point


def _sum(node: Node, values: Any, axis: int, moved: int) -> Any:
    """Sums along an axis, in int32, with what flipping bytes adds."""
    sums = node.emit(relax.op.sum(node.cast(values, "int32"), axis=[axis], keepdims=axis > 0))
    return node.emit(relax.op.add(sums, _number(moved))) if moved else sums


def _number(value: int) -> Any:
    return relax.const(value, "int32")
