"""LU with partial pivoting, Cholesky, and substitution in triangles, in the type of the matrix, as LAPACK's unblocked ones.

The order of the operations is theirs: a matrix that is singular without rounding errors has its zero in the same place.
"""

from __future__ import annotations

from typing import Any

from tuner.ingest.matrices.writing import Array, Kernel, Tensor, branch, choose, down, each, matrix_function, root, when
from tuner.tvm_compat import tirx


def lu_factor(batch: int, rows: int, columns: int, dtype: str) -> Any:
    """a [rows, columns] -> (L below the diagonal and U in one, pivots from 1 [min], info []).

    Row i was exchanged with row pivots[i]; info is the first column, from 1, without a pivot, else 0.
    """
    size = min(rows, columns)

    def body(kernel: Kernel, a: Array, lu: Array, pivots: Array, info: Array) -> None:
        _copy(a, lu, rows, columns)
        info[()] = 0
        chosen, largest = kernel.index(), kernel.scalar(dtype)
        with each(size) as k:
            chosen.set(k)
            largest.set(tirx.abs(lu[k, k]))
            with each(k + 1, rows) as i, when(tirx.abs(lu[i, k]) > largest.now):
                chosen.set(i)
                largest.set(tirx.abs(lu[i, k]))
            pivots[k] = chosen.now + 1
            with when(chosen.now != k), each(columns) as j:
                exchange(kernel, lu, (k, j), (chosen.now, j))
            with branch(lu[k, k] == tirx.const(0, dtype)) as (none, some):
                with none, when(info[()] == 0):
                    info[()] = k + 1
                with some, each(k + 1, rows) as i:
                    lu[i, k] = lu[i, k] / lu[k, k]
            with each(k + 1, rows) as i, each(k + 1, columns) as j:
                lu[i, j] = lu[i, j] - lu[i, k] * lu[k, j]

    results = [Tensor(shape=(rows, columns), dtype=dtype), Tensor(shape=(size,), dtype="int32")]
    return matrix_function(
        "lu_factor",
        batch,
        [Tensor(shape=(rows, columns), dtype=dtype)],
        [*results, Tensor(shape=(), dtype="int32")],
        body,
    )


def lu_solve(batch: int, size: int, columns: int, dtype: str, *, transposed: bool) -> Any:
    """(lu [size, size], pivots [size], b [size, columns]) -> x of A x = b, or of A^T x = b."""

    def body(kernel: Kernel, lu: Array, pivots: Array, b: Array, x: Array) -> None:
        def permuted(k: Any) -> None:
            other = kernel.hold(row_of(pivots[k], size))
            with each(columns) as j:
                exchange(kernel, x, (k, j), (other, j))

        _copy(b, x, size, columns)
        if transposed:
            substitute(lu, x, size, columns, upper=True, transposed=True)
            substitute(lu, x, size, columns, upper=False, transposed=True, unit=True)
            with down(size) as k:
                permuted(k)
        else:
            with each(size) as k:
                permuted(k)
            substitute(lu, x, size, columns, upper=False, unit=True)
            substitute(lu, x, size, columns, upper=True)

    given = [Tensor(shape=(size, size), dtype=dtype), Tensor(shape=(size,), dtype="int32")]
    right = Tensor(shape=(size, columns), dtype=dtype)
    return matrix_function("lu_solve", batch, [*given, right], [right], body)


def determinant(batch: int, size: int, dtype: str) -> Any:
    """(lu [size, size], pivots [size]) -> (the determinant [], its sign [], the logarithm of its size [])."""

    def body(kernel: Kernel, lu: Array, pivots: Array, value: Array, sign: Array, logarithm: Array) -> None:
        one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
        product, turns, total = (kernel.scalar(dtype) for _ in range(3))
        product.set(1.0)
        turns.set(1.0)
        total.set(0.0)
        with each(size) as k:
            turned = choose(tirx.Cast("int64", pivots[k]) == k + 1, one, -one)
            way = choose(lu[k, k] > zero, one, choose(lu[k, k] < zero, -one, lu[k, k]))
            product.set(product.now * lu[k, k] * turned)
            turns.set(turns.now * way * turned)
            total.set(total.now + tirx.log(tirx.abs(lu[k, k])))
        value[()] = product.now
        sign[()] = turns.now
        logarithm[()] = total.now

    given = [Tensor(shape=(size, size), dtype=dtype), Tensor(shape=(size,), dtype="int32")]
    return matrix_function("determinant", batch, given, [Tensor(shape=(), dtype=dtype)] * 3, body)


def permutation(batch: int, rows: int, count: int, dtype: str) -> Any:
    """pivots [count], from 1 -> the matrix P [rows, rows] of A = P L U."""

    def body(kernel: Kernel, pivots: Array, p: Array) -> None:
        _identity(p, rows)
        with each(count) as k:
            other = kernel.hold(row_of(pivots[k], rows))
            with each(rows) as i:
                exchange(kernel, p, (i, k), (i, other))

    given, result = Tensor(shape=(count,), dtype="int32"), Tensor(shape=(rows, rows), dtype=dtype)
    return matrix_function("permutation", batch, [given], [result], body)


def cholesky(batch: int, size: int, dtype: str) -> Any:
    """a [size, size], of which the lower triangle is read -> (L, info []).

    info is the first column, from 1, that shows that a is not positive, else 0: from there on L is what a was.
    """

    def body(kernel: Kernel, a: Array, lower: Array, info: Array) -> None:
        info[()] = 0
        rest = kernel.scalar(dtype)
        with each(size) as i, each(size) as j:
            lower[i, j] = choose(j <= i, a[i, j], tirx.const(0, dtype))
        with each(size) as k, when(info[()] == 0), each(k, size) as i, when(info[()] == 0):
            rest.set(lower[i, k])
            with each(k) as p:
                rest.set(rest.now - lower[i, p] * lower[k, p])
            with branch(i == k) as (diagonal, below):
                with diagonal, branch(rest.now > tirx.const(0, dtype)) as (positive, other):
                    with positive:
                        lower[k, k] = root(rest.now)
                    with other:
                        lower[k, k] = rest.now
                        info[()] = k + 1
                with below:
                    lower[i, k] = rest.now / lower[k, k]

    matrix = Tensor(shape=(size, size), dtype=dtype)
    return matrix_function("cholesky", batch, [matrix], [matrix, Tensor(shape=(), dtype="int32")], body)


def triangular_solve(batch: int, size: int, columns: int, dtype: str, *, upper: bool, unit: bool) -> Any:
    """(a triangle [size, size], b [size, columns]) -> x of a x = b; `unit`: the diagonal is taken for ones."""

    def body(_kernel: Kernel, a: Array, b: Array, x: Array) -> None:
        _copy(b, x, size, columns)
        substitute(a, x, size, columns, upper=upper, unit=unit)

    right = Tensor(shape=(size, columns), dtype=dtype)
    name = "upper_solve" if upper else "lower_solve"
    return matrix_function(name, batch, [Tensor(shape=(size, size), dtype=dtype), right], [right], body)


def substitute(
    a: Array, x: Array, size: int, columns: int, *, upper: bool, transposed: bool = False, unit: bool = False
) -> None:
    """x becomes what a x = b, or a^T x = b, has for b = x. Only the triangle of a is read."""
    forward = upper == transposed
    with each(size) if forward else down(size) as k:
        if not unit:
            with each(columns) as j:
                x[k, j] = x[k, j] / a[k, k]
        with each(k + 1, size) if forward else each(k) as i, each(columns) as j:
            x[i, j] = x[i, j] - (a[k, i] if transposed else a[i, k]) * x[k, j]


def exchange(kernel: Kernel, x: Array, one: Any, other: Any) -> None:
    """Two elements of an array change places."""
    held = kernel.hold(x[one])
    x[one] = x[other]
    x[other] = held


def row_of(pivot: Any, rows: int) -> Any:
    """A pivot, counted from 1, as a row; rows that are none are the nearest that is one."""
    return tirx.max(tirx.min(tirx.Cast("int64", pivot) - 1, rows - 1), 0)


def _copy(source: Array, to: Array, rows: int, columns: int) -> None:
    with each(rows) as i, each(columns) as j:
        to[i, j] = source[i, j]


def _identity(x: Array, size: int) -> None:
    with each(size) as i, each(size) as j:
        x[i, j] = choose(i == j, tirx.const(1, x.dtype), tirx.const(0, x.dtype))
