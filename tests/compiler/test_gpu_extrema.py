"""Maxima and minima on a GPU keep NaN and infinities as PyTorch's do, in default schedules and in templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pitchpipe.wire.target import Target
from tests import triton_interpreter
from tests.compiler.gpu_cases import functions, one_function
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.test_gpu_default import compilers, trace_of
from tests.gpu_interpreter import run
from tuner.lowering.device_extrema import DEFINITIONS
from tuner.measure.gpu_code import lower
from tuner.schedule.trace import apply_trace
from tuner.templates.kernels import ptx_of, source_of
from tuner.templates.text import CONTRACTION, ROWS, checked
from tuner.tvm_compat import load_ir, relax, save_ir, te, tirx, to_tvm_target, topi

op = relax.op
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
NAN, INF = np.nan, np.inf


def special(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Drawn numbers, one in fourteen each NaN, infinity and minus infinity; the last rows are of one of these alone."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    at = rng.integers(0, 14, shape)
    for place, number in enumerate((NAN, INF, -INF)):
        x[at == place] = number
    rows = x.reshape(-1, shape[-1])
    rows[-1], rows[-2] = -INF, INF
    return x.astype(TYPES[dtype])


def pool(x: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(1, 2))
    return np.asarray(windows[:, ::2, ::2].max(axis=(-1, -2)))


CASES: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray], np.ndarray], tuple[int, ...]]] = {
    "rectifier": (lambda b, x: op.nn.relu(x), lambda x: np.maximum(x, 0), (9, 64)),
    "rectifier of odd width": (lambda b, x: op.nn.relu(x), lambda x: np.maximum(x, 0), (5, 13)),
    "bounds": (lambda b, x: op.clip(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5), (9, 64)),
    "of two tensors": (
        lambda b, x: op.minimum(x, b.emit(op.negative(x))), lambda x: np.minimum(x, -x), (9, 64)
    ),
    "along rows": (lambda b, x: op.max(x, axis=[1]), lambda x: x.max(axis=1), (9, 300)),
    "least of rows": (lambda b, x: op.min(x, axis=[1]), lambda x: x.min(axis=1), (40, 17)),
    "along columns": (lambda b, x: op.max(x, axis=[0]), lambda x: x.max(axis=0), (9, 64)),
    "of everything": (lambda b, x: op.min(x), lambda x: x.min(), (40, 64)),
    "pool": (lambda b, x: op.nn.max_pool2d(x, (2, 2), strides=(2, 2), layout="NHWC"), pool, (1, 6, 6, 16)),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CASES)
def test_default_schedules_keep_nan_and_begin_with_infinities(name: str, dtype: str) -> None:
    make, numpy, shape = CASES[name]
    (mod,) = functions(make, (shape, dtype))
    x = special(shape, dtype)
    wanted = numpy(x.astype(np.float64)).astype(TYPES[dtype])
    found = np.zeros_like(wanted)
    scheduled = apply_trace(load_ir(save_ir(mod)), trace_of(mod, HOPPER)).mod
    lowered = run(scheduled, HOPPER, [x, np.atleast_1d(found)])
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
    kernels = lowered.source.removeprefix(DEFINITIONS).partition('extern "C" __global__')[2]
    assert not re.search(r"\b(?:max|min)\(", kernels)
    for arch, compiler in compilers().items():
        target = to_tvm_target(Target.parse({**HOPPER.attributes(), "arch": arch}))
        compiler.compile(lower(scheduled, target).source)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["along rows", "least of rows", "along columns", "pool"])
def test_templates_of_rows_keep_nan_and_infinities(name: str) -> None:
    make, numpy, shape = CASES[name]
    (mod,) = functions(make, (shape, "float32"))
    chosen = checked(ROWS, {"rows": 4, "warps": 4, "early": 0})
    x = special(shape, "float32")
    wanted = numpy(x)
    found = np.zeros_like(wanted)
    triton_interpreter.run(source_of(mod, chosen), [x, found])
    np.testing.assert_array_equal(found, wanted)
    assert "max.f32" not in ptx_of(apply_trace(mod, chosen.text).mod["main"], "sm_90a")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_comes_before_and_behind_a_product_keeps_nan(dtype: str) -> None:
    def make(a: Any, b: Any) -> list[Any]:
        k = te.reduce_axis((0, 32), name="k")
        least = tirx.const(0, dtype)
        first = te.compute((16, 32), lambda i, j: tirx.max(a[i, j], least), name="first")
        total = te.compute(
            (16, 16),
            lambda i, j: te.sum(first[i, k].astype("float32") * b[k, j].astype("float32"), axis=k),
            name="total",
        )
        return [topi.cast(topi.clip(total, -1, 1), dtype)]

    mod = one_function(make, ((16, 32), dtype), ((32, 16), dtype))
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape).astype(TYPES[dtype]) for shape in ((16, 32), (32, 16)))
    a[3, 5], a[7, 1] = NAN, -INF
    wanted = np.clip(np.maximum(a.astype(np.float64), 0) @ b.astype(np.float64), -1, 1)
    arguments = {"rows": 16, "columns": 16, "step": 16, "parts": 1, "stages": 2, "warps": 1, "group": 0, "early": 0}
    chosen = checked(CONTRACTION, arguments)
    found = np.zeros((16, 16), TYPES[dtype])
    triton_interpreter.run(source_of(mod, chosen), [a, b, found])
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=3e-2 if dtype == "bfloat16" else 4e-3)
    assert np.isnan(wanted[3]).all()
