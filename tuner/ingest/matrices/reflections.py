"""Householder's reflections H = I - tau v v^T, v[0] = 1, and what is made of them: QR, and products of them.

In float64, as norms are sums of squares. Of a vector x: H x = (beta, 0, ...), beta = -sign(x[0]) |x|, as LAPACK's `larfg`;
where all but x[0] is zero tau is 0, and beta is x[0].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.ingest.matrices.writing import (
    Array,
    Kernel,
    Scalar,
    Tensor,
    branch,
    choose,
    down,
    each,
    hypotenuse,
    matrix_function,
    real,
    root,
    signed,
)

Element = Callable[[Any], tuple[Any, ...]]
"""Number of an element of a vector -> its place in an array."""


def geqrf(batch: int, rows: int, columns: int, dtype: str) -> Any:
    """a [rows, columns] -> (R and below its diagonal the v, [rows, columns], taus [min])."""
    size = min(rows, columns)

    def body(kernel: Kernel, a: Array, factors: Array, taus: Array) -> None:
        work = copied(kernel, a, rows, columns)
        triangular(kernel, work, rows, columns, taus)
        with each(rows) as i, each(columns) as j:
            factors[i, j] = work[i, j]

    matrix = Tensor(shape=(rows, columns), dtype=dtype)
    return matrix_function("geqrf", batch, [matrix], [matrix, Tensor(shape=(size,), dtype=dtype)], body)


def multiplied(
    batch: int, rows: int, columns: int, width: int, count: int, dtype: str, *, transposed: bool, identity: bool
) -> Any:
    """(a [rows, columns], taus [count], c [rows, width]) -> Q c, or Q^T c, with Q = H_0 ... H_(count - 1).

    The v of H_k is a's column k from its diagonal on. With `identity` c is none of the parameters but ones on a diagonal.
    """

    def body(kernel: Kernel, a: Array, taus: Array, *rest: Array) -> None:
        result = rest[-1]
        work = kernel.array([rows, width])
        with each(rows) as i, each(width) as j:
            work[i, j] = choose(i == j, real(1.0), real(0.0)) if identity else rest[0][i, j]
        with each(count) if transposed else down(count) as k, each(width) as j:
            reflect(kernel, a, lambda i: (k + i, k), work, lambda i: (k + i, j), rows - k, taus[k])
        with each(rows) as i, each(width) as j:
            result[i, j] = work[i, j]

    given = [Tensor(shape=(rows, columns), dtype=dtype), Tensor(shape=(count,), dtype=dtype)]
    result = Tensor(shape=(rows, width), dtype=dtype)
    return matrix_function("householder", batch, given if identity else [*given, result], [result], body)


def triangular(kernel: Kernel, work: Array, rows: int, columns: int, taus: Array) -> None:
    """In place: R, and below its diagonal the v of the reflections that made it."""
    tau = kernel.scalar()
    with each(min(rows, columns)) as k:
        reflector(kernel, work, lambda i: (k + i, k), rows - k, tau)
        taus[k] = tau.now
        with each(k + 1, columns) as j:
            reflect(kernel, work, lambda i: (k + i, k), work, lambda i: (k + i, j), rows - k, tau.now)


def copied(kernel: Kernel, a: Array, rows: int, columns: int, *, transposed: bool = False) -> Array:
    """A copy in float64, [rows, columns]."""
    work = kernel.array([rows, columns])
    with each(rows) as i, each(columns) as j:
        work[i, j] = a[j, i] if transposed else a[i, j]
    return work


def reflector(kernel: Kernel, x: Array, at: Element, length: Any, tau: Scalar) -> None:
    """Of the vector of elements x[at(0)], ...: the first becomes beta, the others become v's."""
    alpha, beta, scale, squares = (kernel.scalar() for _ in range(4))
    alpha.set(x[at(0)])
    squares.set(0.0)
    with each(1, length) as i:
        squares.set(squares.now + x[at(i)] * x[at(i)])
    with branch(squares.now == real(0.0)) as (done, reflected):
        with done:
            tau.set(0.0)
        with reflected:
            beta.set(-signed(hypotenuse(alpha.now, root(squares.now)), alpha.now))
            tau.set((beta.now - alpha.now) / beta.now)
            scale.set(real(1.0) / (alpha.now - beta.now))
            with each(1, length) as i:
                x[at(i)] = x[at(i)] * scale.now
            x[at(0)] = beta.now


def reflect(kernel: Kernel, v: Array, v_at: Element, x: Array, at: Element, length: Any, tau: Any) -> None:
    """x becomes H x, vectors of elements; v[v_at(0)] is not read."""
    product = kernel.scalar()
    product.set(x[at(0)])
    with each(1, length) as i:
        product.set(product.now + _wide(v[v_at(i)]) * x[at(i)])
    product.set(product.now * _wide(tau))
    x[at(0)] = x[at(0)] - product.now
    with each(1, length) as i:
        x[at(i)] = x[at(i)] - product.now * _wide(v[v_at(i)])


def _wide(value: Any) -> Any:
    return value.astype("float64")
