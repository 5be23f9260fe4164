"""Fourier transforms of static extents: products with constant matrices.

Long ones are two short ones and a rotation between them (Cooley and Tukey, 1965): of an extent a b, an element costs a + b
multiplications in place of a b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.ingest.aten.complex import Pair, of_complex
from tuner.ingest.aten.emitter import Emitter, dtype_of, shape_of
from tuner.tvm_compat import relax

op = relax.op

LEAST_DIVIDED = 192
"""A shorter transform is one product: on two cores it is no slower up to 128, and a slice of its frequencies costs only what
it keeps."""
WORTH_DIVIDING = 2
"""Two products and what is between them are worth it where they multiply so many times less."""
NO_WAVE = 1e-12
"""A sine or cosine below it is the rounding of pi; of a real one 1e-12 is the extent of six trillion."""


def _scale(kind: int, count: int) -> float:
    """Of PyTorch's normalizations: none, by the root of the number of elements, by that number."""
    return (1.0, 1 / math.sqrt(count), 1.0 / count)[kind]


def _waves(rows: int, columns: int, extent: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of sign * 2 pi r c / extent; the product is reduced before it is rounded.

    At multiples of a right angle they are 0 where they should be, not the rounding of pi: real inputs have real sums there,
    whose angle would otherwise be pi or -pi by chance.
    """
    angles = (np.outer(np.arange(rows), np.arange(columns)) % extent) * (sign * 2 * math.pi / extent)
    cos, sin = (np.where(np.abs(wave) < NO_WAVE, 0.0, wave) for wave in (np.cos(angles), np.sin(angles)))
    return cos, sin


def _along(to: Emitter, x: Any, dim: int, matrix: np.ndarray) -> Any:
    """The product of an axis with a matrix [extent, new extent]."""
    rank = len(shape_of(x))
    axes = [axis for axis in range(rank) if axis != dim] + [dim]
    moved = to.permute(x, axes)
    found = to.emit(op.matmul(moved, to.const(matrix, dtype_of(x))))
    return to.permute(found, np.argsort(axes).tolist())


def _transformed(to: Emitter, x: Pair | Any, dims: Sequence[int], forward: bool) -> Pair | Any:
    """x, real or not, transformed along the axes."""
    for dim in dims:
        extent = shape_of(x.re if isinstance(x, Pair) else x)[dim]
        x = _transformed_along(to, x, dim, extent, extent, -1 if forward else 1)
    return x


def _transformed_along(
    to: Emitter, x: Pair | Any, dim: int, extent: int, wanted: int, sign: int, *, real: bool = False
) -> Pair | Any:
    """x, real or not, transformed along an axis as if zeros followed up to `extent`: the first `wanted` frequencies; of
    these the real part alone, as a tensor, where no more is asked for."""
    parts = [*x] if isinstance(x, Pair) else [x]
    given, slow = shape_of(parts[0])[dim], _first_of_two(extent)
    if slow > 1:
        return _in_two(to, parts, dim, (slow, extent // slow), wanted, sign, real=real)
    cos, sin = _waves(given, wanted, extent, sign)
    found = [(_along(to, part, dim, cos), _along(to, part, dim, sin)) for part in parts]
    if len(found) == 1:
        return found[0][0] if real else Pair(*found[0])
    (re_cos, re_sin), (im_cos, im_sin) = found
    re = to.emit(op.subtract(re_cos, im_sin))
    return re if real else Pair(re, to.emit(op.add(re_sin, im_cos)))


def _in_two(
    to: Emitter, parts: Sequence[Any], dim: int, factors: tuple[int, int], wanted: int, sign: int, *, real: bool
) -> Pair | Any:
    """The same by a transform of each of two factors of the extent. parts: x, or its real and its imaginary part.

    Place n is fast p + q with p < slow and q < fast, frequency k is r + slow s with r < slow and s < fast, and n k is
    fast p r + q r + slow q s modulo the extent. Places that are not given are zero, so that the last p are left out.
    Between the products the imaginary part lies below the real one.
    """
    (slow, fast), shape = factors, shape_of(parts[0])
    rank, given = len(shape), shape[dim]
    rows, columns = -(-given // fast), -(-wanted // slow)
    outer = [axis for axis in range(rank) if axis != dim]
    axes, before = [*outer, dim], [shape[axis] for axis in outer]
    dtype = dtype_of(parts[0])

    def by_rows(part: Any) -> Any:
        moved = to.permute(part, axes)
        if rows * fast > given:
            moved = to.emit(op.nn.pad(moved, [*[0] * (2 * rank - 1), rows * fast - given]))
        return to.emit(op.reshape(moved, (*before, rows, fast)))

    def part_of(both: Any, at: int, size: int) -> Any:
        return to.emit(op.strided_slice(both, [rank - 1], [at * size], [(at + 1) * size]))

    def frequencies(part: Any) -> Any:
        whole = to.emit(op.reshape(part, (*before, columns * slow)))
        some = to.emit(op.strided_slice(whole, [rank - 1], [0], [wanted])) if columns * slow > wanted else whole
        return to.permute(some, np.argsort(axes).tolist())

    cos, sin = _waves(slow, rows, slow, sign)
    turns = [np.concatenate([cos, sin]), np.concatenate([-sin, cos])]
    products = [
        to.emit(op.matmul(to.const(turn, dtype), by_rows(part))) for turn, part in zip(turns, parts, strict=False)
    ]
    both = products[0] if len(products) == 1 else to.emit(op.add(*products))
    re, im = part_of(both, 0, slow), part_of(both, 1, slow)
    cos, sin = (to.const(wave, dtype) for wave in _waves(slow, fast, slow * fast, sign))
    turned = (
        op.subtract(op.multiply(re, cos), op.multiply(im, sin)),
        op.add(op.multiply(re, sin), op.multiply(im, cos)),
    )
    columns_first = [*range(rank - 1), rank, rank - 1]
    both = to.emit(op.concat([to.permute(to.emit(part), columns_first) for part in turned], rank - 1))
    cos, sin = _waves(columns, fast, fast, sign)
    if real:
        return frequencies(to.emit(op.matmul(to.const(np.hstack([cos, -sin]), dtype), both)))
    both = to.emit(op.matmul(to.const(np.block([[cos, -sin], [sin, cos]]), dtype), both))
    return Pair(frequencies(part_of(both, 0, columns)), frequencies(part_of(both, 1, columns)))


def _first_of_two(extent: int) -> int:
    """The largest divisor up to the root of an extent of which two transforms in turn are cheaper than one; else 1.

    What it leaves of an even extent is even: then no rotation stands between a real input and its middle frequency, which
    is real as well.
    """
    for slow in range(math.isqrt(extent), 1, -1):
        fast = extent // slow
        if extent % slow == 0 and (extent % 2 or fast % 2 == 0):
            return slow if extent >= LEAST_DIVIDED and WORTH_DIVIDING * (slow + fast) <= extent else 1
    return 1


def _scaled(to: Emitter, x: Pair, factor: float) -> Pair:
    if factor == 1:
        return x
    number = to.const(factor, dtype_of(x.re))
    return Pair(to.emit(op.multiply(x.re, number)), to.emit(op.multiply(x.im, number)))


def _count(x: Any, dims: Sequence[int]) -> int:
    return math.prod(shape_of(x)[dim] for dim in dims)


@of_complex("_fft_c2c.default")
def complex_to_complex(to: Emitter, x: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Pair:
    dims = [axis % len(to.shape) for axis in dim]
    return _scaled(to, _transformed(to, x, dims, forward), _scale(normalization, _count(x.re, dims)))


@of_complex("_fft_r2c.default")
def real_to_complex(to: Emitter, x: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Pair:
    dims = [axis % len(to.shape) for axis in dim]
    last = dims[-1]
    extent = shape_of(x)[last]
    found = _transformed_along(to, x, last, extent, extent // 2 + 1 if onesided else extent, -1)
    return _scaled(to, _transformed(to, found, dims[:-1], True), _scale(normalization, _count(x, dims)))


@of_complex("_fft_c2r.default")
def complex_to_real(to: Emitter, x: Pair, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    """The last axis holds half of a spectrum whose other half is its conjugate."""
    dims = [axis % len(to.shape) for axis in dim]
    last = dims[-1]
    x = _transformed(to, x, dims[:-1], False)
    extent, half = last_dim_size, last_dim_size // 2 + 1
    have = min(shape_of(x.re)[last], half)
    ends = [0, half - 1] if extent % 2 == 0 and have == half else [0]  # These are real, whatever is given.
    times = np.full((2, have), 2.0 * _scale(normalization, _count(x.re, dims[:-1]) * extent))
    times[0, ends], times[1, ends] = times[0, ends] / 2, 0.0
    shape = [-1 if axis == last else 1 for axis in range(len(to.shape))]

    def weighted(part: Any, factors: np.ndarray) -> Any:
        some = to.emit(op.strided_slice(part, [last], [0], [have])) if shape_of(part)[last] > have else part
        return to.emit(op.multiply(some, to.const(factors.reshape(shape), dtype_of(part))))

    spectrum = Pair(*map(weighted, x, times))
    return _transformed_along(to, spectrum, last, extent, extent, 1, real=True)
