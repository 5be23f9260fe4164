"""Attention as one tensor function, as graph preparation makes it: products, scale, mask and softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pitchpipe.wire.task import Workload
from tuner.tvm_compat import IRModule, save_ir, te, tirx
from tuner.workload.digest import workload_digest


def attention(
    batch: int,
    heads: int,
    rows: int,
    keys: int,
    size: int,
    *,
    dtype: str = "float16",
    mask: bool = False,
    causal: bool = False,
) -> Workload:
    """Softmax over `keys` in single precision; tensors are [batch, heads, rows or keys, size]. `causal` leaves out the keys
    behind a row's own."""
    q, k, v = (
        te.placeholder((batch, heads, n, size), dtype, name=name) for n, name in ((rows, "q"), (keys, "k"), (keys, "v"))
    )
    bias = [te.placeholder((batch, 1, 1, keys), "float32", name="mask")] if mask else []
    d, j = te.reduce_axis((0, size), name="d"), te.reduce_axis((0, keys), name="j")
    m, e = te.reduce_axis((0, keys), name="m"), te.reduce_axis((0, keys), name="e")
    lead = (batch, heads, rows)
    dot = te.compute(
        (*lead, keys),
        lambda b, h, i, c: te.sum(q[b, h, i, d].astype("float32") * k[b, h, c, d].astype("float32"), axis=d),
        name="dot",
    )
    scale, nothing, least = (tirx.const(number, "float32") for number in (1 / math.sqrt(size), 0, -1e9))

    def score(b: Any, h: Any, i: Any, c: Any) -> Any:
        value = dot[b, h, i, c] * scale + (bias[0][b, 0, 0, c] if mask else nothing)
        return tirx.Select(c <= i, value, least) if causal else value

    scores = te.compute((*lead, keys), score, name="scores")
    largest = te.compute(lead, lambda b, h, i: te.max(scores[b, h, i, m], axis=m), name="largest")
    powers = te.compute((*lead, keys), lambda b, h, i, c: te.exp(scores[b, h, i, c] - largest[b, h, i]), name="powers")
    total = te.compute(lead, lambda b, h, i: te.sum(powers[b, h, i, e], axis=e), name="total")
    shares = te.compute(
        (*lead, keys), lambda b, h, i, c: (powers[b, h, i, c] / total[b, h, i]).astype(dtype), name="shares"
    )
    values = te.compute(
        (*lead, size),
        lambda b, h, i, c: te.sum(shares[b, h, i, j].astype("float32") * v[b, h, j, c].astype("float32"), axis=j),
        name="values",
    )
    result = te.compute((*lead, size), lambda *at: values(*at).astype(dtype), name="result")
    mod = IRModule({"main": te.create_prim_func([q, k, v, *bias, result])})
    return Workload(digest=workload_digest(mod), ir=save_ir(mod))


ATOL = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5}
"""Of the largest value."""


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def close(found: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    """Asserts that results of that type are as near as rounding lets them be."""
    largest = float(np.nanmax(np.abs(wanted)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=ATOL[dtype] * max(1e-3, largest))
