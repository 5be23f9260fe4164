"""Norms of float64, which TVM's own functions of norms do not take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pitchpipe.wire.target import Target
from tests.compiler.graphs import GPU, Graph, run_here
from tests.compiler.programs import TARGET
from tuner.graph.prepare import prepare
from tuner.tvm_compat import relax

norms = relax.op.nn


def normed(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    centred = x - x.mean(tuple(axes), keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(tuple(axes), keepdims=True) + 1e-5))


def column(x: np.ndarray) -> np.ndarray:
    return x[:, None, None]


NORMS: dict[str, tuple[Callable[..., Any], tuple[int, ...], Callable[..., np.ndarray]]] = {
    # name: (operator of x, weight and bias, shape of these, the same in NumPy)
    "layer": (
        lambda x, g, b: norms.layer_norm(x, g, b, axes=[-2, -1]),
        (3, 5),
        lambda x, g, b: normed(x, [2, 3]) * g + b,
    ),
    "instance": (
        lambda x, g, b: norms.instance_norm(x, g, b, channel_axis=1, axes=[2, 3]),
        (4,),
        lambda x, g, b: normed(x, [2, 3]) * column(g) + column(b),
    ),
    "instance of a batch": (
        lambda x, g, b: norms.instance_norm(x, g, b, channel_axis=1, axes=[0, 2, 3]),
        (4,),
        lambda x, g, b: normed(x, [0, 2, 3]) * column(g) + column(b),
    ),
    "group": (
        lambda x, g, b: norms.group_norm(x, g, b, num_groups=2, channel_axis=1, axes=[2, 3]),
        (4,),
        lambda x, g, b: normed(x.reshape(2, 2, 2, 3, 5), [2, 3, 4]).reshape(x.shape) * column(g) + column(b),
    ),
    "group without bias": (
        lambda x, g, b: norms.group_norm(x, g, b, num_groups=2, channel_axis=3, axes=[1, 2], center=False),
        (4,),
        lambda x, g, b: normed(x.reshape(2, 3, 5, 2, 2), [1, 2, 4]).reshape(x.shape) * g,
    ),
    "root of the mean square": (
        lambda x, g, b: norms.rms_norm(x, g, axes=[-1]),
        (5,),
        lambda x, g, b: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g,
    ),
}


@pytest.mark.parametrize("target", [TARGET, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_double_precision_are_computed_in_it(name: str, target: Target) -> None:
    make, affine, numpy = NORMS[name]
    graph = Graph()
    x = graph.tensor(*((2, 3, 5, 4) if name == "group without bias" else (2, 4, 3, 5)), dtype="float64")
    weights = [graph.tensor(*affine, dtype="float64") for _ in range(2)]
    prepared = prepare(graph.module(lambda emit: emit(make(x, *weights)), inputs=1), target)
    (found,) = run_here(prepared, graph.values[:1], graph.values[1:])
    np.testing.assert_allclose(found, numpy(*graph.values), rtol=1e-12, atol=1e-12)
