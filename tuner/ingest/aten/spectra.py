"""Eigenvalues and singular values with their vectors, pseudoinverses, and exponentials of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.ingest.aten.emitter import HALF, Emitter, converter, dtype_of, shape_of
from tuner.ingest.aten.matrices import called, turned
from tuner.ingest.matrices import eigenvalues, exponential, singular_values
from tuner.tvm_compat import relax

op = relax.op

EIGENVALUES, SINGULAR_VALUES, EXPONENTIAL = 10, 20, 30
"""Operations per long * short^2 of a matrix, with their vectors; factorisations take about one."""


def _eigh(to: Emitter, a: Any, upper: bool) -> list[Any]:
    """(w, Z)."""
    size, dtype = shape_of(a)[-1], dtype_of(a)
    return called(
        to,
        lambda batch: eigenvalues.eigh(batch, size, dtype, upper=upper),
        [(a, 2)],
        [((size,), dtype), ((size, size), dtype)],
        operations=EIGENVALUES,
    )


def _svd(to: Emitter, a: Any, full: bool) -> list[Any]:
    """(U, s, V^T)."""
    (rows, columns), dtype = shape_of(a)[-2:], dtype_of(a)
    size = min(rows, columns)
    results = [
        ((rows, rows if full else size), dtype),
        ((size,), dtype),
        ((columns if full else size, columns), dtype),
    ]
    return called(
        to,
        lambda batch: singular_values.svd(batch, rows, columns, dtype, full=full),
        [(a, 2)],
        results,
        operations=SINGULAR_VALUES,
    )


@converter("_linalg_eigh.default")
def eigh(to: Emitter, A: Any, UPLO: str = "L", compute_v: bool = True) -> tuple[Any, ...]:
    w, z = _eigh(to, A, UPLO.upper() == "U")
    return w, z if compute_v else None


@converter("_linalg_svd.default")
def svd(to: Emitter, A: Any, full_matrices: bool = False, compute_uv: bool = True, **_: Any) -> Any:
    u, s, vt = _svd(to, A, full_matrices and compute_uv)
    return (u, s, vt) if compute_uv else (None, s, None)


@converter("linalg_pinv.atol_rtol_tensor")
def pinv(to: Emitter, x: Any, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """V diag(1 / s) U^T, of those s that are above max(atol, rtol * the largest)."""
    dtype = dtype_of(x)
    if hermitian:
        values, right = _eigh(to, x, False)
        left, sizes = turned(to, right), to.emit(op.abs(values))
    else:
        left, values, right = _svd(to, x, False)
        left, right, sizes = turned(to, left), turned(to, right), values
    bound = _tolerance(to, x, sizes, atol, rtol)
    inverses = op.where(op.greater(sizes, bound), op.divide(to.const(1, dtype), values), to.const(0, dtype))
    scaled = op.multiply(right, op.expand_dims(to.emit(inverses), -2))
    return to.emit(op.matmul(to.emit(scaled), left))


def _tolerance(to: Emitter, x: Any, sizes: Any, atol: Any, rtol: Any) -> Any:
    """[..., 1]. Without rtol it is the distance from 1 to the next number, times the longer side, unless atol is above 0."""
    dtype = dtype_of(x)
    usual = to.const(float(np.finfo(dtype).eps) * max(shape_of(x)[-2:]), dtype)
    if atol is None:
        atol = to.const(0, dtype)
    elif rtol is None:
        rtol = to.emit(op.where(op.greater(_column(to, atol, dtype), to.const(0, dtype)), to.const(0, dtype), usual))
    largest = to.emit(op.max(sizes, -1, keepdims=True))
    relative = op.multiply(usual if rtol is None else _column(to, rtol, dtype), largest)
    return to.emit(op.maximum(_column(to, atol, dtype), to.emit(relative)))


def _column(to: Emitter, x: Any, dtype: str) -> Any:
    """A tolerance, [...], as [..., 1]; one that is no array stays."""
    x = to.tensor(x, dtype)
    return to.reshape(x, [*shape_of(x), 1]) if shape_of(x) else x


@converter("linalg_matrix_exp.default")
def matrix_exp(to: Emitter, x: Any) -> Any:
    size, dtype = shape_of(x)[-1], dtype_of(x)
    if dtype in HALF:
        raise NotImplementedError("PyTorch gives no numbers for it in half precision")
    (found,) = called(
        to,
        lambda batch: exponential.matrix_exp(batch, size, dtype),
        [(x, 2)],
        [((size, size), dtype)],
        operations=EXPONENTIAL,
    )
    return found
