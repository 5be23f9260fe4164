"""StableHLO's operators as Relax expressions; see the StableHLO specification for what each means.

Reductions, products and convolutions are in stablehlo_contractions.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo

from pitchpipe.errors import UnsupportedOperator
from tuner.ingest.stablehlo_contractions import Contractions
from tuner.ingest.stablehlo_values import Spread, dtype_of, shape_of
from tuner.tvm_compat import relax

op = relax.op
UNARY: dict[str, Callable[[Any], Any]] = {
    "stablehlo.abs": op.abs,
    "stablehlo.ceil": op.ceil,
    "stablehlo.cosine": op.cos,
    "stablehlo.exponential": op.exp,
    "stablehlo.floor": op.floor,
    "stablehlo.is_finite": op.isfinite,
    "stablehlo.log": op.log,
    "stablehlo.logistic": op.sigmoid,
    "stablehlo.negate": op.negative,
    "stablehlo.round_nearest_even": op.round,
    "stablehlo.rsqrt": op.rsqrt,
    "stablehlo.sign": op.sign,
    "stablehlo.sine": op.sin,
    "stablehlo.sqrt": op.sqrt,
    "stablehlo.tan": op.tan,
    "stablehlo.tanh": op.tanh,
    "chlo.erf": op.erf,
    "chlo.sinh": op.sinh,
    "chlo.cosh": op.cosh,
    "chlo.asin": op.asin,
    "chlo.acos": op.acos,
    "chlo.atan": op.atan,
    "chlo.square": op.square,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "stablehlo.add": op.add,
    "stablehlo.subtract": op.subtract,
    "stablehlo.multiply": op.multiply,
    "stablehlo.maximum": op.maximum,
    "stablehlo.minimum": op.minimum,
    "stablehlo.power": op.power,
}
LOGIC = {"and": (op.logical_and, op.bitwise_and), "or": (op.logical_or, op.bitwise_or)}
LOGIC |= {"xor": (op.logical_xor, op.bitwise_xor)}
COMPARISONS = {"EQ": op.equal, "NE": op.not_equal, "LT": op.less, "LE": op.less_equal}
COMPARISONS |= {"GT": op.greater, "GE": op.greater_equal}


class Operators(Contractions):
    """Emits into `builder`; see `convert`."""

    def __init__(self, builder: Any) -> None:
        super().__init__(builder)
        self._methods: dict[str, Callable[[Any, list[Any]], Any]] = {
            **{name: partial(self._unary, make) for name, make in UNARY.items()},
            **{name: partial(self._binary, make) for name, make in BINARY.items()},
            **{f"stablehlo.{name}": partial(self._logic, *makes) for name, makes in LOGIC.items()},
            "chlo.erfc": self._erfc,
            "stablehlo.broadcast_in_dim": self._broadcast,
            "stablehlo.clamp": self._clamp,
            "stablehlo.compare": self._compare,
            "stablehlo.concatenate": self._concatenate,
            "stablehlo.constant": self._constant,
            "stablehlo.convert": self._convert,
            "stablehlo.convolution": self._convolution,
            "stablehlo.divide": self._divide,
            "stablehlo.dot_general": self._dot_general,
            "stablehlo.exponential_minus_one": self._exponential_minus_one,
            "stablehlo.gather": self._gather,
            "stablehlo.iota": self._iota,
            "stablehlo.log_plus_one": self._log_plus_one,
            "stablehlo.not": self._not,
            "stablehlo.pad": self._pad,
            "stablehlo.reduce": self._reduce,
            "stablehlo.reduce_window": self._reduce_window,
            "stablehlo.reshape": self._reshape,
            "stablehlo.select": self._select,
            "stablehlo.slice": self._slice,
            "stablehlo.transpose": self._transpose,
        }

    def knows(self, name: str) -> bool:
        return name in self._methods

    def convert(self, name: str, operation: Any, operands: list[Any]) -> Any:
        """The result of an operator that `knows`; raises UnsupportedOperator for a use of it that is not known."""
        return self._methods[name](operation, operands)

    # Element by element

    def _unary(self, make: Callable[[Any], Any], _operation: Any, operands: list[Any]) -> Any:
        (value,) = operands
        if isinstance(value, Spread):
            return Spread(self._emit(make(value.narrow)), value.shape)
        return self._emit(make(value))

    def _binary(self, make: Callable[[Any, Any], Any], _operation: Any, operands: list[Any]) -> Any:
        first, second = operands
        return self._emit(make(*self._loose(shape_of(first), first, second)))

    def _divide(self, operation: Any, operands: list[Any]) -> Any:
        if "int" in dtype_of(operation.results[0].type):
            raise UnsupportedOperator("operator stablehlo.divide of integers is not supported")
        return self._binary(op.divide, operation, operands)

    def _logic(self, logical: Any, bitwise: Any, operation: Any, operands: list[Any]) -> Any:
        return self._binary(logical if dtype_of(operation.results[0].type) == "bool" else bitwise, operation, operands)

    def _not(self, operation: Any, operands: list[Any]) -> Any:
        is_bool = dtype_of(operation.results[0].type) == "bool"
        return self._unary(op.logical_not if is_bool else op.bitwise_not, operation, operands)

    def _compare(self, operation: Any, operands: list[Any]) -> Any:
        direction = stablehlo.ComparisonDirectionAttr(operation.attributes["comparison_direction"]).value
        return self._binary(COMPARISONS[direction], operation, operands)

    def _exponential_minus_one(self, operation: Any, operands: list[Any]) -> Any:
        one = relax.const(1, dtype_of(operation.results[0].type))
        return self._unary(lambda value: op.subtract(self._emit(op.exp(value)), one), operation, operands)

    def _log_plus_one(self, operation: Any, operands: list[Any]) -> Any:
        one = relax.const(1, dtype_of(operation.results[0].type))
        return self._unary(lambda value: op.log(self._emit(op.add(value, one))), operation, operands)

    def _erfc(self, operation: Any, operands: list[Any]) -> Any:
        """One less erf: to the accuracy of a number near one, not to that of a tail."""
        one = relax.const(1, dtype_of(operation.results[0].type))
        return self._unary(lambda value: op.subtract(one, self._emit(op.erf(value))), operation, operands)

    def _clamp(self, _operation: Any, operands: list[Any]) -> Any:
        low, value, high = operands
        shape = shape_of(value)
        found = self._emit(op.maximum(*self._loose(shape, value, low)))
        return self._emit(op.minimum(*self._loose(shape, found, high)))

    def _select(self, operation: Any, operands: list[Any]) -> Any:
        condition, *choices = operands
        return self._emit(op.where(*self._loose(tuple(operation.results[0].type.shape), condition, *choices)))

    def _convert(self, operation: Any, operands: list[Any]) -> Any:
        source, dtype = dtype_of(operation.operands[0].type), dtype_of(operation.results[0].type)
        if source == dtype:
            return operands[0]
        if (number := self._scalar(operands[0])) is not None and math.isfinite(number):  # JAX writes 0.0 so
            return _filled(number, dtype, shape_of(operands[0]))
        if dtype == "bool":
            zero = relax.const(0, source)
            return self._unary(lambda value: op.not_equal(value, zero), operation, operands)
        return self._unary(lambda value: op.astype(value, dtype), operation, operands)

    # Constants and shapes

    def _constant(self, operation: Any, _operands: list[Any]) -> Any:
        ty = operation.results[0].type
        dtype, shape = dtype_of(ty), tuple(ty.shape)
        attribute = operation.attributes["value"]
        if not hasattr(attribute, "is_splat"):
            raise UnsupportedOperator(f"a constant held as {type(attribute).__name__} is not supported")
        if dtype == "bfloat16":  # which MLIR's buffers do not know
            import ml_dtypes

            listed = [attribute.get_splat_value().value] if attribute.is_splat else list(attribute)
            values = np.asarray(listed, ml_dtypes.bfloat16)
        else:
            values = np.array(attribute).astype(dtype)
        if attribute.is_splat:
            return _filled(values.flat[0], dtype, shape)
        return relax.const(values.reshape(shape), dtype)

    def _iota(self, operation: Any, _operands: list[Any]) -> Any:
        ty = operation.results[0].type
        axis, shape = int(operation.attributes["iota_dimension"].value), tuple(ty.shape)
        counted = self._emit(op.arange(0, shape[axis], 1, dtype_of(ty)))
        narrow = [shape[axis] if index == axis else 1 for index in range(len(shape))]
        return Spread(self._emit(op.reshape(counted, narrow)), shape)

    def _broadcast(self, operation: Any, operands: list[Any]) -> Any:
        (value,) = operands
        axes, shape = list(operation.attributes["broadcast_dimensions"]), tuple(operation.results[0].type.shape)
        given = shape_of(value)
        narrow = value.narrow if isinstance(value, Spread) else value
        if not axes or not shape_of(narrow):
            return Spread(narrow, shape) if shape else narrow
        if list(axes) != sorted(axes):
            raise UnsupportedOperator("operator stablehlo.broadcast_in_dim that permutes axes is not supported")
        wide = [1] * len(shape)
        for axis, extent in zip(axes, shape_of(narrow), strict=True):
            wide[axis] = extent
        if tuple(wide) != shape_of(narrow):
            narrow = self._emit(op.reshape(narrow, wide))
        return Spread(narrow, shape) if tuple(wide) != shape or given != shape else narrow

    def _reshape(self, operation: Any, operands: list[Any]) -> Any:
        shape = tuple(operation.results[0].type.shape)
        value = operands[0]
        if isinstance(value, Spread) and not shape_of(value.narrow):
            return Spread(value.narrow, shape) if shape else value.narrow
        return self._emit(op.reshape(self.whole(value), shape))

    def _transpose(self, operation: Any, operands: list[Any]) -> Any:
        return self._permuted(self.whole(operands[0]), list(operation.attributes["permutation"]))

    def _concatenate(self, operation: Any, operands: list[Any]) -> Any:
        axis = int(operation.attributes["dimension"].value)
        return self._emit(op.concat([self.whole(value) for value in operands], axis))

    def _slice(self, operation: Any, operands: list[Any]) -> Any:
        begin, end, strides = (
            list(operation.attributes[f"{name}"]) for name in ("start_indices", "limit_indices", "strides")
        )
        return self._emit(op.strided_slice(self.whole(operands[0]), list(range(len(begin))), begin, end, strides))

    def _pad(self, operation: Any, operands: list[Any]) -> Any:
        low, high, interior = (
            list(operation.attributes[f"{name}"])
            for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
        )
        fill = self._scalar(operands[1])
        if fill is None or any(interior) or min(*low, *high) < 0:
            raise UnsupportedOperator("operator stablehlo.pad is supported outside a tensor, by a constant")
        widths = [width for pair in zip(low, high, strict=True) for width in pair]
        return self._emit(op.nn.pad(self.whole(operands[0]), widths, "constant", fill))

    def _gather(self, operation: Any, operands: list[Any]) -> Any:
        """Whole slices along one axis, which is what indexing an embedding table is."""
        numbers = stablehlo.GatherDimensionNumbers(operation.attributes["dimension_numbers"])
        data, indices = (self.whole(value) for value in operands)
        shape, sizes = shape_of(data), list(operation.attributes["slice_sizes"])
        collapsed, index_shape = list(numbers.collapsed_slice_dims), shape_of(indices)
        axis = collapsed[0] if len(collapsed) == 1 else -1
        batch = len(index_shape) - 1
        offsets = [*range(axis), *range(axis + batch, axis + batch + len(shape) - 1 - axis)]
        taken = [*shape[:axis], 1, *shape[axis + 1 :]]
        if (
            axis < 0
            or list(numbers.start_index_map) != [axis]
            or int(numbers.index_vector_dim) != batch
            or index_shape[-1] != 1
            or list(numbers.offset_dims) != offsets
            or list(numbers.operand_batching_dims)
            or sizes != taken
        ):
            raise UnsupportedOperator("operator stablehlo.gather is supported for whole slices along one axis")
        return self._emit(op.take(data, self._emit(op.reshape(indices, index_shape[:-1])), axis, mode="clip"))


def _filled(number: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    scalar = relax.const(number, dtype)
    return Spread(scalar, shape) if shape else scalar
