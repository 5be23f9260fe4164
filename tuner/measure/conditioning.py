"""How far outputs may differ by rounding alone, where a function magnifies the error of what it is given.

The tolerance of a sum (tuner/measure/check.py) grows with the size of the outputs. On the edges a sum of 10^5 has an
error of 10^-3; where it cancels to nearly 0 its tanh has that error too, beside outputs of at most 1, and so has what is
clamped to [0, 20]. On random inputs a mean may cancel, of which a norm takes the inverse root; so may a divisor. Right
schedules that sum in another order, or multiply and add at once, were refused for it. So where the outputs are small on the
edges and were made of sums in a way that may leave them small beside these, or a steep function occurs, the reference
program runs PERTURBATIONS times more, on inputs x (1 + d) with d = +-(u(t_s) + u(t_a) * sqrt(K)) drawn for every element:
changes of the inputs as large as the rounding errors that the tolerance allows, hence a backward error (Higham, "Accuracy
and Stability of Numerical Algorithms", 2002, section 1.5). Sums in float32 of products of half precision are nearly exact
on the edges: their runs are left out, unless a steep function follows.
The root mean square of an element's changes shows how far it is carried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.measure.check import plain, root_mean_square
from tuner.measure.parts import over_parts
from tuner.measure.properties import WorkloadProperties

CHANGE_TYPE = "float32"
PERTURBATIONS = 8
"""An element whose errors carry far, and by chance in none of so many runs, is rarer than one in a million."""
_BOUNDED = 1024.0
"""The edges have products of 65,536: outputs whose root mean square is at most this were bounded by a function, as by tanh,
or by a minimum and a maximum."""


_FAR = 4.0
"""Where the first run changes no element by more than so many times its allowed rounding error, the others are left out."""


def changes_of(
    properties: WorkloadProperties,
    name: str,
    outputs: Sequence[np.ndarray[Any, Any]],
    inputs: Sequence[Any],
    run: Callable[[], Sequence[np.ndarray[Any, Any]]],
    seed: int,
) -> list[np.ndarray[Any, Any]]:
    """The root mean square of the changes of every element of `outputs` on an input set, in CHANGE_TYPE; 0 where nothing is
    finite. None where rounding errors are not magnified.

    `run` gives the outputs for what `inputs`, TVM's tensors, hold; they are changed meanwhile, and afterwards as they were.
    """
    sums = name == "edges" and properties.reduction > 1 and not properties.exact_on_edges
    bounded = sums and properties.shrinks and _are_bounded(outputs)
    if name == "structured" or not properties.floats or not (bounded or properties.steep):
        return []
    tensors = [tensor for tensor in inputs if "float" in str(tensor.dtype)]
    before = [np.array(tensor.numpy()) for tensor in tensors]
    sides = [_sides(properties, array) for array in before]
    squares = [np.zeros(array.size, np.float64) for array in outputs]
    rng = np.random.default_rng(seed)
    try:
        for at in range(PERTURBATIONS):
            for tensor, (one, other) in zip(tensors, sides, strict=True):
                tensor.copyfrom(_either(one, other, rng))
            for square, array, found in zip(squares, outputs, run(), strict=True):
                _add_change(square, array.reshape(-1), found.reshape(-1))
            if at == 0 and not bounded and not _carried_far(properties, outputs, squares):
                return []
    finally:
        for tensor, array in zip(tensors, before, strict=True):
            tensor.copyfrom(array)
    return [
        np.asarray(np.sqrt(square / PERTURBATIONS), CHANGE_TYPE).reshape(array.shape)
        for square, array in zip(squares, outputs, strict=True)
    ]


def _are_bounded(outputs: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether rounding errors of sums may be large beside the outputs on the edges."""
    return any(root_mean_square(plain(one)) <= _BOUNDED for one in outputs if one.dtype.kind not in "iub")


def _carried_far(
    properties: WorkloadProperties, outputs: Sequence[np.ndarray[Any, Any]], squares: Sequence[np.ndarray[Any, Any]]
) -> bool:
    """Whether an element changed by more than _FAR times the rounding error that the tolerance of a sum allows. squares: of
    the changes of one run, flat."""
    for output, square in zip(outputs, squares, strict=True):
        flat = plain(output).reshape(-1)
        scale = root_mean_square(flat)

        def far(part: slice, flat: Any = flat, square: Any = square, scale: float = scale) -> bool:
            size = np.abs(np.where(np.isfinite(flat[part]), flat[part], 0), dtype=np.float64)
            allowed = _FAR * properties.relative_error * (size + scale)
            return bool((square[part] > np.square(allowed)).any())

        if any(over_parts(far, flat.size)):
            return True
    return False


def _sides(
    properties: WorkloadProperties, array: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The array x (1 - e) and x (1 + e), e the relative error, rounded to its type."""
    flat = array.reshape(-1)
    less, more = np.empty_like(flat), np.empty_like(flat)

    def fill(part: slice) -> None:
        values = plain(flat[part]).astype(np.float64)
        less[part] = values * (1 - properties.relative_error)
        more[part] = values * (1 + properties.relative_error)

    over_parts(fill, flat.size)
    return less.reshape(array.shape), more.reshape(array.shape)


def _either(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """An array with each element from one of two, by chance. On their bits: a choice by a condition that nobody can predict
    takes a processor ten times as long."""
    bits = np.dtype(f"u{one.dtype.itemsize}")
    flat, differs = one.reshape(-1).view(bits), np.bitwise_xor(one.view(bits), other.view(bits)).reshape(-1)
    chosen = np.unpackbits(np.frombuffer(rng.bytes(-(-flat.size // 8)), np.uint8), count=flat.size)
    found = np.empty_like(flat)

    def fill(part: slice) -> None:
        found[part] = flat[part] ^ (differs[part] & np.negative(chosen[part], dtype=bits))

    over_parts(fill, flat.size)
    result: np.ndarray[Any, Any] = found.view(one.dtype).reshape(one.shape)
    return result


def _add_change(square: np.ndarray[Any, Any], before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> None:
    """Adds the square of each element's change, where it is finite."""

    def add(part: slice) -> None:
        with np.errstate(all="ignore"):
            change = np.asarray(after[part], np.float64) - np.asarray(before[part], np.float64)
            found = np.square(change)
            if not np.isfinite(found.sum()):
                found[~np.isfinite(change)] = 0
        square[part] += found

    over_parts(add, square.size)
