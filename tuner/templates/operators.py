"""TIR's element types, operators and functions, as Triton writes them."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.tvm_compat import tirx

TYPES = {
    "bool": "int1",
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")},
    "bfloat16": "bfloat16",
}
"""TIR's element types, as Triton calls them. Of these, bool lies in memory as bytes."""
INFIX: Mapping[type, str] = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.Div: "/",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.GT: ">",
    tirx.GE: ">=",
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.And: "&",
    tirx.Or: "|",
}
HALVES = ("float16", "bfloat16")
FUNCTIONS: Mapping[str, str] = {
    "tirx.exp": "tl.exp({})",
    "tirx.exp2": "tl.exp2({})",
    "tirx.log": "tl.log({})",
    "tirx.log2": "tl.log2({})",
    "tirx.sqrt": "tl.sqrt_rn({})",
    "tirx.rsqrt": "tl.rsqrt({})",
    "tirx.sin": "tl.sin({})",
    "tirx.cos": "tl.cos({})",
    "tirx.erf": "tl.erf({})",
    "tirx.floor": "tl.floor({})",
    "tirx.ceil": "tl.ceil({})",
    "tirx.sigmoid": "1.0 / (1.0 + tl.exp(-({})))",
    "tirx.tanh": "_tanh({})",
}
"""Functions of one float32 number."""
TANH = """
@triton.jit
def _tanh(x):
    # Near zero the quotient cancels, so that a polynomial takes its place: there its error is below 2e-8 of the result.
    e = tl.exp(-2.0 * tl.abs(x))
    large = (1.0 - e) / (1.0 + e)
    square = x * x
    small = x * (1.0 + square * (-0.3333333333 + square * (0.1333333333 + square * (-0.0539682540))))
    return tl.where(tl.abs(x) < 0.1, small, tl.where(x < 0.0, -large, large))
"""
NEAREST = """
@triton.jit
def _nearest(x):
    # Tensor cores cut off 13 bits of a fraction. Half of the last one that stays is added before; no number stays none.
    bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
"""
"""A float32 number as TF32 has it, halves rounded away from zero."""
EXTREMA: Mapping[type, str] = {tirx.Max: "_larger", tirx.Min: "_smaller"}
"""Functions of two numbers, of which no number is one of no number."""
_EXTREMUM = """
@triton.jit
def {}(a, b):
    return tl.{}(a, b, propagate_nan=core.PropagateNan.ALL)
"""
_NAN = "\nfrom triton.language import core\n"


def definitions(body: str) -> str:
    """What the statements of a body call."""
    extrema = [_EXTREMUM.format(*one) for one in (("_larger", "maximum"), ("_smaller", "minimum")) if one[0] in body]
    helpers = (TANH if "_tanh(" in body else "") + (NEAREST if "_nearest(" in body else "")
    return helpers + (_NAN + "".join(extrema) if extrema else "")
