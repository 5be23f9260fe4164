"""StableHLO's reductions, pooling windows, products and convolutions as Relax; see the StableHLO specification."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo

from pitchpipe.errors import InvalidModel, UnsupportedOperator
from tuner.ingest.stablehlo_indexing import Indexing
from tuner.ingest.stablehlo_values import Counted, dtype_of, shape_of
from tuner.tvm_compat import relax

op = relax.op
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any]]] = {
    "stablehlo.add": (op.sum, op.add),
    "stablehlo.multiply": (op.prod, op.multiply),
    "stablehlo.maximum": (op.max, op.maximum),
    "stablehlo.minimum": (op.min, op.minimum),
    "stablehlo.and": (op.min, op.logical_and),
    "stablehlo.or": (op.max, op.logical_or),
}
"""The reducer's one operator -> the reduction, and how its initial value is added to that."""


_ARGUMENT = "compare compare or compare compare and or select select return"
"""The steps by which JAX combines two pairs of an element and its index: NaN, then the larger, then the first of equals."""


class Contractions(Indexing):
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
            return self._reduced_booleans(name, self.whole(value), axes, start)
        else:
            if name in ("stablehlo.and", "stablehlo.or"):
                raise UnsupportedOperator(f"operator stablehlo.reduce of whole numbers by {name} is not supported")
            found = self._emit(reduction(self.whole(value), axes))
        if self._scalar(start) == _identity(name, str(found.ty.dtype)):
            return found
        return self._emit(combine(found, start))

    def extreme(self, operation: Any, operands: list[Any]) -> list[Any]:
        """A reduction with two results, if it is the largest or smallest element and the first index of it."""
        value, counted, *starts = operands
        axes = list(operation.attributes["dimensions"])
        steps = list(operation.regions[0].blocks[0].operations)
        direction = ""
        if [step.operation.name.removeprefix("stablehlo.") for step in steps] == _ARGUMENT.split():
            compared = [
                stablehlo.ComparisonDirectionAttr(step.attributes["comparison_direction"]).value
                for step in steps
                if step.operation.name == "stablehlo.compare"
            ]
            direction = compared[0] if compared[1:] == ["NE", "EQ", "LT"] else ""
        dtype = dtype_of(operation.results[0].type)
        reducer, placed = ("stablehlo.maximum", op.argmax) if direction == "GT" else ("stablehlo.minimum", op.argmin)
        known = (
            direction in ("GT", "LT") and len(axes) == 1 and isinstance(counted, Counted) and counted.axis == axes[0]
        )
        if not known or [self._scalar(start) for start in starts] != [_identity(reducer, dtype), 0.0]:
            raise UnsupportedOperator(
                "operator stablehlo.reduce with 2 results is supported for the place of an extreme"
            )
        whole = self.whole(value)
        place = self._emit(placed(whole, axes[0]))
        found = self._emit(REDUCTIONS[reducer][0](whole, axes))
        return [found, self._emit(op.astype(place, dtype_of(operation.results[1].type)))]

    def _reduced_booleans(self, name: str, value: Any, axes: list[int], start: Any) -> Any:
        """All or any of them: the least or largest of zeros and ones."""
        reduction, combine = REDUCTIONS[name]
        if name not in ("stablehlo.and", "stablehlo.or"):
            raise UnsupportedOperator(f"operator stablehlo.reduce of booleans by {name} is not supported")
        shape = shape_of(value)
        if all(shape[axis] == 1 for axis in axes):
            found = self._reshaped(value, [extent for axis, extent in enumerate(shape) if axis not in axes])
        else:
            found = self._emit(reduction(self._emit(op.astype(value, "int32")), axes))
            found = self._emit(op.not_equal(found, relax.const(0, "int32")))
        neutral = self._scalar(start) == (1.0 if name == "stablehlo.and" else 0.0)
        return found if neutral else self._emit(combine(found, start))

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
        moving = [axis for axis in range(rank) if axis not in still]
        if name == "stablehlo.add" and len(moving) == 1 and strides == dilations == base == [1] * rank and start == 0.0:
            axis, extent = moving[0], shape_of(value)[moving[0]]
            sides = [int(width) for width in padding[axis]]
            if window[axis] == extent and sorted(sides) == [0, extent - 1]:
                return self._summed_along(value, axis, from_end=sides[0] == 0)
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

    def _summed_along(self, value: Any, axis: int, *, from_end: bool) -> Any:
        """Cumulative sums along an axis, from its first element on or `from_end`."""
        turned = self._emit(op.flip(value, axis)) if from_end else value
        found = self._emit(op.cumsum(turned, axis, str(value.ty.dtype)))
        return self._emit(op.flip(found, axis)) if from_end else found

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
        """Of images; batch and features first or last stay, anything else is put into NHWC and HWIO. Of sequences, as
        images of one row. A transposed one is that of an image with zeros between its elements."""
        attributes = operation.attributes
        numbers = stablehlo.ConvDimensionNumbers(attributes["dimension_numbers"])
        value, kernel = (self.whole(operand) for operand in operands)
        rank = len(numbers.input_spatial_dimensions)
        if rank not in (1, 2):
            raise UnsupportedOperator("operator stablehlo.convolution is supported for one or two spatial dimensions")
        if int(attributes["batch_group_count"].value) != 1:
            raise UnsupportedOperator("operator stablehlo.convolution that is grouped by batch is not supported")

        def listed(name: str) -> list[int]:
            return [1] * (2 - rank) + ([int(item) for item in attributes[name]] if name in attributes else [1] * rank)

        padding = np.zeros((2, 2), int)
        if "padding" in attributes:
            padding[2 - rank :] = np.array(attributes["padding"]).reshape(rank, 2)
        order = [numbers.input_batch_dimension, *numbers.input_spatial_dimensions, numbers.input_feature_dimension]
        layout = "NCHW" if order == [0, 2, 3, 1] else "NHWC"
        if layout == "NHWC":
            value = self._permuted(value, order)
        features = numbers.kernel_input_feature_dimension, numbers.kernel_output_feature_dimension
        kernel = self._permuted(kernel, [*numbers.kernel_spatial_dimensions, *features])
        if rank == 1:
            value, kernel = (
                self._reshaped(one, [*shape_of(one)[:at], 1, *shape_of(one)[at:]])
                for one, at in ((value, 1), (kernel, 0))
            )
        if "window_reversal" in attributes:
            for axis, is_reversed in enumerate(attributes["window_reversal"]):
                kernel = self._emit(op.flip(kernel, 2 - rank + axis)) if is_reversed else kernel
        zeros = listed("lhs_dilation")
        if zeros != [1, 1] or padding.min() < 0:
            around = {"NCHW": [(0, 0), (0, 0), *padding], "NHWC": [(0, 0), *padding, (0, 0)]}[layout]
            between = {"NCHW": [1, 1, *zeros], "NHWC": [1, *zeros, 1]}[layout]
            low, high = ([int(pair[side]) for pair in around] for side in (0, 1))
            value = self._padded(self._dilated(value, between, 0.0), low, high, 0.0)
            padding = np.zeros((2, 2), int)
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
        if rank == 1:
            batch, _, length, width = shape_of(found)
            found = self._reshaped(found, [batch, length, width])
            return self._permuted(found, [made.index(axis) for axis in range(3)])
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
