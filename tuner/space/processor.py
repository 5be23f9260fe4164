"""What a design space for a CPU asks of the target: vectors, registers, caches, cores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.target import Target
from tuner.tvm_compat import to_tvm_target, tvm

L1_BYTES = 32 << 10
"""Of data, per core: a target does not say; nearly every core of the last fifteen years has 32 to 64 KiB."""
L1_WAYS = 8
"""Lines of the L1 cache that may lie in one set, of 64: addresses 4 KiB apart fall into the same."""
LINE_BYTES = 64
L1_SETS = L1_BYTES // L1_WAYS // LINE_BYTES
L2_BYTES = 512 << 10
"""Per core, likewise: 256 KiB to 2 MiB."""
BALANCED = 0.8
"""Share of the cores' time that the tasks of a schedule must use."""


@dataclass(frozen=True, kw_only=True)
class VectorUnit:
    """What the target's vector instructions give."""

    lanes: int
    """Elements per register."""
    registers: int
    operands: int
    """Registers that a tile needs for elements of A on their way: LLVM takes one on x86, on NEON it loads ahead."""

    @staticmethod
    def of(target: Target, element_bits: int) -> VectorUnit:
        """Of a CPU target of ours."""
        return VectorUnit.with_features_of(to_tvm_target(target), element_bits)

    @staticmethod
    def with_features_of(target: Any, element_bits: int) -> VectorUnit:
        """From the features of TVM's target: AVX-512, AVX2, else the 128-bit unit of NEON and of baseline x86."""
        has = tvm.target.codegen.target_has_features
        if has("avx512f", target):
            return VectorUnit(lanes=512 // element_bits, registers=32, operands=1)
        if has("avx2", target):
            return VectorUnit(lanes=256 // element_bits, registers=16, operands=1)
        neon = has("neon", target)
        return VectorUnit(lanes=128 // element_bits, registers=32 if neon else 16, operands=4 if neon else 2)


def lines_in_l1(stride_bytes: int) -> int:
    """Lines at multiples of a stride that stay in the L1 cache together: eight where it is a multiple of 4 KiB."""
    return L1_WAYS * L1_SETS // math.gcd(stride_bytes // LINE_BYTES or 1, L1_SETS)
