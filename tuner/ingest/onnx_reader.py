"""ONNX to Relax. Runs in the child (child.py): the bytes are untrusted. What a node becomes is told in onnx/walk.py."""

from __future__ import annotations

from tuner.ingest import IngestedModel, IngestLimits
from tuner.ingest.finalize import finalize
from tuner.ingest.onnx.source import Source


def read_onnx(data: bytes, limits: IngestLimits) -> IngestedModel:
    """The model of an ONNX file; see tuner.ingest.ingest for the errors."""
    source = Source(data, limits)
    module = source.convert(limits)
    by_name = {variable.name: variable for variable in module["main"].params}
    variables = [by_name[spec.name] for spec in source.specs]
    return finalize(module, variables, source.specs, source.num_input, limits)
