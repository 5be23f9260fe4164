"""Maxima and minima that are NaN where an operand is, as in the frameworks, for CUDA C++.

TVM writes max(a, b), which gives the operand that is a number, and begins a reduction with the largest finite number, which
is not the maximum of elements that are all minus infinity. Devices have instructions that keep NaN, at the same cost. So
reductions begin with an infinity before TVM lowers the module, and extrema become calls afterwards, when those that TVM
writes between threads are there too.
"""

from __future__ import annotations

from typing import Any

from tuner.lowering.extrema import extrema_of, from_infinity
from tuner.tvm_compat import tirx, tvm_ffi

NAMES = {"Max": "max", "Min": "min"}
"""TVM's extrema -> PTX's and CUDA's."""
_FUNCTIONS = {
    **dict.fromkeys(("float16", "bfloat16"), "__h{}_nan"),
    **dict.fromkeys(("float32", "float64"), "{}_or_nan"),
}
"""Element type -> the function of CUDA's headers or of the definitions below."""
DEFINITIONS = "".join(
    f"""\
static __forceinline__ __device__ float {name}_or_nan(float a, float b) {{
  float c;
  asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}}
static __forceinline__ __device__ double {name}_or_nan(double a, double b) {{
  return a != a || a {"><"[name == "min"]} b ? a : b;
}}
"""
    for name in NAMES.values()
)
"""In CUDA C++."""


def begin_with_infinities(mod: Any) -> Any:
    """The module with reductions by maximum or minimum that begin so, where TVM's begin with the largest finite number."""
    return _BEGIN(mod)


def _begin(function: Any, _mod: Any, _context: Any) -> Any:
    body = from_infinity(function.body, extrema_of(function.body))
    return function if body.same_as(function.body) else function.with_body(body)


_BEGIN = tirx.transform.prim_func_pass(_begin, opt_level=0, name="pitchpipe.BeginWithInfinities")


def _function(function: Any, _mod: Any, _context: Any) -> Any:
    body = tvm_ffi.structural_map(function.body, [(tirx.Max, _kept), (tirx.Min, _kept)])
    return function if body.same_as(function.body) else function.with_body(body)


KEEP_NAN = tirx.transform.prim_func_pass(_function, opt_level=0, name="pitchpipe.KeepNan")
"""The pass. After TVM has lowered reductions between threads, before vectors are taken apart (lane_by_lane.py)."""


def _kept(extreme: Any) -> Any:
    dtype = str(extreme.ty.dtype)
    function = _FUNCTIONS.get(dtype.split("x")[0])
    if function is None:
        return extreme
    return tirx.call_pure_extern(dtype, function.format(NAMES[type(extreme).__name__]), extreme.a, extreme.b)


def defined(source: str) -> str:
    """CUDA C++ of TVM's generator with the functions that it calls for extrema."""
    return DEFINITIONS + source if "_or_nan(" in source else source
