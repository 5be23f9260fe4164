"""TFLite files: their own interpreter. Needs ai-edge-litert."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from pitchpipe.model.comparison import drawn
from pitchpipe.model.reference.expected import ModelFile


class TfliteRunner:
    """The bytes of a file."""

    def __init__(self, data: bytes) -> None:
        self.name = f"LiteRT {version('ai-edge-litert')}"
        self.weights: dict[str, np.ndarray] = {}
        self._interpreter = Interpreter(model_content=data, num_threads=1)
        self._interpreter.allocate_tensors()
        self.computed: str | None = None
        self.rounded = self.widened = None
        self.steps = tuple(map(self._step, self._interpreter.get_output_details()))
        rng = np.random.default_rng(0)
        self.examples = [_example(told, rng) for told in self._interpreter.get_input_details()]

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        for told, array in zip(self._interpreter.get_input_details(), arrays, strict=True):
            self._interpreter.set_tensor(told["index"], array)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(told["index"]).copy() for told in self._interpreter.get_output_details()]

    def _step(self, told: Any) -> float:
        """Of the grid of an output: frameworks round quantised values differently, by one step at most."""
        if _is_quantised(told):
            return 1.0
        makers = (op for op in self._interpreter._get_ops_details() if told["index"] in op["outputs"])
        maker = next((op for op in makers if op["op_name"] == "DEQUANTIZE"), None)
        if maker is None:
            return 0.0
        grid = next(one for one in self._interpreter.get_tensor_details() if one["index"] == maker["inputs"][0])
        return float(max(grid["quantization_parameters"]["scales"], default=0.0))


def from_file(file: ModelFile) -> TfliteRunner:
    """The framework with the file."""
    return TfliteRunner(file.path.read_bytes())


def _is_quantised(told: Any) -> bool:
    return bool(len(told["quantization_parameters"]["scales"]))


def _example(told: Any, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = [int(extent) for extent in told["shape"]], np.dtype(told["dtype"])
    if dtype.kind in "iu" and _is_quantised(told):
        return drawn(shape, dtype, rng, integers=(np.iinfo(dtype).min, np.iinfo(dtype).max))
    return drawn(shape, dtype, rng)
