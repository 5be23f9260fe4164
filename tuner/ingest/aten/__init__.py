"""ATen's operators in Relax: an importer for graphs of torch.fx, and a converter for every operator that it takes.

A program is taken apart into operators that have converters first (pitchpipe/torch_operators.py).
"""

from __future__ import annotations

from tuner.ingest import torch_recurrent
from tuner.ingest.aten import (
    activations,
    binary,
    complex,
    indexing,
    norms,
    order,
    pooling,
    products,
    reductions,
    resampling,
    shapes,
    special,
    unary,
)
from tuner.ingest.aten.importer import has_converter, import_graph, operator_name, randomness

__all__ = ["has_converter", "import_graph", "operator_name", "randomness"]

CONVERTING = (
    activations,
    binary,
    complex,
    indexing,
    norms,
    order,
    pooling,
    products,
    reductions,
    resampling,
    shapes,
    special,
    unary,
    torch_recurrent,
)
"""Modules that register converters when they are imported."""
