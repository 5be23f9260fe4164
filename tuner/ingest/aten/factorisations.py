"""LU, Cholesky, L D L^T and QR, and what is solved by them.

A matrix that has no factorisation gives infinities or no numbers, where PyTorch raises.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, shape_of
from tuner.ingest.aten.matrices import called, turned
from tuner.ingest.matrices import elimination, indefinite, reflections
from tuner.tvm_compat import relax

op = relax.op


def _first(to: Emitter, x: Any, axis: int, count: int) -> Any:
    axis %= len(shape_of(x))
    return x if shape_of(x)[axis] == count else to.emit(op.strided_slice(x, [axis], [0], [count]))


def _upper(to: Emitter, x: Any) -> Any:
    return to.emit(op.triu(x, 0))


def _unit_lower(to: Emitter, x: Any) -> Any:
    rows, columns = shape_of(x)[-2:]
    return to.emit(op.add(op.tril(x, -1), to.const(np.eye(rows, columns), dtype_of(x))))


# LU and Cholesky


def _lu(to: Emitter, a: Any) -> list[Any]:
    """(L and U in one, pivots, info)."""
    (rows, columns), dtype = shape_of(a)[-2:], dtype_of(a)
    results = [((rows, columns), dtype), ((min(rows, columns),), "int32"), ((), "int32")]
    return called(to, lambda batch: elimination.lu_factor(batch, rows, columns, dtype), [(a, 2)], results)


def _lu_solved(to: Emitter, lu: Any, pivots: Any, b: Any, *, transposed: bool) -> Any:
    (size, columns), dtype = shape_of(b)[-2:], dtype_of(b)
    (found,) = called(
        to,
        lambda batch: elimination.lu_solve(batch, size, columns, dtype, transposed=transposed),
        [(lu, 2), (pivots, 1), (b, 2)],
        [((size, columns), dtype)],
    )
    return found


def _unpacked(to: Emitter, lu: Any, pivots: Any) -> tuple[Any, Any, Any]:
    """(P, L, U)."""
    (rows, columns), dtype = shape_of(lu)[-2:], dtype_of(lu)
    size = min(rows, columns)
    (p,) = called(
        to,
        lambda batch: elimination.permutation(batch, rows, size, dtype),
        [(pivots, 1)],
        [((rows, rows), dtype)],
    )
    return p, _unit_lower(to, _first(to, lu, -1, size)), _upper(to, _first(to, lu, -2, size))


@converter("linalg_lu_factor_ex.default")
def lu_factor(to: Emitter, x: Any = None, A: Any = None, pivot: bool = True, **_: Any) -> tuple[Any, ...]:
    _check_pivots(pivot)
    return tuple(_lu(to, A if x is None else x))


@converter("linalg_lu.default")
def lu(to: Emitter, A: Any, pivot: bool = True) -> tuple[Any, ...]:
    _check_pivots(pivot)
    factors, pivots, _ = _lu(to, A)
    return _unpacked(to, factors, pivots)


def _check_pivots(pivot: bool) -> None:
    if not pivot:
        raise NotImplementedError("PyTorch has no factorisation without pivots on a CPU")


@converter("lu_unpack.default")
def lu_unpack(
    to: Emitter, LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Any, ...]:
    p, lower, upper = _unpacked(to, LU_data, LU_pivots)
    return p if unpack_pivots else None, lower if unpack_data else None, upper if unpack_data else None


@converter("linalg_lu_solve.default")
def lu_solve(to: Emitter, LU: Any, pivots: Any, B: Any, left: bool = True, adjoint: bool = False) -> Any:
    if left:
        return _lu_solved(to, LU, pivots, B, transposed=adjoint)
    return turned(to, _lu_solved(to, LU, pivots, turned(to, B), transposed=not adjoint))


@converter("_linalg_det.default")
def determinant(to: Emitter, A: Any) -> tuple[Any, ...]:
    value, _, _, factors, pivots = _determinant(to, A)
    return value, factors, pivots


@converter("_linalg_slogdet.default")
def log_determinant(to: Emitter, A: Any) -> tuple[Any, ...]:
    return _determinant(to, A)[1:]


def _determinant(to: Emitter, a: Any) -> tuple[Any, ...]:
    """(Determinant, its sign, the logarithm of its size, L and U in one, pivots).

    Factors are of the transpose where a's elements lie row after row, as PyTorch need not copy it then: a backward that
    reads them knows.
    """
    is_contiguous = to.node.all_input_nodes[0].meta["val"].is_contiguous()
    factors, pivots, _ = _lu(to, turned(to, a) if is_contiguous else a)
    size, dtype = shape_of(a)[-1], dtype_of(a)
    found = called(
        to,
        lambda batch: elimination.determinant(batch, size, dtype),
        [(factors, 2), (pivots, 1)],
        [((), dtype)] * 3,
    )
    return *found, factors, pivots


@converter("_linalg_solve_ex.default")
def solve(to: Emitter, A: Any, B: Any, left: bool = True, **_: Any) -> tuple[Any, ...]:
    """A x = b, or x A = b; b is a vector where it has one dimension, or the shape that A has without its last one."""
    factors, pivots, info = _lu(to, A)
    is_vector = len(shape_of(B)) == 1 or shape_of(B) == shape_of(A)[:-1]
    b = to.reshape(B, [*shape_of(B), 1]) if is_vector else B
    return to.reshape(lu_solve(to, factors, pivots, b, left), to.shape), factors, pivots, info


@converter("linalg_inv_ex.default")
def inverse(to: Emitter, A: Any, **_: Any) -> tuple[Any, ...]:
    factors, pivots, info = _lu(to, A)
    identity = to.const(np.eye(shape_of(A)[-1]), dtype_of(A))
    return lu_solve(to, factors, pivots, identity), info


@converter("linalg_cholesky_ex.default")
def cholesky(to: Emitter, x: Any, upper: bool = False, **_: Any) -> tuple[Any, ...]:
    size, dtype = shape_of(x)[-1], dtype_of(x)
    factor, info = called(
        to,
        lambda batch: elimination.cholesky(batch, size, dtype),
        [(turned(to, x) if upper else x, 2)],
        [((size, size), dtype), ((), "int32")],
    )
    return turned(to, factor) if upper else factor, info


@converter("cholesky.default")
def cholesky_factor(to: Emitter, x: Any, upper: bool = False) -> Any:
    return cholesky(to, x, upper)[0]


@converter("cholesky_solve.default", "_cholesky_solve_helper.default")
def cholesky_solve(to: Emitter, x: Any, input2: Any = None, upper: bool = False, A: Any = None) -> Any:
    """The x of L L^T x = b."""
    factor = input2 if A is None else A
    lower = turned(to, factor) if upper else factor
    between = _substituted(to, lower, x, upper=False)
    return _substituted(to, turned(to, lower), between, upper=True)


@converter("cholesky_inverse.default")
def cholesky_inverse(to: Emitter, x: Any, upper: bool = False) -> Any:
    return cholesky_solve(to, to.const(np.eye(shape_of(x)[-1]), dtype_of(x)), x, upper)


def _substituted(to: Emitter, a: Any, b: Any, *, upper: bool, unit: bool = False) -> Any:
    (size, columns), dtype = shape_of(b)[-2:], dtype_of(b)
    (found,) = called(
        to,
        lambda batch: elimination.triangular_solve(batch, size, columns, dtype, upper=upper, unit=unit),
        [(a, 2), (b, 2)],
        [((size, columns), dtype)],
    )
    return found


@converter("linalg_solve_triangular.default")
def solve_triangular(to: Emitter, x: Any, B: Any, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if left:
        return _substituted(to, x, B, upper=upper, unit=unitriangular)
    return turned(to, _substituted(to, turned(to, x), turned(to, B), upper=not upper, unit=unitriangular))


@converter("triangular_solve.default")
def triangular_solve(
    to: Emitter, x: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Any, ...]:
    a = turned(to, A) if transpose else A
    found = _substituted(to, a, x, upper=upper != transpose, unit=unitriangular)
    return found, to.broadcast(A, [int(extent) for extent in to.results[1].shape])


# L D L^T


@converter("linalg_ldl_factor_ex.default")
def ldl_factor(to: Emitter, x: Any, **_: Any) -> tuple[Any, ...]:
    size, dtype = shape_of(x)[-1], dtype_of(x)
    results = [((size, size), dtype), ((size,), "int32"), ((), "int32")]
    return tuple(called(to, lambda batch: indefinite.ldl_factor(batch, size, dtype), [(x, 2)], results))


@converter("linalg_ldl_solve.default")
def ldl_solve(to: Emitter, LD: Any, pivots: Any, B: Any, **_: Any) -> Any:
    (size, columns), dtype = shape_of(B)[-2:], dtype_of(B)
    (found,) = called(
        to,
        lambda batch: indefinite.ldl_solve(batch, size, columns, dtype),
        [(LD, 2), (to.cast(pivots, "int32"), 1), (B, 2)],
        [((size, columns), dtype)],
    )
    return found


# QR


@converter("geqrf.default")
def geqrf(to: Emitter, x: Any) -> tuple[Any, ...]:
    (rows, columns), dtype = shape_of(x)[-2:], dtype_of(x)
    results = [((rows, columns), dtype), ((min(rows, columns),), dtype)]
    return tuple(called(to, lambda batch: reflections.geqrf(batch, rows, columns, dtype), [(x, 2)], results))


def _multiplied(to: Emitter, a: Any, taus: Any, c: Any, width: int, *, transposed: bool = False) -> Any:
    """Q c, or Q^T c, [rows, width]; without c the first `width` columns of Q."""
    (rows, columns), dtype = shape_of(a)[-2:], dtype_of(a)
    count = shape_of(taus)[-1]

    def make(batch: int) -> Any:
        return reflections.multiplied(
            batch, rows, columns, width, count, dtype, transposed=transposed, identity=c is None
        )

    given = [(a, 2), (taus, 1), *([] if c is None else [(c, 2)])]
    (found,) = called(to, make, given, [((rows, width), dtype)])
    return found


@converter("linalg_householder_product.default")
def householder_product(to: Emitter, x: Any, tau: Any) -> Any:
    return _multiplied(to, x, tau, None, shape_of(x)[-1])


@converter("ormqr.default")
def ormqr(to: Emitter, x: Any, input2: Any, input3: Any, left: bool = True, transpose: bool = False) -> Any:
    if left:
        return _multiplied(to, x, input2, input3, shape_of(input3)[-1], transposed=transpose)
    c = turned(to, input3)
    return turned(to, _multiplied(to, x, input2, c, shape_of(c)[-1], transposed=not transpose))


@converter("linalg_qr.default")
def qr(to: Emitter, A: Any, mode: str = "reduced") -> tuple[Any, ...]:
    a, taus = geqrf(to, A)
    rows, columns = shape_of(A)[-2:]
    height = rows if mode == "complete" else min(rows, columns)
    r = _upper(to, _first(to, a, -2, height))
    return None if mode == "r" else _multiplied(to, a, taus, None, height), r
