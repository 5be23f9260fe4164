"""The exponential of a matrix, in float64: e^A = (e^(A / 2^k))^(2^k), k such that the norm of A / 2^k is at most 1/2.

The inner exponential is the Taylor polynomial of degree TERMS, by Horner's rule.
"""

from __future__ import annotations

from typing import Any

from tuner.ingest.matrices.reflections import copied
from tuner.ingest.matrices.writing import Array, Kernel, Tensor, choose, each, matrix_function, real, when
from tuner.tvm_compat import tirx

TERMS = 14
"""Degree: of a norm of 1/2 what is left out is below 2^-53."""
HALVINGS = 64
"""Most of them: the exponential of a matrix with a greater norm is far beyond what the type can hold."""


def matrix_exp(batch: int, size: int, dtype: str) -> Any:
    """a [size, size] -> e^a."""

    def body(kernel: Kernel, a: Array, result: Array) -> None:
        scaled = copied(kernel, a, size, size)
        norm, column, halvings = kernel.scalar(), kernel.scalar(), kernel.index(0)
        norm.set(0.0)
        with each(size) as j:
            column.set(0.0)
            with each(size) as i:
                column.set(column.now + tirx.abs(scaled[i, j]))
            norm.set(tirx.max(norm.now, column.now))
        with each(HALVINGS), when(norm.now > real(0.5)):
            norm.set(norm.now * real(0.5))
            halvings.set(halvings.now + 1)
            with each(size) as i, each(size) as j:
                scaled[i, j] = scaled[i, j] * real(0.5)
        sum_of, product = kernel.array([size, size]), kernel.array([size, size])
        with each(size) as i, each(size) as j:
            sum_of[i, j] = choose(i == j, real(1.0), real(0.0))
        with each(TERMS) as turned:
            _multiply(size, scaled, sum_of, product)
            with each(size) as i, each(size) as j:
                one = choose(i == j, real(1.0), real(0.0))
                sum_of[i, j] = one + product[i, j] / (TERMS - turned).astype("float64")
        with each(HALVINGS) as k, when(k < halvings.now):
            _multiply(size, sum_of, sum_of, product)
            with each(size) as i, each(size) as j:
                sum_of[i, j] = product[i, j]
        with each(size) as i, each(size) as j:
            result[i, j] = sum_of[i, j]

    matrix = Tensor(shape=(size, size), dtype=dtype)
    return matrix_function("matrix_exp", batch, [matrix], [matrix], body)


def _multiply(size: int, a: Array, b: Array, product: Array) -> None:
    with each(size) as i:
        with each(size) as j:
            product[i, j] = 0.0
        with each(size) as k, each(size) as j:
            product[i, j] = product[i, j] + a[i, k] * b[k, j]
