"""StableHLO's operators as Relax expressions; see the StableHLO specification for what each means.

Values are Relax expressions, or `Spread`: a tensor that is another one repeated. JAX writes every broadcast out, and
arithmetic that takes the narrow tensor instead is what the graph passes know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo

from pitchpipe.errors import InvalidModel, UnsupportedOperator
from tuner.tvm_compat import ir, relax

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "i1": "bool"}
DTYPES |= {f"{sign}i{bits}": f"{name}int{bits}" for sign, name in (("", ""), ("u", "u")) for bits in (8, 16, 32, 64)}

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
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any]]] = {
    "stablehlo.add": (op.sum, op.add),
    "stablehlo.multiply": (op.prod, op.multiply),
    "stablehlo.maximum": (op.max, op.maximum),
    "stablehlo.minimum": (op.min, op.minimum),
}
"""The reducer's one operator -> the reduction, and how its initial value is added to that."""


@dataclass(frozen=True)
class Spread:
    """`narrow`, which has the rank of `shape` or none, repeated to `shape`."""

    narrow: Any
    shape: tuple[int, ...]


def dtype_of(ty: Any) -> str:
    """NumPy's name of a tensor type's elements; raises UnsupportedOperator."""
    name = str(ty.element_type)
    if name not in DTYPES:
        raise UnsupportedOperator(f"tensors of {name[:60]} are not supported")
    return DTYPES[name]


def shape_of(value: Any) -> tuple[int, ...]:
    return value.shape if isinstance(value, Spread) else tuple(int(extent) for extent in value.ty.shape.values)


class Operators:
    """Emits into `builder`; see `convert`."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
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

    def whole(self, value: Any) -> Any:
        """The value as an expression of its full shape."""
        return self._emit(op.broadcast_to(value.narrow, value.shape)) if isinstance(value, Spread) else value

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

    def _permuted(self, value: Any, order: list[int]) -> Any:
        return value if order == sorted(order) else self._emit(op.permute_dims(value, order))

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

    # Reductions, products, convolutions

    def _reducer(self, operation: Any) -> str:
        operations = list(operation.regions[0].blocks[0].operations)
        name = str(operations[0].operation.name)
        if len(operations) != 2 or name not in REDUCTIONS:
            raise UnsupportedOperator(f"operator {operation.operation.name} by more than {name} is not supported")
        arguments = operation.regions[0].blocks[0].arguments
        if {*operations[0].operands} != {*arguments} or list(operations[1].operands) != [operations[0].results[0]]:
            raise UnsupportedOperator(f"operator {operation.operation.name} by a function of its own is not supported")
        return name

    def _reduce(self, operation: Any, operands: list[Any]) -> Any:
        name = self._reducer(operation)
        value, start = operands
        reduction, combine = REDUCTIONS[name]
        axes = list(operation.attributes["dimensions"])
        if not axes:
            found = self.whole(value)
        elif dtype_of(operation.results[0].type) == "bool":
            raise UnsupportedOperator("operator stablehlo.reduce of booleans is not supported")
        else:
            found = self._emit(reduction(self.whole(value), axes))
        if self._scalar(start) == _identity(name, str(found.ty.dtype)):
            return found
        return self._emit(combine(found, start))

    def _reduce_window(self, operation: Any, operands: list[Any]) -> Any:
        """Pooling of images: the maximum, or the sum, over windows of two axes."""
        name, attributes = self._reducer(operation), operation.attributes
        value = self.whole(operands[0])
        rank = len(shape_of(value))
        window = list(attributes["window_dimensions"])
        strides, dilations, base = (
            list(attributes[key]) if key in attributes else [1] * rank
            for key in ("window_strides", "window_dilations", "base_dilations")
        )
        padding = (
            np.array(attributes["padding"]).reshape(rank, 2) if "padding" in attributes else np.zeros((rank, 2), int)
        )
        start = self._scalar(operands[1])
        still = [axis for axis in range(rank) if window[axis] == strides[axis] == 1 and not padding[axis].any()]
        layout = "NHWC" if {0, 3} <= set(still) else "NCHW"
        height, width = (1, 2) if layout == "NHWC" else (2, 3)
        known = (
            rank == 4
            and {axis for axis in range(4) if axis not in (height, width)} <= set(still)
            and name in ("stablehlo.add", "stablehlo.maximum")
            and start == _identity(name, str(value.ty.dtype))
            and base == [1] * rank
            and padding.min() >= 0
        )
        if not known:
            raise UnsupportedOperator("operator stablehlo.reduce_window is supported for pooling images by max or sum")
        sides = [int(padding[axis][side]) for side in (0, 1) for axis in (height, width)]
        options: dict[str, Any] = {
            "pool_size": [window[height], window[width]],
            "strides": [strides[height], strides[width]],
            "padding": sides,
            "dilation": [dilations[height], dilations[width]],
            "layout": layout,
        }
        if name == "stablehlo.maximum":
            return self._emit(op.nn.max_pool2d(value, **options))
        mean = self._emit(op.nn.avg_pool2d(value, **options, count_include_pad=True))
        return self._emit(op.multiply(mean, relax.const(window[height] * window[width], str(value.ty.dtype))))

    def _dot_general(self, operation: Any, operands: list[Any]) -> Any:
        numbers = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
        batches = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
        contracted = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
        left, right = (self.whole(value) for value in operands)
        ty = operation.results[0].type
        shapes = shape_of(left), shape_of(right)
        free = [
            [axis for axis in range(len(shapes[side])) if axis not in (*batches[side], *contracted[side])]
            for side in (0, 1)
        ]
        sizes = [[shapes[side][axis] for axis in free[side]] for side in (0, 1)]
        batch = [shapes[0][axis] for axis in batches[0]]
        common = math.prod(shapes[0][axis] for axis in contracted[0])
        left = self._permuted(left, [*batches[0], *free[0], *contracted[0]])
        right = self._permuted(right, [*batches[1], *contracted[1], *free[1]])
        # Without batches a left side of any rank times a matrix is one product; with them both sides are matrices.
        rows = [math.prod(sizes[0])] if batch else sizes[0] or [1]
        left = self._reshaped(left, [*batch, *rows, common])
        right = self._reshaped(right, [*batch, common, math.prod(sizes[1])])
        product = self._emit(op.matmul(left, right, dtype_of(ty)))
        return self._reshaped(product, list(ty.shape))

    def _reshaped(self, value: Any, shape: list[int]) -> Any:
        return value if list(shape_of(value)) == shape else self._emit(op.reshape(value, shape))

    def _convolution(self, operation: Any, operands: list[Any]) -> Any:
        """Of images; batch and features first or last stay, anything else is put into NHWC and HWIO."""
        attributes = operation.attributes
        numbers = stablehlo.ConvDimensionNumbers(attributes["dimension_numbers"])
        value, kernel = (self.whole(operand) for operand in operands)
        if len(numbers.input_spatial_dimensions) != 2:
            raise UnsupportedOperator("operator stablehlo.convolution is supported for two spatial dimensions")

        def listed(name: str) -> list[int]:
            return [int(item) for item in attributes[name]] if name in attributes else [1, 1]

        reversed_ = "window_reversal" in attributes and any(attributes["window_reversal"])
        if reversed_ or listed("lhs_dilation") != [1, 1] or int(attributes["batch_group_count"].value) != 1:
            raise UnsupportedOperator(
                "operator stablehlo.convolution that is transposed or grouped by batch is not supported"
            )
        padding = np.array(attributes["padding"]).reshape(2, 2) if "padding" in attributes else np.zeros((2, 2), int)
        if padding.min() < 0:
            raise UnsupportedOperator("operator stablehlo.convolution with negative padding is not supported")
        order = [numbers.input_batch_dimension, *numbers.input_spatial_dimensions, numbers.input_feature_dimension]
        layout = "NCHW" if order == [0, 2, 3, 1] else "NHWC"
        if layout == "NHWC":
            value = self._permuted(value, order)
        features = numbers.kernel_input_feature_dimension, numbers.kernel_output_feature_dimension
        kernel = self._permuted(kernel, [*numbers.kernel_spatial_dimensions, *features])
        found = self._emit(
            op.nn.conv2d(
                value,
                kernel,
                strides=listed("window_strides"),
                padding=[int(padding[axis][side]) for side in (0, 1) for axis in (0, 1)],
                dilation=listed("rhs_dilation"),
                groups=int(attributes["feature_group_count"].value),
                data_layout=layout,
                kernel_layout="HWIO",
                out_dtype=dtype_of(operation.results[0].type),
            )
        )
        made = [numbers.output_batch_dimension, *numbers.output_spatial_dimensions, numbers.output_feature_dimension]
        axes = [made[index] for index in ((0, 3, 1, 2) if layout == "NCHW" else (0, 1, 2, 3))]
        return self._permuted(found, [axes.index(axis) for axis in range(4)])


def _filled(number: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    scalar = relax.const(number, dtype)
    return Spread(scalar, shape) if shape else scalar


def _identity(reducer: str, dtype: str) -> float:
    """The value that the reducer leaves everything else as it is with."""
    if reducer in ("stablehlo.add", "stablehlo.multiply"):
        return 0.0 if reducer == "stablehlo.add" else 1.0
    largest = reducer == "stablehlo.maximum"
    if "int" in dtype:
        info = np.iinfo(dtype)
        return float(info.min if largest else info.max)
    if "float" not in dtype:
        raise InvalidModel(f"tensors of {dtype} have no largest element")
    return -math.inf if largest else math.inf
