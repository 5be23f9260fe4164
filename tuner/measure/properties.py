"""The properties of a workload that decide its inputs and its tolerance (tuner/measure/check.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.graph.precision import multiplies_tf32
from tuner.measure.build import parameters
from tuner.schedule.combining import find_combining
from tuner.schedule.recurrence import DTYPE, STATE_WEIGHTS, find_recurrence
from tuner.schedule.tensor_type import TensorType
from tuner.tvm_compat import structural_walk

_COMPARISONS = frozenset({"EQ", "NE", "LT", "LE", "GT", "GE"})
_ARITHMETIC = frozenset({"Add", "Mul", "Sub", "Max", "Min"})
_INEXACT_NODES = frozenset({"Div", "Mod", "FloorDiv", "FloorMod"})
_STEEP_CALLS = frozenset(f"tirx.{name}" for name in ("sqrt", "rsqrt", "pow", "log", "log2", "log10", "log1p"))
_EXACT_CALLS = frozenset({"prim.if_then_else", "prim.likely"})
_ROUNDING_CALLS = frozenset(f"tirx.{name}" for name in ("round", "nearbyint", "floor", "ceil", "trunc"))
_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
TF32_BITS = 11
"""Of operands that tensor cores round."""
_FEWEST_BITS = 3
"""Significand bits of the 8-bit and smaller floats."""


def significand_bits(dtype: str) -> int | None:
    """Bits of a float type's significand, the hidden one counted; None for types that are not floats."""
    return _BITS.get(dtype, _FEWEST_BITS) if "float" in dtype else None


@dataclass(frozen=True, kw_only=True)
class WorkloadProperties:
    """The properties of a workload that decide its inputs and its tolerance."""

    params: tuple[TensorType, ...]
    outputs: tuple[int, ...]
    """Indices of the parameters that the function writes."""
    reduction: int
    """K: summed lengths of the reduction blocks."""
    bits: int
    """Fewest significand bits of a float that any block writes; 53 when none does."""
    reduction_bits: int
    """Fewest significand bits of a float that a reduction block writes, or of TF32 where products may be that; 53 when none
    does."""
    exact: bool
    """Whether only exact operations occur (+ - * min max, choices)."""
    steep: bool
    """Whether a quotient, a root, a logarithm or a power occurs: its relative error may be many times its operand's."""
    shrinks: bool
    """Whether an output may be small beside the sums that it was made of: not of one sum of products that is scaled, added
    to, and cut off at zero."""
    floats: bool
    """Whether any float takes part."""
    exact_on_edges: bool = False
    """Whether the one sum is of products of half precision as they are given, in float32, and what follows has no jump. On
    the edges, whose elements are few powers of two, it is exact in any order, but for some of the longest."""
    rounds: bool = False
    """Whether a float is rounded to a whole number."""
    state_weights: int | None = None
    """Of a recurrent layer the parameter that multiplies its state; None of any other workload."""
    words: frozenset[int] = frozenset()
    """Indices of the parameters of int32 that are shifted: each number holds several, so all of its bits count."""
    index_bound: int | None
    """Smallest extent that values read from integer buffers index, or of an axis whose places they are compared with, as in
    a scatter; None where there is neither."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """Indices of the parameters that are only read."""
        return tuple(i for i in range(len(self.params)) if i not in self.outputs)

    @property
    def relative_error(self) -> float:
        """u(t_s) + u(t_a) * sqrt(K): of a sum in any order, beside its typical size."""
        return 2.0**-self.bits + 2.0**-self.reduction_bits * math.sqrt(self.reduction)


def inspect(mod: Any) -> WorkloadProperties:
    """The properties of a workload. Raises ValueError when a parameter is no buffer of static shape or none is written."""
    function = mod["main"]
    params = parameters(mod)
    written: set[int] = set()
    bits, reduction_bits, reduction = 53, 53, 0
    exact, floats, bound = True, any("float" in param.dtype for param in params), None
    steep = rounds = jumps = shrinks = False
    sums = 0
    extents: dict[Any, int] = {}
    equalities: list[Any] = []
    shifted: list[Any] = []

    def visit(node: Any) -> None:
        nonlocal bits, reduction_bits, reduction, exact, floats, bound, steep, rounds, jumps, shrinks, sums
        kind = type(node).__name__
        jumps = jumps or _jumps(node, kind)
        shrinks = shrinks or _shrinks(node, kind)
        if kind == "SBlock":
            extents.update((v.var, int(v.dom.extent)) for v in node.iter_vars)
            length = math.prod(int(v.dom.extent) for v in node.iter_vars if v.iter_type == v.CommReduce)
            reducing = any(v.iter_type == v.CommReduce for v in node.iter_vars)
            reduction += length if reducing else 0
            sums += reducing
            for region in node.writes:
                written.update(i for i, param in enumerate(function.params) if param.same_as(region.source))
                found = significand_bits(str(region.source.ty.dtype))
                if found is not None:
                    floats = True
                    bits = min(bits, found)
                    reduction_bits = min(reduction_bits, found) if reducing else reduction_bits
        elif kind == "BufferStore":
            written.update(i for i, param in enumerate(function.params) if param.same_as(node.buffer))
            bound = _least(bound, _indexed_extent(node.buffer, node.indices))
        elif kind == "TensorLoad":
            bound = _least(bound, _indexed_extent(node.source, node.indices))
        elif kind == "EQ":
            equalities.append(node)
        elif kind == "RShift" and type(node.a).__name__ == "TensorLoad" and str(node.ty.dtype) == "int32":
            shifted.append(node.a.source)
        elif kind in _INEXACT_NODES:
            exact = exact and "float" not in str(node.ty)
            steep = steep or (kind == "Div" and type(node.b).__name__ != "FloatImm")
        elif kind == "Call":
            exact = exact and getattr(node.op, "name", "") in _EXACT_CALLS
            steep = steep or getattr(node.op, "name", "") in _STEEP_CALLS
            rounds = rounds or getattr(node.op, "name", "") in _ROUNDING_CALLS

    structural_walk(function.body, [(object, visit)])
    for equality in equalities:
        for place, axis in ((equality.a, equality.b), (equality.b, equality.a)):
            bound = _least(bound, extents.get(axis) if type(axis).__name__ == "Var" and _loads(place) else None)
    if multiplies_tf32(function):
        reduction_bits = min(reduction_bits, TF32_BITS)
    if (layer := find_recurrence(function)) is not None:  # an opaque block, whose sums are in loops
        reduction, reduction_bits, exact, shrinks = layer.units, _BITS[DTYPE], False, True
    if (found := find_combining(function)) is not None:  # the same
        reduction, reduction_bits = found.most, significand_bits(str(found.out.dtype)) or 53
    if not written:
        raise ValueError("the workload writes none of its parameters")
    return WorkloadProperties(
        params=params,
        outputs=tuple(sorted(written)),
        reduction=max(1, reduction),
        bits=bits,
        reduction_bits=reduction_bits,
        exact=exact,
        steep=steep,
        shrinks=shrinks or sums > 1,
        floats=floats,
        exact_on_edges=reduction_bits >= _BITS[DTYPE] and not rounds and not jumps and _sums_half(function),
        rounds=rounds,
        state_weights=None if layer is None else STATE_WEIGHTS,
        words=frozenset(i for i, param in enumerate(function.params) if any(map(param.same_as, shifted))),
        index_bound=bound,
    )


def _jumps(node: Any, kind: str) -> bool:
    """Whether the node makes something else than a float of floats: it may be another one for the smallest difference."""
    if kind in _COMPARISONS:
        return "float" in str(node.a.ty)
    return kind == "Cast" and "float" in str(node.value.ty) and "float" not in str(node.ty)


def _shrinks(node: Any, kind: str) -> bool:
    """Whether the node makes something of floats in another way than by + - *, a cast to floats, or cutting off at zero:
    a choice by where they lie, too."""
    if kind in _COMPARISONS or _jumps(node, kind):
        return _jumps(node, kind)
    if "float" not in str(getattr(node, "ty", "")):
        return False
    if kind in ("Min", "Max"):
        return not any(type(side).__name__ == "FloatImm" and side.value == 0.0 for side in (node.a, node.b))
    return kind in _INEXACT_NODES or (kind == "Call" and getattr(node.op, "name", "") not in _EXACT_CALLS)


def _sums_half(function: Any) -> bool:
    """Whether there is one reduction, which reads half precision, and before which elements are moved only."""
    blocks: list[Any] = []
    structural_walk(function.body, [(object, lambda node: blocks.append(node) if _is_block(node) else None)])
    reductions = [block for block in blocks if any(v.iter_type == v.CommReduce for v in block.iter_vars)]
    if len(reductions) != 1:
        return False
    (reduction,) = reductions
    half = all((significand_bits(str(read.source.ty.dtype)) or 53) <= _BITS["float16"] for read in reduction.reads)
    return half and not any(map(_computes, blocks[: blocks.index(reduction)]))


def _is_block(node: Any) -> bool:
    return type(node).__name__ == "SBlock" and len(node.iter_vars) > 0


def _computes(block: Any) -> bool:
    """Whether a block computes floats, and not only moves or converts them."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        kind = type(node).__name__
        inexact = kind == "Call" and getattr(node.op, "name", "") not in _EXACT_CALLS
        if (inexact or kind in _ARITHMETIC | _INEXACT_NODES) and "float" in str(node.ty):
            found.append(node)

    structural_walk(block.body, [(object, visit)])
    return bool(found)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _indexed_extent(buffer: Any, indices: Sequence[Any]) -> int | None:
    """The smallest extent of `buffer` that is indexed by a value read from memory."""
    least: int | None = None
    for extent, index in zip(buffer.ty.shape, indices, strict=True):
        if _loads(index):
            least = _least(least, int(extent))
    return least


def _loads(expression: Any) -> list[Any]:
    """The nodes that read memory."""
    loads: list[Any] = []

    def visit(node: Any) -> None:
        if type(node).__name__ == "TensorLoad":
            loads.append(node)

    structural_walk(expression, [(object, visit)])
    return loads
