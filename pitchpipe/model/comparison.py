"""Whether a model computes what the framework that it came from computes: inputs to try, and how far outputs may be off.

With r an output of the framework and a the same output of ours, both of many elements, s = sqrt(mean(r^2)) over the
elements of r that are finite, and S the largest s of all outputs of the model, the error of an output is

    max |a - r| / max(|r| + s, CANCELLED * S).

The scale holds s, since an element near zero carries the rounding of the large terms that cancelled in it, and S, since an
output that is zero but for rounding does as well. Whole numbers and booleans must be equal. An output on the grid of a
quantised model may be one step off, as frameworks round differently among themselves. A network that rounds to such a grid
between its operators magnifies rounding, whoever computes it: `magnified` is what its framework's own outputs allow then
(reference/expected.py). Infinities and values that are not numbers must stand in the same places.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

TOLERANCE: Mapping[str, float] = {"float64": 1e-6, "float32": 1e-3, "tf32": 2e-2, "float16": 2e-2, "bfloat16": 6e-2}
"""NumPy's name of an output's type -> the largest error that rounding explains in a deep network. The error is relative,
without a unit. TF32 is how products of float32 may be computed (pitchpipe/wire/precision.py), and as precise as float16."""
PRECISION = ("bfloat16", "float16", "tf32", "float32", "float64")
"""The types of TOLERANCE, the least precise first."""
HALF_PRECISION = ("bfloat16", "float16")
CANCELLED = 0.05
"""Share of the largest output's size that every output is at least measured by."""
NO_SIZE = 1e-3
"""Stands in for CANCELLED * S where all of the framework's outputs are zero."""

INTEGERS = (0, 1)
"""Range of drawn whole numbers for which nothing is known: any embedding, mask or class takes these."""
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-4, -1e-4, 8.0, -8.0)
"""Floating-point values of the edge set, in units of the example's size: signs of zero, steps of activations, and arguments
for which exponentials and sigmoids saturate. Infinities are not among them: rewrites that are exact for numbers (a batch
norm folded into weights, Winograd's algorithm) carry them elsewhere, and no model is fed them."""


def less_precise(one: str | None, other: str) -> str:
    """Of two of PRECISION the less precise."""
    return other if one is None else min(one, other, key=PRECISION.index)


def tolerance(dtype: str, computed: str | None = None) -> float:
    """The largest error of an output of that type, of a model whose least precise floating-point type is `computed`, as
    under autocast, where it is known. 0 for whole numbers and booleans, which must be equal."""
    return max(TOLERANCE[dtype], TOLERANCE.get(computed or dtype, 0.0)) if dtype in TOLERANCE else 0.0


def difference(
    found: Sequence[Any],
    expected: Sequence[Any],
    *,
    steps: Sequence[float] = (),
    computed: str | None = None,
    magnified: float = 0.0,
) -> str | None:
    """How `found` differs from `expected`, arrays of the framework, by more than `tolerance`; None where it does not.

    `steps` is what each output may be off besides, absolutely: of a quantised one the step of its grid. `magnified` is the
    error that is allowed where the tolerance is smaller. Where several outputs differ the worst is told.
    """
    if len(found) != len(expected):
        return f"there are {len(found)} outputs, not {len(expected)}"
    errors: list[tuple[float, str]] = []
    for at, (a, r, error) in enumerate(_errors(found, expected, steps)):
        if isinstance(error, str):
            return f"output {at} {error}"
        limit = _limit(r, computed, magnified)
        if error > limit:
            worst = f"its largest relative error is {error:.2g}, where {limit:.0e} is allowed"
            errors.append((error / max(limit, 1e-12), f"output {at} ({r.dtype}{list(a.shape)}) differs: {worst}"))
    return max(errors)[1] if errors else None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How near the outputs on several input sets are to the framework's."""

    error: float
    """The largest error, of the output that came nearest to its tolerance."""
    tolerance: float
    """Of that output; 0 where all outputs are whole numbers or booleans, which must be equal."""
    differs_at: int | None = None
    """Number of the first input set on which they differ; None where they agree on all."""
    difference: str | None = None
    """How they differ there."""


def agreement(
    found: Sequence[Sequence[Any]],
    expected: Sequence[Sequence[Any]],
    *,
    steps: Sequence[float] = (),
    computed: str | None = None,
    magnified: float = 0.0,
) -> Agreement:
    """Compares the outputs of ours with the framework's, both by input set and output; see `difference`."""
    shares: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)]
    for at, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        told = difference(ours, theirs, steps=steps, computed=computed, magnified=magnified)
        if told is not None:
            return Agreement(error=float("inf"), tolerance=0.0, differs_at=at, difference=told)
        for _, r, error in _errors(ours, theirs, steps):
            limit = _limit(r, computed, magnified)
            if limit and not isinstance(error, str):
                shares.append((error / limit, error, limit))
    _, error, limit = max(shares)
    return Agreement(error=error, tolerance=limit)


def _limit(r: np.ndarray, computed: str | None, magnified: float) -> float:
    """The largest error of that output of the framework."""
    limit = tolerance(str(r.dtype), computed)
    return max(limit, magnified) if limit else 0.0


def largest_error(found: Sequence[Any], expected: Sequence[Any], steps: Sequence[float] = ()) -> float:
    """The largest error of all floating-point outputs; infinite where outputs differ in shape, type, whole numbers, or in
    where they are finite. `steps` is as for `difference`."""
    if len(found) != len(expected):
        return float("inf")
    errors = [error for _, _, error in _errors(found, expected, steps)]
    return max((float("inf") if isinstance(error, str) else error for error in errors), default=0.0)


def _errors(
    found: Sequence[Any], expected: Sequence[Any], steps: Sequence[float] = ()
) -> list[tuple[Any, Any, float | str]]:
    """(ours, the framework's, the error, or how they cannot be compared) of each output."""
    import numpy as np

    pairs = [(np.asarray(a), np.asarray(r)) for a, r in zip(found, expected, strict=True)]
    steps = [*steps, *[0.0] * (len(pairs) - len(steps))]
    exact = [_exact(a, r, step) for (a, r), step in zip(pairs, steps, strict=True)]
    wide = [
        None if told is not None or r.dtype.kind in "biu" else (a.astype(np.float64), r.astype(np.float64))
        for (a, r), told in zip(pairs, exact, strict=True)
    ]
    sizes = [0.0 if pair is None else _size(pair[1]) for pair in wide]
    least = CANCELLED * max(sizes, default=0.0) or NO_SIZE
    results: list[tuple[Any, Any, float | str]] = []
    for (a, r), told, pair, size, step in zip(pairs, exact, wide, sizes, steps, strict=True):
        error: float | str = told or 0.0
        if pair is not None:
            finite = np.isfinite(pair[1])
            if finite.any():
                scale = np.maximum(np.abs(pair[1][finite]) + size, least)
                off = np.maximum(np.abs(pair[0][finite] - pair[1][finite]) - step, 0.0)
                error = float((off / scale).max())
        results.append((a, r, error))
    return results


def _exact(a: np.ndarray, r: np.ndarray, step: float) -> str | None:
    """How shapes, types, whole numbers or places of infinities differ."""
    import numpy as np

    if a.shape != r.shape or a.dtype != r.dtype:
        return f"is {a.dtype}{list(a.shape)}, not {r.dtype}{list(r.shape)}"
    if r.dtype.kind in "biu":
        wrong = int((np.abs(a.astype(np.float64) - r.astype(np.float64)) > step).sum() if step else (a != r).sum())
        return f"({r.dtype}{list(r.shape)}) differs in {wrong} of {r.size} elements" if wrong else None
    ours, theirs = a.astype(np.float64), r.astype(np.float64)
    same = (np.isnan(ours) == np.isnan(theirs)) & (np.isinf(ours) == np.isinf(theirs))
    same &= ~np.isinf(theirs) | (ours == theirs)
    return None if same.all() else "has infinities, or values that are not numbers, in other places"


def _size(r: np.ndarray) -> float:
    import numpy as np

    usable = r[np.isfinite(r)]
    return float(np.sqrt(np.square(usable).mean())) if usable.size else 0.0


def drawn(
    shape: Sequence[int], dtype: np.dtype[Any], rng: np.random.Generator, integers: tuple[int, int] = INTEGERS
) -> np.ndarray:
    """An array of which nothing else is known: standard normal, or whole numbers of that range, both ends included."""
    if dtype.kind in "biu":
        low, high = INTEGERS if dtype.kind == "b" else integers
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def drawn_like(example: Any, rng: np.random.Generator) -> np.ndarray:
    """An array of the example's shape and type: normal with its mean and deviation, or whole numbers of its range."""
    import numpy as np

    array = np.asarray(example)
    if array.dtype == np.bool_:
        return rng.integers(0, 2, array.shape).astype(np.bool_)
    if array.dtype.kind in "iu":
        low, high = (int(array.min()), int(array.max())) if array.size else INTEGERS
        return _ascending_like(array, rng.integers(low, high, array.shape, endpoint=True).astype(array.dtype))
    wide = array.astype(np.float64)
    usable = wide[np.isfinite(wide)]
    mean, deviation = (float(usable.mean()), float(usable.std())) if usable.size else (0.0, 1.0)
    return _finite(mean + (deviation or 1.0) * rng.standard_normal(array.shape), array.dtype)


def edges_like(example: Any, rng: np.random.Generator) -> np.ndarray:
    """An array of the example's shape and type, of EDGES, or of the ends of its range of whole numbers."""
    import numpy as np

    array = np.asarray(example)
    if array.dtype == np.bool_:
        return np.zeros(array.shape, np.bool_)
    if array.dtype.kind in "iu":
        low, high = (int(array.min()), int(array.max())) if array.size else INTEGERS
        return _ascending_like(array, rng.choice(np.array([low, high]), array.shape).astype(array.dtype))
    size = _size(array.astype(np.float64)) or 1.0
    return _finite(size * rng.choice(np.array(EDGES), array.shape), array.dtype)


def _ascending_like(example: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values; where the example has one axis and ascends, in that order, and from its first one on: offsets mean nothing
    otherwise, and frameworks then differ from themselves."""
    import numpy as np

    if example.ndim != 1 or example.size < 2 or (example[1:] < example[:-1]).any():
        return values
    found = np.sort(values)
    found[0] = example[0]
    return found


def _finite(values: Any, dtype: Any) -> np.ndarray:
    """The values in the type; those beyond its largest become that."""
    import numpy as np

    finfo: Any = np.finfo if dtype.kind == "f" else importlib.import_module("ml_dtypes").finfo
    limit = float(finfo(dtype).max)
    found: np.ndarray = np.clip(values, -limit, limit).astype(dtype)
    return found


def input_sets(examples: Sequence[Any], seed: int = 0) -> list[list[np.ndarray]]:
    """The example inputs, inputs drawn like them, and edge values like them; each a list of arrays in order."""
    import numpy as np

    rng = np.random.default_rng(seed)
    given = [np.asarray(one) for one in examples]
    return [given, [drawn_like(one, rng) for one in given], [edges_like(one, rng) for one in given]]
