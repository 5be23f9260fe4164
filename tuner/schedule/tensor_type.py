"""Shape and element type of a buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """Static shape and element type of a buffer."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, buffer: Any) -> TensorType:
        """The type of a TIR buffer. Raises ValueError when a dimension is symbolic."""
        return cls(shape=tuple(int(extent) for extent in buffer.ty.shape), dtype=str(buffer.ty.dtype))
