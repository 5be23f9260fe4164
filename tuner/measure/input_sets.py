"""The inputs that a workload's programs are compared on: the sets of tuner/measure/check.py.

The weights with which a recurrent layer multiplies its state are drawn like others and then made smaller: a random matrix of
H rows whose elements have a root mean square of GAIN / sqrt(H) magnifies a state by about GAIN (its spectral radius, by the
circular law). Above 1 a rounding error grows from step to step until right programs have nothing in common.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tuner.measure.check import SETS, numpy_dtype, root_mean_square
from tuner.measure.properties import WorkloadProperties, significand_bits
from tuner.schedule.tensor_type import TensorType

GAIN = 0.5
"""Of a step of a recurrent layer."""
RANGES = ("all", "positive", "unit", "opposed")
"""Of the floats of a set, in the order in which they are drawn, until outputs are finite: as the set has them; positive
ones, for roots and logarithms; ones between 0 and 1, for roots of 1 - x^2, and whole numbers that are 0 or 1, for masks
times the largest number; positive and negative ones by turns, parameter by parameter, for roots of 1 - exp(x y)."""


def make_inputs(
    properties: WorkloadProperties, name: str, seed: int, within: str = RANGES[0]
) -> list[np.ndarray[Any, Any]]:
    """The arrays of the input set `name`, in the order of `properties.inputs`. Equal arguments give equal arrays.

    within: one of RANGES.
    """
    number, made = SETS.index(name), []
    for i in properties.inputs:
        rng = np.random.default_rng([seed, number, i])
        array = _words(properties, i, name, rng) if i in properties.words else _array(properties, i, name, rng, within)
        array = -array if within == "opposed" and i % 2 and array.dtype.kind not in "iub" else array
        made.append(_damped(array) if i == properties.state_weights else array)
    return made


def _damped(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Weights [H, G * H] of a recurrent layer's state of the same signs and proportions, with GAIN for what is drawn."""
    wide = weights.astype(np.float32)
    size = root_mean_square(wide) * math.sqrt(wide.shape[0])
    return np.asarray(wide * (GAIN / size), weights.dtype) if size else weights


def _words(properties: WorkloadProperties, at: int, name: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Numbers of all 32 bits; in the set of edges bytes of 0, 127, 128 and 255: the ends of both kinds of bytes."""
    size = (*properties.params[at].shape, 4)
    ends = np.array([0, 127, 128, 255], np.uint8)
    parts = rng.choice(ends, size) if name == "edges" else rng.integers(0, 256, size, np.uint8)
    return parts.view(np.int32).reshape(size[:-1])


def _array(
    properties: WorkloadProperties, at: int, name: str, rng: np.random.Generator, within: str
) -> np.ndarray[Any, Any]:
    param = properties.params[at]
    dtype = numpy_dtype(param.dtype)
    bits = significand_bits(param.dtype)
    if bits is None:
        if within == "unit" and properties.index_bound is None:
            return rng.integers(0, 2, size=param.shape).astype(dtype)
        return _integers(properties, param, name, rng).astype(dtype)
    if name == "random":
        values = _uniform(param.shape, np.dtype(np.float64 if bits > 24 else np.float32), rng)
    elif name == "structured":
        values = _exact_integers(properties, min(bits, properties.bits), param.shape, rng)
    else:
        big, small = (256.0, 2.0**-12) if bits >= 24 else (8.0, 2.0**-6) if bits >= 8 else (2.0, 0.5)
        choices = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.0, small, -small, big, -big], np.float32)
        values = choices[rng.integers(len(choices), size=param.shape, dtype=np.int8)]
    if within != "all":
        values = np.abs(values) + np.float32(0.5 if name != "structured" else 1.0)
    if within == "unit":
        values /= 1 + values
    return np.asarray(values, dtype)


def _uniform(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> Any:
    """In [-1, 1). In place: weights have tens of millions of elements."""
    values: Any = np.asarray(rng.random(shape, dtype=dtype.type))
    values *= 2
    values -= 1
    return values


def _exact_integers(
    properties: WorkloadProperties, bits: int, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Small integers whose sums of `reduction` products stay below 2^bits by five standard deviations."""
    room = 2.0**bits / (5 * math.sqrt(properties.reduction))
    amplitude = 3 if room > 16 else 1
    values = rng.integers(-amplitude, amplitude + 1, size=shape, dtype=np.int8).astype(np.float32)
    if room < 1:
        values *= rng.random(shape, dtype=np.float32) < room
    return values


def _integers(
    properties: WorkloadProperties, param: TensorType, name: str, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    if param.dtype == "bool":
        return rng.integers(0, 2, size=param.shape)
    low, high = (0, 16) if param.dtype.startswith("uint") else (-8, 8)
    if properties.index_bound is not None:
        low, high = 0, max(1, min(properties.index_bound, 127))
        if name != "edges":
            high = max(1, properties.index_bound) if param.dtype in ("int32", "int64", "uint32", "uint64") else high
    elif param.dtype in ("int8", "uint8") and name != "structured":
        low, high = (-128, 128) if param.dtype == "int8" else (0, 256)
    if name == "edges":
        return rng.choice(np.array([low, high - 1, min(max(0, low), high - 1)]), size=param.shape)
    return rng.integers(low, high, size=param.shape)
