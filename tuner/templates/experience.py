"""What measured points of other workloads say about a point: the shipped correction of the analytic estimate.

With e the estimate and t the measured time of a point, and x its features, a ridge regression over the points of many
workloads finds w in

    log t = log e + c + w . x,        w = (X^T X + lambda I)^-1 X^T (log t - log e)

where x and log t - log e are taken from their means over the points of one workload: c is the workload's own and ranks
nothing. x are the numbers of `described`, standardised, and their products of two, standardised again; of a point beyond
what was measured each number is the nearest measured one. `contraction_weights.json` holds the result.
`benchmarks/template_trials.py` measures the points, finds w, and says how good it is for networks that were held out.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pitchpipe.wire.target import Target
from tuner.templates.contraction import ITEM_BYTES, Contraction
from tuner.templates.estimate import MULTIPROCESSORS, blocks_of, held_blocks
from tuner.templates.points import Points, capability, shared_bytes, steps_of
from tuner.templates.text import FETCHES

Floats = NDArray[np.float64]
FILE = "contraction_weights.json"
CAPABILITY, DTYPES = 90, ("float16", "bfloat16")
"""Of the devices on which points were measured, and of operands: both types run through the same units at the same speed."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What was learned."""

    least: Floats
    most: Floats
    """Of each feature among the measured points."""
    mean: Floats
    spread: Floats
    """Of each feature there."""
    products_mean: Floats
    products_spread: Floats
    """Of the standardised features and their products of two."""
    weights: Floats

    def expanded(self, features: Floats) -> Floats:
        """x of the module's docstring, for each row."""
        scaled = (np.clip(features, self.least, self.most) - self.mean) / self.spread
        return (with_products(scaled) - self.products_mean) / self.products_spread

    def corrections(self, features: Floats) -> Floats:
        """w . x, for each row."""
        found: Floats = self.expanded(features) @ self.weights
        return found


def factors(found: Contraction, target: Target, points: Points, estimates: Floats) -> Floats:
    """By what the estimate of each point is multiplied: 1 where there is no experience of such points."""
    if capability(target) != CAPABILITY or found.dtype not in DTYPES:
        return np.ones(len(points))
    return np.exp(shipped().corrections(features(found, points, estimates)))


@functools.cache
def shipped() -> Weights:
    """What comes with the package."""
    text = resources.files("tuner.templates").joinpath(FILE).read_text()
    return Weights(**{name: np.array(values) for name, values in json.loads(text)["model"].items()})


def features(found: Contraction, points: Points, estimates: Floats) -> Floats:
    """A row for each point: the numbers of `described`, in their order."""
    told = described(found, points, estimates).values()
    return np.column_stack([np.broadcast_to(np.asarray(one, dtype=float), len(points)) for one in told])


def described(found: Contraction, points: Points, estimates: Floats) -> dict[str, Any]:
    """Name of a feature -> its number for each point, or for all; counts, bytes and times as binary logarithms."""
    item = ITEM_BYTES[found.dtype]
    m, n, k = found.extent("i"), found.extent("j"), found.extent("k")
    rows, columns, step, parts = (points[name] for name in ("rows", "columns", "step", "parts"))
    warps, stages, steps = points["warps"], points["stages"], steps_of(found, points)
    blocks, held, copies = blocks_of(found, points), held_blocks(found, points), np.minimum(stages, steps)
    each = -(-blocks // MULTIPROCESSORS)
    copied = (rows + columns) * step * item * steps
    return {
        "estimate": np.log2(estimates),
        **{name: np.log2(points[name]) for name in ("rows", "columns", "step", "parts", "warps", "stages")},
        "copies": copies,
        "tma": points.tma,
        "cluster": points["cluster"],
        "grouped": points["group"] > 0,
        "fetches": points["early"] == FETCHES,
        "m": np.log2(m),
        "n": np.log2(n),
        "k": np.log2(k),
        "steps": steps,
        "blocks": np.log2(blocks),
        # Blocks of a multiprocessor, at a time and in all, and how evenly they are shared out.
        "held": held,
        "together": np.minimum(held, each),
        "each": each,
        "evenness": blocks / (each * MULTIPROCESSORS),
        "waves": -(-blocks // (MULTIPROCESSORS * held)),
        # Of a multiprocessor, and of all.
        "computed": np.log2(2 * rows * columns * step * steps * each),
        "copied": np.log2(copied * each),
        "read": np.log2(copied * blocks),
        "flops": np.log2(2.0 * m * n * k),
        "shared": np.log2(shared_bytes(found, points)),
        "windows": len(found.k) > 1,
        "padding": -(-m // rows) * rows * -(-n // columns) * columns / (m * n) * steps * step * parts / k,
        "sums": rows * columns / (32 * warps),
        "warp_rows": rows / warps,
        "share": blocks / MULTIPROCESSORS,
        "ahead": step * copies,
        "issuing": np.minimum(4, warps * np.minimum(held, each)),
        "lines": columns % 64 == 0,
        "in_flight": stages * step * (rows + columns) * item / 1024,
    }


def with_products(rows: Floats) -> Floats:
    """The columns, and their squares and products of two."""
    count = rows.shape[1]
    return np.hstack([rows, *(rows[:, [first]] * rows[:, first:] for first in range(count))])


def learn(features_of: Sequence[Floats], log_ratios: Sequence[Floats], ridge: float) -> Weights:
    """The regression of the module's docstring: of each workload its points' features and log t - log e."""
    every = np.vstack(features_of)
    mean, spread = every.mean(axis=0), np.maximum(every.std(axis=0), 1e-9)
    products = with_products((every - mean) / spread)
    both = {"products_mean": products.mean(axis=0), "products_spread": np.maximum(products.std(axis=0), 1e-9)}
    ends = np.cumsum([len(one) for one in features_of])[:-1]
    scaled = (products - both["products_mean"]) / both["products_spread"]
    x = np.vstack([one - one.mean(axis=0) for one in np.split(scaled, ends)])
    y = np.concatenate([one - one.mean() for one in log_ratios])
    weights = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
    return Weights(
        least=every.min(axis=0),
        most=every.max(axis=0),
        mean=mean,
        spread=spread,
        **both,
        weights=weights,
    )
