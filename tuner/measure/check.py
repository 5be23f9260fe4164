"""Whether a candidate computes what the baseline computes: input sets, tolerance, comparison.

Three input sets:

    random      floats uniform in [-1, 1)
    structured  small integers, chosen so that sums of products stay exactly representable: any order of summation
                gives the same result, so one missing or doubled term shows, at any length of reduction and in any
                type
    edges       zeros of both signs, ones, large and small magnitudes

Integer parameters that index another buffer stay inside it. A set on which most of the baseline's outputs are not finite (a
root or a logarithm of negatives) is drawn again with other signs and sizes. tuner/measure/input_sets.py draws them.

Tolerance. Let r be a reference output, that is one of the baseline, s the root mean square of its finite elements, u(t) the
unit roundoff of type t (docs/comparison.md has the table), K the sum over reduction blocks of their lengths, t_a the least
precise float type that a reduction block writes (TF32 where its products may be that), t_s the least precise that any block
writes. An element may differ by

    tol_i = 16 * (u(t_s) + u(t_a) * sqrt(K)) * (|r_i| + s)

Rounding errors of a sum of K terms in any order grow like u * sqrt(K) relative to the sum's typical size when they
are independent (Higham & Mary, "A new approach to probabilistic rounding error analysis", 2019); s stands for that
size where r_i itself has cancelled. 16 leaves room for chains of operations and for the extremes of many elements. To it
is added how far rounding errors may carry where a function magnifies them (tuner/measure/conditioning.py).
Where the structured set's outcome is exact (no operation but + - * min max and select; every r_i an integer well below 2^p,
p the bits of the significand) tol_i is at most 0.25.

Integer results of integer arithmetic must be equal. Where floats took part, one element in 1000 may differ by one,
since it may lie at a rounding boundary. So may one in 1000 of a float output by up to |r_i| + s, where floats are
rounded to whole numbers on the way, as between the layers of a quantised model: a step of a grid is no rounding error.
Where r_i is finite the candidate's element must be, where r_i is NaN it must be NaN, where r_i is infinite it must be
the same infinity. Outputs are filled with poison before a run, floats with NaN, so that elements which the candidate
does not write are found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pitchpipe.wire.measure import CheckVerdict
from tuner.measure.parts import over_parts
from tuner.measure.properties import WorkloadProperties
from tuner.schedule.tensor_type import TensorType

SETS = ("random", "structured", "edges")
NOT_FINITE = 1e308
"""Stands for an infinite or undefined error in a verdict."""
_FACTOR = 16.0
AT_BOUNDARY = 1 / 1000
"""Share of an output's elements that may lie at a rounding boundary."""


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """NumPy's type of that name; bfloat16 and the 8-bit floats come from ml_dtypes. ValueError if there is none."""
    try:
        return np.dtype(dtype)
    except TypeError:
        import ml_dtypes

        found = getattr(ml_dtypes, dtype, None)
        if found is None:
            raise ValueError(f"no NumPy type for {dtype}") from None
        small: np.dtype[Any] = np.dtype(found)
        return small


def size_bytes(found: TensorType) -> int:
    """Bytes of a tensor of that type."""
    return int(np.prod(found.shape, dtype=np.int64)) * numpy_dtype(found.dtype).itemsize


def poison(array: np.ndarray[Any, Any]) -> None:
    """Fills an output with values that show where a candidate wrote nothing: NaN; bytes 0xA5 for integers; True for
    booleans."""
    if array.dtype == np.bool_:
        array.fill(True)
    elif array.dtype.kind in "iu":
        array.reshape(-1).view(np.uint8).fill(0xA5)  # a scalar has no bytes along an axis
    else:
        array.fill(np.nan)


def mostly_finite(arrays: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether at least half of all elements are finite: comparing with fewer would show too little."""
    return 2 * sum(map(_finite, arrays)) >= sum(array.size for array in arrays)


def _finite(array: np.ndarray[Any, Any]) -> int:
    """Number of finite elements."""
    flat = array.reshape(-1)
    return sum(over_parts(lambda part: int(np.isfinite(plain(flat[part])).sum()), flat.size))


def root_mean_square(array: np.ndarray[Any, Any]) -> float:
    """Of the finite elements, others counted as 0; 0.0 where there are none."""
    flat = array.reshape(-1)

    def squares(part: slice) -> float:
        finite = np.where(np.isfinite(flat[part]), flat[part], 0)
        return float(np.square(finite, dtype=np.float64).sum())

    return math.sqrt(sum(over_parts(squares, flat.size)) / flat.size) if flat.size else 0.0


def plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in a type that NumPy computes with: the small floats of ml_dtypes become float32."""
    return array if array.dtype.kind in "iub" or array.dtype in (np.float32, np.float64) else array.astype(np.float32)


class ReferenceOutputs:
    """The baseline's outputs for one input set, and the tolerance of every element, computed once."""

    def __init__(
        self,
        properties: WorkloadProperties,
        name: str,
        outputs: Sequence[np.ndarray[Any, Any]],
        changes: Sequence[np.ndarray[Any, Any]] = (),
    ) -> None:
        """`changes` are those of tuner/measure/conditioning.py, one for each output, or none where they do not matter."""
        self._floats = properties.floats
        self._rounds = properties.rounds
        self._outputs = [plain(output) for output in outputs]
        self._tolerances = [self._tolerance(properties, name, output) for output in self._outputs]
        for tolerance, change in zip(self._tolerances, changes, strict=False):
            if tolerance is not None:
                tolerance += _FACTOR * change.astype(tolerance.dtype)

    @staticmethod
    def _tolerance(
        properties: WorkloadProperties, name: str, output: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any] | None:
        """tol_i of every element, in the output's shape and type; None for integers."""
        if output.dtype.kind in "iub":
            return None
        scale, flat = root_mean_square(output), output.reshape(-1)
        tolerance = np.empty_like(flat)
        limit = 2.0 ** (min(properties.bits, properties.reduction_bits) - 1)

        def fill(part: slice) -> bool:
            """Fills a part, and tells whether all of it may be exact."""
            values = flat[part]
            finite = np.isfinite(values)
            size = np.abs(np.where(finite, values, 0))
            with np.errstate(over="ignore"):  # of an element as large as its type has them
                tolerance[part] = _FACTOR * properties.relative_error * (size + scale)
            if name != "structured" or not properties.exact:
                return False
            return bool(finite.all()) and bool((size <= limit).all()) and bool((values == np.rint(values)).all())

        if all(over_parts(fill, flat.size)):
            np.minimum(tolerance, 0.25, out=tolerance)
        return tolerance.reshape(output.shape)

    def compare(self, outputs: Sequence[np.ndarray[Any, Any]]) -> tuple[bool, float, float]:
        """Compares a candidate's outputs: (whether all are right, largest absolute error, tolerance of the element whose
        error is largest in proportion to its tolerance)."""
        right, worst_error, worst_ratio, worst_tolerance = True, 0.0, -1.0, 0.0
        with np.errstate(all="ignore"):
            for output, expected, tolerance in zip(outputs, self._outputs, self._tolerances, strict=True):
                if self._rounds and tolerance is not None:
                    tolerance = _with_boundaries(plain(output), expected, tolerance)
                for ok, error, allowed, ratio in self._differences(output, expected, tolerance):
                    right &= ok
                    worst_error = max(worst_error, error)
                    if ratio > worst_ratio:
                        worst_ratio, worst_tolerance = ratio, allowed
        return right, worst_error, worst_tolerance

    def _differences(
        self, output: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: np.ndarray[Any, Any] | None
    ) -> Iterator[tuple[bool, float, float, float]]:
        """(right, error, tolerance, error / tolerance) of an output: once for integers, for floats part by part."""
        if tolerance is None:
            ok, error, allowed = self._compare_integers(output, expected)
            yield ok, error, allowed, error / max(allowed, 0.5)
            return
        flat = output.reshape(-1), expected.reshape(-1), tolerance.reshape(-1)

        def compared(part: slice) -> tuple[bool, float, float, float]:
            found, wanted, allowance = (array[part] for array in flat)
            with np.errstate(all="ignore"):
                return self._compare_floats(plain(found), wanted, allowance)

        yield from over_parts(compared, flat[0].size)

    def _compare_integers(
        self, output: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]
    ) -> tuple[bool, float, float]:
        if bool(np.array_equal(output, expected)):
            return True, 0.0, 0.0
        difference = np.abs(output.astype(np.float64) - expected.astype(np.float64))
        error = float(difference.max())
        if not self._floats:
            return False, error, 0.0
        return error <= 1 and int((difference > 0).sum()) <= AT_BOUNDARY * output.size, error, 1.0

    @staticmethod
    def _compare_floats(
        output: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: np.ndarray[Any, Any]
    ) -> tuple[bool, float, float, float]:
        difference = np.abs(output - expected)
        if not bool((difference <= tolerance).all()):
            same = (output == expected) | (np.isnan(output) & np.isnan(expected))
            difference = np.where(same, 0, difference)
        if difference.size == 0:
            return True, 0.0, 0.0, 0.0
        wrong = ~(difference <= tolerance)
        if bool(wrong.any()):
            finite = np.nan_to_num(difference, nan=NOT_FINITE, posinf=NOT_FINITE).astype(np.float64)
            worst = int(np.argmax(np.where(wrong, finite, -1.0)))
            error = float(min(finite.flat[worst], NOT_FINITE))
            if not np.isfinite(difference.flat[worst]):
                error = NOT_FINITE
            allowed = float(tolerance.flat[worst])
            return False, error, allowed, error / max(allowed, 1e-300)
        worst = int(np.argmax(difference))
        error, allowed = float(difference.flat[worst]), float(tolerance.flat[worst])
        return True, error, allowed, error / max(allowed, 1e-300)


def _with_boundaries(
    output: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """|r_i| + s as the tolerance of elements that are further off than theirs, where so few are that they may lie at a
    rounding boundary; else the tolerances as they are."""
    off = np.abs(output - expected) > tolerance
    if not 0 < int(off.sum()) <= AT_BOUNDARY * output.size:
        return tolerance
    size = np.abs(np.where(np.isfinite(expected), expected, 0))
    return np.where(off, np.asarray(size + root_mean_square(size), tolerance.dtype), tolerance)


def verdict(results: Sequence[tuple[bool, float, float]]) -> CheckVerdict:
    """One verdict over the input sets compared so far: the error that comes closest to its tolerance, or exceeds it."""
    worst = max(results, key=lambda result: (not result[0], result[1] / max(result[2], 1e-300), result[1]))
    return CheckVerdict(
        passed=all(result[0] for result in results),
        max_abs_error=worst[1],
        tolerance=min(worst[2], NOT_FINITE),
        input_sets=len(results),
    )
