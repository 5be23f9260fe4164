"""TFLite to Relax. Runs in the child (child.py): the bytes are untrusted. Needs the package tflite, which reads the file.

Shapes are those that the file allocates: a dimension it leaves open is the 1 that an interpreter starts with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tflite

from pitchpipe.errors import InvalidModel, TooLarge, UnsupportedOperator
from tuner.ingest import IngestLimits
from tuner.ingest.lift import without_weights
from tuner.ingest.tflite_operators import OperatorConverter
from tuner.tvm_compat import tflite_frontend, tvm

FRONTEND = tflite_frontend()


def read_tflite(data: bytes, limits: IngestLimits) -> tuple[bytes, bytes]:
    """The `relax` format of a TFLite file and its weights; see tuner.ingest.ingest for the errors."""
    if len(data) < 8 or not tflite.Model.ModelBufferHasIdentifier(data, 0):
        raise InvalidModel("the file is truncated or is not a TFLite file")
    try:
        model = tflite.Model.GetRootAsModel(data, 0)
        graph = model.Subgraphs(0)
        nodes = graph.OperatorsLength()
        names = [FRONTEND.get_tensor_name(graph, index) for index in np.asarray(graph.InputsAsNumpy()).flat]
    except Exception as error:  # flatbuffers reads past the end: struct.error, IndexError, ...
        raise InvalidModel(f"the TFLite file is truncated or malformed: {_reason(error)}") from error
    if nodes > limits.nodes:
        raise TooLarge(f"the graph has {nodes} nodes; the limit is {limits.nodes}")
    sources: dict[int, str] = {}
    at = ["the graph's inputs"]

    class Converter(OperatorConverter):
        """Ours, which notes what it converts and from which tensor each constant is."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            new_const = self.exp_tab.new_const

            def noted(value: Any, *rest: Any, source_name: bytes | None = None, **more: Any) -> Any:
                constant = new_const(value, *rest, source_name=source_name, **more)
                if source_name:
                    sources[constant.__chandle__()] = source_name.decode("utf-8", "replace")
                return constant

            self.exp_tab.new_const = noted

        def get_op_code_str(self, op: Any) -> str:
            found: str = super().get_op_code_str(op)
            at[0] = f"operator {found}"
            return found

    try:
        module = FRONTEND.from_tflite(model, op_converter=Converter)
    except MemoryError as error:
        raise TooLarge(f"{at[0]} needs more than {limits.memory_bytes} bytes of memory") from error
    except (NotImplementedError, tvm.error.OpNotImplemented, tvm.error.OpAttributeUnImplemented) as error:
        raise UnsupportedOperator(f"{at[0]} is not supported: {_reason(error)}") from error
    except Exception as error:  # the frontend asserts, and flatbuffers reads past the end
        raise InvalidModel(f"{at[0]} cannot be converted: {_reason(error)}") from error
    return without_weights(module, names, lambda constant: sources.get(constant.__chandle__()), limits)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
