"""What a design space for a CPU asks of the target: vectors, registers, caches, cores."""

from __future__ import annotations

from dataclasses import dataclass

from pitchpipe.wire.target import Target
from tuner.tvm_compat import to_tvm_target, tvm

L1_BYTES = 32 << 10
"""Of data, per core: a target does not say; nearly every core of the last fifteen years has 32 to 64 KiB."""
L2_BYTES = 512 << 10
"""Per core, likewise: 256 KiB to 2 MiB."""


@dataclass(frozen=True, kw_only=True)
class VectorUnit:
    """What the target's vector instructions give: elements per register, and registers."""

    lanes: int
    registers: int

    @staticmethod
    def of(target: Target, element_bits: int) -> VectorUnit:
        """From the target's features: AVX-512, AVX2, else the 128-bit unit of NEON and of baseline x86."""
        features = to_tvm_target(target)
        has = tvm.target.codegen.target_has_features
        if has("avx512f", features):
            return VectorUnit(lanes=512 // element_bits, registers=32)
        if has("avx2", features):
            return VectorUnit(lanes=256 // element_bits, registers=16)
        return VectorUnit(lanes=128 // element_bits, registers=32 if has("neon", features) else 16)

    def vectors(self, width: int) -> int:
        """Instructions that handle `width` neighbouring elements: full registers, then one per power of two of the
        rest (16 + 8 + 1 for 25 elements)."""
        return width // self.lanes + (width % self.lanes).bit_count()
