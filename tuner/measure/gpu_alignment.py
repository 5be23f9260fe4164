"""Whether every vector of a kernel begins where the hardware can access it, and has a type.

A GPU reads and writes vectors of up to 16 bytes at multiples of their size alone; any other address ends the context with
an error, at run time. TVM's generator makes vectors of whatever a schedule vectorises.
"""

from __future__ import annotations

import re
from typing import Any

from tuner.tvm_compat import ir, structural_walk, sym, tirx

WIDEST_BYTES = 16
"""Of a single access; TVM makes wider vectors of several."""
MOST_INDICES = 4
"""Of a vector."""


def misaligned(kernel: Any) -> str | None:
    """What is not certain to be aligned in a lowered kernel, for people; None where everything is.

    Buffers begin at multiples of 16 bytes. An index is taken as aligned if that follows from its form: every factor and
    constant in it is a multiple of the vector.
    """
    analyzer = sym.Analyzer()
    found: list[str] = []

    def visit(node: Any) -> None:
        indices = getattr(node, "indices", None)
        if not indices or not isinstance(indices[-1], tirx.Ramp):
            return
        buffer, ramp = node.buffer if isinstance(node, tirx.BufferStore) else node.source, indices[-1]
        bits = int(re.sub(r"\D", "", str(buffer.ty.dtype)) or 8)
        lanes = int(ramp.lanes)
        needed = min(lanes, WIDEST_BYTES * 8 // bits)
        if not isinstance(ramp.stride, tirx.IntImm) or int(ramp.stride) != 1:
            return  # Gathered one by one.
        known = analyzer.modular_set(ramp.base)
        if int(known.coeff) % needed or int(known.base) % needed:
            found.append(f"{lanes} elements of {buffer.ty.dtype} at {ramp.base} of {buffer.name}")

    structural_walk(kernel.body, (tirx.BufferStore, visit))
    structural_walk(kernel.body, (ir.TensorLoad, visit))
    return found[0][:200] if found else None


def without_type(kernel: Any) -> str | None:
    """A vector in a lowered kernel that CUDA C++ has no type for, for people; None where there is none.

    Elements that do not lie side by side are taken by a vector of indices, of which TVM's generator writes more than four
    as a vector of four ("too many arguments in function call").
    """
    found: list[str] = []

    def visit(node: Any) -> None:
        if str(node.ty.dtype).startswith(("int32x", "int64x")) and int(node.lanes) > MOST_INDICES:
            found.append(f"a vector of {int(node.lanes)} indices: {node}")

    structural_walk(kernel.body, (tirx.Broadcast, visit))
    return found[0][:200] if found else None
