"""Sines, cosines and tangents: exact where numbers are large, the same in all code, and no call of the C library.

Their errors on numbers of moderate size, and what no number gives, are in test_fastmath.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.compiler.test_fastmath import EVERYWHERE, TARGETS, called, compiled, kernel, spaced
from tuner.lowering.stack import PIPELINE
from tuner.measure.build import compile_module, generate
from tuner.tvm_compat import tirx, tvm

SCALE = 1 << 500
"""Of the whole numbers that stand for real ones where sines are computed exactly."""


def inverse_tangent(n: int) -> int:
    """Of 1 / n, in units of 1 / SCALE; the error is below a thousand."""
    term, total, k = SCALE // n, 0, 1
    while term:
        total, term, k = total + term // k, -term // (n * n), k + 2
    return total


HALF_PI = 8 * inverse_tangent(5) - 2 * inverse_tangent(239)
"""J. Machin, 1706."""


def exact_sines(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sines and cosines in float64, of angles that are reduced in whole numbers."""
    found = []
    for numerator, denominator in (float(each).as_integer_ratio() for each in x):
        n, rest = divmod(numerator * SCALE // denominator + HALF_PI // 2, HALF_PI)
        r = (rest - HALF_PI // 2) / SCALE
        turns = [math.sin(r), math.cos(r), -math.sin(r), -math.cos(r)]
        found.append((turns[n % 4], turns[(n + 1) % 4]))
    sine, cosine = np.array(found).T
    return sine, cosine


def close_to_quarter_turns() -> np.ndarray:
    """In each binade from 2^20 numbers whose distance to a multiple of pi / 2 is small: multiples of the denominators of
    continued fractions."""
    found = []
    for exponent in range(-3, 105):
        # 2^exponent * 2 / pi, less what is whole of it, is a / b; so is the best approximation with the denominator q.
        a, b = (SCALE * SCALE * 2 ** (exponent + 3) // 8 // HALF_PI) % SCALE, SCALE
        before, q = 0, 1
        while q < 1 << 24:
            multiple = q * -(-(1 << 23) // q)
            if multiple < 1 << 24:
                found.append(math.ldexp(multiple, exponent))
            quotient, rest = divmod(b, a)
            b, a, before, q = a, rest, q, quotient * q + before
    return np.array(found, np.float32)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.attrs["mcpu"])
def test_sines_of_large_numbers_are_as_exact_as_of_small_ones(target: Any) -> None:
    large = np.concatenate([close_to_quarter_turns(), spaced(2.0**20, 3.4e38, 1 << 14)])
    assert (large >= 2**20).all()
    sine, cosine = exact_sines(large)
    assert np.abs(sine).min() < 2.0**-28
    assert np.abs(cosine).min() < 2.0**-28
    for function, exact, bound in ((tirx.sin, sine, 1.6), (tirx.cos, cosine, 1.6), (tirx.tan, sine / cosine, 4.0)):
        run = compiled(function, target)
        found = run(large)
        ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
        assert (np.abs(found - exact) / ulp).max() <= bound
        np.testing.assert_array_equal(run(-large), found if function is tirx.cos else -found)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.attrs["mcpu"])
@pytest.mark.parametrize("function", [tirx.sin, tirx.cos, tirx.tan], ids=lambda function: function.__name__)
def test_a_sine_has_the_same_bits_in_every_lane_and_in_scalar_code(function: Callable[[Any], Any], target: Any) -> None:
    near, far = EVERYWHERE[:: EVERYWHERE.size // 512], spaced(2.0**18, 3.4e38, 256)
    x = np.concatenate([near, far, -far, np.array([0.0, -0.0, 1e-45, -1e-45], np.float32)])
    np.random.default_rng(0).shuffle(x)

    def bits(vectorised: bool, values: np.ndarray) -> np.ndarray:
        mod = kernel(function, length=values.size, vectorised=vectorised)
        found = tvm.runtime.empty(values.shape, "float32")
        compile_module(mod, target).get_function("main", query_imports=True)(tvm.runtime.tensor(values), found)
        return found.numpy().view(np.int32)

    in_vectors = bits(True, x)
    np.testing.assert_array_equal(in_vectors, bits(False, x))
    order = np.argsort(np.abs(x))
    np.testing.assert_array_equal(in_vectors[order], bits(True, x[order]))
    if function is not tirx.cos:
        np.testing.assert_array_equal(in_vectors[x == 0], x[x == 0].view(np.int32))


def test_code_of_sines_of_sines_grows_with_their_number() -> None:
    def nodes(depth: int) -> int:
        def nested(x: Any) -> Any:
            for _ in range(depth):
                x = tirx.sin(x) + tirx.const(1.0, "float32")
            return x

        lowered, _ = generate(kernel(nested, length=64), TARGETS[0])
        return str(lowered.script()).count("T.Select(")

    assert nodes(6) - nodes(5) == nodes(2) - nodes(1) > 0


def test_a_double_keeps_the_sine_of_the_library() -> None:
    mod = kernel(tirx.sin, length=64, dtype="float64")
    assert called(mod, TARGETS[0], PIPELINE) == {"sin"}
