"""Singular values and vectors: A = U diag(s) V^T, s descending, in float64.

LAPACK's `gebrd`: reflections from both sides make A bidiagonal, with d on its diagonal and e above it; the implicit QR
iteration (bidiagonal.py) takes one singular value after another from that. The signs of the vectors are LAPACK's up to some
twenty rows or columns, beyond which LAPACK divides and conquers.

A wide matrix is worked on as its transpose, whose bidiagonal form is LAPACK's transposed; rotations bring it back to upper.
Of a matrix with half as many rows again as columns the triangle of QR is taken, as Intel's LAPACK does, which PyTorch has.
"""

from __future__ import annotations

from typing import Any

from tuner.ingest.matrices.bidiagonal import Iteration, rotate, rotation
from tuner.ingest.matrices.elimination import exchange
from tuner.ingest.matrices.reflections import copied, reflect, reflector, triangular
from tuner.ingest.matrices.writing import (
    Array,
    Kernel,
    Tensor,
    choose,
    down,
    each,
    matrix_function,
    real,
    roundoff,
    signed,
    when,
)
from tuner.tvm_compat import tirx


def svd(batch: int, rows: int, columns: int, dtype: str, *, full: bool) -> Any:
    """a [rows, columns] -> (U [rows, k], s [min], V^T [k, columns]); k is the smaller extent, or with `full` each's own."""
    size, long, wide = min(rows, columns), max(rows, columns), rows < columns
    width = long if full else size

    def body(kernel: Kernel, a: Array, u: Array, s: Array, vt: Array) -> None:
        d, e = kernel.array([size]), kernel.array([max(size - 1, 1)])
        taus, left, right = (kernel.array([size]) for _ in range(3))
        given = work = copied(kernel, a, long, size, transposed=wide)
        if is_long := not wide and long > size and long >= size * 3 // 2:
            triangular(kernel, given, long, size, taus)
            work = kernel.array([size, size])
            with each(size) as i, each(size) as j:
                work[i, j] = choose(i <= j, given[i, j], real(0.0))
        extent = size if is_long else long
        _bidiagonal(kernel, work, extent, size, d, e, left, right)
        vectors = _of_bidiagonal(kernel, size, d, e, roundoff(dtype), wide)
        tall, square = kernel.array([long, width]), kernel.array([size, size])
        with each(long) as i, each(width) as j:
            tall[i, j] = choose(i == j, real(1.0), real(0.0))
        with each(size) as i, each(size) as j:
            tall[i, j] = vectors[0 if wide else 1, j, i]
            square[i, j] = vectors[1 if wide else 0, j, i]
        with down(size) as k, each(width) as j:
            reflect(kernel, work, lambda i: (k + i, k), tall, lambda i: (k + i, j), extent - k, left[k])
        if is_long:
            with down(size) as k, each(width) as j:
                reflect(kernel, given, lambda i: (k + i, k), tall, lambda i: (k + i, j), long - k, taus[k])
        with down(size - 1) as k, each(size) as j:
            length = size - 1 - k
            reflect(kernel, work, lambda i: (k, k + 1 + i), square, lambda i: (k + 1 + i, j), length, right[k])
        ours, theirs = (square, tall) if wide else (tall, square)
        with each(size) as i:
            s[i] = d[i]
        with each(rows) as i, each(size if wide else width) as j:
            u[i, j] = ours[i, j]
        with each(width if wide else size) as i, each(columns) as j:
            vt[i, j] = theirs[j, i]

    results = [
        Tensor(shape=(rows, size if wide else width), dtype=dtype),
        Tensor(shape=(size,), dtype=dtype),
        Tensor(shape=(width if wide else size, columns), dtype=dtype),
    ]
    return matrix_function("svd", batch, [Tensor(shape=(rows, columns), dtype=dtype)], results, body)


def _of_bidiagonal(kernel: Kernel, size: int, d: Array, e: Array, eps: float, lower: bool) -> Array:
    """d becomes the singular values; the rows of V^T and of U^T, [2, size, size]. Else than `lower` it is upper."""
    vectors = kernel.array([2, size, size])
    with each(2) as side, each(size) as i, each(size) as j:
        vectors[side, i, j] = choose(i == j, real(1.0), real(0.0))
    if size == 1:
        vectors[1, 0, 0] = signed(real(1.0), d[0])
        d[0] = tirx.abs(d[0])
        return vectors
    c, s = kernel.array([size]), kernel.array([size])
    if lower:
        _to_upper(kernel, size, d, e, c, s)
    Iteration(kernel, size, d, e, vectors, eps).run()
    _positive(size, d, vectors)
    _descending(kernel, size, d, vectors)
    if lower:
        with down(size - 1) as i:  # of the rows of U
            rotate(kernel, size, vectors, lambda row, k: (1, k, row), i, i + 1, c[i], -s[i])
    return vectors


def _bidiagonal(
    kernel: Kernel, work: Array, rows: int, size: int, d: Array, e: Array, left: Array, right: Array
) -> None:
    """In place: the v of reflections of columns stand below the diagonal, of rows to the right of it."""
    tau = kernel.scalar()
    with each(size) as k:
        reflector(kernel, work, lambda i: (k + i, k), rows - k, tau)
        left[k] = tau.now
        d[k] = work[k, k]
        with each(k + 1, size) as j:
            reflect(kernel, work, lambda i: (k + i, k), work, lambda i: (k + i, j), rows - k, tau.now)
        with when(k < size - 1):
            reflector(kernel, work, lambda i: (k, k + 1 + i), size - 1 - k, tau)
            right[k] = tau.now
            e[k] = work[k, k + 1]
            with each(k + 1, rows) as j:
                reflect(kernel, work, lambda i: (k, k + 1 + i), work, lambda i: (j, k + 1 + i), size - 1 - k, tau.now)


def _to_upper(kernel: Kernel, size: int, d: Array, e: Array, c: Array, s: Array) -> None:
    """A lower bidiagonal matrix becomes an upper one; rotation i was of its rows i and i + 1."""
    cosine, sine, r = (kernel.scalar() for _ in range(3))
    with each(size - 1) as i:
        rotation(d[i], e[i], cosine, sine, r)
        d[i] = r.now
        e[i] = sine.now * d[i + 1]
        d[i + 1] = cosine.now * d[i + 1]
        c[i] = cosine.now
        s[i] = sine.now


def _positive(size: int, d: Array, vectors: Array) -> None:
    with each(size) as i, when(d[i] < real(0.0)):
        d[i] = -d[i]
        with each(size) as k:
            vectors[0, i, k] = -vectors[0, i, k]


def _descending(kernel: Kernel, size: int, d: Array, vectors: Array) -> None:
    """By selection, which moves vectors least."""
    least = kernel.index()
    with down(size) as last:
        least.set(0)
        with each(1, last + 1) as i, when(d[i] <= d[least.now]):
            least.set(i)
        with when(least.now != last):
            exchange(kernel, d, least.now, last)
            with each(2) as side, each(size) as k:
                exchange(kernel, vectors, (side, least.now, k), (side, last, k))
