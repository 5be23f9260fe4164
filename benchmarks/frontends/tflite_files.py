"""TFLite files made operator by operator, as TensorFlow's converter would. Needs ai-edge-litert and flatbuffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

TYPES = {"float32": 0, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int8": 9}
"""NumPy's name of an element type -> TFLite's number."""
SAME, VALID = 0, 1
RELU, RELU6 = 1, 3


class Graph:
    """One graph under construction; tensors are known by their indices."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.operatorCodes = []
        self.model.buffers = [schema.BufferT()]
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.model.subgraphs = [self.graph]

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        values: np.ndarray | None = None,
        *,
        dtype: str = "float32",
        scale: Any = None,
        zero: Any = 0,
        axis: int = 0,
    ) -> int:
        """`scale` and `zero` point make it quantised: real = scale * (stored - zero), along `axis` where they are lists."""
        tensor = schema.TensorT()
        tensor.name, tensor.shape = name, list(shape)
        tensor.type = TYPES[dtype if values is None else values.dtype.name]
        if values is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(values.tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            tensor.buffer = len(self.model.buffers) - 1
        if scale is not None:
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale = np.atleast_1d(np.asarray(scale, np.float32))
            tensor.quantization.zeroPoint = np.broadcast_to(zero, tensor.quantization.scale.shape).astype(np.int64)
            tensor.quantization.quantizedDimension = axis
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def weight(self, name: str, values: Any, dtype: str = "float32") -> int:
        array = np.asarray(values, dtype)
        return self.tensor(name, array.shape, array)

    def drawn(self, name: str, *shape: int) -> int:
        return self.weight(name, self.rng.normal(0, 0.3, shape))

    def quantised_weight(self, name: str, shape: tuple[int, ...], axis: int | None, scale: float = 0.01) -> int:
        """int8 with a scale for each channel of `axis`, as kernels have, or one for all."""
        values = self.rng.integers(-127, 128, shape).astype(np.int8)
        scales = scale if axis is None else self.rng.uniform(0.5 * scale, scale, shape[axis])
        return self.tensor(name, shape, values, scale=scales, axis=axis or 0)

    def quantised_bias(self, name: str, source: int, kernel: int) -> int:
        """int32, of the scale that input and kernel give."""
        scale = self._scale(source) * self._scale(kernel)
        count = len(scale) if len(scale) > 1 else self.graph.tensors[kernel].shape[0]
        values = self.rng.integers(-300, 300, count).astype(np.int32)
        return self.tensor(name, (count,), values, scale=scale)

    def _scale(self, index: int) -> np.ndarray:
        return np.asarray(self.graph.tensors[index].quantization.scale)

    def add(self, kind: str, inputs: list[int], shape: tuple[int, ...], **fields: Any) -> int:
        """One operator of the schema's name `kind`; fields beside those of `tensor` are those of its `options`."""
        return self.add_many(kind, inputs, [shape], **fields)[0]

    def add_many(self, kind: str, inputs: list[int], shapes: list[tuple[int, ...]], **fields: Any) -> list[int]:
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, kind)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = fields.pop("version", 1)
        self.model.operatorCodes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes) - 1
        typed = {key: fields.pop(key) for key in ("dtype", "scale", "zero") if key in fields}
        operator.inputs = inputs
        operator.outputs = [
            self.tensor(f"{kind}:{len(self.graph.operators)}:{at}", shape, **typed) for at, shape in enumerate(shapes)
        ]
        options = fields.pop("options", None)
        if options is not None:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(schema, f"{options}T")()
            for name, value in fields.items():
                setattr(operator.builtinOptions, name, value)
        self.graph.operators.append(operator)
        return [int(index) for index in operator.outputs]

    def bytes(self, inputs: list[int], outputs: list[int]) -> bytes:
        self.graph.inputs, self.graph.outputs = inputs, outputs
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _window(stride: int = 1, padding: int = SAME, dilation: int = 1) -> dict[str, Any]:
    return {
        "padding": padding,
        "strideW": stride,
        "strideH": stride,
        "dilationWFactor": dilation,
        "dilationHFactor": dilation,
    }


def _pooled(size: int, stride: int, padding: int = SAME) -> dict[str, Any]:
    sides = {"filterWidth": size, "filterHeight": size, "strideW": stride, "strideH": stride}
    return {**sides, "padding": padding, "options": "Pool2DOptions"}


def mobile() -> bytes:
    g = Graph(1)
    x = g.tensor("x", (1, 12, 12, 3))
    a = g.add("CONV_2D", [x, g.drawn("stem", 16, 3, 3, 3), g.drawn("stem bias", 16)], (1, 6, 6, 16),
              **_window(2), options="Conv2DOptions", fusedActivationFunction=RELU6)  # fmt: skip
    b = g.add("DEPTHWISE_CONV_2D", [a, g.drawn("deep", 1, 3, 3, 16), g.drawn("deep bias", 16)], (1, 6, 6, 16),
              **_window(), options="DepthwiseConv2DOptions", depthMultiplier=1)  # fmt: skip
    c = g.add("ADD", [a, b], (1, 6, 6, 16), options="AddOptions")
    d = g.add("MAX_POOL_2D", [c], (1, 3, 3, 16), **_pooled(3, 2))
    e = g.add("MEAN", [d, g.weight("axes", [1, 2], "int32")], (1, 16), options="ReducerOptions")
    head = [e, g.drawn("head", 10, 16), g.drawn("head bias", 10)]
    f = g.add("FULLY_CONNECTED", head, (1, 10), options="FullyConnectedOptions")
    return g.bytes([x], [g.add("SOFTMAX", [f], (1, 10), options="SoftmaxOptions", beta=1.0), c])


def resizing() -> bytes:
    """Both ways of resizing in their variants, concatenation, split."""
    g = Graph(2)
    x = g.tensor("x", (1, 5, 6, 4))
    size = g.weight("size", [10, 9], "int32")
    made = [
        g.add("RESIZE_BILINEAR", [x, size], (1, 10, 9, 4), options="ResizeBilinearOptions", version=3, **how)
        for how in ({}, {"halfPixelCenters": True}, {"alignCorners": True})
    ]
    made += [
        g.add(
            "RESIZE_NEAREST_NEIGHBOR",
            [x, size],
            (1, 10, 9, 4),
            options="ResizeNearestNeighborOptions",
            version=3,
            **how,
        )
        for how in ({}, {"halfPixelCenters": True}, {"alignCorners": True})
    ]
    joined = g.add("CONCATENATION", made, (1, 10, 9, 24), options="ConcatenationOptions", axis=3)
    parts = g.add_many(
        "SPLIT", [g.weight("axis", 3, "int32"), joined], [(1, 10, 9, 12)] * 2, options="SplitOptions", numSplits=2
    )
    return g.bytes([x], parts)


def shapes() -> bytes:
    """Reshape, transpose, slices from the end, both paddings, gather, pack, tile, squeeze."""
    g = Graph(3)
    x = g.tensor("x", (2, 6, 4))
    a = g.add("TRANSPOSE", [x, g.weight("order", [0, 2, 1], "int32")], (2, 4, 6))
    b = g.add("RESHAPE", [a, g.weight("shape", [2, 24], "int32")], (2, 24), options="ReshapeOptions", newShape=[2, 24])
    ends = [g.weight(name, at, "int32") for name, at in (("begin", [0, -1, 0]), ("end", [0, 0, 0]), ("by", [1, 1, 1]))]
    last = g.add("STRIDED_SLICE", [x, *ends], (2, 4), options="StridedSliceOptions",
                 beginMask=5, endMask=5, shrinkAxisMask=2)  # fmt: skip
    back = [g.weight(name, at, "int32") for name, at in (("b2", [0, 5, 0]), ("e2", [2, 0, 4]), ("s2", [1, -2, 1]))]
    turned = g.add("STRIDED_SLICE", [x, *back], (2, 3, 4), options="StridedSliceOptions")
    part = g.add("SLICE", [x, g.weight("from", [0, 2, 1], "int32"), g.weight("sizes", [2, 3, -1], "int32")], (2, 3, 3))
    widths = g.weight("widths", [[0, 0], [1, 2], [0, 1]], "int32")
    padded = g.add("PAD", [part, widths], (2, 6, 4))
    filled = g.add("PADV2", [part, widths, g.weight("fill", 2.5)], (2, 6, 4))
    mirrored = g.add("MIRROR_PAD", [part, widths], (2, 6, 4), options="MirrorPadOptions", mode=0)
    rows = g.add("GATHER", [x, g.weight("rows", [5, 0, 5], "int32")], (2, 3, 4), options="GatherOptions", axis=1)
    packed = g.add("PACK", [last, last], (2, 2, 4), options="PackOptions", axis=1, valuesCount=2)
    tiled = g.add("TILE", [last, g.weight("times", [1, 3], "int32")], (2, 12))
    wide = g.add("EXPAND_DIMS", [last, g.weight("at", 1, "int32")], (2, 1, 4))
    narrow = g.add("SQUEEZE", [wide], (2, 4), options="SqueezeOptions", squeezeDims=[1])
    return g.bytes([x], [b, last, turned, padded, filled, mirrored, rows, packed, tiled, narrow])


def arithmetic() -> bytes:
    """Element by element: activations, roots, extremes."""
    g = Graph(4)
    x, y = g.tensor("x", (2, 8)), g.tensor("y", (2, 8))
    shape = (2, 8)
    square = g.add("SQUARE", [x], shape)
    positive = g.add("ADD", [square, g.weight("one", 1.0)], shape, options="AddOptions")
    kinds = ("LOGISTIC", "TANH", "RELU", "RELU6", "RELU_N1_TO_1", "ELU", "ABS", "NEG", "FLOOR", "CEIL", "ROUND", "EXP")
    made = [g.add(kind, [x], shape) for kind in (*kinds, "SIN", "COS", "HARD_SWISH")]
    made += [g.add(kind, [positive], shape) for kind in ("SQRT", "RSQRT", "LOG")]
    made += [
        g.add("LEAKY_RELU", [x], shape, options="LeakyReluOptions", alpha=0.2),
        g.add("PRELU", [x, g.drawn("slopes", 8)], shape),
        g.add("GELU", [x], shape, options="GeluOptions", approximate=False),
        g.add("GELU", [x], shape, options="GeluOptions", approximate=True),
        g.add("SUB", [x, y], shape, options="SubOptions"),
        g.add("MUL", [x, y], shape, options="MulOptions", fusedActivationFunction=RELU),
        g.add("DIV", [x, positive], shape, options="DivOptions"),
        g.add("POW", [positive, y], shape, options="PowOptions"),
        g.add("MAXIMUM", [x, y], shape, options="MaximumMinimumOptions"),
        g.add("MINIMUM", [x, y], shape, options="MaximumMinimumOptions"),
        g.add("SQUARED_DIFFERENCE", [x, y], shape, options="SquaredDifferenceOptions"),
        g.add("LOG_SOFTMAX", [x], shape, options="LogSoftmaxOptions"),
    ]
    return g.bytes([x, y], made)


def attention() -> bytes:
    """Batched products, a layer norm of single operators, an unstacked projection."""
    g = Graph(5)
    x, length, width = g.tensor("x", (2, 6, 16)), 6, 16
    axes = g.weight("axes", [2], "int32")
    mean = g.add("MEAN", [x, axes], (2, 6, 1), options="ReducerOptions", keepDims=True)
    spread = g.add("SQUARED_DIFFERENCE", [x, mean], (2, 6, 16), options="SquaredDifferenceOptions")
    variance = g.add("MEAN", [spread, axes], (2, 6, 1), options="ReducerOptions", keepDims=True)
    safe = g.add("ADD", [variance, g.weight("epsilon", 1e-5)], (2, 6, 1), options="AddOptions")
    centred = g.add("SUB", [x, mean], (2, 6, 16), options="SubOptions")
    normed = g.add("MUL", [centred, g.add("RSQRT", [safe], (2, 6, 1))], (2, 6, 16), options="MulOptions")
    q, k, v = (
        g.add("FULLY_CONNECTED", [normed, g.drawn(name, width, width), g.drawn(f"{name} bias", width)],
              (2, length, width), options="FullyConnectedOptions", keepNumDims=True)
        for name in ("q", "k", "v")
    )  # fmt: skip
    scores = g.add("BATCH_MATMUL", [q, k], (2, length, length), options="BatchMatMulOptions", adjY=True)
    weights = g.add("SOFTMAX", [scores], (2, length, length), options="SoftmaxOptions", beta=0.25)
    mixed = g.add("BATCH_MATMUL", [weights, v], (2, length, width), options="BatchMatMulOptions")
    heads = g.add_many("UNPACK", [mixed], [(2, width)] * length, options="UnpackOptions", axis=1, num=length)
    return g.bytes([x], [mixed, heads[-1]])


def decoding() -> bytes:
    """A transposed and a dilated convolution, average pooling at the edges, blocks of space as channels."""
    g = Graph(6)
    x = g.tensor("x", (1, 6, 6, 4))
    kernel = g.drawn("up", 8, 3, 3, 4)
    up = g.add("TRANSPOSE_CONV", [g.weight("shape", [1, 12, 12, 8], "int32"), kernel, x], (1, 12, 12, 8),
               options="TransposeConvOptions", padding=SAME, strideW=2, strideH=2)  # fmt: skip
    wide = g.add("CONV_2D", [up, g.drawn("wide", 8, 3, 3, 8), g.drawn("wide bias", 8)], (1, 12, 12, 8),
                 **_window(dilation=2), options="Conv2DOptions", fusedActivationFunction=RELU)  # fmt: skip
    pooled = g.add("AVERAGE_POOL_2D", [wide], (1, 6, 6, 8), **_pooled(3, 2))
    deep = g.add("SPACE_TO_DEPTH", [pooled], (1, 3, 3, 32), options="SpaceToDepthOptions", blockSize=2)
    back = g.add("DEPTH_TO_SPACE", [deep], (1, 6, 6, 8), options="DepthToSpaceOptions", blockSize=2)
    unit = g.add("L2_NORMALIZATION", [back], (1, 6, 6, 8), options="L2NormOptions")
    return g.bytes([x], [wide, pooled, deep, unit])


def choosing() -> bytes:
    """Reductions, comparisons, selection, casts, the index of the largest."""
    g = Graph(7)
    x, y = g.tensor("x", (3, 7)), g.tensor("y", (3, 7))
    axis = g.weight("axis", [1], "int32")
    made = [
        g.add(kind, [x, axis], (3,), options="ReducerOptions")
        for kind in ("SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")
    ]
    larger = g.add("GREATER", [x, y], (3, 7), options="GreaterOptions", dtype="bool")
    made.append(g.add("SELECT_V2", [larger, x, y], (3, 7), options="SelectV2Options"))
    made.append(g.add("CAST", [larger], (3, 7), options="CastOptions", inDataType=6, outDataType=0))
    first = g.add(
        "ARG_MAX", [x, g.weight("of", 1, "int32")], (3,), options="ArgMaxOptions", outputType=2, dtype="int32"
    )
    last = g.add(
        "ARG_MIN", [x, g.weight("of2", 1, "int32")], (3,), options="ArgMinOptions", outputType=2, dtype="int32"
    )
    none = g.add("LOGICAL_NOT", [larger], (3, 7), dtype="bool")
    return g.bytes([x, y], [*made, first, last, none])


def int8_mobile() -> bytes:
    """int8 throughout: kernels with a scale for each channel, zero points, fused activations, a residual sum."""
    g = Graph(8)
    x = g.tensor("x", (1, 12, 12, 3), dtype="int8", scale=0.02, zero=-4)
    kernel = g.quantised_weight("stem", (16, 3, 3, 3), 0)
    a = g.add("CONV_2D", [x, kernel, g.quantised_bias("stem bias", x, kernel)], (1, 6, 6, 16), dtype="int8", scale=0.03,
              zero=-128, version=3, **_window(2), options="Conv2DOptions", fusedActivationFunction=RELU6)  # fmt: skip
    kernel = g.quantised_weight("deep", (1, 3, 3, 16), 3)
    b = g.add("DEPTHWISE_CONV_2D", [a, kernel, g.quantised_bias("deep bias", a, kernel)], (1, 6, 6, 16), dtype="int8",
              scale=0.05, zero=3, version=3, **_window(), options="DepthwiseConv2DOptions", depthMultiplier=1)  # fmt: skip
    c = g.add("ADD", [a, b], (1, 6, 6, 16), dtype="int8", scale=0.06, zero=5, version=2, options="AddOptions")
    d = g.add("AVERAGE_POOL_2D", [c], (1, 3, 3, 16), dtype="int8", scale=0.06, zero=5, version=2, **_pooled(2, 2))
    e = g.add("RESHAPE", [d, g.weight("shape", [1, 144], "int32")], (1, 144), dtype="int8", scale=0.06, zero=5,
              options="ReshapeOptions", newShape=[1, 144])  # fmt: skip
    kernel = g.quantised_weight("head", (10, 144), None)
    f = g.add("FULLY_CONNECTED", [e, kernel, g.quantised_bias("head bias", e, kernel)], (1, 10), dtype="int8",
              scale=0.3, zero=7, version=4, options="FullyConnectedOptions")  # fmt: skip
    soft = g.add("SOFTMAX", [f], (1, 10), dtype="int8", scale=1 / 256, zero=-128, version=2, options="SoftmaxOptions",
                 beta=1.0)  # fmt: skip
    return g.bytes([x], [a, b, c, d, f, soft])


def int8_elementwise() -> bytes:
    """int8 sums, products, activations, pooling, padding, concatenation of different scales, resizing."""
    g = Graph(9)
    x = g.tensor("x", (1, 6, 6, 8), dtype="int8", scale=0.04, zero=2)
    y = g.tensor("y", (1, 6, 6, 8), dtype="int8", scale=0.03, zero=-7)
    shape = (1, 6, 6, 8)
    unit = {"dtype": "int8", "scale": 1 / 256, "zero": -128}
    made = [
        g.add("MUL", [x, y], shape, dtype="int8", scale=0.05, zero=1, version=2, options="MulOptions"),
        g.add("SUB", [x, y], shape, dtype="int8", scale=0.07, zero=4, version=2, options="SubOptions"),
        g.add("LOGISTIC", [x], shape, **unit, version=2),
        g.add("TANH", [x], shape, dtype="int8", scale=1 / 128, zero=0, version=2),
        g.add("HARD_SWISH", [x], shape, dtype="int8", scale=0.04, zero=-100, version=1),
        g.add("MAX_POOL_2D", [x], (1, 3, 3, 8), dtype="int8", scale=0.04, zero=2, version=2, **_pooled(3, 2)),
        g.add("PAD", [x, g.weight("widths", [[0, 0], [1, 1], [2, 0], [0, 0]], "int32")], (1, 8, 8, 8),
              dtype="int8", scale=0.04, zero=2, version=2),
        g.add("CONCATENATION", [x, x], (1, 6, 6, 16), dtype="int8", scale=0.04, zero=2, version=2,
              options="ConcatenationOptions", axis=3),
        g.add("RESIZE_BILINEAR", [x, g.weight("size", [12, 12], "int32")], (1, 12, 12, 8), dtype="int8", scale=0.04,
              zero=2, version=3, options="ResizeBilinearOptions", halfPixelCenters=True),
        g.add("RESIZE_NEAREST_NEIGHBOR", [x, g.weight("size2", [12, 12], "int32")], (1, 12, 12, 8), dtype="int8",
              scale=0.04, zero=2, version=3, options="ResizeNearestNeighborOptions"),
        g.add("MEAN", [x, g.weight("axes", [1, 2], "int32")], (1, 8), dtype="int8", scale=0.02, zero=3, version=2,
              options="ReducerOptions"),
        g.add("TRANSPOSE", [x, g.weight("order", [0, 3, 1, 2], "int32")], (1, 8, 6, 6), dtype="int8", scale=0.04, zero=2,
              version=2),
    ]  # fmt: skip
    return g.bytes([x, y], made)


def float_at_the_ends() -> bytes:
    """Quantised after the input and back before the output, as a converter leaves it for callers with floats."""
    g = Graph(10)
    x = g.tensor("x", (1, 8, 8, 4))
    a = g.add("QUANTIZE", [x], (1, 8, 8, 4), dtype="int8", scale=0.03, zero=-2, options="QuantizeOptions")
    kernel = g.quantised_weight("kernel", (8, 3, 3, 4), 0)
    b = g.add("CONV_2D", [a, kernel, g.quantised_bias("bias", a, kernel)], (1, 6, 6, 8), dtype="int8", scale=0.05,
              zero=-10, version=3, **_window(1, VALID), options="Conv2DOptions", fusedActivationFunction=RELU)  # fmt: skip
    c = g.add("QUANTIZE", [b], (1, 6, 6, 8), dtype="int8", scale=0.08, zero=4, options="QuantizeOptions")
    d = g.add("DEQUANTIZE", [c], (1, 6, 6, 8), options="DequantizeOptions", version=2)
    return g.bytes([x], [d])


FILES: dict[str, Callable[[], bytes]] = {
    "mobile network": mobile,
    "resizing": resizing,
    "shapes": shapes,
    "arithmetic": arithmetic,
    "attention": attention,
    "decoder": decoding,
    "reductions and choices": choosing,
    "int8 mobile network": int8_mobile,
    "int8 element by element": int8_elementwise,
    "int8 with floats at the ends": float_at_the_ends,
}
STEPS = {"int8 with floats at the ends": 0.08}
"""Files whose outputs are floats on a grid: the quantisation step."""


def interpreted(data: bytes, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What TFLite's own interpreter computes, outputs in order."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


def example_inputs(data: bytes, seed: int) -> list[np.ndarray]:
    """Normal numbers, or any of an integer type's, for what the file takes."""
    from ai_edge_litert.interpreter import Interpreter

    rng = np.random.default_rng(seed)
    made = []
    for detail in Interpreter(model_content=data).get_input_details():
        shape, dtype = tuple(detail["shape"]), np.dtype(detail["dtype"])
        if dtype.kind == "f":
            made.append(rng.normal(0, 1, shape).astype(dtype))
        else:
            info = np.iinfo(dtype)
            made.append(rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype))
    return made
