"""StableHLO's reductions, pooling windows, products and convolutions as Relax; see the StableHLO specification."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo

from pitchpipe.errors import InvalidModel, UnsupportedOperator
from tuner.ingest.stablehlo_values import Emitter, dtype_of, shape_of
from tuner.tvm_compat import relax

op = relax.op
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any]]] = {
    "stablehlo.add": (op.sum, op.add),
    "stablehlo.multiply": (op.prod, op.multiply),
    "stablehlo.maximum": (op.max, op.maximum),
    "stablehlo.minimum": (op.min, op.minimum),
}
"""The reducer's one operator -> the reduction, and how its initial value is added to that."""


class Contractions(Emitter):
    """The operators that combine elements of a tensor; each method raises UnsupportedOperator for a use it does not know."""

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
