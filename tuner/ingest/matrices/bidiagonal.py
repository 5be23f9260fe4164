"""The implicit QR iteration of an upper bidiagonal matrix: LAPACK's `bdsqr`, in float64.

Demmel and Kahan, "Accurate singular values of bidiagonal matrices" (1990): sweeps are shifted by the smallest singular
value of the block's end, or by zero where that would lose digits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tuner.ingest.matrices.writing import (
    Array,
    Kernel,
    Scalar,
    branch,
    choose,
    down,
    each,
    hypotenuse,
    real,
    root,
    signed,
    when,
)
from tuner.tvm_compat import tirx

STEPS = 6
"""Most steps, per square of the size, as LAPACK's rotations: two sweeps for a singular value are usual."""
TINY = 1e-300
"""What is below it is nothing, whatever the matrix is."""


class Iteration:
    """The QR iteration of a bidiagonal matrix, of at least two rows.

    A block [low, high], apart from the rest by zeros of e, is worked on from `first` to `last`, a step of `way` at a time:
    downwards or upwards, from the larger end of d. An element of e is named by the lower of its places. Upwards the rows of
    U^T and V^T have each other's part: `side` is 0, or 1.
    """

    def __init__(self, kernel: Kernel, size: int, d: Array, e: Array, vectors: Array, eps: float) -> None:
        self.kernel, self.size, self.d, self.e, self.vectors, self.eps = kernel, size, d, e, vectors, eps
        self.tolerance = 10.0 * eps
        self.low, self.high, self.way, self.first, self.last = (kernel.index(0) for _ in range(5))
        self.old_low, self.old_high, self.goes = kernel.index(-2), kernel.index(-2), kernel.index(0)
        self.mu, self.least, self.largest, self.shift, self.threshold = (kernel.scalar() for _ in range(5))
        self.c, self.s, self.r, self.old_c, self.old_s, self.f, self.g, self.h = (kernel.scalar() for _ in range(8))

    def run(self) -> None:
        self._set_threshold()
        self.high.set(self.size - 1)
        self.way.set(1)
        with each(STEPS * self.size * self.size), when(self.high.now > 0):
            self._find_block()
            with branch(self.low.now >= self.high.now) as (single, block):
                with single:
                    self.high.set(self.high.now - 1)
                with block, branch(self.low.now == self.high.now - 1) as (pair, longer):
                    with pair:
                        self._pair()
                    with longer:
                        self._step()

    def _set_threshold(self) -> None:
        """What is below it is zero: a share of a bound of the smallest singular value."""
        self.mu.set(tirx.abs(self.d[0]))
        self.least.set(self.mu.now)
        with each(1, self.size) as i, when(self.least.now != real(0.0)):
            beside = tirx.abs(self.e[i - 1])
            self.mu.set(tirx.abs(self.d[i]) * (self.mu.now / (self.mu.now + beside)))
            self.least.set(tirx.min(self.least.now, self.mu.now))
        share = real(self.tolerance / self.size**0.5)
        self.threshold.set(tirx.max(share * self.least.now, real(TINY)))

    def _find_block(self) -> None:
        """`low` of the block that ends at `high`, and its largest element."""
        d, e = self.d, self.e
        self.largest.set(tirx.abs(d[self.high.now]))
        self.low.set(0)
        found = self.kernel.index(0)
        with down(self.high.now) as i, when(found.now == 0):
            is_zero = tirx.abs(e[i]) <= self.threshold.now
            with branch(is_zero) as (zero, other):
                with zero:
                    e[i] = 0.0
                    self.low.set(i + 1)
                    found.set(1)
                with other:
                    self.largest.set(tirx.max(self.largest.now, tirx.max(tirx.abs(d[i]), tirx.abs(e[i]))))

    def _step(self) -> None:
        low, high, d, e = self.low, self.high, self.d, self.e
        with when(tirx.any(low.now > self.old_high.now, high.now < self.old_low.now)):
            self.way.set(choose(tirx.abs(d[low.now]) >= tirx.abs(d[high.now]), 1, -1))
        self.first.set(choose(self.way.now > 0, low.now, high.now))
        self.last.set(choose(self.way.now > 0, high.now, low.now))
        end = self.kernel.hold(self._beside(self.last.now - self.way.now))
        self.goes.set(1)
        with when(tirx.abs(e[end]) <= real(self.tolerance) * tirx.abs(d[self.last.now])):
            e[end] = 0.0
            self.goes.set(0)
        self.mu.set(tirx.abs(d[self.first.now]))
        self.least.set(self.mu.now)
        with self._along() as (i, _), when(self.goes.now == 1):
            at = self.kernel.hold(self._beside(i))
            with branch(tirx.abs(e[at]) <= real(self.tolerance) * self.mu.now) as (zero, other):
                with zero:
                    e[at] = 0.0
                    self.goes.set(0)
                with other:
                    share = self.mu.now / (self.mu.now + tirx.abs(e[at]))
                    self.mu.set(tirx.abs(d[i + self.way.now]) * share)
                    self.least.set(tirx.min(self.least.now, self.mu.now))
        with when(self.goes.now == 1):
            self.old_low.set(low.now)
            self.old_high.set(high.now)
            self._set_shift(end)
            with branch(self.shift.now == real(0.0)) as (unshifted, shifted):
                with unshifted:
                    self._unshifted_sweep(end)
                with shifted:
                    self._shifted_sweep(end)
            with when(tirx.abs(e[end]) <= self.threshold.now):
                e[end] = 0.0

    def _beside(self, i: Any) -> Any:
        """The place in e between i and i + way."""
        return i + choose(self.way.now > 0, 0, -1).astype("int64")

    @contextlib.contextmanager
    def _along(self) -> Iterator[tuple[Any, Any]]:
        """A loop from `first` to the place before `last`: a context that gives (place, number of the step)."""
        with each(self.kernel.hold((self.last.now - self.first.now) * self.way.now)) as step:
            yield self.kernel.hold(self.first.now + self.way.now * step), step

    def _set_shift(self, end: Any) -> None:
        """The smaller singular value of the last two rows, or zero: LAPACK's `las2` and its conditions."""
        kernel, d = self.kernel, self.d
        self.shift.set(0.0)
        f = kernel.hold(tirx.abs(d[self.last.now - self.way.now]))
        h = kernel.hold(tirx.abs(d[self.last.now]))
        g = kernel.hold(tirx.abs(self.e[end]))
        least, most = kernel.hold(tirx.min(f, h)), kernel.hold(tirx.max(f, h))
        too_small = real(self.size * self.tolerance) * (self.least.now / self.largest.now)
        with when(too_small > real(max(self.eps, 0.01 * self.tolerance)), least != real(0.0)):
            total = kernel.hold(real(1.0) + least / most)
            gap = kernel.hold((most - least) / most)
            with branch(g < most) as (beside, above):
                with beside:
                    self.h.set((g / most) * (g / most))
                    sizes = root(total * total + self.h.now) + root(gap * gap + self.h.now)
                    self.shift.set(least * (real(2.0) / sizes))
                with above:
                    self.h.set(most / g)
                    up, across = total * self.h.now, gap * self.h.now
                    sizes = root(real(1.0) + up * up) + root(real(1.0) + across * across)
                    self.shift.set(real(2.0) * (least * (real(1.0) / sizes)) * self.h.now)
            ratio = kernel.hold(self.shift.now / tirx.abs(d[self.first.now]))
            with when(ratio * ratio < real(self.eps)):
                self.shift.set(0.0)

    def _unshifted_sweep(self, end: Any) -> None:
        d, e, c, s, r = self.d, self.e, self.c, self.s, self.r
        c.set(1.0)
        self.old_c.set(1.0)
        self.old_s.set(0.0)
        with self._along() as (i, step):
            following = i + self.way.now
            rotation(d[i] * c.now, e[self._beside(i)], c, s, r)
            with when(step != 0):
                e[self._beside(i - self.way.now)] = self.old_s.now * r.now
            self._rotate_side(0, i, c, s)
            self.f.set(self.old_c.now * r.now)
            self.g.set(d[following] * s.now)
            rotation(self.f.now, self.g.now, self.old_c, self.old_s, r)
            d[i] = r.now
            self._rotate_side(1, i, self.old_c, self.old_s)
        self.h.set(d[self.last.now] * c.now)
        d[self.last.now] = self.h.now * self.old_c.now
        e[end] = self.h.now * self.old_s.now

    def _shifted_sweep(self, end: Any) -> None:
        d, e, c, s, r, f, g = self.d, self.e, self.c, self.s, self.r, self.f, self.g
        start = d[self.first.now]
        f.set((tirx.abs(start) - self.shift.now) * (signed(real(1.0), start) + self.shift.now / start))
        g.set(e[self._beside(self.first.now)])
        with self._along() as (i, step):
            at, following = self._beside(i), i + self.way.now
            rotation(f.now, g.now, c, s, r)
            with when(step != 0):
                e[self._beside(i - self.way.now)] = r.now
            f.set(c.now * d[i] + s.now * e[at])
            e[at] = c.now * e[at] - s.now * d[i]
            g.set(s.now * d[following])
            d[following] = c.now * d[following]
            self._rotate_side(0, i, c, s)
            rotation(f.now, g.now, c, s, r)
            d[i] = r.now
            f.set(c.now * e[at] + s.now * d[following])
            d[following] = c.now * d[following] - s.now * e[at]
            with when(following != self.last.now):
                g.set(s.now * e[self._beside(following)])
                e[self._beside(following)] = c.now * e[self._beside(following)]
            self._rotate_side(1, i, c, s)
        e[end] = f.now

    def _rotate_side(self, number: int, i: Any, c: Scalar, s: Scalar) -> None:
        """Of the vectors, rows i and i + way: V^T's for number 0 on the way down, else U^T's."""
        side = choose(self.way.now > 0, number, 1 - number).astype("int64")
        self._rotate_rows(side, i, i + self.way.now, c.now, s.now)

    def _rotate_rows(self, side: Any, one: Any, other: Any, c: Any, s: Any) -> None:
        rotate(self.kernel, self.size, self.vectors, lambda row, k: (side, row, k), one, other, c, s)

    def _pair(self) -> None:
        """A block of two rows [f g; 0 h]: LAPACK's `lasv2`."""
        kernel, d, e = self.kernel, self.d, self.e
        i = kernel.hold(self.low.now)
        f, g, h = (kernel.hold(value) for value in (d[i], e[i], d[i + 1]))
        swap = kernel.hold(choose(tirx.abs(h) > tirx.abs(f), real(1.0), real(0.0)))
        ft, ht = kernel.hold(choose(swap > real(0.0), h, f)), kernel.hold(choose(swap > real(0.0), f, h))
        fa, ha, ga = (kernel.hold(tirx.abs(value)) for value in (ft, ht, g))
        smallest, largest = kernel.scalar(), kernel.scalar()
        cl, cr, sl, sr = (kernel.scalar() for _ in range(4))
        is_tiny = tirx.all(ga > fa, fa / ga < real(self.eps))
        with branch(ga == real(0.0)) as (diagonal, other):
            with diagonal:
                for scalar, value in ((smallest, ha), (largest, fa), (cl, 1.0), (cr, 1.0), (sl, 0.0), (sr, 0.0)):
                    scalar.set(value)
            with other, branch(is_tiny) as (huge, usual):
                with huge:
                    largest.set(ga)
                    smallest.set((fa / ga) * ha)
                    cl.set(1.0)
                    sl.set(ht / g)
                    sr.set(1.0)
                    cr.set(ft / g)
                with usual:
                    gap = kernel.hold(fa - ha)
                    share = kernel.hold(gap / fa)
                    m = kernel.hold(g / ft)
                    t = kernel.scalar()
                    t.set(real(2.0) - share)
                    s = kernel.hold(hypotenuse(t.now, m))
                    r = kernel.hold(hypotenuse(share, m))
                    a = kernel.hold(real(0.5) * (s + r))
                    smallest.set(ha / a)
                    largest.set(fa * a)
                    with branch(m * m == real(0.0)) as (vanishes, stays):
                        with vanishes, branch(share == real(0.0)) as (equal, unequal):
                            with equal:
                                t.set(signed(real(2.0), ft) * signed(real(1.0), g))
                            with unequal:
                                t.set(g / signed(gap, ft) + m / t.now)
                        with stays:
                            t.set((m / (s + t.now) + m / (r + share)) * (real(1.0) + a))
                    length = kernel.hold(hypotenuse(t.now, real(2.0)))
                    cr.set(real(2.0) / length)
                    sr.set(t.now / length)
                    cl.set((cr.now + sr.now * m) / a)
                    sl.set((ht / ft) * sr.now / a)
        is_swapped = swap > real(0.0)
        c_left, s_left, c_right, s_right = (
            kernel.hold(choose(is_swapped, one, two))
            for one, two in ((sr.now, cl.now), (cr.now, sl.now), (sl.now, cr.now), (cl.now, sr.now))
        )
        one = real(1.0)
        sign = kernel.scalar()
        with branch(ga > fa) as (by_g, by_diagonal):
            with by_g:
                sign.set(signed(one, s_right) * signed(one, c_left) * signed(one, g))
            with by_diagonal, branch(is_swapped) as (by_h, by_f):
                with by_h:
                    sign.set(signed(one, s_right) * signed(one, s_left) * signed(one, h))
                with by_f:
                    sign.set(signed(one, c_right) * signed(one, c_left) * signed(one, f))
        d[i] = signed(largest.now, sign.now)
        d[i + 1] = signed(smallest.now, sign.now * signed(one, f) * signed(one, h))
        e[i] = 0.0
        self._rotate_rows(0, i, i + 1, c_right, s_right)
        self._rotate_rows(1, i, i + 1, c_left, s_left)
        self.high.set(self.low.now - 1)


def rotation(f: Any, g: Any, c: Scalar, s: Scalar, r: Scalar) -> None:
    """c f + s g = r, c g = s f, c >= 0 and r with f's sign: LAPACK's `lartg` from version 3.10 on."""
    size = hypotenuse(f, g)
    with branch(g == real(0.0)) as (done, other):
        with done:
            r.set(f)
            c.set(1.0)
            s.set(0.0)
        with other, branch(f == real(0.0)) as (turned, usual):
            with turned:
                r.set(tirx.abs(g))
                s.set(signed(real(1.0), g))
                c.set(0.0)
            with usual:
                r.set(signed(size, f))
                s.set(g / r.now)
                c.set(tirx.abs(f) / size)


def rotate(
    kernel: Kernel,
    size: int,
    x: Array,
    at: Callable[[Any, Any], tuple[Any, ...]],
    one: Any,
    other: Any,
    c: Any,
    s: Any,
) -> None:
    """Vectors (x1, x2), elements at(number, k), become (c x1 + s x2, c x2 - s x1)."""
    with each(size) as k:
        first, second = kernel.hold(x[at(one, k)]), kernel.hold(x[at(other, k)])
        x[at(other, k)] = c * second - s * first
        x[at(one, k)] = s * second + c * first
