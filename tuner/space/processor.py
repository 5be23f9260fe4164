"""The properties of a CPU that design spaces use: vectors, registers, caches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.target import Target
from tuner.tvm_compat import to_tvm_target, tvm

L1_BYTES = 32 << 10
"""Assumed L1 data cache of a core, since a target does not tell: nearly every core of the last fifteen years has 32 to
64 KiB."""
L1_WAYS = 8
"""Assumed associativity of the L1 cache. It has 64 sets then, and addresses 4 KiB apart are in the same set."""
LINE_BYTES = 64
L1_SETS = L1_BYTES // L1_WAYS // LINE_BYTES
L2_BYTES = 512 << 10
"""Assumed L2 cache of a core: processors have 256 KiB to 2 MiB."""
BALANCED = 0.8
"""Share of the cores' time that the chunks of a schedule's parallel loop must use at least."""


@dataclass(frozen=True, kw_only=True)
class VectorUnit:
    """The vector registers of a target."""

    lanes: int
    """Elements per register."""
    registers: int
    operands: int
    """Registers of a tile that hold elements of A: LLVM uses one on x86, and loads ahead into several on NEON."""

    @staticmethod
    def of(target: Target, element_bits: int) -> VectorUnit:
        """The vector unit of a CPU target, for elements of so many bits."""
        return VectorUnit.with_features_of(to_tvm_target(target), element_bits)

    @staticmethod
    def with_features_of(target: Any, element_bits: int) -> VectorUnit:
        """The same from the features of TVM's target: AVX-512, AVX2, else the 128-bit unit of NEON and of any x86-64."""
        has = tvm.target.codegen.target_has_features
        if has("avx512f", target):
            return VectorUnit(lanes=512 // element_bits, registers=32, operands=1)
        if has("avx2", target):
            return VectorUnit(lanes=256 // element_bits, registers=16, operands=1)
        neon = has("neon", target)
        return VectorUnit(lanes=128 // element_bits, registers=32 if neon else 16, operands=4 if neon else 2)


def lines_in_l1(stride_bytes: int) -> int:
    """Number of cache lines, `stride_bytes` apart, that fit the L1 cache together: eight for multiples of 4 KiB."""
    return L1_WAYS * L1_SETS // math.gcd(stride_bytes // LINE_BYTES or 1, L1_SETS)
