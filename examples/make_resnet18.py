"""Writes a ResNet-18 (input 1x3x224x224, 1000 classes) with random weights as an ONNX file.

Needs onnx and NumPy only. Architecture: He et al., "Deep Residual Learning for Image Recognition" (2015), table 1.

    python examples/make_resnet18.py resnet18.onnx --seed 0
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class GraphWriter:
    """Collects nodes and initializers; every method returns the name of the tensor it produced."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def parameter(self, name: str, values: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, op: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def conv_bn(self, x: str, name: str, channels: tuple[int, int], kernel: int, stride: int) -> str:
        """Convolution without bias, then batch normalization, padded to keep ceil(size / stride)."""
        c_in, c_out = channels
        fan_in = c_in * kernel * kernel
        weight = self.parameter(
            f"{name}.weight", self.rng.normal(0, np.sqrt(2 / fan_in), (c_out, c_in, kernel, kernel))
        )
        y = self.node(
            "Conv", [x, weight], f"{name}.conv", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4
        )
        statistics = [
            self.parameter(f"{name}.gamma", self.rng.uniform(0.5, 1.0, c_out)),
            self.parameter(f"{name}.beta", self.rng.normal(0, 0.1, c_out)),
            self.parameter(f"{name}.mean", self.rng.normal(0, 0.1, c_out)),
            self.parameter(f"{name}.var", self.rng.uniform(0.5, 1.5, c_out)),
        ]
        return self.node("BatchNormalization", [y, *statistics], f"{name}.bn", epsilon=1e-5)

    def basic_block(self, x: str, name: str, channels: tuple[int, int], stride: int) -> str:
        c_in, c_out = channels
        y = self.node("Relu", [self.conv_bn(x, f"{name}.a", (c_in, c_out), 3, stride)], f"{name}.a.relu")
        y = self.conv_bn(y, f"{name}.b", (c_out, c_out), 3, 1)
        shortcut = x if stride == 1 and c_in == c_out else self.conv_bn(x, f"{name}.down", channels, 1, stride)
        return self.node("Relu", [self.node("Add", [y, shortcut], f"{name}.add")], f"{name}.relu")


def resnet18(seed: int = 0) -> onnx.ModelProto:
    """Builds the model; the same seed gives the same weights."""
    graph = GraphWriter(np.random.default_rng(seed))
    x = graph.node("Relu", [graph.conv_bn("image", "stem", (3, 64), 7, 2)], "stem.relu")
    x = graph.node("MaxPool", [x], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    c_in = 64
    for stage, c_out in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            x = graph.basic_block(x, f"stage{stage}.{block}", (c_in, c_out), stride)
            c_in = c_out
    x = graph.node("Flatten", [graph.node("GlobalAveragePool", [x], "pool")], "features")
    weight = graph.parameter("head.weight", graph.rng.normal(0, np.sqrt(1 / 512), (1000, 512)))
    bias = graph.parameter("head.bias", np.zeros(1000))
    graph.node("Gemm", [x, weight, bias], "logits", transB=1)
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 224, 224])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1000])]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "resnet18", inputs, outputs, graph.initializers),
        opset_imports=[helper.make_opsetid("", 17)],
        producer_name="pitchpipe-example",
    )
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    onnx.save(resnet18(arguments.seed), arguments.path)
