"""The values of a StableHLO graph while it becomes Relax: expressions, and tensors that are another one repeated or with
parts of it replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pitchpipe.errors import UnsupportedOperator
from tuner.tvm_compat import ir, relax

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "i1": "bool"}
DTYPES |= {f"{sign}i{bits}": f"{name}int{bits}" for sign, name in (("", ""), ("u", "u")) for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class Spread:
    """`narrow`, which has the rank of `shape` or none, repeated to `shape`.

    JAX writes every broadcast out; arithmetic that takes the narrow tensor instead is what the graph passes know.
    """

    narrow: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Counted(Spread):
    """0, 1, 2, ... along `axis`."""

    axis: int


@dataclass(frozen=True)
class Patched:
    """`base`, an expression or a Spread, with `pieces` in place of what it had along `axis`, from each piece's index on.

    An unrolled loop that writes a row in every step makes one of these, and one concatenation of it in the end.
    """

    base: Any
    axis: int
    pieces: Mapping[int, Any]
    """No two of them overlap."""

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.base)

    def cuts(self, begin: int, size: int) -> bool:
        """Whether a piece overlaps the given part without being just that."""
        return any(
            start < begin + size and begin < start + length and (start, length) != (begin, size)
            for start, length in self._parts()
        )

    def at(self, begin: int, size: int) -> Any:
        """The piece that is just this part of the axis, or None."""
        return self.pieces[begin] if (begin, size) in self._parts() else None

    def _parts(self) -> list[tuple[int, int]]:
        return [(start, shape_of(piece)[self.axis]) for start, piece in self.pieces.items()]


def dtype_of(ty: Any) -> str:
    """NumPy's name of a tensor type's elements; raises UnsupportedOperator."""
    name = str(ty.element_type)
    if name not in DTYPES:
        raise UnsupportedOperator(f"tensors of {name[:60]} are not supported")
    return DTYPES[name]


def shape_of(value: Any) -> tuple[int, ...]:
    return (
        value.shape if isinstance(value, Spread | Patched) else tuple(int(extent) for extent in value.ty.shape.values)
    )


class Emitter:
    """Emits into `builder` what values are made of."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def whole(self, value: Any) -> Any:
        """The value as an expression of its full shape."""
        if isinstance(value, Patched):
            return self._joined(value)
        return self._emit(relax.op.broadcast_to(value.narrow, value.shape)) if isinstance(value, Spread) else value

    def number(self, value: Any) -> np.ndarray | None:
        """A scalar constant, as an array of its type without axes; None for anything else."""
        if not isinstance(value, ir.GenericConst) or shape_of(value):
            return None
        return np.asarray(value.value.numpy())

    def _joined(self, value: Patched) -> Any:
        parts, done = [], 0
        for start, piece in [*sorted(value.pieces.items()), (value.shape[value.axis], None)]:
            if start > done:
                parts.append(self._part(value.base, value.axis, done, start))
            if piece is not None:
                parts.append(self.whole(piece))
                done = start + shape_of(piece)[value.axis]
        return parts[0] if len(parts) == 1 else self._emit(relax.op.concat(parts, value.axis))

    def _part(self, value: Any, axis: int, begin: int, end: int) -> Any:
        shape = shape_of(value)
        if isinstance(value, Spread) and not shape_of(value.narrow):
            return self.whole(Spread(value.narrow, (*shape[:axis], end - begin, *shape[axis + 1 :])))
        return self._emit(relax.op.strided_slice(self.whole(value), [axis], [begin], [end]))

    def _emit(self, expression: Any) -> Any:
        return self.builder.emit(expression)

    def _loose(self, shape: tuple[int, ...], *values: Any) -> list[Any]:
        """The values, narrow where that still broadcasts to `shape`; the first is spread where nothing else gives it."""
        narrow = [value.narrow if isinstance(value, Spread) else value for value in values]
        if np.broadcast_shapes(*map(shape_of, narrow)) != shape:
            narrow[0] = self.whole(values[0])
        return narrow

    def _scalar(self, value: Any) -> float | None:
        """The number that a value is everywhere, if it is a constant."""
        narrow = value.narrow if isinstance(value, Spread) else value
        if not isinstance(narrow, ir.GenericConst) or narrow.value.numpy().size != 1:
            return None
        return float(narrow.value.numpy().item())

    def _permuted(self, value: Any, order: list[int]) -> Any:
        return value if order == sorted(order) else self._emit(relax.op.permute_dims(value, order))

    def _reshaped(self, value: Any, shape: list[int]) -> Any:
        return value if list(shape_of(value)) == shape else self._emit(relax.op.reshape(value, shape))
