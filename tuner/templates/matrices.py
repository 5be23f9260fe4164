"""Operands of a contraction as matrices, of which a GPU's tensor memory accelerator (TMA) copies whole tiles.

An operand has its own axes (i of A, j of B), the summed ones (k), and may have batches (s). It is a matrix where its
elements lie at

    batch * apart + o * own + k * summed,        with one of the strides `own` and `summed` equal to 1

for o and k the places along its own and the summed axes. Batches are then further rows or columns of the same matrix. So are
the heads of an attention layer's weights, which lie one after another: of the places along the own axes only those within
`span` follow each other, and the next ones begin further rows or columns away.
Source of what such a matrix may be: "Tensor Map Object Management" in the CUDA driver API's reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.templates.contraction import ITEM_BYTES, Axis, Contraction, is_zero, stride_of
from tuner.templates.printer import terms
from tuner.tvm_compat import ir, sym

STRIDE_BYTES = 16
"""Rows of such a matrix begin at multiples of it."""
DTYPES = {"float16": "float16", "bfloat16": "bfloat16", "float32": "tfloat32"}
"""Of elements, and as what they are copied: the accelerator rounds float32 to TF32 on the way (CUtensorMapDataType in
the CUDA driver API's reference)."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Where in a matrix the next one of something begins."""

    rows: int
    columns: int


@dataclass(frozen=True, kw_only=True)
class OperandMatrix:
    """An operand as it lies in memory."""

    parameter: int
    """Its place among the workload's parameters."""
    rows: int
    columns: int
    """Elements that lie side by side."""
    stride: int
    """Elements from a row to the next."""
    summed_last: bool
    """Whether the summed axes are the columns."""
    batch: Steps
    span: int
    """Places along its own axes that follow each other; tiles lie within."""
    spans: Steps
    """From one span to the next."""

    @property
    def ends_in_zeros(self) -> bool:
        """Whether beyond the end of the sum lies nothing, which the accelerator takes for zeros: no batch and no span."""
        return not any(step.columns if self.summed_last else step.rows for step in (self.batch, self.spans))


def operand_matrices(found: Contraction) -> tuple[OperandMatrix, OperandMatrix] | None:
    """A and B as matrices; None where one of them is none."""
    if found.dtype not in DTYPES or (found.dtype == "float32" and not found.tf32):
        return None
    a, b = _matrix(found, found.a, found.i), _matrix(found, found.b, found.j)
    if a is None or b is None:
        return None
    # Tensor cores read elements of 32 bits along the summed axes alone.
    return (a, b) if found.dtype != "float32" or (a.summed_last and b.summed_last) else None


def _matrix(found: Contraction, operand: Any, own: Sequence[Axis]) -> OperandMatrix | None:
    if not isinstance(operand, ir.TensorLoad) or not _is_linear(operand, (*found.s, *own, *found.k)):
        return None
    parameter = next((at for at, param in enumerate(found.params) if param.same_as(operand.source)), None)
    near = next(at for at in range(len(own) + 1) if _joint_stride(operand, own[at:]) is not None)
    strides = [_joint_stride(operand, axes) for axes in (found.s, own[:near], own[near:], found.k)]
    if parameter is None or None in strides:
        return None
    apart, far, o, k = (stride or 0 for stride in strides)
    span, spans = (math.prod(one.extent for one in axes) for axes in (own[near:], own[:near]))
    if k == 1:
        summed_last, stride, rows, columns = True, o or found.extent("k"), span, found.extent("k")
    elif o == 1:
        summed_last, stride, rows, columns = False, k, found.extent("k"), span
    else:
        return None
    if stride < columns or stride * ITEM_BYTES[found.dtype] % STRIDE_BYTES:
        return None
    steps = []
    for length, count in ((apart, found.extent("s")), (far, spans)):
        steps.append(Steps(rows=0, columns=length) if length % stride else Steps(rows=length // stride, columns=0))
        rows, columns = rows + (count - 1) * steps[-1].rows, columns + (count - 1) * steps[-1].columns
    if columns > stride:
        return None
    return OperandMatrix(
        parameter=parameter,
        rows=rows,
        columns=columns,
        stride=stride,
        summed_last=summed_last,
        batch=steps[0],
        span=span,
        spans=steps[1],
    )


def _is_linear(load: Any, axes: Sequence[Axis]) -> bool:
    """Whether the place of an element is a sum of multiples of the axes."""
    analyzer = sym.Analyzer()
    for axis in axes:
        analyzer.bind(axis.variable, ir.Range(0, axis.extent))
    parts = [term for index in load.indices for _, term in terms(analyzer.simplify(index), 1)]
    return all(any(term.same_as(axis.variable) for axis in axes) or is_zero(term) for term in parts)


def _joint_stride(load: Any, axes: Sequence[Axis]) -> int | None:
    """Elements from one place along the axes together to the next; None where it is not the same everywhere, 0 for none."""
    below = 1
    last = 0
    for axis in reversed(axes):
        stride = stride_of(load, axis.variable)
        if below == 1 and last == 0:
            last = stride
        elif stride != last * below:
            return None
        below *= axis.extent
    return last
