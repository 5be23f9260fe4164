"""Which inputs of an ONNX graph are parameters, noted in the metadata of its file. Needs no onnx."""

from __future__ import annotations

import json
from typing import Any

from pitchpipe.errors import InvalidModel

PARAMS_KEY = "pitchpipe.params"
"""ONNX metadata key; the value is a JSON list of the graph inputs that are parameters, in order."""


def param_names(model: Any) -> list[str]:
    """Names of the graph inputs that are parameters, as `strip_proto` noted them; raises InvalidModel if malformed."""
    found = [entry.value for entry in model.metadata_props if entry.key == PARAMS_KEY]
    if not found:
        return []
    try:
        names = json.loads(found[-1])
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"the metadata {PARAMS_KEY} is not JSON") from error
    inputs = {value.name for value in model.graph.input}
    if not isinstance(names, list) or not all(isinstance(name, str) and name in inputs for name in names):
        raise InvalidModel(f"the metadata {PARAMS_KEY} is not a list of graph inputs")
    return list(dict.fromkeys(names))
