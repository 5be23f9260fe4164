"""StableHLO's operators as Relax expressions; see the StableHLO specification for what each means.

Reductions, products and convolutions are in stablehlo_contractions.py, slices and gathers in stablehlo_indexing.py.
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
from tuner.ingest.stablehlo_values import Counted, Patched, Spread, dtype_of, shape_of
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
NUMBERS = {"EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal}
NUMBERS |= {"GT": np.greater, "GE": np.greater_equal}
COMPUTED: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.not": np.bitwise_not,
    "stablehlo.select": np.where,
    "stablehlo.compare": np.equal,  # or what its direction says
    "stablehlo.convert": np.asarray,
}
"""What is done with whole numbers that are known, here and now."""
_TAKE_PATCHED = ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice")


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
            "stablehlo.dynamic_slice": self._dynamic_slice,
            "stablehlo.dynamic_update_slice": self._dynamic_update_slice,
            "stablehlo.exponential_minus_one": self._exponential_minus_one,
            "stablehlo.gather": self._gather,
            "stablehlo.iota": self._iota,
            "stablehlo.log_plus_one": self._log_plus_one,
            "stablehlo.not": self._not,
            "stablehlo.pad": self._pad,
            "stablehlo.reduce": self._reduce,
            "stablehlo.reduce_window": self._reduce_window,
            "stablehlo.reshape": self._reshape,
            "stablehlo.remainder": self._remainder,
            "stablehlo.reverse": self._reverse,
            "stablehlo.select": self._select,
            "stablehlo.slice": self._slice,
            "stablehlo.transpose": self._transpose,
        }

    def knows(self, name: str) -> bool:
        return name in self._methods

    def convert(self, name: str, operation: Any, operands: list[Any]) -> Any:
        """The result of an operator that `knows`; raises UnsupportedOperator for a use of it that is not known."""
        if (number := self._computed(name, operation, operands)) is not None:
            return number
        if name not in _TAKE_PATCHED:
            operands = [self.whole(value) if isinstance(value, Patched) else value for value in operands]
        return self._methods[name](operation, operands)

    def _computed(self, name: str, operation: Any, operands: list[Any]) -> Any:
        """The result as a constant where it is a whole number or a boolean made of such: a loop's counter, an index."""
        if name not in COMPUTED:
            return None
        numbers = [number for value in operands if (number := self.number(value)) is not None]
        if len(numbers) < len(operands) or any(number.dtype.kind not in "biu" for number in numbers):
            return None
        dtype = dtype_of(operation.results[0].type)
        make = COMPUTED[name]
        if name == "stablehlo.compare":
            make = NUMBERS[stablehlo.ComparisonDirectionAttr(operation.attributes["comparison_direction"]).value]
        if "float" in dtype:
            return None
        with np.errstate(over="ignore"):
            return relax.const(np.asarray(make(*numbers)).astype(dtype), dtype)

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
            return self._whole_quotient("stablehlo.divide", operation, operands)
        return self._binary(op.divide, operation, operands)

    def _remainder(self, operation: Any, operands: list[Any]) -> Any:
        """Of whole numbers: what the quotient, which is rounded towards zero, leaves."""
        if "int" not in dtype_of(operation.results[0].type):
            raise UnsupportedOperator("operator stablehlo.remainder of floating-point numbers is not supported")
        quotient = self._whole_quotient("stablehlo.remainder", operation, operands)
        product = self._binary(op.multiply, operation, [quotient, operands[1]])
        return self._binary(op.subtract, operation, [operands[0], product])

    def _whole_quotient(self, name: str, operation: Any, operands: list[Any]) -> Any:
        """Rounded towards zero, by a positive number that is known: a division by zero would end the process."""
        divisor = self._scalar(operands[1])
        if divisor is None or divisor <= 0:
            raise UnsupportedOperator(f"operator {name} of integers is supported by a positive constant")
        if dtype_of(operation.results[0].type).startswith("u"):
            return self._binary(op.floor_divide, operation, operands)
        size = self._binary(op.floor_divide, operation, [self._unary(op.abs, operation, operands[:1]), operands[1]])
        return self._binary(op.multiply, operation, [size, self._unary(op.sign, operation, operands[:1])])

    def _logic(self, logical: Any, bitwise: Any, operation: Any, operands: list[Any]) -> Any:
        return self._binary(logical if dtype_of(operation.results[0].type) == "bool" else bitwise, operation, operands)

    def _not(self, operation: Any, operands: list[Any]) -> Any:
        is_bool = dtype_of(operation.results[0].type) == "bool"
        return self._unary(op.logical_not if is_bool else op.bitwise_not, operation, operands)

    def _compare(self, operation: Any, operands: list[Any]) -> Any:
        direction = stablehlo.ComparisonDirectionAttr(operation.attributes["comparison_direction"]).value
        if dtype_of(operation.operands[0].type) == "bool":  # which LLVM has no comparison of
            if direction in ("GT", "GE"):
                operands, direction = operands[::-1], {"GT": "LT", "GE": "LE"}[direction]
            if direction in ("LT", "LE"):
                logic = op.logical_and if direction == "LT" else op.logical_or
                return self._binary(lambda a, b: logic(self._emit(op.logical_not(a)), b), operation, operands)
            found = self._binary(op.logical_xor, operation, operands)
            return found if direction == "NE" else self._emit(op.logical_not(found))
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
        return Counted(self._emit(op.reshape(counted, narrow)), shape, axis)

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


def _filled(number: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    scalar = relax.const(number, dtype)
    return Spread(scalar, shape) if shape else scalar
