"""Eigenvalues and eigenvectors of symmetric matrices: A = Z diag(w) Z^T, w ascending, in float64.

LAPACK's `sytrd` and `steqr`: reflections make A tridiagonal, with d on its diagonal and e beside it; then the implicit QL
iteration with Wilkinson's shifts takes one eigenvalue after another from it, or QR where the small end is below. Golub and
Van Loan, Matrix Computations, section 8.3. The signs of the eigenvectors are LAPACK's up to some twenty rows, beyond which
LAPACK divides and conquers.
"""

from __future__ import annotations

from typing import Any

from tuner.ingest.matrices.elimination import exchange
from tuner.ingest.matrices.reflections import reflect, reflector
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
    roundoff,
    signed,
    when,
)
from tuner.tvm_compat import tirx

SWEEPS = 30
"""Most of them, per eigenvalue, as LAPACK: two are usual."""
TINY = 1e-300
"""Beside the diagonal that is nothing, whatever stands on it."""


def eigh(batch: int, size: int, dtype: str, *, upper: bool) -> Any:
    """a [size, size], of which one triangle is read -> (w [size], Z [size, size], its columns the vectors)."""

    def body(kernel: Kernel, a: Array, w: Array, z: Array) -> None:
        d, e = kernel.array([size]), kernel.array([max(size - 1, 1)])
        vectors = kernel.array([size, size])
        _tridiagonal(kernel, a, size, d, e, vectors, upper)
        _ql(kernel, size, d, e, vectors, roundoff(dtype))
        _ascending(kernel, size, d, vectors)
        with each(size) as i:
            w[i] = d[i]
            with each(size) as j:
                z[i, j] = vectors[i, j]

    matrix = Tensor(shape=(size, size), dtype=dtype)
    return matrix_function("eigh", batch, [matrix], [Tensor(shape=(size,), dtype=dtype), matrix], body)


def _tridiagonal(kernel: Kernel, a: Array, size: int, d: Array, e: Array, z: Array, upper: bool) -> None:
    """A = Z T Z^T. From the upper triangle LAPACK begins with the last row: rows and columns are taken in that order."""

    def turned(i: Any, last: int = size - 1) -> Any:
        return last - i if upper else i

    work, tau, half = kernel.array([size, size]), kernel.scalar(), kernel.scalar()
    taus, v, p = (kernel.array([size]) for _ in range(3))
    with each(size) as i, each(size) as j:
        read = a[turned(i), turned(j)], a[turned(j), turned(i)]
        work[i, j] = choose(i >= j, read[0], read[1])
    with each(size - 1) as k:
        length = size - 1 - k
        reflector(kernel, work, lambda i: (k + 1 + i, k), length, tau)
        taus[k] = tau.now
        e[turned(k, size - 2)] = work[k + 1, k]
        with each(length) as i:
            v[i] = choose(i == 0, real(1.0), work[k + 1 + i, k])
        half.set(0.0)
        with each(length) as i:
            p[i] = 0.0
            with each(length) as j:
                p[i] = p[i] + work[k + 1 + i, k + 1 + j] * v[j]
            p[i] = p[i] * tau.now
            half.set(half.now + p[i] * v[i])
        half.set(half.now * tau.now * real(0.5))
        with each(length) as i:
            p[i] = p[i] - half.now * v[i]
        with each(length) as i, each(length) as j:
            now = work[k + 1 + i, k + 1 + j]
            work[k + 1 + i, k + 1 + j] = now - (v[i] * p[j] + p[i] * v[j])
    with each(size) as i:
        d[turned(i)] = work[i, i]
        with each(size) as j:
            z[i, j] = choose(i == j, real(1.0), real(0.0))
    with down(size - 1) as k, each(k + 1, size) as j:
        column = turned(j)
        reflect(
            kernel,
            work,
            lambda i: (k + 1 + i, k),
            z,
            lambda i: (turned(k + 1 + i), column),
            size - 1 - k,
            taus[k],
        )


def _ql(kernel: Kernel, size: int, d: Array, e: Array, z: Array, eps: float) -> None:
    """T = Q diag(d) Q^T, z becomes z Q.

    A block of T, apart from others by zeros of e, is worked on from `at` towards `end`, a step of `way` at a time: upwards
    (QL) or downwards (QR), so that the smaller end of d comes first. An element of e is named by the lower of its places.
    """
    following, at, end, way, m = (kernel.index(0) for _ in range(5))
    inside = kernel.index(0)

    def beside(i: Any) -> Any:
        """The place in e between i and i + way."""
        return i + choose(way.now > 0, 0, -1).astype("int64")

    with each((SWEEPS + 2) * size), branch(inside.now == 0) as (between, in_block):
        with between, when(following.now < size):
            _next_block(size, d, e, following, at, end, eps)
            with when(at.now != end.now):
                inside.set(1)
                way.set(1)
                with when(tirx.abs(d[end.now]) < tirx.abs(d[at.now])):
                    m.set(at.now)
                    at.set(end.now)
                    end.set(m.now)
                    way.set(-1)
        with in_block:
            _split(kernel, d, e, at, end, way, m, beside, eps)
            with branch(m.now == at.now) as (found, more):
                with found:
                    at.set(at.now + way.now)
                with more, branch(m.now == at.now + way.now) as (pair, longer):
                    with pair:
                        _pair(kernel, size, d, e, z, tirx.min(at.now, m.now))
                        at.set(at.now + way.now * 2)
                    with longer:
                        _sweep(kernel, size, d, e, z, at, m, way, beside)
            with when((end.now - at.now) * way.now < 0):
                inside.set(0)


def _next_block(size: int, d: Array, e: Array, following: Scalar, at: Scalar, end: Scalar, eps: float) -> None:
    """[at, end] is the block that begins at `following`, which becomes what follows it."""
    with when(following.now > 0):
        e[following.now - 1] = 0.0
    end.set(size - 1)
    with each(following.now, size - 1) as i, when(end.now == size - 1):
        small = root(tirx.abs(d[i])) * root(tirx.abs(d[i + 1])) * real(eps)
        with when(tirx.abs(e[i]) <= small):
            e[i] = 0.0
            end.set(i)
    at.set(following.now)
    following.set(end.now + 1)


def _split(
    kernel: Kernel, d: Array, e: Array, at: Scalar, end: Scalar, way: Scalar, m: Scalar, beside: Any, eps: float
) -> None:
    """m is the first place from `at` on after which e is nothing, and becomes zero; else `end`."""
    m.set(end.now)
    steps = kernel.hold((end.now - at.now) * way.now)
    with each(steps) as step, when(m.now == end.now):
        i = at.now + way.now * step
        small = real(eps * eps) * tirx.abs(d[i]) * tirx.abs(d[i + way.now]) + real(TINY)
        with when(e[beside(i)] * e[beside(i)] <= small):
            m.set(i)
    with when(m.now != end.now):
        e[beside(m.now)] = 0.0


def _sweep(
    kernel: Kernel, size: int, d: Array, e: Array, z: Array, at: Scalar, m: Scalar, way: Scalar, beside: Any
) -> None:
    """A step of the implicit iteration on [at, m]."""
    c, s, r, p, f, b, g = (kernel.scalar() for _ in range(7))
    p.set(d[at.now])
    g.set((d[at.now + way.now] - p.now) / (e[beside(at.now)] * real(2.0)))
    r.set(hypotenuse(g.now, real(1.0)))
    g.set(d[m.now] - p.now + e[beside(at.now)] / (g.now + signed(r.now, g.now)))
    s.set(1.0)
    c.set(1.0)
    p.set(0.0)
    steps = kernel.hold((m.now - at.now) * way.now)
    with each(steps) as step:
        i = kernel.hold(m.now - way.now * (step + 1))
        f.set(s.now * e[beside(i)])
        b.set(c.now * e[beside(i)])
        _rotation(g.now, f.now, c, s, r)
        with when(step != 0):
            e[beside(i + way.now)] = r.now
        g.set(d[i + way.now] - p.now)
        r.set((d[i] - g.now) * s.now + c.now * b.now * real(2.0))
        p.set(s.now * r.now)
        d[i + way.now] = g.now + p.now
        g.set(c.now * r.now - b.now)
        _rotate_columns(kernel, size, z, i, i + way.now, c.now, -s.now)
    d[at.now] = d[at.now] - p.now
    e[beside(at.now)] = g.now


def _pair(kernel: Kernel, size: int, d: Array, e: Array, z: Array, i: Any) -> None:
    """Eigenvalues and rotation of the block of i and i + 1: LAPACK's `laev2`."""
    i = kernel.hold(i)
    a, b, c = (kernel.hold(value) for value in (d[i], e[i], d[i + 1]))
    total, gap = kernel.hold(a + c), kernel.hold(a - c)
    twice = kernel.hold(b + b)
    size_of_root = kernel.hold(hypotenuse(gap, twice))
    large = choose(tirx.abs(a) > tirx.abs(c), a, c)
    small = choose(tirx.abs(a) > tirx.abs(c), c, a)
    first = kernel.hold(
        choose(total < real(0.0), real(0.5) * (total - size_of_root), real(0.5) * (total + size_of_root))
    )
    second = kernel.hold(
        choose(total == real(0.0), real(-0.5) * size_of_root, (large / first) * small - (b / first) * b)
    )
    cs = kernel.hold(choose(gap >= real(0.0), gap + size_of_root, gap - size_of_root))
    c1, s1, held = kernel.scalar(), kernel.scalar(), kernel.scalar()
    with branch(tirx.abs(cs) > tirx.abs(twice)) as (steep, flat):
        with steep:
            held.set(-twice / cs)
            s1.set(real(1.0) / root(real(1.0) + held.now * held.now))
            c1.set(held.now * s1.now)
        with flat:
            c1.set(1.0)
            s1.set(0.0)
            with when(twice != real(0.0)):
                held.set(-cs / twice)
                c1.set(real(1.0) / root(real(1.0) + held.now * held.now))
                s1.set(held.now * c1.now)
    zero = real(0.0)
    with when(tirx.any(tirx.all(total >= zero, gap >= zero), tirx.all(total < zero, gap < zero))):
        held.set(c1.now)
        c1.set(-s1.now)
        s1.set(held.now)
    _rotate_columns(kernel, size, z, i, i + 1, c1.now, s1.now)
    d[i] = first
    d[i + 1] = second
    e[i] = 0.0


def _rotation(f: Any, g: Any, c: Scalar, s: Scalar, r: Scalar) -> None:
    """c f + s g = r, c g = s f, with the signs of LAPACK's `lartg` before version 3.10, which `steqr` of MKL has."""
    with branch(g == real(0.0)) as (done, other):
        with done:
            r.set(f)
            c.set(1.0)
            s.set(0.0)
        with other:
            r.set(hypotenuse(f, g))
            s.set(g / r.now)
            c.set(f / r.now)
            with when(tirx.abs(f) > tirx.abs(g), c.now < real(0.0)):
                r.set(-r.now)
                c.set(-c.now)
                s.set(-s.now)


def _rotate_columns(kernel: Kernel, size: int, z: Array, one: Any, other: Any, c: Any, s: Any) -> None:
    """(z1, z2) become (s z2 + c z1, c z2 - s z1)."""
    with each(size) as row:
        first, second = kernel.hold(z[row, one]), kernel.hold(z[row, other])
        z[row, other] = c * second - s * first
        z[row, one] = s * second + c * first


def _ascending(kernel: Kernel, size: int, d: Array, z: Array) -> None:
    """By selection, which moves vectors least."""
    least = kernel.index()
    with each(size) as i:
        least.set(i)
        with each(i + 1, size) as j, when(d[j] < d[least.now]):
            least.set(j)
        with when(least.now != i):
            exchange(kernel, d, i, least.now)
            with each(size) as row:
                exchange(kernel, z, (row, i), (row, least.now))
