"""TFLite's operators as Relax, where TVM's frontend refuses them or computes something else.

Quantised tensors (int8, uint8) are computed on as TVM does: dequantised to float32, worked on, and quantised again, so that
a result is TFLite's or one quantisation step beside it; TFLite's own kernels differ by as much among each other. Where no
arithmetic is done, and in poolings, it is TFLite's exactly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tflite

from tuner.tvm_compat import relax, tflite_frontend, tvm

_TvmConverter: Any = tflite_frontend().OperatorConverter
ops = relax.op

MOVES = frozenset(
    {
        *(
            "BROADCAST_TO",
            "DEPTH_TO_SPACE",
            "EXPAND_DIMS",
            "GATHER",
            "PACK",
            "PAD",
            "RESIZE_NEAREST_NEIGHBOR",
            "REVERSE_V2",
        ),
        *("SLICE", "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK"),
    }
)
"""Operators that copy elements, so that quantised ones stay what they are while the scale does."""


class OperatorConverter(_TvmConverter):  # type: ignore[misc]  # TVM has no types
    """TVM's converter with these operators in place of its own; errors are TVM's, told by tflite_reader.py."""

    _SUPPORTED_QUANTIZED_OPS = _TvmConverter._SUPPORTED_QUANTIZED_OPS | MOVES

    def check_unsupported_ops(self) -> None:
        """As TVM's; and quantised elements are only copied where they mean the same afterwards."""
        super().check_unsupported_ops()
        for index in range(self.subgraph.OperatorsLength()):
            op = self.subgraph.Operators(index)
            name = self.get_op_code_str(op)
            if name in MOVES:
                tensors = [*self.get_input_tensors(op), *self.get_output_tensors(op)]
                quantised = [tensor for tensor in tensors if tensor.qnn_params is not None]
                if not all(self.has_same_qnn_params(quantised[0], other) for other in quantised[1:]):
                    raise tvm.error.OpNotImplemented(f"{name} from one quantisation to another")

    def convert_softmax(self, op: Any) -> Any:
        """With its factor beta, which TVM's leaves out."""
        options = self._options(op, tflite.SoftmaxOptions)
        source, result = self._single(op)
        value = self._real(source)
        if options is not None and options.Beta() != 1.0:
            value = ops.multiply(value, relax.const(options.Beta(), value.ty.dtype.dtype))
        return self._stored(ops.nn.softmax(value, axis=-1), result)

    def convert_gelu(self, op: Any) -> Any:
        """Exact, or by its approximation with a hyperbolic tangent, which TVM's takes for the exact one."""
        options = self._options(op, tflite.GeluOptions)
        if options is None or not options.Approximate():
            return super().convert_gelu(op)
        if self.is_quantized(op):
            raise tvm.error.OpNotImplemented("a quantised GELU")
        source, _ = self._single(op)
        return ops.nn.gelu_tanh(self.get_expr(source.tensor_idx))

    def convert_expand_dims(self, op: Any) -> Any:
        source, axis = self.get_input_tensors(op)
        return ops.expand_dims(self.get_tensor_expr(source), int(np.asarray(self.get_tensor_value(axis)).item()))

    def convert_batch_matmul(self, op: Any) -> Any:
        """Batches broadcast in both directions."""
        if self.is_quantized(op):
            raise tvm.error.OpNotImplemented("a quantised BATCH_MATMUL")
        options = self._options(op, tflite.BatchMatMulOptions)
        left, right = (self.get_tensor_expr(tensor) for tensor in self.get_input_tensors(op))
        if options is not None and options.AdjX():
            left = self._transposed(left)
        if options is not None and options.AdjY():
            right = self._transposed(right)
        return ops.matmul(left, right)

    def convert_pool2d(self, op: Any, pool_type: str) -> Any:
        """An average of whole numbers is rounded, halves away from zero, where TVM's cuts it off."""
        source, result = self._single(op)
        if pool_type != "average" or source.qnn_params is None:
            return super().convert_pool2d(op, pool_type)
        if not self.has_same_qnn_params(source, result):
            raise tvm.error.OpNotImplemented("AVERAGE_POOL_2D from one quantisation to another")
        options = self._options(op, tflite.Pool2DOptions)
        if options.FusedActivationFunction() != tflite.ActivationFunctionType.NONE:
            raise tvm.error.OpNotImplemented("a quantised AVERAGE_POOL_2D with an activation")
        size, strides = (options.FilterHeight(), options.FilterWidth()), (options.StrideH(), options.StrideW())
        padding = [0, 0, 0, 0]
        if options.Padding() == tflite.Padding.SAME:
            extents = [int(extent) for extent in self.get_tensor_shape(source)[1:3]]
            lacking = [
                max((math.ceil(extent / stride) - 1) * stride + window - extent, 0)
                for extent, stride, window in zip(extents, strides, size, strict=True)
            ]
            padding = [width // 2 for width in lacking] + [width - width // 2 for width in lacking]
        mean = ops.nn.avg_pool2d(
            ops.astype(self.get_expr(source.tensor_idx), "float32"), size, strides, padding, layout="NHWC"
        )
        rounded = ops.multiply(ops.sign(mean), ops.floor(ops.add(ops.abs(mean), relax.const(0.5, "float32"))))
        return ops.astype(rounded, self.get_tensor_type_str(result.tensor.Type()))

    def convert_resize_nearest_neighbor(self, op: Any) -> Any:
        """Rows, then columns, at the places that TFLite's kernel computes, in float32 as it does."""
        options = self._options(op, tflite.ResizeNearestNeighborOptions)
        corners, half = (options.AlignCorners(), options.HalfPixelCenters()) if options is not None else (False, False)
        source, size = self.get_input_tensors(op)
        value = self.get_expr(source.tensor_idx)
        for axis, extent in zip((1, 2), np.asarray(self.get_tensor_value(size)).tolist(), strict=True):
            given = int(value.ty.shape[axis])
            ends = (given - 1, extent - 1) if corners and extent > 1 else (given, extent)
            step = np.float32(ends[0]) / np.float32(ends[1])
            places = (np.arange(extent, dtype=np.float32) + np.float32(0.5 if half else 0.0)) * step
            # C's roundf: halves away from zero, where NumPy's go to the even number.
            places = np.floor(places + np.float32(0.5)) if corners else np.floor(places)
            index = np.clip(places, 0, given - 1).astype(np.int32)
            value = self.bb.normalize(ops.take(value, relax.const(index, "int32"), axis, mode="clip"))
        return value

    def _convert_arg_min_max(self, op: Any, relax_op: Any) -> Any:
        """Of the index type that the file says."""
        (result,) = self.get_output_tensors(op)
        found = super()._convert_arg_min_max(op, relax_op)
        return ops.astype(found, self.get_tensor_type_str(result.tensor.Type()))

    @staticmethod
    def _options(op: Any, kind: Any) -> Any:
        """The operator's options; None where the file has none."""
        table = op.BuiltinOptions()
        if table is None:
            return None
        options = kind()
        options.Init(table.Bytes, table.Pos)
        return options

    def _single(self, op: Any) -> tuple[Any, Any]:
        (source,), (result,) = self.get_input_tensors(op), self.get_output_tensors(op)
        return source, result

    def _real(self, tensor: Any) -> Any:
        value = self.get_expr(tensor.tensor_idx)
        return self.bb.normalize(self.dequantize(value, tensor) if tensor.qnn_params else value)

    def _stored(self, value: Any, tensor: Any) -> Any:
        return self.quantize(value, tensor) if tensor.qnn_params else value

    def _transposed(self, value: Any) -> Any:
        rank = len(value.ty.shape)
        return self.bb.normalize(ops.permute_dims(value, [*range(rank - 2), rank - 1, rank - 2]))
