"""Complex numbers between a program's real inputs and outputs: two real tensors, followed while a graph is converted.

Fourier transforms of static extents are products with constant matrices. Long ones are two short ones and a rotation between
them (Cooley and Tukey, 1965): of an extent a b, an element costs a + b multiplications in place of a b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, is_tensor, shape_of, wide
from tuner.tvm_compat import relax

op = relax.op


class Pair(NamedTuple):
    """re + i im."""

    re: Any
    im: Any


PARTWISE = frozenset(
    {
        *(
            "alias.default",
            "clone.default",
            "detach.default",
            "view.default",
            "reshape.default",
            "_unsafe_view.default",
        ),
        *("permute.default", "transpose.int", "t.default", "expand.default", "unsqueeze.default", "squeeze.default"),
        *("squeeze.dim", "squeeze.dims", "slice.Tensor", "select.int", "cat.default", "stack.default", "flip.default"),
        *("roll.default", "repeat.default", "diagonal.default", "unfold.default", "as_strided.default", "neg.default"),
        *("sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "index_select.default", "gather.default"),
        *("constant_pad_nd.default", "tril.default", "triu.default", "index.Tensor", "add.Tensor", "sub.Tensor"),
        *("slice_scatter.default", "select_scatter.default", "where.self", "copy.default"),
    }
)
"""Operators that do the same to both parts."""
NUMBERS = frozenset({"x", "other", "tensors", "src", "value"})
"""Their arguments that are such numbers; others, as indices and conditions are, stand for both parts."""


def split_parts(to: Emitter, name: str, argument: Any) -> tuple[Any, Any]:
    """An operator's argument for the real and for the imaginary part, which is zero of a real number."""
    if isinstance(argument, Pair):
        return argument.re, argument.im
    if isinstance(argument, list):
        parts = [split_parts(to, name, each) for each in argument]
        return [re for re, _ in parts], [im for _, im in parts]
    if name not in NUMBERS or argument is None:
        return argument, argument
    if is_tensor(argument):
        return argument, to.emit(op.zeros(relax.ShapeExpr(shape_of(argument)), to.dtype))
    number = complex(argument)
    return number.real, number.imag


def is_complex(argument: Any) -> bool:
    return isinstance(argument, (Pair, complex)) or (isinstance(argument, list) and any(map(is_complex, argument)))


COMPLEX: dict[str, Callable[..., Any]] = {}
"""Converters of operators that take or give complex tensors; they take precedence."""


def of_complex(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        COMPLEX.update(dict.fromkeys(names, function))
        return function

    return register


def as_pair(to: Emitter, x: Any, dtype: str) -> Pair:
    """A tensor or number as complex, its parts of type `dtype`."""
    if isinstance(x, Pair):
        return Pair(to.cast(x.re, dtype), to.cast(x.im, dtype))
    if isinstance(x, complex):
        return Pair(to.const(x.real, dtype), to.const(x.imag, dtype))
    re = to.tensor(x, dtype)
    return Pair(re, to.emit(op.zeros(relax.ShapeExpr(shape_of(re)), dtype)))


@of_complex("_to_copy.default", "convert_element_type.default")
def to_copy(to: Emitter, x: Any, **_: Any) -> Any:
    if to.gives_complex:
        return as_pair(to, x, to.dtype)
    return to.cast(x.re, to.dtype)


@of_complex("view_as_real.default", "view_as_real_copy.default")
def view_as_real(to: Emitter, x: Pair) -> Any:
    return to.emit(op.concat([to.emit(op.expand_dims(part, -1)) for part in x], axis=-1))


@of_complex("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(to: Emitter, x: Any) -> Pair:
    last = len(shape_of(x)) - 1
    return Pair(*(to.emit(op.take(x, relax.const(at, "int64"), last)) for at in (0, 1)))


@of_complex("complex.default")
def make(to: Emitter, real: Any, imag: Any) -> Pair:
    return Pair(to.broadcast(real, to.shape), to.broadcast(imag, to.shape))


@of_complex("full.default", "full_like.default", "new_full.default", "scalar_tensor.default")
@of_complex(
    "zeros.default", "zeros_like.default", "new_zeros.default", "ones.default", "ones_like.default", "new_ones.default"
)
def filled(to: Emitter, fill_value: Any = None, s: Any = None, **_: Any) -> Any:
    given = s if fill_value is None else fill_value
    number = given if given is not None else 1 if "ones" in str(to.node.target) else 0
    parts = split_parts(to, "value", number)
    found = [to.broadcast(to.tensor(part, to.dtype), to.shape) for part in parts]
    return Pair(*found) if to.gives_complex else found[0]


@of_complex("polar.default")
def polar(to: Emitter, abs: Any, angle: Any) -> Pair:
    parts = (to.emit(op.multiply(abs, to.emit(part(angle)))) for part in (op.cos, op.sin))
    return Pair(*(to.broadcast(part, to.shape) for part in parts))


@of_complex("_conj.default", "_conj_physical.default", "conj_physical.default")
def conjugate(to: Emitter, x: Pair) -> Pair:
    return Pair(x.re, to.emit(op.negative(x.im)))


@of_complex("resolve_conj.default", "resolve_neg.default")
def same(_: Emitter, x: Any) -> Any:
    return x


@of_complex("mul.Tensor", "mul.Scalar")
def multiply(to: Emitter, x: Any, other: Any) -> Pair:
    if not isinstance(x, Pair):
        x, other = other, x
    if not isinstance(other, (Pair, complex)):
        x = as_pair(to, x, to.dtype)
        real = to.tensor(other, to.dtype)
        return Pair(to.emit(op.multiply(x.re, real)), to.emit(op.multiply(x.im, real)))
    a, b = as_pair(to, x, to.dtype), as_pair(to, other, to.dtype)
    return _times(to, a, b, op.multiply)


def _times(to: Emitter, a: Pair, b: Pair, product: Callable[..., Any]) -> Pair:
    re = op.subtract(to.emit(product(a.re, b.re)), to.emit(product(a.im, b.im)))
    im = op.add(to.emit(product(a.re, b.im)), to.emit(product(a.im, b.re)))
    return Pair(to.emit(re), to.emit(im))


@of_complex("mm.default", "bmm.default")
def matmul(to: Emitter, x: Any, mat2: Any) -> Pair:
    return _times(to, as_pair(to, x, to.dtype), as_pair(to, mat2, to.dtype), op.matmul)


@of_complex("addmm.default")
def matmul_and_add(to: Emitter, x: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Pair:
    if (beta, alpha) != (1, 1):
        raise NotImplementedError("factors of complex products")
    bias, found = as_pair(to, x, to.dtype), matmul(to, mat1, mat2)
    return Pair(to.emit(op.add(bias.re, found.re)), to.emit(op.add(bias.im, found.im)))


@of_complex("pow.Tensor_Scalar")
def power(to: Emitter, x: Pair, exponent: Any) -> Pair:
    if exponent not in range(1, 9):
        raise NotImplementedError(f"a complex number to the power of {exponent}")
    found = x
    for _ in range(int(exponent) - 1):
        found = _times(to, found, x, op.multiply)
    return found


@of_complex("div.Tensor", "div.Scalar")
def divide(to: Emitter, x: Any, other: Any) -> Pair:
    if not isinstance(other, (Pair, complex)):
        real = to.tensor(other, to.dtype)
        return Pair(to.emit(op.divide(x.re, real)), to.emit(op.divide(x.im, real)))
    a, b = as_pair(to, x, to.dtype), as_pair(to, other, to.dtype)
    over = to.emit(op.add(to.emit(op.multiply(b.re, b.re)), to.emit(op.multiply(b.im, b.im))))
    found = _times(to, a, Pair(b.re, to.emit(op.negative(b.im))), op.multiply)
    return Pair(to.emit(op.divide(found.re, over)), to.emit(op.divide(found.im, over)))


@of_complex("reciprocal.default")
def reciprocal(to: Emitter, x: Pair) -> Pair:
    found: Pair = divide(to, complex(1), x)
    return found


@of_complex("abs.default")
def size(to: Emitter, x: Pair) -> Any:
    return to.emit(op.sqrt(to.emit(op.add(to.emit(op.multiply(x.re, x.re)), to.emit(op.multiply(x.im, x.im))))))


@of_complex("angle.default")
def angle(to: Emitter, x: Any) -> Any:
    return to.emit(op.atan2(x.im, x.re))


@of_complex("log.default")
def logarithm(to: Emitter, x: Pair) -> Pair:
    return Pair(to.emit(op.log(size(to, x))), angle(to, x))


@of_complex("exp.default")
def exponential(to: Emitter, x: Pair) -> Pair:
    length = to.emit(op.exp(x.re))
    return Pair(to.emit(op.multiply(length, op.cos(x.im))), to.emit(op.multiply(length, op.sin(x.im))))


# Fourier transforms

LEAST_DIVIDED = 384
"""A shorter transform is one product. On CPUs two are faster from 192 on, but a GPU, for which a graph is imported by the
same rule, starts ten kernels in place of two."""
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


def _turned(
    to: Emitter, x: Pair | Any, by: Callable[[Any, np.ndarray], Any], waves: tuple[np.ndarray, np.ndarray]
) -> Pair:
    """x, real or not, times cos + i sin, where `by` multiplies a real tensor with a real constant."""
    cos, sin = waves
    if not isinstance(x, Pair):
        return Pair(by(x, cos), by(x, sin))
    return Pair(
        to.emit(op.subtract(by(x.re, cos), by(x.im, sin))),
        to.emit(op.add(by(x.re, sin), by(x.im, cos))),
    )


def _transformed(to: Emitter, x: Pair | Any, dims: Sequence[int], forward: bool) -> Pair | Any:
    """x, real or not, transformed along the axes."""
    for dim in dims:
        extent = shape_of(x.re if isinstance(x, Pair) else x)[dim]
        x = _transformed_along(to, x, dim, extent, extent, -1 if forward else 1)
    return x


def _transformed_along(to: Emitter, x: Pair | Any, dim: int, extent: int, wanted: int, sign: int) -> Pair:
    """x, real or not, transformed along an axis as if zeros followed up to `extent`: the first `wanted` frequencies."""
    shape = shape_of(x.re if isinstance(x, Pair) else x)
    rank, given = len(shape), shape[dim]
    slow = _first_of_two(extent)
    if slow == 1:
        return _turned(to, x, lambda part, wave: _along(to, part, dim, wave), _waves(given, wanted, extent, sign))
    # Place n is fast p + q with p < slow and q < fast, frequency k is r + slow s with r < slow and s < fast, and n k is
    # fast p r + q r + slow q s modulo the extent. Places from `given` on are zero, so that the last p are left out.
    fast = extent // slow
    rows, columns = -(-given // fast), -(-wanted // slow)
    outer = [axis for axis in range(rank) if axis != dim]
    axes, before = [*outer, dim], [shape[axis] for axis in outer]
    back = np.argsort(axes).tolist()

    def in_two(part: Any) -> Any:
        moved = to.permute(part, axes)
        if rows * fast > given:
            moved = to.emit(op.nn.pad(moved, [*[0] * (2 * rank - 1), rows * fast - given]))
        return to.emit(op.reshape(moved, (*before, rows, fast)))

    def times(part: Any, wave: np.ndarray) -> Any:
        return to.emit(op.matmul(to.const(wave, dtype_of(part)), part))

    def rotated(part: Any, wave: np.ndarray) -> Any:
        return to.emit(op.multiply(part, to.const(wave, dtype_of(part))))

    def in_one(part: Any) -> Any:
        whole = to.emit(op.reshape(part, (*before, columns * slow)))
        some = to.emit(op.strided_slice(whole, [rank - 1], [0], [wanted])) if columns * slow > wanted else whole
        return to.permute(some, back)

    x = _turned(to, _each(x, in_two), times, _waves(slow, rows, slow, sign))
    x = _turned(to, x, rotated, _waves(slow, fast, extent, sign))
    x = _each(x, lambda part: to.permute(part, [*range(rank - 1), rank, rank - 1]))
    return Pair(*map(in_one, _turned(to, x, times, _waves(columns, fast, fast, sign))))


def _each(x: Pair | Any, change: Callable[[Any], Any]) -> Pair | Any:
    """A change of a real tensor, or of both parts."""
    return Pair(change(x.re), change(x.im)) if isinstance(x, Pair) else change(x)


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
    times = np.full(have, 2.0 * _scale(normalization, _count(x.re, dims[:-1]) * extent))
    times[0] /= 2
    if extent % 2 == 0 and have == half:
        times[half - 1] /= 2
    rank = len(to.shape)
    weights = times.reshape([-1 if axis == last else 1 for axis in range(rank)])

    def weighted(part: Any) -> Any:
        some = to.emit(op.strided_slice(part, [last], [0], [have])) if shape_of(part)[last] > have else part
        return to.emit(op.multiply(some, to.const(weights, dtype_of(part))))

    return _transformed_along(to, Pair(weighted(x.re), weighted(x.im)), last, extent, extent, 1).re


@converter("angle.default")
def angle_of_real(to: Emitter, x: Any) -> Any:
    """Pi for negative numbers, 0 for others, and no number for what is none."""
    dtype = wide(to.dtype)
    x = to.cast(x, dtype)
    negative = to.emit(op.where(op.less(x, to.const(0, dtype)), to.const(math.pi, dtype), to.const(0, dtype)))
    return to.cast(to.emit(op.where(op.isnan(x), x, negative)), to.dtype)
