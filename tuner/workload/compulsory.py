"""Compulsory work of a workload: the FLOPs and bytes that no schedule does without, for a lower bound of its time.

A block computes its result for each point of its axes v, of extents e(v); an index is linear if it is a sum of c(v) * v and
a constant. Where a program is not that simple, both counts are too low rather than too high.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.schedule.combining import find_combining
from tuner.schedule.recurrence import find_recurrence
from tuner.tvm_compat import ir, tirx, tvm, tvm_ffi, uses

WINOGRAD_TAPS = 3
"""Taps per axis of the windows that a design space computes by Winograd's algorithm."""
WINOGRAD_TILE = 4
"""Outputs per axis of one of its tiles, at most: with more, float32 loses too many digits."""
_OPERATORS = {
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
}


def compulsory_bytes(function: Any) -> float:
    """Bytes of the parameters that every schedule reads or writes, each counted once.

    These are all bytes except those that strided windows skip: a 1x1 convolution of stride 2 reads a quarter of its input,
    also through a copy or a padding.
    """
    if find_recurrence(function) is not None or find_combining(function) is not None:
        return float(sum(_elements(param) * _item_bytes(param) for param in function.params))
    blocks = _blocks(function)
    results = {region.source for block in blocks for region in block.writes}
    needed = {param: _elements(param) for param in function.params if param in results}
    for block in reversed(blocks):
        wanted = max((needed.get(region.source, 0) for region in block.writes), default=0)
        for region in block.reads:
            # Of several readers the one that reads most counts: they may read the same elements.
            needed[region.source] = max(needed.get(region.source, 0), _touched(block, region, wanted))
    return float(sum(needed.get(param, 0) * _item_bytes(param) for param in function.params))


def least_flops(function: Any) -> float:
    """FLOPs of the reductions, with a multiply-add as two; 0 where no number is certain.

    Element-wise arithmetic is not counted, as the compiler may hoist it out of loops. Nor are multiplications with the zeros
    of a padding, nor those that Winograd's algorithm saves. Only for sums in float32 and float64; `flops_type` tells what is
    summed.
    """
    if (layer := find_recurrence(function)) is not None:
        return 2.0 * layer.steps * layer.rows * layer.gates * layer.units**2
    blocks = _blocks(function)
    producers = {region.source: block for block in blocks for region in block.writes}
    return sum(_reduction_flops(block, producers) for block in blocks)


def flops_type(function: Any) -> str:
    """The element type of what the reductions multiply, before it is converted for the sum: of several the shortest.

    Units such as tensor cores are faster for shorter types, and which unit a schedule uses is not known here.
    """
    if (layer := find_recurrence(function)) is not None:
        return layer.dtype
    types = [_factor_type(block) for block in _blocks(function) if any(map(_is_reduction, block.iter_vars))]
    return min(types, key=lambda found: (int(re.sub(r"\D", "", found) or 8), found), default="float32")


def _factor_type(block: Any) -> str:
    products: list[Any] = []
    tvm_ffi.structural_walk(block.body, (tirx.Mul, products.append))
    floats = [product for product in products if "float" in str(product.ty.dtype)]
    factors = [factor.value if isinstance(factor, tirx.Cast) else factor for p in floats for factor in (p.a, p.b)]
    found = {str(factor.ty.dtype) for factor in factors if "float" in str(factor.ty.dtype)}
    # A product of two types is computed in the longer one.
    return max(found or {"float32"}, key=lambda each: int(re.sub(r"\D", "", each)))


def winograd_saving(windows: Sequence[tuple[int, int, int]]) -> float:
    """How many times fewer multiplications Winograd's F(m, r) takes for windows of (taps, stride, dilation) per axis.

    m outputs of r taps take m + r - 1 multiplications in place of m * r, per axis, in windows that overlap: 4 times
    fewer for F(4x4, 3x3). Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), section 4.1.
    """
    m, r = WINOGRAD_TILE, WINOGRAD_TAPS
    return math.prod(m * r / (m + r - 1) for window in windows if window == (r, 1, 1))


def _blocks(function: Any) -> list[Any]:
    """Every block with axes, in the order of the program."""
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (tvm.s_tir.SBlock, found.append))
    return [block for block in found if block.iter_vars]


def _shape(buffer: Any) -> list[int]:
    return [int(extent) for extent in buffer.ty.shape]


def _elements(buffer: Any) -> int:
    return math.prod(_shape(buffer))


def _item_bytes(buffer: Any) -> int:
    dtype = str(buffer.ty.dtype)
    return 1 if dtype == "bool" else 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _extent(axis: Any) -> int:
    return int(axis.dom.extent)


def _is_reduction(axis: Any) -> bool:
    return bool(axis.iter_type == tirx.IterVar.CommReduce)


def _linear(block: Any, index: Any) -> tuple[list[int], int] | None:
    """The coefficients of the block's axes in a linear index, and its constant; None for another index."""
    found = tvm.sym.detect_linear_equation(index, [axis.var for axis in block.iter_vars])
    if not found or not all(isinstance(c, tirx.IntImm) for c in found):
        return None
    return [int(c) for c in found[:-1]], int(found[-1])


def _touched(block: Any, region: Any, wanted: int) -> int:
    """Elements of a buffer that a block reads for `wanted` elements of its result."""
    used: set[int] = set()
    box = 1
    for extent, index in zip(_shape(region.source), region.region, strict=True):
        axes = [i for i, axis in enumerate(block.iter_vars) if uses(index.min, axis.var)]
        used.update(axes)
        if not isinstance(index.extent, tirx.IntImm) or int(index.extent) != 1:
            continue  # Some of it, by an index that the program computes: at least one.
        most = math.prod(_extent(block.iter_vars[i]) for i in axes)
        if (linear := _linear(block, index.min)) is not None:
            span = 1 + sum(abs(c) * (_extent(axis) - 1) for c, axis in zip(linear[0], block.iter_vars, strict=True))
            most = min(most, span)
        box *= min(most, extent)
    reduced = math.prod(_extent(block.iter_vars[i]) for i in used if _is_reduction(block.iter_vars[i]))
    return min(box, math.prod(_extent(block.iter_vars[i]) for i in used), wanted * reduced)


def _reduction_flops(block: Any, producers: dict[Any, Any]) -> float:
    if not any(_is_reduction(axis) for axis in block.iter_vars):
        return 0.0
    if any(str(region.source.ty.dtype) not in ("float32", "float64") for region in block.writes):
        return 0.0
    steps = float(math.prod(_extent(axis) for axis in block.iter_vars))
    products: list[Any] = []
    tvm_ffi.structural_walk(block.body, (tirx.Mul, products.append))
    if not any("float" in str(product.ty.dtype) for product in products):
        return steps
    windows = []
    for region in block.reads:
        for position, index in enumerate(region.region):
            by, constant = _linear(block, index.min) or ([], 0)
            moving = [(c, axis) for c, axis in zip(by, block.iter_vars, strict=False) if c]
            if [_is_reduction(axis) for _, axis in moving] == [False, True]:
                (stride, output), (dilation, tap) = moving
                windows.append((_extent(tap), stride, dilation))
                met = constant + np.add.outer(stride * np.arange(_extent(output)), dilation * np.arange(_extent(tap)))
                steps *= float(_inside(producers, region.source, position, met).mean())
    return 2 * steps / winograd_saving(windows)


def _inside(producers: dict[Any, Any], buffer: Any, position: int, met: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which of these places along one axis of a buffer hold something else than zeros that pad or dilate it."""
    inside = np.ones(met.shape, bool)
    if (producer := producers.get(buffer)) is None:
        return inside
    place = next(region for region in producer.writes if region.source.same_as(buffer)).region[position].min
    guards: list[Any] = []
    tvm_ffi.structural_walk(producer.body, (ir.Call, guards.append))
    guards = [guard for guard in guards if _pads(guard)]
    for condition in _conjuncts(guards[0].args[0]) if guards else ():
        if not any(uses(condition, axis.var) for axis in producer.iter_vars if not place.same_as(axis.var)):
            inside &= _evaluate(condition, met)
    for region in producer.reads:
        for at, index in enumerate(region.region):
            by, constant = _linear(producer, index.min) or ([], 0)
            moving = [(c, axis.var) for c, axis in zip(by, producer.iter_vars, strict=False) if c]
            if len(moving) == 1 and place.same_as(moving[0][1]):
                inside &= _inside(producers, region.source, at, moving[0][0] * met + constant)
    return inside


def _pads(call: Any) -> bool:
    """Whether a call is `value if condition else 0`."""
    otherwise = call.args[2] if str(getattr(call.op, "name", "")).endswith("if_then_else") else None
    return isinstance(otherwise, tirx.FloatImm) and float(otherwise) == 0.0


def _conjuncts(condition: Any) -> list[Any]:
    if isinstance(condition, tirx.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]


def _evaluate(expression: Any, places: np.ndarray[Any, Any]) -> Any:
    """The value of an expression at every value of its one variable; true where that is no plain arithmetic."""
    if isinstance(expression, tirx.IntImm):
        return int(expression)
    if isinstance(expression, tirx.Var):
        return places
    if type(expression) not in _OPERATORS:
        return True
    return _OPERATORS[type(expression)](_evaluate(expression.a, places), _evaluate(expression.b, places))
