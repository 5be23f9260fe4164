"""Symmetric matrices that need not be positive: A = L D L^T, D of blocks of one or two rows, in the type of the matrix.

LAPACK's `sytf2` and `sytrs`, lower triangle. Bunch and Kaufman, "Some stable methods for calculating inertia and solving
symmetric linear systems" (1977). A pivot p > 0 of row k: rows and columns k and p - 1 were exchanged, the block has one
row. Equal pivots p < 0 of k and k + 1: rows k + 1 and -p - 1 were, the block has two.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.ingest.matrices.elimination import exchange, row_of
from tuner.ingest.matrices.writing import Array, Kernel, Tensor, branch, down, each, matrix_function, when
from tuner.tvm_compat import tirx

ALPHA = (1 + math.sqrt(17)) / 8
"""What bounds the growth of elements alike for blocks of one and two rows."""


def ldl_factor(batch: int, size: int, dtype: str) -> Any:
    """a [size, size], of which the lower triangle is read -> (L and D in one, pivots [size], info []).

    info is the first column, from 1, whose block is zero, else 0.
    """

    def body(kernel: Kernel, a: Array, ld: Array, pivots: Array, info: Array) -> None:
        info[()] = 0
        with each(size) as i, each(size) as j:
            ld[i, j] = tirx.Select(j <= i, a[i, j], tirx.const(0, dtype))
        _Factorisation(kernel, size, ld, pivots, info).run()

    matrix = Tensor(shape=(size, size), dtype=dtype)
    results = [matrix, Tensor(shape=(size,), dtype="int32"), Tensor(shape=(), dtype="int32")]
    return matrix_function("ldl_factor", batch, [matrix], results, body)


class _Factorisation:
    def __init__(self, kernel: Kernel, size: int, ld: Array, pivots: Array, info: Array) -> None:
        self.kernel, self.size, self.ld, self.pivots, self.info = kernel, size, ld, pivots, info
        self.inside, self.two, self.chosen, self.at = (kernel.index(0) for _ in range(4))
        self.diagonal, self.of_column, self.of_row = (kernel.scalar(ld.dtype) for _ in range(3))

    def run(self) -> None:
        with each(self.size) as k, branch(self.inside.now == 1) as (second, first):
            with second:
                self.inside.set(0)
            with first:
                self._choose(k)
                is_zero = tirx.max(self.diagonal.now, self.of_column.now) == self._real(0)
                with branch(is_zero) as (zero, other):
                    with zero, when(self.info[()] == 0):
                        self.info[()] = k + 1
                    with other:
                        self._exchange(k)
                        with branch(self.two.now == 1) as (pair, single):
                            with pair:
                                self._eliminate_two(k)
                            with single:
                                self._eliminate_one(k)
                with branch(self.two.now == 1) as (pair, single):
                    with pair:
                        self.pivots[k] = -(self.chosen.now + 1)
                        self.pivots[k + 1] = -(self.chosen.now + 1)
                        self.inside.set(1)
                    with single:
                        self.pivots[k] = self.chosen.now + 1

    def _real(self, value: float) -> Any:
        return tirx.const(value, self.ld.dtype)

    def _choose(self, k: Any) -> None:
        """How many rows the block at k has, and which row is exchanged with its last one."""
        ld, size, alpha = self.ld, self.size, self._real(ALPHA)
        self.two.set(0)
        self.chosen.set(k)
        self.at.set(k)
        self.diagonal.set(tirx.abs(ld[k, k]))
        self.of_column.set(0.0)
        with each(k + 1, size) as i, when(tirx.abs(ld[i, k]) > self.of_column.now):
            self.of_column.set(tirx.abs(ld[i, k]))
            self.at.set(i)
        with when(self.diagonal.now < alpha * self.of_column.now):
            self.of_row.set(0.0)
            with each(k, self.at.now) as j:
                self.of_row.set(tirx.max(self.of_row.now, tirx.abs(ld[self.at.now, j])))
            with each(self.at.now + 1, size) as i:
                self.of_row.set(tirx.max(self.of_row.now, tirx.abs(ld[i, self.at.now])))
            bound = alpha * self.of_column.now * (self.of_column.now / self.of_row.now)
            with when(self.diagonal.now < bound):
                self.chosen.set(self.at.now)
                with when(tirx.abs(ld[self.at.now, self.at.now]) < alpha * self.of_row.now):
                    self.two.set(1)

    def _exchange(self, k: Any) -> None:
        """Rows and columns of the block's last row and the chosen one, in the lower triangle of what is left."""
        kernel, ld = self.kernel, self.ld
        last, other = kernel.hold(k + self.two.now), kernel.hold(self.chosen.now)
        with when(last != other):
            with each(other + 1, self.size) as i:
                exchange(kernel, ld, (i, last), (i, other))
            with each(last + 1, other) as i:
                exchange(kernel, ld, (i, last), (other, i))
            exchange(kernel, ld, (last, last), (other, other))
            with when(self.two.now == 1):
                exchange(kernel, ld, (k + 1, k), (other, k))

    def _eliminate_one(self, k: Any) -> None:
        ld, size = self.ld, self.size
        inverse = self.kernel.hold(self._real(1) / ld[k, k])
        with each(k + 1, size) as j, each(j, size) as i:
            ld[i, j] = ld[i, j] - inverse * ld[i, k] * ld[j, k]
        with each(k + 1, size) as i:
            ld[i, k] = ld[i, k] * inverse

    def _eliminate_two(self, k: Any) -> None:
        kernel, ld, size, one = self.kernel, self.ld, self.size, self._real(1)
        beside = kernel.hold(ld[k + 1, k])
        second, first = kernel.hold(ld[k + 1, k + 1] / beside), kernel.hold(ld[k, k] / beside)
        factor = kernel.hold(one / (second * first - one) / beside)
        with each(k + 2, size) as j:
            w = kernel.hold(factor * (second * ld[j, k] - ld[j, k + 1]))
            following = kernel.hold(factor * (first * ld[j, k + 1] - ld[j, k]))
            with each(j, size) as i:
                ld[i, j] = ld[i, j] - ld[i, k] * w - ld[i, k + 1] * following
            ld[j, k] = w
            ld[j, k + 1] = following


def ldl_solve(batch: int, size: int, columns: int, dtype: str) -> Any:
    """(ld [size, size], pivots [size], b [size, columns]) -> x of A x = b."""

    def body(kernel: Kernel, ld: Array, pivots: Array, b: Array, x: Array) -> None:
        inside = kernel.index(0)
        with each(size) as i, each(columns) as j:
            x[i, j] = b[i, j]
        with each(size) as k, branch(inside.now == 1) as (second, first):
            with second:
                inside.set(0)
            with first, branch(tirx.any(pivots[k] > 0, k == size - 1)) as (single, pair):
                with single:
                    _exchange_rows(kernel, x, columns, k, row_of(pivots[k], size))
                    with each(k + 1, size) as i, each(columns) as j:
                        x[i, j] = x[i, j] - ld[i, k] * x[k, j]
                    with each(columns) as j:
                        x[k, j] = x[k, j] / ld[k, k]
                with pair:
                    inside.set(1)
                    _exchange_rows(kernel, x, columns, k + 1, row_of(-pivots[k], size))
                    with each(k + 2, size) as i, each(columns) as j:
                        x[i, j] = x[i, j] - ld[i, k] * x[k, j] - ld[i, k + 1] * x[k + 1, j]
                    _divide_by_block(kernel, ld, x, columns, k)
        inside.set(0)
        with down(size) as k, branch(inside.now == 1) as (second, first):
            with second:
                inside.set(0)
            with first:
                with when(pivots[k] <= 0, k > 0):
                    inside.set(1)
                with each(k - inside.now, k + 1) as row, each(k + 1, size) as i, each(columns) as j:
                    x[row, j] = x[row, j] - ld[i, row] * x[i, j]
                with branch(inside.now == 1) as (pair, single):
                    with pair:
                        _exchange_rows(kernel, x, columns, k, row_of(-pivots[k], size))
                    with single:
                        _exchange_rows(kernel, x, columns, k, row_of(pivots[k], size))

    given = [Tensor(shape=(size, size), dtype=dtype), Tensor(shape=(size,), dtype="int32")]
    right = Tensor(shape=(size, columns), dtype=dtype)
    return matrix_function("ldl_solve", batch, [*given, right], [right], body)


def _exchange_rows(kernel: Kernel, x: Array, columns: int, one: Any, other: Any) -> None:
    held = kernel.hold(other)
    with each(columns) as j:
        exchange(kernel, x, (one, j), (held, j))


def _divide_by_block(kernel: Kernel, ld: Array, x: Array, columns: int, k: Any) -> None:
    beside = kernel.hold(ld[k + 1, k])
    first, second = kernel.hold(ld[k, k] / beside), kernel.hold(ld[k + 1, k + 1] / beside)
    divisor = kernel.hold(first * second - tirx.const(1, ld.dtype))
    with each(columns) as j:
        upper, lower = kernel.hold(x[k, j] / beside), kernel.hold(x[k + 1, j] / beside)
        x[k, j] = (second * upper - lower) / divisor
        x[k + 1, j] = (first * lower - upper) / divisor
