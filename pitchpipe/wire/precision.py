"""How float32 products and convolutions of a model may be computed, by PyTorch's names (decision 0043)."""

from __future__ import annotations

from typing import Literal

from pitchpipe.errors import InvalidInput

Precision = Literal["ieee", "tf32"]
"""`ieee`: strictly in float32. `tf32`: tensor cores may round their operands to 10 bits of fraction. On a CPU both are the
same."""
PRODUCTS, CONVOLUTIONS = CONTRACTIONS = ("products", "convolutions")
"""What may be TF32, each by its own switch in PyTorch."""


def tf32_of(precision: str) -> tuple[str, ...]:
    """Which contractions may be TF32. Raises InvalidInput for a precision that is not known."""
    if precision not in ("ieee", "tf32"):
        raise InvalidInput(f"the precision is ieee or tf32, not {precision!r}")
    return CONTRACTIONS if precision == "tf32" else ()
