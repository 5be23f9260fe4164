"""Complex numbers between a program's real inputs and outputs: two real tensors, followed while a graph is converted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from tuner.ingest.aten.emitter import Emitter, converter, is_tensor, shape_of, wide
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


@converter("angle.default")
def angle_of_real(to: Emitter, x: Any) -> Any:
    """Pi for negative numbers, 0 for others, and no number for what is none."""
    dtype = wide(to.dtype)
    x = to.cast(x, dtype)
    negative = to.emit(op.where(op.less(x, to.const(0, dtype)), to.const(math.pi, dtype), to.const(0, dtype)))
    return to.cast(to.emit(op.where(op.isnan(x), x, negative)), to.dtype)
