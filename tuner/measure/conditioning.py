"""How far outputs may differ by rounding alone, where a function magnifies the error of what it is given.

The tolerance of a sum (tuner/measure/check.py) grows with the size of the outputs. On the edges a sum of 10^5 has an
error of 10^-3; where it cancels to nearly 0 its tanh has that error too, beside outputs of at most 1, and so has what is
clamped to [0, 20]. On random inputs a mean may cancel, of which a norm takes the inverse root; so may a divisor. Right
schedules that sum in another order, or multiply and add at once, were refused for it. So where the outputs of sums are
small on the edges, or a steep function occurs, the reference program runs PERTURBATIONS times more, on inputs x (1 + d)
with d = +-(u(t_s) + u(t_a) * sqrt(K)) drawn for every element: changes of the inputs as large as the rounding errors that
the tolerance allows, hence a backward error (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 1.5).
The root mean square of an element's changes shows how far it is carried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.measure.check import WorkloadProperties, plain, root_mean_square

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
    bounded = name == "edges" and properties.reduction > 1 and _are_bounded(outputs)
    if name == "structured" or not properties.floats or not (bounded or properties.steep):
        return []
    tensors = [tensor for tensor in inputs if "float" in str(tensor.dtype)]
    before = [np.array(tensor.numpy()) for tensor in tensors]
    squares = [np.zeros(array.shape, np.float64) for array in outputs]
    rng = np.random.default_rng(seed)
    try:
        for at in range(PERTURBATIONS):
            for tensor, array in zip(tensors, before, strict=True):
                tensor.copyfrom(_perturbed(properties, array, rng))
            for square, array, found in zip(squares, outputs, run(), strict=True):
                with np.errstate(all="ignore"):
                    change = np.asarray(found, np.float64) - np.asarray(array, np.float64)
                square += np.square(np.where(np.isfinite(change), change, 0)) / PERTURBATIONS
            if at == 0 and not bounded and not _carried_far(properties, outputs, squares):
                return []
    finally:
        for tensor, array in zip(tensors, before, strict=True):
            tensor.copyfrom(array)
    return [np.asarray(np.sqrt(square), CHANGE_TYPE) for square in squares]


def _are_bounded(outputs: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether rounding errors of sums may be large beside the outputs on the edges."""
    return any(root_mean_square(plain(one)) <= _BOUNDED for one in outputs if one.dtype.kind not in "iub")


def _carried_far(
    properties: WorkloadProperties, outputs: Sequence[np.ndarray[Any, Any]], squares: Sequence[np.ndarray[Any, Any]]
) -> bool:
    """Whether an element changed by more than _FAR times the rounding error that the tolerance of a sum allows."""
    for output, square in zip(outputs, squares, strict=True):
        size = np.abs(np.where(np.isfinite(plain(output)), plain(output), 0), dtype=np.float64)
        allowed = _FAR * properties.relative_error * (size + root_mean_square(size))
        if bool((square * PERTURBATIONS > np.square(allowed)).any()):
            return True
    return False


def _perturbed(
    properties: WorkloadProperties, array: np.ndarray[Any, Any], rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    signs = rng.integers(0, 2, size=array.shape, dtype=np.int8) * 2 - 1
    values = array if array.dtype == np.float64 else plain(array).astype(np.float64)
    return np.asarray(values * (1 + properties.relative_error * signs), array.dtype, order="C")
