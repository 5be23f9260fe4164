"""Readers of ONNX operators, one module for each kind; importing this package registers them all."""

from tuner.ingest.onnx.readers import (
    casting,
    elementwise,
    fused,
    fused_attention,
    fused_quantised,
    images,
    kept,
    normalization,
    quantised,
    recurrent,
    reductions,
    resizing,
    shapes,
    signals,
)
from tuner.ingest.onnx.registry import READERS

__all__ = [
    "READERS",
    "casting",
    "elementwise",
    "fused",
    "fused_attention",
    "fused_quantised",
    "images",
    "kept",
    "normalization",
    "quantised",
    "recurrent",
    "reductions",
    "resizing",
    "shapes",
    "signals",
]
