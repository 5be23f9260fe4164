"""Contractions drawn at random, as workloads and in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from tuner.graph.precision import PRECISION, TF32
from tuner.tvm_compat import IRModule, te, tirx

SUMS = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "tf32": "float32", "int8": "int32"}


@dataclass(frozen=True)
class Step:
    """One element-wise operation after the sums, in TE and in NumPy. extra: the axes of the tensor that it reads, or None."""

    name: str
    tvm: Callable[[Any, Any], Any]
    numpy: Callable[[Any, Any], Any]
    extra: str | None = None

    def __repr__(self) -> str:
        return self.name


def _const(value: float) -> Any:
    return tirx.const(value, "float32")


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf)(x.astype(np.float64)).astype(np.float32)


STEPS = (
    Step("bias", lambda y, e: y + e.astype("float32"), lambda y, e: y + e, "j"),
    Step("row scale", lambda y, e: y * e.astype("float32"), lambda y, e: y * e[:, None], "i"),
    Step("residual", lambda y, e: y + e.astype("float32"), lambda y, e: y + e, "ij"),
    Step("mask", lambda y, e: tirx.Select(e.astype("float32") > _const(0.0), y, _const(-3.0)), lambda y, e: np.where(e > 0, y, -3.0), "ij"),
    Step("scale", lambda y, _: y * _const(0.125), lambda y, _: y * np.float32(0.125)),
    Step("relu", lambda y, _: tirx.max(y, _const(0.0)), lambda y, _: np.maximum(y, 0)),
    Step("gelu", lambda y, _: y * (_const(0.5) + tirx.erf(y * _const(0.5**0.5)) * _const(0.5)),
         lambda y, _: y * (0.5 + 0.5 * _erf(y * np.float32(0.5**0.5)))),
    Step("tanh", lambda y, _: tirx.tanh(y), lambda y, _: np.tanh(y)),
    Step("sigmoid", lambda y, _: tirx.sigmoid(y), lambda y, _: 1 / (1 + np.exp(-y.astype(np.float64)))),
    Step("square", lambda y, _: tirx.power(y, _const(2.0)), lambda y, _: y * y),
    Step("halved", lambda y, _: y.astype("float16").astype("float32"), lambda y, _: y.astype(np.float16).astype(np.float32)),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A product C[s, i, j] of A and B, with what follows it."""

    batch: int
    rows: int
    columns: int
    length: int
    dtype: str
    turned: tuple[bool, bool]
    """Whether A lies as [k, i], and B as [j, k]."""
    steps: tuple[Step, ...]
    relu_first: bool
    """Whether A is a ReLU of what is read."""


@st.composite
def cases(draw: Any, *, matrices: bool = False) -> Case:
    """matrices: only those whose operands are matrices that a GPU copies tiles of."""
    dtype = draw(
        st.sampled_from(("float16", "float16", "bfloat16", "tf32", *(() if matrices else ("float32", "int8"))))
    )
    eighths = st.integers(2, 18).map(lambda n: 8 * n)
    turned = (False, True) if matrices and dtype == "tf32" else (draw(st.booleans()), draw(st.booleans()))
    aligned = (turned[0], not turned[1], not turned[0] or turned[1]) if matrices else (False,) * 3
    steps = () if dtype == "int8" else tuple(draw(st.lists(st.sampled_from(STEPS), max_size=4)))
    return Case(
        batch=draw(st.sampled_from((1, 1, 3))),
        rows=draw(eighths if aligned[0] else st.integers(1, 70)),
        columns=draw(eighths if aligned[1] else st.integers(1, 70)),
        length=draw(eighths if aligned[2] else st.integers(16, 150)),
        dtype=dtype,
        turned=turned,
        steps=steps,
        relu_first=not matrices and dtype != "int8" and draw(st.booleans()),
    )


def nearest(array: np.ndarray) -> np.ndarray:
    """Numbers of float32 as TF32 has them."""
    half = np.ldexp(np.float64(1), np.frexp(array.astype(np.float64))[1] - 12)
    rounded: np.ndarray = np.trunc(np.abs(array.astype(np.float64)) / (2 * half) + 0.5) * (2 * half)
    return np.copysign(rounded, array).astype(np.float32)


def numpy_type(dtype: str) -> Any:
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


def module(case: Case) -> Any:
    """The workload."""
    total, dtype = SUMS[case.dtype], "float32" if case.dtype == "tf32" else case.dtype
    lead = (case.batch,) if case.batch > 1 else ()
    a_shape = (case.length, case.rows) if case.turned[0] else (case.rows, case.length)
    b_shape = (case.columns, case.length) if case.turned[1] else (case.length, case.columns)
    a = te.placeholder((*lead, *a_shape), dtype, name="a")
    b = te.placeholder((*lead, *b_shape), dtype, name="b")
    k = te.reduce_axis((0, case.length), name="k")
    zero = tirx.const(0, dtype)

    def summed(*index: Any) -> Any:
        *s, i, j = index
        left = a[(*s, k, i) if case.turned[0] else (*s, i, k)]
        right = b[(*s, j, k) if case.turned[1] else (*s, k, j)]
        left = tirx.max(left, zero) if case.relu_first else left
        return te.sum(left.astype(total) * right.astype(total), axis=k)

    shape = (*lead, case.rows, case.columns)
    found = te.compute(shape, summed, name="c")
    extras = []
    for at, step in enumerate(case.steps):
        extents = {"i": case.rows, "j": case.columns}
        extra = None
        if step.extra is not None:
            extra = te.placeholder(tuple(extents[axis] for axis in step.extra), dtype, name=f"e{at}")
            extras.append(extra)
        found = te.compute(shape, _followed(step, found, extra), name=f"t{at}")
    if case.dtype in ("float16", "bfloat16"):
        last = found
        found = te.compute(shape, lambda *p: last[p].astype(case.dtype), name="out")
    function = te.create_prim_func([a, b, *extras, found])
    return IRModule({"main": function.with_attr(PRECISION, TF32) if case.dtype == "tf32" else function})


def _followed(step: Step, before: Any, extra: Any) -> Any:
    def cell(*p: Any) -> Any:
        place = dict(zip("ij", p[-2:], strict=True))
        return step.tvm(before[p], None if extra is None else extra[tuple(place[axis] for axis in step.extra or "")])

    return cell


def arguments(case: Case, mod: Any, seed: int = 0) -> list[np.ndarray]:
    """Drawn arguments; the result holds what no result is."""
    rng = np.random.default_rng(seed)
    made = []
    for param in mod["main"].params:
        shape, dtype = tuple(int(extent) for extent in param.ty.shape), numpy_type(str(param.ty.dtype))
        drawn = rng.integers(-8, 8, shape) if case.dtype == "int8" else rng.uniform(-1, 1, shape)
        made.append(np.ascontiguousarray(drawn.astype(dtype)))
    made[-1].view(np.uint8)[...] = 0xFF
    return made


def expected(case: Case, given: list[np.ndarray]) -> np.ndarray:
    """The result in NumPy."""
    a, b, *extras, _ = (array.astype(np.float64 if case.dtype != "int8" else np.int64) for array in given)
    a = np.maximum(a, 0) if case.relu_first else a
    a, b = (nearest(one).astype(np.float64) if case.dtype == "tf32" else one for one in (a, b))
    a = np.swapaxes(a, -1, -2) if case.turned[0] else a
    b = np.swapaxes(b, -1, -2) if case.turned[1] else b
    found: Any = a @ b
    if case.dtype == "int8":
        return np.asarray(found)
    for step in case.steps:
        found = step.numpy(found, extras.pop(0).astype(np.float32) if step.extra else None)
    return np.asarray(found, dtype=np.float64)
